"""An engine whose news is journalled before anybody hears of it, and whose work is told whose it is, and where its
output is kept.

It stands between the loop and the engine that runs the work. What the engine says is handed to the ledger, values
included, and passed on in the same order when the ledger has it.
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

# None: there is nothing to wait for. In the future is what is heard instead, or None for the event itself.
Record = Callable[[Finished | Failed | Stopped], Future[Failed | Stopped | None] | None]


class JournalingEngine(EngineWrapper):
    """Passes everything on, and news only once it is kept."""

    whole_gangs = True  # what is journalled is how a task ended, not each of its workers

    def __init__(self, engine: Engine) -> None:
        super().__init__(gang_engine(engine))
        self.record: Record = lambda event: None
        self.output: Callable[[int], Output | None] = lambda number: None  # of an attempt
        self.user: Callable[[int], str] = lambda number: ""  # of an attempt
        self._held: deque[tuple[EngineEvent, Future[Failed | Stopped | None] | None]] = deque()

    def dispatch(self, work: Sequence[Work]) -> None:
        """With its user, and the place for what it writes."""
        told = ((one, self.output(one.number), self.user(one.number)) for one in work)
        super().dispatch([replace(one, output=output, user=user) for one, output, user in told])

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """What is kept, in order. Returns with nothing when something has been heard that is not."""
        for event in self._engine.poll(0.0 if self._ready() else timeout_s):
            kept = self.record(event) if isinstance(event, Finished | Failed | Stopped) else None
            if kept is not None:
                kept.add_done_callback(lambda _: self._engine.wake())
            self._held.append((event, kept))
        passed = []
        while self._ready():
            event, kept = self._held.popleft()
            # Raises if it could not be journalled: then nobody may act on it.
            passed.append(event if kept is None else kept.result() or event)
        return passed

    def _ready(self) -> bool:
        return bool(self._held) and (self._held[0][1] is None or self._held[0][1].done())


def wall(monotonic_s: float) -> float:
    """A time of `time.monotonic` as seconds since 1970."""
    return monotonic_s + (time.time() - time.monotonic())
