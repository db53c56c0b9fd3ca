"""Real runs: kernels and graphs of Python functions, and the loop that schedules them on an engine.

    kernels, signatures ──► graph ──► jobs ────────────────────────────────────┐
                              │                                                ▼
    timing, demand ──► profiles ──► live_workload ──► programs ──► scheduler ──► loop ──► cluster
                           ▲                      (turn, packing)                ▲ │
                           │                                                     │ ▼
                       run_learner ◄──── machine_observer ◄───── finished runs: engine

`machine_observer` also reads counters (`machine_monitor`, `memory_counter`), from which `background_load` and `traffic`
infer the load by other programs. `failures` decides which failed runs are retried, `handling_time` measures the loop's
own overhead, and `report` explains jobs. `function_calls` makes graphs of single functions, and `job_handle` waits for
jobs, here and on a service.
"""
