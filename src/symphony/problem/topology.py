"""A cluster: device kinds, devices, and the resource rows that their work touches.

This is the human form: names and SI units. `symphony.problem.arrays` makes the array form of it.

Links are resources too: a row is a core group, a cache, a memory channel, a PCIe switch, a NIC or a top-of-rack
uplink, and contention on all of them has one mechanism. A device's *route* lists its rows. Work on the device may
demand any of them; traffic from or to the device uses those whose `spans` include the span of the traffic.
"""

from __future__ import annotations

import math
import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from symphony.problem import limits, units
from symphony.problem.errors import TopologyError

# kind -> (unit of its capacity, what it is)
RESOURCE_KINDS: Mapping[str, tuple[str, str]] = {
    "compute": ("number", "cores of a CPU, or 1 for the whole of an accelerator's compute"),
    "cache": ("bytes", "last-level cache of a socket"),
    "memory": ("bytes/s", "memory channels of a socket"),
    "device_memory": ("bytes/s", "an accelerator's own memory"),
    "link": ("bytes/s", "an accelerator's own PCIe link"),
    "switch": ("bytes/s", "uplink of a PCIe switch"),
    "interconnect": ("bytes/s", "socket to socket"),
    "peer": ("bytes/s", "direct device-to-device link (such as NVLink)"),
    "nic": ("bytes/s", "a machine's network interface"),
    "uplink": ("bytes/s", "top-of-rack uplink"),
}

# The span of traffic. 0: within one memory. 1: within one PCIe switch. 2: within a socket. 3: within a machine.
# 4: within a rack. 5: across racks. 6: over a direct peer link, at any distance.
SPANS = ("local", "switch", "socket", "machine", "rack", "cluster", "peer")
LOCAL, SWITCH, SOCKET, MACHINE, RACK, CLUSTER, PEER = range(7)
# One-way latency in seconds for each span: PCIe, PCIe through a root port, between sockets, RDMA, RDMA over two
# switches, NVLink. Orders of magnitude only; a topology may override them.
DEFAULT_LATENCY_S = (0.0, 2e-6, 3e-6, 4e-6, 5e-6, 8e-6, 2e-6)


@dataclass(frozen=True)
class DeviceKind:
    """A model of processor."""

    name: str
    type: str  # "cpu", "gpu", "fpga", or any other word that kernels name
    slots: int = 1  # workers that run on it at once (an FPGA's contexts)
    memory: float = math.inf  # bytes
    reconfigure_s: float = 0.0  # > 0: a slot runs only the kernel that it is configured for, and changing takes this

    @property
    def reconfigurable(self) -> bool:
        """Whether a slot must be configured for a kernel before the kernel can run."""
        return self.reconfigure_s > 0


@dataclass(frozen=True)
class Resource:
    """A row: a part of the cluster that is subject to contention."""

    name: str
    kind: str  # a key of RESOURCE_KINDS
    capacity: float  # in the unit of its kind
    group: str  # its machine or rack: hidden tenants load the rows of a group together


@dataclass(frozen=True)
class Hop:
    """A row on a device's route, and the spans of the traffic that crosses it.

    Traffic that crosses a row twice (say, up to a root port and down again) has two hops with that row.
    """

    resource: str
    spans: tuple[int, ...] = ()  # (): no traffic, only demand of computation


@dataclass(frozen=True)
class Device:
    """A processor that workers are placed on."""

    name: str
    kind: str
    machine: str
    rack: str
    socket: str
    switch: str
    route: tuple[Hop, ...]
    home: str = ""  # the device whose memory it uses ("" = its own; the CPUs of a machine share one)
    peers: str = ""  # devices with the same non-empty value are connected by peer links

    def __post_init__(self) -> None:
        if self.home == self.name:
            object.__setattr__(self, "home", "")  # equal devices compare equal


@dataclass(frozen=True)
class Topology:
    """A cluster. The constructor checks names and numbers, and raises `TopologyError` or `LimitError`."""

    name: str
    kinds: tuple[DeviceKind, ...]
    resources: tuple[Resource, ...]
    devices: tuple[Device, ...]
    latency_s: tuple[float, ...] = field(default=DEFAULT_LATENCY_S)

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def kind_of(self) -> Mapping[str, DeviceKind]:
        """Device kinds by name."""
        return {kind.name: kind for kind in self.kinds}

    @cached_property
    def machines(self) -> tuple[str, ...]:
        """Names of the machines, in the order of their first device."""
        return tuple(dict.fromkeys(device.machine for device in self.devices))

    @cached_property
    def kind_counts(self) -> Mapping[str, int]:
        """Number of devices of each kind."""
        counts = Counter(device.kind for device in self.devices)
        return {kind.name: counts[kind.name] for kind in self.kinds}

    def distance(self, a: Device, b: Device) -> int:
        """Span between the memories of two devices, without peer links."""
        if (a.home or a.name) == (b.home or b.name):
            return LOCAL
        same = (a.rack == b.rack, a.machine == b.machine, a.socket == b.socket, a.switch == b.switch)
        for far, together in zip((CLUSTER, RACK, MACHINE, SOCKET), same, strict=True):
            if not together:
                return far
        return SWITCH

    def span(self, a: Device, b: Device) -> int:
        """Span of traffic between two devices: their distance, or PEER if they have direct links."""
        distance = self.distance(a, b)
        return PEER if distance != LOCAL and a.peers and a.peers == b.peers else distance


