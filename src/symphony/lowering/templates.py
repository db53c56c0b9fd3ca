"""What a workload family draws: kernels, and the graphs of them that jobs then share."""

from __future__ import annotations

from symphony.problem import limits
from symphony.problem.workload import Kernel, TaskGraph

Templates = tuple[tuple[Kernel, ...], tuple[TaskGraph, ...]]

TOTAL_TASKS = 64 * limits.TASKS_PER_GRAPH


def check_size(graphs: int, tasks: int, *, where: str) -> None:
    """Refuse templates that are too large before they are made rather than after."""
    limits.check("number of tasks", tasks, limits.TASKS_PER_GRAPH, where=where)
    limits.check("number of tasks in all graphs together", graphs * tasks, TOTAL_TASKS, where=where)
