"""Small scenarios for the oracle, and their optimum by trying everything."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import jax
import numpy as np

from symphony.oracle.instance import Instance, instance
from symphony.oracle.replay import Plan, script
from symphony.problem.topology import (
    CLUSTER,
    MACHINE,
    RACK,
    SOCKET,
    SWITCH,
    Device,
    DeviceKind,
    Hop,
    Resource,
    Topology,
)
from symphony.problem.workload import Edge, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.simulator.records import RunRecord
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import CALM, Scenario, draw

OUT = (SWITCH, SOCKET, MACHINE, RACK, CLUSTER)
GB = 1e9
SHAPE = ((0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 5), (4, 5))  # of six tasks


def unlike(devices: int = 3, *, bus: bool = False, slots: int = 1) -> Topology:
    """Devices of a kind each. With a bus, each has a memory of its own; without, they share one."""
    kinds = tuple(DeviceKind(f"kind{d}", "any", slots=slots) for d in range(devices))
    rows = (
        *(Resource(f"compute{d}", "compute", float(slots), "m") for d in range(devices)),
        Resource("bus", "switch", 1 * GB, "m"),
    )
    return Topology(
        "unlike",
        kinds,
        rows,
        tuple(
            Device(
                f"d{d}",
                f"kind{d}",
                "m",
                "r",
                "s",
                "w",
                (Hop(f"compute{d}"), Hop("bus", OUT)),
                "" if bus or not d else "d0",
            )
            for d in range(devices)
        ),
    )


def work(
    seed: int,
    *,
    tasks: int = 6,
    edges: tuple[tuple[int, int], ...] = SHAPE,
    devices: int = 3,
    gigabytes: float = 0.0,
    whole: bool = False,
    arrivals: tuple[float, ...] = (0.0,),
) -> Workload:
    """One graph with drawn times; every task is its own kernel, so that it has a time of its own on every device."""
    rng = np.random.default_rng(seed)

    def seconds() -> float:
        return float(rng.integers(1, 10)) if whole else float(rng.uniform(1, 10))

    kernels = tuple(
        Kernel(f"k{n}", {f"kind{d}": Profile(fixed_s=seconds(), demand={"compute": 1.0}) for d in range(devices)})
        for n in range(tasks)
    )
    # Sizes are drawn whatever they are, so that times do not depend on them.
    sizes = [float(rng.integers(1, 5)) * gigabytes * GB for _ in range(len(edges) + 1)]
    data = (
        Edge(None, "t0", sizes[-1]),
        *(Edge(f"t{a}", f"t{b}", size) for (a, b), size in zip(edges, sizes, strict=False)),
    )
    graph = TaskGraph("graph", tuple(Task(f"t{n}", f"k{n}") for n in range(tasks)), data)
    return Workload("small", kernels, (graph,), tuple(Job(0, arrival) for arrival in arrivals))


def scenario(seed: int = 0, *, bus: bool = False, whole: bool = False) -> Scenario:
    """Six tasks on three unlike devices. All seeds, with a bus or without, share one compiled program."""
    return draw(unlike(bus=bus), work(seed, gigabytes=1.0 if bus else 0.0, whole=whole), seed, CALM, job_slots=1)


def replayed(i: Instance, plan: Plan) -> RunRecord:
    """A plan in the simulator, in 64 bits."""
    with jax.enable_x64(True):
        return simulate([i.scenario], script(i, plan), name="plan")[0]


def orders(i: Instance) -> Iterator[tuple[int, ...]]:
    """Every order in which gangs come after those that they wait for."""
    for order in itertools.permutations(range(len(i))):
        place = {gang: turn for turn, gang in enumerate(order)}
        if all(place[parent] < place[gang] for gang in order for parent in i.parents[gang]):
            yield order


def by_trying_everything(i: Instance) -> tuple[float, float]:
    """Least makespan and least mean completion over all devices for all gangs, and all orders of placing them."""
    best = [np.inf, np.inf]
    jobs = len(i.scenario.workload.jobs)
    for order in orders(i):
        for devices in itertools.product(range(len(i.slots)), repeat=len(i)):
            finish = schedule(i, order, devices)
            last = [max(finish[g] for g in range(len(i)) if i.who[g][0] == job) for job in range(jobs)]
            arrivals = [job.arrival_s for job in i.scenario.workload.jobs]
            best = [min(best[0], max(last)), min(best[1], sum(last) / jobs - sum(arrivals) / jobs)]
    return best[0], best[1]


def schedule(i: Instance, order: tuple[int, ...], devices: tuple[int, ...]) -> list[float]:
    """When each gang ends if they are placed in this order, each as early as the rules allow, one slot a device.

    Written from docs/concepts/simulation.md, one transfer at a time, and apart from the oracle on purpose.
    """
    finish = [np.inf] * len(i)
    busy, engine, bus = [0.0] * len(i.slots), [0.0] * len(i.slots), 0.0
    lies: dict[tuple[int, int], float] = {}  # output, memory -> since when
    for g in order:
        d = devices[g]
        memory = int(i.memory_of[d])
        placed = max([i.arrival_s[g], engine[d], *(finish[p] for p in i.parents[g])])
        fetch = 0.0
        fetched = []
        for x in i.inputs[g]:
            if x.source < 0:
                fetch += i.transfer_s(x.bytes, int(i.home[g]), memory)
            elif x.bytes > 0 and (x.source, memory) not in lies:
                fetch += i.transfer_s(x.bytes, int(i.memory_of[devices[x.source]]), memory)
                fetched.append(x.source)
            elif x.bytes > 0:
                placed = max(placed, lies[x.source, memory])
        if fetch > 0:
            placed = max(placed, bus)
            bus = placed + fetch
        engine[d] = placed + fetch
        for source in fetched:
            lies[source, memory] = placed + fetch
        finish[g] = max(placed + fetch, busy[d]) + i.seconds[g, d]
        busy[d] = finish[g]
        lies[g, memory] = finish[g]
    return finish


def small_instance(seed: int, *, tasks: int, devices: int, bus: bool, arrivals: tuple[float, ...] = (0.0,)) -> Instance:
    """A random graph small enough to try everything."""
    rng = np.random.default_rng([seed, 5])
    edges = tuple((a, b) for a, b in itertools.combinations(range(tasks), 2) if rng.random() < 0.5)
    drawn = work(seed, tasks=tasks, edges=edges, devices=devices, gigabytes=0.7 if bus else 0.0, arrivals=arrivals)
    return instance(draw(unlike(devices, bus=bus), drawn, seed, CALM, job_slots=len(arrivals)))
