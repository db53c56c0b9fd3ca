"""One future of a cluster that users share, without contention: its own rule admits and serves, as time goes on.

By what users will have used until then. Tasks take given times, on lanes of device kinds; none is sent to a device
before a lane is free, as work that waits at a device is placed again whenever priorities change.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from symphony.counterfactuals.snapshot import Admission, SnapshotJob

MAX_LOOKED_AT = 64  # ready tasks for which a lane is looked for, at one instant
HOUR_S, MAX_HOURS = 3_600.0, 25  # for which jobs wait that only a quota by the hour holds back
_ARRIVES, _TRIES, _ENDS, _PASSES = range(4)  # kinds of events; the last changes nothing by itself


@dataclass(eq=False)
class RehearsedJob:
    job: SnapshotJob  # its number is unique; the youngest has the highest
    seconds: Sequence[Sequence[float]]  # that each task takes on each device kind, from now; inf = cannot run there
    runs_on: Sequence[int] = ()  # the device kind on which each task runs now; -1 = it does not; () = none does
    # --- what happens
    admitted: int = -1  # place in the order of admission; -1 = never
    first_s: float = math.inf  # when the first task started of those that do not run now
    ended_s: float = math.inf
    took_s: float = 0.0  # device-seconds from now on
    # --- meanwhile
    ready: list[int] = field(default_factory=list)  # tasks
    missing: list[int] = field(default_factory=list)  # inputs, by task
    readers: list[list[int]] = field(default_factory=list)  # by task
    left: int = 0  # tasks
    lanes: int = 0  # held …
    since_s: float = 0.0  # … and the sum of the times since which they are

    def used_s(self, now_s: float) -> float:
        return self.lanes * now_s - self.since_s


def rehearse(admission: Admission, lanes: Sequence[Sequence[float]], jobs: Sequence[RehearsedJob]) -> None:
    """Find out when jobs start and end. `lanes`: of each device kind, when each is free on which nothing runs now."""
    _Rehearsal(admission, lanes, jobs).run()


class _Rehearsal:
    def __init__(self, admission: Admission, lanes: Sequence[Sequence[float]], jobs: Sequence[RehearsedJob]) -> None:
        self.admission = admission
        self.lanes = [sorted(some) for some in lanes]  # heaps of times at which they are free
        self.now_s, self.hours = 0.0, 0
        self.order, self.tie = itertools.count(), itertools.count()
        self.events: list[tuple[float, int, int, RehearsedJob, int, float]] = []
        self.waiting: dict[int, RehearsedJob] = {}
        self.under_way: dict[int, RehearsedJob] = {}
        self.held: dict[str, int] = {}  # lanes, by user
        self.blocked: dict[int, list[RehearsedJob]] = {}  # jobs that wait for a job
        self.open = {one.job.job for one in jobs}
        for one in jobs:
            tasks = one.job.tasks
            one.left, one.missing = len(tasks), [len(task.reads) for task in tasks]
            one.readers = [[] for _ in tasks]
            runs_on = one.runs_on or [-1] * len(tasks)
            for n, (task, kind) in enumerate(zip(tasks, runs_on, strict=True)):
                for source in task.reads:
                    one.readers[source].append(n)
                if kind >= 0:
                    self._start(one, n, kind, one.seconds[n][kind], task.elapsed_s)
                elif not task.reads:
                    self._ready(one, n)
            if one.job.admitted or max(runs_on, default=-1) >= 0:
                admission.arrives(one.job, 0.0, admitted=True)
                self._admitted(one)
            else:
                self._event(max(one.job.arrives_s, 0.0), _ARRIVES, one)
        for at_s in {at_s for some in lanes for at_s in some if at_s > 0}:
            self._event(at_s, _PASSES, jobs[0])

    def run(self) -> None:
        self._serve()
        while self.events:
            self.now_s = max(self.events[0][0], self.now_s)
            while self.events and self.events[0][0] <= self.now_s:
                _, _, kind, one, task, used_s = heapq.heappop(self.events)
                if kind == _ARRIVES:
                    self._arrives(one)
                elif kind == _TRIES:
                    one.ready.append(task)
                elif kind == _ENDS:
                    self._ends(one, task, used_s)
            self._serve()

    def _event(self, at_s: float, kind: int, one: RehearsedJob, task: int = -1, used_s: float = 0.0) -> None:
        heapq.heappush(self.events, (at_s, next(self.tie), kind, one, task, used_s))

    def _ready(self, one: RehearsedJob, task: int) -> None:
        delay_s = one.job.tasks[task].delay_s
        if delay_s > self.now_s:
            self._event(delay_s, _TRIES, one, task)
        else:
            one.ready.append(task)

    def _arrives(self, one: RehearsedJob) -> None:
        before = next((job for job in one.job.after if job in self.open), None)
        if before is not None:
            self.blocked.setdefault(before, []).append(one)
            return
        self.waiting[one.job.job] = one
        self.admission.arrives(one.job, self.now_s)

    def _admitted(self, one: RehearsedJob) -> None:
        one.admitted = next(self.order)
        self.under_way[one.job.job] = one

    def _ends(self, one: RehearsedJob, task: int, used_s: float) -> None:
        workers = one.job.tasks[task].workers
        one.lanes -= workers
        one.since_s -= workers * (self.now_s - used_s)
        self.held[one.job.user] -= workers
        self.admission.used(one.job.job, workers * used_s, self.now_s)
        one.left -= 1
        for reader in one.readers[task]:
            one.missing[reader] -= 1
            if not one.missing[reader]:
                self._ready(one, reader)
        if not one.left:
            one.ended_s = self.now_s
            del self.under_way[one.job.job]
            self.admission.ended(one.job.job)
            self.open.discard(one.job.job)
            for other in self.blocked.pop(one.job.job, ()):
                self._arrives(other)

    def _serve(self) -> None:
        """Admit jobs and start tasks."""
        used_s = {number: one.used_s(self.now_s) for number, one in self.under_way.items()}
        if self.waiting:
            for number in self.admission.admit(self.now_s, used_s):
                self._admitted(self.waiting.pop(number))
        if self.waiting and not self.under_way and not self.events and self.hours < MAX_HOURS:
            self.hours += 1
            self._event(self.now_s + HOUR_S, _PASSES, next(iter(self.waiting.values())))
        ready = [one for one in self.under_way.values() if one.ready]
        if not ready or _first_free_s(self.lanes) > self.now_s:
            return
        if len(ready) > 1:
            level = self.admission.levels(self.now_s, used_s)
            ready.sort(key=lambda one: (-level[one.job.job], one.admitted))
        self._dispatch(ready)

    def _dispatch(self, jobs: Sequence[RehearsedJob]) -> None:
        ahead = [some.copy() for some in self.lanes]  # with tasks that wait for a lane of a faster kind
        looked_at = 0
        for one in jobs:
            tasks, one.ready = one.ready, []
            most = self.admission.slots(one.job.user)
            for place, n in enumerate(tasks):
                if looked_at >= MAX_LOOKED_AT or _first_free_s(ahead) > self.now_s:
                    one.ready += tasks[place:]
                    return
                looked_at += 1
                workers = one.job.tasks[n].workers
                if self.held.get(one.job.user, 0) + workers > most:
                    one.ready.append(n)
                    continue
                end_s, kind, begin_s = self._earliest(ahead, one.seconds[n], workers)
                if kind < 0:
                    continue  # no devices can run it
                for _ in range(workers):
                    heapq.heapreplace(ahead[kind], end_s)
                if begin_s > self.now_s:
                    one.ready.append(n)
                    continue
                for _ in range(workers):
                    heapq.heappop(self.lanes[kind])
                one.first_s = min(one.first_s, self.now_s)
                self._start(one, n, kind, end_s - self.now_s)

    def _earliest(
        self, lanes: Sequence[list[float]], seconds: Sequence[float], workers: int
    ) -> tuple[float, int, float]:
        """The kind on which a task ends first: when it ends, the kind (-1 = none), and when it begins."""
        best = math.inf, -1, math.inf
        for kind, took_s in enumerate(seconds):
            if took_s < math.inf and len(lanes[kind]) >= workers:
                free_s = lanes[kind][0] if workers == 1 else heapq.nsmallest(workers, lanes[kind])[-1]
                begin_s = max(free_s, self.now_s)
                best = min(best, (begin_s + took_s, kind, begin_s))
        return best

    def _start(self, one: RehearsedJob, task: int, kind: int, left_s: float, elapsed_s: float = 0.0) -> None:
        workers = one.job.tasks[task].workers
        for _ in range(workers):
            heapq.heappush(self.lanes[kind], self.now_s + left_s)
        one.took_s += workers * left_s
        one.lanes += workers
        one.since_s += workers * (self.now_s - elapsed_s)
        self.held[one.job.user] = self.held.get(one.job.user, 0) + workers
        self._event(self.now_s + left_s, _ENDS, one, task, elapsed_s + left_s)


def _first_free_s(lanes: Sequence[Sequence[float]]) -> float:
    return min((some[0] for some in lanes if some), default=math.inf)
