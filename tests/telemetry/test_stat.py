"""Spans of counts: parts add up, intervals cover, and what is not known is not told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from symphony.telemetry.reading import Model, Reader
from symphony.telemetry.samples import Column, Sample
from symphony.telemetry.spans import Span
from symphony.telemetry.stat import StatRun
from tests.telemetry.demo import DEMO, EVENTS, PARTS, SHARES, recording, source

MODEL = Model(DEMO)


def live(samples: Sequence[Sample], reader: Reader, every: int = 1) -> tuple[StatRun, list[Span]]:
    run = StatRun(lambda sample: reader, every)
    spans = [span for sample in samples for span in run.update(sample)]
    return run, [*spans, *run.finish()]


@pytest.fixture(scope="module")
def found() -> tuple[StatRun, list[Span]]:
    return live(list(source().samples()), Reader(MODEL))


def test_every_window_is_told_once_and_in_order(found: tuple[StatRun, list[Span]]) -> None:
    _, spans = found
    np.testing.assert_allclose([span.start_s for span in spans], np.arange(40) * 0.1)


def test_a_window_is_told_two_windows_later() -> None:
    run = StatRun(lambda sample: Reader(MODEL))
    told = [len(list(run.update(sample))) for sample in source(windows=5).samples()]
    assert told == [0, 0, 1, 1, 1]
    assert [round(span.start_s, 9) for span in run.finish()] == [0.3, 0.4]


def test_windows_cover_the_truth(found: tuple[StatRun, list[Span]]) -> None:
    truth = dict(zip(source().events, source().totals().T, strict=True))
    inside = [
        row.lower - 1 <= truth[event][k] <= row.upper + 1
        for k, span in enumerate(found[1])
        for event, row in zip(EVENTS, span.rows(EVENTS), strict=True)
    ]
    assert np.mean(inside) >= 0.9


def test_totals_cover_the_truth_and_are_closer_than_perfs() -> None:
    inside, ours, perfs = [], [], []
    for seed in range(8):
        run, one = StatRun(lambda sample: Reader(MODEL)), recording(seed=seed)
        list(run.replay(one))
        truth = dict(zip(source(seed=seed).events, source(seed=seed).totals().sum(axis=0), strict=True))
        scaled = {column.event: one.scaled[:, c].sum() for c, column in enumerate(one.columns)}
        for row in run.totals[""].rows(EVENTS):
            inside.append(row.lower - 1 <= truth[row.name] <= row.upper + 1)
            ours.append(abs(row.value / truth[row.name] - 1))
            perfs.append(abs(scaled[row.name] / truth[row.name] - 1))
    assert np.mean(inside) >= 0.9
    assert np.mean(ours) < 0.8 * np.mean(perfs)


def test_live_and_replayed_agree(found: tuple[StatRun, list[Span]]) -> None:
    run = StatRun(lambda sample: Reader(MODEL))
    spans = list(run.replay(recording()))
    assert len(spans) == 40
    a, b = (one.totals[""].event("top.back") for one in (run, found[0]))
    assert a.value == pytest.approx(b.value, rel=0.02)


def test_shares_add_up_to_a_hundred_and_none_is_negative(found: tuple[StatRun, list[Span]]) -> None:
    for span in (*found[1], found[0].totals[""]):
        rows = span.rows((), (*SHARES, "wasted"))
        if span.start_s >= 0.9:  # by then the sum has been tested
            assert sum(row.value for row in rows[:4]) == pytest.approx(100, abs=1e-6)
        assert all(row.lower >= 0 and row.value >= 0 for row in rows[:4])
    assert {row.unit for row in rows} == {"%"}


def test_counts_that_were_never_interrupted_are_as_counted() -> None:
    run, spans = live(list(source(groups=(EVENTS,)).samples()), Reader(MODEL))
    truth = source().totals()
    for k, span in enumerate(spans):
        for event, row in zip(EVENTS, span.rows(EVENTS), strict=True):
            assert row.value == truth[k, source().events.index(event)]
            assert row.std == 0 and row.counted == 1.0
    speed = run.totals[""].rows((), ["speed"])[0]
    assert speed.value == pytest.approx(truth[:, 5].sum() / 4, rel=1e-4) and speed.std < 1e-4 * speed.value


def test_a_reading_gone_wrong_is_not_believed_because_it_was_never_interrupted() -> None:
    samples = list(source(groups=(EVENTS,)).samples())
    wild = samples[20].count.copy()
    wild[0] *= 50  # top.front: slots and the other parts say otherwise
    samples[20] = replace(samples[20], count=wild)
    _, spans = live(samples, Reader(MODEL))
    row = spans[20].event("top.front")
    assert not (row.std == 0 and row.value == wild[0])


def test_software_events_are_exact_whatever_they_do() -> None:
    counts = [0.0, 0.0, 5000.0, 0.0, 1.0]
    columns = (Column("page-faults"), Column("psi.cpu.some_us"))
    times = np.full(2, 0.1), np.full(2, 0.1)
    samples = [Sample("", k * 0.1, 0.1, columns, np.array([c, 7.0]), *times) for k, c in enumerate(counts)]
    run, spans = live(samples, Reader(MODEL))
    assert [span.event("page-faults").value for span in spans] == counts
    total = run.totals[""].event("page-faults")
    assert (total.value, total.std, total.counted) == (5001.0, 0.0, 1.0)
    assert run.totals[""].event("psi.cpu.some_us").value == 35.0


def test_a_program_that_sleeps_counts_nothing() -> None:
    busy = list(source(windows=10).samples())
    nothing = np.full(len(busy[0].columns), np.nan), np.zeros(9), np.zeros(9)
    asleep = [Sample("", 1.0 + k * 0.1, 0.1, busy[0].columns, *nothing) for k in range(5)]
    run, spans = live([*busy, *asleep], Reader(MODEL))
    alone, _ = live(busy, Reader(MODEL))
    assert len(spans) == 15 and run.totals[""].duration_s == pytest.approx(1.5)
    assert run.totals[""].event("top.back").value == pytest.approx(alone.totals[""].event("top.back").value)
    asleep_row = spans[-1].event("top.back")
    assert (asleep_row.value, asleep_row.std) == (0.0, 0.0)
    replayed = StatRun(lambda sample: Reader(MODEL))
    assert len(list(replayed.replay(recording(windows=10)))) == 10


def test_a_cpu_that_was_not_counted_may_have_done_anything() -> None:
    """Where CPUs are counted, a gap is a gap: the interval grows."""
    busy = list(source(windows=10).samples())
    unknown = np.full(len(busy[0].columns), np.nan), np.zeros(9), np.full(9, 0.1)
    gap = [Sample("", 1.0 + k * 0.1, 0.1, busy[0].columns, *unknown) for k in range(8)]
    _, spans = live([*busy, *gap], Reader(MODEL))
    before, after = spans[8].event("top.back"), spans[-1].event("top.back")
    assert after.half_width > 3 * before.half_width


def test_what_was_never_counted_is_unknown() -> None:
    samples = list(source(groups=(("inst_retired.any", "top.front"),)).samples())
    run, _ = live(samples, Reader(MODEL))
    row = run.totals[""].event("top.back")
    assert math.isnan(row.value) and row.upper == math.inf
    share = run.totals[""].rows((), ["back"])[0]
    assert math.isnan(share.value)


def test_events_in_units_of_many_counts() -> None:
    """perf prints 64 bytes for each count of such an event; inference is about counts."""
    times = np.array([0.1]), np.array([0.1])
    samples = [Sample("", k * 0.1, 0.1, (Column("bytes.read"),), np.array([6400.0]), *times) for k in range(4)]
    run, _ = live([replace(sample, units={"bytes.read": "Bytes"}) for sample in samples], Reader(MODEL))
    row = run.totals[""].event("bytes.read")
    assert (row.value, row.unit) == (25600.0, "Bytes")
    raw, _ = live(samples, Reader(MODEL))
    assert raw.totals[""].event("bytes.read").value == 25600.0 * 64


def test_a_gap_in_what_software_counts_is_no_zero() -> None:
    columns = (Column("page-faults"), Column("task-clock"))
    counts = [1713.0, np.nan, 1700.0, 1720.0]
    samples = [
        Sample("", k * 0.1, 0.1, columns, np.array([count, 100.0]), np.array([0.1 * (count > 0), 0.1]), np.full(2, 0.1))
        for k, count in enumerate(counts)
    ]
    run, spans = live(samples, Reader(MODEL))
    assert math.isnan(spans[1].event("page-faults").value)
    row = run.totals[""].event("page-faults")
    assert row.value == pytest.approx(4 / 3 * 5133) and row.lower < 5133 < row.upper
    assert row.std == pytest.approx(5133 / 3) and row.counted == pytest.approx(0.75)
    assert run.totals[""].event("task-clock").std == 0


def test_software_that_shares_a_counters_time_is_scaled_up() -> None:
    """In a group that takes turns, software events are counted in the group's turns only."""
    columns, times = (Column("page-faults"),), (np.array([0.5]), np.array([1.0]))
    run, _ = live([Sample("", k, 1.0, columns, np.array([500.0]), *times) for k in range(10)], Reader(MODEL))
    row = run.totals[""].event("page-faults")
    assert row.value == pytest.approx(10_000) and row.lower < 10_000 < row.upper and row.counted == 0.5


