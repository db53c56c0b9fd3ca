"""Which rows of a topology have a counter, and how much of a window it counts them for.

Counters belong to domains: the cores of a CPU, the uncore of a socket (cache, memory, link to the other socket), PCIe,
the NIC, an accelerator, a rack's switch. A domain has few counters. If it has more rows than counters, they take turns.
"""

from __future__ import annotations

import numpy as np

from symphony.problem.topology import Topology

SLICES_PER_WINDOW = 24.0
# Domains by resource kind. Compute rows are of "core" on CPUs and of "device" elsewhere.
DOMAINS = {
    "cache": "uncore",
    "memory": "uncore",
    "interconnect": "uncore",
    "link": "pcie",
    "switch": "pcie",
    "peer": "pcie",
    "nic": "nic",
    "uplink": "rack",
    "device_memory": "device",
}
DOMAIN_NAMES = ("core", "uncore", "pcie", "nic", "device", "rack")


def domains(topology: Topology) -> list[tuple[str, str]]:
    """The domain of each row: its name, and the place (socket, device, machine or rack) whose counters it shares."""
    types = {kind.name: kind.type for kind in topology.kinds}
    user = {hop.resource: device for device in reversed(topology.devices) for hop in device.route}
    found = []
    for row in topology.resources:
        device = user.get(row.name)
        is_cpu = device is not None and types[device.kind] == "cpu"
        name = DOMAINS.get(row.kind, "core" if is_cpu else "device")
        place = row.group
        if device is not None and name in ("core", "device"):
            place = device.name
        elif device is not None and name == "uncore":
            place = device.socket
        found.append((name, place))
    return found


def unseen(topology: Topology, counters: int | None, uncounted: tuple[str, ...]) -> np.ndarray:
    """1/n - 1/N for each row, counted in n of a window's N slices; inf for rows of `uncounted` domains.

    `counters`: of each domain; None = one for each row.
    """
    of = domains(topology)
    sizes = [of.count(domain) for domain in dict.fromkeys(of)]
    size = dict(zip(dict.fromkeys(of), sizes, strict=True))
    counted = np.array([SLICES_PER_WINDOW * min(1.0, (counters or size[domain]) / size[domain]) for domain in of])
    hidden = np.array([name in uncounted for name, _ in of], bool)
    return np.where(hidden, np.inf, 1 / counted - 1 / SLICES_PER_WINDOW) if of else np.zeros(0)
