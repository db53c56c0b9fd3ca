"""Random scenarios for tests: small, and full of everything that can go wrong.

All quantities are drawn from continuous distributions, and nothing happens twice alike, so that two unrelated
events never fall on one instant: simulators that agree on the rules then agree on the order of events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from symphony.problem.speeds import Speeds
from symphony.problem.topology import (
    CLUSTER,
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
from symphony.problem.workload import Edge, Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.simulator.scenarios import Disturbances, Failure, Phase, Scenario

GB = 1e9
MIB = float(1 << 20)

# Spans at which the traffic of a device crosses a row on its route.
FROM_LINK = (SWITCH, SOCKET, MACHINE, RACK, CLUSTER)
FROM_SWITCH = (SOCKET, MACHINE, RACK, CLUSTER)
FROM_SOCKET = (MACHINE,)
FROM_MACHINE = (RACK, CLUSTER)
FROM_RACK = (CLUSTER,)


@dataclass(frozen=True)
class Size:
    """Upper ends of the ranges that a scenario's sizes are drawn from."""

    racks: int
    machines: int
    gpus: int  # of a machine
    kernels: int
    tasks: int  # of a graph, before they are put into gangs
    workers: int  # of a gang
    jobs: int


SIZES = {
    "tiny": Size(racks=1, machines=1, gpus=2, kernels=2, tasks=3, workers=2, jobs=2),
    "small": Size(racks=3, machines=4, gpus=3, kernels=5, tasks=6, workers=4, jobs=5),
    "large": Size(racks=3, machines=8, gpus=4, kernels=8, tasks=12, workers=4, jobs=12),
}


def scenarios(size: str = "small") -> st.SearchStrategy[Scenario]:
    """Hypothesis strategy: a failing example prints as the scenario, and shrinks towards low seeds."""
    return st.integers(0, 2**31 - 1).map(lambda seed: random_scenario(seed, size=size))


def random_scenario(seed: int, *, size: str = "small", truth: bool = False) -> Scenario:
    """A cluster, a workload and disturbances drawn from a seed; every gang can run on its topology.

    `truth`: some kernels are not as fast as their profiles say, interfere, and ask for more or less of shared rows.
    """
    rng = np.random.default_rng(seed)
    bounds = SIZES[size]
    latency_s = float(rng.uniform(0.001, 0.3)) if rng.random() < 0.3 else 0.0
    # Slots reconfigured at two successive thoughts are ready one latency apart, and the first brings about a
    # thought that ends with the second: a tie. So where the scheduler thinks, one slot is reconfigurable.
    topology = random_topology(rng, bounds, one_fpga_slot=latency_s > 0)
    jobs = int(rng.integers(1, bounds.jobs + 1))
    job_slots = int(rng.choice([1, 3]))  # few values: each is a shape that the fast simulator compiles for
    # Jobs of one graph do equal things, so they must not do them at once.
    workload = random_workload(rng, bounds, topology, jobs, share_graphs=job_slots == 1)
    noise = np.exp(rng.normal(0.0, 0.2, 13)) if rng.random() < 0.7 else np.ones(1)
    disturbances = Disturbances(
        window_s=float(rng.uniform(0.3, 2.0)), latency_s=latency_s, offer_at_windows=bool(rng.random() < 0.3)
    )
    return Scenario(
        topology,
        workload,
        seed,
        phases=random_phases(rng, topology) if rng.random() < 0.7 else (),
        failures=random_failures(rng, topology) if rng.random() < 0.5 else (),
        work_noise=tuple(map(float, noise)),
        disturbances=disturbances,
        job_slots=job_slots,
        truth=random_truth(rng, topology, workload) if truth else None,
        demand_factor=tuple(map(float, rng.lognormal(0, 0.5, len(workload.kernels)))) if truth else (),
    )


# -------------------------------------------------------------------- topology


