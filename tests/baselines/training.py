"""Training jobs on equal devices, and every policy for them in one program: it is compiled once for all tests."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp

from symphony.baselines.allox import AlloX
from symphony.baselines.gavel import (
    FinishTimeFairness,
    FinishTimeFairnessPacked,
    MaxMinFairness,
    MaxMinFairnessPacked,
    MaxMinFairnessPlain,
    MaxSumThroughput,
    MaxSumThroughputPacked,
    MinTotalDuration,
    MinTotalDurationPacked,
)
from symphony.baselines.optimus import Optimus
from symphony.baselines.preemptive import Las, Srtf, Tiresias
from symphony.problem.topology import MACHINE, Device, DeviceKind, Hop, Resource, Topology
from symphony.problem.workload import Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.scheduling.one_of import OneOf
from symphony.scheduling.policy import Policy
from symphony.simulator.records import RunRecord
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import CALM, Failure, Phase, Scenario, draw
from tests.baselines.cheap import check_runs

POLICIES: dict[str, Policy] = {
    "srtf": Srtf(),
    "las": Las(slack_s=0.0),
    "las, slack": Las(slack_s=4.0),
    "tiresias, 1 queue": Tiresias(thresholds_s=()),
    "tiresias, fine": Tiresias(thresholds_s=tuple(range(1, 20)), patience=0.0),
    "tiresias": Tiresias(thresholds_s=(4.0,), patience=0.0),
    "tiresias, promoting": Tiresias(thresholds_s=(4.0,), patience=2.0),
    "optimus": Optimus(),
    "allox": AlloX(rows=16),
    "max-min": MaxMinFairness(rows=16, reset_s=0.0),
    "max-min plain": MaxMinFairnessPlain(rows=16, reset_s=0.0),
    "max-min packed": MaxMinFairnessPacked(rows=16, reset_s=0.0),
    "max-sum": MaxSumThroughput(rows=16, reset_s=0.0),
    "max-sum packed": MaxSumThroughputPacked(rows=16, reset_s=0.0),
    "duration": MinTotalDuration(rows=16, reset_s=0.0),
    "duration packed": MinTotalDurationPacked(rows=16, reset_s=0.0),
    "finish-time": FinishTimeFairness(rows=16, reset_s=0.0),
    "finish-time packed": FinishTimeFairnessPacked(rows=16, reset_s=0.0),
}
JOBS = 12
LATER = 200.0  # when jobs arrive that only make all workloads equally large
GROUPS = {"one": 1, "two": 2, "three": 3, "four": 4, "shared": 2}  # devices of each kind; the last have two slots


def chosen(name: str) -> OneOf:
    """A policy of that name, in the program of all."""
    return OneOf(tuple(POLICIES.values()), jnp.asarray(list(POLICIES).index(name), jnp.int32))


def contract(name: str) -> None:
    """Fail unless the policy keeps its contract where devices differ and fail, and others use them."""
    check_runs(chosen(name), rough())


def cluster() -> Topology:
    """Kinds of one, two, three and four devices, and one of two devices that two may share."""
    kinds = tuple(DeviceKind(kind, "gpu", slots=2 if kind == "shared" else 1) for kind in GROUPS)
    names = [(kind, f"{kind}{n}") for kind, count in GROUPS.items() for n in range(count)]
    rows = tuple(Resource(f"{name}/compute", "compute", 1.0, name) for _, name in names)
    devices = tuple(
        Device(name, kind, name, "rack", f"{name}/s", f"{name}/w", (Hop(f"{name}/compute", (MACHINE,)),))
        for kind, name in names
    )
    return Topology("groups", kinds, rows, devices, (0.0,) * 7)


def jobs(*each: tuple[float, float, int], preemptible: bool = True, kernel: str = "one") -> Workload:
    """Jobs as (arrival, seconds, workers), on devices of one kind; or of a `kernel` that several kinds run."""
    kernels = [Kernel(kind, {kind: Profile(1.0)}) for kind in GROUPS]
    kernels.append(Kernel("faster on three", {"two": Profile(2.0), "three": Profile(1.0)}))
    kernels.append(Kernel("much faster on three", {"two": Profile(8.0), "three": Profile(1.0)}))
    for share in (40, 100):  # per cent of a device's compute
        kernels.append(Kernel(f"shared {share}", {"shared": Profile(1.0, demand={"compute": share / 100})}))
    extra = [(LATER + n, 1.0, 2 if n == 0 else 1) for n in range(JOBS - len(each))]
    graphs, arrivals = [], []
    for number, (arrival, seconds, workers) in enumerate([*each, *extra]):
        name = kernel.split("|")[number % len(kernel.split("|"))] if number < len(each) else "four"
        tasks = tuple(Task(f"w{k}", name, units=seconds) for k in range(workers))
        gang = Gang("gang", tuple(task.name for task in tasks), preemptible=preemptible)
        graphs.append(TaskGraph(f"job {number}", tasks, gangs=(gang,)))
        arrivals.append(Job(number, arrival))
    return Workload("jobs", tuple(kernels), tuple(graphs), tuple(arrivals))


def scenario(workload: Workload, window_s: float = 1e3) -> Scenario:
    """Of the one shape that the program of all is compiled for."""
    calm = replace(CALM, window_s=window_s, offer_at_windows=window_s < 100)
    return draw(cluster(), workload, 0, calm, job_slots=JOBS)


def rough() -> Scenario:
    """Gangs, kernels that several kinds run, a device that fails again and again, and a tenant."""
    kinds = "one|two|three|four|shared 40|faster on three|shared 100"
    workload = jobs((0, 8, 1), (0, 4, 2), (1, 9, 1), (1, 6, 2), (2, 3, 2), (3, 5, 1), (3, 2, 1), kernel=kinds)
    disturbed = {"failures": (Failure(6.0, "three0", 2.0),), "phases": (Phase(8.0, "two1", {"compute": 0.7}),)}
    return replace(scenario(workload, window_s=5.0), **disturbed)


def run(name: str, workload: Workload, window_s: float = 1e3) -> RunRecord:
    """One run, of which only the jobs before `LATER` are told."""
    record = simulate([scenario(workload, window_s)], chosen(name))[0]
    before = tuple(job for job in record.jobs if job.arrival_s < LATER)
    stays = tuple(stay for stay in record.gangs if stay.job < len(before))
    return replace(record, jobs=before, gangs=stays)


def finishes(record: RunRecord) -> list[float]:
    """When each job was complete."""
    return [job.finish_s for job in record.jobs]


def preempted(record: RunRecord) -> set[int]:
    """Jobs that were."""
    return {stay.job for stay in record.gangs if stay.outcome == "preempted"}
