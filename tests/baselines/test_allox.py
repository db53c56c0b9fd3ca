"""AlloX: the matching is optimal for a batch, and whoever comes first in it starts."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from symphony.baselines.allox import matching
from tests.baselines.training import contract, finishes, jobs, preempted, run


def test_it_keeps_the_contract() -> None:
    contract("allox")


def total(seconds: np.ndarray, device: np.ndarray, behind: np.ndarray) -> float:
    """Sum of completion times if jobs run on their devices, those with more behind them first."""
    answer = 0.0
    for d in range(seconds.shape[1]):
        mine = sorted(np.flatnonzero(device == d), key=lambda job: -behind[job])
        answer += float(np.cumsum(seconds[mine, d]).sum())
    return answer


@pytest.mark.parametrize("seed", range(8))
def test_the_matching_equals_brute_force(seed: int) -> None:
    """Four jobs, two devices: all 16 assignments, and all orders on each device."""
    seconds = np.random.default_rng(seed).uniform(1, 10, (4, 2))
    best = min(
        sum(
            min(float(np.cumsum(seconds[list(o), d]).sum()) for o in permutations(np.flatnonzero(where == d)))
            for d in (0, 1)
        )
        for where in map(np.asarray, product((0, 1), repeat=4))
    )
    assert total(seconds, *matching(seconds)) == pytest.approx(best)


def test_a_job_is_matched_where_it_can_run() -> None:
    seconds = np.asarray([[np.inf, 9.0], [1.0, 5.0], [2.0, np.inf]])
    device, behind = matching(seconds)
    assert device.tolist() == [1, 0, 0]
    assert behind[1] > behind[2]  # the shorter first


def test_a_batch_on_unlike_devices_runs_as_matched() -> None:
    """Three devices take 1 s and two take 8 s for what takes 1 s: nine jobs of 1 s go three by three to the fast ones.

    On a slow device a job would take 8 s; on a fast one the last of three ends after 3 s.
    """
    record = run("allox", jobs(*[(0.0, 1.0, 1)] * 9, kernel="much faster on three"))
    assert sorted(finishes(record)) == pytest.approx([1, 1, 1, 2, 2, 2, 3, 3, 3], rel=1e-4)


def test_a_device_is_left_idle_only_if_waiting_for_another_is_shorter() -> None:
    """Five of 4 s; a slow device takes 8 s, and so does waiting for a fast one: all end by 8."""
    record = run("allox", jobs(*[(0.0, 4.0, 1)] * 5, kernel="faster on three"))
    assert sorted(finishes(record)) == pytest.approx([4, 4, 4, 8, 8], rel=1e-4)


def test_the_shortest_of_a_batch_goes_first_and_nobody_is_preempted() -> None:
    record = run("allox", jobs((0, 5, 1), (1, 4, 1), (1, 2, 1), (2, 1, 1)), window_s=1.0)
    assert finishes(record) == pytest.approx([5, 12, 8, 6], rel=1e-4)
    assert not preempted(record)


def test_a_wide_gang_gets_its_devices_together() -> None:
    record = run("allox", jobs((0, 2, 1), (0, 2, 2), (0, 2, 1), kernel="two"))
    stays = {stay.job: stay for stay in record.gangs}
    assert len(set(stays[1].devices)) == 2
    assert max(finishes(record)) <= 6.001
