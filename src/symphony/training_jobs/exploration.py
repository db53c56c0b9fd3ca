"""Exploration: a few jobs try another kind of GPU, where they may be faster than believed.

A job that runs alone may try empty GPUs of another kind for two rounds: the first is lost to moving, the second is
reported. If the trial shows a higher speed, the job gains for all the work it has left; otherwise it moves back:

    gain = left · E[max(0, δ + σ z)]        δ, σ: mean and deviation of log(speed there / speed here)
    cost = two rounds · (1 − exp δ) + moving there and back

So long jobs try, and short ones do not. Limits: at most `share` of the jobs that are placed (at least one), and only
if a trial that is `kappa` deviations slower than believed costs at most `epsilon` of the time that the job has left.

`EXPLORERS` are the strategies by name; `benchmarks/exploration.py` adds three for comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from symphony.problem.errors import InputError
from symphony.problem.speeds import PACKED, SPREAD
from symphony.training_jobs.partial_plan import PartialPlan

TRIAL_ROUNDS = 2


class Exploration(NamedTuple):
    """A strategy and its limits."""

    how: str = "none"  # or "value"
    kappa: float = 1.0
    epsilon: float = 0.03
    share: float = 0.1  # of the jobs that are placed

    def check(self) -> None:
        """Raise InputError for an unknown strategy or a number out of range."""
        if self.how not in ("none", *EXPLORERS):
            raise InputError(f"exploration is {self.how!r}", hint=f"write one of none, {', '.join(EXPLORERS)}")
        if not (self.kappa >= 0 and 0 <= self.epsilon <= 1 and 0 <= self.share <= 1):
            hint = "kappa must be 0 or more, epsilon and share between 0 and 1"
            raise InputError(f"the limits are {self}", where="exploration", hint=hint)


def explore(plan: PartialPlan, options: Exploration, seed: int) -> list[int]:
    """Move a few jobs of a finished plan; returns their rows."""
    if options.how == "none" or not plan.shares:
        return []
    return EXPLORERS[options.how](plan, options, seed)


def try_other_kinds(plan: PartialPlan, options: Exploration, seed: int) -> list[int]:
    """Move the jobs with the largest net gain to empty GPUs of another kind; returns their rows."""
    trials = [trial for row in plan.at for trial in _trials(plan, row, options)]
    moved: list[int] = []
    for _, row, kind in sorted(trials, reverse=True):
        devices = _empty(plan, row, kind)
        if devices and row not in moved and len(moved) < max(1, int(options.share * len(plan.at))):
            plan.remove(row)
            plan.put(row, devices)
            moved.append(row)
    return moved


EXPLORERS: dict[str, Callable[[PartialPlan, Exploration, int], list[int]]] = {"value": try_other_kinds}


def _trials(plan: PartialPlan, row: int, options: Exploration) -> list[tuple[float, int, int]]:
    """Trials of a row that pay: net gain in seconds, row, kind of GPU."""
    p, devices = plan.p, plan.at[row]
    here, kernel = int(plan.kind[devices[0]]), int(p.kernel[row])
    if (plan.on[list(devices)] >= 0).sum() > len(devices):
        return []  # it shares
    place = np.where(p.workers[row] > plan.widest, SPREAD, PACKED)
    doubt = p.unit_std[kernel, np.arange(len(place)), place]
    left_s = float(p.left[row] / p.rate[row, here])
    stay_s = TRIAL_ROUNDS * float(p.now_s) / max(1, int(p.windows))
    home_kind = int(plan.kind[plan.home[row]]) if plan.home[row] >= 0 else -1
    trials = []
    # The error that both kinds share cancels in the ratio. Once the job has run here, its deviation here is small.
    for kind in (int(k) for k in np.flatnonzero((p.rate[row] > 0) & (doubt > doubt[here]))):
        std = math.sqrt(float(doubt[kind] ** 2 - doubt[here] ** 2))
        faster = math.log(p.rate[row, kind] / p.rate[row, here])
        moving_s = float(p.moving_s[row]) * (1 if home_kind == kind else 2)
        gain = left_s * expected_excess(faster, std)
        cost, worst = (stay_s * (1 - math.exp(x)) + moving_s for x in (min(faster, 0.0), faster - options.kappa * std))
        if gain > cost and worst <= options.epsilon * left_s:
            trials.append((gain - cost, row, kind))
    return trials


def expected_excess(mean: float, std: float) -> float:
    """E[max(0, X)] of a normal variable X."""
    z = mean / std
    return std * math.exp(-z * z / 2) / math.sqrt(2 * math.pi) + mean * 0.5 * math.erfc(-z / math.sqrt(2))


def _empty(plan: PartialPlan, row: int, kind: int) -> tuple[int, ...]:
    """Empty GPUs of a kind for a row: those where it runs if possible, else on few machines; () if too few."""
    home, count = plan.seats.where(row), int(plan.p.workers[row])
    empty = plan.empty()
    if len(home) == count and set(home) <= set(empty.tolist()) and plan.kind[home[0]] == kind:
        return home
    able = empty[plan.kind[empty] == kind]
    together = np.bincount(plan.p.machine[able])[plan.p.machine[able]] if len(able) else able
    able = able[np.lexsort((able, plan.p.machine[able], -together))]
    return tuple(int(device) for device in able[:count]) if len(able) >= count else ()
