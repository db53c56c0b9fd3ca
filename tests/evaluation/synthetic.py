"""Made-up but plausible scenarios and run records, for tests of everything that comes after the simulator.

A crude list scheduler over two machines: no transfers, and contention drawn from how full a machine is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symphony.evaluation.report import Report, ScenarioMeta
from symphony.problem.topology import Device, DeviceKind, Hop, Resource, Topology
from symphony.problem.workload import Edge, Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.simulator.records import GangRecord, JobRecord, RunRecord
from symphony.simulator.scenarios import Disturbances, Scenario, draw

# kernel -> seconds on a CPU, a GPU, an FPGA
SECONDS = {
    "align": (3.0, 0.9, 0.6),
    "sort": (1.2, 1.6, 1.8),
    "dedup": (0.9, 1.1, 1.4),
    "recalibrate": (1.6, 0.7, 1.2),
    "call": (4.0, 0.8, 1.5),
    "train": (6.0, 1.4, 4.0),
}
TYPES = ("cpu", "gpu", "fpga")


def topology(machines: int = 2) -> Topology:
    """Machines with a CPU of three slots, two GPUs and an FPGA each."""
    kinds = (
        DeviceKind("xeon", "cpu", 3),
        DeviceKind("v100", "gpu", 1),
        DeviceKind("fpga", "fpga", 1, 0.0, 0.2),
    )
    resources, devices = [], []
    for m in range(machines):
        name = f"host{m}"
        for kind, capacity in (("compute", 3.0), ("memory", 60e9), ("switch", 16e9), ("nic", 12e9)):
            resources.append(Resource(f"{name}/{kind}", kind, capacity, name))
        route = tuple(Hop(f"{name}/{kind}") for kind in ("compute", "memory", "switch", "nic"))
        for device, kind in (("cpu", "xeon"), ("gpu0", "v100"), ("gpu1", "v100"), ("fpga", "fpga")):
            devices.append(Device(f"{name}/{device}", kind, name, "rack0", f"{name}/socket", f"{name}/switch", route))
    return Topology("two-hosts", kinds, tuple(resources), tuple(devices))


def workload(seed: int, jobs: int = 50) -> Workload:
    """Jobs of five kernels in a diamond and a gang of two workers at the end."""
    kernels = tuple(
        Kernel(name, {type_: Profile(s) for type_, s in zip(TYPES, times, strict=True)})
        for name, times in SECONDS.items()
    )
    names = list(SECONDS)
    tasks = [Task(name, name) for name in names[:5]] + [Task("train/0", "train"), Task("train/1", "train")]
    pairs = [("align", "sort"), ("align", "dedup"), ("sort", "recalibrate"), ("dedup", "recalibrate")]
    pairs += [("recalibrate", "call"), ("call", "train/0")]
    edges = tuple(Edge(source, target, 1e6) for source, target in pairs)
    graph = TaskGraph("sample", tuple(tasks), edges, (Gang("train", ("train/0", "train/1"), preemptible=True),))
    gaps = np.random.default_rng([seed, 0]).exponential(1.6, jobs)
    return Workload("made-up", kernels, (graph,), tuple(Job(0, float(t)) for t in np.cumsum(gaps)))


def scenario(seed: int, jobs: int = 50, machines: int = 2) -> Scenario:
    """A scenario with tenants and noise."""
    return draw(topology(machines), workload(seed, jobs), seed, Disturbances())


def run(policy: str, scenario: Scenario, skill: float) -> RunRecord:
    """Records of a list scheduler; `skill` from 0 (devices at random) to 1 (knows the contention)."""
    rng = np.random.default_rng([scenario.seed, 7])  # the same draws for every policy: the seeds pair up
    t, w = scenario.topology, scenario.workload
    slots = [np.zeros(t.kind_of[device.kind].slots) for device in t.devices]
    device_type = [TYPES.index(t.kind_of[device.kind].type) for device in t.devices]
    machine = np.array([t.machines.index(device.machine) for device in t.devices])
    tenant = rng.uniform(0.0, 0.35, (len(t.machines), 400)) * rng.integers(0, 2, (len(t.machines), 400))
    mistakes = np.random.default_rng([scenario.seed, 8])

    def stretch(device: int, start: float) -> float:
        """What the tenants and the others on the machine make of an isolated second."""
        others = sum(
            (slots[d] > start).sum() for d in range(len(t.devices)) if machine[d] == machine[device] and d != device
        )
        own = 0.03 * max(0, int(others) - 2)
        return 1.0 + own + float(tenant[machine[device], int(start / 8) % 400])

    gangs: list[GangRecord] = []
    ready = {(j, g): job.arrival_s for j, job in enumerate(w.jobs) for g in range(6)}
    finish: dict[tuple[int, int], float] = {}
    parents = [[s for s, target, _ in w.graphs[0].gang_edges if target == g and s >= 0] for g in range(6)]
    for j, g in sorted(ready, key=lambda key: (w.jobs[key[0]].arrival_s + 2.5 * key[1], key)):
        at = max([w.jobs[j].arrival_s, *(finish[j, p] for p in parents[g])])
        kernel = w.graphs[0].all_gangs[g].name
        alone = [SECONDS[kernel][device_type[d]] for d in range(len(t.devices))]
        expected = [
            max(at, float(slots[d].min())) + alone[d] * (stretch(d, at) if skill == 1 else 1)
            for d in range(len(t.devices))
        ]
        spread = mistakes.exponential(8.0 * (1 - skill), len(t.devices)) if skill < 1 else np.zeros(len(t.devices))
        order = np.argsort(np.array(expected) + spread)
        chosen = [int(order[0])]
        if kernel == "train":  # its two workers stay on one machine
            chosen += [int(d) for d in order[1:] if machine[d] == machine[order[0]]][:1]
        start = max(at, *(float(slots[d].min()) for d in chosen))
        isolated = max(alone[d] for d in chosen)
        slowed = max(stretch(d, start) for d in chosen)
        setup = 0.2 if t.devices[chosen[0]].kind == "fpga" and rng.random() < 0.5 else 0.0
        end = start + setup + isolated * slowed
        interrupted = kernel == "train" and (j % 12 == 5 or j % 25 == 7)
        if interrupted:
            cut = start + setup + 0.4 * isolated * slowed
            outcome = "preempted" if j % 12 == 5 else "failed"
            gangs.append(GangRecord(j, g, tuple(chosen), at, at, start, cut, isolated, setup, outcome))
            left = 0.6 if outcome == "preempted" else 1.0
            start, setup = cut + 0.3, 0.3
            end = start + setup + left * isolated * slowed
            gangs.append(GangRecord(j, g, tuple(chosen), cut, cut + 0.1, start, end, isolated, setup))
        else:
            gangs.append(GangRecord(j, g, tuple(chosen), at, at, start, end, isolated, setup))
        for d in chosen:
            slots[d][slots[d].argmin()] = end
        finish[j, g] = end
    best = [min(SECONDS[gang.name]) for gang in w.graphs[0].all_gangs]
    isolated_job = best[0] + max(best[1], best[2]) + best[3] + best[4] + best[5]
    jobs = tuple(
        JobRecord(j, job.graph, job.arrival_s, max(finish[j, g] for g in range(6)), isolated_job)
        for j, job in enumerate(w.jobs)
    )
    makespan = max(job.finish_s for job in jobs)
    busy = sum((gang.finish_s - gang.start_s) * len(gang.devices) for gang in gangs) / makespan / len(t.devices)
    utilisation = {kind: min(1.0, busy * f) for kind, f in (("compute", 0.9), ("memory", 0.7), ("switch", 0.3))}
    decisions = len(gangs) + len(w.jobs)
    speed = 20_000 + 10_000 * rng.random() - 8_000 * skill
    return RunRecord(
        policy,
        scenario.seed,
        jobs,
        tuple(gangs),
        makespan,
        utilisation,
        decisions,
        3 * decisions,
        0,
        decisions / speed,
    )


def report(
    seeds: Sequence[int] = range(8),
    jobs: int = 50,
    policies: tuple[tuple[str, float], ...] = (("fifo", 0.3), ("eft-belief", 0.9), ("eft-exact", 1.0)),
    machines: int = 2,
    cheats: frozenset[str] = frozenset({"eft-exact"}),
) -> Report:
    """A whole report; the first policy is the baseline."""
    scenarios = [scenario(seed, jobs, machines) for seed in seeds]
    runs = [run(name, s, skill) for name, skill in policies for s in scenarios]
    return Report(
        runs,
        {s.seed: ScenarioMeta.from_scenario(s) for s in scenarios},
        set(cheats),
        "symphony compare --topology two-hosts --workload made-up "
        f"--policies {','.join(name for name, _ in policies)} --seeds {len(seeds)}",
        policies[0][0],
    )
