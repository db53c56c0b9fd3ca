"""Utilisation of a topology's resource rows, from counters.

`rows.toml` lists which metrics or events measure which kind of row, for all CPUs. Rows that no counter measures are
left out.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources

import numpy as np

from symphony.problem.errors import InputError
from symphony.problem.topology import Device, Resource, Topology
from symphony.telemetry.estimates import Estimate, Posterior
from symphony.telemetry.events import Catalogue
from symphony.telemetry.expressions import key
from symphony.telemetry.naming import kind

_SOCKET = re.compile(r"S(\d+)(?:-|$)")


@dataclass(frozen=True)
class RowMetric:
    """The metrics or events that measure a kind of row."""

    kind: str
    sum: tuple[str, ...]  # metrics or events
    unit: float = 1.0
    type: str = ""  # of the row's device; "" = any
    where: str = ""  # prefix of the place's name, before the number of the device
    share: bool = False  # the value is a share of the capacity


def utilisations(topology: Topology, machine: str, beliefs: Mapping[str, Posterior]) -> dict[str, Estimate]:
    """Use of a machine's rows as a share of their capacity, from beliefs about its places, window by window.

    Rows of one kind that no counter separates, such as the memories of two sockets, are assumed to be used equally.
    Places that perf names by sockets (`S0`, `S1-D0`) measure the rows of those sockets; other places are added up.
    """
    return _found(
        topology,
        machine,
        lambda metric: {place: x for place, belief in beliefs.items() if (x := _used(metric, belief)) is not None},
    )


def exact(topology: Topology, machine: str, rates: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The same for one window whose events were counted all the time: from rates by place and event."""

    def used(metric: RowMetric) -> dict[str, Estimate]:
        sums = {place: metric.unit * sum(of.get(name, np.nan) for name in metric.sum) for place, of in rates.items()}
        known = {place: np.full(1, x) for place, x in sums.items() if not np.isnan(x)}
        return {place: Estimate("", "", x, np.zeros(1), x, x) for place, x in known.items()}

    return {row: float(use.mean[0]) for row, use in _found(topology, machine, used).items()}


def _found(
    topology: Topology, machine: str, known_of: Callable[[RowMetric], Mapping[str, Estimate]]
) -> dict[str, Estimate]:
    rows = rows_of(topology, machine)
    found: dict[str, Estimate] = {}
    for metric in _table():
        for measured, parts in _measured(topology, rows, metric, known_of(metric)):
            fresh = [row for row in measured if row.name not in found]
            if fresh and parts:
                used = _sum(parts)
                whole = 1.0 if metric.share else sum(row.capacity for row in measured)
                found |= {row.name: _scaled(row.name, used, whole) for row in fresh}
    return found


def metrics_by_row(topology: Topology, machine: str, catalogue: Catalogue) -> dict[str, tuple[str, ...]]:
    """The metrics or events whose sum is a row's use, by row, as far as the catalogue, kernel and GPUs have them."""
    found: dict[str, tuple[str, ...]] = {}
    rows, metrics = rows_of(topology, machine), catalogue.definitions()
    for metric in _table():
        if all(kind(name) in ("kernel", "gpu") or key(name) in metrics or catalogue.find(name) for name in metric.sum):
            crossed = {hop.resource for device in _devices(topology, rows, metric) for hop in device.route}
            for row in rows:
                if row.kind == metric.kind and row.name in crossed:
                    found.setdefault(row.name, metric.sum)
    return found


def rows_of(topology: Topology, machine: str) -> list[Resource]:
    """The rows of a machine; raises `InputError` if there is no such machine."""
    rows = [row for row in topology.resources if row.group == machine]
    if not rows:
        machines = sorted({row.group for row in topology.resources})
        raise InputError(f"{topology.name!r} has no machine {machine!r}", hint=f"use one of {', '.join(machines)}")
    return rows


def _devices(topology: Topology, rows: list[Resource], metric: RowMetric) -> list[Device]:
    """Devices whose work uses the rows, of the type that the metric measures."""
    types = {one.name: one.type for one in topology.kinds}
    here = {row.name for row in rows}
    return [
        device
        for device in topology.devices
        if (not metric.type or types[device.kind] == metric.type) and any(hop.resource in here for hop in device.route)
    ]


def _measured(
    topology: Topology, rows: list[Resource], metric: RowMetric, known: Mapping[str, Estimate]
) -> Iterator[tuple[list[Resource], list[Estimate]]]:
    """Rows that share a measurement, and the estimates of the places that measure them."""
    devices = _devices(topology, rows, metric)
    if metric.where:
        for number, device in enumerate(devices):
            own = {hop.resource for hop in device.route}
            estimates = [known[place] for place in (f"{metric.where}{number}",) if place in known]
            yield [row for row in rows if row.kind == metric.kind and row.name in own], estimates
        return
    sockets = list(dict.fromkeys(device.socket for device in devices))
    of: dict[str, set[int]] = {}  # row → sockets that use it
    for device in devices:
        for hop in device.route:
            of.setdefault(hop.resource, set()).add(sockets.index(device.socket))
    crossed = [row for row in rows if row.kind == metric.kind and row.name in of]
    numbers = {place: int(found[1]) for place in known if (found := _SOCKET.match(place))}
    if not numbers or len(numbers) < len(known) or max(numbers.values()) >= len(sockets):
        yield crossed, list(known.values())
        return
    for number in range(len(sockets)):
        estimates = [known[place] for place, socket in numbers.items() if socket == number]
        yield [row for row in crossed if of[row.name] == {number}], estimates
    yield [row for row in crossed if len(of[row.name]) > 1], list(known.values())


def _sum(parts: list[Estimate]) -> Estimate:
    """The total use of several places, whose errors are independent."""
    if len({len(part.mean) for part in parts}) > 1:
        raise InputError("the places have different numbers of windows", hint="pass beliefs about the same time")
    mean = np.sum([part.mean for part in parts], axis=0)
    std = np.sqrt(np.sum([part.std**2 for part in parts], axis=0))
    return Estimate("", "", mean, std, np.maximum(mean - 1.96 * std, 0), mean + 1.96 * std)


def _used(metric: RowMetric, belief: Posterior) -> Estimate | None:
    """Use per second in the unit of the capacity; None if the belief has no estimate."""
    parts: list[Estimate] = []
    for name in metric.sum:
        try:
            part = belief[name]
        except InputError:
            return None
        if np.isnan(part.mean).all():
            return None
        counted = belief.is_event(name)
        per_second = 1 / belief.duration_s if counted else np.ones(len(belief))
        per_second = per_second * metric.unit
        parts.append(replace(part, mean=part.mean * per_second, std=part.std * per_second))
    return _sum(parts)


def _scaled(name: str, used: Estimate, whole: float) -> Estimate:
    return Estimate(name, "", used.mean / whole, used.std / whole, used.lower / whole, used.upper / whole)


@lru_cache(maxsize=1)
def _table() -> tuple[RowMetric, ...]:
    text = (resources.files("symphony.telemetry") / "rows.toml").read_text(encoding="utf-8")
    return tuple(RowMetric(**{**entry, "sum": tuple(entry["sum"])}) for entry in tomllib.loads(text)["row"])
