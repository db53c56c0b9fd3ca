"""Jobs: submitted graphs, the state of their tasks, and the handle that users hold.

Only the loop's thread writes. Other threads wait for `over`, or read single fields.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from symphony.engines.engine import Pickled, Stored
from symphony.engines.worker import unpickled
from symphony.problem.errors import SymphonyError
from symphony.runtime import report
from symphony.runtime.graph import Submission, SubmittedTask
from symphony.runtime.job_handle import JobHandle
from symphony.runtime.kernels import RunnableKernel
from symphony.training_jobs.live.progress import Progress, Unread

if TYPE_CHECKING:
    from symphony.runtime.task_window import TaskWindow

log = logging.getLogger("symphony.runtime")
WAITING, RUNNING, DONE, FAILED, CANCELLED = "waiting", "running", "done", "failed", "cancelled"


@dataclass(slots=True)
class Attempt:
    """The record of one run of a task. Times are those of `time.monotonic`."""

    devices: tuple[str, ...]  # of its workers
    sent_s: float
    expected_s: float  # isolated time, by its profile
    spread: float  # standard deviation of the logarithm of the expected time
    ahead: bool = False  # sent before there was a free slot
    began_s: float = float("nan")
    seconds: float = float("nan")
    cold: bool = False
    ended: str = ""  # "" = it runs, "done", or why it ended otherwise
    journalled: bool = False  # a service has journalled its end
    handled_s: float = 0.0  # for which its slot waited for the loop, without decisions (`handling_time.py`)
    progress: Progress | None = None  # of a training job: its latest report
    decided: tuple[str, float] = ("", 0.0)  # what placed it, and the seconds that this took

    @property
    def device(self) -> str:
        return ", ".join(self.devices)


@dataclass(eq=False, slots=True)
class TaskRun:
    """The state of a task."""

    job: JobState
    index: int
    call: SubmittedTask
    arguments: Stored
    readers: int = 0  # tasks that still have to read its value
    missing: int = 0  # inputs that do not exist yet
    ready_s: float = float("nan")
    number: int = -1  # of the attempt that runs, -1 = none
    place: int = -1  # number of its gang among those of its job in the core, -1 = none
    device: int = -1  # on which the core has started it, -1 = none
    value: Stored | None = None  # None until it has finished
    lost: int = 0  # attempts that failed and were, or will be, followed by another
    retry_s: float = float("-inf")  # when it may be tried again
    trial: int = -1  # device kind on which its kernel is tried for the first time, -1 = none
    attempts: list[Attempt] = field(default_factory=list)
    folder: str = ""  # of a training job: for its checkpoints …
    token: str = ""  # … and the name of the present attempt there
    progress: Progress | None = None  # the latest report of that attempt …
    unread: Unread | None = None  # … and why there is no newer one
    kernel: RunnableKernel = field(init=False)

    def __post_init__(self) -> None:
        self.kernel = self.call.kernel

    @property
    def name(self) -> str:
        return self.call.name


class JobLimits(NamedTuple):
    time_s: float = math.inf  # from the start of its first task to the end of the job
    user: str = ""  # all tasks of this user's jobs together …
    slots: float = math.inf  # … may hold so many slots of devices


class Retried(NamedTuple):
    lost: int  # attempts that failed
    wait_s: float  # seconds until it may be tried again


class JobState:
    """The state of a job, for the loop."""

    def __init__(
        self,
        number: int,
        graph: Submission,
        arguments: list[Stored],
        priority: int,
        retried: Mapping[int, Retried] | None = None,
        limits: JobLimits | None = None,
    ) -> None:
        """`retried`: tasks that have failed before, and run again."""
        self.number, self.graph, self.priority = number, graph, priority
        self.limits = limits or JobLimits()
        self.deadline_s = math.inf  # known once its first task was started
        self.runs = [TaskRun(self, k, call, arguments[k]) for k, call in enumerate(graph.calls)]
        for index, (lost, wait_s) in (retried or {}).items():
            self.runs[index].lost, self.runs[index].retry_s = lost, time.monotonic() + wait_s
        self.readers: list[list[int]] = [[] for _ in self.runs]
        for run in self.runs:
            run.missing = len(run.call.reads)
            for source in run.call.reads:
                self.runs[source].readers += 1
                self.readers[source].append(run.index)
        self.submitted_s = time.monotonic()
        self.ended_s = float("nan")
        self.received_s = float("nan")  # when the loop received it …
        self.admitting_s = 0.0  # … and how long its admission took, without waiting for a free row
        self.row = -1  # in the live workload
        self.window: TaskWindow | None = None  # None: the core knows all tasks
        self.over_in_core = False  # DROPPED was sent to the core: no task of the window is left
        self.slot = -1  # in the core
        self.admitted = -1  # its number in the core
        self.status = WAITING
        self.unfinished = len(self.runs)
        self.error: SymphonyError | None = None
        self.cause: bytes | None = None  # the exception of a kernel, pickled
        self.values: list[Pickled] = []
        self.over = threading.Event()
        self.on_end: Callable[[JobState], None] | None = None  # called by the loop's thread when the job has ended
        self._callbacks: list[Callable[[], object]] = []  # called after that
        self._lock = threading.Lock()  # of these

    def where(self, run: TaskRun) -> str:
        """The job and the task, for error messages."""
        return f"job {self.number} ({self.graph.name!r}), task {run.name!r}"

    def when_over(self, callback: Callable[[], object]) -> None:
        """Call a function when the job has ended: the loop's thread does, or this one if it has. From any thread."""
        with self._lock:
            if not self.over.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def end(self, status: str) -> None:
        """The job has ended."""
        with self._lock:
            self.ended_s, self.status = time.monotonic(), status
            self.over.set()
        if self.on_end is not None:
            self.on_end(self)
        for callback in self._callbacks:
            try:
                callback()
            except Exception:  # of a user: the loop must continue
                log.exception("a callback of job %d raised", self.number)


