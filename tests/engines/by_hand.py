"""An engine whose events a test writes by hand."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

from symphony.engines.engine import Engine, EngineEvent, Finished, Pickled, Stored, Work
from symphony.engines.worker import pickled
from symphony.problem.topology import Topology


class ByHand(Engine):
    """Runs nothing: it records calls, and reports the events that a test has queued."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._names = itertools.count()
        self.values: dict[int, Pickled] = {}
        self.sent: list[Work] = []
        self.stopped: list[int] = []  # cancelled or preempted
        self.news: list[EngineEvent] = []
        self.lost: set[int] = set()  # work missing from `under_way`

    def inventory(self) -> Topology:
        return self._topology

    def put(self, value: Pickled) -> Stored:
        name = next(self._names)
        self.values[name] = value
        return Stored(name, value.size)

    def get(self, value: Stored) -> Pickled:
        return self.values[value.at]

    def free(self, value: Stored) -> None:
        self.values.pop(value.at, None)

    def dispatch(self, work: Sequence[Work]) -> None:
        self.sent += work

    def cancel(self, number: int) -> None:
        self.stopped.append(number)

    preempt = cancel

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        news, self.news = self.news, []
        return news

    def under_way(self) -> Collection[int]:
        return {work.number for work in self.sent} - self.lost

    def wake(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        self.values.clear()

    def finished(self, number: int, value: Any = None) -> Finished:
        """News of work that is done."""
        return Finished(number, self.put(Pickled(*pickled(value))), 0.0, 1.0)
