"""Which columns of a log were counted together. perf does not print groups; equal run times show them.

Until the groups are known, the `group` of a column is the number of its event's earlier columns in the same window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from symphony.telemetry.naming import bare
from symphony.telemetry.samples import Column, Sample


def given_groups(groups: Sequence[Sequence[str]]) -> dict[Column, int]:
    """The groups that perf was asked to count, by column without modifiers (perf may add some)."""
    seen: Counter[str] = Counter()
    found = {}
    for number, group in enumerate(groups):
        for event in map(bare, group):
            found[Column(event, seen[event])] = number
            seen[event] += 1
    return found


def grouped(windows: Sequence[Sequence[Sample]], given: dict[Column, int]) -> dict[Column, int]:
    """The group of each column: columns that are always counted, or whose run times are equal in all windows.

    Equal to the nanosecond, because perf reads the counters of a group at once; groups that take turns come close.
    """
    times: dict[Column, list[tuple[int, str, float]]] = {}
    always: dict[Column, bool] = {}
    for number, window in enumerate(windows):
        for sample in window:
            for column, running, enabled in zip(sample.columns, sample.running_s, sample.enabled_s, strict=True):
                times.setdefault(column, []).append((number, sample.where, running))
                always[column] = always.get(column, True) and (running >= enabled or running == 0)
    groups: dict[Any, int] = {}
    members: dict[Any, Counter[str]] = {}
    met: Counter[str] = Counter()  # perf may add modifiers to the events, but keeps their order
    found = {}
    for column, seen in times.items():
        mark: Any
        if not any(running for _, _, running in seen):
            mark = ("never", column)
        else:
            mark = "always" if always[column] else tuple(seen)
        event = bare(column.event)
        together = (given.get(Column(event, met[event])), mark)
        met[event] += 1
        # A group has an event once: its second occurrence belongs to another group.
        members.setdefault(together, Counter())[column.event] += 1
        found[column] = groups.setdefault((together, members[together][column.event]), len(groups))
    return found
