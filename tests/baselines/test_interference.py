"""Least interference first, and load balancing, in situations made by hand."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import Array

from symphony.baselines import LeastInterference, LoadBalancing
from symphony.baselines import interference as rule
from symphony.problem.speeds import BeliefArrays, SpeedArrays
from symphony.scheduling.policy import PLACE, WAIT, Observation, place
from tests.baselines.test_packing import bags, server
from tests.scheduling.by_hand import Books, decision

interference = jax.jit(rule.interference)  # as a whole: every operation by itself would be a program


def test_interference_is_demand_times_load_over_the_rows() -> None:
    """Of ten cores 2, of memory 4: beside 0.5 of the cores and 0.2 of the memory on one machine, 0.6 on the other."""
    books = Books(bags((1, 2, 4, 1.0)), server(10, 10, count=2))
    seen = books.observe([0.5, 0.2, 0.0, 0.6], policy=LeastInterference())
    assert interference(seen, 0)[:2].tolist() == pytest.approx([0.2 * 0.5 + 0.4 * 0.2, 0.4 * 0.6])
    assert decision(LeastInterference(), seen) == (PLACE, 0, 0)
    assert decision(LeastInterference(), books.observe([0.0, 0.9], policy=LeastInterference())) == (PLACE, 0, 1)


def test_tenants_count_as_far_as_counters_tell() -> None:
    books = Books(bags((1, 2, 4, 1.0)), server(10, 10, count=2))
    books.window([0.0, 0.9], [0.0, 0.0])
    assert decision(LeastInterference(), books.observe(policy=LeastInterference()))[2] == 1
    assert decision(LoadBalancing(), books.observe())[2] == 1


def test_least_interference_waits_for_a_free_slot() -> None:
    books = Books(bags((40, 0.1, 0.1, 1.0)), server(10, 10))
    for gang in range(16):
        assert books.decide(place(gang, 0))
        books.start(gang)
    assert decision(LeastInterference(), books.observe(policy=LeastInterference()))[0] == WAIT
    assert decision(LoadBalancing(), books.observe()) == (PLACE, 16, 0)  # it queues


def test_load_balancing_counts_slots_queues_and_rows() -> None:
    books = Books(bags((4, 1, 1, 1.0)), server(10, 10, count=2))
    assert decision(LoadBalancing(), books.observe())[2] == 0
    assert books.decide(place(0, 0))
    assert decision(LoadBalancing(), books.observe())[2] == 1  # one of sixteen slots
    assert decision(LoadBalancing(), books.observe([0.1, 0.1, 0.2, 0.1]))[2] == 0  # 0.1 + 1/16 against 0.2


def test_what_is_told_of_neighbours_counts_both_ways_and_who_must_not_share_never_does() -> None:
    """Two machines, a job on each: one keeps 0.5 beside the newcomer, which keeps 0.8; the other pair keeps 0.9."""
    kept = jnp.ones((3, 3, 1)).at[2, 0].set(0.8).at[0, 2].set(0.5).at[2, 1].set(0.9).at[1, 2].set(0.9)
    books = Books(bags(*[(1, 0.0, 0.0, 1.0)] * 3), server(10, 10, count=2))
    for gang in (0, 1):
        assert books.decide(place(gang, gang))
        books.start(gang)
    seen = books.observe(policy=LeastInterference())
    kernels, kinds = seen.workload.time_fixed.shape
    nothing = jnp.zeros((kernels, kinds, 2))

    def told(kept: Array) -> Observation:
        every = jnp.ones((kernels, kernels, kinds)).at[:3, :3, :1].set(kept)
        return replace(seen, believed=BeliefArrays(SpeedArrays(nothing, every, jnp.zeros(())), nothing, 0 * every))

    assert interference(told(kept), jnp.asarray(2))[:2].tolist() == pytest.approx([1 + 0.25, 2 / 9], rel=1e-4)
    assert decision(LeastInterference(), told(kept)) == (PLACE, 2, 1)
    assert decision(LeastInterference(), told(kept.at[2, 1].set(0.0))) == (PLACE, 2, 0)
