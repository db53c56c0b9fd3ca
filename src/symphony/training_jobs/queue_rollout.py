"""A queue of training jobs rolled forward in many draws of its speeds: where and when each job starts and finishes.

An approximation of the planner, for forecasts. In every draw, a step is one of two things:

1. *A change*, if one increases the value that the planner maximises (`planner.progress_weights`): a job that waits or
   runs elsewhere gets GPUs of a kind, free ones or those of jobs that are worth less there. The best change is made.
   So jobs of higher priority come first, then jobs that have waited too long, then those that finish soonest.
2. *Time*, otherwise: it advances to the next completion or arrival.

Choices use the drawn speeds as if they were known, because observations will soon reveal them. Jobs that share a GPU
now do so until one of them leaves; no job joins another later. GPUs of a kind are interchangeable, and change hands at
any time, not only at the end of a round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

PRIORITY_FACTOR = 1e3  # value of a job over that of a job of the next lower priority
MAX_PRIORITY_TIERS = 40  # higher ones count alike
MIN_RELATIVE_GAIN = 1e-6  # of a job's value; a smaller gain causes no change
FUTURE_JOB_COLUMNS = 16  # for arrivals, besides the columns of finished jobs; an arrival that finds none is ignored
COMPACTION_INTERVAL = 32  # steps between removals of finished draws and jobs


class QueuedJobs(NamedTuple):
    """C jobs in S draws: Y kinds of GPU, P neighbours at most."""

    rate: np.ndarray  # f[Y, S, C]: units/s alone on GPUs of a kind; 0 = cannot run there
    here: np.ndarray  # f[S, C]: units/s alone where it is
    at: np.ndarray  # i[C]: kind where it is, -1 = it waits
    left: np.ndarray  # f[C]: units
    workers: np.ndarray  # i[C]
    priority: np.ndarray  # i[C]
    saving_s: np.ndarray  # f[C]: to write a checkpoint
    restoring_s: np.ndarray  # f[C]: to read it back
    has_run: np.ndarray  # bool[C]: has a checkpoint
    waited_s: np.ndarray  # f[C]
    neighbour: np.ndarray  # i[C, P]: -1 = none
    cost: np.ndarray  # f[S, C, P]: time that each neighbour adds to a unit, over the time alone
    crowding: float  # further cost of each neighbour after the first
    gpus: np.ndarray  # i[Y]: up
    free: np.ndarray  # i[Y]: up and held by no job


class FutureJobs(NamedTuple):
    """Future arrivals: at most N in each draw, each a copy of one of L jobs."""

    arrives_s: np.ndarray  # f[S, N]: in order, inf = never
    like: np.ndarray  # i[S, N]: index of the copied job
    rate: np.ndarray  # f[Y, S, L]
    left: np.ndarray  # f[L]
    workers: np.ndarray  # i[L]
    priority: np.ndarray  # i[L]
    saving_s: np.ndarray  # f[L]
    restoring_s: np.ndarray  # f[L]


class QueueOutcome(NamedTuple):
    """Start and finish of each job; inf = never, -1 = nowhere."""

    start_s: np.ndarray  # f[S, C]
    kind: np.ndarray  # i[S, C]: where it starts, or runs now
    finish_s: np.ndarray  # f[S, C]


def roll_out_queue(
    queue: QueuedJobs,
    future: FutureJobs | None,
    now_s: float,
    *,
    horizon_s: float = 1800.0,
    patience_s: float = 86_400.0,
) -> QueueOutcome:
    """Roll forward until all jobs of the queue that can finish have. `horizon_s`, `patience_s`: as in `Planner`."""
    r = _QueueRollout(queue, future, now_s, horizon_s, patience_s)
    count = len(queue.left)
    more = 0 if future is None else future.arrives_s.shape[1]
    for number in range(60 * (count + more + 1)):  # several times what is ever needed
        if not r.step():
            break
        if number % COMPACTION_INTERVAL == COMPACTION_INTERVAL - 1:
            r.pack()
    return QueueOutcome(r.start_s[:, :count], r.kind[:, :count], r.finish_s[:, :count])


class _QueueRollout:
    """S unfinished draws of C columns: present jobs, and columns for arrivals."""

    def __init__(
        self, q: QueuedJobs, future: FutureJobs | None, now_s: float, horizon_s: float, patience_s: float
    ) -> None:
        self.q, self.future, self.horizon_s, self.patience_s = q, future, horizon_s, patience_s
        kinds, draws, self.count = q.rate.shape
        more = 0 if future is None else min(FUTURE_JOB_COLUMNS, future.arrives_s.shape[1])
        self.of = np.arange(draws)  # the number of each draw
        self.kinds = np.arange(kinds)[:, None, None]
        self.now, self.arrived = np.full(draws, float(now_s)), np.zeros(draws, int)
        self.free = np.tile(q.free[:, None], (1, draws))  # [Y, S]
        ranks = np.unique(np.concatenate([q.priority, [] if future is None else future.priority]))
        self.tier_of = lambda priority: (
            PRIORITY_FACTOR ** (2 * np.minimum(np.searchsorted(ranks, priority), MAX_PRIORITY_TIERS))
        )

        def grown(x: np.ndarray, fill: float = 0) -> np.ndarray:
            rest = [(0, 0)] * (np.ndim(x) - 1)
            return np.repeat(np.pad(np.asarray(x), [(0, more), *rest], constant_values=fill)[None], draws, axis=0)

        self.owner = grown(np.arange(self.count), self.count)  # job of the queue; `count` = an arrival, or none
        self.left, self.workers = grown(q.left.astype(float)), grown(q.workers, 1)
        self.tier, self.saving = grown(self.tier_of(q.priority), 1), grown(q.saving_s)
        self.restoring, self.has_run = grown(q.restoring_s), grown(q.has_run)
        self.at, self.idle_since = grown(q.at, -1), grown(now_s - q.waited_s)
        self.done, self.overdue = self.left <= 0, np.zeros(self.left.shape, bool)
        self.home = self.at >= 0  # still where it was at the start
        self.neighbour = grown(q.neighbour, -1)
        self.near = self.neighbour >= 0
        self.cost = np.pad(q.cost, ((0, 0), (0, more), (0, 0)))
        self.initial_rate = np.pad(q.here, ((0, 0), (0, more)))
        self.rates = np.pad(q.rate, ((0, 0), (0, 0), (0, more)))
        self.relative = np.zeros(self.rates.shape)
        self.rate, self.setup = np.zeros(self.left.shape), np.zeros(self.left.shape)
        self.best, self.counted, self.stays = (np.ones(self.left.shape) for _ in range(3))
        self.able, self.width = np.zeros(self.left.shape, bool), np.zeros(self.left.shape, int)
        widths = [q.workers, [] if future is None else future.workers, [1]]
        self.widths = np.unique(np.concatenate(widths)).astype(int)
        # Results of all draws and jobs; the last column collects the arrivals and is not used.
        waits = np.append(q.at < 0, True)
        self.start_s = np.tile(np.where(waits, np.inf, now_s), (draws, 1))
        self.kind = np.tile(np.append(q.at, -1), (draws, 1))
        self.finish_s = np.tile(np.where(np.append(q.left <= 0, False), now_s, np.inf), (draws, 1))
        self._update_derived(*(x.ravel() for x in np.indices(self.left.shape)))
        self._update_shared_rates()

    @property
    def draw(self) -> np.ndarray:
        return np.arange(len(self.of))

    def pack(self) -> None:
        """Drop finished draws and, in each draw, columns of finished jobs."""
        live = np.flatnonzero(self._unfinished())
        most = max(1, int((~self.done).sum(axis=1).max(initial=0)))
        spare = 0 if self.future is None else FUTURE_JOB_COLUMNS
        columns = np.argsort(self.done[live], axis=1, kind="stable")[:, : most + spare]
        rows = live[:, None]
        for name in ("owner", "left", "workers", "tier", "saving", "restoring", "has_run", "at", "idle_since", "done",
                     "home", "neighbour", "near", "cost", "initial_rate", "rate", "setup", "best", "counted", "stays",
                     "able", "width", "overdue"):  # fmt: skip
            setattr(self, name, getattr(self, name)[rows, columns])
        self.rates, self.relative = self.rates[:, rows, columns], self.relative[:, rows, columns]
        self.of, self.now, self.arrived = self.of[live], self.now[live], self.arrived[live]
        self.free = self.free[:, live]

    def _unfinished(self) -> np.ndarray:
        """Draws in which a job of the queue can still finish [S]."""
        return np.asarray((~self.done & self.able & (self.owner < self.count)).any(axis=1))

    def _update_derived(self, draw: np.ndarray, column: np.ndarray) -> None:
        """Recompute what follows from rates and widths of these jobs."""
        rates = self.rates[:, draw, column]
        best = rates.max(axis=0)
        self.able[draw, column] = best > 0
        self.best[draw, column] = np.where(best > 0, best, 1.0)
        self.relative[:, draw, column] = rates / self.best[draw, column]
        # GPUs of the cluster, each counted as the relative speed of the job there.
        self.counted[draw, column] = self.q.gpus @ self.relative[:, draw, column]
        moving = self.saving[draw, column] + self.restoring[draw, column]
        self.stays[draw, column] = 1 - np.clip(moving / self.horizon_s, 1e-6, 0.9)
        self.width[draw, column] = np.searchsorted(self.widths, self.workers[draw, column])

    def step(self) -> bool:
        """Make a change where one gains, advance time elsewhere; returns whether anything happened."""
        unfinished = self._unfinished()
        column, kind, gain = self._best_change()
        changes = unfinished & (gain > 0)
        moved = self._advance(unfinished & ~changes)
        if changes.any():
            self._change(self.draw[changes], column[changes], kind[changes])
        return bool(changes.any() or moved)

    def _weights(self) -> np.ndarray:
        """`planner.progress_weights` of present jobs, times priority factors [S, C]."""
        there = ~self.done & self.able
        soonest = np.where(there, self.left / self.best, np.inf)
        number = np.maximum(1, there.sum(axis=1, keepdims=True))
        gpus = np.maximum(1.0, (self.counted * there).sum(axis=1, keepdims=True) / number)
        lacks = np.maximum(0.0, 1 - gpus / np.maximum(1, (self.workers * there).sum(axis=1, keepdims=True)))
        later = np.empty_like(soonest)
        later[self.draw[:, None], np.argsort(soonest, axis=1)] = number - 1 - np.arange(soonest.shape[1])
        # An overdue job stays first until it has finished; otherwise it would be preempted as soon as it started.
        self.overdue |= (self.at < 0) & (self.now[:, None] - self.idle_since > self.patience_s)
        weight = (1 + self.workers * lacks * later / gpus) * self.tier
        return np.where(there, np.where(self.overdue, PRIORITY_FACTOR, 1.0) * weight, 0.0)

    def _best_change(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The job, the kind of GPU and the gain of the best change in every draw [S]; gain 0 = none."""
        weight, runs = self._weights(), self.at >= 0
        worth = weight * self.relative
        mine = self.at == self.kinds  # [Y, S, C]
        has = (worth * mine).sum(axis=0)
        moved = worth * np.where(runs, self.stays, 1.0)
        # Loss if a job is displaced: its value less that in its best free place. If a gang displaces several jobs, two
        # of them might count on the same place; then the whole value is lost.
        there = np.where((self.workers <= self.free[..., None]) & ~mine, moved, 0.0)
        elsewhere, self.elsewhere = _largest(there)
        displaceable = runs & ~self.near.any(axis=2) if self.near.shape[2] else runs
        lost = np.maximum(has - elsewhere, 0.0)
        self.each = np.where(displaceable, lost / self.workers, np.inf)
        order = np.argsort(self.each, axis=1, kind="stable")
        draw = self.draw[:, None]
        at = np.where(displaceable, self.at, -1)[draw, order] == self.kinds
        given = np.cumsum(at * self.workers[draw, order], axis=2)
        first = np.cumsum(at, axis=2) == 1
        price = np.where(first, lost[draw, order], np.cumsum(at * has[draw, order], axis=2))
        costs = np.empty((len(self.widths), *self.free.shape))  # [W, Y, S]
        for n, width in enumerate(self.widths):
            short = width - self.free
            last = (given < short[..., None]).sum(axis=2)
            paid = np.take_along_axis(price, np.minimum(last, order.shape[1] - 1)[..., None], 2)[..., 0]
            costs[n] = np.where(short <= 0, 0.0, np.where(last < order.shape[1], paid, np.inf))
        gain = moved - has - costs[self.width, self.kinds, draw]
        gain = np.where(mine | (gain <= MIN_RELATIVE_GAIN * weight), 0.0, gain)
        gain, kind = _largest(gain)
        column = gain.argmax(axis=1)
        return column, kind[self.draw, column], gain[self.draw, column]

    def _change(self, draw: np.ndarray, column: np.ndarray, kind: np.ndarray) -> None:
        """Give jobs GPUs of a kind, displacing those of least value; a single displaced job moves to a free place."""
        saves = np.where(self.at[draw, column] >= 0, self.saving[draw, column], 0.0)
        self._stop_jobs(draw, column)
        displaced, last = np.zeros(len(draw), int), np.zeros(len(draw), int)
        while (short := self.free[kind, draw] < self.workers[draw, column]).any():
            some = draw[short]
            here = self.at[some] == kind[short][:, None]
            last[short] = np.where(here, self.each[some], np.inf).argmin(axis=1)
            self._stop_jobs(some, last[short])
            displaced += short
        self._start_jobs(draw, column, kind, saves)
        moves = (displaced == 1) & (self.elsewhere[draw, last] >= 0)
        draw, last = draw[moves], last[moves]
        self._start_jobs(draw, last, self.elsewhere[draw, last], self.saving[draw, last])

    def _start_jobs(self, draw: np.ndarray, column: np.ndarray, kind: np.ndarray, saves: np.ndarray) -> None:
        """Start jobs on free GPUs of a kind; they make progress after saving and restoring."""
        self.free[kind, draw] -= self.workers[draw, column]
        self.at[draw, column] = kind
        self.rate[draw, column] = self.rates[kind, draw, column]
        restores = np.where(self.has_run[draw, column], self.restoring[draw, column], 0.0)
        self.setup[draw, column] = saves + restores
        self.has_run[draw, column] = True
        of, owner = self.of[draw], self.owner[draw, column]
        new = np.isinf(self.start_s[of, owner])
        self.start_s[of[new], owner[new]] = self.now[draw[new]]
        self.kind[of[new], owner[new]] = kind[new]

    def _stop_jobs(self, draw: np.ndarray, column: np.ndarray) -> None:
        """Take jobs off their GPUs, which become free unless a neighbour stays."""
        on = self.at[draw, column] >= 0
        draw, column = draw[on], column[on]
        alone = ~self.near[draw, column].any(axis=1)
        self.free[self.at[draw, column][alone], draw[alone]] += self.workers[draw, column][alone]
        self.at[draw, column] = -1
        self.rate[draw, column] = 0.0
        self.idle_since[draw, column] = self.now[draw]
        self.home[draw, column] = False
        if self.near.shape[2]:
            self.near[draw, column] = False
            self.near[draw] &= self.neighbour[draw] != self.owner[draw, column][:, None, None]
            self._update_shared_rates()

    def _update_shared_rates(self) -> None:
        """Speeds of jobs that are still where they were at the start, beside the remaining neighbours."""
        slower = 1 + (self.cost * self.near).sum(axis=2)
        slower *= 1 + self.q.crowding * np.maximum(self.near.sum(axis=2) - 1, 0)
        self.rate = np.where(self.home, self.initial_rate / slower, self.rate)

    def _advance(self, when: np.ndarray) -> bool:
        """Advance these draws to the next completion or arrival; returns whether there was one."""
        runs = (self.rate > 0) & ~self.done
        lasts = np.where(runs, self.setup + self.left / np.where(runs, self.rate, 1.0), np.inf)
        column = lasts.argmin(axis=1)
        ends, arrives = self.now + lasts[self.draw, column], self._next_arrival_s()
        until = np.minimum(ends, arrives)
        when = when & np.isfinite(until)
        passed = np.where(when, until - self.now, 0.0)[:, None]
        worked = np.maximum(passed - self.setup, 0.0)
        self.setup = np.maximum(self.setup - passed, 0.0)
        self.left = np.where(runs, np.maximum(self.left - self.rate * worked, 0.0), self.left)
        self.now = np.where(when, until, self.now)
        draw, column = self.draw[when & (ends <= arrives)], column[when & (ends <= arrives)]
        self.finish_s[self.of[draw], self.owner[draw, column]] = self.now[draw]
        self.left[draw, column] = 0.0
        self.done[draw, column] = True
        self._stop_jobs(draw, column)
        self._arrive(self.draw[when & (arrives < ends)])
        return bool(when.any())

    def _next_arrival_s(self) -> np.ndarray:
        """Time of the next arrival [S]; inf = none."""
        if self.future is None:
            return np.full(len(self.draw), np.inf)
        arrives_s = self.future.arrives_s[self.of]
        last = arrives_s.shape[1] - 1
        return np.where(self.arrived <= last, arrives_s[self.draw, np.minimum(self.arrived, last)], np.inf)

    def _arrive(self, draw: np.ndarray) -> None:
        """Add the next arrival in these draws, in the column of a finished job."""
        if self.future is None or not len(draw):
            return
        future, like = self.future, self.future.like[self.of[draw], self.arrived[draw]]
        self.arrived[draw] += 1
        column = self.done[draw].argmax(axis=1)
        vacant = self.done[draw, column]
        draw, column, like = draw[vacant], column[vacant], like[vacant]
        self.owner[draw, column] = self.count
        self.left[draw, column], self.workers[draw, column] = future.left[like], future.workers[like]
        self.tier[draw, column] = self.tier_of(future.priority[like])
        self.saving[draw, column], self.restoring[draw, column] = future.saving_s[like], future.restoring_s[like]
        self.has_run[draw, column] = self.done[draw, column] = self.overdue[draw, column] = False
        self.idle_since[draw, column] = self.now[draw]
        self.rates[:, draw, column] = future.rate[:, self.of[draw], like]
        self._update_derived(draw, column)


def _largest(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest along the first (short) axis, and its index; 0 and -1 if none is positive."""
    value, index = np.zeros(x.shape[1:]), np.full(x.shape[1:], -1)
    for number, one in enumerate(x):
        index[one > value] = number
        value = np.maximum(value, one)
    return value, index
