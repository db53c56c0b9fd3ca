"""Which columns of a log were counted together."""

from __future__ import annotations

from pathlib import Path

from symphony.telemetry.samples import Column
from symphony.telemetry.sources.perf_log import PerfLines
from tests.telemetry.sources.logs import (
    PLAIN,
    as_json,
    read,
    recording,
)


def test_groups_that_take_equal_turns_are_not_one(tmp_path: Path) -> None:
    """Equal shares in one window, but not to the nanosecond in all."""
    running = [[0.05, 0.05], [0.050001, 0.049999], [0.05, 0.05]]
    log = read(as_json({"": recording([("a", 0), ("b", 1)], [[1, 2]] * 3, running, 0.1)}), tmp_path)
    assert [column.group for column in log[""].columns] == [0, 1]


def test_an_event_may_be_in_one_group_twice(tmp_path: Path) -> None:
    log = read(as_json({"": recording([("a", 0), ("a", 1), ("b", 0)], [[1, 1, 2]] * 3, 0.1, 0.1)}), tmp_path)
    assert log[""].columns == (Column("a", 0), Column("a", 1), Column("b", 0))


def test_groups_that_are_given_are_kept_if_their_times_agree() -> None:
    lines = as_json(PLAIN.copy()).replace('"task-clock"', '"task-clock:u"').splitlines()
    groups = [["task-clock"], ["cycles", "instructions"], ["cycles", "cache-misses"]]
    sample = next(PerfLines(lines, groups=groups, look_ahead=1).samples())
    assert [column.group for column in sample.columns] == [0, 1, 1, 2, 2]
    wrong = [["task-clock"], ["cycles", "instructions", "cache-misses"], ["cycles"]]  # taken apart by perf
    sample = next(PerfLines(lines, groups=wrong, look_ahead=1).samples())
    assert [column.group for column in sample.columns] == [0, 1, 1, 2, 3]
    # The second cycles are another event, and still of the second group.
    other = [line.replace('"cycles"', '"cycles:u"') if at % 5 == 3 else line for at, line in enumerate(lines)]
    sample = next(PerfLines(other, groups=groups, look_ahead=1).samples())
    assert [column.group for column in sample.columns] == [0, 1, 1, 2, 2]
