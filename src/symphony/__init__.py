"""Symphony: a scheduler for clusters of unlike processors whose shared parts are contended.

import symphony as sy

report = sy.compare(["fifo", "heft", "eft-belief"], topology="paper", workload="variant-calling", seeds=range(20))
print(report.summary())
"""

from symphony import baselines, policies, telemetry, testing
from symphony.evaluation.compare import compare
from symphony.evaluation.metrics import METRICS
from symphony.evaluation.report import Report
from symphony.lowering.family import workload
from symphony.oracle.oracle import Oracle
from symphony.oracle.planning import Planned, plan
from symphony.problem.discover import discover
from symphony.problem.errors import (
    CycleError,
    DataError,
    InfeasibleError,
    InputError,
    LimitError,
    PolicyError,
    SymphonyError,
    SymphonyWarning,
    TopologyError,
    WorkloadError,
)
from symphony.problem.topologies import topology
from symphony.problem.topology import Device, DeviceKind, Hop, Resource, Topology
from symphony.problem.workload import Edge, Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.scheduling.policy import (
    Action,
    Observation,
    Policy,
    best_device,
    best_feasible,
    pick_gang,
    place,
    preempt,
    reconfigure,
    wait,
)
from symphony.simulator.contention import Bottleneck, ContentionModel, Serial
from symphony.simulator.records import GangRecord, JobRecord, RunRecord
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import CALM, Disturbances, Scenario, draw
from symphony.training.train import train

__all__ = [
    "CALM",
    "METRICS",
    "Action",
    "Bottleneck",
    "ContentionModel",
    "CycleError",
    "DataError",
    "Device",
    "DeviceKind",
    "Disturbances",
    "Edge",
    "Gang",
    "GangRecord",
    "Hop",
    "InfeasibleError",
    "InputError",
    "Job",
    "JobRecord",
    "Kernel",
    "LimitError",
    "Observation",
    "Oracle",
    "Planned",
    "Policy",
    "PolicyError",
    "Profile",
    "Report",
    "Resource",
    "RunRecord",
    "Scenario",
    "Serial",
    "SymphonyError",
    "SymphonyWarning",
    "Task",
    "TaskGraph",
    "Topology",
    "TopologyError",
    "Workload",
    "WorkloadError",
    "baselines",
    "best_device",
    "best_feasible",
    "compare",
    "discover",
    "draw",
    "pick_gang",
    "place",
    "plan",
    "policies",
    "preempt",
    "reconfigure",
    "simulate",
    "telemetry",
    "testing",
    "topology",
    "train",
    "wait",
    "workload",
]
__version__ = "0.1.0"