class ClusterJob(JobHandle):
    """A submitted graph or function, as users hold it."""

    def __init__(self, state: JobState, cancel: Callable[[JobState], None]) -> None:
        self._state, self._cancel = state, cancel
        self._value: Any = None
        self._read = False

    def __repr__(self) -> str:
        return f"<job {self.id} of graph {self.name!r}: {self.status}>"

    @property
    def id(self) -> int:
        return self._state.number

    @property
    def name(self) -> str:
        """The name of its graph or function."""
        return self._state.graph.name

    @property
    def status(self) -> str:
        """One of waiting (no task has started), running, done, failed, cancelled."""
        return self._state.status

    @property
    def completion_s(self) -> float:
        """Seconds from its submission to its end; NaN if it has not ended."""
        return self._state.ended_s - self._state.submitted_s

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the job has ended, at most `timeout_s`. True if it has."""
        return self._state.over.wait(timeout_s)

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the job and return the value of its last task.

        A tuple if several tasks have no reader; a dict if the graph has named outputs. Raises the error of the job,
        usually a `JobError`; or `TimeoutError` after `timeout_s`, while the job continues.
        """
        if not self.wait(timeout_s):
            raise TimeoutError(f"job {self.id} ({self.name!r}) has not finished after {timeout_s:g} s; it continues")
        state = self._state
        if state.error is not None:
            raise state.error from exception_of(state.cause)
        if not self._read:
            self._value = state.graph.result([unpickled(value.head, value.buffers) for value in state.values])
            self._read = True
        return self._value

    def add_done_callback(self, callback: Callable[[ClusterJob], object]) -> None:
        """Call a function with this job once it has ended: in the scheduler's thread, or at once if it has."""
        self._state.when_over(lambda: callback(self))

    def cancel(self) -> None:
        """Cancel the job: running tasks are killed. No-op if it has ended."""
        self._cancel(self._state)

    def explain(self) -> str:
        """A text with the device, waiting time, run time and expected time of each run of each task."""
        return report.explain(report.job_history(self._state), time.monotonic())

    def trace(self, path: str | Path) -> None:
        """Write a Chrome trace of all runs, for chrome://tracing or ui.perfetto.dev."""
        Path(path).write_text(json.dumps(report.trace(report.job_history(self._state))))


def exception_of(data: bytes | None) -> BaseException | None:
    """Unpickle the exception of a kernel. None if that fails. Call it only for jobs of the caller's own user."""
    if data is None:
        return None
    try:
        exception = unpickled(data, [])
    except Exception:  # its class cannot be imported here: the error's text has to suffice
        return None
    return exception if isinstance(exception, BaseException) else None


def slots_of(run: TaskRun) -> int:
    """Slots of devices that a task holds while it runs."""
    return run.kernel.options.workers * run.kernel.options.cores


def value_of(run: TaskRun) -> Stored:
    assert run.value is not None
    return run.value


def inputs_of(run: TaskRun) -> Iterable[Stored]:
    """Values that a task reads, in the order of their persistent ids. All must exist."""
    reads, held = iter(run.call.reads), run.call.held
    for number in range(len(run.call.reads) + len(held)):
        yield held[number] if number in held else value_of(run.job.runs[next(reads)])


def size_of(run: TaskRun) -> int:
    """Bytes of a task's arguments and inputs; of its arguments alone while inputs are missing."""
    if run.missing or not (run.call.reads or run.call.held):
        return run.arguments.size
    return run.arguments.size + sum(value.size for value in inputs_of(run))
