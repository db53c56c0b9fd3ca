"""What may be done: gangs to place, devices to place them on, gangs that may start."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from symphony.problem.topology import Device, DeviceKind, Topology
from symphony.problem.workload import Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.scheduling.feasible import memory_by_kind, seconds_by_kind, startable
from symphony.scheduling.policy import place
from tests.scheduling.by_hand import CPU0, CPU1, FPGA, GPU, Books, chain, dot, pair, shared_books, work

# As a whole: every operation by itself would be a program.
_candidates, _feasible = jax.jit(lambda shown: shown.candidates), jax.jit(lambda shown, gang: shown.feasible(gang))
_startable = jax.jit(startable)


def candidates(books: Books) -> list[int]:
    return np.flatnonzero(_candidates(books.observe())).tolist()


def feasible(books: Books, gang: int) -> list[int]:
    return np.flatnonzero(_feasible(books.observe(), np.int32(gang))).tolist()


def may_start(books: Books) -> list[int]:
    where, gang = _startable(books.core)
    return sorted(set(np.asarray(gang)[np.asarray(where)].tolist()))


def test_ready_gangs_are_candidates_and_those_with_parents_are_not() -> None:
    books = shared_books(work(chain(), dot("any")))
    assert candidates(books) == [0, 2]


def test_devices_must_have_an_implementation() -> None:
    books = shared_books(work(dot("any"), dot("cpu only"), pair()))
    first, second, third = 0, books.tasks, 2 * books.tasks
    assert feasible(books, first) == [CPU0, CPU1, GPU, FPGA]
    assert feasible(books, second) == [CPU0, CPU1]
    assert feasible(books, third) == [CPU0, CPU1, GPU]


def test_the_footprint_must_fit() -> None:
    """64 MiB on the CPU; size 2 of "cpu only" would still need 40: memory grows with work only."""
    kernel = Kernel("k", {"cpu": Profile(1.0, memory_per_work=20 * 2.0**20), "gpu": Profile(1.0, memory=2.0**20)})
    sizes = (3.0, 3.3)
    graphs = tuple(TaskGraph(f"g{size}", (Task("a", "k", size),)) for size in sizes)
    books = Books(Workload("w", (kernel,), graphs, (Job(0, 0.0), Job(1, 0.0))))
    assert feasible(books, 0) == [CPU0, CPU1, GPU]
    assert feasible(books, 1) == [GPU]
    assert memory_by_kind(books.w, books.facts(0)).tolist()[:2] == [60 * 1024, 1024]


def test_seconds_count_units_and_work() -> None:
    kernel = Kernel("k", {"cpu": Profile(1.0, 0.5), "gpu": Profile(0.25)}, exponent=2.0)
    books = Books(Workload("w", (kernel,), (TaskGraph("g", (Task("a", "k", 2.0, 3.0),)),), (Job(0, 0.0),)))
    seconds = seconds_by_kind(books.w, books.facts(0)).tolist()
    assert seconds[:2] == [pytest.approx(3 * (1 + 0.5 * 4)), pytest.approx(0.75)]
    assert seconds[2] == float("inf")


def test_a_gang_is_placed_worker_by_worker_on_devices_of_its_own() -> None:
    books = shared_books(work(dot("any"), pair()))
    gang = books.tasks
    assert candidates(books) == [0, gang]
    assert books.decide(place(gang, CPU1))
    assert candidates(books) == [gang]  # no other gang while one is partly placed
    assert feasible(books, gang) == [CPU0, GPU]
    assert books.decide(place(gang, GPU))
    assert candidates(books) == [0]


def test_failed_devices_take_nothing_and_too_few_make_a_gang_wait() -> None:
    books = shared_books(work(pair()))
    books.fail(CPU0)
    assert feasible(books, 0) == [CPU1, GPU]
    assert candidates(books) == [0]
    books.fail(GPU)
    assert candidates(books) == []
    books.repair(GPU)
    assert candidates(books) == [0]


def test_only_the_head_of_a_queue_starts_and_only_with_a_slot() -> None:
    books = shared_books(work(dot("any"), dot("any"), dot("any")))
    for gang in (1, 0, 2):
        assert books.decide(place(gang, GPU))
    assert may_start(books) == [1]  # placed first
    books.start(1)
    assert may_start(books) == []  # the GPU has one slot
    books.finish(1)
    assert may_start(books) == [0]


def test_memory_holds_back_the_head_and_everything_behind_it() -> None:
    """Two of 40 MiB do not fit 64: the second waits though a slot is free, and so does a small one behind it."""
    books = shared_books(work(dot("cpu only"), dot("cpu only"), dot("any")))
    for gang in (0, 1, 2):
        assert books.decide(place(gang, CPU0))
    books.start(0)
    assert int(books.core.lanes_free[CPU0]) == 1
    assert may_start(books) == []
    books.finish(0)
    assert may_start(books) == [1]


def test_a_gang_starts_when_it_heads_all_its_queues() -> None:
    books = shared_books(work(dot("any"), pair(), dot("any")))
    lone, both, late = 0, books.tasks, 2 * books.tasks
    assert books.decide(place(lone, GPU))
    assert books.decide(place(both, GPU)) and books.decide(place(both, CPU0))
    assert books.decide(place(late, CPU0))
    assert may_start(books) == [lone]  # the gang waits at the GPU, and holds back whoever is behind it at the CPU
    books.start(lone)
    books.finish(lone)
    assert may_start(books) == [both]
    books.start(both)
    assert may_start(books) == [late]  # the CPU has a second slot


def test_inputs_come_first() -> None:
    books = shared_books(work(chain()))
    assert books.decide(place(0, CPU0))
    assert may_start(books) == []
    books.fetched(0)
    assert may_start(books) == [0]


def test_a_gang_that_fills_a_device_to_the_last_byte_may_start() -> None:
    """The check at admission says that it fits. In float32 its KiB would round to 8 more than the device has."""
    room = 79_999_997_000.0
    kernel = Kernel("k", {"cpu": Profile(1.0, memory=room)})
    t = Topology("t", (DeviceKind("cpu", "cpu", memory=room),), (), (Device("d", "cpu", "m", "r", "s", "w", ()),))
    books = Books(Workload("w", (kernel,), (TaskGraph("g", (Task("a", "k"),)),), (Job(0, 0.0),)), t)
    assert books.decide(place(0, 0))
    assert may_start(books) == [0]


def test_a_gang_of_two_terabytes_may_start_where_memory_is_endless() -> None:
    kernel = Kernel("k", {"cpu": Profile(1.0, memory=2e12)})
    t = Topology("t", (DeviceKind("cpu", "cpu"),), (), (Device("d", "cpu", "m", "r", "s", "w", ()),))
    books = Books(Workload("w", (kernel,), (TaskGraph("g", (Task("a", "k"),)),), (Job(0, 0.0),)), t)
    assert books.decide(place(0, 0))
    assert may_start(books) == [0]
