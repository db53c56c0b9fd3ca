"""A planner for training jobs: which jobs run in the next round, on which GPUs, sharing with which others.

The value of a plan is the rate at which it brings completions forward: the sum over jobs of weight times speed, at the
believed speed on that GPU beside those neighbours, relative to the job's best. A job weighs 1, and more the more other
jobs wait for the GPUs it occupies (`progress_weights`). With enough GPUs for all, jobs go where they gain most;
otherwise the job that finishes soonest comes first.

1. *Exactly*, up to MAX_EXACT_JOBS jobs: an integer program (`assignment.py`), at the end of a round. Jobs of higher
   priority are planned first, and among these the jobs that have waited too long (`overdue_rows`).
2. *Greedily*, for the remaining jobs, between rounds, and with more jobs: in the order of remaining time, each job goes
   where it adds most value, alone or beside another.
3. *Displacement*: jobs that still wait take the place of running jobs with more time left, if that pays
   (`displacement.py`). Where all GPUs are alike and nothing shares, this and 2 are the whole plan.

Moving a running job costs its checkpoint: a job elsewhere is worth less, by that time over the time that it is likely
to stay (`horizon_s`). Between rounds no running job is moved to other GPUs.

No job waits without bound. Jobs that have waited for `patience_s` and PAYBACK times as long as they still need come
first, the longest wait first, on up to OVERDUE_SHARE of the GPUs. Running for one second makes up for PAYBACK seconds
of waiting, and an overdue job keeps its place until half of its waiting is made up for.

Speeds are those of `Observation.believed`. Sharing counts as `caution` deviations worse than believed, so that
uncertain pairs do not share. Without beliefs, speeds are those of the profiles, and no GPU is shared. Gangs of several
workers never share.
"""

from __future__ import annotations

import equinox as eqx
import numpy as np

from symphony.problem.errors import InputError
from symphony.training_jobs.assignment import assign
from symphony.training_jobs.displacement import displace
from symphony.training_jobs.partial_plan import PartialPlan, largest_machine
from symphony.training_jobs.round_planning import (
    ABSENT,
    RUNS,
    WAITS,
    HostPlanner,
    PlanInputs,
    RoundPlan,
    SeatAllocation,
    rows_of,
)

MAX_EXACT_JOBS = 128  # up to which plans are exact
OVERDUE_SHARE = 0.25  # of the GPUs: at most so many come first for jobs that have waited too long, or one such job
PAYBACK = 4.0  # seconds of waiting that one second of running makes up for


def min_remaining_s(p: PlanInputs) -> np.ndarray:
    """Seconds that each row needs alone on its fastest kind [M]; inf if it is absent or runs nowhere."""
    best = p.rate.max(axis=1, initial=0.0)
    runs = (p.standing != ABSENT) & (best > 0)
    return np.where(runs, p.left / np.where(runs, best, 1.0), np.inf)


def attainable_speeds(p: PlanInputs) -> np.ndarray:
    """Units/s of each row alone on GPUs of a kind [M, Y]; spread where no machine is large enough."""
    if not len(p.unit_s):
        return np.asarray(p.rate)
    packed, spread = np.moveaxis(p.unit_s[p.kernel], -1, 0)
    slower = np.where((packed > 0) & (spread > 0), packed / np.where(spread > 0, spread, 1.0), 1.0)
    widest = largest_machine(p.machine[p.up], p.kind[p.up], p.rate.shape[1])
    return np.asarray(np.where(p.workers[:, None] > widest, p.rate * slower, p.rate))


def progress_weights(p: PlanInputs) -> np.ndarray:
    """The value of one second of progress of each row: by how many seconds it brings completions forward [M].

    One second of its own; and its GPUs become free a second earlier for the jobs that finish later. These gain the
    fraction of their best speed that they lack now (taken to be equal for all), divided by the GPUs at work.
    """
    soonest = min_remaining_s(p)
    runs = np.isfinite(soonest)
    number = max(1, int(runs.sum()))
    relative = p.rate[runs] / p.rate[runs].max(axis=1, keepdims=True, initial=0.0)
    # GPUs of the cluster, each counted as the relative speed of jobs there.
    gpus = max(1.0, float(relative.mean(axis=0)[p.kind[p.up]].sum())) if runs.any() else 1.0
    lacks = max(0.0, 1 - gpus / float(max(1, p.workers[runs].sum())))
    later = np.empty(len(soonest))
    later[np.argsort(soonest, kind="stable")] = np.arange(number - 1, number - 1 - len(soonest), -1)
    return np.where(runs, 1 + p.workers * lacks * later / gpus, 0.0)


