"""What the readers of job lists share: gangs of like workers that arrive, and the plain clusters that they ran on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from symphony.lowering.readers.reading import Collector
from symphony.lowering.readers.tables import CsvRow, number_option
from symphony.problem import limits
from symphony.problem.build import ClusterSpec, DeviceSpec, MachineSpec, SocketSpec, build
from symphony.problem.topology import Topology
from symphony.problem.workload import Gang, Job, Kernel, Profile, Task, TaskGraph

WHOLE_GPU_DEMAND: Mapping[str, float] = {"compute": 1.0}  # what a worker demands of a GPU where nobody has measured it


class JobShape(NamedTuple):
    """What decides how long a step takes on a kind of GPU."""

    model: str
    batch: int | None  # None: the model has one batch size only
    gpus: int

    def __str__(self) -> str:
        batch = "" if self.batch is None else f"/{self.batch}"
        return f"{self.model}{batch}" + (f"/x{self.gpus}" if self.gpus > 1 else "")


StepRates = Mapping[
    JobShape, Mapping[str, float]
]  # device kind or type -> steps per second of the whole gang; 0: it cannot


class ListedJob(NamedTuple):
    """A job of a list."""

    row: CsvRow
    where: str
    arrival_s: float
    kernel: str
    workers: int
    units: float


class CheckpointCost(NamedTuple):
    """What preempting a gang costs."""

    checkpoint_s: float
    restore_s: float

    def note(self, origin: str) -> str:
        """What a reading says about it; `origin`: where the usual numbers come from."""
        return (
            f"Jobs can be preempted; writing a checkpoint takes {self.checkpoint_s:g} s and reading it back "
            f"{self.restore_s:g} s ({origin}; checkpoint_s= and restore_s= change it)."
        )


class LoweredJobs(NamedTuple):
    """A job list as a reading holds it. `rows` are those of `jobs`, in the same order."""

    kernels: tuple[Kernel, ...]
    graphs: tuple[TaskGraph, ...]
    jobs: tuple[Job, ...]
    rows: tuple[CsvRow, ...]


def checkpoint_cost(checkpoint_s: object, restore_s: object) -> CheckpointCost:
    """What the options of that name say."""
    return CheckpointCost(number_option("checkpoint_s", checkpoint_s), number_option("restore_s", restore_s))


def rate_kernel(shape: JobShape, rates: Mapping[str, float]) -> Kernel | None:
    """A kernel whose unit of work is a step of the whole gang; None where it runs nowhere.

    The measured step holds the exchange between the workers, so the kernel has none of its own.
    """
    profiles = {
        device: Profile(fixed_s=1.0 / steps, demand=WHOLE_GPU_DEMAND) for device, steps in rates.items() if steps
    }
    return Kernel(str(shape), profiles) if profiles else None


def lower(
    listed: Iterable[ListedJob],
    kernels: Iterable[Kernel],
    collector: Collector,
    saving: CheckpointCost | None,
    *,
    unit: str,
) -> LoweredJobs:
    """One graph for all jobs that are alike, and the jobs by arrival. `saving` None: they cannot be preempted."""
    by_name = {kernel.name: kernel for kernel in kernels}
    slowest = {
        name: max(profile.seconds(1.0) for profile in kernel.implementations.values())
        for name, kernel in by_name.items()
    }
    graphs: dict[tuple[str, int, float], TaskGraph] = {}
    index: dict[tuple[str, int, float], int] = {}
    made: list[tuple[Job, CsvRow]] = []
    for job in listed:
        seconds = slowest[job.kernel] * job.units
        if seconds > limits.SECONDS:
            collector.bad(job.where, f"it takes {seconds:.3g} s, more than Symphony's bound of {limits.SECONDS:.3g} s")
            continue
        key = (job.kernel, job.workers, job.units)
        if key not in graphs:
            index[key] = len(graphs)
            graphs[key] = gang_graph(*key, saving, unit=unit)
        made.append((Job(index[key], job.arrival_s), job.row))
    made.sort(key=lambda pair: pair[0].arrival_s)
    used = {kernel for kernel, _, _ in graphs}
    return LoweredJobs(
        tuple(kernel for name, kernel in by_name.items() if name in used),
        tuple(graphs.values()),
        tuple(job for job, _ in made),
        tuple(row for _, row in made),
    )


def gang_graph(kernel: str, workers: int, units: float, saving: CheckpointCost | None, *, unit: str) -> TaskGraph:
    """A graph of one gang of like workers."""
    name = f"{kernel}, {workers} x {units:.10g} {unit}"
    tasks = tuple(Task(f"w{worker}", kernel, units=units) for worker in range(workers))
    members = tuple(task.name for task in tasks)
    gang = Gang("job", members, True, *saving) if saving else Gang("job", members)
    return TaskGraph(name, tasks, gangs=(gang,))


def gpu_cluster(name: str, kind: str, spec: DeviceSpec, *, machines: int, gpus: int, nic: float) -> Topology:
    """Like machines with one kind of GPU."""
    machine = MachineSpec(name="m", count=machines, nic=nic, socket=(SocketSpec(devices=(kind,) * gpus),))
    return build(ClusterSpec(name=name, device={kind: spec}, machine=(machine,)))
