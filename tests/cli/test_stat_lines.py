"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from symphony.cli.stat_lines import shown
from symphony.telemetry.spans import StatRow


def row(value: float, lower: float, upper: float, unit: str = "", kind: str = "event") -> StatRow:
    return StatRow(kind, "x", unit, value, (upper - lower) / 4, lower, upper)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (row(1e9, 0.95e9, 1.05e9), ("1,000,000,000", "5.00%")),
        (row(1e9, 0, 3e9), ("1,000,000,000", "−100%…+200%")),
        (row(0, 0, 7), ("0", "0…7")),
        (row(5, 0, 700), ("5", "0…700")),
        (row(17.1, 15.5, 18.7, "%", "metric"), ("17.1", "1.6")),
        (row(4.5, 0, 16.9, "%", "metric"), ("4.5", "0.0…16.9")),
        (row(0, 0, 1e-9, "%", "metric"), ("0.00", "0.00")),
        (row(2e3, 2e3, 2e3, "msec"), ("2,000.00", "")),
        (row(1e9, 1e9, 1e9, "ns"), ("1,000,000,000", "")),
        (row(math.nan, 0, math.inf), ("<not counted>", "")),
    ],
)
def test_values_with_their_intervals(found: StatRow, expected: tuple[str, str]) -> None:
    """Half of an interval would name values that cannot be where one end is much farther off than the other."""
    assert shown(found) == expected
