"""Small machines to run on: made-up topologies of the one at hand, with real processes."""

from __future__ import annotations

import math

from symphony.problem.topology import Device, DeviceKind, Hop, Resource, Topology


def machine(slots: int = 2, others: int = 0, memory: float = math.inf) -> Topology:
    """A CPU of some slots and, beside it, devices of another type that are CPUs, too: nobody needs a GPU to test."""
    kinds = (DeviceKind("small", "cpu", slots=slots, memory=memory), DeviceKind("big", "accelerator"))
    rows = (Resource("cpu/compute", "compute", slots, "here"), Resource("memory", "memory", 1e10, "here"))
    devices = [Device("here/cpu", "small", "here", "rack", "s0", "sw0", (Hop("cpu/compute"), Hop("memory", (1, 2, 3))))]
    for number in range(others):
        name = f"here/big-{number}"
        rows += (Resource(f"{name}/compute", "compute", 1.0, "here"), Resource(f"{name}/link", "link", 1e9, "here"))
        route = (Hop(f"{name}/compute"), Hop(f"{name}/link", (1, 2, 3)))
        devices.append(Device(name, "big", "here", "rack", "s0", f"sw{number + 1}", route))
    return Topology("test machine", kinds, rows, tuple(devices))
