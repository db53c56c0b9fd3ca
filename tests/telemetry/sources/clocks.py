"""A clock that moves only when somebody sleeps."""

from __future__ import annotations


class Clock:
    """Time for sources that ask: `sleep` moves it, and `late` says by how much more than asked, call by call."""

    def __init__(self, *late: float) -> None:
        self.now, self._late = 100.0, list(late)
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + (self._late.pop(0) if self._late else 0.0)
