"""Exploration: where it goes, and what it may cost."""

from __future__ import annotations

import numpy as np
import pytest

from symphony.problem.errors import InputError
from symphony.training_jobs.exploration import EXPLORATION_METHODS, Exploration, expected_excess
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


@pytest.mark.parametrize("wrong", [{"how": "boldly"}, {"kappa": -1.0}, {"epsilon": 2.0}, {"share": -0.1}])
def test_settings_that_mean_nothing_are_refused(wrong: dict) -> None:
    with pytest.raises(InputError):
        Planner(exploration=Exploration(**wrong))


# ------------------------------------------------------------------------------------------------------ by value


def lonely(left_s: float, *, slow: float = 0.8, doubt: float = 0.4, on: int = 0, workers: int = 1) -> list[int]:
    """Where one job goes that knows how fast it is on the first kind, and doubts how fast on the second."""
    p = picture(
        [left_s], [[1.0, slow]], [0, 0, 1, 1], slots=2, beside=np.ones((1, 1, 2)), on={0: on} if workers == 1 else None,
        moving_s=60.0, workers=[workers],
    )  # fmt: skip
    p = p._replace(unit_std=np.broadcast_to(np.asarray([0.05, doubt])[:, None], (1, 2, 2)))
    plan = Planner(exploration=Exploration("value")).plan(p)
    return p.lane_device[plan.lanes >= 0].tolist()


def test_long_jobs_try_another_kind_and_short_ones_do_not() -> None:
    assert lonely(50_000.0) == [2] and lonely(5_000.0) == [0]


def test_a_trial_goes_on_where_it_began_until_it_is_known() -> None:
    assert lonely(50_000.0, on=3) == [3]
    assert lonely(50_000.0, on=3, doubt=0.06) == [0]


def test_nobody_tries_what_cannot_be_faster_or_costs_too_much() -> None:
    assert lonely(50_000.0, slow=0.1) == [0]
    assert lonely(12_000.0, doubt=1.0) == [0]  # 2 rounds at 30% of the speed, and moving, are 5% of what it has left


def test_a_gang_tries_with_all_its_workers() -> None:
    assert lonely(50_000.0, workers=2) == [2, 3]


@pytest.mark.parametrize(("mean", "std"), [(-0.3, 0.35), (0.2, 0.1), (-2.0, 0.1)])
def test_the_expected_excess_is_that_of_draws(mean: float, std: float) -> None:
    drawn = np.maximum(np.random.default_rng(0).normal(mean, std, 400_000), 0).mean()
    assert expected_excess(mean, std) == pytest.approx(drawn, abs=1e-3)
