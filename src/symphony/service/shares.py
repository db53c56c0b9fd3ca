"""Fair-share admission: by priority, then by the usage of the user, then of the queue, then by age.

The scheduler's core has no notion of users, so fair shares are enforced here, before admission. Usage is in
device-seconds with exponential decay (`state.Usage`). The queues of a user share equally. Running jobs count with what
they have used so far: a training job may run for days before that is journalled.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping

from symphony.service.state import ServiceJob, State

ASSUMED_JOB_S = 1.0  # assumed usage of an admitted job that has not used more yet


class FairQueue:
    """Waiting and admitted jobs, by user and queue."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights  # by user; 1 by default
        self._waiting: dict[tuple[str, str], list[tuple[int, int]]] = {}  # heaps of (-priority, job)
        self.under_way: dict[int, ServiceJob] = {}

    def join(self, job: ServiceJob) -> None:
        heapq.heappush(self._waiting.setdefault((job.user, job.queue), []), (-job.priority, job.id))

    def leave(self, job: ServiceJob) -> None:
        self.under_way.pop(job.id, None)

    def next(
        self, state: State, now: float, used_s: Callable[[], Mapping[int, float]] = lambda: {}
    ) -> ServiceJob | None:
        """Remove and return the next job, which is then under way; None if none waits. Jobs that have ended are
        skipped.

        `used_s`: device-seconds of running jobs, by job, that are not journalled yet.
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
        job = state.open[heapq.heappop(self._waiting[best[1]])[1]]
        self.under_way[job.id] = job
        return job
