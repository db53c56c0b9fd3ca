"""Utilisation of a topology's resource rows: what the scheduler wants to know, from what counters say.

Which metric or event speaks of which kind of row is in `rows.toml`, once for all CPUs. A row that nothing speaks of is
left out: nothing is known of it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np

from symphony.problem.errors import InputError
from symphony.problem.topology import Resource, Topology
from symphony.telemetry.inference import Estimate, Posterior


@dataclass(frozen=True)
class Says:
    """What speaks of a kind of row."""

    kind: str
    sum: tuple[str, ...]  # metrics or events
    unit: float = 1.0
    type: str = ""  # of the device whose row it is; "" = any
    where: str = ""  # beginning of the place's name, followed by the number of the device
    share: bool = False  # what is said is a share of the capacity


def utilisations(topology: Topology, machine: str, beliefs: Mapping[str, Posterior]) -> dict[str, Estimate]:
    """Use of a machine's rows as a share of their capacity, from beliefs about its places, window by window.

    Rows of one kind that nothing tells apart, such as the memories of two sockets, are taken to be used alike.
    """
    rows = [row for row in topology.resources if row.group == machine]
    if not rows:
        known = sorted({row.group for row in topology.resources})
        raise InputError(f"{topology.name!r} has no machine {machine!r}", hint=f"use one of {', '.join(known)}")
    found: dict[str, Estimate] = {}
    for says in _table():
        for place, meant in _meant(topology, rows, says, beliefs):
            fresh = [row for row in meant if row.name not in found]
            if fresh and (used := _used(says, beliefs[place])) is not None:
                whole = 1.0 if says.share else sum(row.capacity for row in meant)
                for row in fresh:
                    found[row.name] = _scaled(row.name, used, whole)
    return found


def _meant(
    topology: Topology, rows: list[Resource], says: Says, beliefs: Mapping[str, Posterior]
) -> Iterator[tuple[str, list[Resource]]]:
    """Places, and the rows that each speaks of."""
    types = {kind.name: kind.type for kind in topology.kinds}
    devices = [device for device in topology.devices if not says.type or types[device.kind] == says.type]
    if not says.where:
        crossed = {hop.resource for device in devices for hop in device.route}
        for place in beliefs:
            yield place, [row for row in rows if row.kind == says.kind and row.name in crossed]
        return
    here = {row.name for row in rows}
    local = [device for device in devices if any(hop.resource in here for hop in device.route)]
    for number, device in enumerate(local):
        if (place := f"{says.where}{number}") in beliefs:
            crossed = {hop.resource for hop in device.route}
            yield place, [row for row in rows if row.kind == says.kind and row.name in crossed]


def _used(says: Says, belief: Posterior) -> Estimate | None:
    """What is used per second, in the unit of the capacity; None if the belief does not know."""
    parts = []
    for name in says.sum:
        try:
            part = belief[name]
        except InputError:
            return None
        if np.isnan(part.mean).all():
            return None
        counted = belief.is_event(name)
        per_second = 1 / belief.duration_s if counted else np.ones(len(belief))
        parts.append((part.mean * per_second * says.unit, part.std * per_second * says.unit))
    mean = np.sum([mean for mean, _ in parts], axis=0)
    std = np.sqrt(np.sum([std**2 for _, std in parts], axis=0))
    return Estimate("", "", mean, std, np.maximum(mean - 1.96 * std, 0), mean + 1.96 * std)


def _scaled(name: str, used: Estimate, whole: float) -> Estimate:
    return Estimate(name, "", used.mean / whole, used.std / whole, used.lower / whole, used.upper / whole)


@lru_cache(maxsize=1)
def _table() -> tuple[Says, ...]:
    text = (resources.files("symphony.telemetry") / "rows.toml").read_text(encoding="utf-8")
    return tuple(Says(**{**entry, "sum": tuple(entry["sum"])}) for entry in tomllib.loads(text)["row"])
