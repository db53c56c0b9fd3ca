"""Performance counters: what there is to count, what can be computed from it, and how sure that is."""
