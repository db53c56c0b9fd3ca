"""What perf's times mean: lengths of windows, and the time for which events wanted a counter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.telemetry.sources.logs import (
    THREE,
    as_json,
    line,
    read,
    recording,
    said,
)


@pytest.mark.parametrize(("decimals", "error"), [(False, 0.03), (True, 3e-4)])
def test_an_enabled_time_that_the_percentage_forbids_is_not_taken(decimals: bool, error: float, tmp_path: Path) -> None:
    """An uncore event is enabled on one CPU of eight: what it tells is not the time of the others."""
    one = recording(
        [("uncore", 0), ("cycles", 1), ("ins", 1)], [[5, 100, 7000]] * 2, [0.1, 0.2, 0.213], [0.1, 0.8, 0.8]
    )
    log = read(as_json({"": one}, decimals=decimals), tmp_path)
    np.testing.assert_allclose(log[""].enabled_s, [[0.1, 0.8, 0.8]] * 2, rtol=error)
    np.testing.assert_allclose(log[""].count, [[5, 100, 7000]] * 2, rtol=error)
    assert ("line 2: the enabled time is known to 2% only" in said(log)) is not decimals


def test_cut_percentages_of_several_groups_tell_more_than_one(tmp_path: Path) -> None:
    running = [0.0219, 0.0312, 0.0469]
    several = recording([("a", 0), ("b", 1), ("c", 2)], [[1000] * 3] * 3, running, 0.1)
    errors = [
        abs(read(as_json({"": one}), tmp_path)[""].enabled_s[0, 0] / 0.1 - 1)
        for one in (recording([("a", 0)], [[1000]] * 3, running[0], 0.1), several)
    ]
    assert errors[1] < 0.5 * errors[0] < 0.02


def test_the_counters_of_a_cpu_are_enabled_for_the_whole_window(tmp_path: Path) -> None:
    one = recording([("a", 0), ("b", 1)], [[1000, 7]] * 3, [0.0219, 0.0001], 0.1, where="CPU3")
    log = read(as_json({"CPU3": one}), tmp_path)
    np.testing.assert_allclose(log["CPU3"].enabled_s, 0.1, rtol=1e-6)
    assert said(log) == ""


def test_perfs_own_clock_is_not_that_of_a_program(tmp_path: Path) -> None:
    """A program that runs 99% of the time: what it wants counters for is its time on a CPU."""
    events = [("duration_time", 0), ("task-clock", 0), ("cycles", 1)]
    one = recording(events, [[10**8, 99, 50]] * 3, [0.1, 0.099, 0.025641], [0.1, 0.099, 0.099])
    np.testing.assert_allclose(read(as_json({"": one}), tmp_path)[""].enabled_s[:, 2], 0.099)


def test_not_counted_may_mean_not_run(tmp_path: Path) -> None:
    """100% of no time is not wanted; 0% of some time is wanted, and not had."""
    text = line() + line(event="task-clock") + line("0.2", "<not counted>", run="0") + line("0.2", "5", "task-clock")
    text += line("0.3", "<not counted>", run="0").replace("100.00", "0.00") + line("0.3", "5", "task-clock")
    log = read(text, tmp_path)
    assert log[""].enabled_s[1:, 0].tolist() == [0.0, 0.001]
    assert said(log).splitlines() == [
        "perf.log, line 3: page-faults was not counted: the counted program did not run",
        "perf.log, line 5: page-faults was not counted",
    ]


def test_without_intervals_there_is_one_window(tmp_path: Path) -> None:
    text = "0.75,msec,task-clock,751595,100.00,0.015,CPUs utilized\n74,,page-faults,751595,100.00,99.053,K/sec\n"
    log = read(text, tmp_path)
    assert log[""].duration_s.tolist() == [pytest.approx(0.05)] and said(log) == ""
    log = read(text + "60000000,ns,duration_time,60000000,100.00,,\n", tmp_path)
    assert log[""].duration_s.tolist() == [0.06]
    log = read(text.splitlines(keepends=True)[1], tmp_path)
    assert log[""].duration_s.tolist() == [pytest.approx(751595e-9)]
    assert "perf.log, line 1: the elapsed time is unknown without -I" in said(log)


def test_appended_runs_without_intervals_follow_one_another(tmp_path: Path) -> None:
    run = "# started on Sun Nov 15 10:39:42 2026\n\n74,,page-faults,1000000,100.00,,\n"
    log = read(run + run, tmp_path)
    assert log[""].count.tolist() == [[74.0], [74.0]] and log[""].start_s.tolist() == [0.0, 0.001]


def test_an_appended_log_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    log = read(THREE + "# started on Sun\n\n" + THREE, tmp_path)
    np.testing.assert_allclose(log[""].start_s, np.arange(6) * 0.1)
    np.testing.assert_allclose(log[""].duration_s, 0.1)
    assert "line 6: the clock goes back" in said(log)


def test_a_clock_that_went_back_costs_one_window(tmp_path: Path) -> None:
    times = ["5.1", "5.2", "5.3", "5.4", "4.9", "5.0", "5.1"]
    log = read("".join(line(f"{time}00000000") for time in times), tmp_path)
    np.testing.assert_allclose(log[""].start_s, [5.1, 5.2, 5.3, 5.4, 5.5])
    np.testing.assert_allclose(log[""].duration_s, 0.1)
    assert "line 5: the clock goes back" in said(log) and "line 1: the log begins at 5.1 s" in said(log)


@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize("events", [1, 2])
@pytest.mark.parametrize("cut", [29, 36])
def test_a_window_of_which_every_line_is_cut_short_is_no_part_of_the_next(
    json: bool, events: int, cut: int, tmp_path: Path
) -> None:
    """Otherwise the next count would be spread over twice its time."""

    def one(tenth: int, event: str) -> str:
        return (
            line(f"0.{tenth}00000000", event=event) if json else f"0.{tenth}00000000,74,,{event},100000000,100.00,,\n"
        )

    names = ["page-faults", "cycles"][:events]
    lines = [[one(tenth, event) for event in names] for tenth in range(1, 6)]
    lines[2] = [text[:cut] + "\n" for text in lines[2]]
    log = read("".join(text for window in lines for text in window), tmp_path)
    found = log[""]
    np.testing.assert_allclose(found.start_s, [0, 0.1, 0.3, 0.4])
    np.testing.assert_allclose(found.duration_s, 0.1)
    assert np.isfinite(found.count).all() and "line" in said(log)
    for at in range(events if events > 1 else 0):  # one line of two: the window stays
        lines[2] = [one(3, name)[:cut] + "\n" if place == at else one(3, name) for place, name in enumerate(names)]
        found = read("".join(text for window in lines for text in window), tmp_path)[""]
        assert len(found) == 5 and np.isnan(found.count).sum() == 1
        np.testing.assert_allclose(found.duration_s, 0.1)


def test_an_appended_log_without_its_beginning_costs_one_window(tmp_path: Path) -> None:
    times = ["0.1", "0.2", "0.3", "0.4", "0.2", "0.3", "0.4"]
    log = read("".join(line(f"{time}00000000") for time in times), tmp_path)
    assert "line 5: the clock goes back: from 0.4 s to 0.2 s; the window is left out" in said(log)
    np.testing.assert_allclose(log[""].duration_s, [0.1] * 6)


def test_windows_may_differ_in_length(tmp_path: Path) -> None:
    """A busy machine makes them longer, and the last one is shorter."""
    log = read("".join(line(f"{time:.9f}") for time in (0.1, 0.2, 0.3, 0.7, 0.8, 0.81)), tmp_path)
    np.testing.assert_allclose(log[""].duration_s, [0.1, 0.1, 0.1, 0.4, 0.1, 0.01])
    assert said(log) == ""


def test_a_log_that_lacks_its_beginning_has_a_first_window_like_the_others(tmp_path: Path) -> None:
    """As `tail` leaves it: the first line is at 0.3 s, but was counted for a tenth of a second."""
    later = recording([("task-clock", 0)], [[100]] * 6, 0.1, 0.1)
    text = "".join(as_json({"": later}).splitlines(keepends=True)[2:])
    log = read(text, tmp_path)
    np.testing.assert_allclose(log[""].duration_s, 0.1)
    np.testing.assert_allclose(log[""].start_s, [0.2, 0.3, 0.4, 0.5])
    assert (
        said(log) == "perf.log, line 1: the log begins at 0.3 s: its first window is taken to be as long as the others"
    )
    slow = text.replace('"event-runtime" : 100000000', '"event-runtime" : 300000000', 1)  # it was that long
    assert read(slow, tmp_path)[""].duration_s[0] == pytest.approx(0.3)


def test_perfs_own_clock_may_have_modifiers(tmp_path: Path) -> None:
    """As all events of who may not count the kernel."""
    text = "74,,page-faults:u,751595,100.00,,\n60000000,ns,duration_time:u,60000000,100.00,,\n"
    log = read(text, tmp_path)
    assert log[""].duration_s.tolist() == [0.06] and said(log) == ""
