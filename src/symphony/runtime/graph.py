"""Graphs of kernels: tasks, and handles of their future values.

graph = sy.graph("sample-17")
reads = graph.task(align, path)         # a handle
graph.task(call_variants, [reads])      # may be an argument of other tasks, also within lists, tuples and dicts
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from symphony.engines.engine import Pickled, Stored
from symphony.engines.worker import PLAIN_TYPES, pickled, pickled_plain, unpickled
from symphony.problem import limits
from symphony.problem.errors import CycleError, LimitError, WorkloadError
from symphony.problem.workload import topological_order
from symphony.runtime.kernels import KernelFunction, RunnableKernel
from symphony.runtime.signatures import Signatures, check, signatures

MAX_PLAIN_LENGTH = 65_536  # of texts and bytes; longer ones are pickled with care for their memory


class Handle:
    """The future value of a task, as an argument for other tasks of the same graph."""

    def __init__(self, graph: Graph, index: int, name: str) -> None:
        self._graph, self._index, self.name = graph, index, name

    def __repr__(self) -> str:
        return f"<result of {self.name!r} in graph {self._graph.name!r}>"

    def __reduce__(self) -> Any:
        raise WorkloadError(
            f"{self!r} has no value yet", hint="pass it to graph.task(…), and read values with job.result()"
        )

    def __iter__(self) -> Iterator[Any]:
        raise WorkloadError(f"{self!r} has no value yet, so it has no items", hint="unpack it in a kernel")


@dataclass(frozen=True)
class TaskCall:
    name: str
    kernel: KernelFunction
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Graph:
    """Tasks that call kernels. What it results in is what its last tasks make, or its named outputs."""

    def __init__(self, name: str = "graph") -> None:
        if not isinstance(name, str) or not name:
            raise WorkloadError(f"the name of a graph is {name!r}", hint='write a text: sy.graph("sample-17")')
        self.name = name
        self._tasks: list[TaskCall] = []
        self._counts: dict[str, int] = {}
        self._outputs: dict[str, Handle] = {}
        self._signatures: dict[KernelFunction, Signatures] = {}

    def __repr__(self) -> str:
        return f"<graph {self.name!r} with {len(self._tasks)} tasks>"

    @property
    def tasks(self) -> tuple[TaskCall, ...]:
        """In the order in which they were added."""
        return tuple(self._tasks)

    def task(self, kernel: KernelFunction, /, *args: Any, **kwargs: Any) -> Handle:
        """Add a call of a kernel, and return a handle of its future value.

        All implementations must accept the arguments. Leave out the handle of a training job, and rank and size of a
        kernel with several workers: the runtime adds them.
        """
        where = f"graph {self.name!r}"
        if not isinstance(kernel, KernelFunction):
            called = getattr(kernel, "__name__", repr(kernel))
            raise WorkloadError(f"{called} is not a kernel", where=where, hint="write @sy.kernel above its definition")
        limits.check("number of tasks", len(self._tasks) + 1, limits.TASKS_PER_GRAPH, where=where)
        by_device = self._signatures.get(kernel, {})
        if by_device.keys() != kernel.implementations.keys():  # an implementation was added since
            by_device = self._signatures[kernel] = signatures(kernel)
        check(kernel, by_device, args, kwargs, where)
        number = self._counts[kernel.name] = self._counts.get(kernel.name, -1) + 1
        name = f"{kernel.name}-{number}"
        for handle in _handles((args, kwargs)):
            self._own(handle, f"{where}: task {name!r}")
        self._tasks.append(TaskCall(name, kernel, args, kwargs))
        return Handle(self, len(self._tasks) - 1, name)

    def output(self, name: str, handle: Handle) -> None:
        """Name an output. The result of a graph with named outputs is a dict of these."""
        where = f"graph {self.name!r}: output {name!r}"
        if not isinstance(handle, Handle):
            raise WorkloadError(f"{handle!r} is not a handle", where=where, hint="pass what graph.task(…) returned")
        self._own(handle, where)
        if name in self._outputs:
            raise WorkloadError("the name is used twice", where=where, hint="choose another name")
        self._outputs[name] = handle

    def run(self) -> Any:
        """Run all tasks in this process, one after another, and return the result of the graph."""
        sent = submission(self)
        values: dict[int, Any] = {}
        edges = [(source, target) for target, call in enumerate(sent.calls) for source in call.reads]
        for index in topological_order(len(sent.calls), edges):
            call = sent.calls[index]
            inputs = [values[source] for source in call.reads]
            args, kwargs = unpickled(call.arguments.head, call.arguments.buffers, inputs)
            values[index] = self._tasks[index].kernel(*args, **kwargs)
        return sent.result([values[index] for index in sent.outputs])

    def _own(self, handle: Handle, where: str) -> None:
        if handle._graph is not self:
            raise WorkloadError(
                f"{handle!r} belongs to another graph",
                where=where,
                hint="build both parts in one graph, or pass the value: job.result()",
            )


def graph(name: str = "graph") -> Graph:
    """A new, empty graph."""
    return Graph(name)


@dataclass(frozen=True)
class SubmittedTask:
    """A task with pickled arguments, and the tasks whose values it reads."""

    name: str
    kernel: RunnableKernel
    arguments: Pickled
    reads: tuple[int, ...]  # tasks, in the order of the persistent ids in the arguments …
    held: Mapping[int, Stored] = field(default_factory=dict)  # … without these ids, whose values exist already


@dataclass(frozen=True)
class Submission:
    """A graph in the state in which it was submitted."""

    name: str
    calls: tuple[SubmittedTask, ...]
    outputs: tuple[int, ...]  # tasks whose values are the result
    names: tuple[str, ...]  # of those, or () if they are not named

    def result(self, values: Sequence[Any]) -> Any:
        """The result of the graph, from the values of its outputs."""
        if self.names:
            return dict(zip(self.names, values, strict=True))
        return values[0] if len(values) == 1 else tuple(values)


def without_buffers(graph: Submission) -> Submission:
    """The same without large arguments, which are memory or open files: an engine has stored them."""
    calls = (replace(call, arguments=Pickled(b"")) if call.arguments.buffers else call for call in graph.calls)
    return replace(graph, calls=tuple(calls))


def submission(graph: Graph) -> Submission:
    """Pickle a graph. Raises `WorkloadError` that names an argument which cannot be pickled."""
    if not isinstance(graph, Graph):
        raise WorkloadError(f"{type(graph).__name__} is not a graph", hint='create one: graph = sy.graph("name")')
    where = f"graph {graph.name!r}"
    if not graph._tasks:
        raise WorkloadError("it has no task", where=where, hint="add one: graph.task(kernel, …)")
    calls = tuple(_call(graph, task) for task in graph._tasks)
    check_order(graph.name, [call.name for call in calls], [call.reads for call in calls])
    if graph._outputs:
        return Submission(graph.name, calls, tuple(h._index for h in graph._outputs.values()), tuple(graph._outputs))
    read = {source for call in calls for source in call.reads}
    return Submission(graph.name, calls, tuple(index for index in range(len(calls)) if index not in read), ())


def kernels_of(graph: Graph) -> list[KernelFunction]:
    """The kernels of a graph's tasks, each once."""
    return list(dict.fromkeys(task.kernel for task in graph._tasks))


