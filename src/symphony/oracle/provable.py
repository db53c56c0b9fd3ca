"""A small cluster of different devices which the exact model covers completely, so that optima can be proven."""

from __future__ import annotations

from symphony.problem.topology import (
    CLUSTER,
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

DEVICE_TYPES = {"xeon": "cpu", "k40": "gpu", "p100": "gpu", "v100": "gpu"}
UNCONTENDED_COMPUTE = 1000.0  # more than any kernel uses: the exact model has no contention


def four_devices(*, bus: bool) -> Topology:
    """Four different devices with one memory or, with a bus of 12 GB/s between them, one each."""
    kinds = tuple(DeviceKind(name, type_) for name, type_ in DEVICE_TYPES.items())
    rows = (
        *(Resource(f"{name}/compute", "compute", UNCONTENDED_COMPUTE, "host") for name in DEVICE_TYPES),
        Resource("bus", "uplink", 12e9, "host"),
    )
    apart = (SWITCH, SOCKET, MACHINE, RACK, CLUSTER)
    devices = tuple(
        Device(
            name,
            name,
            "host",
            "rack",
            "socket",
            "switch",
            (Hop(f"{name}/compute"), Hop("bus", apart)),
            home="" if bus else "xeon",
        )
        for name in DEVICE_TYPES
    )
    return Topology("four with a bus" if bus else "four", kinds, rows, devices)
