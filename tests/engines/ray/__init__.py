"""The Ray engine, with a real Ray of several nodes on this machine."""
