"""Work that ends exactly once: what stands before an engine that may lose, repeat or mix up its news.

    said twice                        ──► heard once
    never said, and not under way     ──► Stopped: it is dispatched again, as another attempt
    said after its device went down   ──► too late: Stopped came before DeviceDown

An engine should not need it, and its conformance check says whether it does. But a job whose last news got lost would
wait for ever, and one that ends twice would be counted twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from symphony.engines.engine import DeviceDown, DeviceUp, Engine, EngineEvent, Finished, Stopped, Work
from symphony.engines.passing import Passing

CHECK_S = 30.0  # how often the engine is asked what is under way


class Once(Passing):
    """An engine as its contract has it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._where: dict[int, int] = {}  # work that has not ended, and its device
        self._given_up: set[int] = set()  # work of which we have said that it stopped, and the engine has said nothing
        self._down: set[int] = set()
        self._checked_s = time.monotonic()

    def dispatch(self, work: Sequence[Work]) -> None:
        """Keeps in mind what has to end."""
        self._where |= {one.number: one.device for one in work}
        self._engine.dispatch(work)

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """What the engine says for the first time; and, now and then, what it should have said."""
        check_s = self._checked_s + CHECK_S if self._where else math.inf
        wait = max(min(timeout_s, check_s - time.monotonic()), 0.0)
        passed = [told for event in self._engine.poll(wait) for told in self._heard(event)]
        if time.monotonic() >= check_s:
            self._checked_s = time.monotonic()
            passed += self._stopped(set(self._where).difference(self._engine.under_way()))
        return passed

    def _heard(self, event: EngineEvent) -> Iterator[EngineEvent]:
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
            yield event

    def _stopped(self, numbers: set[int]) -> list[EngineEvent]:
        for number in numbers:
            del self._where[number]
        self._given_up |= numbers
        return [Stopped(number) for number in sorted(numbers)]
