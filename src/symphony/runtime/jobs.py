"""Jobs: graphs that were submitted, what became of their tasks, and what the one who submitted them holds.

The loop's thread writes; everybody else waits for `over`, or reads single fields.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symphony.engines.engine import Pickled, Stored
from symphony.engines.worker import unpickled
from symphony.problem.errors import JobCancelledError, SymphonyError
from symphony.runtime import report
from symphony.runtime.graph import Submission, SubmittedTask
from symphony.runtime.kernels import RunnableKernel
from symphony.training_jobs.live.progress import Progress, Unread

WAITING, RUNNING, DONE, FAILED, CANCELLED = "waiting", "running", "done", "failed", "cancelled"


@dataclass
class Attempt:
    """One run of a task, as it is told afterwards. Times are on the clock of `time.monotonic`."""

    devices: tuple[str, ...]  # one for each of its workers
    sent_s: float
    expected_s: float  # isolated, by its profile
    spread: float  # deviation of its logarithm
    ahead: bool = False  # sent before there was a free slot
    began_s: float = float("nan")
    seconds: float = float("nan")
    cold: bool = False
    ended: str = ""  # "" = under way, "done", or why it was not
    handled_s: float = 0.0  # for which a slot waited for us before it was sent, beyond decisions
    progress: Progress | None = None  # of a training job: what it has said last

    @property
    def device(self) -> str:
        """All of them, for people."""
        return ", ".join(self.devices)


@dataclass(eq=False)
class TaskRun:
    """A task of a job that was submitted."""

    job: JobState
    index: int
    call: SubmittedTask
    arguments: Stored
    readers: int = 0  # tasks that have yet to read its value
    missing: int = 0  # inputs that have yet to be made
    ready_s: float = float("nan")
    number: int = -1  # of the attempt that is under way, -1 = none
    device: int = -1  # where the core has started it, -1 = nowhere
    value: Stored | None = None
    lost: int = 0  # runs that were lost without a fault of its own
    trial: int = -1  # device kind that it is to try out, -1 = none
    attempts: list[Attempt] = field(default_factory=list)
    folder: str = ""  # of a training job: where it saves what it has …
    token: str = ""  # … and what the present attempt is called there
    progress: Progress | None = None  # what that has said last …
    unread: Unread | None = None  # … and why there is nothing newer

    @property
    def name(self) -> str:
        """Within its graph."""
        return self.call.name

    @property
    def kernel(self) -> RunnableKernel:
        """What it calls."""
        return self.call.kernel


class JobState:
    """A job in the hands of the loop."""

    def __init__(self, number: int, graph: Submission, arguments: list[Stored], priority: int) -> None:
        self.number, self.graph, self.priority = number, graph, priority
        self.runs = [TaskRun(self, k, call, arguments[k]) for k, call in enumerate(graph.calls)]
        for run in self.runs:
            run.missing = len(run.call.reads)
            for source in run.call.reads:
                self.runs[source].readers += 1
        self.readers: list[list[int]] = [[] for _ in self.runs]
        for run in self.runs:
            for source in run.call.reads:
                self.readers[source].append(run.index)
        self.submitted_s = time.monotonic()
        self.ended_s = float("nan")
        self.heard_s = float("nan")  # when the loop heard of it …
        self.admitting_s = 0.0  # … and what it took to let it in, apart from waiting for room
        self.row = -1  # in the books
        self.slot = -1  # in the core
        self.admitted = -1  # its number in the core
        self.status = WAITING
        self.unfinished = len(self.runs)
        self.error: SymphonyError | None = None
        self.cause: bytes | None = None  # the exception of a kernel, pickled
        self.values: list[Pickled] = []
        self.over = threading.Event()
        self.heard: Callable[[JobState], None] | None = None  # to be told, by the loop's thread, when it is over

    def began(self) -> None:
        """A task of it has been sent to a device."""
        if self.status == WAITING:
            self.status = RUNNING

    def where(self, run: TaskRun) -> str:
        """Which task, for errors."""
        return f"job {self.number} ({self.graph.name!r}), task {run.name!r}"


class ClusterJob:
    """A graph that was submitted."""

    def __init__(self, state: JobState, cancel: Callable[[JobState], None]) -> None:
        self._state, self._cancel = state, cancel
        self._value: Any = None
        self._read = False

    def __repr__(self) -> str:
        return f"<job {self.id} of graph {self.name!r}: {self.status}>"

    @property
    def id(self) -> int:
        """Its number in its cluster."""
        return self._state.number

    @property
    def name(self) -> str:
        """Of its graph."""
        return self._state.graph.name

    @property
    def status(self) -> str:
        """One of waiting (none of its tasks has started), running, done, failed, cancelled."""
        return self._state.status

    @property
    def completion_s(self) -> float:
        """Seconds from its submission until it was over; NaN if it is not."""
        return self._state.ended_s - self._state.submitted_s

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over, at most so long; whether it is."""
        return self._state.over.wait(timeout_s)

    def result(self, timeout_s: float | None = None) -> Any:
        """What its last task returned (a tuple if there are several such tasks, a dict if outputs have names).

        Waits for it. Raises what went wrong, a `JobError` as a rule; or `TimeoutError` if it takes longer than
        `timeout_s`, and the job goes on.
        """
        if not self.wait(timeout_s):
            raise TimeoutError(f"job {self.id} ({self.name!r}) is not done after {timeout_s:g} s; it goes on")
        state = self._state
        if state.error is not None:
            raise state.error from exception_of(state.cause)
        if not self._read:
            self._value = state.graph.result([unpickled(value.head, value.buffers) for value in state.values])
            self._read = True
        return self._value

    def cancel(self) -> None:
        """Stop it: what runs is killed, what waits never starts. Does nothing if it is over."""
        self._cancel(self._state)

    def explain(self) -> str:
        """What ran where, how long it waited and took, and what had been expected."""
        return report.explain(report.job_history(self._state), time.monotonic())

    def trace(self, path: str | Path) -> None:
        """Write what ran where and when, for chrome://tracing or ui.perfetto.dev."""
        Path(path).write_text(json.dumps(report.trace(report.job_history(self._state))))


def cancelled(state: JobState) -> JobCancelledError:
    """The error of a job that was cancelled."""
    return JobCancelledError("it was cancelled", where=f"job {state.number} ({state.graph.name!r})")


def exception_of(data: bytes | None) -> BaseException | None:
    """The exception of a kernel, if it can be read here. It comes from a process of the one who asks."""
    if data is None:
        return None
    try:
        found = unpickled(data, [])
    except Exception:  # its class is not to be had here: the text has to do
        return None
    return found if isinstance(found, BaseException) else None


def value_of(run: TaskRun) -> Stored:
    """What a task has made."""
    assert run.value is not None
    return run.value


def inputs_of(run: TaskRun) -> Iterable[Stored]:
    """In the order of their persistent ids."""
    reads, held = iter(run.call.reads), run.call.held
    for number in range(len(run.call.reads) + len(held)):
        yield held[number] if number in held else value_of(run.job.runs[next(reads)])


def size_of(run: TaskRun) -> int:
    """Bytes that a task is called with."""
    return run.arguments.size + sum(value.size for value in inputs_of(run)) if not run.missing else run.arguments.size
