"""A queue of training jobs rolled forward, in many draws of its speeds side by side: who starts where, when, and ends.

A sketch of what the planner does, for forecasts. In every draw a step is one of two things:

1. *A change*, if one is a gain in what the planner maximises (`planner.weights`): a job that waits or runs elsewhere is
   given GPUs of a kind, free ones or those of jobs that are worth less there. Of all changes the one that gains most.
   So those of higher priority come first, then those who have waited too long, then those who are done soonest.
2. *Time*, otherwise: to where the next job is done or comes.

Choices go by the speeds that were drawn, as if they were known: what is not known now will be before long. Who shares a
GPU does so until one of the two goes, and nobody comes to share. GPUs of a kind are alike, and change hands at any
time, not only at the end of a round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

PRIORITY_FACTOR, MAX_PRIORITY_TIERS = (
    1e3,
    40,
)  # a job of the next higher priority is worth so many times as much; so many are told apart
MIN_RELATIVE_GAIN = 1e-6  # of what a job is worth: below it, a change is none
FUTURE_JOB_COLUMNS = 16  # for those yet to come, beside those of jobs that are done; who finds none is left out
COMPACTION_INTERVAL = 32  # steps, after which what is over is dropped


class QueuedJobs(NamedTuple):
    """Jobs in S draws: C of them, Y kinds of GPU, P neighbours at most."""

    rate: np.ndarray  # f[Y, S, C]: units per second alone on GPUs of a kind; 0 = cannot run there
    here: np.ndarray  # f[S, C]: the same where it is
    at: np.ndarray  # i[C]: kind where it is, -1 = it waits
    left: np.ndarray  # f[C]: units
    workers: np.ndarray  # i[C]
    priority: np.ndarray  # i[C]
    saving_s: np.ndarray  # f[C]: that a checkpoint takes
    restoring_s: np.ndarray  # f[C]: that reading it back takes
    has_run: np.ndarray  # bool[C]: has a checkpoint
    waited_s: np.ndarray  # f[C]
    neighbour: np.ndarray  # i[C, P]: -1 = none
    cost: np.ndarray  # f[S, C, P]: what each neighbour adds to a unit's time, over that alone
    crowding: float  # what every neighbour after the first adds on top
    gpus: np.ndarray  # i[Y]: that are up
    free: np.ndarray  # i[Y]: of them, held by nobody


class FutureJobs(NamedTuple):
    """Jobs yet to come: N in each draw at most, each like one of L."""

    comes_s: np.ndarray  # f[S, N]: in order, inf = does not
    like: np.ndarray  # i[S, N]
    rate: np.ndarray  # f[Y, S, L]
    left: np.ndarray  # f[L]
    workers: np.ndarray  # i[L]
    priority: np.ndarray  # i[L]
    saving_s: np.ndarray  # f[L]
    restoring_s: np.ndarray  # f[L]


class QueueOutcome(NamedTuple):
    """What came of the queue; inf and -1 = never, nowhere."""

    start_s: np.ndarray  # f[S, C]
    kind: np.ndarray  # i[S, C]: where it started, or is
    finish_s: np.ndarray  # f[S, C]


def roll_out_queue(
    queue: QueuedJobs,
    others: FutureJobs | None,
    now_s: float,
    *,
    horizon_s: float = 1800.0,
    patience_s: float = 86_400.0,
) -> QueueOutcome:
    """Until all of the queue are done that can be. `horizon_s`, `patience_s`: of the planner."""
    r = _QueueRollout(queue, others, now_s, horizon_s, patience_s)
    count = len(queue.left)
    more = 0 if others is None else others.comes_s.shape[1]
    for number in range(60 * (count + more + 1)):  # several times what is ever needed
        if not r.step():
            break
        if number % COMPACTION_INTERVAL == COMPACTION_INTERVAL - 1:
            r.pack()
    return QueueOutcome(r.start_s[:, :count], r.kind[:, :count], r.finish_s[:, :count])


class _QueueRollout:
    """S draws that are under way; C columns: who is there, and seats for those yet to come."""

    def __init__(
        self, q: QueuedJobs, others: FutureJobs | None, now_s: float, horizon_s: float, patience_s: float
    ) -> None:
        self.q, self.others, self.horizon_s, self.patience_s = q, others, horizon_s, patience_s
        kinds, draws, self.count = q.rate.shape
        more = 0 if others is None else min(FUTURE_JOB_COLUMNS, others.comes_s.shape[1])
        self.of = np.arange(draws)  # the number of each draw
        self.kinds = np.arange(kinds)[:, None, None]
        self.now, self.come = np.full(draws, float(now_s)), np.zeros(draws, int)
        self.free = np.tile(q.free[:, None], (1, draws))  # [Y, S]
        ranks = np.unique(np.concatenate([q.priority, [] if others is None else others.priority]))
        self.tier_of = lambda priority: (
            PRIORITY_FACTOR ** (2 * np.minimum(np.searchsorted(ranks, priority), MAX_PRIORITY_TIERS))
        )

        def grown(x: np.ndarray, fill: float = 0) -> np.ndarray:
            rest = [(0, 0)] * (np.ndim(x) - 1)
            return np.repeat(np.pad(np.asarray(x), [(0, more), *rest], constant_values=fill)[None], draws, axis=0)

        self.who = grown(np.arange(self.count), self.count)  # job of the queue; `count` = another, or nobody
        self.left, self.workers = grown(q.left.astype(float)), grown(q.workers, 1)
        self.tier, self.saving = grown(self.tier_of(q.priority), 1), grown(q.saving_s)
        self.restoring, self.has_run = grown(q.restoring_s), grown(q.has_run)
        self.at, self.idle_since = grown(q.at, -1), grown(now_s - q.waited_s)
        self.done, self.overdue = self.left <= 0, np.zeros(self.left.shape, bool)
        self.home = self.at >= 0  # still where it was at first
        self.neighbour = grown(q.neighbour, -1)
        self.near = self.neighbour >= 0
        self.cost = np.pad(q.cost, ((0, 0), (0, more), (0, 0)))
        self.at_first = np.pad(q.here, ((0, 0), (0, more)))
        self.rates = np.pad(q.rate, ((0, 0), (0, 0), (0, more)))
        self.relative = np.zeros(self.rates.shape)
        self.rate, self.setup = np.zeros(self.left.shape), np.zeros(self.left.shape)
        self.best, self.counted, self.stays = (np.ones(self.left.shape) for _ in range(3))
        self.able, self.width = np.zeros(self.left.shape, bool), np.zeros(self.left.shape, int)
        widths = [q.workers, [] if others is None else others.workers, [1]]
        self.widths = np.unique(np.concatenate(widths)).astype(int)
        # Of all draws and jobs; the last column is of those yet to come, and not looked at.
        waits = np.append(q.at < 0, True)
        self.start_s = np.tile(np.where(waits, np.inf, now_s), (draws, 1))
        self.kind = np.tile(np.append(q.at, -1), (draws, 1))
        self.finish_s = np.tile(np.where(np.append(q.left <= 0, False), now_s, np.inf), (draws, 1))
        self._update_derived(*(x.ravel() for x in np.indices(self.left.shape)))
        self._pace()

    @property
    def draw(self) -> np.ndarray:
        """Indices of the draws."""
        return np.arange(len(self.of))

    def pack(self) -> None:
        """Drop draws that are over, and columns of jobs that are done, draw by draw."""
        live = np.flatnonzero(self._under_way())
        most = max(1, int((~self.done).sum(axis=1).max(initial=0)))
        spare = 0 if self.others is None else FUTURE_JOB_COLUMNS
        columns = np.argsort(self.done[live], axis=1, kind="stable")[:, : most + spare]
        rows = live[:, None]
        for name in ("who", "left", "workers", "tier", "saving", "restoring", "has_run", "at", "idle_since", "done",
                     "home", "neighbour", "near", "cost", "at_first", "rate", "setup", "best", "counted", "stays",
                     "able", "width", "overdue"):  # fmt: skip
            setattr(self, name, getattr(self, name)[rows, columns])
        self.rates, self.relative = self.rates[:, rows, columns], self.relative[:, rows, columns]
        self.of, self.now, self.come, self.free = self.of[live], self.now[live], self.come[live], self.free[:, live]

    def _under_way(self) -> np.ndarray:
        """Draws in which somebody of the queue is not done, who can be [S]."""
        return np.asarray((~self.done & self.able & (self.who < self.count)).any(axis=1))

    def _update_derived(self, draw: np.ndarray, column: np.ndarray) -> None:
        """What follows from rates and widths of these."""
        rates = self.rates[:, draw, column]
        best = rates.max(axis=0)
        self.able[draw, column] = best > 0
        self.best[draw, column] = np.where(best > 0, best, 1.0)
        self.relative[:, draw, column] = rates / self.best[draw, column]
        # GPUs of the cluster, each as what a job keeps there of its best speed.
        self.counted[draw, column] = self.q.gpus @ self.relative[:, draw, column]
        moving = self.saving[draw, column] + self.restoring[draw, column]
        self.stays[draw, column] = 1 - np.clip(moving / self.horizon_s, 1e-6, 0.9)
        self.width[draw, column] = np.searchsorted(self.widths, self.workers[draw, column])

    def step(self) -> bool:
        """A change in every draw where one is a gain, time in the others; whether anything was left to do."""
        under_way = self._under_way()
        column, kind, gain = self._best_change()
        changes = under_way & (gain > 0)
        moved = self._advance(under_way & ~changes)
        if changes.any():
            self._change(self.draw[changes], column[changes], kind[changes])
        return bool(changes.any() or moved)

    def _weights(self) -> np.ndarray:
        """As the planner's, of those who are there [S, C]."""
        there = ~self.done & self.able
        soonest = np.where(there, self.left / self.best, np.inf)
        number = np.maximum(1, there.sum(axis=1, keepdims=True))
        gpus = np.maximum(1.0, (self.counted * there).sum(axis=1, keepdims=True) / number)
        lacks = np.maximum(0.0, 1 - gpus / np.maximum(1, (self.workers * there).sum(axis=1, keepdims=True)))
        later = np.empty_like(soonest)
        later[self.draw[:, None], np.argsort(soonest, axis=1)] = number - 1 - np.arange(soonest.shape[1])
        # Who has waited too long stays first until it is done: else it would have to go the moment it starts.
        self.overdue |= (self.at < 0) & (self.now[:, None] - self.idle_since > self.patience_s)
        weight = (1 + self.workers * lacks * later / gpus) * self.tier
        return np.where(there, np.where(self.overdue, PRIORITY_FACTOR, 1.0) * weight, 0.0)

    def _best_change(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Who is to have GPUs of which kind, and what that gains, in every draw [S]; 0 = nothing does."""
        weight, runs = self._weights(), self.at >= 0
        worth = weight * self.relative
        mine = self.at == self.kinds  # [Y, S, C]
        has = (worth * mine).sum(axis=0)
        moved = worth * np.where(runs, self.stays, 1.0)
        # What is lost if one has to go: what it is worth, less what it would be in the best place that is free for it.
        # Of several who go for a gang, two might count on one place: so none does.
        there = np.where((self.workers <= self.free[..., None]) & ~mine, moved, 0.0)
        elsewhere, self.elsewhere = _largest(there)
        goes = runs & ~self.near.any(axis=2) if self.near.shape[2] else runs
        lost = np.maximum(has - elsewhere, 0.0)
        self.each = np.where(goes, lost / self.workers, np.inf)
        order = np.argsort(self.each, axis=1, kind="stable")
        draw = self.draw[:, None]
        at = np.where(goes, self.at, -1)[draw, order] == self.kinds
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
        """Give jobs GPUs of a kind. Who is worth least there goes; if that is one, it goes to where there is room."""
        saves = np.where(self.at[draw, column] >= 0, self.saving[draw, column], 0.0)
        self._stop_jobs(draw, column)
        gone, last = np.zeros(len(draw), int), np.zeros(len(draw), int)
        while (short := self.free[kind, draw] < self.workers[draw, column]).any():
            some = draw[short]
            here = self.at[some] == kind[short][:, None]
            last[short] = np.where(here, self.each[some], np.inf).argmin(axis=1)
            self._stop_jobs(some, last[short])
            gone += short
        self._start_jobs(draw, column, kind, saves)
        aside = (gone == 1) & (self.elsewhere[draw, last] >= 0)
        draw, last = draw[aside], last[aside]
        self._start_jobs(draw, last, self.elsewhere[draw, last], self.saving[draw, last])

    def _start_jobs(self, draw: np.ndarray, column: np.ndarray, kind: np.ndarray, saves: np.ndarray) -> None:
        """Start jobs on GPUs of a kind, of which enough are free; they run once they are saved and read back."""
        self.free[kind, draw] -= self.workers[draw, column]
        self.at[draw, column] = kind
        self.rate[draw, column] = self.rates[kind, draw, column]
        restores = np.where(self.has_run[draw, column], self.restoring[draw, column], 0.0)
        self.setup[draw, column] = saves + restores
        self.has_run[draw, column] = True
        of, who = self.of[draw], self.who[draw, column]
        new = np.isinf(self.start_s[of, who])
        self.start_s[of[new], who[new]] = self.now[draw[new]]
        self.kind[of[new], who[new]] = kind[new]

    def _stop_jobs(self, draw: np.ndarray, column: np.ndarray) -> None:
        """Take jobs off their GPUs, if they are on any. They are free unless a neighbour stays."""
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
            self.near[draw] &= self.neighbour[draw] != self.who[draw, column][:, None, None]
            self._pace()

    def _pace(self) -> None:
        """Speeds of those who are where they were at first, beside whom is left there."""
        slower = 1 + (self.cost * self.near).sum(axis=2)
        slower *= 1 + self.q.crowding * np.maximum(self.near.sum(axis=2) - 1, 0)
        self.rate = np.where(self.home, self.at_first / slower, self.rate)

    def _advance(self, when: np.ndarray) -> bool:
        """Move to the next end or arrival in these draws; whether there was one."""
        runs = (self.rate > 0) & ~self.done
        lasts = np.where(runs, self.setup + self.left / np.where(runs, self.rate, 1.0), np.inf)
        column = lasts.argmin(axis=1)
        ends, comes = self.now + lasts[self.draw, column], self._next_s()
        until = np.minimum(ends, comes)
        when = when & np.isfinite(until)
        passed = np.where(when, until - self.now, 0.0)[:, None]
        worked = np.maximum(passed - self.setup, 0.0)
        self.setup = np.maximum(self.setup - passed, 0.0)
        self.left = np.where(runs, np.maximum(self.left - self.rate * worked, 0.0), self.left)
        self.now = np.where(when, until, self.now)
        draw, column = self.draw[when & (ends <= comes)], column[when & (ends <= comes)]
        self.finish_s[self.of[draw], self.who[draw, column]] = self.now[draw]
        self.left[draw, column] = 0.0
        self.done[draw, column] = True
        self._stop_jobs(draw, column)
        self._arrive(self.draw[when & (comes < ends)])
        return bool(when.any())

    def _next_s(self) -> np.ndarray:
        """When the next of the others comes [S]; inf = none does."""
        if self.others is None:
            return np.full(len(self.draw), np.inf)
        comes_s = self.others.comes_s[self.of]
        last = comes_s.shape[1] - 1
        return np.where(self.come <= last, comes_s[self.draw, np.minimum(self.come, last)], np.inf)

    def _arrive(self, draw: np.ndarray) -> None:
        """One of the others comes, and takes a seat."""
        if self.others is None or not len(draw):
            return
        o, like = self.others, self.others.like[self.of[draw], self.come[draw]]
        self.come[draw] += 1
        seat = self.done[draw].argmax(axis=1)
        found = self.done[draw, seat]
        draw, seat, like = draw[found], seat[found], like[found]
        self.who[draw, seat] = self.count
        self.left[draw, seat], self.workers[draw, seat] = o.left[like], o.workers[like]
        self.tier[draw, seat] = self.tier_of(o.priority[like])
        self.saving[draw, seat], self.restoring[draw, seat] = o.saving_s[like], o.restoring_s[like]
        self.has_run[draw, seat] = self.done[draw, seat] = self.overdue[draw, seat] = False
        self.idle_since[draw, seat] = self.now[draw]
        self.rates[:, draw, seat] = o.rate[:, self.of[draw], like]
        self._update_derived(draw, seat)


def _largest(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest along the first axis, which is short, and its index; 0 and -1 if none is positive."""
    value, index = np.zeros(x.shape[1:]), np.full(x.shape[1:], -1)
    for number, one in enumerate(x):
        index[one > value] = number
        value = np.maximum(value, one)
    return value, index
