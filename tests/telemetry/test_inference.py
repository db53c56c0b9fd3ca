"""Beliefs with names: sums that add up, metrics that do, intervals that cover."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.problem.errors import InputError
from symphony.telemetry import gate
from symphony.telemetry.events import Catalogue, Event, Metric, Pmu
from symphony.telemetry.identities import Identity
from symphony.telemetry.inference import Model, Tracker, infer
from symphony.telemetry.samples import Column, Recording, Sample, record
from symphony.telemetry.sources.simulated import Simulated, phases
from tests.telemetry.test_bayes_net import total

PARTS = ("front", "bad", "back", "retired")
CPU = Catalogue(
    "x86/made-up",
    events=tuple(Event(name) for name in (*PARTS, "slots", "instructions", "cycles")),
    metrics=(
        *(Metric(f"{part}_bound", f"{part} / slots", scale=100.0, scale_unit="%") for part in PARTS),
        Metric("ipc", "instructions / cycles"),
        Metric("speed", "instructions / duration_time"),
        Metric("other", "instructions / unheard_of"),
    ),
    pmus=(Pmu("", 4, 3),),
)
SLOTS = replace(total("slots", *PARTS), source="curated: test")


def machine(seed: int = 0, windows: int = 60, noise: float = 0.3) -> tuple[tuple[str, ...], np.ndarray]:
    """True counts of a CPU whose slots are the sum of their parts."""
    rng = np.random.default_rng(seed)
    slices = windows * 25
    speed = rng.lognormal(0, noise, slices)
    level = np.repeat(rng.dirichlet(np.ones(4) * 4, windows // 10 + 1), 250, axis=0)[:slices]
    parts = 1e7 * speed[:, None] * level * rng.lognormal(0, 0.1, (slices, 4))
    slots = parts.sum(axis=1, keepdims=True)
    return (*PARTS, "slots", "instructions", "cycles"), np.hstack([parts, slots, parts[:, 3:] * 0.9, slots / 4])


def groups() -> tuple[tuple[str, ...], ...]:
    return (("instructions", "front", "bad"), ("instructions", "back", "retired"), ("instructions", "slots", "cycles"))


def reading(seed: int = 0, **errors: float) -> tuple[Simulated, Recording]:
    names, truth = machine(seed)
    source = Simulated(names, truth, groups(), seed=seed, **errors)
    return source, record(source.samples())[""]


def model(*identities: Identity) -> Model:
    return Model(CPU, identities=identities)


def counted_all_the_time(**rates: float) -> Recording:
    columns = tuple(Column(event.replace("_", ":"), 0) for event in rates)
    counts, second = np.array(list(rates.values())), np.ones(len(rates))
    return record(Sample("", float(k), 1.0, columns, counts, second, second) for k in range(10))[""]


def test_programs_and_the_kernel_are_told_apart() -> None:
    found = infer(model(), counted_all_the_time(cycles_u=7e8, cycles_k=3e8, instructions_u=1e9))
    assert found.total("cycles:u").mean == pytest.approx(7e9, rel=1e-2)
    assert found.total("cycles:k").mean == pytest.approx(3e9, rel=1e-2)
    alike = infer(model(), counted_all_the_time(cycles_u=7e8, instructions_u=1e9))
    assert alike["cycles"].mean == pytest.approx(7e8, rel=1e-2) and alike["ipc"].mean == pytest.approx(10 / 7, rel=1e-2)
    assert alike["cycles:u"].mean == pytest.approx(7e8, rel=1e-2)


def test_two_readings_of_an_event_in_a_group_are_both_kept() -> None:
    found = infer(model(), counted_all_the_time(cycles_p=6e8, cycles_pp=8e8))
    assert found["cycles"].mean == pytest.approx(7e8, rel=5e-2)


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


def test_parts_add_up_to_a_hundred_per_cent() -> None:
    _, recording = reading()
    found = infer(model(SLOTS), recording)
    shares = found.metrics([f"{part}_bound" for part in PARTS])
    np.testing.assert_allclose(sum(share.mean for share in shares.values()), 100, rtol=1e-9)
    assert all((share.lower >= 0).all() and (share.upper <= 100).all() for share in shares.values())
    assert shares["back_bound"].unit == "%"


def test_a_metric_of_a_ratio_is_surer_than_its_terms() -> None:
    """Instructions and slots of one group rise and fall together, and the ratio knows."""
    source, recording = reading()
    speed = infer(model(SLOTS), recording)["speed"]
    truth = source.totals()[:, 5] / 0.1
    np.testing.assert_allclose(speed.mean, truth, rtol=0.02)


def test_what_is_missing_is_not_a_number() -> None:
    _, recording = reading()
    other = infer(model(), recording)["other"]
    assert np.isnan(other.mean).all() and np.isnan(other.upper).all()
    with pytest.raises(InputError, match="no metric nonsense"):
        infer(model(), recording)["nonsense"]


def test_what_was_never_read_is_unknown() -> None:
    columns = (Column("front", 0), Column("back", 1))
    never = np.array([5.0, np.nan]), np.array([0.05, 0.0]), np.array([0.1, 0.1])
    found = infer(model(), record([Sample("", k * 0.1, 0.1, columns, *never) for k in range(3)]))
    assert np.isnan(found["back"].mean).all() and np.isinf(found["back"].upper).all()
    assert np.isnan(found.total("back").mean).all()
    assert found["front"].mean[0] == pytest.approx(10)


def test_totals() -> None:
    source, recording = reading()
    found = infer(model(SLOTS), recording)
    whole = found.total("back")
    assert whole.mean.shape == (1,)
    assert whole.mean[0] == pytest.approx(source.totals()[:, 2].sum(), rel=0.03)
    assert whole.std[0] / whole.mean[0] < (found["back"].std / found["back"].mean).mean()
    assert found.total("ipc").mean[0] == pytest.approx(0.9 * 4 * _share(source), rel=0.05)


def _share(source: Simulated) -> float:
    totals = source.totals().sum(axis=0)
    return float(totals[3] / totals[4])


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
    full = record(Simulated(names, truth, groups()).samples())[""]
    verdicts = gate.judge([SLOTS], full)
    assert verdicts[0].accepted
    parts = tuple(("instructions", *PARTS[at : at + 2]) for at in (0, 2)) * 2
    source = Simulated(names, truth, parts)
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


def test_modifiers_are_not_part_of_a_name() -> None:
    _, recording = reading()
    marked = replace(recording, columns=tuple(replace(c, event=f"{c.event}:u") for c in recording.columns))
    np.testing.assert_allclose(infer(model(SLOTS), marked)["back"].mean, infer(model(SLOTS), recording)["back"].mean)


def test_several_places_need_a_name() -> None:
    _, recording = reading()
    both = {"CPU0": recording, "CPU1": replace(recording, where="CPU1")}
    with pytest.raises(InputError, match="'CPU0', 'CPU1'"):
        infer(model(), both)
    with pytest.raises(InputError, match="no readings of 'CPU9'") as caught:
        infer(model(), both, where="CPU9")
    assert "'CPU0', 'CPU1'" in caught.value.hint
    assert infer(model(), both, where="CPU1").where == "CPU1"


def test_mistakes_are_named() -> None:
    _, recording = reading()
    for wrong in ((model(), "perf.json"), ("amdzen4", recording)):
        with pytest.raises(InputError, match=r"perf\.json|amdzen4"):
            infer(*wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'x' is no verdict"):
        infer(model(), recording, trusted=["x"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="nosuch was not counted, and x86/made-up has no metric nosuch") as caught:
        infer(model(), recording)["nosuch"]
    assert "instructions" in caught.value.hint


def test_what_is_printed_is_short() -> None:
    _, recording = reading()
    found = infer(model(), recording)
    assert repr(found) == "<Posterior: 60 windows, 7 events, 7 of them free, x86/made-up>"
    assert len(repr(found.model)) < 1500 and "<Catalogue x86/made-up: 7 events, 7 metrics>" in repr(found.model)


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
    source = Simulated(names, truth, every)
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
