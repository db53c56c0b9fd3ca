"""The loop's own time, and whom it keeps waiting.

The simulator charges decisions by itself, one after another. What a slot waits for beyond that is measured, so that the
simulator can be told of it:

    a kernel ends ──► the loop hears of it ──► turns with decisions ──► the next kernel is sent
                around, less the turns             handling, less what is
                with decisions in it               charged for its decisions
"""

from __future__ import annotations

import time
from collections import deque

KEPT = 64  # turns with decisions


class OwnTime:
    """A clock for the loop's thread. Times are those of `time.monotonic`."""

    def __init__(self) -> None:
        self.heard_s = time.monotonic()  # when the last news came
        self._decisions, self._deciding_s = 0, 0.0  # since then
        self._turns: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def heard(self, now_s: float) -> None:
        """News has come."""
        self.heard_s, self._decisions, self._deciding_s = now_s, 0, 0.0

    def decided(self, decisions: int, began_s: float, ended_s: float) -> None:
        """A turn was taken."""
        if decisions:
            self._decisions, self._deciding_s = self._decisions + decisions, self._deciding_s + ended_s - began_s
            self._turns.append((began_s, ended_s))

    def handling_s(self, now_s: float) -> float:
        """Since the news, less what the simulator charges by itself: there, decisions come one after another, and each
        lets start what it placed; so of those that were made together, a start waits for half, and for its own."""
        charged = (self._decisions + 1) / 2 / max(self._decisions, 1)
        return now_s - self.heard_s - charged * self._deciding_s

    def unheard_s(self, since_s: float) -> float:
        """From then until the last news, less turns with decisions: who has to wait for one pays for it there."""
        deciding_s = sum(max(min(ended, self.heard_s) - max(began, since_s), 0.0) for began, ended in self._turns)
        return self.heard_s - since_s - deciding_s
