"""Who is next: of the jobs that wait, the most urgent; among equals, that of whoever has used least; then the oldest.

The core takes jobs as they come and knows nothing of users, so their shares are settled here, where jobs wait to be
let in. Use is counted in device-seconds with a half-life (`state.Usage`). A user's queues share what he gets alike.
What is under way counts for what it has used by now: a training job may take days until that is written down.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping

from symphony.service.state import ServiceJob, State

ASSUMED_JOB_S = 1.0  # that a job is taken to use, before it has used anything: who has some under way is served later


class FairQueue:
    """The jobs that wait and those that are under way, by user and queue."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights  # shares of users, 1 if they have no other
        self._waiting: dict[tuple[str, str], list[tuple[int, int]]] = {}  # heaps of (-priority, job)
        self.under_way: dict[int, ServiceJob] = {}

    def join(self, job: ServiceJob) -> None:
        """A job waits."""
        heapq.heappush(self._waiting.setdefault((job.user, job.queue), []), (-job.priority, job.id))

    def leave(self, job: ServiceJob) -> None:
        """A job is over."""
        self.under_way.pop(job.id, None)

    def next(
        self, state: State, now: float, used_s: Callable[[], Mapping[int, float]] = lambda: {}
    ) -> ServiceJob | None:
        """Let the next one in; None if none waits. Those that were cancelled meanwhile are left out.

        `used_s`: device-seconds of what runs, by job, which are not written down yet.
        """
        if not self._waiting:
            return None
        used_by = used_s()
        users: defaultdict[str, float] = defaultdict(float)
        queues: defaultdict[tuple[str, str], float] = defaultdict(float)
        for job in self.under_way.values():
            seconds = max(used_by.get(job.id, 0.0), ASSUMED_JOB_S)
            users[job.user] += seconds
            queues[job.user, job.queue] += seconds
        best: tuple[tuple[float, float, float, int], tuple[str, str]] | None = None
        for key, heap in list(self._waiting.items()):
            while heap and heap[0][1] not in state.open:
                heapq.heappop(heap)
            if not heap:
                del self._waiting[key]
                continue
            user = state.users[key[0]]
            used = (user.usage.now(now) + users[key[0]]) / self._weights.get(key[0], 1.0)
            queue = user.queues[key[1]].now(now) + queues[key]
            rank = (heap[0][0], used, queue, heap[0][1])
            best = min(best, (rank, key)) if best is not None else (rank, key)
        if best is None:
            return None
        found = state.open[heapq.heappop(self._waiting[best[1]])[1]]
        self.under_way[found.id] = found
        return found
