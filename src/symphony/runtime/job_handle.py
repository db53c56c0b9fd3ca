"""What handles of jobs have in common, in this process (`ClusterJob`) or of a service (`RemoteJob`): waiting for them.

value = await job                                # in a coroutine; the others continue meanwhile
for job in sy.as_completed(jobs): …              # in the order in which they end; also `async for`
"""

from __future__ import annotations

import asyncio
import queue
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

from symphony.problem.errors import WorkloadError

AnyJob = TypeVar("AnyJob", bound="JobHandle")


class JobHandle(ABC):
    """A submitted graph or function."""

    @property
    @abstractmethod
    def id(self) -> int:
        """The number of the job."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of its graph or function."""

    @abstractmethod
    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the job, and return its result or raise its error."""

    @abstractmethod
    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call a function with this handle once the job has ended; at once if it has. Another thread may call it."""

    def __await__(self) -> Generator[Any, None, Any]:
        """The result. The job continues if the coroutine that waits is cancelled."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def set_ended() -> None:
            if not ended.done():
                ended.set_result(None)

        def wake(_: object) -> None:
            with suppress(RuntimeError):  # no coroutine waits: the event loop is closed
                loop.call_soon_threadsafe(set_ended)

        self.add_done_callback(wake)
        yield from ended
        return (yield from loop.run_in_executor(None, self.result))

    def __reduce__(self) -> Any:
        raise WorkloadError(
            f"{self!r} cannot be sent to a task", hint="pass its value, job.result(), or make one graph of both"
        )


class CompletedJobs(Generic[AnyJob]):
    """Jobs in the order in which they end. Can be iterated over with `for` and `async for`."""

    def __init__(self, jobs: Iterable[AnyJob], timeout_s: float | None) -> None:
        self._jobs = list({id(job): job for job in jobs}.values())
        self._timeout_s = timeout_s
        for job in self._jobs:
            if not hasattr(job, "add_done_callback"):
                raise WorkloadError(f"{job!r} is not a job", hint="pass what submit and map return")

    def __iter__(self) -> Iterator[AnyJob]:
        ended: queue.SimpleQueue[AnyJob] = queue.SimpleQueue()
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        for job in self._jobs:
            job.add_done_callback(ended.put)
        for count in range(len(self._jobs)):
            try:
                yield ended.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                raise self._timeout(count) from None

    async def __aiter__(self) -> AsyncIterator[AnyJob]:
        loop, ended = asyncio.get_running_loop(), asyncio.Queue[AnyJob]()

        def put(job: AnyJob) -> None:
            with suppress(RuntimeError):  # no coroutine waits: the event loop is closed
                loop.call_soon_threadsafe(ended.put_nowait, job)

        deadline = None if self._timeout_s is None else loop.time() + self._timeout_s
        for job in self._jobs:
            job.add_done_callback(put)
        for count in range(len(self._jobs)):
            try:
                async with asyncio.timeout_at(deadline):
                    job = await ended.get()
            except TimeoutError:
                raise self._timeout(count) from None
            yield job

    def _timeout(self, count: int) -> TimeoutError:
        left = len(self._jobs) - count
        return TimeoutError(f"{left} of {len(self._jobs)} jobs have not ended after {self._timeout_s:g} s")


def as_completed(jobs: Iterable[AnyJob], *, timeout_s: float | None = None) -> CompletedJobs[AnyJob]:
    """Jobs in the order in which they end, failed ones too, for `for` or `async for`.

    Raises `TimeoutError` if some have not ended after `timeout_s`; they continue.
    """
    return CompletedJobs(jobs, timeout_s)
