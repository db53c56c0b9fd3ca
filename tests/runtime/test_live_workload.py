"""The arrays of graphs that come and go."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import symphony as sy
from symphony.estimation.runs import PastRun
from symphony.problem.arrays import KIND_INDEX, workload_arrays
from symphony.problem.workload import Job, Workload
from symphony.runtime.graph import Graph, Submission, submission
from symphony.runtime.kernels import KernelFunction
from symphony.runtime.live_workload import (
    JOB_ARRAYS,
    KERNEL_ARRAYS,
    LiveWorkload,
    Shapes,
    enlarged_core,
)
from symphony.runtime.profiles import GPU_BUSY_FIGURE, PCIE_FIGURE, Profiles
from symphony.scheduling import state
from symphony.training_jobs.live.speed_beliefs import JobKind, RoundObservation
from tests.runtime.lowered import lowered
from tests.runtime.machines import machine

SHAPES = Shapes(jobs=3, tasks=8, edges=8, kernels=4)


def kernel(name: str, device: str = "cpu") -> KernelFunction:
    return sy.kernel(device=device, name=name)(lambda *_: None)


def chain(*kernels: KernelFunction, name: str = "chain") -> Submission:
    graph = Graph(name)
    last: Any = 0
    for one in kernels:
        last = graph.task(one, last)
    return submission(graph)


def live_workload(profiles: Profiles | None = None) -> LiveWorkload:
    return LiveWorkload(machine(others=1), Profiles() if profiles is None else profiles, SHAPES)


def add(found: LiveWorkload, graph: Submission) -> int:
    sizes = [call.arguments.size for call in graph.calls]
    return found.add(graph, sizes)


def test_a_row_is_what_the_arrays_of_its_graph_are() -> None:
    found, a, b = live_workload(), kernel("a"), kernel("b")
    add(found, chain(b))
    graph = chain(a, b, a)
    sizes = [call.arguments.size for call in graph.calls]
    kernels, expected = lowered(found, graph, sizes)
    row = add(found, graph)
    alone = workload_arrays(found.topology, Workload("w", kernels, (expected,), (Job(0, 0.0),)))
    for name, table in vars(found.w).items():
        if name in JOB_ARRAYS or name in KERNEL_ARRAYS or not isinstance(table, np.ndarray):
            continue
        small = np.asarray(getattr(alone, name))[0]
        inside = table[row][tuple(slice(0, n) for n in small.shape)] if small.ndim else table[row]
        np.testing.assert_array_equal(inside, small.astype(table.dtype), err_msg=name)
    assert (found.w.in_start[row, 3:] == 2).all() and (found.w.out_start[row, 3:] == 2).all()


def test_kernels_that_nobody_uses_give_up_their_numbers() -> None:
    found = live_workload()
    stays = kernel("stays")
    add(found, chain(stays))
    for number in range(20):  # more than there is room for
        row = add(found, chain(kernel(f"k{number}"), stays))
        assert found.kernels.index(stays) == 0 and len(found.kernels) == 2
        found.remove(row)
    found.refresh(kernel("gone"))  # does nothing


def test_times_are_read_from_the_profiles() -> None:
    profiles, one = Profiles(), kernel("one")
    found = live_workload(profiles)
    add(found, chain(one))
    before = found.w.time_fixed[0].copy()
    for _ in range(10):
        profiles.timing(one.key, "small").learn(0.0, 3.0)
    found.refresh(one)
    assert found.w.time_fixed[0, 0] == pytest.approx(3.0, rel=0.1) and found.w.time_fixed[0, 0] != before[0]
    assert np.isinf(found.w.time_fixed[0, 1])  # it has no implementation for the other kind
    assert found.version == 1  # what is learned needs no new graphs


def test_demands_are_read_from_the_profiles_once_they_are_likely() -> None:
    profiles, one = Profiles(), kernel("one")
    found = live_workload(profiles)
    add(found, chain(one))
    assert found.w.demand_fixed[0, 0, KIND_INDEX["memory"]] == 0.0
    mine, other = (PastRun(key, "small", 0, 0.0, 1.0) for key in (one.key, "other"))
    for number in range(60):  # beside its like, it takes half as long again
        like = number % 2 > 0
        profiles.learn(mine, 0.0, 1.5 if like else 1.0, company=[(mine if like else other, 1.0)])
        profiles.learn(other, 0.0, 1.0, company=[(mine, 1.0)])
    found.refresh(one)
    memory = next(row.capacity for row in found.topology.resources if row.kind == "memory")
    assert found.w.demand_fixed[0, 0, KIND_INDEX["memory"]] == pytest.approx(0.75 * memory, rel=0.1)
    (told, *_), _ = lowered(found, chain(one), [1])
    assert told.implementations["small"].demand["memory"] == pytest.approx(0.75 * memory, rel=0.1)
    assert told.implementations["small"].demand["compute"] == 1.0


def test_graphs_that_ran_are_a_workload_for_the_simulator() -> None:
    found, one = live_workload(), kernel("one")
    work = found.simulator_workload([(chain(one, one), [10, 20], 0.5), (chain(one), [30], 0.0)])
    assert [(job.graph, job.arrival_s) for job in work.jobs] == [(1, 0.0), (0, 0.5)]
    assert [[task.size for task in graph.tasks] for graph in work.graphs] == [[10.0, 20.0], [30.0]]


def test_in_a_prediction_kernels_take_as_long_as_they_hold_a_slot() -> None:
    profiles, one, new = Profiles(), kernel("one"), sy.kernel(lambda x: x + 1, device="cpu", name="new")
    timing = profiles.timing(one.key, "small")
    for seconds in (0.1, 0.3):
        timing.learn_around(seconds)
    found, jobs = live_workload(profiles), [(chain(one), [10], 0.0), (chain(new), [10], 0.0)]
    held, unknown = (k.implementations["small"] for k in found.simulator_workload(jobs, handling_s=0.05).kernels)
    alone = found.simulator_workload(jobs).kernels[0].implementations["small"]
    assert held.fixed_s - alone.fixed_s == pytest.approx(0.2) and alone.fixed_s == pytest.approx(timing.fixed_s)
    assert unknown.fixed_s - profiles.timing(new.key, "small").fixed_s == pytest.approx(0.05)
    assert lowered(found, *jobs[0][:2])[0][0].implementations["small"] == alone  # schedulers are told of kernels


def test_sizes_are_filled_in_when_they_are_known() -> None:
    found, one = live_workload(), kernel("one")
    graph = Graph("join")
    a, b = graph.task(one), graph.task(one)
    graph.task(one, a, b)
    row = add(found, submission(graph))
    found.inputs_known(row, 2, {0: 1000, 1: 5000}, 6100)
    assert found.w.work[row, 2] == 6100
    start, end = found.w.in_start[row, 2:4]
    known = dict(
        zip(found.w.in_source[row, start:end].tolist(), found.w.in_bytes[row, start:end].tolist(), strict=True)
    )
    assert known == {0: 1000.0, 1: 5000.0}


def test_the_implementation_for_a_kind_goes_before_that_for_its_type() -> None:
    found, one = live_workload(), kernel("one", "accelerator")
    assert found.function(one, 1) == "accelerator" and found.function(one, 0) is None
    one.implementation(device="big")(lambda *_: None)
    add(found, chain(one))  # implementations are looked up again when a graph arrives
    assert found.function(one, 1) == "big" and found.kinds_of(one) == [1]


def test_rooms_grow_and_keep_what_they_hold() -> None:
    found, one = live_workload(), kernel("one")
    row = add(found, chain(one, one, one))
    larger = found.enlarged(found.shapes.to_hold(20, 30, 3))
    assert larger.shapes == Shapes(jobs=3, tasks=24, edges=32, kernels=4)
    assert larger.free == [1, 2] and larger.version > found.version
    for name in ("kernel", "runs_on", "parents", "in_source", "work"):
        old, new = getattr(found.w, name)[row], getattr(larger.w, name)[row]
        np.testing.assert_array_equal(new[: len(old)], old, err_msg=name)
    assert (larger.w.in_start[row, 3:] == 2).all()
    assert found.shapes.to_hold(1, 1, 1) == found.shapes


def test_steps_of_training_jobs_and_what_is_believed_of_them_stay_when_rooms_grow() -> None:
    train = sy.training(steps=1000, kind="ResNet-50", name="train")(lambda job, *_: None)
    other = sy.training(steps=50, kind="LSTM", name="other")(lambda job, *_: None)
    small = live_workload()
    for graph in (chain(train), chain(kernel("plain"), other)):
        row = add(small, graph)
    assert small.w.units[row, :2].tolist() == [1.0, 50.0] and small.w.units[0, 0] == 1000
    small.steps_left(row, 1, 20)
    step_s = small.speeds.step_s(other, 0)
    seconds, spread = small.expected(row, 1, other, 0)
    assert seconds == pytest.approx(20 * step_s) and spread == pytest.approx(small.believed.unit_std[2, 0, 0])
    large = small.enlarged(Shapes(jobs=5, tasks=16, edges=16, kernels=8, workers=2))
    assert large.speeds is small.speeds and large.w.units[row, :2].tolist() == [1.0, 20.0]
    assert large.believed.mean.unit_s[0, 0, 0] > 0 and large.believed.mean.unit_s.shape[0] == 8
    assert large.expected(row, 1, other, 0) == pytest.approx((seconds, spread))
    of = JobKind.of(other)
    found = large.speeds.learn([RoundObservation(n, of, 0, (), False, 100.0, 10.0) for n in range(3)], 500.0, [of])
    large.speeds.adopt(found)
    assert large.expected(row, 1, other, 0)[0] == pytest.approx(seconds)  # what is adopted counts when it is read
    large.refresh_beliefs()
    assert large.expected(row, 1, other, 0)[0] == pytest.approx(20 * 10.0, rel=0.1)
    assert large.believed.mean.unit_s[2, 0, 0] == pytest.approx(10.0, rel=0.1)


def test_kernels_of_the_same_name_are_told_apart() -> None:
    found = live_workload()
    kernels, _ = lowered(found, chain(kernel("same"), kernel("same")), [1, 1])
    assert [one.name for one in kernels] == ["same", "same (1)"]


def test_what_a_kernel_moves_over_its_link_is_told_once_it_was_seen_some_times() -> None:
    profiles, a = Profiles(), kernel("a", "accelerator")
    found = live_workload(profiles)
    add(found, chain(a))
    link = KIND_INDEX["link"]
    for run, told in enumerate((0.0, 0.0, 4e8), start=1):
        profiles.learn(PastRun(a.key, "big", 1, 0.0, 1.0), 10.0, 1.0, seen={PCIE_FIGURE: run * 2e8, "gpu busy": 0.5})
        found.refresh(a)
        assert found.w.demand_fixed[0, 1, link] == pytest.approx(told)
    profiles.learn(PastRun(a.key, "big", 1, 0.0, 1.0), 10.0, 1.0, seen={PCIE_FIGURE: 1e12})
    found.refresh(a)
    assert found.w.demand_fixed[0, 1, link] == pytest.approx(1e9)  # no more than it can carry
    [told], _ = lowered(found, chain(a), [1])
    assert told.implementations["big"].demand["link"] == pytest.approx(1e9)


def test_of_an_accelerator_a_kernel_asks_for_the_time_that_it_was_seen_to_take() -> None:
    profiles, a = Profiles(), kernel("a", "accelerator")
    found = live_workload(profiles)
    add(found, chain(a))
    compute = KIND_INDEX["compute"]
    for told in (1.0, 1.0, 0.25):
        profiles.learn(PastRun(a.key, "big", 1, 0.0, 1.0), 10.0, 1.0, seen={GPU_BUSY_FIGURE: 0.25})
        found.refresh(a)
        assert found.w.demand_fixed[0, 1, compute] == pytest.approx(told)


def test_what_is_little_is_none() -> None:
    """Where it adds up to more than there is, packers would not put it beside anything."""
    profiles, a = Profiles(), kernel("a", "accelerator")
    for _ in range(3):
        profiles.learn(PastRun(a.key, "big", 1, 0.0, 1.0), 10.0, 1.0, seen={GPU_BUSY_FIGURE: 0.02, PCIE_FIGURE: 1e7})
    [told], _ = lowered(live_workload(profiles), chain(a), [1])
    assert told.implementations["big"].demand == {"compute": 0.0}


def test_gangs_keep_the_time_for_which_they_were_held_when_rooms_grow() -> None:
    small = live_workload()
    large = small.enlarged(small.shapes.to_hold(20, 8, 4))
    before, after = (jax.tree.map(np.array, state.empty(found.t, found.w, 3)) for found in (small, large))
    before.held.whole[8 + 1] = 7  # gang 1 of the second job
    grown = enlarged_core(before, after, small.shapes, large.shapes)
    assert np.flatnonzero(grown.held.whole).tolist() == [24 + 1] and grown.held.part.shape == after.held.part.shape


def test_cores_are_a_demand_and_memory_a_footprint_of_cpus() -> None:
    topology = machine(slots=4, others=1, memory=4e6)
    live = LiveWorkload(topology, Profiles(None), SHAPES)
    both = sy.kernel(name="both", cores=3, memory="1 MB")(lambda *_: None)
    both.implementation(device="accelerator")(lambda *_: None)
    kernels, _ = lowered(live, chain(both), [1])
    on_cpu, beside = (kernels[0].implementations[kind] for kind in ("small", "big"))
    assert (on_cpu.demand["compute"], on_cpu.memory) == (3.0, 1e6)
    assert (beside.demand["compute"], beside.memory) == (1.0, 0.0)
    row = live.add(chain(both), [1])
    assert live.w.footprint[row, 0, :2].tolist() == [976, 0]  # KiB
    wide, large = sy.kernel(name="wide", cores=5)(lambda: None), sy.kernel(name="large", memory="5 MB")(lambda: None)
    assert live.kinds_of(both) == [0, 1] and live.kinds_of(wide) == live.kinds_of(large) == []
