"""Engines: what runs the work that the scheduler has placed, and says what became of it.

engine (the protocol) ─► gangs: those of several workers as one piece of work, for whoever schedules
                      ─► local: processes of this machine ─► worker (what runs in each of them)
                      ─► ray: actors of a Ray cluster
"""
