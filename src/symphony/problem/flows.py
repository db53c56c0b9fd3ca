"""Flows: the paths through a machine on which work of others can run, derived from the topology.

A tenant is hidden work on one or several of these. A flow loads every row that it crosses, in fixed proportions, so
that a reading of one row is evidence about the others. Level 1 fills the flow's first row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from symphony.problem.topology import Device, Resource, Topology

# A core that streams through memory is busy for part of the time, and evicts what others keep in the cache.
STREAM_COMPUTE, STREAM_CACHE = 0.2, 0.75
# Kernels of an accelerator wait for its memory more often than for its arithmetic, and their data comes over its link.
KERNEL_COMPUTE, KERNEL_LINK = 0.6, 0.3


@dataclass(frozen=True)
class Flow:
    """A path that others can load."""

    name: str
    kind: str  # cores, memory, remote, kernel, copy, peer, network, row
    group: str  # machine or rack
    weights: tuple[tuple[str, float], ...]  # row, its load at level 1


def flows(topology: Topology) -> tuple[Flow, ...]:
    """All flows of a topology, machine by machine. Every row is crossed by one at least."""
    rows = {row.name: row for row in topology.resources}
    types = {kind.name: kind.type for kind in topology.kinds}
    found: list[Flow] = []
    for group in dict.fromkeys(row.group for row in topology.resources):
        devices = [device for device in topology.devices if device.machine == group]
        cpus = [device for device in devices if types[device.kind] == "cpu"]
        others = [device for device in devices if types[device.kind] != "cpu"]
        here = [
            *_of_cpus(group, rows, cpus),
            *_of_accelerators(group, rows, others),
            *_of_network(group, rows, devices),
        ]
        crossed = {row for flow in here for row, _ in flow.weights}
        here += [
            Flow(f"row {row.name}", "row", group, ((row.name, 1.0),))
            for row in topology.resources
            if row.group == group and row.name not in crossed
        ]
        found += here
    return tuple(found)


def _rows(device: Device, rows: dict[str, Resource]) -> dict[str, Resource]:
    """The rows of a device's route, by kind."""
    return {rows[hop.resource].kind: rows[hop.resource] for hop in device.route}


def _path(name: str, kind: str, group: str, first: Resource, *others: Resource | None) -> Flow:
    """A flow of bytes over several rows: the same bytes/s are a smaller load where the capacity is larger."""
    crossed = [(row.name, first.capacity / row.capacity) for row in others if row is not None]
    return Flow(name, kind, group, ((first.name, 1.0), *crossed))


def _of_cpus(group: str, rows: dict[str, Resource], cpus: list[Device]) -> Iterator[Flow]:
    for cpu in cpus:
        own = _rows(cpu, rows)
        if "compute" in own:
            yield Flow(f"cores {cpu.name}", "cores", group, ((own["compute"].name, 1.0),))
    streams = {own["memory"].name: own for cpu in reversed(cpus) if "memory" in (own := _rows(cpu, rows))}
    for memory, own in reversed(streams.items()):
        load = {"cache": STREAM_CACHE, "compute": STREAM_COMPUTE}
        beside = [(own[kind].name, share) for kind, share in load.items() if kind in own]
        yield Flow(f"memory {memory}", "memory", group, ((memory, 1.0), *beside))
    sockets = {cpu.socket: cpu for cpu in cpus}
    for cpu in sockets.values():
        for other in sockets.values():
            own, far = _rows(cpu, rows), _rows(other, rows)
            if cpu.socket != other.socket and "interconnect" in own and "memory" in far:
                name = f"remote {cpu.socket} {other.socket}"
                yield _path(name, "remote", group, own["interconnect"], far["memory"])


def _of_accelerators(group: str, rows: dict[str, Resource], devices: list[Device]) -> Iterator[Flow]:
    for device in devices:
        own = _rows(device, rows)
        link, memory = own.get("link"), own.get("memory")
        if "device_memory" in own:
            beside = [(own["compute"].name, KERNEL_COMPUTE)] if "compute" in own else []
            if link is not None:
                copies = _path("", "", "", link, own.get("switch"), memory)
                beside += [(row, KERNEL_LINK * load) for row, load in copies.weights]
            yield Flow(f"kernel {device.name}", "kernel", group, ((own["device_memory"].name, 1.0), *beside))
        elif "compute" in own:
            yield Flow(f"kernel {device.name}", "kernel", group, ((own["compute"].name, 1.0),))
        if link is not None:
            yield _path(f"copy {device.name}", "copy", group, link, own.get("switch"), memory)
    for one, two in pairwise(devices):
        a, b = _rows(one, rows), _rows(two, rows)
        if one.switch == two.switch and "link" in a and "link" in b:
            yield _path(f"peer {one.name} {two.name}", "peer", group, a["link"], b["link"])


def _of_network(group: str, rows: dict[str, Resource], devices: list[Device]) -> Iterator[Flow]:
    routes = [_rows(device, rows) for device in devices]
    pairs = {(own["nic"].name, own["memory"].name) for own in routes if "nic" in own and "memory" in own}
    for nic, memory in sorted(pairs):
        yield _path(f"network {memory}", "network", group, rows[nic], rows[memory])
