"""Rebuilding: plans that can be followed, the optimum of small graphs, and shares that the area bound would have."""

from __future__ import annotations

import numpy as np
import pytest

from symphony.oracle.bounds import spread
from symphony.oracle.instance import Instance, instance
from symphony.oracle.rebuild import MAX_RETURNED_PLANS, Rebuilder, rebuild
from symphony.oracle.replay import Plan, linear_order, shared_plan
from symphony.problem.workload import Edge
from tests.oracle.small import by_trying_everything, replayed, scenario, small_instance
from tests.oracle.test_bounds import made


def everything_on_one(i: Instance) -> Plan:
    return shared_plan(np.zeros((len(i), 1), int), linear_order(i, np.arange(float(len(i)))))


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_optimum_of_a_small_graph(seed: int) -> None:
    i = instance(scenario(seed))
    plans, candidates, _ = rebuild(i, "makespan", [everything_on_one(i)], time_s=600.0, rounds=30)
    assert replayed(i, plans[0]).makespan_s == pytest.approx(by_trying_everything(i)[0], rel=1e-5)
    assert candidates > 0 and 1 <= len(plans) <= MAX_RETURNED_PLANS


def test_mean_completion_of_several_jobs() -> None:
    i = small_instance(1, tasks=2, devices=2, bus=False, arrivals=(0.0, 1.0))
    plans, _, _ = rebuild(i, "mean_completion", [everything_on_one(i)], time_s=600.0, rounds=30)
    run = replayed(i, plans[0])
    assert np.mean([job.completion_s for job in run.jobs]) == pytest.approx(by_trying_everything(i)[1], rel=1e-5)


def test_equal_seeds_give_equal_plans_in_which_nobody_comes_before_those_it_waits_for() -> None:
    i = instance(scenario(2, bus=True))
    plans, _, _ = rebuild(i, "makespan", [everything_on_one(i)], time_s=600.0, rounds=5, seed=3)
    again, _, _ = rebuild(i, "makespan", [everything_on_one(i)], time_s=600.0, rounds=5, seed=3)
    assert [plan.devices.tolist() for plan in plans] == [plan.devices.tolist() for plan in again]
    for plan in plans:
        assert sorted(plan.rank) == list(range(6))
        assert all(plan.rank[parent] < plan.rank[g] for g in range(6) for parent in i.parents[g])


def test_gangs_only_go_where_they_can_run() -> None:
    i = made([(1.0, 0.0), (0.0, 1.0), (2.0, 3.0)], (Edge("t0", "t1"),))
    start = shared_plan(np.asarray([[0], [1], [0]]), np.arange(3))
    plans, _, _ = rebuild(i, "makespan", [start], time_s=600.0, rounds=5)
    assert all(plan.devices[0] == 0 and plan.devices[1] == 1 for plan in plans)


def test_classes_are_drawn_as_often_as_the_area_bound_uses_them() -> None:
    """The first two kinds are one class. Of nine gangs that take 1 s there and 4 s elsewhere, one belongs elsewhere."""
    i = made([(1.0, 1.0, 4.0)] * 9)
    share = spread(i).share
    assert share.sum(axis=1) == pytest.approx(np.ones(9))
    assert share[0, 2] == pytest.approx(1 / 9)  # 4 s on each device: 4 + 4 + 1
    rebuilding = Rebuilder(i, "makespan", np.random.default_rng(0))
    drawn = np.concatenate([rebuilding.drawn() for _ in range(20)])
    assert set(np.unique(drawn)) == {3, 4}  # devices 0 to 2, then classes
    assert (drawn == 4).mean() == pytest.approx(1 / 9, abs=0.01)
