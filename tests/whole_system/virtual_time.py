"""A time of the tests' own: it passes when a test says so, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from symphony.engines import exactly_once, gangs
from symphony.runtime import jobs, loop, machine_observer, scheduler
from symphony.service import audit, blobs, journal, ledger, recorder, running, service
from symphony.training_jobs.live import supervisor

# All that look at a clock. One that is missing here shows: equal seeds do not give equal journals any more.
WHO_ASKS: tuple[Any, ...] = (
    gangs,
    exactly_once,
    jobs,
    loop,
    machine_observer,
    supervisor,
    scheduler,
    blobs,
    journal,
    ledger,
    recorder,
)
WHO_ASKS += (running, service, audit)
EPOCH = 1.7e9


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.ahead = 0.0  # of the wall clock, which somebody sets now and then
        self.asleep: Callable[[float], None] = lambda seconds: None  # what others do while somebody sleeps

    def monotonic(self) -> float:
        """Never goes back."""
        return self.now

    perf_counter = monotonic

    def time(self) -> float:
        """May jump."""
        return EPOCH + self.now + self.ahead

    def sleep(self, seconds: float) -> None:
        """Others go on meanwhile."""
        until = self.now + seconds
        self.asleep(until)
        self.now = max(self.now, until)


@contextmanager
def keeping_time(clock: Clock) -> Iterator[None]:
    """Everybody looks at this clock."""
    patches = [mock.patch.object(module, "time", clock) for module in WHO_ASKS]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
