"""Graphs as they come, and as they are run: the whole of one, or what is left of it after a restart."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from symphony.engines.engine import Stored
from symphony.problem import limits
from symphony.problem.errors import VersionError, WorkloadError
from symphony.runtime.graph import Submission, SubmittedTask, check_order
from symphony.runtime.kernels import KernelOptions, SentKernel, digest
from symphony.service.blobs import Blobs
from symphony.service.wire import PYTHON, GraphSpec, KernelSpec, Submit, Value


def check(sent: Submit) -> None:
    """Refuse a graph that is none. What is checked here is structure; nobody looks into its bytes."""
    graph = sent.graph
    where = f"graph {graph.name!r}"
    if sent.python != PYTHON:
        raise VersionError(
            f"its functions were pickled by Python {sent.python}; this service runs Python {PYTHON}",
            where=where,
            hint=f"submit from Python {PYTHON}",
        )
    names = [task.name for task in graph.tasks]
    if len(set(names)) < len(names):
        raise WorkloadError("two tasks have one name", where=where, hint="number them")
    for task in graph.tasks:
        if task.kernel >= len(graph.kernels) or any(source >= len(names) for source in task.reads):
            raise WorkloadError("it refers to what is not there", where=f"{where}: task {task.name!r}")
        if len(set(task.reads)) < len(task.reads):
            raise WorkloadError("it reads from one task twice", where=f"{where}: task {task.name!r}")
    if any(output >= len(names) for output in graph.outputs):
        raise WorkloadError("an output is of no task", where=where)
    if graph.names and (len(graph.names) != len(graph.outputs) or len(set(graph.names)) < len(graph.names)):
        raise WorkloadError("outputs and their names do not go together", where=where, hint="name each once")
    limits.check("number of edges", sum(len(task.reads) for task in graph.tasks), limits.EDGES_PER_GRAPH, where=where)
    check_order(graph.name, names, [task.reads for task in graph.tasks])


def outputs(graph: GraphSpec) -> tuple[int, ...]:
    """The tasks whose values are the result: those that were named, or that nobody reads."""
    if graph.outputs:
        return tuple(graph.outputs)
    read = {source for task in graph.tasks for source in task.reads}
    return tuple(index for index in range(len(graph.tasks)) if index not in read)


def values(graph: GraphSpec) -> Iterator[Value]:
    """All that it is made of."""
    for kernel in graph.kernels:
        yield from kernel.implementations.values()
    for task in graph.tasks:
        yield task.arguments


def shape(graph: GraphSpec) -> list[tuple[str, str, list[int], int]]:
    """Name, kernel, inputs and, if it trains, steps of each task: what people are told of it."""
    kernels = [(kernel.name, _steps(kernel)) for kernel in graph.kernels]
    return [
        (task.name, name, list(task.reads), steps) for task in graph.tasks for name, steps in [kernels[task.kernel]]
    ]


def steps(graph: GraphSpec) -> int:
    """Of all its training jobs."""
    return sum(_steps(graph.kernels[task.kernel]) for task in graph.tasks)


def _steps(kernel: KernelSpec) -> int:
    return 0 if kernel.training is None else kernel.training.steps


def submission(graph: GraphSpec, user: str, blobs: Blobs) -> Submission:
    """The whole graph. Times of kernels are kept by user: two users' kernels of one name are two kernels."""
    kernels = [_kernel(kernel, user, blobs) for kernel in graph.kernels]
    calls = (
        SubmittedTask(task.name, kernels[task.kernel], blobs.found(task.arguments), tuple(task.reads))
        for task in graph.tasks
    )
    return Submission(graph.name, tuple(calls), outputs(graph), tuple(graph.names))


def _kernel(spec: KernelSpec, user: str, blobs: Blobs) -> SentKernel:
    code = {device: blobs.found(value) for device, value in spec.implementations.items()}
    timeout_s = math.inf if spec.timeout_s is None else spec.timeout_s
    trains = None if spec.training is None else spec.training.training()
    options = KernelOptions(timeout_s, spec.retries, spec.preemptible, spec.workers, trains)
    digests = tuple((device, digest(one)) for device, one in code.items())
    return SentKernel(spec.name, f"{user}:{spec.key}", options, digests, code)


@dataclass(frozen=True)
class RemainingGraph:
    """What is left of a graph."""

    graph: Submission
    tasks: tuple[int, ...]  # their numbers in the whole graph


def needed_values(graph: Submission, done: Collection[int]) -> set[int]:
    """Tasks that have finished, and whose values the others read."""
    return {source for index, call in enumerate(graph.calls) if index not in done for source in call.reads} & set(done)


def remaining_graph(graph: Submission, done: Collection[int], made: Mapping[int, Stored]) -> RemainingGraph:
    """The tasks that have yet to run; `made` are the values of `needed_values` tasks."""
    tasks = tuple(index for index in range(len(graph.calls)) if index not in done)
    new = {index: number for number, index in enumerate(tasks)}
    calls = []
    for index in tasks:
        call = graph.calls[index]
        held = {number: made[source] for number, source in enumerate(call.reads) if source in made}
        reads = tuple(new[source] for source in call.reads if source in new)
        calls.append(SubmittedTask(call.name, call.kernel, call.arguments, reads, held))
    left = tuple(new[index] for index in graph.outputs if index in new)
    return RemainingGraph(Submission(graph.name, tuple(calls), left, ()), tasks)
