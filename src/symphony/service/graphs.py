"""Submitted graphs: checks, and conversion to what the runtime runs, whole or what remains after a restart."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from symphony.counterfactuals.snapshot import SnapshotTask
from symphony.engines.engine import Pickled, Stored
from symphony.problem import limits
from symphony.problem.errors import VersionError, WorkloadError
from symphony.runtime.graph import Submission, SubmittedTask, check_order
from symphony.runtime.kernels import KernelOptions, SentKernel, digest
from symphony.runtime.snapshots import TaskSketch
from symphony.service.blobs import Blobs
from symphony.service.wire import PYTHON, GraphSpec, KernelSpec, Submit, Value
from symphony.training_jobs.options import Training


def check(sent: Submit) -> None:
    """Refuse a graph with an invalid structure. Its pickled bytes are not read."""
    graph = sent.graph
    where = f"graph {graph.name!r}"
    if sent.python != PYTHON:
        raise VersionError(
            f"its functions were pickled by Python {sent.python}, but this service runs Python {PYTHON}",
            where=where,
            hint=f"submit from Python {PYTHON}",
        )
    names = [task.name for task in graph.tasks]
    if len(set(names)) < len(names):
        raise WorkloadError("two tasks have the same name", where=where, hint="number them")
    for task in graph.tasks:
        if task.kernel >= len(graph.kernels) or any(source >= len(names) for source in task.reads):
            raise WorkloadError(
                "it refers to a kernel or task that does not exist", where=f"{where}: task {task.name!r}"
            )
        if len(set(task.reads)) < len(task.reads):
            raise WorkloadError("it reads the same task twice", where=f"{where}: task {task.name!r}")
    if any(output >= len(names) for output in graph.outputs):
        raise WorkloadError("an output refers to a task that does not exist", where=where)
    if graph.names and (len(graph.names) != len(graph.outputs) or len(set(graph.names)) < len(graph.names)):
        raise WorkloadError("outputs and their names do not match", where=where, hint="name each output once")
    limits.check("number of edges", sum(len(task.reads) for task in graph.tasks), limits.EDGES_PER_GRAPH, where=where)
    check_order(graph.name, names, [task.reads for task in graph.tasks])


def outputs(graph: GraphSpec) -> tuple[int, ...]:
    """The tasks whose values are the result: the named outputs, or else the tasks that no task reads."""
    if graph.outputs:
        return tuple(graph.outputs)
    read = {source for task in graph.tasks for source in task.reads}
    return tuple(index for index in range(len(graph.tasks)) if index not in read)


def values(graph: GraphSpec) -> Iterator[Value]:
    for kernel in graph.kernels:
        yield from kernel.implementations.values()
    for task in graph.tasks:
        yield task.arguments


def shape(graph: GraphSpec) -> list[tuple[str, str, list[int], int]]:
    """Name, kernel, inputs and steps (0: it does not train) of each task, for display."""
    kernels = [(kernel.name, _steps(kernel)) for kernel in graph.kernels]
    return [
        (task.name, name, list(task.reads), steps) for task in graph.tasks for name, steps in [kernels[task.kernel]]
    ]


def steps(graph: GraphSpec) -> int:
    return sum(_steps(graph.kernels[task.kernel]) for task in graph.tasks)


def _steps(kernel: KernelSpec) -> int:
    return 0 if kernel.training is None else kernel.training.steps


def kernel_facts(graph: Submission) -> dict[str, Any]:
    """What futures need of a graph beside its shape, without code: kernels, and kernel and size of each task."""
    kernels = {kernel: n for n, kernel in enumerate(dict.fromkeys(call.kernel for call in graph.calls))}
    options = [kernel.options for kernel in kernels]
    return {
        "kernels": [
            [kernel.name, kernel.key, sorted(kernel.implementations), one.workers, one.cores, one.memory,
             None if one.training is None else asdict(one.training)]
            for kernel, one in zip(kernels, options, strict=True)
        ],
        "tasks": [[kernels[call.kernel], call.arguments.size] for call in graph.calls],
    }  # fmt: skip


def sketches(shape: str, facts: str) -> list[TaskSketch]:
    """The tasks of a graph, from its stored shape and `kernel_facts`. Raises `ValueError` or `TypeError`."""
    known = json.loads(facts)
    kernels = []
    for name, key, devices, workers, cores, memory, training in known["kernels"]:
        options = KernelOptions(workers=workers, cores=cores, memory=memory, training=training and Training(**training))
        kernels.append(SentKernel(name, key, options, (), dict.fromkeys(devices, Pickled(b""))))
    tasks = zip(json.loads(shape), known["tasks"], strict=True)
    return [
        TaskSketch(
            kernels[kernel],
            SnapshotTask(-1, tuple(reads), size=float(size), units=float(steps[0] or 1 if steps else 1)),
        )
        for (_, _, reads, *steps), (kernel, size) in tasks
    ]


def submission(graph: GraphSpec, user: str, blobs: Blobs) -> Submission:
    """The whole graph. Kernel keys are prefixed with the user, so that users do not share profiles."""
    kernels = [_kernel(kernel, user, blobs) for kernel in graph.kernels]
    calls = (
        SubmittedTask(task.name, kernels[task.kernel], blobs.found(task.arguments), tuple(task.reads))
        for task in graph.tasks
    )
    return Submission(graph.name, tuple(calls), outputs(graph), tuple(graph.names))


def _kernel(spec: KernelSpec, user: str, blobs: Blobs) -> SentKernel:
    code = {device: blobs.found(value) for device, value in spec.implementations.items()}
    timeout_s = math.inf if spec.timeout_s is None else spec.timeout_s
    training = None if spec.training is None else spec.training.training()
    options = KernelOptions(
        timeout_s,
        spec.retries,
        spec.preemptible,
        spec.workers,
        training,
        spec.cores,
        spec.memory,
        tuple(spec.retry_on),
        spec.retry_delay_s,
    )
    digests = tuple((device, digest(one)) for device, one in code.items())
    return SentKernel(spec.name, f"{user}:{spec.key}", options, digests, code)


@dataclass(frozen=True)
class RemainingGraph:
    graph: Submission
    tasks: tuple[int, ...]  # their indices in the whole graph


def needed_values(graph: Submission, done: Collection[int]) -> set[int]:
    """Finished tasks whose values unfinished tasks read."""
    return {source for index, call in enumerate(graph.calls) if index not in done for source in call.reads} & set(done)


def remaining_graph(graph: Submission, done: Collection[int], made: Mapping[int, Stored]) -> RemainingGraph:
    """The unfinished tasks; `made`: the values of the tasks in `needed_values`."""
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
