"""Beliefs with names: sums that add up, metrics that do, intervals that cover."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.problem.errors import InputError
from symphony.telemetry import gate
from symphony.telemetry.events import Metric
from symphony.telemetry.identities import Identity
from symphony.telemetry.inference import Tracker, infer
from symphony.telemetry.machine import Platform
from symphony.telemetry.reading import Model, Reader
from symphony.telemetry.samples import Column, Sample, record
from symphony.telemetry.stat import StatRun
from tests.telemetry.simulated import SimulatedSource, phases
from tests.telemetry.test_bayes_net import total
from tests.telemetry.topdown import CPU, PARTS, SLOTS, groups, machine, model, reading, steady


def test_identities_halve_the_error_and_intervals_cover() -> None:
    source, recording = reading()
    truth = dict(zip(source.events, source.totals().T, strict=True))
    with_, without = infer(model(SLOTS), recording), infer(model(), recording)
    scaled = {column.event: recording.scaled[:, c] for c, column in enumerate(recording.columns)}
    errors = {"ours": [], "plain": [], "linux": []}
    inside = []
    for part in PARTS:
        belief = with_[part]
        errors["ours"].append(np.abs(belief.mean / truth[part] - 1).mean())
        errors["plain"].append(np.abs(without[part].mean / truth[part] - 1).mean())
        errors["linux"].append(np.abs(scaled[part] / truth[part] - 1).mean())
        inside.append((truth[part] >= belief.lower) & (truth[part] <= belief.upper))
    assert np.mean(errors["ours"]) < 0.5 * np.mean(errors["linux"])
    assert np.mean(errors["ours"]) < np.mean(errors["plain"])
    assert 0.9 <= np.mean(inside) <= 1


def test_what_was_never_read_is_unknown() -> None:
    columns = (Column("front", 0), Column("back", 1))
    never = np.array([5.0, np.nan]), np.array([0.05, 0.0]), np.array([0.1, 0.1])
    found = infer(model(), record([Sample("", k * 0.1, 0.1, columns, *never) for k in range(3)]))
    assert np.isnan(found["back"].mean).all() and np.isinf(found["back"].upper).all()
    assert np.isnan(found.total("back").mean).all()
    assert found["front"].mean[0] == pytest.approx(10)


def test_a_wrong_identity_is_named_and_not_used() -> None:
    _, recording = reading()
    wrong = Identity("slots = 3 front", (("slots", 1.0), ("front", -3.0)), source="curated: test", tolerance=0.01)
    found = infer(model(SLOTS, wrong), recording)
    verdicts = {verdict.identity.name: verdict for verdict in found.verdicts}
    assert verdicts[SLOTS.name].accepted and not verdicts[wrong.name].accepted
    right = infer(model(SLOTS), recording)
    np.testing.assert_allclose(found["front"].mean, right["front"].mean)


def test_verdicts_of_an_earlier_run_let_sums_go_uncounted() -> None:
    names, truth = machine()
    full = record(SimulatedSource(names, truth, groups()).samples())[""]
    verdicts = gate.check_identities([SLOTS], full)
    assert verdicts[0].accepted
    parts = tuple(("instructions", *PARTS[at : at + 2]) for at in (0, 2)) * 2
    source = SimulatedSource(names, truth, parts)
    found = infer(model(SLOTS), record(source.samples())[""], trusted=verdicts)
    slots = source.totals()[:, 4]
    assert np.abs(found["slots"].mean / slots - 1).mean() < 0.03
    untrusting = infer(model(SLOTS), record(source.samples())[""])
    assert "slots" not in untrusting.net.events


def test_live_and_afterwards_agree() -> None:
    _, recording = reading()
    afterwards = infer(model(), recording, smooth=False)
    tracker = Tracker(model(), recording.columns)
    for sample in recording.samples():
        tracker.update(sample)
    np.testing.assert_allclose(tracker.latest()["back"].mean, afterwards["back"].mean[-1:])


def test_how_events_follow_instructions_is_known_from_the_beginning() -> None:
    """An event that goes on at one rate, whatever the instructions do: a few windows do not show that, many do."""
    rng = np.random.default_rng(0)
    instructions, steady = 1e7 * rng.lognormal(0, 1.0, 60 * 25), np.full(60 * 25, 1e5)
    truth = np.stack([instructions, steady, instructions, instructions], axis=1)
    names = ("instructions", "front", "back", "cycles")
    source = SimulatedSource(
        names, truth, (("instructions", "front"), ("instructions", "back"), ("instructions", "cycles"))
    )
    recording = record(source.samples())[""]
    short = record(list(recording.samples())[:6])[""]
    error, at_first = (np.abs(infer(model(), log)["front"].mean[:6] / 2.5e6 - 1).mean() for log in (recording, short))
    assert error < 0.6 * at_first


def test_live_identities_come_into_use_when_they_have_been_tested() -> None:
    _, recording = reading()
    tracker = Tracker(model(SLOTS), recording.columns)
    assert not any(verdict.accepted for verdict in tracker.verdicts)
    for sample in recording.samples():
        tracker.update(sample)
    assert all(verdict.accepted for verdict in tracker.verdicts)
    assert "slots" not in tracker.net.free
    late = tracker.smoothed()
    assert late.start_s[0] == pytest.approx(recording.start_s[-3])


def test_one_way_from_readings_to_numbers() -> None:
    """What `symphony stat` says of a log is what `infer` says of it."""
    _, recording = reading()
    found, run = infer(model(SLOTS), recording), StatRun(lambda sample: Reader(model(SLOTS)))
    spans = list(run.replay(recording))
    for name in (*PARTS, "back_bound"):
        rows = [(span.rows((), [name]) if "_" in name else span.rows([name]))[0] for span in spans]
        np.testing.assert_array_equal(found[name].mean, [row.value for row in rows])
        np.testing.assert_array_equal(found[name].upper, [row.upper for row in rows])
        row = (run.totals[""].rows((), [name]) if "_" in name else run.totals[""].rows([name]))[0]
        whole = found.total(name)
        assert (whole.mean[0], whole.std[0], whole.lower[0]) == (row.value, row.std, row.lower)


def test_parts_of_a_machine_that_are_enabled_for_unlike_times() -> None:
    """Two memory controllers beside 64 CPUs: each event's own time makes its rate a count."""
    found = infer(model(), record(steady(8, cycles=(8e9, 64.0, 64.0), slots=(1e8, 2.0, 2.0), front=(1e8, 1.0, 2.0))))
    assert (found.total("slots").mean[0], found.total("slots").std[0]) == (8e8, 0.0)
    half = found.total("front")
    assert half.mean[0] == pytest.approx(1.6e9, rel=1e-3)
    alone = infer(model(), record(steady(8, front=(1e8, 1.0, 2.0)))).total("front")
    assert half.std[0] == pytest.approx(alone.std[0], rel=0.05)


