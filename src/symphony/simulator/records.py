"""Records of a run: the input of every metric, plot and report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class JobRecord:
    """One job, from arrival to completion."""

    job: int  # index into Workload.jobs
    graph: int  # index into Workload.graphs
    arrival_s: float
    finish_s: float
    isolated_s: float  # critical path with every gang alone on its best devices
    priority: int = 0

    @property
    def completion_s(self) -> float:
        return self.finish_s - self.arrival_s

    @property
    def slowdown(self) -> float:
        """Completion time over isolated time. Below 1 only where the true work was less than the profile's."""
        return self.completion_s / self.isolated_s


@dataclass(frozen=True)
class GangRecord:
    """One stay of a gang on its devices. A gang that was preempted or hit by a failure has several."""

    job: int
    gang: int  # index into TaskGraph.all_gangs
    devices: tuple[int, ...]  # indices into Topology.devices, one for each worker
    ready_s: float
    placed_s: float  # when its last worker was placed
    start_s: float
    finish_s: float  # when it left its devices (preempted: with its checkpoint written)
    isolated_s: float  # all its work on these devices, no set-up, nothing contended (its own workers included)
    setup_s: float  # spent in reconfiguration, restoring and, if preempted, saving
    outcome: str = "finished"  # or "preempted", "failed"

    @property
    def slowdown(self) -> float:
        """Run time without set-up, over the isolated run time on the same devices: the cost of contention."""
        return (self.finish_s - self.start_s - self.setup_s) / self.isolated_s


@dataclass(frozen=True)
class RunRecord:
    """One policy on one scenario."""

    policy: str
    seed: int
    jobs: tuple[JobRecord, ...]
    gangs: tuple[GangRecord, ...]
    makespan_s: float  # completion of the last job, from time 0
    utilisation: Mapping[str, float]  # resource kind -> mean of min(1, own load) over its rows and the whole run
    decisions: int
    events: int  # decisions included
    refused: int  # actions that broke the rules
    wall_s: float  # of the run, its share where several ran side by side; compilation not included
    stalled: bool = False  # the policy waited for ever
    jobs_outside: int = 0  # jobs that found all job slots taken and waited where no policy sees them
    devices: int = 0  # of the cluster; 0 = not known
    idle_ready_share: float | None = None  # of device-time: see `idleness`; None = not known
