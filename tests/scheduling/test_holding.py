"""For how long a ready gang may be held, in situations worked out by hand."""

from __future__ import annotations

import jax
import pytest

from symphony.scheduling.holding import Holding, holding
from symphony.scheduling.policy import place
from tests.scheduling.by_hand import CPU0, CPU1, FPGA, GPU, Books, dot, shared_books, work

_holding = jax.jit(holding)


def asked(books: Books, load: list[float] | None = None) -> Holding:
    return _holding(books.observe(load or []))


def with_a_busy_gpu(*more: str) -> Books:
    """Gang 0 runs on the GPU for a second; gang 1 takes 4 s on a CPU or 1 s on the GPU. There is no FPGA."""
    books = shared_books(work(dot("any"), dot("any"), *map(dot, more)))
    books.fail(FPGA)
    assert books.decide(place(0, GPU))
    books.start(0)
    return books


def test_who_could_start_where_it_is_fastest_may_not_be_held() -> None:
    found = asked(shared_books(work(dot("any"))))
    assert bool(found.held[0]) and bool(found.overdue[0]) and not bool(found.allowed)
    assert float(found.gain_s[0]) == 0.0 and int(found.here[0]) == FPGA


def test_who_would_be_done_earlier_on_a_busy_device_may_be_held_for_the_difference() -> None:
    """4 s on a CPU now; or 1 s until the GPU is free, and 1 s there."""
    books = with_a_busy_gpu()
    found = asked(books)
    assert bool(found.allowed) and float(found.gain_s[1]) == pytest.approx(2.0)
    assert float(found.wait_s) == pytest.approx(2.0)
    assert (int(found.here[1]), int(found.there[1])) == (CPU0, GPU)
    books.pass_time(0.5)  # the GPU is nearer to being free: the reason is as good as before
    found = asked(books)
    assert float(found.gain_s[1]) == pytest.approx(2.5) and float(found.wait_s) == pytest.approx(2.0)


def test_it_is_held_no_longer_than_it_can_gain_however_late_the_other_device_is() -> None:
    """The GPU should be free after 1 s and is not: 4 s on a CPU against 1 s there, so 3 s at most."""
    books = with_a_busy_gpu()
    books.pass_time(2.0)
    assert float(asked(books).wait_s) == pytest.approx(1.0)
    books.pass_time(1.0)
    found = asked(books)
    assert bool(found.overdue[1]) and not bool(found.allowed)


def test_no_time_is_left_for_a_reason_that_never_was() -> None:
    """Another gang of 4 s waits for the GPU: 4 s on a CPU now is no later."""
    books = shared_books(work(dot("any", units=4.0), dot("any")))
    books.fail(FPGA)
    assert books.decide(place(0, GPU))
    assert bool(asked(books).overdue[1])


def test_placing_others_does_not_set_it_back_and_being_placed_does() -> None:
    books = with_a_busy_gpu("cpu only")
    books.pass_time(0.75)
    assert books.decide(place(2, CPU1))
    assert float(books.core.held.total[1]) == pytest.approx(0.75) and float(books.core.held.total[2]) == 0.0
    books.pass_time(0.5)
    assert float(books.core.held.total[1]) == pytest.approx(1.25)
    assert books.decide(place(1, CPU0))
    assert float(books.core.held.total[1]) == 0.0
    books.pass_time(1.0)
    assert float(books.core.held.total[1]) == 0.0


def test_nobody_is_held_while_no_device_is_open() -> None:
    books = with_a_busy_gpu()
    books.fail(CPU0)
    books.fail(CPU1)
    books.pass_time(5.0)
    found = asked(books)
    assert float(books.core.held.total[1]) == 0.0
    assert not bool(found.held.any()) and bool(found.allowed) and float(found.wait_s) == float("inf")


def test_what_others_load_is_a_reason_to_wait_for_them_to_go() -> None:
    """2 s on a CPU, asking for 0.6 of its memory: with 0.9 taken by others, 1.5 times as long."""
    books = shared_books(work(dot("cpu only")))
    found = asked(books, [0.9])
    assert float(found.gain_s[0]) == pytest.approx(1.0) and bool(found.allowed)
    assert int(found.here[0]) == int(found.there[0]) == CPU0


def test_waits_for_the_time_left_are_few_though_it_does_not_shrink() -> None:
    """4 s on a CPU; or 1 s on the GPU, which is busy for 2.99 s. The gain of 0.01 s grows as fast as the time held."""
    books = shared_books(work(dot("any", units=2.99), dot("any")))
    books.fail(FPGA)
    assert books.decide(place(0, GPU))
    books.start(0)
    waits = []
    while bool((found := asked(books)).allowed) and len(waits) < 100:
        waits.append(float(found.wait_s))
        books.pass_time(waits[-1])
    assert waits == pytest.approx([0.01] * len(waits), rel=0.02)
    assert 60 < len(waits) < 66 and bool(found.overdue[1])