def overdue_rows(p: PlanInputs, waited_s: np.ndarray, patience_s: float) -> np.ndarray:
    """The rows that come first because they have waited too long [M]."""
    bound_s = patience_s + PAYBACK * min_remaining_s(p)
    late = np.where(p.standing == RUNS, waited_s > bound_s / 2, (p.standing == WAITS) & (waited_s > bound_s))
    ranked = np.lexsort((p.job, -np.where(late, waited_s, 0.0)))
    gpus = np.cumsum(np.where(late, p.workers, 0)[ranked])
    first = np.zeros(len(late), bool)
    first[ranked] = (gpus <= OVERDUE_SHARE * p.up.sum()) | (np.arange(len(late)) == 0)
    return first & late


class Planner(HostPlanner):
    """Plans every round by the believed speeds."""

    patience_s: float = eqx.field(default=86_400.0, static=True)  # waiting time after which a job comes first
    tails: float = eqx.field(default=0.5, static=True)  # 0: short mean completion, 1: few large slow-downs
    # `caution` was chosen on the tuning seeds of `benchmarks.training_jobs`.
    horizon_s: float = eqx.field(default=1800.0, static=True)  # how long a job is likely to stay on its devices
    caution: float = eqx.field(default=4.0, static=True)  # deviations below belief, at which sharing counts

    def __check_init__(self) -> None:
        """Raise InputError for settings out of range."""
        if not self.caution >= 0:
            raise InputError(f"caution is {self.caution!r}", where="Planner", hint="write a number, 0 or more")
        if not 0 <= self.tails <= 1:
            raise InputError(f"tails is {self.tails!r}", where="Planner", hint="write a number from 0 to 1")

    def sizes(self, kinds: int) -> tuple[int, int]:
        """Columns of the book: the waiting time. Nothing is in the memo."""
        return 1, 0

    @property
    def displaces(self) -> bool:
        """Between rounds, jobs may take the place of others (`displacement.py`)."""
        return True

    def plan(self, inputs: PlanInputs) -> RoundPlan:
        """Place all jobs at the end of a round; in between, only waiting ones."""
        return finished(*self.arranged(inputs))

    def arranged(self, inputs: PlanInputs) -> tuple[PartialPlan, np.ndarray]:
        """The plan before it is carried out, and the rows in the order of placement."""
        board, order, tier = self.opened(inputs)
        p = board.p
        alike = not board.shares and len(set(p.kind[p.up].tolist())) <= 1
        if not p.boundary or alike:
            keep_running(board)
        elif len(order) <= MAX_EXACT_JOBS:
            for rows in by_tier(order, tier):
                for row, devices in assign(board, rows).items():
                    board.put(row, devices)
        board.place_all(int(row) for row in order)
        displace(board, order, tier, self.tails)
        return board, order

    def opened(self, inputs: PlanInputs) -> tuple[PartialPlan, np.ndarray, np.ndarray]:
        """A plan without placements, the rows that may be placed in their order, and the tier of every row [M]."""
        # The best of hundreds of pairs is likely to be one whose speed is overestimated.
        kept = inputs.beside * np.exp(-self.caution * inputs.beside_std)
        p = inputs._replace(rate=attainable_speeds(inputs), beside=kept)
        waited = p.book[:, 0]
        # The previous plan may be days old, so the waiting time since then is bounded by the age of the job.
        waited += np.where(p.standing == WAITS, np.minimum(p.since_s, p.age_s), -PAYBACK * p.ran_s)
        np.maximum(waited, 0.0, out=waited)
        board = PartialPlan(p, SeatAllocation(p), progress_weights(p), self.horizon_s)
        overdue = overdue_rows(p, waited, self.patience_s)
        tier = 2 * p.priority + overdue
        soonest = min_remaining_s(p)
        with np.errstate(invalid="ignore"):
            # Between the shortest time and the fewest GPU-seconds: the former is better for slow-downs.
            order = np.lexsort((p.job, soonest * np.sqrt(np.maximum(p.workers, 1)), -waited * overdue, -tier))
        return board, order[np.isin(p.standing[order], (WAITS, RUNS)) & np.isfinite(soonest[order])], tier


def by_tier(order: np.ndarray, tier: np.ndarray) -> list[np.ndarray]:
    """Rows in an order, split by tier, the highest first."""
    return [order[tier[order] == t] for t in sorted(set(tier[order].tolist()), reverse=True)]


def keep_running(board: PartialPlan) -> None:
    """Leave running rows where they are."""
    for row in rows_of(board.p.standing == RUNS):
        board.put(row, board.seats.where(row))
    # A job that was preempted to be moved waits while it is saved. Its devices are reserved.
    for row, devices in board.seats.promised().items():
        if (board.p.rate[row] > 0).any() and (board.room[list(devices)] > 0).all():
            board.put(row, devices)


def finished(board: PartialPlan, order: np.ndarray) -> RoundPlan:
    """The plan to carry out."""
    for row, devices in board.at.items():
        board.seats.take([row], devices)
    return board.seats.plan([int(r) for r in order if int(r) in board.at], board.p.book, board.p.memo)
