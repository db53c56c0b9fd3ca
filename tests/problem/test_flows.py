"""Flows: the paths through a machine that others can load."""

from __future__ import annotations

import numpy as np
import pytest

import symphony as sy
from symphony.problem.arrays import topology_arrays
from symphony.problem.flows import flows
from symphony.problem.topologies import names


@pytest.mark.parametrize("name", names())
def test_every_row_is_crossed_and_no_flow_leaves_its_group(name: str) -> None:
    topology = sy.topology(name if ":" not in name else f"{name.partition(':')[0]}:24")
    group = {row.name: row.group for row in topology.resources}
    found = flows(topology)
    assert {row for flow in found for row, _ in flow.weights} == set(group)
    assert all(group[row] == flow.group and load > 0 for flow in found for row, load in flow.weights)
    assert len({flow.name for flow in found}) == len(found)


def test_bytes_load_rows_by_their_capacity() -> None:
    """A copy that fills a link of 12 GB/s is 12/76.8 of its socket's memory."""
    copies = {flow.name: dict(flow.weights) for flow in flows(sy.topology("machine")) if flow.kind == "copy"}
    assert copies["copy host/v100-0"] == pytest.approx(
        {"host/v100-0/link": 1.0, "host/s0/sw0": 1.0, "host/s0/memory": 12 / 76.8}
    )


def test_each_kind_of_path_is_there() -> None:
    kinds = [flow.kind for flow in flows(sy.topology("machine"))]
    assert {kind: kinds.count(kind) for kind in sorted(set(kinds))} == {
        "copy": 5,
        "cores": 2,
        "kernel": 5,
        "memory": 2,
        "network": 2,
        "peer": 2,
        "remote": 2,
    }


def test_arrays_hold_the_loads_of_each_group() -> None:
    topology = sy.topology("paper")
    a = topology_arrays(topology)
    by_group: dict[str, list] = {}
    for flow in flows(topology):
        by_group.setdefault(flow.group, []).append(flow)
    for row, resource in enumerate(topology.resources):
        group, slot = int(a.row_group[row]), int(a.row_slot[row])
        assert a.group_row[group, slot] == row
        wanted = [dict(flow.weights).get(resource.name, 0.0) for flow in by_group[resource.group]]
        np.testing.assert_allclose(a.flow_load[group, slot, : len(wanted)], wanted)
        assert not a.flow_load[group, slot, len(wanted) :].any()
    for number, device in enumerate(topology.devices):
        assert number in a.group_device[int(a.row_group[[r.group for r in topology.resources].index(device.machine)])]
        slots = [int(a.row_slot[[r.name for r in topology.resources].index(hop.resource)]) for hop in device.route]
        assert a.hop_slot[number, : len(slots)].tolist() == slots
