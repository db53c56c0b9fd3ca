"""Real runs: kernels and graphs of Python functions, and the loop that schedules them on an engine.

kernels ─► graph ─► submission ─────┐
timing, demand ─► profiles ─► workload ┼─► turn (packing, programs) ─► scheduler ─► loop ─► cluster
                           engine ──┘
"""
