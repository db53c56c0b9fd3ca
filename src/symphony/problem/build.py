"""The hierarchical description of a cluster: racks of machines, with sockets, PCIe switches and devices.

The models are also the schema of the topology file: one definition of every key, with its unit and an example.
`build` makes the flat `Topology`: its rows, and the rows that a device's traffic crosses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StrictBool
from pydantic_core import PydanticCustomError

from symphony.problem import limits, units
from symphony.problem.errors import InputError, TopologyError
from symphony.problem.topology import (
    CLUSTER,
    DEFAULT_LATENCY_S,
    MACHINE,
    PEER,
    RACK,
    SOCKET,
    SPANS,
    SWITCH,
    Device,
    DeviceKind,
    Hop,
    Resource,
    Topology,
)

CPU = "cpu"  # the device type that uses its socket's memory; every other type has a memory of its own
DEFAULT_RACK = "rack"  # name of the rack of machines that are in no rack
_LEAVING = (SWITCH, SOCKET, MACHINE, RACK, CLUSTER)  # spans of the traffic that leaves a device, without peer links


def quantity(value: Any, dimension: str, *, above_zero: bool = False) -> float:
    """`units.parse` for a field of a model: raises validation errors, with the hint."""
    try:
        number = units.parse(value, dimension)
        if number == 0 and above_zero:
            raise InputError(f"{value!r} is not a capacity", hint="write one above 0, or leave the key out")
    except InputError as error:
        ctx = {"message": error.message, "hint": error.hint}
        raise PydanticCustomError("quantity", "{message}", ctx) from None
    return number


@lru_cache(maxsize=1024)  # a large topology repeats a few capacities many times
def written(value: float, dimension: str) -> str | float:
    """A quantity as it is written to a file: with its unit if that is exact, else the bare number."""
    if dimension == "number":
        return value
    texts = [units.show(value, dimension)] + [f"{value / 2**20:g} MiB"] * (dimension == "bytes")
    exact = (text for text in texts if units.parse(text, dimension) == units.parse(value, dimension))
    return next(exact, value)


def _in(dimension: str, *, above_zero: bool = False) -> tuple[BeforeValidator, PlainSerializer]:
    return (
        BeforeValidator(lambda value: quantity(value, dimension, above_zero=above_zero)),
        PlainSerializer(lambda value: written(value, dimension)),
    )


Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Bandwidth = Annotated[float, *_in("bytes/s", above_zero=True)]
CacheSize = Annotated[float, *_in("bytes", above_zero=True)]
Bytes = Annotated[float, *_in("bytes")]
Seconds = Annotated[float, *_in("seconds")]


def _key(about: str, example: str, default: Any = ...) -> Any:
    """A key of a table. Hints of errors show `about` and `example`."""
    return Field(default=default, description=about, examples=[example])


def _count() -> Any:
    return _key("number of copies", "2", 1)


def _devices(example: str) -> Any:
    return _key("device kinds, one for each device", example, ())


class Spec(BaseModel):
    """A table of a topology file. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceSpec(Spec):
    """A device kind, and the capacities of the rows that each device has."""

    type: Name = _key("type that kernels may be implemented for", '"gpu"')
    slots: Count = _key("workers that run on it at once", "16", 1)
    memory: Bytes = _key("memory of each device; left out: no limit", '"16 GB"', math.inf)
    reconfigure: Seconds = _key("time to load another kernel", '"200 ms"', 0.0)
    device_memory: Bandwidth | None = _key("bandwidth of its own memory", '"900 GB/s"', None)
    link: Bandwidth | None = _key("its own PCIe link", '"12 GB/s"', None)
    peer: Bandwidth | None = _key("its direct links to its peers together", '"150 GB/s"', None)


class SwitchSpec(Spec):
    """A PCIe switch and the accelerators behind it."""

    count: Count = _count()
    bandwidth: Bandwidth | None = _key("its uplink", '"12 GB/s"', None)
    devices: tuple[Name, ...] = _devices('["v100", "v100"]')


class SocketSpec(Spec):
    """A socket: its memory channels, its cache, and the devices attached to it."""

    count: Count = _count()
    memory: Bandwidth | None = _key("bandwidth of its memory channels", '"100 GB/s"', None)
    cache: CacheSize | None = _key("its last-level cache", '"32 MB"', None)
    interconnect: Bandwidth | None = _key("its links to the other sockets", '"38 GB/s"', None)
    devices: tuple[Name, ...] = _devices('["xeon"]')
    switch: tuple[SwitchSpec, ...] = _key("PCIe switches", "[{…}], or [[…switch]] tables", ())


class MachineSpec(Spec):
    """A host."""

    name: Name = _key("its name", '"big"')
    count: Count = _count()
    nic: Bandwidth | None = _key("its network interface", '"12.5 GB/s"', None)
    peers: StrictBool = _key("whether its devices with a `peer` capacity are linked directly", "true", False)
    socket: tuple[SocketSpec, ...] = _key("sockets", "[{…}], or [[…socket]] tables", ())


