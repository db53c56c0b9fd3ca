"""Gavel: allocations against their optimality conditions, and rounds that carry them out."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy.optimize import linprog

from symphony.baselines.gavel import (
    AllocationProgram,
    MinTotalDuration,
    PairSpeed,
    concatenate,
    finish_time_fair,
    isolated,
    max_min,
    max_sum,
    pair_options,
    pair_speed,
    pair_speed_source,
    proportional,
    single_gang_options,
)
from tests.baselines.training import contract, finishes, jobs, preempted, run
from tests.policies.pictures import picture

NEAR = 2e-3  # allocations may miss the optimum by a thousandth
POLICIES = (
    "max-min", "max-min plain", "max-min packed", "max-sum", "max-sum packed", "duration", "duration packed",
    "finish-time", "finish-time packed",
)  # fmt: skip


def by_demand(need: np.ndarray) -> PairSpeed:
    """What pairs keep as their demands [n, Y, H] predict it."""
    return lambda i, others, k: (pair_speed(need[i, k], need[others, k]), pair_speed(need[others, k], need[i, k]))


@pytest.mark.parametrize("name", POLICIES)
def test_it_keeps_the_contract(name: str) -> None:
    contract(name)


# -------------------------------------------------------------------- allocations


def shares(rate: np.ndarray, workers: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """The max-min allocation as a table [jobs, kinds]."""
    options = single_gang_options(rate, workers)
    x = np.zeros(rate.shape)
    x[options.gang[:, 0], options.kind] = max_min(options, len(rate), capacity, proportional(rate, capacity) / workers)
    return x


def test_the_example_of_three_jobs_on_three_kinds() -> None:
    """One device of each kind; jobs of which one profits much, one little, one a little less from the fast kind.

    The optimum has equal normalised throughputs: more for one would be less for another.
    """
    rate = np.asarray([[4.0, 2.0, 1.0], [3.0, 2.5, 1.0], [10.0, 4.0, 1.0]])
    workers, capacity = np.ones(3), np.ones(3)
    x = shares(rate, workers, capacity)
    normal = (rate * x).sum(axis=1) / proportional(rate, capacity)
    assert normal == pytest.approx(np.full(3, normal[0]), rel=NEAR)
    assert normal[0] > 1  # better than an equal part of everything: the point of knowing speeds
    assert x.sum(axis=1) == pytest.approx(np.ones(3), abs=0.01)
    assert x[2, 0] > x[1, 0]  # who profits most is on the fast kind most


@pytest.mark.parametrize("seed", range(6))
def test_max_min_cannot_be_bettered(seed: int) -> None:
    """By duality: weights on jobs, times and kinds under which no allocation gets more than this one's minimum."""
    rng = np.random.default_rng(seed)
    n, kinds = int(rng.integers(2, 9)), 3
    rate = rng.uniform(0.1, 5.0, (n, kinds)) * (rng.random((n, kinds)) < 0.8)
    rate[:, 0] += 0.1
    workers, capacity = rng.integers(1, 3, n).astype(float), rng.integers(2, 5, kinds).astype(float)
    x = shares(rate, workers, capacity)
    norm = proportional(rate, capacity) / workers
    assert (x >= 0).all() and (x.sum(axis=1) <= 1 + 1e-6).all() and (workers @ x <= capacity + 1e-6).all()
    least = ((rate * x).sum(axis=1) / norm).min()
    # The dual: minimise sum of time prices + capacity . kind prices, with job weights that add up to 1.
    price = np.concatenate([np.zeros(n), np.ones(n), capacity])
    rows = []
    for i, k in product(range(n), range(kinds)):
        row = np.zeros(2 * n + kinds)
        row[i], row[n + i], row[2 * n + k] = rate[i, k] / norm[i], -1.0, -workers[i]
        rows.append(row)
    one = np.concatenate([np.ones(n), np.zeros(n + kinds)])[None]
    bound = linprog(price, np.asarray(rows), np.zeros(len(rows)), one, [1.0], method="highs").fun
    assert least == pytest.approx(bound, rel=NEAR)


def test_wide_gangs_have_less_time_by_their_width() -> None:
    """Four devices; a gang of 2 and four of 1, equal speeds: each gets an equal part of the devices."""
    rate, workers, capacity = np.ones((5, 2)), np.asarray([2.0, 1, 1, 1, 1]), np.asarray([2.0, 2.0])
    x = shares(rate, workers, capacity)
    assert x.sum(axis=1) * workers == pytest.approx(np.full(5, 0.8), abs=NEAR)


