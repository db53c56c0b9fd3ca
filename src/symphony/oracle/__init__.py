"""The oracle: what a scheduler that knows everything could do, how good that is at best, and how sure that is."""
