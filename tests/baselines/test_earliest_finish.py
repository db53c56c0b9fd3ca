"""Policies that place where a gang would finish first, in situations made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symphony.baselines import EftBelief, EftExact, EftRebinding, EftStatic, Heft
from symphony.problem.workload import Edge, Task, TaskGraph
from symphony.scheduling.policy import PLACE, WAIT, Observation, Policy, place
from tests.scheduling.by_hand import (
    CPU0,
    CPU1,
    FPGA,
    GB,
    GPU,
    KERNELS,
    Books,
    chain,
    decision,
    dot,
    pair,
    shared_books,
    work,
)

ALL = [EftStatic(), EftBelief(), EftExact(), Heft()]


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
def test_on_an_idle_cluster_the_fastest_device_wins(policy: Policy) -> None:
    """The GPU takes 1 s, the FPGA 0.5 and as much to set up; 3 units make the set-up worth it."""
    books = shared_books(work(dot("any")))
    assert decision(policy, books.observe(true_background=[])) == (PLACE, 0, GPU)
    books = shared_books(work(dot("any", units=3.0)))
    assert decision(policy, books.observe(true_background=[])) == (PLACE, 0, FPGA)


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
def test_a_queue_can_make_a_slower_device_the_earlier(policy: Policy) -> None:
    books = shared_books(work(*[dot("any")] * 8))
    assert books.decide(place(0, GPU))
    assert decision(policy, books.observe(true_background=[]))[2] == FPGA  # 1 s, set-up included, against 1 + 1
    for gang in (1, 2, 3, 4, 5):
        assert books.decide(place(gang, FPGA))
    assert decision(policy, books.observe(true_background=[]))[2] == GPU  # 2 s; five in two contexts: 1.25 + 0.5 + 0.5


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
def test_data_far_away_can_make_a_slower_device_the_earlier(policy: Policy) -> None:
    """5 GB at home, 5 s to the GPU and 1 s there; 4 s on the CPU where they lie."""
    books = shared_books(work(chain(size=5 * GB)))
    assert decision(policy, books.observe(true_background=[])) == (PLACE, 0, CPU0)
    books = shared_books(work(chain(size=2 * GB)))
    assert decision(policy, books.observe(true_background=[])) == (PLACE, 0, GPU)


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
def test_workers_of_a_gang_stay_close_if_they_have_much_to_say(policy: Policy) -> None:
    """The first is on a CPU; the GPU is four times as fast. Exchange over the NIC takes 0.5 s a unit, or 1 s."""
    books = shared_books(work(pair()))
    assert books.decide(place(0, CPU0))
    assert decision(policy, books.observe(true_background=[])) == (PLACE, 0, GPU)  # 0.75 s a unit, against 1
    talkative = tuple(replace(kernel, exchange_bytes=2 * kernel.exchange_bytes) for kernel in KERNELS)
    books = shared_books(replace(work(pair()), kernels=talkative))
    assert books.decide(place(0, CPU0))
    assert decision(policy, books.observe(true_background=[])) == (PLACE, 0, CPU1)  # 1 s a unit, against 1.25


# -------------------------------------------------------------------- what they know


def with_tenants(read: float, truly: float) -> Observation:
    """Somebody loads the NIC of the first machine, where 2.5 GB lie for a gang: what counters read, and the truth."""
    books = shared_books(work(chain(size=2.5 * GB)))
    books.window([0.0, read], [0.0, 0.0])
    return books.observe(true_background=[0.0, truly])


def test_only_a_belief_sees_that_a_link_is_busy() -> None:
    """2.5 s of transfer to the GPU become 5: then the CPU, at 4 s, is earlier. Profiles alone do not say so."""
    seen = with_tenants(1.0, 1.0)
    assert decision(EftStatic(), seen)[2] == GPU
    assert decision(Heft(), seen)[2] == GPU
    assert decision(EftBelief(), seen)[2] == CPU0
    assert decision(EftExact(), seen)[2] == CPU0


def test_a_belief_can_be_wrong_and_the_truth_cannot() -> None:
    stale = with_tenants(1.0, 0.0)
    assert decision(EftBelief(), stale)[2] == CPU0
    assert decision(EftExact(), stale)[2] == GPU
    unseen = with_tenants(0.0, 1.0)
    assert decision(EftBelief(), unseen)[2] == GPU
    assert decision(EftExact(), unseen)[2] == CPU0


def test_what_is_our_own_is_not_counted_twice() -> None:
    """A reading of 1.0 that was all ours, of work that is over, is no background."""
    books = shared_books(work(chain(size=2.5 * GB)))
    books.window([0.0, 1.0], [0.0, 1.0])
    assert decision(EftBelief(), books.observe())[2] == GPU
    assert decision(EftBelief(), books.observe([0.0, 1.0]))[2] == CPU0  # ours, and it goes on


def test_a_noisy_belief_decides_differently_from_window_to_window() -> None:
    books = shared_books(work(chain(size=2.5 * GB)))
    chosen = set()
    for _ in range(12):
        books.window([0.0, 0.6], [0.0, 0.0])
        chosen.add(decision(EftBelief(), books.observe(noise=0.5))[2])
    assert chosen == {CPU0, GPU}


# -------------------------------------------------------------------- in which order


def fork() -> TaskGraph:
    """A short task with a long tail, and a long task with none."""
    tasks = (Task("long", "any", units=3.0), Task("short", "any"), Task("tail", "any", units=9.0))
    return TaskGraph("fork", tasks, (Edge("short", "tail"),))


def test_a_gang_that_waits_for_a_device_goes_to_another_that_would_finish_it_earlier() -> None:
    """The GPU is busy for 1 s and takes 1 s, a CPU 4 s, the FPGA 1 s with its set-up, but it is down at first."""
    books = shared_books(work(dot("any"), dot("any"), dot("cpu only")))
    books.fail(FPGA)
    assert books.decide(place(0, GPU))
    books.start(0)
    assert decision(EftBelief(), books.observe())[:3] == (PLACE, 1, GPU)  # and there it stays
    assert decision(EftRebinding(), books.observe())[:2] == (PLACE, 2), "the next one need not wait for it"
    assert books.decide(place(2, CPU0))
    assert decision(EftRebinding(), books.observe())[0] == WAIT
    books.repair(FPGA)
    assert decision(EftRebinding(), books.observe()) == (PLACE, 1, FPGA)


def test_gangs_that_wait_are_assigned_behind_one_another() -> None:
    """The first two will have the GPU, after 2 s and 3 s; the third would have it after 4, and is as early on a CPU."""
    books = shared_books(work(*[dot("any")] * 4))
    books.fail(FPGA)
    assert books.decide(place(0, GPU))
    books.start(0)
    assert decision(EftRebinding(), books.observe()) == (PLACE, 3, CPU0)


def test_heft_takes_the_longest_way_to_the_end_first() -> None:
    books = Books(work(dot("any"), fork()))
    assert decision(Heft(), books.observe())[1] == books.tasks + 1
    for policy in (EftStatic(), EftBelief()):
        assert decision(policy, books.observe())[1] == 0  # the oldest job


def test_those_that_do_not_rank_take_the_oldest_job_and_its_lowest_gang() -> None:
    books = Books(work(fork(), dot("any")))
    assert decision(EftStatic(), books.observe())[1] == 0
    assert decision(Heft(), books.observe())[1] == 1