def test_jobs_that_need_no_fast_device_are_spread_evenly() -> None:
    """Blind to speed, two jobs on one device of each of three kinds: a third of the time on each."""
    x = shares(np.ones((1, 3)), np.ones(1), np.ones(3))
    assert x == pytest.approx(np.full((1, 3), 1 / 3), abs=NEAR)


def test_max_sum_gives_the_fast_kind_to_who_profits() -> None:
    """One fast, one slow device. The slow one is worth 0.9 to the first and 0.1 to the second."""
    rate, workers, capacity = np.asarray([[1.0, 0.9], [1.0, 0.1]]), np.ones(2), np.ones(2)
    options = single_gang_options(rate, workers)
    x = max_sum(options, 2, capacity, rate.max(axis=1))
    chosen = {(int(g), int(k)): share for (g, _), k, share in zip(options.gang, options.kind, x, strict=True)}
    assert chosen[0, 1] == pytest.approx(1) and chosen[1, 0] == pytest.approx(1)


def test_the_total_duration_is_as_short_as_can_be() -> None:
    """Two jobs on one fast and one slow device, half as fast: 12 units are done in 8 s, whoever has how many."""
    p = picture([9.0, 3.0], [[1.0, 0.5]] * 2, [0, 1])
    options = single_gang_options(p.rate, p.workers)
    x = MinTotalDuration().allocate(options, np.arange(2), np.ones(2), p)
    done = AllocationProgram(options, 2, np.ones(2)).throughput @ x
    assert (p.left / done).max() == pytest.approx(9.0, rel=NEAR)  # the long one has the fast device to itself
    p = picture([6.0, 6.0], [[1.0, 0.5]] * 2, [0, 1])
    done = AllocationProgram(options, 2, np.ones(2)).throughput @ MinTotalDuration().allocate(
        options, np.arange(2), np.ones(2), p
    )
    assert p.left / done == pytest.approx([8.0, 8.0], rel=NEAR)


@pytest.mark.parametrize("seed", range(4))
def test_finish_time_fairness_cannot_be_bettered(seed: int) -> None:
    """At a ratio a little below the one found, no allocation gives everyone what it needs."""
    rng = np.random.default_rng(seed)
    n = 5
    rate, workers, capacity = rng.uniform(0.5, 4.0, (n, 2)), np.ones(n), np.asarray([2.0, 1.0])
    left, age = rng.uniform(10, 100, n), rng.uniform(0, 50, n)
    own = 5.0 + left / isolated(rate, workers, capacity)
    options = single_gang_options(rate, workers)
    x = finish_time_fair(options, n, capacity, left, age, own)
    programme = AllocationProgram(options, n, capacity)
    ratio = ((age + left / (programme.throughput @ x)) / own).max()
    for nearer, reached in ((1.001, True), (0.99, False)):
        need = left / (nearer * ratio * own - age)
        if (need < 0).any():
            assert not reached
        else:
            assert (programme.lift(need)[0] >= 1) == reached


def test_an_nth_of_the_cluster() -> None:
    """Two jobs, 2 + 2 devices: each would have one of each kind, but can use one at a time."""
    assert isolated(np.asarray([[2.0, 1.0]] * 2), np.ones(2), np.asarray([2.0, 2.0])) == pytest.approx([1.5, 1.5])
    # A gang of two would have both of its devices half of the time on each kind.
    assert isolated(np.asarray([[2.0, 1.0]] * 2), np.full(2, 2.0), np.asarray([2.0, 2.0])) == pytest.approx([1.5, 1.5])


# -------------------------------------------------------------------- pairs


def test_the_speed_of_a_pair_is_that_of_its_scarcest_row() -> None:
    """0.8 + 0.6 of compute: 1/1.4 each; memory is enough. Who needs no compute is not slowed."""
    a, b = np.asarray([0.8, 0.1]), np.asarray([0.6, 0.2])
    assert pair_speed(a, b) == pytest.approx(1 / 1.4)
    assert pair_speed(np.asarray([0.0, 0.1]), b) == pytest.approx(1)


def test_only_pairs_that_get_more_done_are_considered() -> None:
    need = np.asarray([[[0.4]], [[0.5]], [[1.0]], [[1.0]]])
    found = pair_options(np.ones((4, 1)), np.ones(4), by_demand(need), [0])
    together = {tuple(map(int, pair)) for pair in found.gang}
    assert (0, 1) in together and (2, 3) not in together
    wide = pair_options(np.ones((4, 1)), np.asarray([1.0, 2.0, 1.0, 1.0]), by_demand(need), [0])
    assert not any(1 in pair for pair in wide.gang)


