"""Who is next: of the jobs that wait, the most urgent; among equals, that of whoever has used least; then the oldest.

The core takes jobs as they come and knows nothing of users, so their shares are settled here, where jobs wait to be
let in. Use is counted in device-seconds with a half-life (`state.Usage`). A user's queues share what he gets alike.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping

from symphony.service.state import JobRecord, State

EXPECTED_S = 1.0  # that a job is taken to use, before it has used anything: who has some under way is served later


class Line:
    """The jobs that wait and those that are under way, by user and queue."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights  # shares of users, 1 if they have no other
        self._waiting: dict[tuple[str, str], list[tuple[int, int]]] = {}  # heaps of (-priority, job)
        self.under_way: dict[int, JobRecord] = {}

    def join(self, job: JobRecord) -> None:
        """A job waits."""
        heapq.heappush(self._waiting.setdefault((job.user, job.queue), []), (-job.priority, job.id))

    def leave(self, job: JobRecord) -> None:
        """A job is over."""
        self.under_way.pop(job.id, None)

    def next(self, state: State, now: float) -> JobRecord | None:
        """Let the next one in; None if none waits. Those that were cancelled meanwhile are left out."""
        users: Counter[str] = Counter(job.user for job in self.under_way.values())
        queues: Counter[tuple[str, str]] = Counter((job.user, job.queue) for job in self.under_way.values())
        best: tuple[tuple[float, float, float, int], tuple[str, str]] | None = None
        for key, heap in list(self._waiting.items()):
            while heap and heap[0][1] not in state.open:
                heapq.heappop(heap)
            if not heap:
                del self._waiting[key]
                continue
            user = state.users[key[0]]
            used = (user.usage.now(now) + EXPECTED_S * users[key[0]]) / self._weights.get(key[0], 1.0)
            queue = user.queues[key[1]].now(now) + EXPECTED_S * queues[key]
            rank = (heap[0][0], used, queue, heap[0][1])
            best = min(best, (rank, key)) if best is not None else (rank, key)
        if best is None:
            return None
        job = state.open[heapq.heappop(self._waiting[best[1]])[1]]
        self.under_way[job.id] = job
        return job
