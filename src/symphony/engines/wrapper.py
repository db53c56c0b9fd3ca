"""Base class of engines that wrap another engine and change a part of what it does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from symphony.engines.engine import Engine, EngineEvent, Pickled, Stored, Work
from symphony.problem.topology import Topology


class EngineWrapper(Engine):
    """Passes every call on to another engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.notes, self.contained, self.several_cores = engine.notes, engine.contained, engine.several_cores

    def inventory(self) -> Topology:
        return self._engine.inventory()

    def put(self, value: Pickled) -> Stored:
        return self._engine.put(value)

    def get(self, value: Stored) -> Pickled:
        return self._engine.get(value)

    def free(self, value: Stored) -> None:
        self._engine.free(value)

    def dispatch(self, work: Sequence[Work]) -> None:
        self._engine.dispatch(work)

    def cancel(self, number: int) -> None:
        self._engine.cancel(number)

    def preempt(self, number: int) -> None:
        self._engine.preempt(number)

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        return self._engine.poll(timeout_s)

    def under_way(self) -> Collection[int]:
        return self._engine.under_way()

    def wake(self) -> None:
        self._engine.wake()

    def close(self) -> None:
        self._engine.close()

    def processes(self) -> Mapping[int, Sequence[int]] | None:
        return self._engine.processes()

    def release(self, user: str, job: int) -> None:
        self._engine.release(user, job)
