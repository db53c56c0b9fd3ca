"""A scenario: one drawn cluster, workload and set of disturbances. Everything that a run depends on but the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from symphony.problem.errors import InputError
from symphony.problem.topology import Topology
from symphony.problem.workload import Workload


@dataclass(frozen=True)
class Phase:
    """Hidden tenants of one group (a machine or a rack) change what they do."""

    gap_s: float  # since the phase before it
    group: str
    load: Mapping[str, float]  # resource kind -> background load, as a fraction of capacity (absent = 0)


@dataclass(frozen=True)
class Failure:
    """A device goes down for a while."""

    gap_s: float  # since the failure before it
    device: str
    down_s: float


@dataclass(frozen=True)
class Disturbances:
    """How a scenario is disturbed; the numbers from which phases, failures and noise are drawn."""

    background: float = 0.6  # typical background load of a busy tenant's favourite resource; 0 = no tenants
    busy_share: float = 0.5  # share of phases in which a group's tenants do anything
    phase_s: float = 20.0  # mean length of a phase of one group
    failures_per_day: float = 0.0  # of each device
    repair_s: float = 600.0
    work_noise: float = 0.05  # spread of the true amount of work about the profile
    counter_noise: float = 0.4  # relative error of a counter reading
    window_s: float = 1.0  # length of a counter window
    latency_s: float = 0.0  # scheduler latency charged for every decision
    offer_at_windows: bool = False  # offer a decision at the end of every window, even if no gang is ready


CALM = Disturbances(background=0.0, work_noise=0.0, counter_noise=0.0)


@dataclass(frozen=True)
class Scenario:
    """Everything that a run depends on but the policy."""

    topology: Topology
    workload: Workload
    seed: int
    phases: tuple[Phase, ...]  # repeats from the start when it ends; () = none
    failures: tuple[Failure, ...]  # likewise
    work_noise: tuple[float, ...]  # gang i of job j has units * work_noise[(31 j + i) % len] to do
    disturbances: Disturbances
    job_slots: int = 16  # jobs in the system at once


# What a busy tenant does to the rows of its machine or rack, relative to Disturbances.background.
_TENANTS: tuple[Mapping[str, float], ...] = (
    {"memory": 1.6, "cache": 1.2, "compute": 0.3},  # streams through memory
    {"compute": 1.0, "cache": 0.6, "memory": 0.4},  # computes
    {"link": 0.8, "switch": 1.6, "memory": 0.5, "interconnect": 0.8},  # copies over PCIe
    {"nic": 1.6, "uplink": 1.2, "switch": 0.6, "memory": 0.3},  # talks over the network
    {"device_memory": 1.2, "compute": 0.7, "link": 0.4},  # shares the accelerators
)


def draw(
    topology: Topology, workload: Workload, seed: int, disturbances: Disturbances = CALM, *, job_slots: int = 16
) -> Scenario:
    """Draw the disturbances of a scenario from its seed, independently of the workload's own draws."""
    d = disturbances
    for name in ("background", "failures_per_day", "repair_s", "work_noise", "counter_noise", "latency_s"):
        if not 0 <= getattr(d, name) < float("inf"):
            raise InputError(f"{name} is {getattr(d, name)}", where="disturbances", hint="write a number, 0 or more")
    for name in ("phase_s", "window_s"):
        if not 0 < getattr(d, name) < float("inf"):
            raise InputError(f"{name} is {getattr(d, name)}", where="disturbances", hint="write a number above 0")
    rng = np.random.default_rng([seed, 1])
    groups = list(dict.fromkeys(resource.group for resource in topology.resources))
    phases: list[Phase] = []
    if d.background > 0 and groups:
        count = max(64, min(1024, 4 * len(groups)))
        # Every group starts in a drawn phase; after that, one group at a time changes.
        first = [0.0] * len(groups)
        gaps = first + list(rng.exponential(d.phase_s / len(groups), count))
        order = groups + [groups[i] for i in rng.integers(len(groups), size=count)]
        for gap, group in zip(gaps, order, strict=True):
            load: dict[str, float] = {}
            if rng.random() < d.busy_share:
                tenant = _TENANTS[rng.integers(len(_TENANTS))]
                level = d.background * rng.uniform(0.5, 1.5)
                load = {kind: level * weight for kind, weight in tenant.items()}
            phases.append(Phase(float(gap), group, load))
    failures: list[Failure] = []
    if d.failures_per_day > 0:
        mean_gap = 86400.0 / (d.failures_per_day * len(topology.devices))
        for gap in rng.exponential(mean_gap, 256):
            device = topology.devices[rng.integers(len(topology.devices))].name
            failures.append(Failure(float(gap), device, float(rng.exponential(d.repair_s)) + 1e-3))
    noise = np.exp(rng.normal(0.0, d.work_noise, 127)) if d.work_noise > 0 else np.ones(1)
    return Scenario(
        topology, workload, seed, tuple(phases), tuple(failures), tuple(map(float, noise)), disturbances, job_slots
    )


def calm(scenario: Scenario) -> Scenario:
    """The same scenario without tenants, failures or noise."""
    return replace(scenario, phases=(), failures=(), work_noise=(1.0,), disturbances=CALM)
