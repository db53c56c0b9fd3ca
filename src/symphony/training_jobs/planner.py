"""A planner for training jobs: who runs in the next round, on which GPUs, beside whom, so that jobs are done early.

What a plan is worth is how fast it brings completions forward: the sum over jobs of speed times weight, each at the
speed that is believed of it on its GPU beside its neighbours, relative to its best. A job weighs 1, for its own sake,
and more the more others wait for what it occupies (`progress_weights`). Where there are enough GPUs for all, that puts
jobs where they gain most; where there are not, who is done soonest comes first.

1. *Exactly*, up to EXACT jobs: an integer program (`assignment.py`). Those of higher priority, and of these the ones
   who have waited too long, are planned for first.
2. *Greedily*, for who is left over, between rounds, and where there are more jobs: those who are done soonest for the
   GPUs that they take come first. Each goes where the plan is worth most with it, alone or beside another.
3. *Exploration*: a few jobs try where they may be faster than is believed (`exploration.py`).

Moving a running job costs its checkpoint: a job elsewhere counts for less, by that time over the time that it is likely
to stay (`horizon_s`). Between rounds nobody is moved but those who are on their way; what falls idle goes to those who
wait.

Beliefs are those that the scenario tells (`Observation.told`); sharing counts as some deviations worse than it is
believed to be, so that doubtful pairs are left alone (`caution`). Where none are told, profiles count, and no GPU is
shared. Gangs of several workers have their GPUs to themselves.
"""

from __future__ import annotations

import equinox as eqx
import numpy as np

from symphony.problem.errors import InputError
from symphony.training_jobs.assignment import assign
from symphony.training_jobs.exploration import Exploration, explore
from symphony.training_jobs.partial_plan import PartialPlan, widest
from symphony.training_jobs.placer import Placer
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

MAX_EXACT_JOBS = 128  # jobs in play, up to which plans are exact
RESIDUAL_DECAY = 0.3  # of a residual, a round


def min_remaining_s(p: PlanInputs) -> np.ndarray:
    """Seconds that each row needs if it runs alone where it is fastest [M]; inf if it is not there, or runs nowhere."""
    best = p.rate.max(axis=1, initial=0.0)
    runs = (p.standing != ABSENT) & (best > 0)
    return np.where(runs, p.left / np.where(runs, best, 1.0), np.inf)


def attainable_speeds(p: PlanInputs) -> np.ndarray:
    """Units per second that each row has alone on GPUs of a kind [M, Y]: packed only where a machine has so many."""
    if not len(p.unit_s):
        return np.asarray(p.rate)
    packed, spread = np.moveaxis(p.unit_s[p.kernel], -1, 0)
    slower = np.where((packed > 0) & (spread > 0), packed / np.where(spread > 0, spread, 1.0), 1.0)
    return np.asarray(np.where(p.workers[:, None] > widest(p), p.rate * slower, p.rate))


def progress_weights(p: PlanInputs) -> np.ndarray:
    """What a second of progress of each row is worth, in seconds that jobs are done earlier [M].

    Its own second; and, when it is done, its GPUs are free a second earlier for those who are done later. They gain
    what they lack of their best speed now, shared among the GPUs that do the work. What all lack is taken to be equal.
    """
    soonest = min_remaining_s(p)
    runs = np.isfinite(soonest)
    number = max(1, int(runs.sum()))
    relative = p.rate[runs] / p.rate[runs].max(axis=1, keepdims=True, initial=0.0)
    # GPUs of the cluster, each counted as what a job keeps there of its best speed.
    gpus = max(1.0, float(relative.mean(axis=0)[p.kind[p.up]].sum())) if runs.any() else 1.0
    lacks = max(0.0, 1 - gpus / float(max(1, p.workers[runs].sum())))
    later = np.empty(len(soonest))
    later[np.argsort(soonest, kind="stable")] = np.arange(number - 1, number - 1 - len(soonest), -1)
    return np.where(runs, 1 + p.workers * lacks * later / gpus, 0.0)


