"""Reports of speeds: accepted, or rejected with a reason."""

from __future__ import annotations

import math

import pytest

from symphony.training_jobs.speed_samples import CONFIRMATIONS, SampleStore, SpeedReport

GOOD = SpeedReport(job=3, kernel=1, kind=0, neighbours=(2,), spread=False, began_s=100.0, ended_s=460.0, units=720.0)


def add(
    store: SampleStore, report: SpeedReport, *, now_s: float = 500.0, placed: bool = True, mean: float = -0.7
) -> str:
    return store.add(report, now_s=now_s, placed=placed, mean=mean, std=0.3)


def test_a_good_report_is_a_sample_of_the_seconds_of_a_unit() -> None:
    store = SampleStore()
    assert add(store, GOOD) == ""
    (sample,) = store.samples
    assert sample.log_s == pytest.approx(math.log(0.5)) and sample.neighbours == (2,)


@pytest.mark.parametrize(
    ("change", "how", "reason"),
    [
        ({"units": 0.0}, {}, "zero"),
        ({"units": -5.0}, {}, "zero"),
        ({"units": math.nan}, {}, "not a number"),
        ({"ended_s": math.inf}, {}, "not a number"),
        ({}, {"placed": False}, "never placed"),
        ({"began_s": 460.0}, {}, "clock"),
        ({"ended_s": 501.0}, {}, "clock"),
        ({"began_s": -1.0}, {}, "clock"),
        ({}, {"now_s": 10_000.0}, "late"),
        ({"units": 1e6}, {}, "implausible"),
    ],
)
def test_what_cannot_be_is_rejected_with_its_reason(change: dict, how: dict, reason: str) -> None:
    store = SampleStore()
    assert add(store, GOOD._replace(**change), **how) == reason
    assert not store.samples and store.reasons[reason] == 1


def test_the_same_report_twice_counts_once() -> None:
    store = SampleStore()
    assert [add(store, GOOD), add(store, GOOD)] == ["", "duplicate"]
    assert add(store, GOOD._replace(began_s=460.0, ended_s=490.0, units=60.0)) == ""


def test_what_is_said_often_enough_is_believed_however_odd() -> None:
    """A job that is a hundred times as fast as anybody thought, round after round, is news."""
    store = SampleStore()
    odd = [GOOD._replace(began_s=float(n), ended_s=n + 1.0, units=200.0) for n in range(CONFIRMATIONS + 1)]
    assert [add(store, report) for report in odd] == ["implausible"] * (CONFIRMATIONS - 1) + [""] * 2


def test_one_ordinary_report_between_makes_the_odd_ones_odd_again() -> None:
    store = SampleStore()
    odd = [GOOD._replace(began_s=float(n), ended_s=n + 1.0, units=200.0) for n in range(CONFIRMATIONS)]
    for report in odd[:-1]:
        add(store, report)
    add(store, GOOD)
    assert add(store, odd[-1]) == "implausible"
