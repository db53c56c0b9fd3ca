"""Which columns count the same event, and how sure they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.problem.errors import InputError
from symphony.telemetry.events import Event
from symphony.telemetry.inference import Tracker, infer
from symphony.telemetry.reading import Model
from symphony.telemetry.samples import Column, Sample, record
from tests.telemetry.simulated import SimulatedSource
from tests.telemetry.topdown import CPU, SLOTS, counted_all_the_time, model, reading, steady


def test_programs_and_the_kernel_are_told_apart() -> None:
    found = infer(model(), counted_all_the_time(cycles_u=7e8, cycles_k=3e8, instructions_u=1e9))
    assert found.total("cycles:u").mean == pytest.approx(7e9, rel=1e-2)
    assert found.total("cycles:k").mean == pytest.approx(3e9, rel=1e-2)
    alike = infer(model(), counted_all_the_time(cycles_u=7e8, instructions_u=1e9))
    assert alike["cycles"].mean == pytest.approx(7e8, rel=1e-2) and alike["ipc"].mean == pytest.approx(10 / 7, rel=1e-2)
    assert alike["cycles:u"].mean == pytest.approx(7e8, rel=1e-2)


@pytest.mark.parametrize("asked", ["cycles:k", "cycles:h", "cycles:uk", "cycles:G", "cycles:H", "cycles:I"])
def test_what_restricts_a_count_is_not_answered_with_the_plain_one(asked: str) -> None:
    for log in (counted_all_the_time(cycles=7e8), counted_all_the_time(cycles_u=7e8, instructions_u=1e9)):
        found = infer(model(), log)
        assert found["cycles:pp"].mean[0] == found["cycles"].mean[0] == 7e8
        with pytest.raises(InputError, match=f"{asked} was not counted"):
            found[asked]


def test_the_host_is_not_the_hypervisor() -> None:
    found = infer(model(), counted_all_the_time(cycles_h=1e8, cycles_H=9e8))
    assert found["cycles:h"].mean[0] == 1e8 and found["cycles:H"].mean[0] == 9e8


def test_software_events_are_known_without_what_perf_adds() -> None:
    columns = (Column("page-faults:u"), Column("task-clock:u"))
    one = np.ones(2)
    log = record([Sample("", 0.0, 1.0, columns, np.array([5.0, 9.0]), one, one, {"task-clock:u": "msec"})])
    found = infer(model(), log)
    assert found["page-faults"].mean == found["page-faults:u"].mean == [5.0] and found["task-clock"].unit == "msec"
    with pytest.raises(InputError, match="page-faults:k was not counted"):
        found["page-faults:k"]


def test_readings_that_still_come_are_told_apart_too() -> None:
    recording = counted_all_the_time(cycles_u=7e8, cycles_k=3e8, instructions_u=1e9)
    tracker = Tracker(model(), recording.columns)
    for sample in recording.samples():
        tracker.update(sample)
    assert tracker.latest()["cycles:u"].mean == [7e8] and tracker.latest()["cycles:k"].mean == [3e8]


def test_one_event_twice_in_a_group_is_two_readings_of_it() -> None:
    found = infer(model(), counted_all_the_time(cycles_p=7e8, cycles_pp=7e8, instructions=1e9))
    assert found.net.events == ("cycles", "instructions")
    assert found.total("cycles:pp").mean == [7e9] and found.total("ipc").mean == pytest.approx(10 / 7, rel=1e-2)


def test_two_readings_of_an_event_in_a_group_are_both_kept() -> None:
    found = infer(model(), counted_all_the_time(cycles_p=6e8, cycles_pp=8e8))
    assert found["cycles"].mean == pytest.approx(7e8, rel=5e-2)


def test_a_log_in_which_nothing_is_counted_twice_is_less_certain() -> None:
    """How far windows differ is all that tells how far a reading is off."""
    rng, deviations = np.random.default_rng(0), []
    for shape in (100.0, 0.5):
        counts = 1e6 * rng.gamma(shape, 1 / shape, 60)
        times = np.array([0.024]), np.array([0.096])
        samples = [Sample("", k, 1.0, (Column("cycles"),), counts[k : k + 1], *times) for k in range(60)]
        whole = infer(model(), record(samples)).total("cycles")
        deviations.append(whole.std[0] / whole.mean[0])
    assert deviations[1] > 3 * deviations[0]


def test_counts_in_a_unit_are_not_scaled_again() -> None:
    listed = replace(CPU, events=(*CPU.events, Event("bytes", scale=64.0, scale_unit="Bytes")))
    samples = steady(3, bytes=(6.4e6, 1.0, 1.0))
    for units, times in ({"bytes": "Bytes"}, 1), ({}, 64):
        found = infer(Model(listed, identities=()), record([replace(one, units=units) for one in samples]))
        assert found["bytes"].mean[0] == times * 6.4e6 and found["bytes"].unit == "Bytes"


def test_modifiers_are_not_part_of_a_name() -> None:
    _, recording = reading()
    marked = replace(recording, columns=tuple(replace(c, event=f"{c.event}:u") for c in recording.columns))
    np.testing.assert_allclose(infer(model(SLOTS), marked)["back"].mean, infer(model(SLOTS), recording)["back"].mean)


@pytest.mark.parametrize(("running", "total"), [(2.0, 8e6), (1.0, 8e6), (np.inf, np.nan), (np.nan, np.nan)])
def test_run_times_that_cannot_be(running: float, total: float) -> None:
    """Longer than enabled: it was counted all the time. Without end: nobody knows."""
    found = infer(model(), record(steady(8, cycles=(1e6, running, 1.0), instructions=(2e6, 0.5, 1.0))))
    assert found.total("cycles").mean == pytest.approx([total], nan_ok=True)
    assert found.total("instructions").mean == pytest.approx([3.2e7], rel=0.01)


# --- What nobody saw ---------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    share=st.floats(0.02, 0.95),
    windows=st.integers(1, 12),
    event=st.sampled_from(["cycles", "page-faults"]),
    twice=st.booleans(),
)
def test_nothing_in_a_part_of_a_window_allows_for_three_in_each_part_like_it(
    share: float, windows: int, event: str, twice: bool
) -> None:
    parts = [share / 2, share / 2] if twice and event == "cycles" else [share]
    columns = tuple(Column(event, group) for group in range(len(parts)))
    none, running, whole = np.zeros(len(parts)), np.array(parts), np.ones(len(parts))
    log = record(Sample("", float(k), 1.0, columns, none, running, whole) for k in range(windows))
    tracker = Tracker(model(), columns)
    for sample in log[""].samples():
        tracker.update(sample)
    found = infer(model(), log)
    for upper in (*found[event].upper, *tracker.latest()[event].upper, found.total(event).upper[0]):
        assert upper >= 2.99 * (1 - share) / share
    assert (found[event].lower == 0).all() and (found[event].mean < 1).all()


def by_chance(often: float, size: float, groups: int, seed: int = 0) -> tuple[float, float, float]:
    """Of events in bursts that nobody counts twice: coverage in windows that read nothing, in all, and of totals."""
    rng = np.random.default_rng(seed)
    names = tuple(f"e{number}" for number in range(groups))
    truth = (rng.random((60 * 25, groups)) < often) * rng.poisson(size, (60 * 25, groups)).astype(float)
    source = SimulatedSource(names, truth, tuple((name,) for name in names))
    log = record(source.samples())[""]
    found = infer(model(), log)
    inside, totals = [], []
    for at, name in enumerate(names):
        of, true = found[name], source.totals()[:, at]
        inside.append((true >= of.lower - 0.5) & (true <= of.upper + 0.5))
        totals.append(found.total(name).lower[0] <= true.sum() <= found.total(name).upper[0])
    covered = np.stack(inside, axis=1)
    return float(covered[log.count == 0].mean()), float(covered.mean()), float(np.mean(totals))


@pytest.mark.parametrize(
    ("often", "size", "groups"), [(0.02, 1000, 3), (0.02, 1000, 8), (0.1, 1000, 3), (0.1, 1000, 8), (0.2, 1, 8)]
)
def test_intervals_allow_for_bursts_that_nobody_saw(often: float, size: float, groups: int) -> None:
    silent, everywhere, totals = by_chance(often, size, groups)
    assert silent > 0.87 and everywhere > 0.9 and totals > 0.8


def test_few_counts_are_not_surer_than_chance_allows() -> None:
    """Two in a slice, and a fourteenth of the time: not as sure as if slices differed by 30%, as many counts do."""
    silent, everywhere, _ = by_chance(1.0, 2.0, 14)
    assert silent > 0.9 and everywhere > 0.9
