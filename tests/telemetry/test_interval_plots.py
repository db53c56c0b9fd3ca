"""Bands over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from symphony.problem.errors import InputError
from symphony.telemetry.interval_plots import MAX_PANELS, IntervalPlots, check
from symphony.telemetry.reading import Model, Reader
from symphony.telemetry.spans import Span, StatRow
from tests.telemetry.demo import DEMO

READER = Reader(Model(DEMO))


def row(name: str, value: float, kind: str = "event") -> StatRow:
    return StatRow(kind, name, "", value, value / 10, 0.8 * value, 1.2 * value)


def test_events_are_rates_and_unknown_windows_gaps() -> None:
    bands = IntervalPlots()
    for k, value in enumerate([10.0, np.nan, 30.0]):
        bands.add(Span(READER, "", k * 0.5, 0.5), [row("a", value), row("share", value, "metric")])
    first, second = bands.figure().axes[:2]
    (line,) = first.get_lines()
    np.testing.assert_allclose(line.get_ydata(), [20, 20, np.nan, np.nan, 60, 60])
    np.testing.assert_allclose(line.get_xdata(), [0, 0.5, 0.5, 1, 1, 1.5])
    np.testing.assert_allclose(second.get_lines()[0].get_ydata()[0], 10)
    assert "per second" in first.get_title("left")


def test_places_have_colours_and_panels_are_bounded() -> None:
    bands = IntervalPlots()
    for where in ("CPU0", "CPU1"):
        bands.add(Span(READER, where, 0.0, 0.1), [row(f"e{n}", 1.0) for n in range(MAX_PANELS + 5)])
    figure = bands.figure()
    assert len([ax for ax in figure.axes if ax.get_lines()]) == MAX_PANELS
    assert len({line.get_color() for line in figure.axes[0].get_lines()}) == 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["CPU0", "CPU1"]
    assert not IntervalPlots().figure().axes[0].get_lines()


def test_files_are_checked_beforehand(tmp_path: Path) -> None:
    check(tmp_path / "a.SVG")
    for wrong in (tmp_path / "a.txt", tmp_path / "no" / "a.svg", tmp_path / "a"):
        with pytest.raises(InputError):
            check(wrong)
