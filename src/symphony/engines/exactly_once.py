"""Makes every piece of work end exactly once, although an engine may lose, repeat or reorder its events.

    event received twice                      ──► passed on once
    event missing, work not under way         ──► Stopped: the scheduler dispatches another attempt
    event after the device went down          ──► dropped: Stopped was sent before DeviceDown
    event of an unknown device                ──► dropped
    Failed with an unknown reason             ──► reported as DIED
    Finished with invalid times               ──► times replaced

A correct engine does not need this, and `sy.testing.check_engine` tests for it. But if an event were lost, its job
would never finish; if one were repeated, the work would be counted twice.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from symphony.engines.engine import (
    DIED,
    REASONS,
    DeviceDown,
    DeviceUp,
    Engine,
    EngineEvent,
    Failed,
    Finished,
    Stopped,
    Work,
)
from symphony.engines.wrapper import EngineWrapper

log = logging.getLogger("symphony.engines")
CHECK_INTERVAL_S = 30.0  # between checks of `under_way`


class ExactlyOnceEngine(EngineWrapper):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._where: dict[int, int] = {}  # work that has not ended, and its device
        self._given_up: set[int] = set()  # reported as Stopped by us, not yet by the engine
        self._down: set[int] = set()
        self._devices = range(len(engine.inventory().devices))
        self._checked_s = time.monotonic()

    def dispatch(self, work: Sequence[Work]) -> None:
        self._where |= {one.number: one.device for one in work}
        self._engine.dispatch(work)

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """First reports only; every `CHECK_INTERVAL_S`, also `Stopped` for work whose event was lost."""
        check_s = self._checked_s + CHECK_INTERVAL_S if self._where else math.inf
        wait = max(min(timeout_s, check_s - time.monotonic()), 0.0)
        passed = [first for event in self._engine.poll(wait) for first in self._first_reports(event)]
        if time.monotonic() >= check_s:
            self._checked_s = time.monotonic()
            passed += self._stopped(set(self._where).difference(self._engine.under_way()))
        return passed

    def _first_reports(self, event: EngineEvent) -> Iterator[EngineEvent]:
        if isinstance(event, DeviceUp | DeviceDown) and event.device not in self._devices:
            log.warning("the engine reports an unknown device: %r", event.device)
            return
        if isinstance(event, DeviceUp):
            repeated = event.device not in self._down
            self._down.discard(event.device)
        elif isinstance(event, DeviceDown):
            repeated = event.device in self._down
            self._down.add(event.device)
            yield from self._stopped({number for number, device in self._where.items() if device == event.device})
        else:
            repeated = self._where.pop(event.number, None) is None
            if event.number in self._given_up and isinstance(event, Finished):
                self._engine.free(event.value)  # another attempt computes it again
            self._given_up.discard(event.number)
        if not repeated:
            yield _sanitized(event)

    def _stopped(self, numbers: set[int]) -> list[EngineEvent]:
        for number in numbers:
            del self._where[number]
        self._given_up |= numbers
        return [Stopped(number) for number in sorted(numbers)]


def _sanitized(event: EngineEvent) -> EngineEvent:
    if isinstance(event, Finished) and not (math.isfinite(event.began_s + event.seconds) and event.seconds >= 0.0):
        log.warning("the engine reports invalid times: work began at %r and took %r s", event.began_s, event.seconds)
        return replace(event, began_s=time.monotonic(), seconds=0.0)
    if isinstance(event, Finished) and (event.busy_s < 0.0 or event.busy_s == math.inf):
        return replace(event, busy_s=math.nan)
    if isinstance(event, Failed) and event.why not in REASONS:
        log.warning("the engine reports an unknown reason of a failure: %r", event.why)
        return replace(event, why=DIED)
    return event
