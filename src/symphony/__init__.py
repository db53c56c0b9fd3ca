"""Symphony: a scheduler for clusters of unlike processors whose shared parts are contended.

import symphony as sy

report = sy.compare(["fifo", "heft", "eft-belief"], topology="paper", workload="variant-calling", seeds=range(20))
print(report.summary())

with sy.local() as cluster:                     # this machine, as it is
    graph = sy.graph("sample-17")
    graph.task(call_variants, graph.task(align, "reads.fq"))        # functions with a @sy.kernel decorator
    print(cluster.submit(graph).result())
"""

from symphony import baselines, policies, telemetry, testing
from symphony.engines.engine import Engine
from symphony.engines.local import LocalEngine
from symphony.evaluation.compare import compare
from symphony.evaluation.metrics import METRICS
from symphony.evaluation.report import Report
from symphony.lowering.family import workload
from symphony.oracle.oracle import Oracle
from symphony.oracle.planning import Planned, plan
from symphony.problem.discover import discover
from symphony.problem.errors import (
    BusyError,
    CycleError,
    DataError,
    EngineError,
    InfeasibleError,
    InputError,
    JobCancelledError,
    JobError,
    KernelError,
    KernelTimeoutError,
    LimitError,
    PolicyError,
    ScopeError,
    ServiceError,
    SymphonyError,
    SymphonyWarning,
    TokenError,
    TopologyError,
    UnavailableError,
    UnknownJobError,
    VersionError,
    WorkerDiedError,
    WorkloadError,
)
from symphony.problem.topologies import topology
from symphony.problem.topology import Device, DeviceKind, Hop, Resource, Topology
from symphony.problem.workload import Edge, Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.runtime.cluster import Cluster, local, ray
from symphony.runtime.graph import graph
from symphony.runtime.kernels import kernel
from symphony.runtime.kernels import training as _training
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
from symphony.service.client import RemoteCluster, RemoteJob, connect
from symphony.simulator.contention import Bottleneck, ContentionModel, Serial
from symphony.simulator.records import GangRecord, JobRecord, RunRecord
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import CALM, Disturbances, Scenario, draw
from symphony.training.train import train

training = _training  # what users write; the package of that name is imported by those who train policies

__all__ = [
    "CALM",
    "METRICS",
    "Action",
    "Bottleneck",
    "BusyError",
    "Cluster",
    "ContentionModel",
    "CycleError",
    "DataError",
    "Device",
    "DeviceKind",
    "Disturbances",
    "Edge",
    "Engine",
    "EngineError",
    "Gang",
    "GangRecord",
    "Hop",
    "InfeasibleError",
    "InputError",
    "Job",
    "JobCancelledError",
    "JobError",
    "JobRecord",
    "Kernel",
    "KernelError",
    "KernelTimeoutError",
    "LimitError",
    "LocalEngine",
    "Observation",
    "Oracle",
    "Planned",
    "Policy",
    "PolicyError",
    "Profile",
    "RemoteCluster",
    "RemoteJob",
    "Report",
    "Resource",
    "RunRecord",
    "Scenario",
    "ScopeError",
    "Serial",
    "ServiceError",
    "SymphonyError",
    "SymphonyWarning",
    "Task",
    "TaskGraph",
    "TokenError",
    "Topology",
    "TopologyError",
    "UnavailableError",
    "UnknownJobError",
    "VersionError",
    "WorkerDiedError",
    "Workload",
    "WorkloadError",
    "baselines",
    "best_device",
    "best_feasible",
    "compare",
    "connect",
    "discover",
    "draw",
    "graph",
    "kernel",
    "local",
    "pick_gang",
    "place",
    "plan",
    "policies",
    "preempt",
    "ray",
    "reconfigure",
    "simulate",
    "telemetry",
    "testing",
    "topology",
    "train",
    "training",
    "wait",
    "workload",
]
__version__ = "0.1.0"
