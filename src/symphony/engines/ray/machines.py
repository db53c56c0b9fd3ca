"""Ray's nodes as machines: connects to Ray, discovers machines, and maps devices to Ray's resources.

The name of a machine is its label (`ray start --labels symphony.machine=NAME`), else its host name. It stays the same
when a node is replaced; Ray's node ids do not.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import ray
from ray._private import ray_constants

from symphony.engines.engine import refuse_reconfigurable
from symphony.problem.build import CPU, ClusterSpec, DeviceSpec, MachineSpec, RackSpec, SocketSpec, build
from symphony.problem.discover import (
    DEFAULT_LINK,
    DEFAULT_NIC,
    MAX_MEMORY_BANDWIDTH,
    MEMORY_BANDWIDTH_PER_CORE,
    MIN_MEMORY_BANDWIDTH,
)
from symphony.problem.errors import EngineError, InfeasibleError, TopologyError
from symphony.problem.topology import Topology

MACHINE_LABEL, RACK_LABEL, CPU_LABEL = "symphony.machine", "symphony.rack", "symphony.cpu"
TYPE_LABEL, TYPE_RESOURCE = "ray.io/accelerator-type", "accelerator_type:"  # Ray's own
ACCELERATORS = ("GPU", "TPU", "NPU", "HPU", "FPGA")  # resources that are devices; others may mean anything
LOCAL, LOOPBACK = "local", "127.0.0.1"
CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Machine:
    name: str
    node: str  # Ray's node id
    resources: Mapping[str, float]
    labels: Mapping[str, str]

    def slots(self, resource: str) -> int:
        return int(self.resources.get(resource, 0.0))


def connect(address: str | None) -> tuple[bool, list[str]]:
    """Connect to Ray: at an address, at RAY_ADDRESS, or to a new instance on this machine.

    Returns whether we must close the connection, and notes for the user.
    """
    if ray.is_initialized():
        return False, []
    target = address or os.environ.get("RAY_ADDRESS")
    try:
        if target and target != LOCAL:
            _check_reachable(target)
            ray.init(target, logging_level="WARNING")
            return True, []
        with _on_loopback():  # Ray also requires a token, unless RAY_AUTH_MODE disables it
            ray.init(LOCAL, include_dashboard=False, logging_level="ERROR")
    except Exception as error:  # of many types
        raise EngineError(
            f"Ray cannot be reached: {type(error).__name__}: {error}",
            where=f"address {target}" if target else "",
            hint="check that it is up (ray status), and RAY_AUTH_TOKEN or ~/.ray/auth_token of the cluster",
        ) from error
    addresses = {node["NodeManagerAddress"] for node in ray.nodes()}
    return True, [] if addresses == {LOOPBACK} else [f"Ray listens on all interfaces, not only at {LOOPBACK}"]


def _check_reachable(address: str) -> None:
    """Raise if nothing listens at an address: Ray itself would wait for minutes."""
    host, colon, port = address.rpartition(":")
    if "://" in address:
        raise ValueError("a client of Ray cannot hold actors: run on a machine of the cluster")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()


@contextmanager
def _on_loopback() -> Iterator[None]:
    """On Linux, Ray listens on all interfaces, whatever address it is given; on other systems, on 127.0.0.1.

    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 would change that, but is read when Ray is imported.
    """
    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def machines() -> dict[str, Machine]:
    """The nodes that are alive and have a CPU or an accelerator, by name."""
    found: dict[str, Machine] = {}
    for node in ray.nodes():
        resources, labels = node["Resources"], node.get("Labels") or {}
        if not node["Alive"] or not any(resources.get(name, 0) >= 1 for name in ("CPU", *ACCELERATORS)):
            continue
        name = labels.get(MACHINE_LABEL) or node["NodeManagerHostname"]
        if name in found:
            raise TopologyError(
                f"two nodes of Ray have the name {name!r}",
                hint=f"name them: ray start --labels {MACHINE_LABEL}=NAME; "
                "if one has just replaced the other, try again in half a minute",
            )
        found[name] = Machine(name, node["NodeID"], resources, labels)
    return found


def discovered(found: Mapping[str, Machine]) -> Topology:
    """A topology from Ray's numbers of cores and accelerators. Bandwidths are assumed.

    Machines with equal numbers of cores are assumed to have the same CPU, unless their labels differ.
    """
    if not found:
        raise EngineError("Ray has no node with a CPU or an accelerator", hint="start one: ray start --address=…")
    kinds: dict[str, DeviceSpec] = {}
    racks: dict[str, list[MachineSpec]] = {}
    for machine in sorted(found.values(), key=lambda machine: machine.name):
        devices = _cpus(machine, kinds) + _accelerators(machine, kinds)
        memory = min(max(MEMORY_BANDWIDTH_PER_CORE * machine.slots("CPU"), MIN_MEMORY_BANDWIDTH), MAX_MEMORY_BANDWIDTH)
        spec = MachineSpec(
            name=machine.name, nic=DEFAULT_NIC, socket=(SocketSpec(memory=memory, devices=tuple(devices)),)
        )
        racks.setdefault(machine.labels.get(RACK_LABEL, ""), []).append(spec)
    loose = racks.pop("", [])
    rows = tuple(RackSpec(name=name, machine=tuple(inside)) for name, inside in racks.items())
    return build(ClusterSpec(name="ray", device=kinds, rack=rows, machine=tuple(loose)))


def _cpus(machine: Machine, kinds: dict[str, DeviceSpec]) -> list[str]:
    slots = machine.slots("CPU")
    if not slots:
        return []
    name = f"{machine.labels.get(CPU_LABEL, CPU)}-{slots}"
    kinds.setdefault(name, DeviceSpec(type=CPU, slots=slots))
    return [name]


def _accelerators(machine: Machine, kinds: dict[str, DeviceSpec]) -> list[str]:
    devices = []
    for resource in ACCELERATORS:
        count, type_name = machine.slots(resource), resource.lower()
        types = [name[len(TYPE_RESOURCE) :] for name in machine.resources if name.startswith(TYPE_RESOURCE)]
        model = machine.labels.get(TYPE_LABEL) or (types[0] if types else "")
        name = model.lower() if model and resource == "GPU" else type_name
        if count:
            kinds.setdefault(name, DeviceSpec(type=type_name, link=DEFAULT_LINK))
        devices += [name] * count
    return devices


def needs(topology: Topology, device: int, machine: Machine) -> dict[str, float]:
    """The Ray resources that one slot of a device takes: a CPU, or its share of an accelerator."""
    kind = topology.kind_of[topology.devices[device].kind]
    if kind.type == CPU:
        return {"CPU": 1.0}
    matching = [name for name in machine.resources if name.lower() in (kind.type.lower(), kind.name.lower())]
    return {matching[0]: 1.0 / kind.slots} if matching else {}


def check(topology: Topology, found: Mapping[str, Machine]) -> None:
    """Refuse a topology that Ray does not have; its actors would stay pending."""
    refuse_reconfigurable(topology, "Ray")
    for name in topology.machines:
        if name not in found:
            raise TopologyError(
                f"Ray has no machine {name!r}; it has {_listed(sorted(found))}",
                where=topology.name,
                hint=f"name its node: ray start --labels {MACHINE_LABEL}={name}",
            )
        check_room(topology, found[name])


def check_room(topology: Topology, machine: Machine) -> None:
    wanted: Counter[str] = Counter()
    for number, device in enumerate(topology.devices):
        if device.machine != machine.name:
            continue
        kind = topology.kind_of[device.kind]
        share = needs(topology, number, machine)
        if not share:
            raise InfeasibleError(
                f"its node has no resource {kind.type!r}",
                where=f"{topology.name}: device {device.name!r}",
                hint=f"give it one: ray start --resources '{{\"{kind.type}\": 1}}'",
            )
        for resource, amount in share.items():
            wanted[resource] += amount * kind.slots  # type: ignore[assignment]  # a Counter of floats
    for resource, amount in wanted.items():
        if amount > machine.resources.get(resource, 0.0) + 1e-6:
            raise InfeasibleError(
                f"its devices need {amount:g} of {resource}, and its node has {machine.resources.get(resource, 0):g}",
                where=f"{topology.name}: machine {machine.name!r}",
                hint="correct the topology, or start the node with more",
            )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:6])}{' …' if len(names) > 6 else ''}" or "none"
