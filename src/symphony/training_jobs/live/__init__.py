"""Training jobs in real runs: processes, folders and threads.

supervisor   saves before it stops a run ──► checkpoints (folders) ◄── progress (what runs report)
rounds       at the end of each round: speed_beliefs learn from progress ──► the policy plans again; forecasts
runs         what these need from the runtime, as protocols
"""
