"""What the readers of job lists share: gangs of identical workers that arrive, and clusters of identical machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from symphony.lowering.readers.reading import Collector, FileContents
from symphony.lowering.readers.tables import CsvRow, number, option_value
from symphony.problem import limits
from symphony.problem.build import ClusterSpec, DeviceSpec, MachineSpec, SocketSpec, build
from symphony.problem.topology import Topology
from symphony.problem.workload import Gang, Job, Kernel, Profile, Task, TaskGraph

WHOLE_GPU_DEMAND: Mapping[str, float] = {"compute": 1.0}  # demand of a worker on its GPU where none was measured
# Arrivals count from the first job if nothing arrives before it for longer than this share of the list's time and this
# many mean gaps: a part of a longer list, or times since 1970. Otherwise the load of the list would be far too low.
MAX_LEAD_SHARE, MAX_LEAD_GAPS = 0.1, 10.0


class JobShape(NamedTuple):
    """What decides how long a step takes on a kind of GPU."""

    model: str
    batch: int | None  # None: the model has one batch size only
    gpus: int

    def __str__(self) -> str:
        batch = "" if self.batch is None else f"/{self.batch}"
        return f"{self.model}{batch}" + (f"/x{self.gpus}" if self.gpus > 1 else "")


# Device kind or type -> steps per second of the whole gang; 0: the job does not run there.
StepRates = Mapping[JobShape, Mapping[str, float]]


class ListedJob(NamedTuple):
    """A row of a job list."""

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
        """The sentence for `FileContents.notes`; `origin`: where the default numbers come from."""
        return (
            f"Jobs can be preempted; writing a checkpoint takes {self.checkpoint_s:g} s and reading it back "
            f"{self.restore_s:g} s ({origin}; checkpoint_s= and restore_s= change it)."
        )


def checkpoint_cost(checkpoint_s: object, restore_s: object) -> CheckpointCost:
    """From the values of the options of these names."""
    return CheckpointCost(
        option_value("checkpoint_s", checkpoint_s, number()), option_value("restore_s", restore_s, number())
    )


def rate_kernel(shape: JobShape, rates: Mapping[str, float]) -> Kernel | None:
    """A kernel whose unit of work is a step of the whole gang; None if all rates are 0.

    The measured step includes the exchange between the workers, so the kernel has no exchange of its own.
    """
    profiles = {
        device: Profile(fixed_s=1.0 / steps, demand=WHOLE_GPU_DEMAND) for device, steps in rates.items() if steps
    }
    return Kernel(str(shape), profiles) if profiles else None


def lower(
    listed: Iterable[ListedJob],
    kernels: Iterable[Kernel],
    collector: Collector,
    preemption: CheckpointCost | None,
    *,
    unit: str,
) -> FileContents:
    """Jobs sorted by arrival, one graph for all jobs of the same kernel, workers and units, and the kernels in use.

    The table `jobs` has the rows of the jobs, in the same order. `preemption` None: jobs cannot be preempted.
    """
    by_name = {kernel.name: kernel for kernel in kernels}
    slowest_s = {
        name: max(profile.seconds(1.0) for profile in kernel.implementations.values())
        for name, kernel in by_name.items()
    }
    graphs: dict[tuple[str, int, float], TaskGraph] = {}
    index: dict[tuple[str, int, float], int] = {}
    jobs: list[tuple[Job, CsvRow]] = []
    listed, notes = _from_the_first(list(listed))
    for job in listed:
        seconds = slowest_s[job.kernel] * job.units
        if seconds > limits.SECONDS:
            collector.bad(job.where, f"it takes {seconds:.3g} s, more than Symphony's bound of {limits.SECONDS:.3g} s")
            continue
        if job.arrival_s > limits.SECONDS:
            bound = f"more than Symphony's bound of {limits.SECONDS:.3g} s"
            collector.bad(job.where, f"it arrives {job.arrival_s:.3g} s after the first job, {bound}")
            continue
        key = (job.kernel, job.workers, job.units)
        if key not in graphs:
            index[key] = len(graphs)
            graphs[key] = gang_graph(*key, preemption, unit=unit)
        jobs.append((Job(index[key], job.arrival_s), job.row))
    jobs.sort(key=lambda pair: pair[0].arrival_s)
    used = {kernel for kernel, _, _ in graphs}
    return FileContents(
        kernels=tuple(kernel for name, kernel in by_name.items() if name in used),
        graphs=tuple(graphs.values()),
        jobs=tuple(job for job, _ in jobs),
        tables={"jobs": tuple(row for _, row in jobs)},
        notes=notes,
    )


def _from_the_first(listed: list[ListedJob]) -> tuple[list[ListedJob], tuple[str, ...]]:
    """The jobs, with arrivals from the first one if the list begins long before it; and a note on that."""
    first = min((job.arrival_s for job in listed), default=0.0)
    last = max((job.arrival_s for job in listed), default=0.0)
    gap = (last - first) / max(1, len(listed) - 1)
    if first <= max(MAX_LEAD_SHARE * last, MAX_LEAD_GAPS * gap):
        return listed, ()
    note = f"Arrivals count from the first job, which arrives at {first:.10g} s of the file's clock."
    return [job._replace(arrival_s=job.arrival_s - first) for job in listed], (note,)


def gang_graph(kernel: str, workers: int, units: float, preemption: CheckpointCost | None, *, unit: str) -> TaskGraph:
    """A graph of one gang of identical workers."""
    name = f"{kernel}, {workers} x {units:.10g} {unit}"
    tasks = tuple(Task(f"w{worker}", kernel, units=units) for worker in range(workers))
    members = tuple(task.name for task in tasks)
    gang = Gang("job", members, True, *preemption) if preemption else Gang("job", members)
    return TaskGraph(name, tasks, gangs=(gang,))


def gpu_cluster(name: str, kind: str, spec: DeviceSpec, *, machines: int, gpus: int, nic: float) -> Topology:
    """Identical machines with one kind of GPU."""
    machine = MachineSpec(name="m", count=machines, nic=nic, socket=(SocketSpec(devices=(kind,) * gpus),))
    return build(ClusterSpec(name=name, device={kind: spec}, machine=(machine,)))
