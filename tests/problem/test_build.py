"""The builder: which rows a described cluster has, and which of them each device's traffic crosses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.problem import limits
from symphony.problem.build import ClusterSpec, build, written
from symphony.problem.errors import LimitError, TopologyError
from symphony.problem.topology import CLUSTER, LOCAL, MACHINE, PEER, RACK, SOCKET, SWITCH, Topology

DEVICES: dict[str, Any] = {
    "xeon": {"type": "cpu", "slots": 16, "memory": "128 GB"},
    "v100": {
        "type": "gpu",
        "memory": "16 GB",
        "device_memory": "900 GB/s",
        "link": "12 GB/s",
        "peer": "150 GB/s",
    },
    "fpga": {"type": "fpga", "slots": 2, "reconfigure": "200 ms", "link": "6 GB/s"},
}
SOCKETS = [
    {
        "memory": "100 GB/s",
        "cache": "32 MB",
        "interconnect": "38 GB/s",
        "devices": ["xeon"],
        "switch": [{"bandwidth": "16 GB/s", "devices": ["v100", "v100"]}],
    },
    {"memory": "100 GB/s", "interconnect": "38 GB/s", "devices": ["xeon", "fpga", "v100"]},
]


def cluster(**keys: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"name": "lab", "device": DEVICES, **keys})


def machine(name: str = "big", **keys: Any) -> dict[str, Any]:
    return {"name": name, "nic": "12.5 GB/s", "socket": SOCKETS, **keys}


def two_racks(**keys: Any) -> Topology:
    r0 = {"name": "r0", "uplink": "50 GB/s", "machine": [machine(count=2, **keys)]}
    return build(cluster(rack=[r0, {"name": "r1", "machine": [machine("other")]}]))


def route(topology: Topology, device: str) -> list[tuple[str, tuple[int, ...]]]:
    (found,) = (d for d in topology.devices if d.name == device)
    return [(hop.resource, hop.spans) for hop in found.route]


ALL = (SWITCH, SOCKET, MACHINE, RACK, CLUSTER)


def test_route_of_a_cpu() -> None:
    assert route(two_racks(), "big-0/xeon-0") == [
        ("big-0/xeon-0/compute", ()),
        ("big-0/s0/cache", ()),
        ("big-0/s0/memory", ALL),
        ("big-0/s0/interconnect", (MACHINE,)),
        ("big-0/nic", (RACK, CLUSTER)),
        ("r0/uplink", (CLUSTER,)),
    ]


def test_route_of_an_accelerator_behind_a_switch() -> None:
    assert route(two_racks(peers=True), "big-1/v100-1") == [
        ("big-1/v100-1/compute", ()),
        ("big-1/v100-1/device_memory", ()),
        ("big-1/v100-1/link", ALL),
        ("big-1/s0/sw0", (SOCKET, MACHINE, RACK, CLUSTER)),
        ("big-1/s0/memory", ()),
        ("big-1/s0/interconnect", (MACHINE,)),
        ("big-1/nic", (RACK, CLUSTER)),
        ("r0/uplink", (CLUSTER,)),
        ("big-1/v100-1/peer", (PEER,)),
    ]


def test_capacities_that_are_left_out_have_no_row() -> None:
    # The FPGA has no device memory, hangs from the socket itself, and rack r1 has no uplink.
    assert route(two_racks(), "other/fpga-0") == [
        ("other/fpga-0/compute", ()),
        ("other/fpga-0/link", ALL),
        ("other/s1/memory", ()),
        ("other/s1/interconnect", (MACHINE,)),
        ("other/nic", (RACK, CLUSTER)),
    ]


def test_capacities_and_groups() -> None:
    rows = {row.name: row for row in two_racks().resources}
    assert rows["big-0/xeon-0/compute"].capacity == 16
    assert rows["big-0/fpga-0/compute"].capacity == 1  # whatever its slots
    assert rows["big-0/s0/cache"].capacity == 32e6
    assert rows["big-0/s0/sw0"].capacity == 16e9
    assert rows["big-0/nic"].group == "big-0"
    assert rows["r0/uplink"].group == "r0"


def test_distances() -> None:
    topology = two_racks()
    device = {d.name: d for d in topology.devices}
    distance = {
        ("big-0/xeon-0", "big-0/xeon-1"): LOCAL,  # one memory
        ("big-0/v100-0", "big-0/v100-1"): SWITCH,
        ("big-0/v100-0", "big-0/xeon-0"): SOCKET,
        ("big-0/fpga-0", "big-0/v100-2"): SOCKET,  # each hangs from the socket itself
        ("big-0/v100-0", "big-0/v100-2"): MACHINE,
        ("big-0/v100-0", "big-1/v100-0"): RACK,
        ("big-0/v100-0", "other/v100-0"): CLUSTER,
    }
    for (a, b), expected in distance.items():
        assert topology.distance(device[a], device[b]) == expected, (a, b)
        assert topology.span(device[a], device[b]) == expected, (a, b)


def test_peers_are_the_devices_with_a_peer_link_of_one_machine() -> None:
    topology = two_racks(peers=True)
    device = {d.name: d for d in topology.devices}
    assert topology.span(device["big-0/v100-0"], device["big-0/v100-2"]) == PEER
    assert topology.span(device["big-0/v100-0"], device["big-1/v100-0"]) == RACK
    assert topology.span(device["big-0/v100-0"], device["big-0/fpga-0"]) == MACHINE
    assert not any(row.kind == "peer" for row in two_racks().resources)


def test_machines_outside_racks_are_neighbours() -> None:
    topology = build(cluster(machine=[machine("a"), machine("b")]))
    a, b = (next(d for d in topology.devices if d.machine == name) for name in "ab")
    assert (a.rack, topology.distance(a, b)) == ("rack", RACK)


def test_counts_multiply() -> None:
    sockets = [{"count": 2, "switch": [{"count": 3, "devices": ["v100"]}]}]
    rack = {"name": "r", "count": 2, "machine": [{"name": "m", "count": 2, "socket": sockets}]}
    topology = build(cluster(rack=[rack]))
    assert topology.machines == ("r-0/m-0", "r-0/m-1", "r-1/m-0", "r-1/m-1")
    assert len(topology.devices) == 2 * 2 * 2 * 3
    assert topology.devices[5].switch == "r-0/m-0/s1/sw2"
    assert topology.devices[5].name == "r-0/m-0/v100-5"


@given(
    counts=st.tuples(*[st.integers(1, 3)] * 4),
    on_socket=st.lists(st.sampled_from(["xeon", "v100", "fpga"]), max_size=3),
    on_switch=st.lists(st.sampled_from(["v100", "fpga"]), max_size=3),
)
@settings(max_examples=50, deadline=None)
def test_every_described_device_is_there_once(
    counts: tuple[int, ...], on_socket: list[str], on_switch: list[str]
) -> None:
    racks, machines, sockets, switches = counts
    socket = {**SOCKETS[0], "count": sockets, "devices": ["xeon", *on_socket]}
    socket["switch"] = [{"count": switches, "bandwidth": "1 GB/s", "devices": on_switch}]
    rack = {
        "name": "r",
        "uplink": "1 GB/s",
        "count": racks,
        "machine": [machine(count=machines, socket=[socket])],
    }
    topology = build(cluster(rack=[rack]))  # its own checks: names are unique and all of them resolve
    hosts = racks * machines
    assert len(topology.devices) == hosts * sockets * (1 + len(on_socket) + switches * len(on_switch))
    assert len(topology.machines) == hosts
    assert max(len(device.route) for device in topology.devices) <= limits.ROUTE
    used = {hop.resource for device in topology.devices for hop in device.route}
    empty = {row.name for row in topology.resources} - used
    assert not empty if on_switch else all(name.rpartition("/")[2].startswith("sw") for name in empty)
    for name in topology.machines:
        cpus = [d for d in topology.devices if d.machine == name and d.kind == "xeon"]
        assert [d.home or d.name for d in cpus] == [cpus[0].name] * len(cpus)


@pytest.mark.parametrize(
    ("keys", "where", "message"),
    [
        ({"machine": [machine(), machine()]}, "machine[1].name", "'big' names two"),
        ({"rack": [{"name": "big", "machine": [machine()]}]}, "rack[0].machine[0].name", "'big' names two"),
        (
            {"rack": [{"name": "rack"}], "machine": [machine()]},
            "machine[0]",
            "form the rack 'rack', and that name is taken",
        ),
        (
            {"machine": [machine(peers=True, socket=[{"devices": ["fpga"]}])]},
            "machine[0].peers",
            "no device of the machine has a `peer` capacity",
        ),
        (
            {"machine": [machine(socket=[{"switch": [{"devices": ["xeon"]}]}])]},
            "machine[0].socket[0].switch[0].devices",
            "'xeon' is a CPU",
        ),
        (
            {"machine": [machine(socket=[{"devices": ["v10"]}])]},
            "machine[0].socket[0].devices",
            "unknown device kind 'v10'",
        ),
        (
            {"device": {"xeon": {"type": "cpu", "link": "1 GB/s"}}},
            "device.xeon.link",
            "a device of type 'cpu' has no link",
        ),
        ({}, "lab", "there is no device"),
    ],
)
def test_what_does_not_fit_together_is_refused(keys: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        build(cluster(**keys))
    assert caught.value.where == where
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "rack",
    [
        {"name": "r", "machine": [machine(count=10**9)]},
        {"name": "r", "count": 10**9, "machine": []},
        {"name": "r", "count": 10**4, "machine": [{"name": "m", "count": 10**4}]},
        {"name": "r", "machine": [machine(socket=[{"count": 10**9}])]},
        {"name": "r", "machine": [machine(socket=[{"switch": [{"count": 10**9}]}])]},
    ],
)
def test_sizes_are_checked_before_they_are_multiplied_out(rack: dict[str, Any]) -> None:
    with pytest.raises(LimitError):
        build(cluster(rack=[rack]))


def test_written_quantities_lose_nothing() -> None:
    assert written(12.5e9, "bytes/s") == "12.5 GB/s"
    assert written(2.0**25, "bytes") == "32 MiB"
    assert written(0.2, "seconds") == "200 ms"
    assert written(1 / 3, "seconds") == 1 / 3
