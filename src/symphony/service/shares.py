"""Fair-share admission: by priority, then by the usage of the user, then of the queue, then by age.

The scheduler's core has no notion of users, so fair shares are enforced here: by the order of admission, and by the
priorities that the core gets (`levels`). On a small machine, all jobs of a user may be admitted before another user
comes; without priorities, his jobs would wait behind all of them. Usage is in device-seconds with exponential decay
(`state.Usage`). The queues of a user share equally. Running jobs count with what they have used so far: a training job
may run for days before that is journalled.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping

from symphony.engines.containment import Containment
from symphony.problem import units
from symphony.service.state import ServiceJob, State

ASSUMED_JOB_S = 1.0  # assumed usage of an admitted job that has not used more yet
MIN_LEAD_S = 1.0  # device-seconds of usage by which two users must differ before their order changes
FREE_PLACES = 2  # of those for admitted jobs: kept free for users that have none …
MAX_FREE_SHARE = 0.25  # … but not more than this share of all


class FairQueue:
    """Waiting and admitted jobs, by user and queue."""

    def __init__(self, weights: Mapping[str, float], limits: Containment | None = None) -> None:
        self._weights = weights  # by user; 1 by default
        self.limits = limits or Containment()
        self._waiting: dict[tuple[str, str], list[tuple[int, int]]] = {}  # heaps of (-priority, job)
        self.under_way: dict[int, ServiceJob] = {}
        self._order: list[str] = []  # users with jobs under way, who has used most first

    def without_jobs(self) -> FairQueue:
        """The same rule for other jobs. Thread-safe."""
        made = FairQueue(self._weights, self.limits)
        made._order = self._order.copy()
        return made

    def join(self, job: ServiceJob) -> None:
        heapq.heappush(self._waiting.setdefault((job.user, job.queue), []), (-job.priority, job.id))

    def leave(self, job: ServiceJob) -> None:
        self.under_way.pop(job.id, None)

    def held_back(self, user: str, at_once: int, state: State, now: float, used_s: Mapping[int, float]) -> str:
        """Why no more jobs of a user are admitted now; "" if they are. `at_once`: places for the jobs of all users.

        Thread-safe. `used_s`: as in `next`.
        """
        mine = [job.id for job in self.under_way.copy().values() if job.user == user]
        limits = self.limits.of_user(user)
        if len(mine) >= limits.running_jobs:
            jobs = "1 job" if limits.running_jobs == 1 else f"{limits.running_jobs:g} jobs"
            return f"{user} may have {jobs} under way, and has {len(mine)}"
        used = state.users[user].used_today(now) + sum(used_s.get(job, 0.0) for job in mine)
        if used >= limits.device_time_per_day:
            most, spent = (units.show(seconds, "seconds") for seconds in (limits.device_time_per_day, used))
            return f"{user} may use {most} of device time in 24 hours, and has used {spent}"
        if len(mine) >= at_once - min(FREE_PLACES, int(MAX_FREE_SHARE * at_once)):
            return f"{len(mine)} jobs of {user} are under way, and more of one user are not admitted at once"
        return ""

    def levels(self, state: State, now: float, used_s: Mapping[int, float]) -> dict[int, int]:
        """Priorities for the core of the jobs under way: their own, and within that, who has used least comes first.

        Training jobs are shared by their planner, in rounds. `used_s` as in `next`.
        """
        used = {job.user: state.users[job.user].usage.now(now) for job in self.under_way.values()}
        for job in self.under_way.values():
            used[job.user] += used_s.get(job.id, 0.0)
        used = {user: seconds / self._weights.get(user, 1.0) for user, seconds in used.items()}
        new = sorted(used.keys() - set(self._order), key=lambda user: (-used[user], user))
        order = [user for user in self._order if user in used] + new
        for last in range(len(order) - 1, 0, -1):  # users that are close keep their order
            for k in range(last):
                if used[order[k + 1]] > used[order[k]] + MIN_LEAD_S:
                    order[k : k + 2] = order[k + 1], order[k]
        self._order = order
        rank = {user: k for k, user in enumerate(order)}
        keys = {job.id: (job.priority, 0 if job.steps else rank[job.user]) for job in self.under_way.values()}
        level = {key: k for k, key in enumerate(sorted(set(keys.values())))}
        return {job: level[key] for job, key in keys.items()}

    def next(
        self,
        state: State,
        now: float,
        used_s: Callable[[], Mapping[int, float]] = lambda: {},
        at_once: int | None = None,
    ) -> ServiceJob | None:
        """Remove and return the next job, which is then under way; None if none waits. Jobs that have ended are
        skipped.

        `used_s`: device-seconds of running jobs, by job, that are not journalled yet. `at_once`: places for jobs under
        way; users that are `held_back` are skipped.
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
            if at_once is not None and self.held_back(key[0], at_once, state, now, used_by):
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
