"""Speeds beside profiles: checked, and as arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symphony.problem.errors import InputError, WorkloadError
from symphony.problem.speeds import PACKED, SPREAD, Speeds, belief_arrays, check_speeds, speed_arrays
from symphony.problem.topologies import topology
from symphony.problem.workload import Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.simulator.scenarios import draw, stack

GPUS = topology("gpu24")
KERNELS = tuple(Kernel(name, {"gpu": Profile(1.0)}) for name in ("a", "b"))
WORK = Workload("two", KERNELS, (TaskGraph("g", (Task("t", "a"),)),), (Job(0, 0.0),))
MEASURED = Speeds({("b", "p100"): (2.0, 3.0)}, {("a", "b", "v100"): 0.6}, 0.1)


def test_arrays_hold_what_was_measured_and_say_nothing_of_the_rest() -> None:
    kinds = [kind.name for kind in GPUS.kinds]
    arrays = speed_arrays(MEASURED, GPUS, WORK)
    assert arrays.unit_s[1, kinds.index("p100"), [PACKED, SPREAD]].tolist() == [2.0, 3.0]
    assert np.count_nonzero(arrays.unit_s) == 2
    assert arrays.beside[0, 1, kinds.index("v100")] == 0.6
    assert (np.delete(arrays.beside.ravel(), np.argmin(arrays.beside)) == 1).all()


def test_what_is_told_of_measurements_is_beyond_doubt() -> None:
    told = belief_arrays(MEASURED, GPUS, WORK)
    assert not told.unit_std.any() and not told.beside_std.any()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Speeds({("c", "v100"): (1.0, 1.0)}), "no kernel 'c'"),
        (Speeds({("a", "h100"): (1.0, 1.0)}), "no device kind 'h100'"),
        (Speeds({("a", "v100"): (0.0, 1.0)}), "takes"),
        (Speeds({("a", "v100"): (1.0, float("nan"))}), "takes"),
        (Speeds({}, {("a", "b", "v100"): 1.5}), "keeps 1.5"),
        (Speeds({}, {("a", "b", "v100"): 0.0}), "keeps 0"),
        (Speeds(crowding=-1.0), "crowding"),
    ],
)
def test_wrong_speeds_are_refused(wrong: Speeds, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        check_speeds(wrong, GPUS, WORK, "here")


def test_scenarios_with_and_without_a_truth_do_not_share_a_batch() -> None:
    plain = draw(GPUS, WORK, 0)
    with pytest.raises(InputError, match="truth"):
        stack([plain, replace(plain, truth=MEASURED)])
