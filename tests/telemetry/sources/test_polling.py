"""Samples from figures that are read again and again: differences, wraps, what comes and goes, late reads."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from symphony.problem.errors import InputError
from symphony.telemetry.samples import Column, record
from symphony.telemetry.sources.polling import Figure, Poller, difference
from tests.telemetry.sources.clocks import Clock


def poller(reads: Iterable[dict[str, Figure]], clock: Clock, **options: float) -> Poller:
    found = [{"": read} for read in reads]
    windows = len(found) - 1
    left = iter(found)
    return Poller(lambda: next(left), 0.1, windows, clock, clock.sleep, **options)


def total(*values: float, scale: float = 1.0) -> list[dict[str, Figure]]:
    return [{"bytes": Figure({"": value}, "/proc/x", scale=scale)} for value in values]


def test_totals_are_differences_levels_and_means_are_amounts() -> None:
    reads = [
        {
            "bytes": Figure({"": value}, "f"),
            "used": Figure({"": value}, "f", "level"),
            "busy": Figure({"": value}, "f", "mean"),
        }
        for value in (10, 30, 35)
    ]
    found = record(poller(reads, Clock()).samples())[""]
    assert found.columns == (Column("bytes"), Column("used"), Column("busy"))
    np.testing.assert_allclose(found.count, [[20, 2.0, 3.0], [5, 3.25, 3.5]])
    np.testing.assert_allclose(found.start_s, [0, 0.1])
    np.testing.assert_allclose(found.running_s, 0.1)


@pytest.mark.parametrize(
    ("before", "now", "grown"),
    [
        (5, 9, 4),
        (2**32 - 3, 4, 7),
        (2**64 - 2**40, 0, 2**40),
        (3_000_000_000, 5, np.nan),  # reset, most likely
        (2**32 - 3, 2**31, np.nan),
        (10, 9, np.nan),
    ],
)
def test_differences(before: int, now: int, grown: float) -> None:
    np.testing.assert_equal(difference(before, now), grown)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**28))
def test_a_wrap_is_never_taken_for_another_amount(before: int, grown: int) -> None:
    found = difference(before, (before + grown) % 2**32)
    assert found == grown or np.isnan(found)


def test_what_goes_back_is_unknown_and_named() -> None:
    source = poller(total(50, 7, 9), Clock())
    found = record(source.samples())[""]
    np.testing.assert_array_equal(found.count, [[np.nan], [2]])
    assert found.running_s[0].tolist() == [0.0]
    assert [str(problem) for problem in source.problems] == ["/proc/x: bytes went back from 50 to 7"]


def test_parts_come_and_go_without_a_jump() -> None:
    """A device that appears brings what it carried before; one that goes takes it away."""
    reads = [
        {"bytes": Figure(parts, "/proc/net/dev")}
        for parts in ({"a": 1000, "b": 50}, {"a": 1010, "b": 51, "c": 10**9}, {"a": 1030, "c": 10**9 + 5})
    ]
    source = poller(reads, Clock())
    assert record(source.samples())[""].count.tolist() == [[11.0], [25.0]]
    assert [problem.what for problem in source.problems] == [
        "c appeared: the window's bytes excludes it",
        "b disappeared: the window's bytes excludes it",
    ]


def test_events_come_and_go() -> None:
    one, both = total(5)[0], {**total(7)[0], "late": Figure({"": 3}, "/proc/y")}
    source = poller([one, both, both, {}, both], Clock())
    found = record(source.samples())[""]
    np.testing.assert_array_equal(found.count, [[2, np.nan], [0, 0], [np.nan, np.nan], [np.nan, np.nan]])
    assert "/proc/y: late is no longer there" in [str(problem) for problem in source.problems]


def test_late_reads_make_one_long_window_and_no_short_ones() -> None:
    clock = Clock(0.0, 0.37, 0.0, 0.0)
    found = record(poller(total(0, 1, 2, 3, 4), clock).samples())[""]
    np.testing.assert_allclose(found.duration_s, [0.1, 0.47, 0.03, 0.1])
    clock = Clock(0.0, 0.37, 0.0, 0.0)
    found = record(poller(total(0, 1, 2, 3, 4), clock, least_s=0.1).samples())[""]
    np.testing.assert_allclose(found.duration_s, [0.1, 0.47, 0.1, 0.1])
    np.testing.assert_allclose(found.start_s, [0.0, 0.1, 0.57, 0.67])


def test_a_clock_that_goes_back_costs_a_window() -> None:
    clock = Clock(0.0, -5.0, 0.0, 0.0)
    source = poller(total(0, 1, 2, 3, 4), clock)
    source.windows = 3
    found = record(source.samples())[""]
    np.testing.assert_allclose(found.start_s, [0.0, 0.1, 0.2])
    assert found.count.tolist() == [[1.0], [1.0], [1.0]]
    assert "the clock: went back from 100.1 s to 95.2 s" in str(source.problems[0])


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf")])
def test_intervals_are_positive(interval: float) -> None:
    with pytest.raises(InputError, match="interval"):
        Poller(dict, interval)
