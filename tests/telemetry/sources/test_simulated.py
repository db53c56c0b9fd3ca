"""Counters whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from symphony.problem.errors import InputError
from symphony.telemetry.samples import Column, record
from tests.telemetry.simulated import SimulatedSource, phases

STEPS = np.arange(12.0)[:, None] * np.array([1.0, 10.0])  # a counts 0, 1, 2, …; b ten times that


def test_groups_take_turns() -> None:
    source = SimulatedSource(("a", "b"), STEPS, (("a",), ("b",)), window=4)
    recording = record(source.samples())[""]
    assert recording.columns == (Column("a", 0), Column("b", 1))
    np.testing.assert_array_equal(recording.count, [[0 + 2, 10 + 30], [4 + 6, 50 + 70], [8 + 10, 90 + 110]])
    np.testing.assert_allclose(recording.running_s, 0.008)
    np.testing.assert_allclose(recording.scaled, 2 * recording.count)
    np.testing.assert_array_equal(source.totals()[:, 0], [6, 22, 38])


def test_an_event_may_be_in_every_group() -> None:
    source = SimulatedSource(("a", "b"), STEPS, (("a", "b"), ("a",)), window=4, first=1)
    recording = record(source.samples())[""]
    assert [column.group for column in recording.columns] == [0, 0, 1]
    np.testing.assert_array_equal(recording.count[0], [1 + 3, 10 + 30, 0 + 2])


def test_a_group_without_a_turn_says_nothing() -> None:
    recording = record(SimulatedSource(("a", "b"), STEPS, (("a",), ("b",), ("a", "b")), window=2).samples())[""]
    assert np.isnan(recording.count[0, 2:]).all() and (recording.running_s[0, 2:] == 0).all()


def test_errors_are_drawn_by_seed() -> None:
    def counts(seed: int) -> np.ndarray:
        truth = np.full((100, 2), 1e6)
        made = SimulatedSource(("a", "b"), truth, (("a",), ("b",)), 10, read_error=0.01, glitches=0.2, seed=seed)
        return record(made.samples())[""].count

    np.testing.assert_array_equal(counts(1), counts(1))
    assert (counts(1) != counts(2)).any()
    off = np.abs(np.log(counts(1) / 5e6))
    assert 0.02 < (off > 0.5).mean() < 0.5 and (off[off < 0.5] < 0.06).all()


def test_delay() -> None:
    late = next(SimulatedSource(("a", "b"), STEPS, (("a",), ("b",)), window=4, delay=2).samples())
    assert late.start_s == pytest.approx(2 * 0.016)


def test_what_makes_no_sense() -> None:
    with pytest.raises(InputError, match="shape"):
        SimulatedSource(("a",), STEPS, (("a",),))
    with pytest.raises(InputError, match="no truth for c"):
        SimulatedSource(("a", "b"), STEPS, (("c",),))


@pytest.mark.parametrize("events", [4, 10, 40, 60])
def test_phases(events: int) -> None:
    names, truth, sums = phases(events, 500, seed=2)
    assert len(names) == events == len(set(names)) and truth.shape == (500, events)
    assert (truth > 0).all() and names[0] == "instructions"
    at = {name: place for place, name in enumerate(names)}
    for total, *parts in sums:
        np.testing.assert_allclose(truth[:, at[total]], sum(truth[:, at[part]] for part in parts))
    assert truth[:, 0].max() > 5 * truth[:, 0].min()  # phases differ