def test_a_program_that_sleeps_for_whole_windows_counts_nothing_in_them() -> None:
    awake = steady(10, cycles=(1e9, 1.0, 1.0), front=(5e8, 0.5, 1.0))
    asleep = steady(10, cycles=(np.nan, 0.0, 0.0), front=(np.nan, 0.0, 0.0))
    samples = [replace(one, start_s=float(k)) for k, one in enumerate((*awake[:5], *asleep[:5], *awake[5:]))]
    found = infer(model(), record(samples))
    assert (found.total("cycles").mean[0], found.total("cycles").std[0]) == (1e10, 0.0)
    assert found.total("front").mean[0] == pytest.approx(1e10, rel=0.01)
    assert found["cycles"].mean[7] == found["cycles"].upper[7] == 0
    assert len(found) == 15 and found.duration_s.sum() == 15


def test_what_had_a_counter_all_the_time_is_exact() -> None:
    columns = (Column("cpu-clock"), Column("cycles"))
    samples = [
        Sample("", k, 1.0, columns, np.array([100.4, 12.0]), np.ones(2), np.ones(2), {"cpu-clock": "msec"})
        for k in range(3)
    ]
    found = infer(model(), record(samples))
    clock, cycles = found["cpu-clock"], found["cycles"]
    assert clock.mean.tolist() == [100.4] * 3 and not clock.std.any() and clock.unit == "msec"
    assert cycles.mean.tolist() == cycles.lower.tolist() == [12.0] * 3


def test_a_window_that_lacks_an_event_widens_its_total() -> None:
    late = steady(100, cycles=(1e9, 1.0, 1.0))
    late[0] = replace(late[0], count=np.array([np.nan]), running_s=np.zeros(1))
    whole = infer(model(), record(late)).total("cycles")
    assert whole.mean[0] == pytest.approx(1e11, rel=1e-3)
    assert 9.7e10 < whole.lower[0] < 9.95e10 and 1.005e11 < whole.upper[0] < 1.03e11


