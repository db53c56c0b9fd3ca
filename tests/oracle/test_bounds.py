"""Lower bounds, by hand and against what simulations reach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symphony.oracle.bounds import OBJECTIVES, area, critical_path, lower_bounds, path_and_area, shortest_first
from symphony.oracle.instance import Instance, instance
from symphony.problem.workload import Edge, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.simulator.scenarios import CALM, draw
from tests.oracle.small import by_trying_everything, small_instance, unlike


def made(times: list[tuple[float, ...]], edges: tuple[Edge, ...] = (), *, bus: bool = False, jobs: int = 1) -> Instance:
    """A graph of one task for each tuple of times on the devices; 0 = not there."""
    kernels = tuple(
        Kernel(f"k{n}", {f"kind{d}": Profile(fixed_s=t) for d, t in enumerate(row) if t}) for n, row in enumerate(times)
    )
    graph = TaskGraph("graph", tuple(Task(f"t{n}", f"k{n}") for n in range(len(times))), edges)
    workload = Workload("made", kernels, (graph,), (Job(0, 0.0),) * jobs)
    return instance(draw(unlike(len(times[0]), bus=bus), workload, 0, CALM))


def test_critical_path_by_hand() -> None:
    i = made([(2.0, 3.0), (4.0, 1.0), (5.0, 6.0)], (Edge("t0", "t1"), Edge("t0", "t2")))
    assert critical_path(i, lambda gang, source: 0.0).tolist() == [2.0, 3.0, 7.0]
    assert lower_bounds(i, "makespan")["critical path"] == 7.0


def test_area_by_hand() -> None:
    """Three gangs, 2 s on one kind and 4 s on the other: rates 1/2 and 1/4, so 4 s in all."""
    worth, seconds = area(made([(2.0, 4.0)] * 3))
    assert seconds == pytest.approx(4.0)
    assert worth == pytest.approx([4 / 3] * 3)


def test_area_gives_each_kind_what_it_is_good_at() -> None:
    assert area(made([(1.0, 9.0), (9.0, 1.0), (1.0, 9.0), (9.0, 1.0)]))[1] == pytest.approx(2.0)
    assert area(made([(1.0, 0.0), (1.0, 0.0), (9.0, 1.0)]))[1] == pytest.approx(2.0)  # the first two have one kind only


def test_path_and_area_together_by_hand() -> None:
    """1 s on one device, 3 s on the other: six gangs take 4.5 s by area, a chain of five of them 5 s."""
    chain = tuple(Edge(f"t{n}", f"t{n + 1}") for n in range(4))
    assert path_and_area(made([(1.0, 3.0)] * 6, chain[:1])) == pytest.approx(4.5, rel=1e-4)
    assert path_and_area(made([(1.0, 3.0)] * 6, chain)) == pytest.approx(5.0, rel=1e-4)
    assert path_and_area(made([(1.0, 3.0)] * 8, chain)) == pytest.approx(6.0, rel=1e-4)


def test_workers_of_a_gang_run_side_by_side() -> None:
    """Two workers of 1 s on two devices: 2 s of slots, but done after 1."""
    i = made([(1.0, 1.0), (1.0, 1.0)], (Edge("t0", "t1"),))
    assert path_and_area(replace(i, workers=np.asarray([2, 2]))) == pytest.approx(2.0, rel=1e-4)


def test_path_and_area_see_what_neither_sees_alone() -> None:
    """The fast device is busy with the chain, or the chain is longer."""
    chain = tuple(Edge(f"t{n}", f"t{n + 1}") for n in range(3))
    i = made([(1.0, 2.0)] * 4 + [(1.0, 4.0)] * 2, chain)
    bounds = lower_bounds(i, "makespan")
    alone = max(bounds["critical path"], bounds["area"])
    assert bounds["path and area"] > 1.05 * alone


def test_area_counts_slots() -> None:
    i = made([(2.0, 4.0)] * 3)
    wide = replace(i, slots=i.slots * 2)
    assert area(wide)[1] == pytest.approx(2.0)


def test_link_counts_what_no_placement_avoids() -> None:
    """t0 runs on the first device only, t1 on the second only: 3 GB must cross a bus of 1 GB/s."""
    i = made([(2.0, 0.0), (0.0, 1.0)], (Edge("t0", "t1", 3e9),), bus=True)
    assert lower_bounds(i, "makespan")["link"] == pytest.approx(6.0, rel=1e-4)
    free = made([(2.0, 9.0), (9.0, 1.0)], (Edge("t0", "t1", 3e9),), bus=True)
    assert lower_bounds(free, "makespan")["link"] == pytest.approx(3.0)  # both could run in one memory


def test_inputs_from_home_add_up_on_the_bus() -> None:
    i = made([(0.0, 0.1)] * 4, tuple(Edge(None, f"t{n}", 2e9) for n in range(4)), bus=True)
    assert lower_bounds(i, "makespan")["link"] == pytest.approx(8.0, rel=1e-4)


def test_least_work_first_by_hand() -> None:
    done = shortest_first(np.asarray([0.0, 1.0]), np.asarray([5.0, 1.0]))
    assert done.tolist() == [6.0, 2.0]  # the second job overtakes the first at 1 s
    assert shortest_first(np.asarray([0.0, 10.0]), np.asarray([1.0, 1.0])).tolist() == [1.0, 11.0]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("bus", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_no_schedule_is_below_a_bound(seed: int, bus: bool, objective: str) -> None:
    i = small_instance(seed, tasks=4, devices=2, bus=bus)
    best = dict(zip(OBJECTIVES, by_trying_everything(i), strict=True))[objective]
    bounds = lower_bounds(i, objective)
    together = {"path and area"} if objective == "makespan" else set()
    assert set(bounds) == {"critical path", "area", "link"} | together
    assert all(0 < bound <= best + 1e-9 for bound in bounds.values())


def test_mean_completion_of_a_queue_of_jobs() -> None:
    """Four jobs of 2 s on one device end at 2, 4, 6 and 8 s: 5 s on average, which the area bound knows."""
    i = made([(2.0,)], jobs=4)
    assert lower_bounds(i, "mean_completion")["area"] == pytest.approx(5.0)
    assert lower_bounds(i, "makespan")["area"] == pytest.approx(8.0)
