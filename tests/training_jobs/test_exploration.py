"""Exploration: where it goes, and what it may cost."""

from __future__ import annotations

import numpy as np
import pytest

from symphony.problem.errors import InputError
from symphony.training_jobs.exploration import Exploration, expected_excess
from symphony.training_jobs.planner import Planner
from tests.policies.pictures import picture


@pytest.mark.parametrize("wrong", [{"how": "boldly"}, {"kappa": -1.0}, {"epsilon": 2.0}, {"share": -0.1}])
def test_settings_that_mean_nothing_are_refused(wrong: dict) -> None:
    with pytest.raises(InputError):
        Planner(exploration=Exploration(**wrong))


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
