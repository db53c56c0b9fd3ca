"""What makes workloads: application families, random graphs, tiled factorisations, training jobs."""
