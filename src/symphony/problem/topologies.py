"""The built-in topologies, and `topology`, which finds a topology by its built-in name or its path."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path

from symphony.problem import limits, topology_file
from symphony.problem.build import (
    ClusterSpec,
    DeviceSpec,
    MachineSpec,
    RackSpec,
    SocketSpec,
    SwitchSpec,
    build,
)
from symphony.problem.errors import TopologyError
from symphony.problem.texts import did_you_mean
from symphony.problem.topology import Topology

FAT_TREE = "fat-tree"
BUILT_IN: Mapping[str, str] = {
    "machine": "one host: 2 CPUs, 2 V100 and 2 P100 behind PCIe switches, 1 FPGA",
    "paper": "the cluster of the Symphony paper: Power8 and Xeon hosts, K40, K80 and FPGAs",
    "gpu24": "8 V100, 8 P100 and 8 K80, one in each host",
    f"{FAT_TREE}:N": "N accelerators of three generations, 8 in a machine, 8 machines in a rack, "
    "racks behind uplinks with a quarter of the bandwidth of their machines",
}


def names() -> tuple[str, ...]:
    """Names of the built-in topologies; `N` is a number of devices."""
    return tuple(BUILT_IN)


def topology(name_or_path: str | Path) -> Topology:
    """A built-in topology by its name ("paper", "fat-tree:512"), or the one that a file describes."""
    name = str(name_or_path)
    family, colon, size = name.partition(":")
    if isinstance(name_or_path, str):
        if name in BUILT_IN and not colon:
            return _shipped(name)
        if family == FAT_TREE:
            return _fat_tree(_devices(name, size))
    path = Path(name)
    try:
        exists = path.exists()
    except OSError:  # a name too long for a file
        exists = False
    if exists or path.suffix or path.name != name:
        return topology_file.read(path)
    meant = did_you_mean(family, [known.partition(":")[0] for known in BUILT_IN])
    raise TopologyError(
        f"unknown topology {name!r}",
        hint=f"{meant}the built-in topologies are {', '.join(BUILT_IN)}; anything else is the path of a .toml file",
    )


@cache
def _shipped(name: str) -> Topology:
    file = resources.files("symphony.problem") / "topologies" / f"{name}.toml"
    return topology_file.loads(file.read_text(encoding="utf-8"), where=f"{name}.toml", name=name)


def _devices(name: str, size: str) -> int:
    """N of `fat-tree:N`."""
    hint = f"write {FAT_TREE}:N with N from 1 to {limits.DEVICES:,}, such as {FAT_TREE}:64"
    try:
        number = float(size)
    except ValueError:
        raise TopologyError(f"{size!r} is not a number of devices", where=name, hint=hint) from None
    if not number >= 1 or number % 1:
        raise TopologyError(f"a cluster cannot have {size} devices", where=name, hint=hint)
    limits.check("number of devices", number, limits.DEVICES, where=name)
    return int(number)


# Vendors' figures, one direction. PCIe: about three quarters of the raw rate (gen 3 x16: 15.75 GB/s, gen 4 twice that).
# NVLink: 4 links of 20 GB/s, 6 of 25, 12 of 25.
_GENERATIONS = {
    "p100": DeviceSpec(type="gpu", memory=16e9, device_memory=732e9, link=12e9, peer=80e9),
    "v100": DeviceSpec(type="gpu", memory=16e9, device_memory=900e9, link=12e9, peer=150e9),
    "a100": DeviceSpec(type="gpu", memory=40e9, device_memory=1555e9, link=24e9, peer=300e9),
}
_PER_SWITCH, _PER_SOCKET, _PER_MACHINE, _PER_RACK = 2, 4, 8, 8
_NIC = 12.5e9
_OVERSUBSCRIBED = 4


@lru_cache(maxsize=4)
def _fat_tree(devices: int) -> Topology:
    """Racks of 8 machines of 8 accelerators, one generation in a machine. The last machine holds the rest."""
    kinds = list(_GENERATIONS)
    machines = [
        _fat_machine(f"m{index}", kinds[index % len(kinds)], min(_PER_MACHINE, devices - first))
        for index, first in enumerate(range(0, devices, _PER_MACHINE))
    ]
    uplink = _PER_RACK * _NIC / _OVERSUBSCRIBED
    racks = [
        RackSpec(name=f"r{index}", uplink=uplink, machine=tuple(machines[first : first + _PER_RACK]))
        for index, first in enumerate(range(0, len(machines), _PER_RACK))
    ]
    return build(ClusterSpec(name=f"{FAT_TREE}:{devices}", device=_GENERATIONS, rack=tuple(racks)))


def _fat_machine(name: str, kind: str, devices: int) -> MachineSpec:
    link = _GENERATIONS[kind].link
    sockets = []
    for first in range(0, devices, _PER_SOCKET):
        here = min(_PER_SOCKET, devices - first)
        switches = tuple(
            SwitchSpec(bandwidth=link, devices=(kind,) * min(_PER_SWITCH, here - start))
            for start in range(0, here, _PER_SWITCH)
        )
        sockets.append(SocketSpec(memory=100e9, interconnect=38.4e9, switch=switches))
    return MachineSpec(name=name, nic=_NIC, peers=True, socket=tuple(sockets))
