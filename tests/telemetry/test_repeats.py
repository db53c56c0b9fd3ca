"""Means of repeated runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from symphony.telemetry.reading import Reader, model
from symphony.telemetry.repeats import averaged, half_interval
from symphony.telemetry.spans import Span, StatRow


def test_the_interval_of_a_mean_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(7.0, 2.0, (4_000, 4))
    held = [abs(sample.mean() - 7.0) <= half_interval(list(sample)) for sample in samples]
    assert np.mean(held) == pytest.approx(0.95, abs=0.011)  # three standard errors
    assert math.isnan(half_interval([1.0]))


def test_places_and_rows_are_averaged_and_what_was_counted_in_no_run_stays_unknown() -> None:
    reader = Reader(model("architectural"))

    def row(name: str, value: float, counted: float = 1.0) -> StatRow:
        return StatRow("event", name, "", value, 2.0, value - 4.0, value + 6.0, counted)

    unknown = row("c", math.nan)
    first = [(Span(reader, "", 0.0, 1.0), [row("a", 10.0, 0.5), row("b", 5.0), unknown])]
    second = [
        (Span(reader, "", 0.0, 3.0), [row("a", 20.0, 0.7), row("b", math.nan), unknown]),
        (Span(reader, "m", 0.0), []),
    ]
    (whole, [a, b, c]), (other, none) = averaged([first, second])
    assert (whole.where, whole.duration_s, other.where, none) == ("", 2.0, "m", [])
    assert (a.value, a.lower, a.upper, a.std, a.counted, a.runs) == (15.0, 11.0, 21.0, 2.0, pytest.approx(0.6), 2)
    assert a.over_runs == pytest.approx(12.706 * 5.0, rel=1e-3)  # Student's t with one degree of freedom
    assert (b.value, b.runs) == (5.0, 1) and math.isnan(b.over_runs) and math.isnan(c.value)
