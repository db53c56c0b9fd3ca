"""How well contention is modelled; see `__main__`."""
