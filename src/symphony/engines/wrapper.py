"""What stands before an engine and passes everything on: the base of those that change a part of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from symphony.engines.engine import Engine, EngineEvent, Pickled, Stored, Work
from symphony.problem.topology import Topology


class EngineWrapper:
    """An engine that does as another does."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def notes(self) -> list[str]:
        """What the engine would have the user know."""
        return list(getattr(self._engine, "notes", ()))

    @property
    def processes(self) -> Callable[[], dict[int, list[int]]] | None:
        """Those of the engine, by who forked them, if it has any on this machine."""
        return getattr(self._engine, "processes", None)

    def release(self, user: str, job: int) -> None:
        """A job is over: the engine may let go of what it left in processes."""
        release = getattr(self._engine, "release", None)
        if release is not None:
            release(user, job)

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
        """What the engine says."""
        return self._engine.poll(timeout_s)

    def under_way(self) -> Collection[int]:
        """As the engine has it."""
        return self._engine.under_way()

    def wake(self) -> None:
        """As the engine does."""
        self._engine.wake()

    def close(self) -> None:
        """As the engine does."""
        self._engine.close()
