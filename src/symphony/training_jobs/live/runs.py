"""Protocols of what this package needs from the runtime: a task, its job, its kernel, and the scheduler.

`runtime/jobs.py` and `runtime/scheduler.py` implement them. Only the loop's thread changes their attributes.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from symphony.training_jobs.live.progress import Progress, Unread
from symphony.training_jobs.options import Training


class LiveOptions(Protocol):
    @property
    def training(self) -> Training | None: ...  # None = not a training job

    @property
    def workers(self) -> int: ...


class LiveKernel(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def options(self) -> LiveOptions: ...


class LiveAttempt(Protocol):
    @property
    def sent_s(self) -> float: ...  # time.monotonic

    progress: Progress | None


class LiveJob(Protocol):
    @property
    def number(self) -> int: ...

    @property
    def priority(self) -> int: ...

    @property
    def row(self) -> int: ...  # in the arrays of the workload

    @property
    def over(self) -> threading.Event: ...

    @property
    def runs(self) -> Sequence[Any]: ...  # LiveRun: protocols that refer to each other are not checked

    def where(self, run: Any) -> str: ...


class LiveRun(Protocol):
    """A task. `number`: the attempt that runs now, -1 = none. `missing`: number of inputs that do not exist yet."""

    @property
    def job(self) -> LiveJob: ...

    @property
    def index(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def kernel(self) -> LiveKernel: ...

    @property
    def number(self) -> int: ...

    @property
    def missing(self) -> int: ...

    @property
    def ready_s(self) -> float: ...

    @property
    def value(self) -> Any: ...  # None until the task has finished

    @property
    def attempts(self) -> Sequence[LiveAttempt]: ...

    folder: str  # for checkpoints
    token: str  # name of the present attempt in that folder
    progress: Progress | None
    unread: Unread | None  # why the last read gave no progress
    lost: int  # failures in a row without progress


class LiveWorkloadView(Protocol):
    def kinds_of(self, kernel: Any) -> Collection[int]: ...

    def steps_left(self, row: int, task: int, steps: float) -> None: ...


class LiveScheduler(Protocol):
    @property
    def workload(self) -> LiveWorkloadView: ...

    def refresh_beliefs(self) -> None: ...
