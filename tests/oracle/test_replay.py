"""Plans as policies: followed to the letter."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from symphony.baselines import Heft
from symphony.oracle.instance import instance
from symphony.oracle.replay import decode, linear_order, positions, shared_plan, tables
from symphony.simulator.run import simulate
from tests.oracle.small import replayed, scenario


@pytest.mark.parametrize("bus", [False, True])
def test_a_decoded_run_is_run_again_to_the_last_bit(bus: bool) -> None:
    i = instance(scenario(1, bus=bus))
    with jax.enable_x64(True):
        run = simulate([i.scenario], Heft())[0]
    again = replayed(i, decode(i, run))
    assert again.makespan_s == run.makespan_s
    stays = [sorted((s.gang, s.devices, s.start_s, s.finish_s) for s in x.gangs) for x in (run, again)]
    assert stays[0] == stays[1]


def test_the_order_of_a_plan_is_kept_even_if_a_device_idles_for_it() -> None:
    """Gangs 1, 2 and 3 are ready together; the plan wants 3, then 4's parents, and keeps 5 to the end."""
    i = instance(scenario(0))
    rank = linear_order(i, np.asarray([0, 3, 2, 1, 4, 5]))
    run = replayed(i, shared_plan(np.zeros((6, 1), int), rank))
    started = [stay.gang for stay in sorted(run.gangs, key=lambda stay: stay.start_s)]
    assert started == [0, 3, 2, 1, 4, 5]
    assert {stay.devices for stay in run.gangs} == {(0,)}
    assert run.refused == 0


def test_a_device_waits_for_the_gang_whose_turn_it_is() -> None:
    """Gang 4 waits for two on another device; gang 3, ready long before, is planned after it on device 1."""
    i = instance(scenario(0))
    devices = np.asarray([0, 0, 0, 1, 1, 0])[:, None]
    run = replayed(i, shared_plan(devices, linear_order(i, np.asarray([0, 1, 2, 9, 3, 10]))))
    stay = {s.gang: s for s in run.gangs}
    assert stay[3].start_s == stay[4].finish_s > stay[2].finish_s
    assert stay[3].ready_s < stay[4].ready_s


def test_ranks_follow_the_key_but_never_break_a_dependency() -> None:
    i = instance(scenario(0))
    assert linear_order(i, np.asarray([5, 4, 3, 2, 1, 0])).tolist() == [0, 3, 2, 1, 4, 5]


def test_positions_count_what_comes_before_on_each_device() -> None:
    plan = shared_plan(np.asarray([[0, 1], [1, -1], [0, -1], [1, 0]]), np.asarray([1, 0, 2, 3]))
    assert positions(plan, 2).tolist() == [[0, 1], [0, 0], [1, 0], [2, 2]]


def test_tables_are_laid_out_by_job_and_gang() -> None:
    i = instance(scenario(0))
    plan = shared_plan(np.asarray([0, 1, 2, 0, 1, 2])[:, None], np.arange(6))
    table = tables(i, [plan, plan])
    assert table["devices"].shape == (2, 6, 1)
    assert table["devices"][1, :, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert table["position"][0, :, 0].tolist() == [0, 0, 0, 1, 1, 1]
