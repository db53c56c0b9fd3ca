"""Rows of a topology: what crosses a shared one has crossed one of those behind it."""

from __future__ import annotations

from collections.abc import Mapping

from symphony.problem.topology import Topology
from symphony.telemetry.identities.relations import Identity, made

_CARRYING = frozenset({"link", "switch", "interconnect", "nic", "uplink"})


def from_topology(topology: Topology) -> tuple[Identity, ...]:
    """Traffic of the rows behind a shared one: all that crosses it crosses one of them.

    Names are those of resource rows. Traffic that stays behind the shared row makes theirs more than its; where their
    routes know of no such traffic, it is a sum.
    """
    kinds = {resource.name: resource.kind for resource in topology.resources}
    spans: dict[str, dict[str, frozenset[int]]] = {}  # row → device → how far traffic over it goes
    for device in topology.devices:
        for hop in device.route:
            if hop.spans and kinds[hop.resource] in _CARRYING:
                spans.setdefault(hop.resource, {})[device.name] = frozenset(hop.spans)
    found: list[Identity] = []
    for parent, over in spans.items():
        behind = {row for row, own in spans.items() if _behind(own, over)}
        # The nearest ones: a link behind a switch is not counted beside it.
        nearest = [row for row in behind if not any(_behind(spans[row], spans[other]) for other in behind)]
        if len(nearest) < 2 or {device for row in nearest for device in spans[row]} != over.keys():
            continue
        whole = all(spans[row][device] == over[device] for row in nearest for device in spans[row])
        terms = {row: 1.0 for row in sorted(nearest)} | {parent: -1.0}
        why = f"{len(nearest)} rows behind {parent}, the only ways to it"
        found += made(terms, "=" if whole else ">=", "topology", why)
    return tuple(found)


def _behind(own: Mapping[str, frozenset[int]], over: Mapping[str, frozenset[int]]) -> bool:
    """Whether the devices of a row are some of another's, and all their traffic over that one crosses it too."""
    return own.keys() < over.keys() and all(over[device] <= spans for device, spans in own.items())
