"""The rules of an instant, by themselves: what the simulator and the runtime both ask."""

from __future__ import annotations

import jax
import numpy as np

from symphony.problem.workload import Edge, Task, TaskGraph
from symphony.scheduling import instant
from symphony.scheduling.policy import place, wait
from symphony.scheduling.state import QUEUED, RUNNING
from tests.scheduling.by_hand import CPU0, CPU1, GPU, Books, dot, shared_books, work

GB = 1e9
_start, _load, _fetch = jax.jit(instant.start), jax.jit(instant.running_load), jax.jit(instant.next_fetch)


def test_a_decision_is_wanted_until_the_policy_waits() -> None:
    books = shared_books(work(dot("any")))
    assert bool(instant.decision_wanted(books.core, books.t))
    assert books.decide(wait())
    assert not bool(instant.decision_wanted(books.core, books.t))


def test_gangs_start_in_the_order_in_which_they_were_placed() -> None:
    books = shared_books(work(dot("any"), dot("any"), dot("any")))
    for gang, device in ((2, GPU), (0, CPU1), (1, GPU)):
        assert books.decide(place(gang, device))
    order = []
    for _ in range(3):
        books.core, begun = _start(books.core, books.t, books.w, books.now)
        order.append((int(begun.gang), bool(begun.when)))
    assert order == [(2, True), (0, True), (0, False)]  # the GPU has one slot: gang 1 waits
    assert books.status() == [RUNNING, QUEUED, RUNNING]


def test_an_input_is_fetched_from_the_nearest_copy_and_not_where_it_lies_already() -> None:
    tasks = (Task("a", "any"), Task("b", "any"), Task("c", "any"))
    books = Books(work(TaskGraph("g", tasks, (Edge("a", "b", GB), Edge("a", "c", GB)))))
    assert books.decide(place(0, CPU0))
    books.start(0)
    books.finish(0)
    assert books.decide(place(1, CPU1)) and books.decide(place(2, GPU))
    core, near = _fetch(books.core, books.t, books.w, books.core.fetches > 0)
    assert (int(near.device), int(near.gang), int(near.skipped), bool(near.goes)) == (CPU1, 1, 1, False)
    assert int(core.inputs_left[1]) == 0
    core, far = _fetch(core, books.t, books.w, core.fetches > 0)
    assert (int(far.device), int(far.gang), bool(far.goes)) == (GPU, 2, True)
    assert (int(far.source), int(far.parent), float(far.bytes)) == (CPU0, 0, GB)
    assert int(core.inputs_left[2]) == 1  # until somebody says that it is there


def test_running_workers_load_the_rows_of_their_devices_by_their_profiles() -> None:
    books = shared_books(work(dot("cpu only"), dot("cpu only"), dot("any")))
    for gang, device in ((0, CPU0), (1, CPU1), (2, GPU)):
        assert books.decide(place(gang, device))
    assert not np.asarray(_load(books.core, books.t, books.w)).any()  # what is queued loads nothing
    for gang in range(3):
        books.start(gang)
    # Each of the first two asks for 6 of the 10 GB/s of the memory that both CPUs share.
    np.testing.assert_allclose(_load(books.core, books.t, books.w)[:5], [1.2, 0, 0, 0, 0], rtol=1e-6)
    books.finish(0)
    np.testing.assert_allclose(_load(books.core, books.t, books.w)[:5], [0.6, 0, 0, 0, 0], rtol=1e-6)