def _unique(what: str, names: list[str], topology: str) -> set[str]:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise TopologyError(f"{what} {repeated[0]!r} is defined twice", where=topology, hint="rename one of them")
    if "" in names:
        raise TopologyError(f"a {what} has an empty name", where=topology, hint="give it a name")
    return set(names)


def _check(t: Topology) -> None:
    if not t.devices:
        raise TopologyError("there is no device", where=t.name, hint="add at least one device to a machine")
    limits.check("number of devices", len(t.devices), limits.DEVICES, where=t.name)
    limits.check("number of resources", len(t.resources), limits.RESOURCES, where=t.name)
    limits.check("number of device kinds", len(t.kinds), limits.DEVICE_KINDS, where=t.name)
    kinds = _unique("device kind", [kind.name for kind in t.kinds], t.name)
    resources = _unique("resource", [resource.name for resource in t.resources], t.name)
    devices = _unique("device", [device.name for device in t.devices], t.name)
    for name in (t.name, *kinds, *resources, *devices):
        if any(unicodedata.category(letter) == "Cc" for letter in name):
            raise TopologyError(
                f"the name {name!r} holds a control character", where=ascii(t.name), hint="use printable characters"
            )
    for kind in t.kinds:
        where = f"{t.name}: device kind {kind.name!r}"
        if not units.is_whole(kind.slots, 1, sys.maxsize):
            raise TopologyError(f"slots is {kind.slots!r}", where=where, hint="write slots = 1 or more")
        limits.check("slots", kind.slots, limits.SLOTS_PER_DEVICE, where=where)
        if not units.is_number(kind.memory):
            raise TopologyError(f"memory is {kind.memory!r}", where=where, hint="write bytes, 0 or more")
        if not units.is_number(kind.reconfigure_s) or kind.reconfigure_s == math.inf:
            raise TopologyError(f"reconfigure_s is {kind.reconfigure_s!r}", where=where, hint="write 0 s or more")
        limits.check("reconfigure_s", kind.reconfigure_s, limits.SECONDS, where=where)
    for resource in t.resources:
        where = f"{t.name}: resource {resource.name!r}"
        if resource.kind not in RESOURCE_KINDS:
            raise TopologyError(
                f"unknown resource kind {resource.kind!r}", where=where, hint=f"use one of {', '.join(RESOURCE_KINDS)}"
            )
        if not units.is_number(resource.capacity, limits.LEAST_CAPACITY, limits.CAPACITY):
            bounds = f"{limits.LEAST_CAPACITY:g} to {limits.CAPACITY:g} {RESOURCE_KINDS[resource.kind][0]}"
            raise TopologyError(f"capacity is {resource.capacity!r}", where=where, hint=f"write {bounds}")
    shared = {device.name: device.home for device in t.devices}
    for device in t.devices:
        where = f"{t.name}: device {device.name!r}"
        if device.kind not in kinds:
            raise TopologyError(
                f"unknown device kind {device.kind!r}", where=where, hint=f"define it, or use one of {sorted(kinds)}"
            )
        limits.check("route length", len(device.route), limits.ROUTE, where=where)
        for hop in device.route:
            if hop.resource not in resources:
                raise TopologyError(
                    f"its route names {hop.resource!r}, which is not a resource", where=where, hint="define it"
                )
            if not all(units.is_whole(span, 0, len(SPANS) - 1) for span in hop.spans):
                raise TopologyError(
                    f"spans {hop.spans} are out of range", where=where, hint=f"0 to {len(SPANS) - 1}: {SPANS}"
                )
        if device.home and device.home not in devices:
            raise TopologyError(f"its home {device.home!r} is not a device", where=where, hint="name a device, or none")
        if device.home and shared[device.home]:
            raise TopologyError(
                f"its home {device.home!r} uses the memory of {shared[device.home]!r}",
                where=where,
                hint=f"write home = {shared[device.home]!r}, or leave out the home of {device.home!r}",
            )
    if len(t.latency_s) != len(SPANS) or not all(units.is_number(latency, 0, 1e3) for latency in t.latency_s):
        raise TopologyError(
            f"latency_s is {t.latency_s}", where=t.name, hint=f"give {len(SPANS)} seconds, one for each of {SPANS}"
        )
