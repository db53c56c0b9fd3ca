"""Small clusters written by hand."""

from __future__ import annotations

import math

from symphony.problem.topology import (
    MACHINE,
    RACK,
    SOCKET,
    SWITCH,
    Device,
    DeviceKind,
    Hop,
    Resource,
    Topology,
)


def cluster(
    counts: dict[str, int],
    *,
    slots: dict[str, int] | None = None,
    memory: dict[str, float] | None = None,
    host_memory: float | None = None,
    nic: float | None = None,
) -> Topology:
    """Devices of kinds named after their types, each in a machine of its own; rows only where asked for."""
    slots, memory = slots or {}, memory or {}
    kinds = tuple(DeviceKind(name, name, slots.get(name, 1), memory.get(name, math.inf)) for name in counts)
    devices, resources = [], []
    for name, count in counts.items():
        for number in range(count):
            device = f"{name}-{number}"
            route = []
            if host_memory is not None:
                resources.append(Resource(f"{device}/memory", "memory", host_memory, device))
                route.append(Hop(f"{device}/memory"))
            if nic is not None:
                resources.append(Resource(f"{device}/nic", "nic", nic, device))
                route.append(Hop(f"{device}/nic", (SWITCH, SOCKET, MACHINE, RACK)))
            devices.append(Device(device, name, device, "rack", device, device, tuple(route)))
    return Topology("small", kinds, tuple(resources), tuple(devices))
