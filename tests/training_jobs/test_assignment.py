"""The exact plan: worth as much as any, and seated where people are already."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest

from symphony.training_jobs.assignment import STRAY_PREFIX, assign, best, choices, without_stray_lines
from symphony.training_jobs.partial_plan import PartialPlan
from symphony.training_jobs.planner import Planner, progress_weights
from symphony.training_jobs.round_planning import PlanInputs, SeatAllocation
from tests.policies.pictures import picture


def board_of(p: PlanInputs) -> PartialPlan:
    return PartialPlan(p, SeatAllocation(p), progress_weights(p), 1800.0)


def everyone(p: PlanInputs) -> np.ndarray:
    return np.arange(len(p.gang))


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_is_worth_more(seed: int) -> None:
    """All ways for five jobs to have three GPUs of two kinds, tried one by one."""
    rng = np.random.default_rng(seed)
    beside = rng.uniform(0.3, 1.0, (5, 5, 2))
    p = picture(
        rng.lognormal(5, 1, 5).tolist(), rng.uniform(0.1, 1.0, (5, 2)).tolist(), [0, 0, 1], slots=2,
        workers=[1, 2, 1, 1, 1], beside=beside,
    )  # fmt: skip
    board, gpus = board_of(p), np.asarray([2, 1])
    found = choices(board, everyone(p), gpus, np.asarray([True, True]))
    most = 0.0
    for where in product((-1, 0, 1, 2), repeat=5):
        value = board.weight[:, None] * p.rate
        total, able = 0.0, True
        for device, kind in ((0, 0), (1, 0), (2, 1)):
            on = [row for row in range(5) if where[row] == device and row != 1]
            gang = where[1] >= 0 and kind == 0  # the gang has both GPUs of the first kind
            able &= len(on) <= 2 and not (gang and on) and where[1] in (-1, 0)
            for row in on:
                other = [x for x in on if x != row]
                total += value[row, kind] * (beside[row, other[0], kind] if other else 1.0)
        total += value[1, 0] if where[1] >= 0 else 0.0
        most = max(most, total) if able else most
    assert best(found, gpus).worth.sum() == pytest.approx(most, rel=2e-3)


def test_a_gang_gets_what_jobs_of_one_gpu_would_have_taken() -> None:
    """Two short ones on the slow kind, the gang of two on the fast one, where it is nine times as fast."""
    p = picture([100.0, 100.0, 300.0], [[1.0, 0.9], [1.0, 0.9], [0.9, 0.1]], [0, 0, 1, 1], workers=[1, 1, 2])
    assert sorted(assign(board_of(p), everyone(p))[2]) == [0, 1]


def test_who_runs_on_the_kind_that_is_meant_stays_where_it_is() -> None:
    p = picture([100.0] * 3, [[1.0]] * 3, [0] * 4, on={0: 2, 1: 3}, moving_s=60.0)
    at = assign(board_of(p), everyone(p))
    assert at[0] == (2,) and at[1] == (3,) and at[2] in ((0,), (1,))


def test_a_gang_has_a_machine_to_itself_where_that_displaces_fewest() -> None:
    p = picture([1e3, 1e3], [[1.0], [1.0]], [0] * 4, workers=[1, 2], machines=[0, 0, 1, 1], on={0: 1}, moving_s=60.0)
    at = assign(board_of(p), everyone(p))
    assert at == {0: (1,), 1: (2, 3)}


def test_one_comes_over_to_the_other_where_two_are_to_share() -> None:
    p = picture([100.0] * 2, [[1.0, 0.1]] * 2, [0, 1], slots=2, on={0: 0, 1: 1}, beside=np.full((2, 2, 2), 0.9))
    assert assign(board_of(p), everyone(p)) == {0: (0,), 1: (0,)}


def test_a_gpu_of_one_slot_is_not_shared() -> None:
    p = picture([100.0] * 2, [[1.0, 0.1]] * 2, [0, 1], slots=1, beside=np.full((2, 2, 2), 0.9))
    assert sorted(assign(board_of(p), everyone(p)).values()) == [(0,), (1,)]


def test_equal_questions_have_equal_answers() -> None:
    rng = np.random.default_rng(1)
    p = picture(
        rng.lognormal(5, 1, 20).tolist(), rng.uniform(0.1, 1.0, (20, 2)).tolist(), [0, 1] * 5, slots=2,
        beside=rng.uniform(0.3, 1.0, (20, 20, 2)),
    )  # fmt: skip
    plans = [Planner().plan(p._replace(book=p.book.copy(), memo=p.memo.copy())) for _ in range(2)]
    assert np.array_equal(plans[0].lanes, plans[1].lanes)


def test_nothing_is_assigned_where_nobody_fits() -> None:
    p = picture([100.0], [[1.0]], [0], workers=[2])
    assert assign(board_of(p), everyone(p)) == {}


# --- output of the solver

posix = pytest.mark.skipif(os.name != "posix", reason="nothing is done elsewhere")


@posix
def test_stray_lines_of_c_are_dropped_and_all_else_arrives_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    library = ctypes.CDLL(None)
    library.puts(b"before")
    with without_stray_lines():
        library.puts(STRAY_PREFIX + b"transformNewIntegerFeasibleSolution tmpSolver.run();")
        library.puts(b"within")
        os.write(1, b"another thread\n")
    library.puts(b"after")
    library.fflush(None)
    out = capfd.readouterr().out
    assert sorted(out.split("\n")) == sorted(["before", "another thread", "within", "after", ""])
    assert out.startswith("before") and out.endswith("after\n")


@posix
def test_what_goes_wrong_inside_leaves_stdout_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), without_stray_lines():
        os.write(1, b"said\n")
        _ = 1 // 0
    os.write(1, b"heard\n")
    assert capfd.readouterr().out == "said\nheard\n"


@posix
def test_without_a_stdout_nothing_is_done() -> None:
    code = "import os; os.close(1)\nfrom symphony.training_jobs.assignment import without_stray_lines\n"
    code += "with without_stray_lines(): pass"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
