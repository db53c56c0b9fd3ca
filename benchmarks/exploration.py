"""Three strategies of exploration, to compare with the shipped one (`symphony/training_jobs/exploration.py`).

A strategy moves a job to another GPU, occupied or not, to learn its speed there. `optimistic` goes where the plan would
be worth more if the speed were `kappa` deviations above what is believed; `disagreement` where the deviation is
largest; `random` anywhere. Limits of all: at most `share` of the placed jobs move, and the plan's value, with the moved
jobs `kappa` deviations slower than believed, stays at least 1 - `epsilon` of what it was.

Importing this module registers them.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from symphony.training_jobs.exploration import EXPLORERS, Exploration
from symphony.training_jobs.partial_plan import PartialPlan
from symphony.training_jobs.round_planning import PlanInputs

JOBS_EXAMINED_PER_ROUND = 24


def move_some(plan: PartialPlan, options: Exploration, seed: int, *, strategy: str) -> list[int]:
    """Move a few jobs that run on one GPU each; returns their rows."""
    rng = np.random.default_rng(seed)
    rows = [row for row, devices in plan.at.items() if len(devices) == 1]
    allowed = int(options.share * len(plan.at))
    moved: list[int] = []
    least = (1 - options.epsilon) * float(plan.value.sum())
    spent = 0.0  # what the moves so far may lose
    for row in rng.permutation(rows)[:JOBS_EXAMINED_PER_ROUND] if rows else ():
        if len(moved) >= allowed:
            break
        (here,) = plan.remove(int(row))
        slack = float(plan.value.sum()) - spent - least
        device, lost = _target(plan, int(row), here, options, strategy, rng, slack)
        plan.put(int(row), (device,))
        if device != here:
            moved.append(int(row))
            spent += lost
    return moved


def _target(
    plan: PartialPlan, row: int, here: int, options: Exploration, strategy: str, rng: np.random.Generator, slack: float
) -> tuple[int, float]:
    """The device for a row that has been removed, and the value at risk there; `here` and 0 if it should not move."""
    believed, hoped, feared = (with_one_more(plan, row, kappa=k) for k in (0.0, options.kappa, -options.kappa))
    gain = {name: worth - plan.value for name, worth in zip("bhf", (believed, hoped, feared), strict=True)}
    able = np.isfinite(believed) & (gain["f"] + slack >= 0) & (hoped > believed)
    able[here] = False
    if not able.any():
        return here, 0.0
    if strategy == "optimistic":
        score = np.where(able, gain["h"], -np.inf)
        best = int(np.argmax(score))
        chosen = best if score[best] > gain["b"][here] else here
    elif strategy == "disagreement":
        chosen = int(np.argmax(np.where(able, hoped - feared, -np.inf)))
    else:
        chosen = int(rng.choice(np.flatnonzero(able)))
    return chosen, float(gain["b"][chosen] - gain["f"][chosen]) if chosen != here else 0.0


def with_one_more(plan: PartialPlan, row: int, *, kappa: float = 0.0) -> np.ndarray:
    """Value of every device with one more row, at speeds `kappa` deviations above belief; -inf without room."""
    free = plan.on < 0
    rows = plan.on.copy()
    rows[np.arange(len(rows)), np.argmax(free, axis=1)] = row
    believed = plan.p
    plan.p = _shifted(believed, kappa) if kappa else believed
    worth = plan.worth(rows, np.arange(len(rows)))
    plan.p = believed
    able = (plan.room > 0) & free.any(axis=1) & (believed.rate[row, plan.kind] > 0)
    return np.where(able, worth, -np.inf)


def _shifted(p: PlanInputs, kappa: float) -> PlanInputs:
    """The same, with all speeds `kappa` deviations above what is believed."""
    beside = np.where(p.beside > 0, np.clip(p.beside * np.exp(kappa * p.beside_std), 1e-3, 1.0), 0.0)
    return p._replace(beside=beside, rate=p.rate * np.exp(kappa * p.unit_std[p.kernel, :, 0]))


EXPLORERS.update({name: partial(move_some, strategy=name) for name in ("optimistic", "disagreement", "random")})
EXPLORATION_METHODS = ("none", *EXPLORERS)
