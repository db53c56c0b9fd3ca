"""What decisions are worth, worked by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from symphony.learning.returns import COST_SCALE, CRITIC, GROUP, advantages
from symphony.learning.rollouts import Decisions
from symphony.problem.errors import InputError


class Made:
    """The part of a decision that matters here."""

    def __init__(self, value: jnp.ndarray) -> None:
        self.value = value


def runs(time, cost, end, total, value=None, stay_s=1.0) -> Decisions:
    """Runs of which every place holds a decision."""
    time, cost = jnp.asarray(time, float), jnp.asarray(cost, float)
    many = time.shape[0]
    value = jnp.zeros_like(time) if value is None else jnp.asarray(value, float)
    count = jnp.full(many, time.shape[1])
    stays = jnp.full(many, stay_s)
    return Decisions(Made(value), time, cost, count, jnp.asarray(end, float), jnp.asarray(total, float), stays)


UNITS = jnp.full(2, 1 / COST_SCALE)  # so that costs are told in seconds


def test_a_run_that_costs_less_than_the_others_was_decided_well() -> None:
    """Both decide at 0 and at 4. One costs 1 a second for 10 s, the other 2 a second from 4 s on."""
    d = runs([[0, 4], [0, 4]], [[0, 4], [0, 4]], [10, 10], [10, 16])
    judged = advantages(d, UNITS, group=2, baseline=GROUP)
    # Until 4 they are alike; after it, 6 and 12 where 9 is the mean.
    np.testing.assert_allclose(judged.target, [[3, 3], [-3, -3]], atol=1e-5)
    np.testing.assert_allclose(judged.advantage, [[1, 1], [-1, -1]], atol=1e-5)


def test_the_mean_is_that_of_the_same_time_not_of_the_same_decision() -> None:
    """The second run decides at 5; the first has then cost 5 of its 10."""
    d = runs([[0.0], [5.0]], [[0.0], [10.0]], [10, 10], [10, 20])
    judged = advantages(d, UNITS, group=2, baseline=GROUP)
    np.testing.assert_allclose(judged.target[:, 0], [5.0, -2.5], atol=1e-5)


def test_groups_do_not_mix() -> None:
    d = runs([[0.0]] * 4, [[0.0]] * 4, [10] * 4, [10, 12, 100, 120])
    judged = advantages(d, jnp.full(4, 1 / COST_SCALE), group=2, baseline=GROUP)
    np.testing.assert_allclose(judged.target[:, 0], [1, -1, 10, -10], atol=1e-4)
    np.testing.assert_allclose(judged.advantage[:, 0], [1, -1, 1, -1], atol=1e-5)  # each scenario counts alike


def test_a_critic_that_knows_who_is_behind_takes_the_blame_off_later_decisions() -> None:
    """At 4 it is plain that the second run will cost 6 more: its decision at 4 is as good as the other's."""
    d = runs([[0, 4], [0, 4]], [[0, 4], [0, 4]], [10, 10], [10, 16], value=[[0, 3], [0, -3]])
    judged = advantages(d, UNITS, group=2)
    surprises = np.asarray(judged.target - d.made.value)
    np.testing.assert_allclose(surprises, [[3, 0], [-3, 0]], atol=1e-5)


def test_a_critic_alone_is_all_that_is_expected() -> None:
    """It said −10 and −16 for what was to come at first, and that came; at 4 it hoped for 2 less than came."""
    d = runs([[0, 4], [0, 4]], [[0, 4], [0, 4]], [10, 10], [10, 16], value=[[-10, -4], [-16, -10]])
    judged = advantages(d, UNITS, group=2, memory=1.0, baseline=CRITIC)
    surprises = np.asarray(judged.target - d.made.value)
    np.testing.assert_allclose(surprises, [[0, -2], [0, -2]], atol=1e-5)


def test_what_is_expected_is_named() -> None:
    with pytest.raises(InputError, match="'mean'"):
        advantages(runs([[0.0]], [[0.0]], [1], [1]), UNITS[:1], group=1, baseline="mean")


def test_with_a_short_memory_a_surprise_counts_less_for_what_was_decided_long_before() -> None:
    """The surprise comes after 4 s, at half for each second."""
    d = runs([[0, 4], [0, 4]], [[0, 4], [0, 4]], [10, 10], [10, 16])
    judged = advantages(d, UNITS, group=2, memory=0.5, baseline=GROUP)
    np.testing.assert_allclose(judged.target, [[3 / 16, 3], [-3 / 16, -3]], atol=1e-5)


def test_places_without_a_decision_are_worth_nothing() -> None:
    d = runs([[0, 4], [0, 0]], [[0, 4], [0, 0]], [10, 10], [10, 16])
    d = Decisions(d.made, d.time, d.cost, jnp.asarray([2, 1]), d.end, d.total, d.stay_s)
    judged = advantages(d, UNITS, group=2, baseline=GROUP)
    assert float(judged.advantage[1, 1]) == 0.0
    np.testing.assert_allclose(judged.target[:, 0], [3, -3], atol=1e-5)
