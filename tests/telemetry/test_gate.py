"""The gate: true identities pass, wrong ones are named, whatever the readings have been through."""

from __future__ import annotations

import csv
import gzip
import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from symphony.telemetry import gate
from symphony.telemetry.gate import Gate, Verdict, accepted, check_identities
from symphony.telemetry.identities import Identity
from symphony.telemetry.samples import Column, Recording
from tests.data import data
from tests.telemetry import callgrind
from tests.telemetry.multiplexed import WINDOW_S, Floats, phases, take_turns

NAMES = [f"{kind}{at}" for at in range(10) for kind in "tab"]
CORRUPTED = (3, 7)
READINGS = st.one_of(st.sampled_from([0.0, 1.0, -1.0, np.nan, np.inf, 2.0**64, 1e300]), st.floats(0, 1e9))


def total(at: int, share: float = 1.0, part: str = "", source: str = "hit + miss") -> Identity:
    """t = share × (a + b), or t = a + another part."""
    terms = ((f"t{at}", 1.0), (f"a{at}", -share), (part or f"b{at}", -share))
    return Identity(f"t{at} = …", terms, "=", source, "", 0.01)


TRUE = [total(at) for at in range(10)]


def world(seed: int, windows: int) -> dict[str, Floats]:
    """Ten totals with two parts each."""
    atoms = phases(np.random.default_rng(seed), 20, windows)
    truth: dict[str, Floats] = {}
    for at in range(10):
        truth[f"a{at}"], truth[f"b{at}"] = atoms[:, 2 * at], atoms[:, 2 * at + 1]
        truth[f"t{at}"] = truth[f"a{at}"] + truth[f"b{at}"]
    return truth


def run(seed: int, windows: int = 200, *, size: int = 4, turn: int = 1) -> Recording:
    """A run with the events in groups at random."""
    names = list(np.random.default_rng(1000 + seed).permutation(NAMES))
    groups = [names[at : at + size] for at in range(0, len(names), size)]
    return take_turns(world(seed, windows), groups, turn=turn)


def corrupted(*shares: float) -> list[Identity]:
    return [total(at, shares[CORRUPTED.index(at)]) if at in CORRUPTED else one for at, one in enumerate(TRUE)]


def rejected(verdicts: Sequence[Verdict]) -> list[int]:
    return [at for at, verdict in enumerate(verdicts) if not verdict.accepted]


# --- Estimates ---


def test_a_ratio_by_hand() -> None:
    sums, sizes = np.array([1.0, -1.0, 3.0, 1.0] * 8), np.array([10.0, 10.0, 10.0, 10.0] * 8)
    residual, deviation, freedom = gate.estimate(sums, sizes)
    assert residual == pytest.approx(0.1)
    assert freedom == 7 and deviation == pytest.approx(0)  # each batch of four windows has the same mean


