"""Drawn schedules: what a run did is what its plan says; and what a number of samples is worth."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from symphony.oracle.instance import instance
from symphony.oracle.schedule_samples import Sampler, expected_best
from tests.baselines.cheap import cheap_scenario
from tests.policies.small_networks import small_policy

TINY = {"gangs": 4, "devices": 3, "preempts": 1, "configures": 1}


def test_the_best_of_some_values_is_the_mean_over_all_ways_to_draw_them() -> None:
    values = np.asarray([5.0, 1.0, 4.0, 2.5, 2.5])
    for count in range(1, 6):
        ways = [min(some) for some in itertools.combinations(values, count)]
        assert expected_best(values, count) == pytest.approx(np.mean(ways))


def test_drawn_runs_become_plans_that_can_be_followed_though_slots_are_used_twice() -> None:
    """Eight jobs in four slots, gangs of two, preemption and failures: of several stays the last counts."""
    i = instance(cheap_scenario())
    samples = Sampler(i, small_policy(**TINY), "mean_completion", batch=4)(jax.random.key(1))
    assert len({sample.value_s for sample in samples}) > 1  # each has a luck of its own
    for sample in samples:
        assert 0 < sample.value_s < np.inf
        assert sorted(sample.plan.rank) == list(range(len(i)))
        for gang in range(len(i)):
            mine = sample.plan.devices[gang][sample.plan.devices[gang] >= 0]
            assert len(set(mine)) == i.workers[gang] and np.isfinite(i.seconds[gang, mine]).all()
            assert all(sample.plan.rank[parent] < sample.plan.rank[gang] for parent in i.parents[gang])
