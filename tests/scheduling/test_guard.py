"""What no weights may choose, in situations worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.problem.workload import Kernel, Profile, Task, TaskGraph
from symphony.scheduling.guard import MAX_DELAY, overdue_jobs, queue_order, trusted
from symphony.scheduling.policy import Observation, place
from tests.scheduling.by_hand import CPU0, CPU1, FPGA, GB, GPU, KERNELS, Books, chain, dot, shared_books, work

_trusted, _queue_order = jax.jit(trusted), jax.jit(queue_order)


def allowed(shown: Observation, gang: int = 0, work_s: float = np.inf) -> set[int]:
    found = _trusted(shown, jnp.asarray(gang), shown.feasible(jnp.asarray(gang)), jnp.asarray(work_s))
    return set(np.flatnonzero(np.asarray(found)).tolist())


def test_a_device_that_is_far_slower_than_the_best_is_not_allowed() -> None:
    """4 s on a CPU, 1 s on the GPU, 1 s on the FPGA with its set-up."""
    assert allowed(shared_books(work(dot("any"))).observe()) == {GPU, FPGA}


def test_what_counts_is_when_it_would_finish_not_how_fast_the_device_is() -> None:
    """The inputs lie at the CPUs, 4 s there; GPU and FPGA would fetch them for 8 s first. Then the GPU has a queue."""
    assert allowed(shared_books(work(chain(size=8 * GB))).observe()) == {CPU0, CPU1}
    books = shared_books(work(*[dot("any")] * 5))
    books.fail(FPGA)
    for gang in range(2):
        assert books.decide(place(gang, GPU))
    assert allowed(books.observe(), 2) == {CPU0, CPU1, GPU}, "3 s against 4: within half"


def test_the_best_of_what_is_left_is_always_allowed() -> None:
    books = shared_books(work(dot("any")))
    for device in (GPU, FPGA, CPU0):
        books.fail(device)
    assert allowed(books.observe()) == {CPU1}


def test_a_worker_that_is_late_is_not_taken_to_be_done_at_once() -> None:
    """Gang 0 should have left the GPU after 1 s. After 21 s it is expected for 2.1 s more, so that 4 s on a CPU are not
    too late for the next one."""
    books = shared_books(work(dot("any"), dot("any")))
    books.fail(FPGA)
    assert books.decide(place(0, GPU))
    books.start(0)
    books.pass_time(1.0)
    assert allowed(books.observe(), 1) == {GPU}
    books.pass_time(20.0)
    assert allowed(books.observe(), 1) == {CPU0, CPU1, GPU}


@pytest.mark.parametrize(("deviation", "expected"), [(0.0, {CPU0, CPU1}), (2.0, {CPU0, CPU1, GPU})])
def test_loads_in_doubt_count_with_their_mean_effect_and_no_more(deviation: float, expected: set[int]) -> None:
    """2 s on either CPU, where it asks for 0.6 of the memory; 4 s on the GPU and 5 s on the FPGA. With a load by others
    of 0 ± 2 it takes 3.2 ± 2.1 s on a CPU."""
    kernel = Kernel("any", {"cpu": Profile(2.0, demand={"memory": 6 * GB}), "gpu": Profile(4.0), "fpga": Profile(5.0)})
    shown = shared_books(replace(work(dot("any")), kernels=(kernel, *KERNELS[1:]))).observe()
    doubtful = replace(shown, background_std=jnp.full(shown.background_std.shape, deviation))
    assert allowed(doubtful) == expected


def test_a_long_gang_is_not_sent_away_by_short_ones() -> None:
    """100 s on a CPU, 170 s on the GPU. Three gangs of 2 s load the memory of the CPUs, where it would take 240 s if
    they went on for ever; but all work takes another 2 s."""
    long = Kernel(
        "any", {"cpu": Profile(100.0, demand={"memory": 6 * GB}), "gpu": Profile(170.0), "fpga": Profile(900.0)}
    )
    books = shared_books(replace(work(*[dot("cpu only")] * 3, dot("any")), kernels=(long, *KERNELS[1:])))
    for gang, device in enumerate((CPU0, CPU0, CPU1)):
        assert books.decide(place(gang, device))
        books.start(gang)
    shown = books.observe([1.8])
    assert allowed(shown, 3) == {GPU}
    assert allowed(shown, 3, work_s=2.0) == {CPU0, CPU1}


def test_doubt_about_a_device_is_no_reason_to_go_there() -> None:
    """1 s on the GPU, for sure; on a CPU 5.6 ± 5.6 s, since it would need memory that others may load."""
    kernel = Kernel("any", {"cpu": Profile(2.0, demand={"memory": 6 * GB}), "gpu": Profile(1.0), "fpga": Profile(9.0)})
    shown = shared_books(replace(work(dot("any")), kernels=(kernel, *KERNELS[1:]))).observe()
    doubtful = replace(shown, background_std=jnp.full(shown.background_std.shape, 5.0))
    assert allowed(doubtful) == {GPU}


def test_a_job_is_overdue_once_its_slow_down_is_far_above_that_of_the_others() -> None:
    there = jnp.asarray([True, True, True, False])

    def overdue(*slow: float) -> list[bool]:
        return np.asarray(overdue_jobs(there, jnp.asarray([*slow, 99.0]))).tolist()

    assert overdue(2.0, 4.0, 3 * MAX_DELAY + 0.1) == [False, False, True, False]
    assert overdue(2.0, 4.0, 3 * MAX_DELAY - 0.1) == [False] * 4
    assert overdue(20.0, 40.0, 3 * MAX_DELAY + 0.1) == [False] * 4, "under load, all are slower"
    assert overdue(0.5, 0.5, MAX_DELAY - 0.1) == [False] * 4, "nobody is slower than alone"


def put(books: Books, gang: int, need_s: float | None = None) -> None:
    """Place a gang on the GPU. `need_s`: what its job still needs, by default all of it."""
    job = gang // books.tasks
    left_s = books.w.isolated[books.core.graph[job]] if need_s is None else np.float32(need_s)
    order = _queue_order(books.observe(), np.asarray([job]), np.reshape(left_s, 1))
    assert books.decide(place(gang, GPU, order[0]))


def queue(books: Books) -> list[int]:
    """Gangs in queues, the first first."""
    waits = np.flatnonzero(np.asarray(books.core.device)[:, 0] >= 0)
    return sorted(waits.tolist(), key=lambda gang: (int(books.core.sequence[gang]), gang))


def test_a_gang_is_overtaken_only_by_those_of_shorter_jobs_and_only_until_it_is_due() -> None:
    """Jobs of 100, 1, 1 and 50 s, due after four times that."""
    books = shared_books(work(*[dot("any", units=units) for units in (200.0, 2.0, 2.0, 100.0)]))
    put(books, 0)
    books.pass_time(300.0)
    put(books, 1)
    assert queue(books) == [1, 0] and int(books.core.head[GPU]) == 1
    put(books, 3)
    assert queue(books) == [1, 0, 3], "due after 304, 400 and 500 s"
    books.pass_time(99.0)
    put(books, 2)
    assert queue(books) == [1, 0, 2, 3], "due after 403 s"


def test_no_gang_of_lower_priority_overtakes() -> None:
    books = shared_books(work(*[dot("any", units=units) for units in (200.0, 2.0, 2.0)], priorities=(1, 0, 1)))
    for gang in (0, 2, 1):
        put(books, gang)
    assert queue(books) == [2, 0, 1]


def test_gangs_of_one_job_stay_in_order_as_its_path_becomes_shorter() -> None:
    both = TaskGraph("both", (Task("a", "any", units=200.0), Task("b", "any", units=2.0)))
    books = shared_books(work(both, dot("any", units=2.0)))
    put(books, 0)
    put(books, 1, need_s=1.0)
    put(books, books.tasks)
    assert queue(books) == [books.tasks, 0, 1]


def test_what_is_due_in_a_month_is_first_in_first_out() -> None:
    books = shared_books(work(*[dot("any", units=units) for units in (2e6, 1.5e6, 1.0)]))
    for gang in range(3):
        put(books, gang)
    assert queue(books) == [2, 0, 1]
