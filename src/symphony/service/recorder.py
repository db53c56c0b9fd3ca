"""An engine wrapper that journals events before the runtime's loop sees them.

Events of the wrapped engine, values included, go to the ledger first, and are passed on in the same order once they are
committed. It also adds user and output folder to dispatched work.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from symphony.engines.engine import Engine, EngineEvent, Failed, Finished, Output, Stopped, Work
from symphony.engines.gangs import gang_engine
from symphony.engines.wrapper import EngineWrapper

# None: there is nothing to journal. The future holds the event to pass on instead, or None for the event itself.
Record = Callable[[Finished | Failed | Stopped], Future[Failed | Stopped | None] | None]


class JournalingEngine(EngineWrapper):
    whole_gangs = True  # the journal has one event for a task, not for each of its workers

    def __init__(self, engine: Engine) -> None:
        super().__init__(gang_engine(engine))
        self.record: Record = lambda event: None
        self.output: Callable[[int], Output | None] = lambda number: None  # of an attempt
        self.user: Callable[[int], str] = lambda number: ""  # of an attempt
        self._held: deque[tuple[EngineEvent, Future[Failed | Stopped | None] | None]] = deque()

    def dispatch(self, work: Sequence[Work]) -> None:
        super().dispatch([replace(one, output=self.output(one.number), user=self.user(one.number)) for one in work])

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """Events that are committed, in order. Returns without any if events arrived that are not committed yet."""
        for event in self._engine.poll(0.0 if self._ready() else timeout_s):
            kept = self.record(event) if isinstance(event, Finished | Failed | Stopped) else None
            if kept is not None:
                kept.add_done_callback(lambda _: self._engine.wake())
            self._held.append((event, kept))
        passed = []
        while self._ready():
            event, kept = self._held.popleft()
            # Raises if it could not be journalled: then the loop must not act on it.
            passed.append(event if kept is None else kept.result() or event)
        return passed

    def _ready(self) -> bool:
        return bool(self._held) and (self._held[0][1] is None or self._held[0][1].done())


def wall(monotonic_s: float) -> float:
    """A time of `time.monotonic` as seconds since 1970."""
    return monotonic_s + (time.time() - time.monotonic())
