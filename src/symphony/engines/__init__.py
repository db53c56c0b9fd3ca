"""Engines run the work that the scheduler has placed, and report how it ended.

engine (the protocol) ─► gangs: several workers as one piece of work, for the scheduler
                      ─► local: processes of this machine ─► worker (what runs in each of them)
                      ─► ray: actors of a Ray cluster
"""
