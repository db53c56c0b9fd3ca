"""The scheduling core: what the scheduler knows, what may be done, and what events change."""
