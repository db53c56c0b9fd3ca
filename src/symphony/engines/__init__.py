"""Engines: what runs the work that the scheduler has placed, and says what became of it.

engine (the protocol) ─► local: processes of this machine ─► worker (what runs in each of them)
                      ─► ray: actors of a Ray cluster
"""
