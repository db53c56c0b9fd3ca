"""What a workload family draws: kernels, and graphs of them. Many jobs share one graph."""

from __future__ import annotations

from symphony.problem import limits
from symphony.problem.workload import Kernel, TaskGraph

Templates = tuple[tuple[Kernel, ...], tuple[TaskGraph, ...]]

TOTAL_TASKS = 64 * limits.TASKS_PER_GRAPH


def check_size(graphs: int, tasks: int, *, where: str) -> None:
    """Refuse templates that are too large, before they are made."""
    limits.check("number of tasks", tasks, limits.TASKS_PER_GRAPH, where=where)
    limits.check("number of tasks in all graphs together", graphs * tasks, TOTAL_TASKS, where=where)
