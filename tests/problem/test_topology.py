"""Clusters: distances between devices, and every kind of wrong input."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from symphony.problem import limits
from symphony.problem.errors import LimitError, TopologyError
from symphony.problem.topology import (
    CLUSTER,
    LOCAL,
    MACHINE,
    PEER,
    RACK,
    SOCKET,
    SWITCH,
    Device,
    DeviceKind,
    Hop,
    Resource,
    Topology,
)

GPU = DeviceKind("v100", "gpu", memory=16e9)
ROW = Resource("m/memory", "memory", 1e9, "m")
DEVICE = Device("d", "v100", "m", "rack", "socket", "switch", (Hop("m/memory", (RACK,)),))
PARTS: dict[str, Any] = {"name": "lab", "kinds": (GPU,), "resources": (ROW,), "devices": (DEVICE,)}


def device(name: str, rack: str, machine: str, socket: str, switch: str, **options: str) -> Device:
    return Device(name, "v100", machine, rack, socket, switch, (), **options)


def test_distance_is_the_widest_part_that_two_devices_do_not_share() -> None:
    here = device("a", "r0", "m0", "s0", "w0")
    others = {
        SWITCH: device("b", "r0", "m0", "s0", "w0"),
        SOCKET: device("c", "r0", "m0", "s0", "w1"),
        MACHINE: device("d", "r0", "m0", "s1", "w0"),
        RACK: device("e", "r0", "m1", "s0", "w0"),  # its socket and switch have names that are used here too
        CLUSTER: device("f", "r1", "m0", "s0", "w0"),
    }
    t = Topology("lab", (GPU,), (), (here, *others.values()))
    for distance, other in others.items():
        assert t.distance(here, other) == t.distance(other, here) == t.span(here, other) == distance
    assert t.distance(here, here) == LOCAL


def test_devices_that_work_in_one_memory_are_local_however_far_apart() -> None:
    a, b = device("a", "r", "m", "s0", "w"), device("b", "r", "m", "s1", "w", home="a")
    t = Topology("lab", (GPU,), (), (a, b))
    assert t.distance(a, b) == t.span(a, b) == LOCAL


def test_peer_links_are_taken_whatever_the_distance_but_not_within_a_memory() -> None:
    a = device("a", "r", "m", "s0", "w", peers="ring")
    b = device("b", "r", "m", "s1", "w", peers="ring")
    c = device("c", "r", "m", "s0", "w", peers="other")
    d = device("d", "r", "m", "s0", "w", home="a", peers="ring")
    t = Topology("lab", (GPU,), (), (a, b, c, d))
    assert (t.span(a, b), t.distance(a, b)) == (PEER, MACHINE)
    assert t.span(a, c) == SWITCH
    assert t.span(a, d) == LOCAL


def test_counts_and_names() -> None:
    other = DeviceKind("none", "cpu")
    two = (DEVICE, replace(DEVICE, name="e", machine="n"))
    t = Topology(**{**PARTS, "kinds": (GPU, other), "devices": two})
    assert t.kind_counts == {"v100": 2, "none": 0}
    assert t.machines == ("m", "n")
    assert t.kind_of["v100"] is GPU
    assert not GPU.reconfigurable and replace(GPU, reconfigure_s=0.1).reconfigurable


@pytest.mark.parametrize(
    ("parts", "message", "where", "hint"),
    [
        ({"devices": ()}, "there is no device", "lab", "add at least one"),
        ({"kinds": (GPU, GPU)}, "device kind 'v100' is defined twice", "lab", "rename"),
        ({"resources": (ROW, ROW)}, "resource 'm/memory' is defined twice", "lab", "rename"),
        ({"devices": (DEVICE, DEVICE)}, "device 'd' is defined twice", "lab", "rename"),
        ({"devices": (replace(DEVICE, name=""),)}, "a device has an empty name", "lab", "name"),
        ({"resources": (replace(ROW, kind="magic"),)}, "unknown resource kind 'magic'", "'m/memory'", "memory"),
        ({"devices": (replace(DEVICE, kind="v1000"),)}, "unknown device kind 'v1000'", "device 'd'", "v100"),
        ({"devices": (replace(DEVICE, route=(Hop("nic"),)),)}, "names 'nic', which is not a resource", "'d'", "define"),
        (
            {"devices": (replace(DEVICE, home="nobody"),)},
            "home 'nobody' is not a device",
            "device 'd'",
            "name a device",
        ),
        (
            {"devices": tuple(replace(DEVICE, name=name, home=home) for name, home in ("ab", "bc", "ca"))},
            "home 'b' uses the memory of 'c'",
            "device 'a'",
            "write home = 'c'",
        ),
        ({"devices": (replace(DEVICE, route=(Hop("m/memory", (7,)),)),)}, "(7,) are out of range", "'d'", "0 to 6"),
        ({"latency_s": (0.0,) * 6}, "latency_s is", "lab", "give 7 seconds"),
    ],
)
def test_bad_topologies(parts: dict[str, Any], message: str, where: str, hint: str) -> None:
    with pytest.raises(TopologyError) as caught:
        Topology(**(PARTS | parts))
    assert message in caught.value.message
    assert where in caught.value.where
    assert hint in caught.value.hint


@pytest.mark.parametrize("value", [None, "3", math.nan, -1, True])
@pytest.mark.parametrize("field", ["slots", "memory", "reconfigure_s", "capacity", "latency_s"])
def test_every_number_is_checked(field: str, value: object) -> None:
    parts: dict[str, Any] = {
        "slots": lambda: {"kinds": (replace(GPU, slots=value),)},
        "memory": lambda: {"kinds": (replace(GPU, memory=value),)},
        "reconfigure_s": lambda: {"kinds": (replace(GPU, reconfigure_s=value),)},
        "capacity": lambda: {"resources": (replace(ROW, capacity=value),)},
        "latency_s": lambda: {"latency_s": (0.0, value, 0.0, 0.0, 0.0, 0.0, 0.0)},
    }[field]()
    with pytest.raises(TopologyError, match=field) as caught:
        Topology(**(PARTS | parts))
    assert repr(value) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "parts",
    [
        {"kinds": (replace(GPU, slots=0),)},
        {"kinds": (replace(GPU, slots=1.5),)},  # type: ignore[arg-type]
        {"kinds": (replace(GPU, reconfigure_s=math.inf),)},  # it would never be ready
        {"resources": (replace(ROW, capacity=0.0),)},
        {"resources": (replace(ROW, capacity=math.inf),)},
        {"resources": (replace(ROW, capacity=1e-300),)},
        {"resources": (replace(ROW, capacity=1e30),)},
        {"latency_s": (0.0, math.inf, 0.0, 0.0, 0.0, 0.0, 0.0)},
    ],
)
def test_numbers_that_make_no_sense(parts: dict[str, Any]) -> None:
    with pytest.raises(TopologyError):
        Topology(**(PARTS | parts))


def test_absurd_sizes_are_named() -> None:
    with pytest.raises(LimitError, match=r"device kind 'v100': slots is 10,000,000, more than .* 512"):
        Topology(**{**PARTS, "kinds": (replace(GPU, slots=10_000_000),)})
    long = replace(DEVICE, route=(Hop("m/memory"),) * (limits.ROUTE + 1))
    with pytest.raises(LimitError, match=r"device 'd': route length is 13"):
        Topology(**{**PARTS, "devices": (long,)})
    many = tuple(replace(DEVICE, name=f"d{i}") for i in range(limits.DEVICES + 1))
    with pytest.raises(LimitError, match=r"lab: number of devices is 20,001"):
        Topology(**{**PARTS, "devices": many})
    with pytest.raises(LimitError, match="reconfigure_s"):
        Topology(**{**PARTS, "kinds": (replace(GPU, reconfigure_s=1e12),)})


def test_names_hold_no_control_characters() -> None:
    """They would reach the terminal as they are."""
    device = Device("d", "cpu", "m", "r", "s", "w", ())
    with pytest.raises(TopologyError, match="holds a control character"):
        Topology("a\x1b[31m", (DeviceKind("cpu", "cpu"),), (), (device,), (0.0,) * 7)