def test_bounds_that_were_not_tested_are_not_used() -> None:
    bound = Identity("slots >= front", (("slots", 1.0), ("front", -1.0)), relation=">=", source="curated: test")
    samples = steady(3, slots=(1e6, 0.5, 1.0), front=(5e6, 0.5, 1.0))
    share = infer(model(bound), record(samples)).total("front_bound")
    assert share.mean[0] == pytest.approx(500, rel=0.01)


def test_the_time_that_was_counted_is_not_guessed() -> None:
    listed = replace(CPU, metrics=(*CPU.metrics, Metric("busy", "cycles / tsc")))
    here = Model(listed, Platform(system_tsc_freq=5e9), identities=())
    for name in ("tsc", "msr/tsc/"):
        counted = [
            replace(one, columns=(Column("cycles"), Column(name)))
            for one in steady(3, cycles=(1e9, 1.0, 1.0), tsc=(2e9, 1.0, 1.0))
        ]
        assert infer(here, record(counted)).total("busy").mean[0] == pytest.approx(0.5, rel=1e-3)
    assert infer(here, record(steady(3, cycles=(1e9, 1.0, 1.0)))).total("busy").mean[0] == pytest.approx(0.2, rel=1e-3)


def test_several_places_need_a_name() -> None:
    _, recording = reading()
    both = {"CPU0": recording, "CPU1": replace(recording, where="CPU1")}
    with pytest.raises(InputError, match="'CPU0', 'CPU1'"):
        infer(model(), both)
    with pytest.raises(InputError, match="no place 'CPU9'") as caught:
        infer(model(), both, where="CPU9")
    assert "'CPU0', 'CPU1'" in caught.value.hint
    assert infer(model(), both, where="CPU1").where == "CPU1"


def test_glitches_do_not_last() -> None:
    """Where readings are wrong by a factor of up to 20, the window is lost, not those after it."""
    source, recording = reading(glitches=0.02)
    clean = reading()[1]
    wrong = (np.abs(recording.count / clean.count - 1) > 0.1).any(axis=1)
    assert 5 < wrong.sum() < 30
    truth = source.totals()[:, 2]
    error = np.abs(infer(model(SLOTS), recording)["back"].mean / truth - 1)
    plain = np.abs(infer(model(SLOTS), clean)["back"].mean / truth - 1)
    assert error[~wrong].mean() < 1.3 * plain[~wrong].mean()


counts = st.one_of(st.just(np.nan), st.sampled_from([0.0, -5.0, 1e18, np.inf]), st.floats(0, 1e12))
seconds = st.sampled_from([0.0, 0.004, 0.04, 0.1, 5.0])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.tuples(*[counts] * 4), st.tuples(*[seconds] * 4), seconds), min_size=1, max_size=12))
def test_whatever_a_source_says(windows: list[tuple[tuple[float, ...], tuple[float, ...], float]]) -> None:
    """Garbage in: no crash, nothing negative, and what was never read is unknown."""
    columns = (Column("slots", 0), Column("front", 0), Column("back", 1), Column("bad", 1))
    samples = [
        Sample("", k * 0.1, 0.1, columns, np.array(count), np.array(running), np.full(4, enabled))
        for k, (count, running, enabled) in enumerate(windows)
    ]
    found = infer(model(SLOTS), record(samples))
    for estimate in found.events().values():
        unknown = np.isnan(estimate.mean)
        assert (estimate.lower >= 0).all() and np.isinf(estimate.upper[unknown]).all()
        assert (estimate.upper >= estimate.mean)[~unknown].all() and np.isfinite(estimate.std[~unknown]).all()


def test_phases_that_linux_gets_wrong() -> None:
    """The case that all this is for: activity changes between turns, and sums need not be counted."""
    names, truth, sums = phases(24, 2000, seed=3)
    claims = tuple(total(*family) for family in sums)
    events = names[1:]
    every = tuple((names[0], *events[at : at + 4]) for at in range(0, len(events), 4))
    source = SimulatedSource(names, truth, every)
    recording = record(source.samples())[""]
    found = infer(Model(CPU, identities=claims), recording)
    exact = source.totals()
    ours = np.mean([np.abs(found[e].mean / exact[:, n] - 1).mean() for n, e in enumerate(names) if n])
    linux = np.mean(
        [
            np.abs(recording.scaled[:, c] / exact[:, names.index(x.event)] - 1).mean()
            for c, x in enumerate(recording.columns)
            if x.event != names[0]
        ]
    )
    assert linux > 0.15 and ours < 0.35 * linux
