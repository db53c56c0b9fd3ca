"""Which events to count together, and which to derive instead of counting them.

A unit has a few counters, each of which can hold certain events. Groups of events that fit the counters are counted in
turn by Linux. Two choices are made here. Only the free events of the network are counted; sums of them are derived, so
that fewer groups share the time. And each group occurs more than once in the rotation: readings of the same events at
different times of a window show the error of a reading. All groups get equal time: more time for the least certain
events did worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from symphony.problem.errors import InputError
from symphony.telemetry.bayes_net import BayesNet
from symphony.telemetry.events import Event, Pmu

GROUP_REPEATS = 2  # occurrences of each group in the rotation
_MIN_COUNTERS_FOR_ANCHOR = 6  # general counters from which one is spent on an anchor


@dataclass(frozen=True)
class CounterSchedule:
    """Groups of events of one unit, in the order of the rotation."""

    unit: str
    groups: tuple[tuple[str, ...], ...]  # keys of events, anchors first
    anchors: tuple[str, ...] = ()


def plan(
    wanted: Sequence[str],
    net: BayesNet,
    events: Mapping[str, Event],
    pmu: Pmu,
    *,
    anchors: Sequence[str] = (),
    repeats: int = GROUP_REPEATS,
) -> CounterSchedule:
    """Groups for the wanted events of one unit, or for the free events that they are derived from.

    `anchors` are candidates: those with a fixed counter are in every group; otherwise the first is, if the unit has
    counters to spare.
    """
    needed = {net.free[part] for event in wanted for part, coefficient in enumerate(net.row(event)) if coefficient}
    chosen = _anchors(anchors, needed, events, pmu)
    rest = [event for event in net.free if event in needed and event not in chosen]
    groups: list[tuple[str, ...]] = []
    waiting = sorted(rest, key=lambda event: len(pmu.places(events[event])))  # events that few counters can hold first
    while waiting:
        # An anchor may occupy the only counter that can hold an event: then the group has no anchor.
        group = _filled(chosen, waiting, events, pmu) or _filled([], waiting, events, pmu)
        if not group:
            raise InputError(
                f"no counter of {pmu.unit or 'the core'} can hold {waiting[0]}",
                hint="leave it out, or find a similar event with `symphony catalogue show --events PATTERN`",
            )
        groups.append(group)
        waiting = [event for event in waiting if event not in group]
    if not groups and chosen:
        return CounterSchedule(pmu.unit, (tuple(chosen),), tuple(chosen))
    return CounterSchedule(pmu.unit, tuple(groups * (repeats if len(groups) > 1 else 1)), tuple(chosen))


def _filled(
    anchors: Sequence[str], waiting: Sequence[str], events: Mapping[str, Event], pmu: Pmu
) -> tuple[str, ...] | None:
    """The anchors, and as many of the waiting events as fit; None if none does."""
    group = list(anchors)
    for event in waiting:
        if pmu.holds([events[x] for x in (*group, event)]):
            group.append(event)
    return tuple(group) if len(group) > len(anchors) else None


def _anchors(offered: Sequence[str], needed: set[str], events: Mapping[str, Event], pmu: Pmu) -> list[str]:
    """The candidates that cost no general counter, or one of many."""
    fixed = [event for event in offered if events[event].fixed is not None]
    chosen = fixed or [event for event in offered[:1] if pmu.general >= _MIN_COUNTERS_FOR_ANCHOR]
    while chosen and not pmu.holds([events[event] for event in chosen]):
        chosen.pop()
    everything = [events[event] for event in {*needed, *chosen}]
    return [] if pmu.holds(everything) and not fixed else chosen
