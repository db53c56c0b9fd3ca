"""What a workload family draws: kernels, and graphs of them. Many jobs share one graph."""

from __future__ import annotations

from symphony.problem import limits
from symphony.problem.workload import Kernel, TaskGraph

Templates = tuple[tuple[Kernel, ...], tuple[TaskGraph, ...]]

# Bandwidths of the memories of GPUs, in bytes/s. (A K80 board has two GPUs; this is for one.)
GPU_MEMORY_BANDWIDTH = {"k40": 288e9, "k80": 240e9, "p100": 732e9, "v100": 900e9, "a100": 1555e9}

TOTAL_TASKS = 64 * limits.TASKS_PER_GRAPH


def check_size(graphs: int, tasks: int, *, where: str) -> None:
    """Refuse templates that are too large, before they are made."""
    limits.check("number of tasks", tasks, limits.TASKS_PER_GRAPH, where=where)
    limits.check("number of tasks in all graphs together", graphs * tasks, TOTAL_TASKS, where=where)
