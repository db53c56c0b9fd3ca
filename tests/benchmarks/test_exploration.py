"""Strategies of exploration, the compared ones too: limits on what they may move and lose."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.exploration import EXPLORATION_METHODS
from symphony.training_jobs.exploration import Exploration
from symphony.training_jobs.planner import Planner
from symphony.training_jobs.round_planning import PlanInputs
from tests.policies.pictures import picture

JOBS = 12


def cluster(std: np.ndarray | float, kept: float = 0.55) -> PlanInputs:
    """A dozen jobs, each on a fast GPU of its own, and none that is free: exploring is sharing."""
    beside = np.full((JOBS, JOBS, 1), kept)
    p = picture([100.0] * JOBS, [[1.0]] * JOBS, [0] * JOBS, slots=2, beside=beside)
    return p._replace(beside_std=np.broadcast_to(std, beside.shape), unit_std=np.zeros((JOBS, 1, 2)))


def moved(p: PlanInputs, how: str, **options: float) -> int:
    """Jobs that share, each of which has been moved to another."""
    p = p._replace(memo=np.zeros(1), book=np.zeros((JOBS, 1)))
    plan = Planner(exploration=Exploration(how, **options)).plan(p)
    rows = plan.lanes[plan.lanes >= 0]
    used = p.lane_device[plan.lanes >= 0]
    assert len(rows) == len(set(rows)) == JOBS
    assert plan.memo[0] == JOBS - len(set(used))
    return JOBS - len(set(used))


@pytest.mark.parametrize("how", EXPLORATION_METHODS)
def test_nothing_is_explored_where_nothing_is_doubted(how: str) -> None:
    assert moved(cluster(std=0.0), how, epsilon=1.0) == 0


@pytest.mark.parametrize("how", EXPLORATION_METHODS[1:])
def test_at_most_a_share_of_the_jobs_explores(how: str) -> None:
    assert moved(cluster(std=0.5, kept=0.9), how, epsilon=1.0, kappa=2.0) <= JOBS // 10


def test_optimism_shares_where_it_may_pay_and_not_where_it_cannot() -> None:
    """Two on a fast GPU keep 1.5 as is believed, less than one there and one on a slow one: 1.6. They may keep 2."""
    p = picture([100.0] * JOBS, [[1.0, 0.6]] * JOBS, [0] * 6 + [1] * 6, slots=2, beside=np.full((JOBS, JOBS, 2), 0.75))
    hopeful = p._replace(beside_std=np.full((JOBS, JOBS, 2), 0.3))
    certain = p._replace(beside_std=np.full((JOBS, JOBS, 2), 0.01))
    assert moved(hopeful, "optimistic", epsilon=0.5, kappa=1.0) == 1
    assert moved(certain, "optimistic", epsilon=0.5, kappa=1.0) == 0


def test_what_may_be_lost_is_bounded() -> None:
    assert moved(cluster(std=0.5, kept=0.9), "random", epsilon=0.0, kappa=2.0) == 0
