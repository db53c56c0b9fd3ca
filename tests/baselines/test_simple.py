"""Policies that look at queues only, in situations made by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from symphony.baselines import BASELINES, EftBelief, Fifo, Random, ShortestQueue, Sjf, named
from symphony.problem.errors import InputError
from symphony.problem.workload import Kernel, Profile
from symphony.scheduling.policy import PLACE, WAIT, place
from tests.scheduling.by_hand import CPU0, CPU1, FPGA, GPU, MIB, decision, dot, pair, shared_books, work

# The same shapes in all three, so that each policy compiles once.


@pytest.mark.parametrize("name", BASELINES)
def test_with_nothing_to_place_it_waits(name: str) -> None:
    """A decision may be offered then, at the end of a counter window."""
    policy, books = named(name), shared_books(work(dot("any"), pair(), dot("any")), arrived=0)
    assert decision(policy, books.observe(true_background=[], policy=policy))[0] == WAIT


@pytest.mark.parametrize("name", BASELINES)
def test_a_gang_partly_placed_comes_first_and_goes_to_a_feasible_device(name: str) -> None:
    """Nothing else is allowed then, whatever the order of gangs."""
    policy, books = named(name), shared_books(work(dot("any"), pair(), dot("any"), priorities=(9, 0, 9)))
    gang = books.tasks
    assert books.decide(place(gang, CPU1))
    kind, chosen, device = decision(policy, books.observe(true_background=[], policy=policy))
    assert (kind, chosen) == (PLACE, gang)
    assert device in (CPU0, GPU)


@pytest.mark.parametrize("name", BASELINES)
def test_priority_comes_first(name: str) -> None:
    policy, books = named(name), shared_books(work(dot("any"), pair(), dot("any"), priorities=(0, 0, 5)))
    assert decision(policy, books.observe(true_background=[], policy=policy))[:2] == (PLACE, 2 * books.tasks)


# -------------------------------------------------------------------- random


def test_random_takes_any_candidate_and_any_feasible_device() -> None:
    books = shared_books(work(dot("cpu only"), dot("any")))
    drawn = Counter(decision(Random(), books.observe(), seed)[1:] for seed in range(400))
    choices = {(0, CPU0): 1 / 4, (0, CPU1): 1 / 4, **{(1, d): 1 / 8 for d in (CPU0, CPU1, GPU, FPGA)}}
    assert set(drawn) == set(choices)
    for choice, share in choices.items():
        assert drawn[choice] / 400 == pytest.approx(share, abs=0.06)


# -------------------------------------------------------------------- fifo


def test_fifo_takes_the_first_idle_device_fast_or_slow() -> None:
    books = shared_books(work(dot("any"), dot("any")))
    assert decision(Fifo(), books.observe()) == (PLACE, 0, CPU0)


def test_fifo_counts_a_device_with_a_free_slot_as_idle_unless_somebody_queues() -> None:
    books = shared_books(work(*[dot("any")] * 4))
    assert books.decide(place(0, CPU0))
    assert decision(Fifo(), books.observe())[2] == CPU1  # queued, not started
    books.start(0)
    assert decision(Fifo(), books.observe())[2] == CPU0  # its second slot


def test_fifo_waits_when_none_is_idle_even_if_a_younger_gang_could_go() -> None:
    books = shared_books(work(*[dot("cpu only")] * 2, dot("cpu only"), dot("any")))
    for gang, device in ((0, CPU0), (1, CPU1)):
        assert books.decide(place(gang, device))
        books.start(gang)
    assert decision(Fifo(), books.observe())[0] == PLACE  # both CPUs have a second slot
    books = shared_books(work(*[dot("any")] * 4, dot("cpu only"), dot("any")))
    for gang, device in ((0, CPU0), (1, CPU0), (2, CPU1), (3, CPU1)):
        assert books.decide(place(gang, device))
        books.start(gang)
    assert decision(Fifo(), books.observe())[0] == WAIT  # the oldest needs a CPU; the GPU idles for the next
    books.finish(1)
    assert decision(Fifo(), books.observe()) == (PLACE, 4, CPU0)


def test_fifo_keeps_a_gang_back_until_all_its_workers_have_idle_devices() -> None:
    books = shared_books(work(dot("any"), dot("any"), dot("any"), dot("any"), pair(), dot("any")))
    tasks = books.tasks
    for slot, device in enumerate((CPU0, CPU0, CPU1, CPU1)):
        assert books.decide(place(slot * tasks, device))
        books.start(slot * tasks)
    assert decision(Fifo(), books.observe())[0] == WAIT  # only the GPU is idle
    books.finish(0)
    assert decision(Fifo(), books.observe()) == (PLACE, 4 * tasks, CPU0)
    assert books.decide(place(4 * tasks, CPU0))
    assert decision(Fifo(), books.observe()) == (PLACE, 4 * tasks, GPU)


# -------------------------------------------------------------------- shortest queue


def test_shortest_queue_looks_at_seconds_not_at_numbers() -> None:
    """Eight seconds on the CPU's two slots, a second queued on the GPU: 4 against 1 ahead. The FPGA has none."""
    books = shared_books(work(*[dot("any")] * 5))
    for gang in (0, 1):
        assert books.decide(place(gang, CPU0))
    assert books.decide(place(2, GPU))
    assert books.observe().queue_s.tolist()[:4] == [4.0, 0.0, 1.0, 0.0]
    assert decision(ShortestQueue(), books.observe()) == (PLACE, 3, CPU1)
    books.fail(CPU1)
    assert decision(ShortestQueue(), books.observe()) == (PLACE, 3, FPGA)
    books.fail(FPGA)
    assert decision(ShortestQueue(), books.observe()) == (PLACE, 3, GPU)


