"""Symphony: a scheduler for clusters of unlike processors whose shared parts are contended."""