def random_topology(rng: np.random.Generator, bounds: Size, *, one_fpga_slot: bool) -> Topology:
    """Machines in racks: CPUs that share a memory, and some with GPUs and FPGAs behind a PCIe switch."""
    kinds = (
        DeviceKind("cpu-a", "cpu", slots=int(rng.integers(2, 5)), memory=MIB * int(rng.integers(64, 256))),
        DeviceKind("cpu-b", "cpu", slots=int(rng.integers(1, 4)), memory=MIB * int(rng.integers(32, 128))),
        DeviceKind("gpu-a", "gpu", slots=int(rng.integers(1, 4)), memory=MIB * int(rng.integers(16, 64))),
        DeviceKind("gpu-b", "gpu", slots=int(rng.integers(1, 3)), memory=MIB * int(rng.integers(8, 32))),
        DeviceKind(
            "fpga",
            "fpga",
            slots=1 if one_fpga_slot else int(rng.integers(1, 4)),
            memory=MIB * int(rng.integers(8, 32)),
            reconfigure_s=float(rng.uniform(0.1, 1.5)),
        ),
    )
    racks = int(rng.integers(1, bounds.racks + 1))
    resources = [Resource(f"r{rack}.uplink", "uplink", rate(rng, 4, 12), f"r{rack}") for rack in range(racks)]
    devices: list[Device] = []
    for machine in range(int(rng.integers(1, bounds.machines + 1))):
        fpga = bool(rng.random() < 0.5) and not (one_fpga_slot and machine > 0)
        rows, here = random_machine(rng, bounds, f"m{machine}", f"r{machine % racks}", fpga=fpga)
        resources += rows
        devices += here
    latency_s = (0.0, *(float(x) for x in rng.uniform(1e-6, 0.02, 6)))
    return Topology("random", kinds, tuple(resources), tuple(devices), latency_s)


def random_machine(
    rng: np.random.Generator, bounds: Size, name: str, rack: str, *, fpga: bool
) -> tuple[list[Resource], list[Device]]:
    """One machine: its rows and its devices."""
    rows: list[Resource] = []
    devices: list[Device] = []

    def row(kind: str, capacity: float, owner: str = "") -> str:
        """Add a row of this machine, or of one of its parts; its name."""
        rows.append(Resource(f"{name}{owner}.{kind}", kind, capacity, name))
        return rows[-1].name

    outside = [Hop(row("nic", rate(rng, 2, 8)), FROM_MACHINE), Hop(f"{rack}.uplink", FROM_RACK)]
    sockets = int(rng.integers(1, 3))
    if sockets > 1:
        outside.insert(0, Hop(row("interconnect", rate(rng, 5, 15)), FROM_SOCKET))
    cpu = str(rng.choice(["cpu-a", "cpu-b"]))
    memory = []
    for socket in range(sockets):
        own = f".s{socket}"
        memory.append(row("memory", rate(rng, 10, 30), own))
        route = (
            Hop(row("compute", float(rng.uniform(1, 4)), own)),
            Hop(row("cache", float(rng.uniform(8, 32)) * MIB, own)),
            Hop(memory[socket], FROM_LINK),
            *outside,
        )
        home = "" if socket == 0 else f"{name}.s0.cpu"
        place = (name, rack, f"{name}{own}", f"{name}{own}.root")
        devices.append(Device(f"{name}{own}.cpu", cpu, *place, route, home))
    switches = {s: row("switch", rate(rng, 4, 16), f".s{s}") for s in range(sockets)}
    peers = f"{name}.peers" if rng.random() < 0.4 else ""
    gpu = str(rng.choice(["gpu-a", "gpu-b"]))
    accelerators = [gpu] * int(rng.integers(0, bounds.gpus + 1)) + ["fpga"] * fpga
    for index, kind in enumerate(accelerators):
        own, socket = f".d{index}", int(rng.integers(sockets))
        hops = [
            Hop(row("compute", 1.0, own)),
            Hop(row("device_memory", rate(rng, 100, 400), own)),
            Hop(row("link", rate(rng, 4, 16), own), FROM_LINK),
            Hop(switches[socket], FROM_SWITCH),
            *([Hop(switches[socket], FROM_SOCKET)] if index % 2 else []),  # crosses it twice
            Hop(memory[socket]),  # its kernels touch the host's memory too; its transfers go past it
            *outside,
        ]
        peered = peers if kind == gpu else ""
        if peered:
            hops.append(Hop(row("peer", rate(rng, 20, 60), own), (PEER,)))
        place = (name, rack, f"{name}.s{socket}", f"{name}.s{socket}.switch")
        devices.append(Device(f"{name}{own}.{kind}", kind, *place, tuple(hops), peers=peered))
    return rows, devices


