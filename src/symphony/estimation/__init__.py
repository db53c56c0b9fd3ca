"""What the shared parts of machines are doing: one model for each machine, filtered from counters and run times."""