class RackSpec(Spec):
    """A rack of machines behind one uplink."""

    name: Name = _key("its name", '"r0"')
    count: Count = _count()
    uplink: Bandwidth | None = _key("from the rack to the others", '"50 GB/s"', None)
    machine: tuple[MachineSpec, ...] = _key("machines", "[{…}], or [[rack.machine]] tables", ())


class LatencySpec(Spec):
    """One-way latency for each span."""

    local: Seconds = _key("in one memory", '"0 s"', DEFAULT_LATENCY_S[0])
    switch: Seconds = _key("within a PCIe switch", '"2 us"', DEFAULT_LATENCY_S[1])
    socket: Seconds = _key("within a socket", '"3 us"', DEFAULT_LATENCY_S[2])
    machine: Seconds = _key("between sockets", '"4 us"', DEFAULT_LATENCY_S[3])
    rack: Seconds = _key("between machines of a rack", '"5 us"', DEFAULT_LATENCY_S[4])
    cluster: Seconds = _key("between racks", '"8 us"', DEFAULT_LATENCY_S[5])
    peer: Seconds = _key("over direct links", '"2 us"', DEFAULT_LATENCY_S[6])

    def by_span(self) -> tuple[float, ...]:
        return tuple(getattr(self, span) for span in SPANS)


class ClusterSpec(Spec):
    """A whole topology file, in its hierarchical form."""

    name: Name = _key("its name", '"lab"', "topology")
    latency: LatencySpec = _key("latencies", "{…}, or a [latency] table", LatencySpec())
    device: dict[Name, DeviceSpec] = _key("device kinds", "{…}, or [device.v100] tables", {})
    rack: tuple[RackSpec, ...] = _key("racks", "[{…}], or [[rack]] tables", ())
    machine: tuple[MachineSpec, ...] = _key("machines in no rack", "[{…}], or [[machine]] tables", ())


def build(cluster: ClusterSpec) -> Topology:
    """The flat topology of a cluster. An error's `where` is a key path: `rack[0].machine[1].name`."""
    _check(cluster)
    rows = _Rows(cluster.device)
    for at, rack in _numbered("rack", cluster.rack):
        for name in _names(rack):
            rows.claim(name, f"{at}.name")
            uplink = rows.add("uplink", rack.uplink, name, f"{name}/uplink", CLUSTER)
            # Machines of repeated racks would share their names without it.
            prefix = f"{name}/" if rack.count > 1 else ""
            for here, machine in _numbered(f"{at}.machine", rack.machine):
                for own in _names(machine):
                    rows.claim(prefix + own, f"{here}.name")
                    _add_machine(rows, machine, prefix + own, name, uplink)
    if cluster.machine and DEFAULT_RACK in rows.claimed:
        raise TopologyError(
            f"machines outside the racks form the rack {DEFAULT_RACK!r}, and that name is taken",
            where="machine[0]",
            hint="rename the other one, or move the machines into a rack",
        )
    for at, machine in _numbered("machine", cluster.machine):
        for name in _names(machine):
            rows.claim(name, f"{at}.name")
            _add_machine(rows, machine, name, DEFAULT_RACK, ())
    kinds = tuple(
        DeviceKind(name, kind.type, kind.slots, kind.memory, kind.reconfigure) for name, kind in cluster.device.items()
    )
    latency_s = cluster.latency.by_span()
    return Topology(cluster.name, kinds, tuple(rows.resources), tuple(rows.devices), latency_s)


@dataclass
class _Rows:
    """The rows and devices built so far."""

    kinds: Mapping[str, DeviceSpec]
    resources: list[Resource] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    claimed: set[str] = field(default_factory=set)  # names of racks and machines; they are groups, so they must differ

    def claim(self, name: str, at: str) -> None:
        """Reserve the name of a rack or machine; an error if it is taken."""
        if name in self.claimed:
            raise TopologyError(
                f"{name!r} names two machines or racks", where=at, hint="give each of them a name of its own"
            )
        self.claimed.add(name)

    def add(self, kind: str, capacity: float | None, group: str, name: str, *spans: int) -> tuple[Hop, ...]:
        """Add a row, if it has a capacity, and return its hop."""
        if capacity is None:
            return ()
        self.resources.append(Resource(name, kind, capacity, group))
        return (Hop(name, spans),)