def rate(rng: np.random.Generator, low: float, high: float) -> float:
    """A bandwidth between two numbers of GB/s."""
    return float(rng.uniform(low, high)) * GB


# -------------------------------------------------------------------- workload


def random_workload(
    rng: np.random.Generator, bounds: Size, topology: Topology, count: int, *, share_graphs: bool
) -> Workload:
    """Kernels for some of the device kinds, a graph for each job (or fewer), and the jobs."""
    kernels = tuple(random_kernel(rng, topology, f"k{k}") for k in range(rng.integers(1, bounds.kernels + 1)))
    distinct = int(rng.integers(1, count + 1)) if share_graphs else count
    graphs = tuple(random_graph(rng, bounds, topology, kernels, f"g{index}") for index in range(distinct))
    arrivals = np.cumsum(rng.exponential(1.0, count)) * float(rng.uniform(0.1, 1.5))
    jobs = tuple(
        Job(index % distinct, float(at), priority=int(rng.integers(3)), home=int(rng.integers(8)))
        for index, at in enumerate(arrivals)
    )
    return Workload("random", kernels, graphs, jobs)


def random_kernel(rng: np.random.Generator, topology: Topology, name: str) -> Kernel:
    """A kernel for at least one kind that the topology has, by the kind's name or by its type."""
    present = [kind for kind in topology.kinds if topology.kind_counts[kind.name]]
    chosen = [kind for kind in present if rng.random() < 0.6] or [present[rng.integers(len(present))]]
    implementations: dict[str, Profile] = {}
    for kind in chosen:
        key = kind.name if rng.random() < 0.5 else kind.type
        implementations[key] = random_profile(rng, kind)
    exchange_bytes = float(rng.uniform(0.05, 1.5)) * GB if rng.random() < 0.7 else 0.0
    return Kernel(name, implementations, float(rng.uniform(0.7, 1.3)), exchange_bytes)


def random_profile(rng: np.random.Generator, kind: DeviceKind) -> Profile:
    """Costs on a device kind: it leans on one or two resources, so that a few neighbours contend for them."""
    typical = {"compute": 1.0, "cache": 12 * MIB, "memory": 12 * GB}
    if kind.type != "cpu":
        typical = {
            "compute": 0.6,
            "device_memory": 150 * GB,
            "link": 3 * GB,
            "memory": 4 * GB,
            "switch": 3 * GB,
        }
    demand, demand_per_work = {}, {}
    for resource, amount in typical.items():
        if rng.random() < 0.6:
            demand[resource] = amount * float(rng.uniform(0.1, 1.2))
        if rng.random() < 0.3:
            demand_per_work[resource] = amount * float(rng.uniform(0.05, 0.4))
    # From next to nothing to nearly the whole device: then only one worker fits, whatever the slots.
    memory = kind.memory * float(rng.uniform(0.0, 0.3) if rng.random() < 0.6 else rng.uniform(0.4, 0.9))
    return Profile(
        fixed_s=float(rng.uniform(0.02, 0.3)),
        per_work_s=float(rng.uniform(0.05, 0.8)),
        demand=demand,
        demand_per_work=demand_per_work,
        memory=memory,
        memory_per_work=kind.memory * float(rng.uniform(0.0, 0.03)),
    )


def random_graph(
    rng: np.random.Generator, bounds: Size, topology: Topology, kernels: tuple[Kernel, ...], name: str
) -> TaskGraph:
    """A random acyclic graph of gangs, most of them of one task, some of several and preemptible."""
    fan_out = rng.random() < 0.3  # most read what the first makes, so that many copies of it come about
    tasks: list[Task] = []
    edges: list[Edge] = []
    gangs: list[Gang] = []
    groups: list[tuple[str, ...]] = []  # the tasks of each gang so far
    for index in range(rng.integers(1, bounds.tasks + 1)):
        kernel = kernels[rng.integers(len(kernels))]
        size = runnable_size(rng, topology, kernel)
        most = min(bounds.workers, devices_for(topology, kernel, size))
        workers = int(rng.integers(1, most + 1)) if rng.random() < 0.5 else 1
        names = tuple(f"t{index}.{worker}" for worker in range(workers))
        units = float(rng.uniform(1.0, 6.0)) if workers > 1 or rng.random() < 0.3 else 1.0
        tasks += [Task(task, kernel.name, size, units) for task in names]
        if workers > 1 or rng.random() < 0.3:
            gangs.append(random_gang(rng, f"g{index}", names))
        for task in names:
            if rng.random() < 0.4:
                edges.append(Edge(None, task, random_bytes(rng)))
        for other in groups:
            if rng.random() < (0.9 if fan_out and other is groups[0] else 0.3):
                edges.append(Edge(str(rng.choice(other)), str(rng.choice(names)), random_bytes(rng)))
        groups.append(names)
    return TaskGraph(name, tuple(tasks), tuple(edges), tuple(gangs))


