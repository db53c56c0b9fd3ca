"""Work that ends exactly once: what stands before an engine that may lose, repeat or mix up its news.

    said twice                        ──► heard once
    never said, and not under way     ──► Stopped: it is dispatched again, as another attempt
    said after its device went down   ──► too late: Stopped came before DeviceDown
    of a device that there is not     ──► not heard
    for no known reason, or with      ──► heard as a death, and as far as times can be
    times that are no numbers

An engine should not need it, and its conformance check says whether it does. But a job whose last news got lost would
wait for ever, and one that ends twice would be counted twice.
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
CHECK_INTERVAL_S = 30.0  # how often the engine is asked what is under way


class ExactlyOnceEngine(EngineWrapper):
    """An engine as its contract has it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._where: dict[int, int] = {}  # work that has not ended, and its device
        self._given_up: set[int] = set()  # work of which we have said that it stopped, and the engine has said nothing
        self._down: set[int] = set()
        self._devices = range(len(engine.inventory().devices))
        self._checked_s = time.monotonic()

    def dispatch(self, work: Sequence[Work]) -> None:
        """Keeps in mind what has to end."""
        self._where |= {one.number: one.device for one in work}
        self._engine.dispatch(work)

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """What the engine says for the first time; and, now and then, what it should have said."""
        check_s = self._checked_s + CHECK_INTERVAL_S if self._where else math.inf
        wait = max(min(timeout_s, check_s - time.monotonic()), 0.0)
        passed = [told for event in self._engine.poll(wait) for told in self._is_first_report(event)]
        if time.monotonic() >= check_s:
            self._checked_s = time.monotonic()
            passed += self._stopped(set(self._where).difference(self._engine.under_way()))
        return passed

    def _is_first_report(self, event: EngineEvent) -> Iterator[EngineEvent]:
        if isinstance(event, DeviceUp | DeviceDown) and event.device not in self._devices:
            log.warning("the engine tells of device %r, which there is not", event.device)
            return
        if isinstance(event, DeviceUp):
            known = event.device not in self._down
            self._down.discard(event.device)
        elif isinstance(event, DeviceDown):
            known = event.device in self._down
            self._down.add(event.device)
            yield from self._stopped({number for number, device in self._where.items() if device == event.device})
        else:
            known = self._where.pop(event.number, None) is None
            if event.number in self._given_up and isinstance(event, Finished):
                self._engine.free(event.value)  # it is made again
            self._given_up.discard(event.number)
        if not known:
            yield _sane(event)

    def _stopped(self, numbers: set[int]) -> list[EngineEvent]:
        for number in numbers:
            del self._where[number]
        self._given_up |= numbers
        return [Stopped(number) for number in sorted(numbers)]


def _sane(event: EngineEvent) -> EngineEvent:
    """An event that nobody who hears it can stumble over."""
    if isinstance(event, Finished) and not (math.isfinite(event.began_s + event.seconds) and event.seconds >= 0.0):
        log.warning("the engine says that work began at %r and took %r s", event.began_s, event.seconds)
        return replace(event, began_s=time.monotonic(), seconds=0.0)
    if isinstance(event, Failed) and event.why not in REASONS:
        log.warning("the engine says that work has failed for no known reason: %r", event.why)
        return replace(event, why=DIED)
    return event
