"""Optimus: who needs least for a device goes first, and room is made between intervals only."""

from __future__ import annotations

import pytest

from tests.baselines.training import contract, finishes, jobs, run


def test_it_keeps_the_contract() -> None:
    contract("optimus")


def test_devices_count_as_much_as_seconds() -> None:
    """A pair of 3 s needs 6 device-seconds, a single of 5 s only 5: it goes first."""
    record = run("optimus", jobs((0, 9, 1), (0, 9, 1), (1, 3, 2), (1, 5, 1), kernel="two"))
    first = {job: min(stay.start_s for stay in record.gangs if stay.job == job) for job in (2, 3)}
    assert first[3] < first[2]


def test_nobody_is_preempted_within_an_interval() -> None:
    """A short job comes at 1; the interval ends at 4. At 1 it may take only what is idle."""
    record = run("optimus", jobs((0, 9, 1), (1, 2, 1)), window_s=4.0)
    assert finishes(record) == pytest.approx([11, 6], rel=1e-5)
    idle = run("optimus", jobs((0, 9, 1), (1, 2, 1), kernel="two"), window_s=4.0)
    assert finishes(idle) == pytest.approx([9, 3], rel=1e-5)
