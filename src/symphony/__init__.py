"""Symphony: a scheduler for heterogeneous clusters with contention for shared resources.

import symphony as sy

report = sy.compare(["fifo", "heft", "eft-belief"], topology="paper", workload="variant-calling", seeds=range(20))
print(report.summary())

with sy.local() as cluster:                     # this machine
    graph = sy.graph("sample-17")
    graph.task(call_variants, graph.task(align, "reads.fq"))        # functions with a @sy.kernel decorator
    print(cluster.submit(graph).result())
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING, Any

from symphony.problem.errors import (
    BusyError,
    CycleError,
    DataError,
    EngineError,
    InfeasibleError,
    InputError,
    JobCancelledError,
    JobError,
    JobLostError,
    KernelError,
    KernelLimitError,
    KernelTimeoutError,
    LimitError,
    PolicyError,
    ScopeError,
    ServiceError,
    SymphonyError,
    SymphonyWarning,
    TokenError,
    TopologyError,
    TrustError,
    UnavailableError,
    UnknownJobError,
    VersionError,
    WorkerDiedError,
    WorkloadError,
)

if TYPE_CHECKING:
    from symphony import baselines, envs, policies, telemetry, testing
    from symphony.engines.engine import Engine
    from symphony.engines.local import LocalEngine
    from symphony.evaluation.compare import compare
    from symphony.evaluation.metrics import METRICS
    from symphony.evaluation.report import Report
    from symphony.learning.train import train
    from symphony.lowering.family import workload
    from symphony.oracle.oracle import Oracle
    from symphony.oracle.planning import Planned, plan
    from symphony.problem.discover import discover
    from symphony.problem.topologies import topology
    from symphony.problem.topology import Device, DeviceKind, Hop, Resource, Topology
    from symphony.problem.workload import Edge, Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
    from symphony.runtime.cluster import Cluster, local, ray
    from symphony.runtime.graph import Graph, graph
    from symphony.runtime.job_handle import as_completed
    from symphony.runtime.kernels import kernel
    from symphony.runtime.kernels import training as training
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

# The module of each public name. A module is imported when one of its names is first used: a client of a service needs
# no JAX, which takes seconds to import. Type checkers read the imports above.
_MODULES = {
    "engines.engine": "Engine",
    "engines.local": "LocalEngine",
    "evaluation.compare": "compare",
    "evaluation.metrics": "METRICS",
    "evaluation.report": "Report",
    "learning.train": "train",
    "lowering.family": "workload",
    "oracle.oracle": "Oracle",
    "oracle.planning": "Planned plan",
    "problem.discover": "discover",
    "problem.topologies": "topology",
    "problem.topology": "Device DeviceKind Hop Resource Topology",
    "problem.workload": "Edge Gang Job Kernel Profile Task TaskGraph Workload",
    "runtime.cluster": "Cluster local ray",
    "runtime.graph": "Graph graph",
    "runtime.job_handle": "as_completed",
    "runtime.kernels": "kernel training",
    "scheduling.policy": "Action Observation Policy best_device best_feasible pick_gang place preempt reconfigure wait",
    "service.client": "RemoteCluster RemoteJob connect",
    "simulator.contention": "Bottleneck ContentionModel Serial",
    "simulator.records": "GangRecord JobRecord RunRecord",
    "simulator.run": "simulate",
    "simulator.scenarios": "CALM Disturbances Scenario draw",
}
_NAMES = {name: module for module, names in _MODULES.items() for name in names.split()}
_PACKAGES = [
    "baselines",
    "engines",
    "envs",
    "evaluation",
    "learning",
    "lowering",
    "oracle",
    "policies",
    "problem",
    "runtime",
    "scheduling",
    "service",
    "simulator",
    "telemetry",
    "testing",
    "training_jobs",
]

# The modules of JAX import one another in cycles: threads that import it at once see it half-initialised. A thread that
# holds this lock waits for other imports, so no module of Symphony may use a name of this module while it is imported.
_LOADING = RLock()


@contextmanager
def _loading() -> Iterator[None]:
    """Hold the lock while a module is imported, without garbage collections.

    These would look at the hundred thousand objects of JAX again and again. None of them is garbage.
    """
    with _LOADING:
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()


if not TYPE_CHECKING:  # a checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _NAMES and name not in _PACKAGES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with _loading():
            if name in _PACKAGES:
                return import_module(f"{__name__}.{name}")
            value = globals()[name] = getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *_PACKAGES})


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
    "Graph",
    "Hop",
    "InfeasibleError",
    "InputError",
    "Job",
    "JobCancelledError",
    "JobError",
    "JobLostError",
    "JobRecord",
    "Kernel",
    "KernelError",
    "KernelLimitError",
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
    "TrustError",
    "UnavailableError",
    "UnknownJobError",
    "VersionError",
    "WorkerDiedError",
    "Workload",
    "WorkloadError",
    "as_completed",
    "baselines",
    "best_device",
    "best_feasible",
    "compare",
    "connect",
    "discover",
    "draw",
    "envs",
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
