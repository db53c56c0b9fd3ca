"""Which events to count together, and which not to count at all because others tell them.

A unit has a few counters, each able to hold some events. Groups that fit are counted in turn, as Linux does it. Two
choices are made here. Only the net's free events are counted: what is a sum of them is derived, so that fewer groups
share the time. And every group stands in the turn more than once: the same events, counted at different times of the
same window, show how far a reading can be off. Turns are even; measuring what is least certain first does worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from symphony.problem.errors import InputError
from symphony.telemetry.bayes_net import BayesNet
from symphony.telemetry.events import Event, Pmu
from symphony.telemetry.samples import Column

GROUP_REPEATS = 2  # times that each group stands in the turn
_MIN_COUNTERS_FOR_ANCHOR = 6  # general counters from which one may be spent on an anchor


@dataclass(frozen=True)
class CounterSchedule:
    """Groups of events of one unit, in the order of their turns."""

    unit: str
    groups: tuple[tuple[str, ...], ...]  # keys of events, anchors first
    anchors: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The readings that there will be."""
        return tuple(Column(event, number) for number, group in enumerate(self.groups) for event in group)

    @property
    def counted(self) -> tuple[str, ...]:
        """The events that get a counter."""
        return tuple(dict.fromkeys(event for group in self.groups for event in group))


def plan(
    wanted: Sequence[str],
    net: BayesNet,
    events: Mapping[str, Event],
    pmu: Pmu,
    *,
    anchors: Sequence[str] = (),
    repeats: int = GROUP_REPEATS,
) -> CounterSchedule:
    """Groups for the wanted events of one unit: counted if free, else derived.

    `anchors` are offered: those that have a fixed counter are counted in every group, and the first of the others if
    the unit has counters to spare.
    """
    needed = {net.free[part] for event in wanted for part, coefficient in enumerate(net.row(event)) if coefficient}
    chosen = _anchors(anchors, needed, events, pmu)
    rest = [event for event in net.free if event in needed and event not in chosen]
    groups: list[tuple[str, ...]] = []
    waiting = sorted(rest, key=lambda event: len(pmu.places(events[event])))  # what few counters can hold comes first
    while waiting:
        # An anchor may be on the only counter that can hold an event: that goes without.
        group = _filled(chosen, waiting, events, pmu) or _filled([], waiting, events, pmu)
        if not group:
            raise InputError(
                f"no counter of {pmu.unit or 'the core'} can hold {waiting[0]}",
                hint="leave it out, or look at `symphony catalogue show --events` for one that is like it",
            )
        groups.append(group)
        waiting = [event for event in waiting if event not in group]
    if not groups and chosen:
        return CounterSchedule(pmu.unit, (tuple(chosen),), tuple(chosen))
    return CounterSchedule(pmu.unit, tuple(groups * (repeats if len(groups) > 1 else 1)), tuple(chosen))


def _filled(
    anchors: Sequence[str], waiting: Sequence[str], events: Mapping[str, Event], pmu: Pmu
) -> tuple[str, ...] | None:
    """Anchors, and as many as fit of those that wait; None if none does."""
    group = list(anchors)
    for event in waiting:
        if pmu.holds([events[x] for x in (*group, event)]):
            group.append(event)
    return tuple(group) if len(group) > len(anchors) else None


def _anchors(offered: Sequence[str], needed: set[str], events: Mapping[str, Event], pmu: Pmu) -> list[str]:
    """Those of the offered that cost nothing, or little."""
    fixed = [event for event in offered if events[event].fixed is not None]
    chosen = fixed or [event for event in offered[:1] if pmu.general >= _MIN_COUNTERS_FOR_ANCHOR]
    while chosen and not pmu.holds([events[event] for event in chosen]):
        chosen.pop()
    everything = [events[event] for event in {*needed, *chosen}]
    return [] if pmu.holds(everything) and not fixed else chosen
