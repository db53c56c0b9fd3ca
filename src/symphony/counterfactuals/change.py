"""Changes of a cluster: another policy, machines more or less, a failure, other priorities, a job more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from symphony.counterfactuals.snapshot import SnapshotJob
from symphony.problem.errors import InputError
from symphony.problem.texts import did_you_mean
from symphony.problem.topology import Device, Topology
from symphony.problem.units import show

MAX_MORE = 1_000  # devices or machines that are added
_COUNTED = re.compile(r"(?:(\d+)\s*[×x*]\s*)?(?!\d*\s*[×x*]?$)(.+)")


class Addition(NamedTuple):
    number: int
    what: str  # a device kind, or a machine to add another one like


@dataclass(frozen=True)
class Change:
    """What is different. The default is no change."""

    policy: str = ""
    without: tuple[str, ...] = ()  # machines or devices
    more: tuple[Addition, ...] = ()
    fail: tuple[str, ...] = ()  # machines or devices that fail now …
    fail_s: float = 3_600.0  # … for so long
    priority: Mapping[int, int] = field(default_factory=dict)  # by job
    submit: SnapshotJob | None = None

    def __str__(self) -> str:
        parts = [f"policy {self.policy}"] if self.policy else []
        parts += [f"without {', '.join(self.without)}"] if self.without else []
        parts += [f"with {one.number} more {one.what}" for one in self.more]
        parts += [f"with {', '.join(self.fail)} down for {show(self.fail_s, 'seconds')}"] if self.fail else []
        parts += [f"with priority {level} for job {job}" for job, level in self.priority.items()]
        parts += [f"with {self.submit.name!r} submitted"] if self.submit is not None else []
        return " and ".join(parts) or "as it is"


def addition(text: str) -> Addition:
    """Parse K×KIND (or KxKIND, or KIND for one)."""
    found = _COUNTED.fullmatch(text.strip())
    count = int(found[1] or 1) if found is not None else 0
    if found is None or not 1 <= count <= MAX_MORE:
        raise InputError(
            f"{text!r} is not K×KIND", where="--with", hint=f"write 2×v100; K is a whole number up to {MAX_MORE}"
        )
    return Addition(count, found[2].strip())


def devices_of(topology: Topology, names: Sequence[str], where: str) -> set[int]:
    """Indices of the devices of machines, or with these names."""
    found: set[int] = set()
    for name in names:
        some = {n for n, device in enumerate(topology.devices) if name in (device.machine, device.name)}
        if not some:
            known = [*topology.machines, *(device.name for device in topology.devices)]
            shown = ", ".join(topology.machines[:5])
            hint = f"{did_you_mean(name, known)}its machines are {shown}{' …' if len(topology.machines) > 5 else ''}"
            raise InputError(f"the cluster has no machine or device {name!r}", where=where, hint=hint)
        found |= some
    return found


def extended(topology: Topology, additions: Sequence[Addition]) -> Topology:
    """The topology with more devices, which follow the others. New devices are on copies of machines."""
    t = topology
    for number, (count, what) in enumerate(additions):
        like = [device for device in t.devices if what in (device.kind, device.machine)]
        if not like:
            known = [kind.name for kind in t.kinds]
            raise InputError(
                f"the cluster has no device kind or machine {what!r} to add more of",
                where="--with",
                hint=f"{did_you_mean(what, [*known, *t.machines])}its kinds are {', '.join(known)}",
            )
        like = [device for device in like if device.machine == like[0].machine]
        each = len(like) if what == like[0].machine else 1  # devices of one that is added
        for copy, first in enumerate(range(0, count * each, len(like)), start=1):
            t = _with_copy(t, like[: count * each - first], f"+{number + 1}.{copy}")
    return t


def _with_copy(t: Topology, devices: Sequence[Device], mark: str) -> Topology:
    """The topology with a copy of these devices of one machine, with its own copies of the rows of that machine."""
    machine, names = devices[0].machine, {device.name for device in devices}
    own = {row.name for row in t.resources if row.group == machine}
    rows = [replace(row, name=row.name + mark, group=machine + mark) for row in t.resources if row.name in own]
    copies = [
        replace(
            device,
            name=device.name + mark,
            machine=machine + mark,
            home=device.home + mark if device.home in names else "",
            peers=device.peers and device.peers + mark,
            route=tuple(
                replace(hop, resource=hop.resource + mark) if hop.resource in own else hop for hop in device.route
            ),
        )
        for device in devices
    ]
    return replace(t, resources=(*t.resources, *rows), devices=(*t.devices, *copies))