def random_gang(rng: np.random.Generator, name: str, tasks: tuple[str, ...]) -> Gang:
    """A gang that may be preempted, or not; with periodic checkpoints, or without."""
    return Gang(
        name,
        tasks,
        preemptible=bool(rng.random() < 0.7),
        checkpoint_s=float(rng.uniform(0.01, 1.0)),
        restore_s=float(rng.uniform(0.01, 0.5)) if rng.random() < 0.7 else 0.0,
        checkpoint_units=float(rng.uniform(0.2, 2.0)) if rng.random() < 0.6 else math.inf,
    )


def random_bytes(rng: np.random.Generator) -> float:
    """Mostly enough for a transfer of a second or less; sometimes none, a mere order of things."""
    return float(rng.uniform(0.01, 1.0)) ** 2 * 4 * GB if rng.random() < 0.9 else 0.0


def runnable_size(rng: np.random.Generator, topology: Topology, kernel: Kernel) -> float:
    """An input size whose footprint fits some device."""
    size = float(rng.uniform(0.3, 2.5))
    while not devices_for(topology, kernel, size):
        size /= 2
    return size


def random_truth(rng: np.random.Generator, topology: Topology, workload: Workload) -> Speeds:
    """Hidden speeds of most kernels on most device kinds that run them, and of most pairs."""
    unit_s, beside = {}, {}
    for kind in topology.kinds:
        able = [kernel for kernel in workload.kernels if kernel.on(kind) is not None]
        for kernel in able:
            if rng.random() < 0.7:
                packed = float(kernel.on(kind).seconds(1.0) * np.exp(rng.normal(0.0, 0.5)))
                unit_s[kernel.name, kind.name] = (packed, float(packed * rng.uniform(0.8, 2.0)))
            for other in able:
                if rng.random() < 0.7:
                    beside[kernel.name, other.name, kind.name] = float(rng.uniform(0.1, 1.0))
    return Speeds(unit_s, beside, float(rng.uniform(0.0, 0.5)))


def devices_for(topology: Topology, kernel: Kernel, size: float) -> int:
    """How many devices can run a kernel on an input of this size."""
    work = kernel.work(size)
    kinds = (topology.kind_of[device.kind] for device in topology.devices)
    return sum((p := kernel.on(kind)) is not None and p.memory_bytes(work) <= kind.memory for kind in kinds)


# -------------------------------------------------------------------- disturbances


def random_phases(rng: np.random.Generator, topology: Topology) -> tuple[Phase, ...]:
    """A few phases, so that a run sees the list repeat."""
    groups = list(dict.fromkeys(resource.group for resource in topology.resources))
    kinds = sorted({resource.kind for resource in topology.resources})
    phases = []
    for _ in range(rng.integers(1, 9)):
        group = str(rng.choice(groups))
        load = {kind: float(rng.uniform(0.05, 1.5)) for kind in kinds if rng.random() < 0.4}
        rows = [resource.name for resource in topology.resources if resource.group == group]
        load |= {row: float(rng.uniform(0.0, 1.5)) for row in rows if rng.random() < 0.2}
        phases.append(Phase(0.2 + float(rng.exponential(2.0)), group, load))
    return tuple(phases)


def random_failures(rng: np.random.Generator, topology: Topology) -> tuple[Failure, ...]:
    """Failures that come often enough to hurt, and seldom enough for every gang to finish between two."""
    gaps = [float(rng.uniform(0.2, 5.0)), *(float(x) for x in rng.uniform(0.5, 4.0, rng.integers(0, 5)))]
    gaps.append(float(rng.uniform(30.0, 60.0)))
    return tuple(
        Failure(gap, topology.devices[rng.integers(len(topology.devices))].name, float(rng.uniform(0.2, 4.0)))
        for gap in gaps
    )
