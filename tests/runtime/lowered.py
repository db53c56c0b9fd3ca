"""Graphs of a live workload in terms of the problem: what its arrays must say."""

from __future__ import annotations

from collections.abc import Sequence

from symphony.problem.workload import Kernel, TaskGraph
from symphony.runtime.graph import Submission
from symphony.runtime.live_workload import LiveWorkload, _names, task_graph


def lowered(found: LiveWorkload, graph: Submission, sizes: Sequence[int]) -> tuple[tuple[Kernel, ...], TaskGraph]:
    """A graph and all kernels. `sizes`: bytes of the arguments of each task."""
    kernels = found._with(graph)
    names = _names(kernels)
    return tuple(found.profiled(kernel, names[kernel]) for kernel in kernels), task_graph(graph, names, sizes)
