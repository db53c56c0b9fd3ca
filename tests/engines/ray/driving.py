"""Driving an engine by hand: work for it, and what it says."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

from symphony.engines import worker
from symphony.engines.engine import DeviceDown, DeviceUp, Finished, Function, Pickled, Work
from tests.waiting import SECONDS


class Driver:
    """An engine, work for it, and the events that it has reported."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.number = engine, 0
        self.ended: dict[int, Any] = {}
        self.devices: list[DeviceDown | DeviceUp] = []

    def work(self, function: Callable[..., Any], *args: Any, **options: Any) -> Work:
        code = Pickled(*worker.pickled(function, lambda _: None))
        sent = Function(function.__name__, hashlib.sha256(code.head).hexdigest(), self.engine.put(code))
        self.number += 1
        arguments = self.engine.put(Pickled(*worker.pickled((args, {}), refer)))
        return Work(self.number, options.pop("device", 1), sent, arguments, **options)

    def run(self, *work: Work) -> list[Any]:
        self.engine.dispatch(work)
        return self.ends(*work)

    def ends(self, *work: Work) -> list[Any]:
        self.until(lambda: all(one.number in self.ended for one in work))
        return [self.ended[one.number] for one in work]

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, "no event arrived"
            for event in self.engine.poll(0.02):
                if isinstance(event, DeviceDown | DeviceUp):
                    self.devices.append(event)
                else:
                    assert event.number not in self.ended, "it ended twice"
                    self.ended[event.number] = event

    def value(self, event: Any) -> Any:
        assert isinstance(event, Finished), event
        stored = self.engine.get(event.value)
        return worker.unpickled(stored.head, stored.buffers)

    def teach(self, function: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Let a function run, and have the engine take it for quick however long this machine took."""
        work = self.work(function, *args, **options)
        self.run(work)
        self.engine._seconds[work.function.digest, work.device] = 1e-5


class Input:
    """Stands for the first input."""


def refer(value: Any) -> int | None:
    return 0 if isinstance(value, Input) else None
