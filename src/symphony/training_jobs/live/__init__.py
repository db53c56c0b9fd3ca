"""Training jobs in real runs: processes, folders and threads.

supervisor   has runs save before it stops them ──► checkpoint_folders ◄── progress (written by runs)
rounds       at the end of each round: progress ──► speed_beliefs ──► the policy plans again; forecasts
runs         what these need from the runtime, as protocols
"""