def test_packing_lifts_the_minimum() -> None:
    """Four jobs that use 0.4 of a device each, on one device: a quarter of it each alone, a half in pairs."""
    rate, workers, capacity = np.ones((4, 1)), np.ones(4), np.ones(1)
    single = single_gang_options(rate, workers)
    both = concatenate(single, pair_options(rate, workers, by_demand(np.full((4, 1, 1), 0.4)), [0]))
    for options, least in ((single, 0.25), (both, 0.5)):
        x = max_min(options, 4, capacity, np.ones(4))
        assert (AllocationProgram(options, 4, capacity).throughput @ x).min() == pytest.approx(least, rel=NEAR)


# -------------------------------------------------------------------- rounds


@pytest.mark.parametrize("name", ["max-min", "max-min plain", "finish-time"])
def test_equal_jobs_take_turns(name: str) -> None:
    """Three of 12 s on one device, rounds of 1 s: all get a third, so the first ends after about 34 of 36 s."""
    record = run(name, jobs((0, 12, 1), (0, 12, 1), (0, 12, 1)), window_s=1.0)
    ends = sorted(finishes(record))
    assert ends[2] == pytest.approx(36, rel=1e-4)
    assert ends[0] > 30
    assert record.refused == 0


def test_nobody_moves_without_need() -> None:
    """As many devices as jobs, all alike."""
    record = run("max-min", jobs((0, 9, 1), (0, 9, 1), kernel="two"), window_s=1.0)
    assert finishes(record) == pytest.approx([9, 9], rel=1e-4)
    assert not preempted(record)


def test_a_gang_that_may_not_be_preempted_never_is() -> None:
    record = run("max-min", jobs((0, 9, 1), (1, 3, 1), preemptible=False), window_s=1.0)
    assert finishes(record) == pytest.approx([9, 12], rel=1e-4)


def test_a_device_that_falls_idle_within_a_round_is_given_away_at_once() -> None:
    record = run("max-min", jobs((0, 3, 1), (0, 4, 1), preemptible=False), window_s=50.0)
    assert max(finishes(record)) == pytest.approx(7, rel=1e-4)


def test_a_running_gang_moves_to_a_better_kind_at_the_end_of_a_round() -> None:
    """Four jobs on three fast and two slow devices: one is on a slow one until the fast ones are free."""
    record = run("max-min", jobs(*[(0.0, 8.0, 1)] * 3, (0.0, 20.0, 1), kernel="much faster on three"), window_s=1.0)
    assert max(finishes(record)) < 30  # 160 s if it had stayed on a slow one
    kinds = {device for stay in record.gangs for device in stay.devices}
    assert kinds & {1, 2} and kinds & {3, 4, 5}


def test_wide_gangs_get_all_their_devices() -> None:
    record = run("max-min", jobs((0, 6, 2), (0, 6, 1), (0, 6, 1), kernel="two"), window_s=1.0)
    assert max(finishes(record)) == pytest.approx(12, abs=2.01)
    assert all(len(set(stay.devices)) == 2 for stay in record.gangs if stay.job == 0)


def test_pairs_share_a_device_if_that_gets_more_done() -> None:
    """Four jobs of 10 s on two devices of two slots: with 0.4 of a device each, nobody is slowed; with all, all are."""
    light = run("max-min packed", jobs(*[(0.0, 10.0, 1)] * 4, kernel="shared 40"), window_s=1.0)
    assert max(finishes(light)) <= 12.01  # pairs are made at the end of a round
    heavy = run("max-min packed", jobs(*[(0.0, 10.0, 1)] * 4, kernel="shared 100"), window_s=1.0)
    assert max(finishes(heavy)) == pytest.approx(20, abs=0.01)
    together = [
        (a, b)
        for a, b in combinations(heavy.gangs, 2)
        if a.devices == b.devices and min(a.finish_s, b.finish_s) - max(a.start_s, b.start_s) > 1e-3
    ]
    assert not together
    assert light.refused == heavy.refused == 0


def test_what_is_told_of_pairs_counts_more_than_demands() -> None:
    """Kernel 0 keeps 0.9 beside kernel 1, and 1 keeps 0.4 beside 0; like must not share."""
    beside = np.asarray([[0.0, 0.9], [0.4, 0.0]])[..., None]
    p = picture([1.0] * 2, [[1.0]] * 2, [0], slots=2, beside=beside)
    mine, theirs = pair_speed_source(p, np.asarray([0, 1]))(0, np.asarray([1]), 0)
    assert (mine.tolist(), theirs.tolist()) == ([0.9], [0.4])
    assert len(pair_options(p.rate, p.workers, pair_speed_source(p, np.asarray([0, 1])), [0]).kind) == 1
    alike = p._replace(kernel=np.asarray([0, 0]))
    assert len(pair_options(p.rate, p.workers, pair_speed_source(alike, np.asarray([0, 1])), [0]).kind) == 0