def _add_machine(rows: _Rows, machine: MachineSpec, name: str, rack: str, uplink: tuple[Hop, ...]) -> None:
    nic = rows.add("nic", machine.nic, name, f"{name}/nic", RACK, CLUSTER)
    made: Counter[str] = Counter()  # devices of each kind
    home = ""
    for s, socket in enumerate(_repeated(machine.socket)):
        here = f"{name}/s{s}"
        cache = rows.add("cache", socket.cache, name, f"{here}/cache")
        memory = rows.add("memory", socket.memory, name, f"{here}/memory", *_LEAVING)
        interconnect = rows.add("interconnect", socket.interconnect, name, f"{here}/interconnect", MACHINE)
        outward = interconnect + nic + uplink
        # A copy between an accelerator and a CPU crosses the memory row on the CPU's route. On the accelerator's own
        # route, the row is only demanded by kernels that read host memory in place.
        in_place = tuple(Hop(hop.resource) for hop in memory)
        attached: list[tuple[str, str, tuple[Hop, ...]]] = [(kind, "", ()) for kind in socket.devices]
        for w, switch in enumerate(_repeated(socket.switch)):
            behind = f"{here}/sw{w}"
            through = rows.add("switch", switch.bandwidth, name, behind, *_LEAVING[1:])
            attached += [(kind, behind, through) for kind in switch.devices]
        for kind, behind, through in attached:
            spec = rows.kinds[kind]
            device = f"{name}/{kind}-{made[kind]}"
            made[kind] += 1
            slots = spec.slots if spec.type == CPU else 1
            route = rows.add("compute", slots, name, f"{device}/compute")
            peers = f"{name}/peers" if machine.peers and spec.peer else ""
            if spec.type == CPU:
                home = home or device
                route += cache + memory + outward
            else:
                route += rows.add("device_memory", spec.device_memory, name, f"{device}/device_memory")
                route += rows.add("link", spec.link, name, f"{device}/link", *_LEAVING)
                route += through + in_place + outward
                if peers:
                    route += rows.add("peer", spec.peer, name, f"{device}/peer", PEER)
            shared = home if spec.type == CPU else ""
            rows.devices.append(
                Device(device, kind, name, rack, here, behind or device, route, home=shared, peers=peers)
            )


def _check(cluster: ClusterSpec) -> None:
    """Check what the models cannot: names across tables, and total sizes before they are allocated."""
    for name, kind in cluster.device.items():
        for key in ("device_memory", "link", "peer"):
            if kind.type == CPU and getattr(kind, key) is not None:
                raise TopologyError(
                    f"a device of type {CPU!r} has no {key}",
                    where=f"device.{name}.{key}",
                    hint="leave the key out: a CPU uses its socket's memory",
                )
    machines = [(at, machine, 1) for at, machine in _numbered("machine", cluster.machine)]
    for at, rack in _numbered("rack", cluster.rack):
        machines += [(here, machine, rack.count) for here, machine in _numbered(f"{at}.machine", rack.machine)]
    parts, devices = sum(rack.count for rack in cluster.rack), 0
    for at, machine, racks_like_it in machines:
        kinds: set[str] = set()
        inside, held = 1, 0
        for here, socket in _numbered(f"{at}.socket", machine.socket):
            kinds |= _known(cluster, socket.devices, here)
            inside += socket.count
            held += socket.count * len(socket.devices)
            for there, switch in _numbered(f"{here}.switch", socket.switch):
                kinds |= _known(cluster, switch.devices, there, on_switch=True)
                inside += socket.count * switch.count
                held += socket.count * switch.count * len(switch.devices)
        if machine.peers and not any(cluster.device[kind].peer for kind in kinds):
            raise TopologyError(
                "peers is true, but no device of the machine has a `peer` capacity",
                where=f"{at}.peers",
                hint='write peer = "150 GB/s" in the [device] table of its kind, or leave peers out',
            )
        parts += racks_like_it * machine.count * inside
        devices += racks_like_it * machine.count * held
        limits.check("number of devices", devices, limits.DEVICES, where=at)
        limits.check("number of machines, sockets and switches", parts, limits.RESOURCES, where=at)
    limits.check("number of racks", parts, limits.RESOURCES, where="rack")


def _known(cluster: ClusterSpec, kinds: Iterable[str], at: str, *, on_switch: bool = False) -> set[str]:
    for kind in kinds:
        if kind not in cluster.device:
            close = get_close_matches(kind, cluster.device, n=1)
            suggestion = f"write {close[0]!r}" if close else f"define it in a [device.{kind}] table"
            raise TopologyError(
                f"unknown device kind {kind!r}",
                where=f"{at}.devices",
                hint=f"{suggestion} (defined: {', '.join(cluster.device) or 'none'})",
            )
        if on_switch and cluster.device[kind].type == CPU:
            raise TopologyError(
                f"{kind!r} is a CPU, and is behind a PCIe switch",
                where=f"{at}.devices",
                hint="move it to the `devices` of the socket",
            )
    return set(kinds)


_Repeatable = TypeVar("_Repeatable", SocketSpec, SwitchSpec)
_Table = TypeVar("_Table", bound=Spec)


def _numbered(key: str, tables: Iterable[_Table]) -> Iterator[tuple[str, _Table]]:
    """Each table with its key path."""
    return ((f"{key}[{index}]", table) for index, table in enumerate(tables))


def _repeated(tables: Iterable[_Repeatable]) -> Iterator[_Repeatable]:
    """Each table `count` times."""
    return (table for table in tables for _ in range(table.count))


def _names(table: RackSpec | MachineSpec) -> list[str]:
    """The names of the `count` copies of a rack or machine."""
    return [table.name] if table.count == 1 else [f"{table.name}-{index}" for index in range(table.count)]
