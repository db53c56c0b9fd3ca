"""Tetris and DRF: alignment by hand, nothing beyond what fits, and the example of the DRF paper."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from symphony.baselines import Drf, Tetris, packing
from symphony.problem.topology import Device, DeviceKind, Hop, Resource, Topology
from symphony.problem.workload import Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.scheduling.graph_tables import gang_seconds as gang_seconds_of
from symphony.scheduling.policy import PLACE, WAIT, Policy, place
from tests.scheduling.by_hand import Books, decision

# As a whole: every operation by itself would be a program.
dominant_share, may_go = jax.jit(packing.dominant_share), jax.jit(packing.placeable_gangs)
openings, gang_seconds = jax.jit(packing.free_placements), jax.jit(gang_seconds_of)


def server(cores: float, memory: float, count: int = 1) -> Topology:
    """Machines with so many cores, and memory channels that do so much a second."""
    rows, devices = [], []
    for n in range(count):
        rows += [Resource(f"c{n}", "compute", cores, f"m{n}"), Resource(f"m{n}", "memory", memory, f"m{n}")]
        devices.append(Device(f"d{n}", "cpu", f"m{n}", "r", f"s{n}", f"w{n}", (Hop(f"c{n}"), Hop(f"m{n}"))))
    return Topology("servers", (DeviceKind("cpu", "cpu", slots=16),), tuple(rows), tuple(devices), (0.0,) * 7)


def bags(*kinds: tuple[int, float, float, float]) -> Workload:
    """Jobs of so many tasks, each asking for cores and memory for some seconds."""
    kernels = tuple(
        Kernel(f"k{n}", {"cpu": Profile(seconds, demand={"compute": cores, "memory": memory})})
        for n, (_, cores, memory, seconds) in enumerate(kinds)
    )
    graphs = tuple(
        TaskGraph(f"g{n}", tuple(Task(f"t{k}", f"k{n}") for k in range(count))) for n, (count, *_) in enumerate(kinds)
    )
    return Workload("bags", kernels, graphs, tuple(Job(n, 0.0) for n in range(len(kinds))))


def loads(books: Books, kinds: tuple[tuple[float, float], ...]) -> list[float]:
    """Load of the rows of one server, from what runs there."""
    status = np.asarray(books.core.status).reshape(-1, books.tasks)
    running = (status == 5).sum(axis=1)
    cores, memory = books.topology.resources[0].capacity, books.topology.resources[1].capacity
    used = np.asarray([[c / cores, m / memory] for c, m in kinds])
    return (running[: len(kinds), None] * used).sum(axis=0).tolist()


def fill(books: Books, policy: Policy, kinds: tuple[tuple[float, float], ...]) -> list[int]:
    """Let a policy place until it waits; the jobs of what it placed, in order."""
    order: list[int] = []
    while True:
        kind, gang, device = decision(policy, books.observe(loads(books, kinds), policy=policy))
        if kind == WAIT:
            return order
        assert books.decide(place(gang, device))
        books.start(gang)
        order.append(gang // books.tasks)


def test_drf_divides_as_in_its_paper() -> None:
    """9 cores and 18 of memory; tasks of A ask for (1, 4), of B for (3, 1). Three of A have two thirds of the memory,
    two of B two thirds of the cores."""
    books = Books(bags((8, 1, 4, 1.0), (8, 3, 1, 1.0)), server(9, 18))
    order = fill(books, Drf(), ((1, 4), (3, 1)))
    assert (order.count(0), order.count(1)) == (3, 2)
    assert dominant_share(books.observe())[:2].tolist() == pytest.approx([12 / 18, 6 / 9])


def test_alignment_is_the_dot_product_of_demand_and_what_is_free() -> None:
    """Half of the cores are taken: (0.2, 0.1) aligns with (0.5, 1.0) to 0.2, and (0.1, 0.4) to 0.45."""
    books = Books(bags((1, 2, 1, 1.0), (1, 1, 4, 1.0)), server(10, 10))
    where = openings(books.observe([0.5, 0.0]), gang_seconds(books.t, books.w))
    assert where.alignment[:2, 0, 0].tolist() == pytest.approx([0.5 * 0.2 + 0.1, 0.5 * 0.1 + 0.4])
    assert decision(Tetris(), books.observe([0.5, 0.0], policy=Tetris()))[1] == books.tasks
    assert decision(Tetris(), books.observe([0.0, 0.9], policy=Tetris()))[1] == 0


def test_a_slot_that_no_job_has_had_holds_nothing_that_may_go() -> None:
    """It names the first graph all the same; counted, it would change what alignment weighs against remaining work."""
    books = Books(bags((1, 2, 1, 1.0), (1, 1, 4, 1.0)), server(10, 10), arrived=1)
    observation = books.observe()
    go = may_go(observation, openings(observation, gang_seconds(books.t, books.w)))
    assert np.flatnonzero(go).tolist() == [0]


def test_tetris_places_nothing_that_does_not_fit() -> None:
    """Tasks of 0.6 of the cores: one at a time, though there are slots; those of 0.3 go beside it."""
    books = Books(bags((3, 6, 1, 1.0), (3, 3, 1, 1.0)), server(10, 10))
    assert sorted(fill(books, Tetris(), ((6, 1), (3, 1)))) in ([0, 1], [1, 1, 1])


@pytest.mark.parametrize("others, goes", [(0.0, True), (0.05, True), (0.2, True), (0.3, False)])
def test_tetris_uses_all_slots_though_others_use_a_little(others: float, goes: bool) -> None:
    """Two cores, tasks of one: beside our own, half of what a task asks for has to be free."""
    books = Books(bags((2, 1, 0, 1.0)), server(2, 10))
    books.window([others, 0.0], [0.0, 0.0])
    assert books.decide(place(0, 0))
    books.start(0)
    assert decision(Tetris(), books.observe([0.5, 0.0], policy=Tetris()))[0] == (PLACE if goes else WAIT)


def test_tetris_favours_jobs_with_little_left() -> None:
    """Equal demands; the second job has one task, the first twelve."""
    books = Books(bags((12, 1, 1, 1.0), (1, 1, 1, 1.0)), server(10, 10))
    assert decision(Tetris(), books.observe(policy=Tetris()))[1] == books.tasks


def test_an_idle_device_takes_what_tenants_would_leave_no_room_for() -> None:
    books = Books(bags((2, 6, 1, 1.0)), server(10, 10, count=2))
    books.window([0.8, 0.0, 0.9, 0.0], [0.0] * 4)
    assert decision(Tetris(), books.observe(policy=Tetris())) == (PLACE, 0, 0)  # the less loaded of the two
    assert books.decide(place(0, 0))
    books.start(0)
    assert decision(Tetris(), books.observe([0.6, 0.1], policy=Tetris())) == (PLACE, 1, 1)
