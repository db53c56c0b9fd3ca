"""Scenarios: drawn from a seed, checked, stacked into batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from scipy.optimize import nnls

from symphony.lowering.family import workload as family_workload
from symphony.problem import limits
from symphony.problem.errors import InputError
from symphony.problem.flows import flows
from symphony.problem.topologies import topology
from symphony.problem.topology import RESOURCE_KINDS
from symphony.simulator.scenarios import (
    CALM,
    Disturbances,
    Failure,
    Phase,
    Scenario,
    batch_axes,
    calm,
    draw,
    scenario_arrays,
    stack,
)
from tests.scheduling.by_hand import chain, cluster, dot, pair, work

ROUGH = Disturbances(failures_per_day=500.0, repair_s=30.0)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    machine = topology("machine")
    return draw(machine, family_workload("layered?jobs=5&tasks=6", machine, 0), 4, ROUGH)


# -------------------------------------------------------------------- drawing


def test_equal_seeds_draw_equal_scenarios_and_others_others(scenario: Scenario) -> None:
    again, other = (draw(scenario.topology, scenario.workload, seed, ROUGH) for seed in (4, 5))
    assert again == scenario
    assert (other.phases, other.failures, other.work_noise) != (scenario.phases, scenario.failures, scenario.work_noise)


def test_disturbances_do_not_depend_on_the_jobs(scenario: Scenario) -> None:
    """Where their time scale is given: policies and loads can be compared on equal disturbances."""
    fixed = replace(ROUGH, phase_s=10.0, window_s=1.0)
    w = scenario.workload
    fewer = replace(w, jobs=w.jobs[:2])
    a, b = (draw(scenario.topology, x, 4, fixed) for x in (w, fewer))
    assert (a.phases, a.failures, a.work_noise) == (b.phases, b.failures, b.work_noise)


def test_hidden_demands_change_nothing_else(scenario: Scenario) -> None:
    hidden = draw(scenario.topology, scenario.workload, 4, replace(ROUGH, demand_noise=0.5))
    assert scenario.demand_factor == () and len(hidden.demand_factor) == len(scenario.workload.kernels)
    assert min(hidden.demand_factor) < 1 < max(hidden.demand_factor)
    assert replace(hidden, demand_factor=(), disturbances=scenario.disturbances) == scenario


def test_what_is_drawn_has_the_means_that_were_asked_for() -> None:
    cluster = topology("gpu24")
    jobs = family_workload("training?jobs=2", cluster, 0)
    asked = Disturbances(failures_per_day=20.0, repair_s=100.0, phase_s=40.0, work_noise=0.1, busy_share=0.5)
    drawn = [draw(cluster, jobs, seed, asked) for seed in range(20)]
    gaps = [f.gap_s for s in drawn for f in s.failures]
    assert np.mean(gaps) == pytest.approx(86400 / (20 * 24), rel=0.1)
    assert np.mean([f.down_s for s in drawn for f in s.failures]) == pytest.approx(100.0, rel=0.1)
    groups = {row.group for row in cluster.resources}
    changes = [p for s in drawn for p in s.phases[len(groups) :]]
    # Each flow is busy for 40 s and idle for 40 s on average.
    assert np.mean([p.gap_s for p in changes]) * len(flows(cluster)) == pytest.approx(40.0, rel=0.1)
    whole = [draw(cluster, jobs, seed, replace(asked, tenants="machine")) for seed in range(20)]
    changes = [p for s in whole for p in s.phases[len(groups) :]]
    assert np.mean([p.gap_s for p in changes]) * len(groups) == pytest.approx(40.0, rel=0.1)
    assert np.mean([bool(p.load) for s in whole for p in s.phases]) == pytest.approx(0.5, abs=0.05)
    assert np.std(np.log([x for s in drawn for x in s.work_noise])) == pytest.approx(0.1, rel=0.1)


def test_every_group_starts_in_a_phase_of_its_own(scenario: Scenario) -> None:
    groups = list(dict.fromkeys(row.group for row in scenario.topology.resources))
    first = scenario.phases[: len(groups)]
    assert [phase.group for phase in first] == groups and {phase.gap_s for phase in first} == {0.0}


def test_calm_has_no_disturbance_at_all(scenario: Scenario) -> None:
    drawn = draw(scenario.topology, scenario.workload, 4, CALM)
    assert (drawn.phases, drawn.failures, drawn.work_noise) == ((), (), (1.0,))
    quiet = calm(scenario)
    assert (quiet.phases, quiet.failures, quiet.work_noise) == ((), (), (1.0,))
    assert quiet.workload is scenario.workload


def test_time_scales_follow_the_work_unless_given(scenario: Scenario) -> None:
    d = scenario.disturbances
    assert d.window_s is not None and d.phase_s == pytest.approx(20 * d.window_s)
    given = draw(scenario.topology, scenario.workload, 4, replace(ROUGH, window_s=0.125, phase_s=3.0))
    assert (given.disturbances.window_s, given.disturbances.phase_s) == (0.125, 3.0)


# -------------------------------------------------------------------- arrays


def test_arrays_of_phases_failures_and_noise() -> None:
    phases = (Phase(1.0, "b", {"nic": 0.5}), Phase(2.0, "a", {"memory": 1 / 3, "link": 2.0}), Phase(3.0, "b", {}))
    failures = (Failure(4.0, "gpu", 0.5),)
    made = Scenario(cluster(), work(dot("any")), 9, phases, failures, (1.0, 0.5, 2.0, 1.5, 1.0), CALM, job_slots=2)
    a = scenario_arrays(made)
    assert (int(a.phases), int(a.failures), int(a.work_noises), a.job_slots) == (3, 1, 5, 2)
    assert a.phase_gap.tolist() == [1.0, 2.0, 3.0]
    assert a.phase_group.tolist() == [1, 0, 1]
    slot = {row.name: number for row, number in zip(cluster().resources, a.topology.row_slot, strict=False)}
    assert a.phase_load[0, slot["b/nic"]] == 0.5
    assert a.phase_load[1, slot["a/memory"]] == round(2**16 / 3) / 2**16  # loads are multiples of 2**-16
    assert a.phase_load[2].max() == 0
    assert (a.failure_device.tolist(), a.failure_down.tolist()) == ([2], [0.5])
    assert a.work_noise.tolist() == [1.0, 0.5, 2.0, 1.5, 1.0, 1.0]  # padded


def test_a_batch_is_padded_to_the_largest_and_shares_the_topology() -> None:
    small = draw(cluster(), work(dot("any")), 0, job_slots=1)
    large = draw(cluster(), work(chain(), pair(), dot("cpu only"), dot("any")), 1, job_slots=3)
    batch = stack([small, large])
    assert batch.workload.kernel.shape[0] == 2 and batch.job_slots == 3
    assert batch.workload.max_workers == 2
    assert batch.topology.capacity.ndim == 1
    one = scenario_arrays(large)
    rows = jax.tree.map(lambda x, axis: np.asarray(x)[1], replace(batch, topology=None), batch_axes(batch))
    for name in ("kernel", "in_source", "arrival_part", "runs_on"):
        np.testing.assert_allclose(getattr(rows.workload, name), getattr(one.workload, name))
    assert np.asarray(batch.workload.jobs).tolist() == [1, 4]


def test_kernels_that_a_scenario_does_not_have_run_nowhere_in_a_batch() -> None:
    """Else a policy could configure a device for them, in a batch and not alone."""
    few = draw(cluster(), replace(work(dot("any")), kernels=work(dot("any")).kernels[:2]), 0)
    many = draw(cluster(), work(dot("any")), 0)
    batch = stack([few, many])
    assert np.isfinite(np.asarray(batch.workload.time_fixed)[1, 2]).any()
    assert np.isinf(np.asarray(batch.workload.time_fixed)[0, 2]).all()


def test_scenarios_of_two_clusters_are_no_batch(scenario: Scenario) -> None:
    with pytest.raises(InputError, match="must share a topology") as caught:
        stack([scenario, draw(cluster(), work(dot("any")), 0)])
    assert "one batch for each" in caught.value.hint
    same = draw(cluster(), work(dot("any")), 0), draw(cluster(), work(dot("any")), 1)
    assert same[0].topology is not same[1].topology
    stack(list(same))  # equal is enough


def test_no_scenario_is_no_batch() -> None:
    with pytest.raises(InputError, match="no scenario is given"):
        stack([])


# -------------------------------------------------------------------- bad input


@pytest.mark.parametrize("value", [None, "1", math.nan, math.inf, -1.0, True])
@pytest.mark.parametrize(
    "name",
    ["background", "busy_share", "failures_per_day", "repair_s", "work_noise", "demand_noise", "burst", "latency_s"],
)
def test_disturbances_are_checked(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"disturbances: {name} is") as caught:
        draw(cluster(), work(dot("any")), 0, replace(CALM, **{name: value}))
    assert repr(value) in caught.value.message and "write a number" in caught.value.hint


@pytest.mark.parametrize("value", ["1", math.nan, math.inf, -1.0, 0.0])
@pytest.mark.parametrize("name", ["phase_s", "window_s"])
def test_lengths_of_time_are_above_0(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"disturbances: {name} is") as caught:
        draw(cluster(), work(dot("any")), 0, replace(CALM, **{name: value}))
    assert "above 0" in caught.value.hint


ROW_OF_A = next(row.name for row in cluster().resources if row.group == "a")


def change(**parts: Any) -> Callable[[], Scenario]:
    return lambda: replace(draw(cluster(), work(dot("any")), 0), **parts)


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (change(seed=-1), "seed is -1", "0 to 4294967295"),
        (change(seed=2**32), "seed is 4294967296", "0 to"),
        (change(seed=1.5), "seed is 1.5", "whole number"),
        (lambda: draw(cluster(), work(dot("any")), -1), "seed is -1", "whole number"),
        (change(job_slots=0), "job_slots is 0", "write 1 to"),
        (change(job_slots=-3), "job_slots is -3", "write 1 to"),
        (change(job_slots=limits.JOB_SLOTS + 1), "job_slots is 4097", "4,096"),
        (change(phases=(Phase(1.0, "nowhere", {}),)), "a phase names 'nowhere', which is not a group", "such as 'a'"),
        (change(phases=(Phase(1.0, "a", {"magic": 1.0}),)), "unknown resource kind or row 'magic'", "memory"),
        (change(phases=(Phase(-1.0, "a", {}),)), "gap_s of a phase is -1.0", "0 or more"),
        (change(phases=(Phase(1.0, "a", {"nic": math.nan}),)), "load on nic in a phase is nan", "0 or more"),
        (
            change(phases=(Phase(1.0, "a", {ROW_OF_A: 5e3}),)),
            f"others on 'a' would load {ROW_OF_A} 5e+03 times",
            "units",
        ),
        (change(failures=(Failure(1.0, "nobody", 1.0),)), "'nobody', which is not a device", "such as 'cpu0'"),
        (change(failures=(Failure(math.nan, "gpu", 1.0),)), "gap_s of a failure is nan", "0 or more"),
        (change(failures=(Failure(1.0, "gpu", -1.0),)), "down_s of a failure is -1.0", "0 or more"),
        (change(phases=(Phase(0.0, "a", {}),) * 2), "phases repeat for ever at one instant", "gap_s above 0"),
        (change(failures=(Failure(0.0, "gpu", 1.0),)), "failures repeat for ever", "gap_s above 0"),
        (change(work_noise=()), "work_noise is empty", "(1.0,)"),
        (change(demand_factor=(1.0,) * 99), "demand_factor has 99 factors", "one for each"),
        (change(work_noise=(1.0, 0.0)), "a factor of work_noise is 0.0", "above 0"),
    ],
)
def test_bad_scenarios(make: Callable[[], Scenario], message: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.where


def test_tenants_load_whole_flows() -> None:
    """Every phase is a sum of flows at levels of 0 or more, and one tenant at a time comes or goes."""
    here = topology("machine")
    drawn = draw(here, family_workload("layered?jobs=4", here, 0), 5, Disturbances(background=1.0))
    rows = [row.name for row in here.resources]
    loads = np.array([[dict(flow.weights).get(row, 0.0) for flow in flows(here)] for row in rows])
    busy, before = [], np.zeros(len(rows))
    for phase in drawn.phases:
        load = np.array([phase.load.get(row, 0.0) for row in rows])
        levels, error = nnls(loads, load)
        assert error < 1e-6 and set(phase.load) <= set(rows)
        if busy:
            assert np.linalg.matrix_rank(loads[:, np.abs(nnls(loads, np.maximum(load - before, 0))[0]) > 1e-6]) <= 2
        busy.append((levels > 1e-6).mean())
        before = load
    assert 0.15 < np.mean(busy) < 0.6


def test_tenants_of_older_figures_load_all_rows_of_a_kind() -> None:
    here = topology("paper")
    drawn = draw(here, family_workload("layered?jobs=4", here, 0), 5, Disturbances(tenants="machine"))
    assert all(set(phase.load) <= set(RESOURCE_KINDS) for phase in drawn.phases) and len(drawn.phases) >= 64
