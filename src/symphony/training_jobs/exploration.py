"""Exploration: a few jobs go where they may be faster than is believed, so that it becomes known.

What is explored is a *signature*: a job on a kind of GPU beside another job.

`value` weighs what a trial is worth. A job that runs alone may try GPUs of another kind that nobody has been given, for
two rounds (the first is lost to moving, the second is reported). If its speed there is off from what is believed by a
deviation z, it gains so much for all that it has left to do, or comes back:

    gain = left · E[max(0, δ + σ z)]        δ, σ: mean and deviation of the logarithm of the speed there over that here
    cost = two rounds · (1 − exp δ) + moving there and back

So long jobs try, and short ones do not. Capped: at most `share` of the jobs in play (one, if they are few), and only
where a trial, `kappa` deviations slower than is believed, costs no more than `epsilon` of what the job has left.

`optimistic` values a signature as if it were `kappa` deviations faster than is believed, and goes there if the plan
would then be worth more, whether anybody has been given those GPUs or not. `disagreement` goes where the doubt is
largest, `random` anywhere; they are for comparison. These are capped alike: at most `share` of the jobs in play, and
only while the plan, with what is explored `kappa` deviations slower than is believed, is worth at least 1 - `epsilon`
of what it was.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from symphony.problem.errors import InputError
from symphony.problem.speeds import PACKED, SPREAD
from symphony.training_jobs.partial_plan import PartialPlan

EXPLORATION_METHODS = ("none", "value", "optimistic", "disagreement", "random")
JOBS_EXAMINED_PER_ROUND = 24  # jobs a round, drawn
TRIAL_ROUNDS = 2  # rounds


class Exploration(NamedTuple):
    """How to explore."""

    how: str = "none"
    kappa: float = 1.0
    epsilon: float = 0.03
    share: float = 0.1  # of the jobs in play

    def check(self) -> None:
        """Refuse words and numbers that mean nothing."""
        if self.how not in EXPLORATION_METHODS:
            raise InputError(f"exploration is {self.how!r}", hint=f"write one of {', '.join(EXPLORATION_METHODS)}")
        if not (self.kappa >= 0 and 0 <= self.epsilon <= 1 and 0 <= self.share <= 1):
            raise InputError(f"it says {self}", where="exploration", hint="kappa 0 or more, the others from 0 to 1")


def explore(board: PartialPlan, by: Exploration, seed: int) -> list[int]:
    """Move a few jobs on a finished plan; the rows that were moved."""
    if by.how == "none" or not board.shares:
        return []
    if by.how == "value":
        return _try(board, by)
    rng = np.random.default_rng(seed)
    rows = [row for row, devices in board.at.items() if len(devices) == 1]
    allowed = int(by.share * len(board.at))
    moved: list[int] = []
    least = (1 - by.epsilon) * float(board.value.sum())
    spent = 0.0  # what may be lost by those who have been moved
    for row in rng.permutation(rows)[:JOBS_EXAMINED_PER_ROUND] if rows else ():
        if len(moved) >= allowed:
            break
        (here,) = board.remove(int(row))
        device, lost = _target(board, int(row), here, by, rng, float(board.value.sum()) - spent - least)
        board.put(int(row), (device,))
        if device != here:
            moved.append(int(row))
            spent += lost
    return moved


def _target(
    board: PartialPlan, row: int, here: int, by: Exploration, rng: np.random.Generator, slack: float
) -> tuple[int, float]:
    """Where a row that has been taken off goes: `here` again, or where something may be learned; and what that risks.

    `slack`: what the plan without the row is worth beyond the least that it must be.
    """
    believed, hoped, feared = (board.with_one_more(row, kappa=k) for k in (0.0, by.kappa, -by.kappa))
    gain = {name: worth - board.value for name, worth in zip("bhf", (believed, hoped, feared), strict=True)}
    able = np.isfinite(believed) & (gain["f"] + slack >= 0) & (hoped > believed)
    able[here] = False
    if not able.any():
        return here, 0.0
    if by.how == "optimistic":
        score = np.where(able, gain["h"], -np.inf)
        best = int(np.argmax(score))
        chosen = best if score[best] > gain["b"][here] else here
    elif by.how == "disagreement":
        chosen = int(np.argmax(np.where(able, hoped - feared, -np.inf)))
    else:
        chosen = int(rng.choice(np.flatnonzero(able)))
    return chosen, float(gain["b"][chosen] - gain["f"][chosen]) if chosen != here else 0.0


def _try(board: PartialPlan, by: Exploration) -> list[int]:
    """Put those who would learn most by it on GPUs of another kind that are empty; their rows."""
    trials = [trial for row in board.at for trial in _trials(board, row, by)]
    moved: list[int] = []
    for _, row, kind in sorted(trials, reverse=True):
        devices = _empty(board, row, kind)
        if devices and row not in moved and len(moved) < max(1, int(by.share * len(board.at))):
            board.remove(row)
            board.put(row, devices)
            moved.append(row)
    return moved


def _trials(board: PartialPlan, row: int, by: Exploration) -> list[tuple[float, int, int]]:
    """What a row may try: seconds that it wins by it, the row, the kind of GPU."""
    p, devices = board.p, board.at[row]
    here, kernel = int(board.kind[devices[0]]), int(p.kernel[row])
    if (board.on[list(devices)] >= 0).sum() > len(devices):
        return []  # it shares
    place = np.where(p.workers[row] > board.widest, SPREAD, PACKED)
    doubt = p.unit_std[kernel, np.arange(len(place)), place]
    left_s = float(p.left[row] / p.rate[row, here])
    stay_s = TRIAL_ROUNDS * float(p.now_s) / max(1, int(p.windows))
    at_home = int(board.kind[board.home[row]]) if board.home[row] >= 0 else -1
    found = []
    # What is doubted of both alike would be no news. Doubt here is small once the job has run here.
    for kind in (int(k) for k in np.flatnonzero((p.rate[row] > 0) & (doubt > doubt[here]))):
        std = math.sqrt(float(doubt[kind] ** 2 - doubt[here] ** 2))
        faster = math.log(p.rate[row, kind] / p.rate[row, here])
        moving_s = float(p.moving_s[row]) * (1 if at_home == kind else 2)
        gain = left_s * expected_excess(faster, std)
        cost, feared = (stay_s * (1 - math.exp(x)) + moving_s for x in (min(faster, 0.0), faster - by.kappa * std))
        if gain > cost and feared <= by.epsilon * left_s:
            found.append((gain - cost, row, kind))
    return found


def expected_excess(mean: float, std: float) -> float:
    """What a normal variable is above 0 in the mean, counting 0 where it is below."""
    z = mean / std
    return std * math.exp(-z * z / 2) / math.sqrt(2 * math.pi) + mean * 0.5 * math.erfc(-z / math.sqrt(2))


def _empty(board: PartialPlan, row: int, kind: int) -> tuple[int, ...]:
    """GPUs of a kind for a row that nobody has been given: where it runs, if it does, else near one another."""
    home, count = board.seats.where(row), int(board.p.workers[row])
    empty = board.empty()
    if len(home) == count and set(home) <= set(empty.tolist()) and board.kind[home[0]] == kind:
        return home
    able = empty[board.kind[empty] == kind]
    together = np.bincount(board.p.machine[able])[board.p.machine[able]] if len(able) else able
    able = able[np.lexsort((able, board.p.machine[able], -together))]
    return tuple(int(device) for device in able[:count]) if len(able) >= count else ()