def check_order(name: str, tasks: Sequence[str], reads: Sequence[Sequence[int]]) -> None:
    """Raise `CycleError` if tasks wait for one another. `reads`: the tasks whose values each task reads."""
    where = f"graph {name!r}"
    edges = [(source, target) for target, sources in enumerate(reads) for source in sources]
    limits.check("number of edges", len(edges), limits.EDGES_PER_GRAPH, where=where)
    order = topological_order(len(tasks), edges)
    if len(order) < len(tasks):
        stuck = [tasks[index] for index in sorted(set(range(len(tasks))) - set(order))]
        raise CycleError(
            f"these tasks wait for one another: {', '.join(stuck[:4])}{' …' if len(stuck) > 4 else ''}",
            where=where,
            hint="an argument was changed after its task was added: pass a copy",
        )


def _call(graph: Graph, task: TaskCall) -> SubmittedTask:
    where = f"graph {graph.name!r}: task {task.name!r}"
    reads: dict[int, int] = {}  # task -> persistent id

    def refer(value: Any) -> int | None:
        if not isinstance(value, Handle):
            return None
        graph._own(value, where)
        return reads.setdefault(value._index, len(reads))

    contents = _plain_contents((task.args, task.kwargs))
    try:
        if contents is not None:
            arguments = Pickled(pickled_plain((task.args, dict(task.kwargs)), refer if contents else None))
        else:
            arguments = Pickled(*pickled((task.args, dict(task.kwargs)), refer))
    except (WorkloadError, LimitError):
        raise
    except Exception as error:
        which = next((name for name, value in _arguments(task) if not _sendable(value, refer)), "an argument")
        raise WorkloadError(
            f"{which} cannot be sent to another process: {type(error).__name__}: {error}",
            where=where,
            hint="pass values that can be pickled (arrays, numbers, paths); open files and connections in the kernel",
        ) from error
    return SubmittedTask(task.name, task.kernel, arguments, tuple(reads))


def _plain_contents(value: Any) -> bool | None:
    """None unless a value has nothing but plain values and handles in lists, tuples and dicts. True: it has handles."""
    kind = type(value)
    if kind in PLAIN_TYPES:
        return False if (kind is not str and kind is not bytes) or len(value) < MAX_PLAIN_LENGTH else None
    if kind is Handle:
        return True
    if kind is dict:
        value = [*value, *value.values()]
    elif kind is not tuple and kind is not list:
        return None
    has_handles = False
    for item in value:
        found = _plain_contents(item)
        if found is None:
            return None
        has_handles = has_handles or found
    return has_handles


def _arguments(task: TaskCall) -> Iterator[tuple[str, Any]]:
    yield from ((f"argument {number}", value) for number, value in enumerate(task.args, start=1))
    yield from ((f"argument {name!r}", value) for name, value in task.kwargs.items())


def _sendable(value: Any, refer: Callable[[Any], Any]) -> bool:
    try:
        pickled(value, refer)
    except Exception:
        return False
    return True


def _handles(value: Any) -> Iterator[Handle]:
    """Handles in a value, also within lists, tuples, sets and dicts. (Pickling finds those in other objects.)"""
    if isinstance(value, Handle):
        yield value
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _handles(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _handles(item)
