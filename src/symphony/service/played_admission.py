"""The admission of a service in futures that are played: its own queue decides, on copies of what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Self

from symphony.counterfactuals.snapshot import SnapshotJob
from symphony.service.shares import FairQueue
from symphony.service.state import ServiceJob, State, Usage, UserRecord


class PlayedAdmission:
    """An `Admission`. Without jobs at first."""

    def __init__(self, queue: FairQueue, users: Mapping[str, UserRecord], at_once: int, at_s: float) -> None:
        """`at_s`: seconds since 1970, at the beginning of the futures."""
        self._queue, self._state, self._at_once, self._at_s = queue.without_jobs(), State(), at_once, at_s
        self._state.users = {
            name: UserRecord(
                replace(one.usage), {queue: replace(usage) for queue, usage in list(one.queues.items())},
                by_hour=dict(one.by_hour),
            )
            for name, one in list(users.items())
        }  # fmt: skip

    def copy(self) -> Self:
        return deepcopy(self)

    def arrives(self, job: SnapshotJob, now_s: float, admitted: bool = False) -> None:
        tasks, steps = len(job.tasks), int(job.trains)
        at_s = self._at_s + now_s
        made = ServiceJob(job.job, job.user, job.name, job.queue, job.priority, tasks, (), (), at_s, steps=steps)
        self._state.open[made.id] = made
        self._state.users.setdefault(job.user, UserRecord()).queues.setdefault(job.queue, Usage())
        if admitted:
            self._queue.under_way[made.id] = made
        else:
            self._queue.join(made)

    def admit(self, now_s: float, used_s: Mapping[int, float]) -> list[int]:
        found = []
        while len(self._queue.under_way) < self._at_once:
            job = self._queue.next(self._state, self._at_s + now_s, lambda: used_s, self._at_once)
            if job is None:
                break
            found.append(job.id)
        return found

    def levels(self, now_s: float, used_s: Mapping[int, float]) -> Mapping[int, int]:
        return self._queue.levels(self._state, self._at_s + now_s, used_s)

    def slots(self, user: str) -> float:
        return self._queue.limits.of_user(user).slots

    def used(self, number: int, seconds: float, now_s: float) -> None:
        job = self._state.open[number]
        self._state.users[job.user].used(job.queue, seconds, self._at_s + now_s)

    def ended(self, number: int) -> None:
        self._queue.leave(self._state.open.pop(number))
