"""An engine whose news is journalled before anybody hears of it.

It stands between the loop and the engine that runs the work. What the engine says is handed to the ledger, values
included, and passed on in the same order when the ledger has it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from symphony.engines.engine import Engine, EngineEvent, Failed, Finished, Pickled, Stopped, Stored, Work
from symphony.engines.gangs import whole
from symphony.problem.topology import Topology

# None: there is nothing to wait for. In the future is what is heard instead, or None for the event itself.
Record = Callable[[Finished | Failed], Future[Stopped | None] | None]


class Recorder:
    """Passes everything on, and news only once it is kept."""

    whole_gangs = True  # what is journalled is how a task ended, not each of its workers

    def __init__(self, engine: Engine) -> None:
        self._engine = whole(engine)
        self.record: Record = lambda event: None
        self._held: deque[tuple[EngineEvent, Future[Stopped | None] | None]] = deque()

    @property
    def notes(self) -> list[str]:
        """What the engine would have the user know."""
        return list(getattr(self._engine, "notes", ()))

    def inventory(self) -> Topology:
        """That of the engine."""
        return self._engine.inventory()

    def put(self, value: Pickled) -> Stored:
        """As the engine does."""
        return self._engine.put(value)

    def get(self, value: Stored) -> Pickled:
        """As the engine does."""
        return self._engine.get(value)

    def free(self, value: Stored) -> None:
        """As the engine does."""
        self._engine.free(value)

    def dispatch(self, work: Sequence[Work]) -> None:
        """As the engine does."""
        self._engine.dispatch(work)

    def cancel(self, number: int) -> None:
        """As the engine does."""
        self._engine.cancel(number)

    def preempt(self, number: int) -> None:
        """As the engine does."""
        self._engine.preempt(number)

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """What is kept, in order. Returns with nothing when something has been heard that is not."""
        for event in self._engine.poll(0.0 if self._ready() else timeout_s):
            kept = self.record(event) if isinstance(event, Finished | Failed) else None
            if kept is not None:
                kept.add_done_callback(lambda _: self._engine.wake())
            self._held.append((event, kept))
        passed = []
        while self._ready():
            event, kept = self._held.popleft()
            # Raises if it could not be journalled: then nobody may act on it.
            passed.append(event if kept is None else kept.result() or event)
        return passed

    def wake(self) -> None:
        """As the engine does."""
        self._engine.wake()

    def close(self) -> None:
        """As the engine does."""
        self._engine.close()

    def _ready(self) -> bool:
        return bool(self._held) and (self._held[0][1] is None or self._held[0][1].done())


def wall(monotonic_s: float) -> float:
    """A time of `time.monotonic` as seconds since 1970."""
    return monotonic_s + (time.time() - time.monotonic())
