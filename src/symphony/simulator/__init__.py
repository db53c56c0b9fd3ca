"""The simulator: contention, the next event, and whole runs in JAX."""
