"""Representatives of equivalent GPUs: the first empty one, and the one whose job is worth least."""

from __future__ import annotations

import numpy as np

from symphony.training_jobs import planner
from symphony.training_jobs.partial_plan import EMPTY_GPU, UNSHARABLE_GPU, GpuOccupancy, PartialPlan
from symphony.training_jobs.planner import Planner, progress_weights
from symphony.training_jobs.round_planning import SeatAllocation
from tests.policies.pictures import picture


def four() -> GpuOccupancy:
    made = GpuOccupancy(np.asarray([0, 0, 0, 1]), np.asarray([0, 0, 1, 1]), 2, 3)
    for device in range(4):
        made.update(device, EMPTY_GPU, 0.0)
    return made


def test_of_empty_gpus_of_a_kind_one_is_looked_at() -> None:
    assert four().candidates(-1).tolist() == [0, 3]
    assert four().candidates(2).tolist() == [0, 2, 3]


def test_of_jobs_of_a_kernel_the_one_that_is_worth_least_is_joined() -> None:
    o = four()
    for device, worth in enumerate((3.0, 1.0, 2.0)):
        o.update(device, 2, worth)
    assert o.candidates(-1).tolist() == [1, 3]
    o.update(1, UNSHARABLE_GPU, 0.0)
    assert o.candidates(-1).tolist() == [2, 3]
    o.update(2, 2, 9.0)
    assert o.candidates(-1).tolist() == [0, 3]


def test_a_gang_goes_to_the_machine_with_just_enough() -> None:
    o = GpuOccupancy(np.zeros(5, int), np.asarray([0, 0, 0, 1, 1]), 1, 0)
    for device in range(5):
        o.update(device, EMPTY_GPU, 0.0)
    assert o.on_one_machine(0, 2).tolist() == [3, 4]
    assert o.on_one_machine(0, 3).tolist() == [0, 1, 2]
    assert o.on_one_machine(0, 4).tolist() == []
    o.update(3, UNSHARABLE_GPU, 0.0)
    assert o.on_one_machine(0, 2).tolist() == [0, 1]


def worth_with(board: PartialPlan, row: int) -> np.ndarray:
    """Value of every device with one more row; -inf without room."""
    free = board.on < 0
    rows = board.on.copy()
    rows[np.arange(len(rows)), np.argmax(free, axis=1)] = row
    able = (board.room > 0) & free.any(axis=1) & (board.p.rate[row, board.kind] > 0)
    return np.where(able, board.worth(rows, np.arange(len(rows))), -np.inf)


def test_a_greedy_plan_finds_the_place_that_a_look_at_all_gpus_finds(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Job after job, on a board that fills up."""
    rng = np.random.default_rng(2)
    p = picture(
        rng.lognormal(5, 1, 30).tolist(), rng.uniform(0.1, 1.0, (30, 2)).tolist(), [0, 1] * 8, slots=2,
        beside=rng.uniform(0.5, 1.0, (30, 30, 2)),
    )  # fmt: skip
    p = p._replace(kernel=np.arange(30) % 4)
    board = PartialPlan(p, SeatAllocation(p), progress_weights(p), 1800.0)
    for row in range(30):
        gain = worth_with(board, row) - board.value
        devices, found = board.best_place(row)
        assert np.isclose(found, max(0.0, gain.max()))
        if devices:
            board.put(row, devices)
    monkeypatch.setattr(planner, "MAX_EXACT_JOBS", 0)
    assert len({int(row) for row in Planner().plan(p).lanes if row >= 0}) >= 16
