"""The search: valid neighbours, a path that matters, and never worse than where it began."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from symphony.oracle.instance import instance
from symphony.oracle.replay import linear_order, shared_plan
from symphony.oracle.search import PlanOutcome, PlanSimulator, critical, improve, neighbour
from tests.baselines.cheap import cheap_scenario
from tests.oracle.small import by_trying_everything, replayed, scenario

BATCH = 8


def test_it_finds_the_optimum_of_a_small_graph_and_the_simulator_agrees() -> None:
    i = instance(scenario(0))
    everything_on_one = shared_plan(np.zeros((6, 1), int), linear_order(i, np.arange(6.0)))
    with jax.enable_x64(True):
        run = PlanSimulator(i, "makespan", horizon_s=60.0, batch=BATCH)
        plan, outcome, tried = improve(run, [everything_on_one], time_s=600.0, rounds=60)
        again, other, _ = improve(run, [everything_on_one], time_s=600.0, rounds=60)
        before = run([everything_on_one])[0]
    assert tried == 60 * BATCH
    assert outcome.value_s < before.value_s
    assert outcome.value_s == pytest.approx(by_trying_everything(i)[0], rel=1e-9)
    assert outcome.value_s == other.value_s and (plan.devices == again.devices).all()  # equal seeds, equal answers
    record = replayed(i, plan)
    assert record.makespan_s == pytest.approx(outcome.value_s, rel=1e-12)
    finish = {stay.gang: stay.finish_s for stay in record.gangs}
    assert outcome.finish_s == pytest.approx([finish[g] for g in range(6)], rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_neighbours_are_plans_that_can_be_followed(seed: int) -> None:
    i = instance(cheap_scenario())
    rng = np.random.default_rng(seed)
    devices = np.full((len(i), 2), -1)
    for g in range(len(i)):
        able = np.flatnonzero(np.isfinite(i.seconds[g]))
        devices[g, : i.workers[g]] = rng.permutation(able)[: i.workers[g]]
    plan = shared_plan(devices, linear_order(i, rng.random(len(i))))
    start = rng.random(len(i)) * 10
    changed = 0
    for _ in range(100):
        other = neighbour(i, plan, PlanOutcome(20.0, start, start + 1), rng)
        assert sorted(other.rank) == list(range(len(i)))
        for g in range(len(i)):
            mine = other.devices[g][other.devices[g] >= 0]
            assert len(set(mine)) == i.workers[g] and np.isfinite(i.seconds[g, mine]).all()
            assert all(other.rank[parent] < other.rank[g] for parent in i.parents[g])
        changed += bool((other.devices != plan.devices).any() or (other.rank != plan.rank).any())
    assert changed > 60


def test_the_path_leads_from_the_last_gang_back_to_the_first() -> None:
    """0 → 2 → 4 → 5, where 2 had to wait for 1 on its device: 1 is what held everything up."""
    i = instance(scenario(0))
    devices = np.asarray([0, 1, 1, 2, 0, 0])[:, None]
    start, finish = np.asarray([0, 1, 3, 1, 7, 9.0]), np.asarray([1, 3, 7, 2, 9, 10.0])
    path = critical(i, shared_plan(devices, np.arange(6)), PlanOutcome(10.0, start, finish))
    assert path.tolist() == [5, 4, 2, 1, 0]
