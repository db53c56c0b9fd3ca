"""Which columns of a log were counted together: perf does not say, but run times do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from symphony.telemetry.naming import bare

Key = tuple[str, int]  # an event, and which of its columns: the first, the second


@dataclass(slots=True)
class Window:
    """The readings of one place in one window, decoded; columns have no groups yet."""

    where: str
    start_s: float
    duration_s: float
    line: int
    keys: list[Key] = field(default_factory=list)
    count: list[float] = field(default_factory=list)
    running_s: list[float] = field(default_factory=list)
    enabled_s: list[float] = field(default_factory=list)


def given_groups(groups: Sequence[Sequence[str]]) -> dict[Key, int]:
    """The groups that perf was told of, by column; its modifiers are left to perf."""
    seen: Counter[str] = Counter()
    found = {}
    for number, group in enumerate(groups):
        for event in map(bare, group):
            found[event, seen[event]] = number
            seen[event] += 1
    return found


def grouped(held: list[list[Window]], given: dict[Key, int]) -> dict[Key, int]:
    """Columns that are always counted are one group, and others whose run times are equal in all windows.

    Equal to the nanosecond: perf reads the counters of a group at once. Groups that take turns come close to it.
    """
    times: dict[Key, list[tuple[int, str, float]]] = {}
    always: dict[Key, bool] = {}
    for number, window in enumerate(held):
        for place in window:
            for key, running, enabled in zip(place.keys, place.running_s, place.enabled_s, strict=True):
                times.setdefault(key, []).append((number, place.where, running))
                always[key] = always.get(key, True) and (running >= enabled or running == 0)
    groups: dict[Any, int] = {}
    members: dict[Any, Counter[str]] = {}
    met: Counter[str] = Counter()  # perf may add modifiers to what it was given, but keeps the order
    found = {}
    for key, seen in times.items():
        mark: Any
        if not any(running for _, _, running in seen):
            mark = ("never", key)
        else:
            mark = "always" if always[key] else tuple(seen)
        together = (given.get((bare(key[0]), met[bare(key[0])])), mark)
        met[bare(key[0])] += 1
        # An event is in a group once: a second one is the beginning of another group.
        members.setdefault(together, Counter())[key[0]] += 1
        group = (together, members[together][key[0]])
        found[key] = groups.setdefault(group, len(groups))
    return found
