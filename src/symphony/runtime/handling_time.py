"""The runtime's own overhead: how long a slot stays idle because of the loop and the engine.

    a slot is free ──► the loop receives the event ──► turns ──► kernel dispatched ──► it runs ──► its end is received
                       └───────── handling, less decisions ────┘               └──┘          └───────────────────────┘

The simulator adds this time to the run times of kernels; it charges decisions separately. The overhead is measured for
each kernel and device kind: a start waits less on a device with one slot than where sixteen runs end at once. A kernel
that was sent ahead follows the one before it within the engine, so its slot does not wait for the loop.
"""

from __future__ import annotations

import bisect
import time

from symphony.engines.engine import Finished
from symphony.runtime.jobs import TaskRun

MAX_RUN_ENDS = 64  # kept for each device, or up to twice as many


class HandlingTime:
    """Used by the loop's thread. Times are those of `time.monotonic`."""

    def __init__(self, devices: int) -> None:
        self.received_s = time.monotonic()  # when the latest events were received
        self._decisions, self._deciding_s = 0, 0.0  # since then
        self._ends: list[list[float]] = [[] for _ in range(devices)]  # sorted

    def events_received(self, now_s: float) -> None:
        self.received_s, self._decisions, self._deciding_s = now_s, 0, 0.0

    def turn_taken(self, decisions: int, seconds: float) -> None:
        if decisions:
            self._decisions, self._deciding_s = self._decisions + decisions, self._deciding_s + seconds

    def handling_s(self, now_s: float) -> float:
        """Seconds since the latest events, less the decisions that the simulator charges.

        In the simulator, decisions are made one after another, and a gang may start right after its own. So of n
        decisions made together, a start waits on average for (n + 1) / 2.
        """
        charged = (self._decisions + 1) / 2 / max(self._decisions, 1)
        return now_s - self.received_s - charged * self._deciding_s

    def held_s(self, run: TaskRun, device: int, event: Finished) -> float:
        """Seconds for which a run that has just finished occupied its slot beyond the kernel's own time."""
        attempt, ends = run.attempts[-1], self._ends[device]
        earlier = bisect.bisect_right(ends, event.began_s)
        before_s = ends[earlier - 1] if earlier else attempt.sent_s
        bisect.insort(ends, event.began_s + event.seconds)
        if len(ends) > 2 * MAX_RUN_ENDS:
            del ends[:MAX_RUN_ENDS]
        if attempt.ahead:
            return max(event.began_s - max(before_s, run.ready_s), 0.0)
        return attempt.handled_s + max(self.received_s - attempt.sent_s - event.seconds, 0.0)