def test_the_error_knows_that_windows_remember() -> None:
    """Errors that last for three windows: the naive one would be smaller by √3."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(100):
        sums = np.repeat(rng.normal(0, 1, 100), 3)
        residual, deviation, _ = gate.estimate(sums, np.full(300, 10.0))
        found.append((residual, deviation))
    residuals, deviations = np.array(found).T
    assert np.mean(deviations) == pytest.approx(np.std(residuals), rel=0.2)


def test_standard_errors_are_right() -> None:
    """Residuals of true identities, over their standard errors, are of size 1."""
    verdicts = [verdict for seed in range(20) for verdict in check_identities(TRUE, run(seed))]
    z = np.array([verdict.residual / verdict.deviation for verdict in verdicts if verdict.deviation > 1e-6])
    assert len(z) > 150 and 0.8 < np.std(z) < 1.25 and np.mean(np.abs(z) > 2) < 0.1


# --- Verdicts ---


def test_true_ones_pass() -> None:
    verdicts = [verdict for seed in range(20) for verdict in check_identities(TRUE, run(seed))]
    assert np.mean([verdict.accepted for verdict in verdicts]) >= 0.99


@pytest.mark.parametrize("shares", [(1.1, 0.9), (1.25, 1.25), (0.7, 1.5)])
def test_two_corrupted_ones_among_ten_are_named(shares: tuple[float, float]) -> None:
    runs = range(8)
    named = [rejected(check_identities(corrupted(*shares), run(seed, windows=600))) for seed in runs]
    assert [seed for seed in runs if named[seed] == list(CORRUPTED)] == list(runs)


def test_a_replaced_event_is_named() -> None:
    identities = [*TRUE[:4], total(4, part="b5"), *TRUE[5:]]
    verdicts = check_identities(identities, run(3))
    assert rejected(verdicts) == [4]
    assert verdicts[4].reason.startswith("off by") and abs(verdicts[4].z) > 3


def test_in_one_group_little_is_enough() -> None:
    groups = [[f"t{at}", f"a{at}", f"b{at}"] for at in range(10)]
    recording = take_turns(world(0, 20), groups)
    verdicts = check_identities(corrupted(1.05, 0.95), recording)
    assert rejected(verdicts) == list(CORRUPTED)
    assert verdicts[0].residual == pytest.approx(0, abs=1e-12)


def test_what_they_share_with_a_wrong_one_does_not_harm_true_ones() -> None:
    truth = world(5, 300)
    truth["u"] = truth["t0"] + truth["t1"]
    sums = [
        *TRUE[:2],
        Identity("u = t0 + t1", (("u", 1.0), ("t0", -1.0), ("t1", -1.0)), tolerance=0.01),
        Identity("wrong", (("u", 1.0), ("a0", -1.0), ("t1", -1.0)), tolerance=0.01),
        Identity("parts", (("u", 1.0), ("a0", -1.0), ("b0", -1.0), ("a1", -1.0), ("b1", -1.0)), tolerance=0.01),
    ]
    names = ["u", "t0", "a1", "b0", "t1", "a0", "b1"]
    verdicts = check_identities(sums, take_turns(truth, [names[:3], names[3:5], names[5:]]))
    assert rejected(verdicts) == [3]


def test_of_two_that_contradict_one_another_one_goes() -> None:
    """Neither is refuted by itself: what they agree on is noisy. Together they say that a part is zero."""
    wrong = Identity("wrong", (("t0", 1.0), ("a0", -1.0), ("b0", -1.25)), tolerance=0.01)
    outcomes = []
    for seed in range(20):
        recording = take_turns(world(seed, 30), [["t0"], ["a0", "b0"]], turn=6)
        if all(check_identities([one], recording)[0].accepted for one in (TRUE[0], wrong)):
            verdicts = check_identities([TRUE[0], wrong], recording)
            outcomes.append(rejected(verdicts))
            for at in rejected(verdicts):
                assert f"contradicts {verdicts[1 - at].identity.name}" in verdicts[at].reason
    assert len(outcomes) >= 5  # runs that leave both standing alone
    assert [0, 1] not in outcomes and outcomes.count([1]) > len(outcomes) / 2 > 4 * outcomes.count([0])


def test_bounds() -> None:
    right = Identity("t0 >= a0", (("t0", 1.0), ("a0", -1.0)), ">=", "bound", "", 0.01)
    wrong = Identity("a0 >= t0", (("a0", 1.0), ("t0", -1.0)), ">=", "bound", "", 0.01)
    first, second = check_identities([right, wrong], run(1))
    assert first.accepted and first.residual > 0 and first.z == 0
    assert not second.accepted and second.residual < 0


def test_reasons_are_in_terms_that_people_know() -> None:
    """Of a sum, the residual with half of its 95% interval, and what was allowed; of a bound, one side as a share."""
    recording = run(0, 200)
    (verdict,) = check_identities([TRUE[0]], recording)
    residual, half, allowed = map(float, re.findall(r"([-+\d.]+)%", verdict.reason))
    assert residual == pytest.approx(100 * verdict.residual, abs=0.01) and allowed == 1.0
    assert 1.9 * verdict.deviation < half / 100 < 3 * verdict.deviation
    (verdict,) = check_identities(
        [Identity("t0 >= a0", (("t0", 1.0), ("a0", -1.0)), ">=", "bound", "", 0.01)], recording
    )
    truth = world(0, 200)
    share = float(re.findall(r"the right side is ([\d.]+)%", verdict.reason)[0])
    assert share == pytest.approx(100 * truth["a0"].sum() / truth["t0"].sum(), abs=8)


def test_tolerances() -> None:
    """Within what an identity claims nothing is held against it; what is learned is never less."""
    truth = world(4, 100)
    recording = take_turns(truth, [["t0", "a0", "b0"]])
    loose = replace(total(0, 1.02), tolerance=0.05)
    (verdict,) = check_identities([loose], recording)
    assert verdict.accepted and verdict.z == 0 and verdict.identity.tolerance == 0.05
    (verdict,) = check_identities([replace(total(0, 1.02), tolerance=0.0)], recording)
    assert not verdict.accepted
    # Noise alone teaches nothing.
    assert {verdict.identity.tolerance for verdict in check_identities(TRUE, run(0, turn=3)) if verdict.accepted} == {
        0.01
    }


# --- What cannot be tested ---


def test_what_is_not_counted() -> None:
    recording = take_turns(world(0, 50), [["t0", "a0"]])
    by_name, wired = check_identities([TRUE[0], total(0, source="umask union")], recording)
    assert not by_name.tested and not by_name.accepted and "b0 was not counted" in by_name.reason
    assert not wired.tested and wired.accepted and math.isnan(wired.residual)
    assert accepted([by_name, wired]) == (total(0, source="umask union"),)


@pytest.mark.parametrize("windows", [0, 1, 5])
def test_too_few_windows(windows: int) -> None:
    recording = take_turns(world(0, 10), [["t0", "a0", "b0"]])
    arrays = ("start_s", "duration_s", "count", "running_s", "enabled_s")
    short = replace(recording, **{name: getattr(recording, name)[:windows] for name in arrays})
    (verdict,) = check_identities(TRUE[:1], short)
    assert not verdict.tested and "windows" in verdict.reason


def test_nothing_counted_proves_nothing() -> None:
    recording = take_turns({name: np.zeros(240) for name in ("t0", "a0", "b0")}, [["t0", "a0"], ["b0"]])
    (verdict,) = check_identities(TRUE[:1], recording)
    assert not verdict.tested and not verdict.accepted and "nothing was counted" in verdict.reason


def test_too_noisy_to_tell() -> None:
    verdicts = check_identities(TRUE, run(1, windows=60, turn=12))
    untested = [verdict for verdict in verdicts if not verdict.tested]
    assert untested and all("only known to" in verdict.reason for verdict in untested)


# --- Bad readings ---


def spoilt(recording: Recording, how: str, share: float) -> Recording:
    rng = np.random.default_rng(7)
    bad = rng.random(recording.count.shape) < share
    count = recording.count.copy()
    count[bad] = {"wrapped": count + 2.0**32, "huge": count * 100, "zero": count * 0, "unknown": count * np.nan}[how][
        bad
    ]
    if how == "unknown":
        count[0] = -1.0
    return replace(recording, count=count)


@pytest.mark.parametrize(("how", "share"), [("wrapped", 0.004), ("huge", 0.004), ("zero", 0.004), ("unknown", 0.1)])
def test_bad_readings(how: str, share: float) -> None:
    verdicts = [check_identities(corrupted(1.3, 0.6), spoilt(run(seed, 300), how, share)) for seed in range(6)]
    right = [found[at].accepted for found in verdicts for at in range(10) if at not in CORRUPTED]
    wrong = [found[at].accepted for found in verdicts for at in CORRUPTED]
    assert np.mean(right) >= 0.95 and not any(wrong)


def test_absurd_windows_in_one_group() -> None:
    recording = take_turns(world(0, 100), [["t0", "a0", "b0"]])
    count = recording.count.copy()
    count[17, 0] *= 3
    (verdict,) = check_identities(TRUE[:1], replace(recording, count=count))
    assert verdict.accepted and verdict.residual == pytest.approx(0, abs=1e-9) and "1 outlier" in verdict.reason
    count[::3, 0] *= 3  # too many to be accidents
    assert not check_identities(TRUE[:1], replace(recording, count=count))[0].accepted


def test_groups_that_take_turns_by_windows() -> None:
    """No window has all events: several are taken together."""
    recording = run(0, 1200, size=15, turn=12)
    assert np.isnan(recording.count).mean() == 0.5
    verdicts = check_identities(corrupted(1.5, 0.5), recording)
    assert all(verdict.tested for verdict in verdicts)
    assert rejected(verdicts) == list(CORRUPTED)


def test_an_event_in_several_groups() -> None:
    """Where one group has all the events, it alone is compared."""
    groups = [["t0", "a0"], ["a0", "b0"], ["t0", "a0", "b0"]]
    (verdict,) = check_identities(TRUE[:1], take_turns(world(0, 50), groups))
    assert verdict.residual == pytest.approx(0, abs=1e-12)


@given(st.lists(st.tuples(*[READINGS] * 3, *[st.sampled_from([0.0, 0.1])] * 3), max_size=40), st.integers(0, 7))
def test_whatever_is_read_there_is_a_verdict(read: list[tuple[float, ...]], groups: int) -> None:
    windows = len(read)
    count, running = np.split(np.array(read).reshape(windows, 6), 2, axis=1)
    columns = tuple(Column(event, groups >> at & 1) for at, event in enumerate(("t0", "a0", "b0")))
    time = np.arange(windows) * WINDOW_S
    recording = Recording("", columns, time, np.full(windows, 0.1), count, running, np.full((windows, 3), 0.1))
    bound = Identity("t0 >= a0", (("t0", 1.0), ("a0", -1.0)), ">=", "bound")
    live = Gate([TRUE[0], bound])
    for sample in recording.samples():
        live.update(sample)
    for verdict in (*check_identities([TRUE[0], bound, TRUE[1]], recording), *live.verdicts()):
        assert verdict.reason
        assert verdict.tested is math.isfinite(verdict.residual) is math.isfinite(verdict.deviation)
        if verdict.accepted:
            assert math.isfinite(verdict.identity.tolerance) and -2 <= verdict.residual <= 2


# --- Live ---


def test_the_live_gate_says_the_same() -> None:
    recording = run(0, 100)
    live = Gate(corrupted(1.3, 0.6))
    assert not any(verdict.tested for verdict in live.verdicts())
    for sample in recording.samples():
        live.update(sample)
    assert [verdict.residual for verdict in live.verdicts()] == [
        verdict.residual for verdict in check_identities(corrupted(1.3, 0.6), recording)
    ]


def test_the_live_gate_forgets_nothing_and_does_not_grow() -> None:
    live = Gate(corrupted(1.2, 0.8))
    recording = spoilt(run(1, 3000), "huge", 0.001)
    for sample in recording.samples():
        live.update(sample)
    place = live._places[""]
    assert len(place.past) <= Gate.PAST and len(place.recent) < Gate.RECENT
    assert sum(weight for weight, _ in place.past) + len(place.recent) == 3000
    verdicts = live.verdicts()
    assert rejected(verdicts) == list(CORRUPTED)
    assert max(verdict.deviation for verdict in verdicts) < 0.02


def test_merged_windows_are_sums() -> None:
    a, b = take_turns(world(0, 2), [["t0"], ["a0", "b0"]]).samples()
    b.count[1] = np.nan
    both = gate._sum(a, b)
    assert both.count[0] == a.count[0] + b.count[0] and both.running_s[0] == a.running_s[0] + b.running_s[0]
    assert both.count[1] == a.count[1] and both.running_s[1] == a.running_s[1]  # the other time was not spent on it
    assert both.enabled_s[1] == pytest.approx(2 * WINDOW_S) and both.duration_s == pytest.approx(2 * WINDOW_S)


def test_places_count_together() -> None:
    live = Gate(TRUE[:1])
    for where in ("CPU0", "CPU1"):
        for sample in take_turns(world(0, 4), [["t0", "a0", "b0"]]).samples():
            live.update(replace(sample, where=where))
    (verdict,) = live.verdicts()
    assert verdict.tested and verdict.accepted and "8 windows" in verdict.reason


# --- Real programs ---


def trace(program: str, windows: int, slices: int) -> dict[str, Floats]:
    """Counts of a program under callgrind in slices of equal estimated time."""
    with gzip.open(data("pmu-events", "traces", f"{program}.csv.gz"), "rt") as file:
        rows = list(csv.DictReader(file))
    counts = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
    misses = counts["I1mr"] + counts["D1mr"] + counts["D1mw"], counts["ILmr"] + counts["DLmr"] + counts["DLmw"]
    cycles = 0.4 * counts["Ir"] + 12 * (counts["Bcm"] + counts["Bim"]) + 10 * misses[0] + 100 * misses[1]
    clock = np.concatenate([[0.0], np.cumsum(cycles)])
    ends = np.linspace(0, clock[-1], windows * slices + 1)
    return {
        name: np.diff(np.interp(ends, clock, np.concatenate([[0.0], np.cumsum(count)])))
        for name, count in counts.items()
    }


@pytest.mark.parametrize("program", ["python", "xz", "sort"])
def test_callgrind(program: str) -> None:
    truth = trace(program, windows=150, slices=12)
    truth |= {"D": truth["Dr"] + truth["Dw"], "D1m": truth["D1mr"] + truth["D1mw"], "B": truth["Bc"] + truth["Bi"]}
    identities = callgrind.identities(truth)
    wrong = Identity("d = dr + dlmw", (("d", 1.0), ("dr", -1.0), ("dlmw", -1.0)), "=", "hit + miss", "", 0.01)
    names = list(np.random.default_rng(1).permutation(list(truth)))
    groups = [names[at : at + 4] for at in range(0, len(names), 4)]
    *verdicts, last = check_identities([*identities, wrong], take_turns(truth, groups))
    assert len(verdicts) == 12
    assert not [verdict for verdict in verdicts if verdict.tested and not verdict.accepted]
    assert sum(verdict.tested for verdict in verdicts) >= 9
    assert not last.accepted