def test_spans_of_several_windows_and_of_several_places() -> None:
    one, two = (source(windows=7, seed=seed, where=f"CPU{seed}") for seed in (0, 1))
    samples = [sample for pair in zip(one.samples(), two.samples(), strict=True) for sample in pair]
    run, spans = live(samples, Reader(MODEL), every=3)
    assert [(span.where, span.windows) for span in spans] == [
        ("CPU0", 3),
        ("CPU1", 3),
        ("CPU0", 3),
        ("CPU1", 3),
        ("CPU0", 1),
        ("CPU1", 1),
    ]
    assert set(run.totals) == {"CPU0", "CPU1"} and run.windows == 7


def test_memory_does_not_grow_with_the_run(found: tuple[StatRun, list[Span]]) -> None:
    assert len(found[0].totals[""].parts) <= 4 and len(found[1]) == 40


def test_identities_that_the_run_supports_are_used(found: tuple[StatRun, list[Span]]) -> None:
    place = found[0].places[""]
    assert place.net is not None and "top.slots" not in place.net.free
    slots = next(verdict for verdict in place.verdicts if "top.slots" in verdict.identity.events)
    assert slots.accepted and slots.tested


counts = st.one_of(st.just(np.nan), st.sampled_from([0.0, -5.0, 1e18, np.inf]), st.floats(0, 1e12))
seconds = st.sampled_from([0.0, 0.004, 0.04, 0.1, 5.0])
COLUMNS = (*(Column(part, at // 2) for at, part in enumerate(PARTS)), Column("top.slots", 2), Column("page-faults", 3))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.tuples(*[counts] * 6), st.tuples(*[seconds] * 6), seconds), min_size=1, max_size=12),
)
@example(
    [
        ((math.nan,) * 6, (0.0,) * 6, 0.0),
        ((*(math.nan,) * 4, 1e18, math.nan), (*(0.0,) * 4, 0.004, 0.0), 0.0),
        ((*(math.nan,) * 4, 0.0, math.nan), (*(0.0,) * 4, 0.004, 0.0), 0.004),
        ((*(math.nan,) * 4, 0.0, math.nan), (*(0.0,) * 4, 0.1, 0.0), 0.0),
    ],
)
def test_whatever_a_source_says(windows: list[tuple[tuple[float, ...], tuple[float, ...], float]]) -> None:
    """Garbage in: no crash, every window told, nothing negative, shares of at most the whole."""
    samples = [
        Sample("", k * 0.1, 0.1, COLUMNS, np.array(count), np.array(running), np.full(6, enabled))
        for k, (count, running, enabled) in enumerate(windows)
    ]
    run, spans = live(samples, Reader(MODEL))
    assert len(spans) == len(windows)
    for span in (*spans, run.totals[""]):
        for row in span.rows((*PARTS, "top.slots"), SHARES):
            assert not row.lower < 0 and not row.value < 0 and not row.upper < row.value * (1 - 1e-9)
            assert row.counted is None or 0 <= row.counted <= 1
