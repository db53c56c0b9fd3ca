"""For how long slots are kept from running by ourselves: what the simulator is told beside the times of kernels.

    a slot is free ──► the loop hears of it ──► turns ──► a kernel is sent ──► it runs ──► the loop hears of its end
                       └────────── handling ──────────┘ └────┘           └──────────────────┘
                            less its decisions

Decisions are the simulator's to charge, one after another. All else is measured for each kernel and device kind: on a
device with one slot and short kernels a start waits for less than where sixteen end at once. A kernel that was sent
ahead follows the one before it in the engine, and its slot waits for nobody.
"""

from __future__ import annotations

import time
from collections import deque

from symphony.engines.engine import Finished
from symphony.runtime.jobs import TaskRun

MAX_RUN_ENDS = 64  # ends of runs, of each device


class HandlingTime:
    """A clock for the loop's thread. Times are those of `time.monotonic`."""

    def __init__(self, devices: int) -> None:
        self.heard_s = time.monotonic()  # when the last news came
        self._decisions, self._deciding_s = 0, 0.0  # since then
        self._ends: list[deque[float]] = [deque(maxlen=MAX_RUN_ENDS) for _ in range(devices)]

    def events_received(self, now_s: float) -> None:
        """News has come."""
        self.heard_s, self._decisions, self._deciding_s = now_s, 0, 0.0

    def turn_taken(self, decisions: int, seconds: float) -> None:
        """A turn was taken."""
        if decisions:
            self._decisions, self._deciding_s = self._decisions + decisions, self._deciding_s + seconds

    def handling_s(self, now_s: float) -> float:
        """Since the news, less what the simulator charges by itself: there, decisions come one after another, and each
        lets start what it placed; so of those that were made together, a start waits for half, and for its own."""
        charged = (self._decisions + 1) / 2 / max(self._decisions, 1)
        return now_s - self.heard_s - charged * self._deciding_s

    def held_s(self, run: TaskRun, device: int, event: Finished) -> float:
        """For how long a run, of whose end the last news tells, kept its slot from running anything."""
        attempt, ends = run.attempts[-1], self._ends[device]
        before_s = max((end_s for end_s in ends if end_s <= event.began_s), default=attempt.sent_s)
        ends.append(event.began_s + event.seconds)
        if attempt.ahead:
            return max(event.began_s - max(before_s, run.ready_s), 0.0)
        return attempt.handled_s + max(self.heard_s - attempt.sent_s - event.seconds, 0.0)