# -------------------------------------------------------------------- shortest job first


def test_sjf_takes_the_shortest_on_its_best_device() -> None:
    """2 s on a CPU; 3 units of 0.5 s on the FPGA, though each takes 4 s on a CPU."""
    books = shared_books(work(dot("cpu only"), dot("any", units=3.0), dot("any", units=5.0)))
    assert decision(Sjf(), books.observe()) == (PLACE, 1, FPGA)


def test_sjf_goes_where_queue_and_run_time_are_least() -> None:
    books = shared_books(work(*[dot("any", units=2.0)] * 4))
    assert decision(Sjf(), books.observe())[2] == FPGA  # 1 s; set-up is no part of its estimate
    for gang in (0, 1, 2):
        assert books.decide(place(gang, FPGA))
    assert books.observe().queue_s.tolist()[:4] == [0.0, 0.0, 0.0, 1.5]
    assert decision(Sjf(), books.observe())[2] == GPU  # 2 s, against 1.5 + 1


def test_sjf_leaves_out_devices_that_a_footprint_does_not_fit() -> None:
    """A tenth of a second on the GPU, if only it fitted there; as it is, 9 s on a CPU."""
    large = Kernel("large", {"gpu": Profile(0.1, memory=17 * MIB), "cpu": Profile(9.0)})
    workload = work(dot("cpu only"), dot("cpu only"))
    graphs = (dot("large"), dot("cpu only", name="other"))
    books = shared_books(replace(workload, kernels=(*workload.kernels, large), graphs=graphs))
    assert decision(Sjf(), books.observe())[:2] == (PLACE, 1)


# -------------------------------------------------------------------- by name


def test_every_baseline_has_its_name() -> None:
    """The names are public: they stand in scripts and in kept records."""
    assert list(BASELINES) == [
        "random",
        "fifo",
        "shortest-queue",
        "sjf",
        "heft",
        "cpop",
        "peft",
        "dm",
        "dmda",
        "dmdas",
        "heteroprio",
        "sparrow",
        "sparrow-batch",
        "paragon",
        "paragon-profiled",
        "graphene",
        "tetris",
        "drf",
        "least-interference",
        "load-balancing",
        "fifo-passing",
        "srtf",
        "las",
        "tiresias",
        "optimus",
        "allox",
        "max-min-fairness",
        "max-min-fairness-plain",
        "max-min-fairness-packed",
        "max-sum-throughput",
        "max-sum-throughput-packed",
        "min-total-duration",
        "min-total-duration-packed",
        "finish-time-fairness",
        "finish-time-fairness-packed",
        "eft-static",
        "eft-belief",
        "eft-rebinding",
        "eft-exact",
    ]
    assert isinstance(named("eft-belief"), EftBelief)
    assert [name for name in BASELINES if named(name).cheats] == ["eft-exact"]


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown policy 'hefft'") as caught:
        named("hefft")
    assert "did you mean 'heft'?" in caught.value.hint and "eft-exact" in caught.value.hint
    with pytest.raises(InputError) as caught:
        named("xyzzy")
    assert "did you mean" not in caught.value.hint and "fifo" in caught.value.hint