class Planner(HostPlanner):
    """Plans every round on what is believed of speeds."""

    patience_s: float = eqx.field(default=86_400.0, static=True)  # without a GPU, after which a job comes first
    # `caution` and the way to explore were chosen on the tuning seeds of `benchmarks.training_jobs`.
    horizon_s: float = eqx.field(default=1800.0, static=True)  # how long a job is likely to stay where it is put
    caution: float = eqx.field(default=4.0, static=True)  # deviations below what is believed, at which sharing counts
    exploration: Exploration = eqx.field(default=Exploration("value"), static=True)
    placer: Placer | None = eqx.field(default=None, static=True)  # chooses in place of the integer program

    def __check_init__(self) -> None:
        """Refuse settings that mean nothing."""
        self.exploration.check()
        if not self.caution >= 0:
            raise InputError(f"caution is {self.caution!r}", where="Planner", hint="write a number, 0 or more")

    def sizes(self, kinds: int) -> tuple[int, int]:
        """How long each row has gone without a GPU, and its `speed_residuals`; how many jobs were moved to explore."""
        return 1 if self.placer is None else 3, 1

    def plan(self, picture: PlanInputs) -> RoundPlan:
        """Place all anew at the end of a round; in between, only those who wait."""
        # Whoever picks the best of hundreds of pairs picks those that are overestimated most.
        kept = picture.beside * np.exp(-self.caution * picture.beside_std)
        p = picture._replace(rate=attainable_speeds(picture), beside=kept)
        seats = SeatAllocation(p)
        waited = p.book[:, 0]
        # The plan before may be of days ago, and clocks need not begin at 0: who has come since has waited no longer.
        waited[:] = np.where(p.standing == WAITS, waited + np.minimum(p.since_s, p.age_s), 0.0)
        board = PartialPlan(p, seats, progress_weights(p), self.horizon_s)
        overdue = np.where(waited > self.patience_s, waited, 0.0)
        soonest = min_remaining_s(p)
        with np.errstate(invalid="ignore"):
            order = np.lexsort((p.job, soonest * np.maximum(p.workers, 1), -overdue, -p.priority))
        order = order[np.isin(p.standing[order], (WAITS, RUNS)) & np.isfinite(soonest[order])]
        if not p.boundary:
            for row in rows_of(p.standing == RUNS):
                board.put(row, seats.where(row))
            # Who was preempted to be moved waits while it is saved, and is to go where it was meant to.
            for row, devices in seats.promised().items():
                if np.isfinite(soonest[row]) and (board.room[list(devices)] > 0).all():
                    board.put(row, devices)
        elif self.placer is not None or len(order) <= MAX_EXACT_JOBS:
            residual = speed_residuals(p, seats) if self.placer is not None else np.zeros(0)
            for rows in _tiers(order, p.priority, overdue > 0):
                made = assign(board, rows) if self.placer is None else self.placer.assign(board, rows, residual)
                for row, devices in made.items():
                    board.put(row, devices)
        for row in (int(r) for r in order) if not (p.boundary and self.placer) else ():
            if row not in board.at and (devices := board.best_place(row)[0]):
                board.put(row, devices)
        if p.boundary and self.exploration.how != "none":
            board.use_beliefs(p._replace(beside=picture.beside))
            p.memo[0] += len(explore(board, self.exploration, int(p.seed)))
        for row, devices in board.at.items():
            seats.take([row], devices)
        return seats.plan([int(r) for r in order if int(r) in board.at], p.book, p.memo)


def speed_residuals(p: PlanInputs, seats: SeatAllocation) -> np.ndarray:
    """Logarithm of observed over believed speed of each row, of late [M]; kept in the book, beside what was left."""
    before, residual = p.book[:, 1], p.book[:, 2]
    for row in rows_of((p.standing == RUNS) & (before > p.left) & (p.ran_s > 0)):
        here = seats.where(row)
        others = {int(r) for r in seats.holder[np.isin(p.lane_device, here)]} - {row, -1}
        kept = [p.beside[p.kernel[row], p.kernel[other], p.kind[here[0]]] for other in others] if len(p.beside) else []
        believed = p.rate[row, p.kind[here[0]]] * float(np.prod(kept)) * p.ran_s[row]
        if believed > 0:
            off = float(np.clip(np.log((before[row] - p.left[row]) / believed), -1, 1))
            residual[row] += RESIDUAL_DECAY * (off - residual[row])
    before[:] = p.left
    return residual


def _tiers(order: np.ndarray, priority: np.ndarray, overdue: np.ndarray) -> list[np.ndarray]:
    """Rows in this order, in groups of which the first has whatever it wants."""
    rank = 2 * priority[order] + overdue[order]
    return [order[rank == r] for r in sorted(set(rank.tolist()), reverse=True)]
