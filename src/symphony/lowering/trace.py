"""Workloads from the contents of a file: a file is a workload family whose draws are parts of it.

Jobs with arrivals are replayed: a window of consecutive jobs. Graphs without arrivals are picked at random, and arrive
as those of a generated family do. The same (contents, topology, seed, options) always give the same workload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from symphony.lowering.arrivals import PROCESSES, Times
from symphony.lowering.capacity import jobs_per_second
from symphony.lowering.random_graphs import random_kernels
from symphony.lowering.readers.reading import FileContents, SkippedRecord
from symphony.problem.errors import InfeasibleError, WorkloadError
from symphony.problem.runnable import check_graphs
from symphony.problem.topology import Device, DeviceKind, Topology
from symphony.problem.workload import Job, Kernel, Profile, TaskGraph, Workload

DEFAULT_JOBS = 100  # jobs that arrive, of a file without arrivals
DEFAULT_LOAD = 0.7
DEFAULT_ARRIVALS = "poisson"
DEFAULT_HETEROGENEITY = 1.0

_CPU_TYPE = "cpu"
_ASSUMED_CORES = 16  # of the CPU that a file's times are from, where the topology has none


@dataclass(frozen=True)
class DrawnWorkload:
    """A workload, with remarks for the user."""

    workload: Workload
    notes: tuple[str, ...] = ()  # what was assumed or chosen, in whole sentences
    modelled: str = ""  # which times were modelled, not measured; one of the notes
    problems: tuple[SkippedRecord, ...] = ()


def streams(seed: int) -> tuple[np.random.Generator, np.random.Generator, np.random.Generator]:
    """Random generators for graphs, picks and times. They are apart so that another load changes the times only."""
    graphs, picks, times = (np.random.default_rng([seed, 0, stream]) for stream in range(3))
    return graphs, picks, times


def arrivals_of(
    topology: Topology,
    kernels: Sequence[Kernel],
    graphs: Sequence[TaskGraph],
    *,
    jobs: int,
    load: float,
    arrivals: str,
    priorities: int,
    seed: int,
) -> tuple[Job, ...]:
    """Arrivals of graphs, at a rate that is `load` times the largest rate that the cluster can sustain."""
    _, pick_rng, time_rng = streams(seed)
    # A batch has no rate, so the capacity is not needed.
    full = 1.0 if arrivals == "batch" else jobs_per_second(topology, graphs, [1.0] * len(graphs), kernels)
    times = PROCESSES[arrivals](load * full, jobs, time_rng)
    # Every graph arrives equally often, in random order: with a few huge ones among many small, the load of a
    # short workload would vary much between independent draws.
    rounds = np.tile(np.arange(len(graphs)), (-(-jobs // len(graphs)), 1))
    picks = pick_rng.permuted(rounds, axis=1).ravel()[:jobs]
    levels = pick_rng.integers(priorities, size=jobs)
    homes = pick_rng.integers(len(topology.machines), size=jobs)
    columns = zip(picks.tolist(), times.tolist(), levels.tolist(), homes.tolist(), strict=True)
    return tuple(Job(*row) for row in columns)


def sample(contents: FileContents, jobs: int, seed: int, *, first: int | None = None) -> FileContents:
    """A part of a file: a window of `jobs` consecutive jobs or, if it has no jobs, that many of its graphs.

    `first`: number of the first job or graph; None: drawn with the seed. The first job of a window arrives at 0; if the
    window holds all jobs, arrivals stay as they are.
    """
    _check_has_graphs(contents)
    rng = np.random.default_rng([seed, 0, 3])
    if not contents.jobs:
        count = len(contents.graphs)
        chosen = (
            rng.permutation(count) if first is None else np.arange(_checked(contents, "first", first, count), count)
        )
        return _compact(contents, [int(index) for index in chosen[:jobs]], ())
    count = len(contents.jobs)
    if first is not None:
        _checked(contents, "first", first, count)
    _checked(contents, "jobs", jobs - 1, count - (first or 0))
    begin = int(rng.integers(count - jobs + 1)) if first is None else first
    if jobs == count:
        return contents
    window = contents.jobs[begin : begin + jobs]
    used = list(dict.fromkeys(job.graph for job in window))
    part = _compact(contents, used, [replace(job, arrival_s=job.arrival_s - window[0].arrival_s) for job in window])
    note = f"These are {jobs:,} of {count:,} jobs, from number {begin:,} on (the first is number 0)."
    return replace(part, notes=(*part.notes, note))


def draw(
    contents: FileContents,
    topology: Topology,
    seed: int,
    *,
    name: str = "",
    jobs: int | None = None,
    first: int | None = None,
    load: float | None = None,
    arrivals: str | None = None,
    priorities: int | None = None,
    time_scale: float | None = None,
    heterogeneity: float | None = None,
    keep_good: bool = False,
) -> DrawnWorkload:
    """A workload for a topology, from a part of a file.

    `jobs`, `first`: see `sample`. `time_scale` multiplies the gaps between arrivals; `load` scales them to a share of
    the largest rate that the cluster can sustain; `arrivals` and `priorities` are drawn anew if given. `heterogeneity`:
    of modelled times, if the file has times of CPUs only. `keep_good`: leave out jobs that the topology cannot run.
    """
    _check_has_graphs(contents)
    contents, modelled = _add_modelled_times(contents, topology, streams(seed)[0], heterogeneity)
    problems = contents.problems
    if keep_good:
        contents, not_runnable = _runnable_part(contents, topology)
        problems += not_runnable
    if jobs is None:
        jobs = len(contents.jobs) - (first or 0) if contents.jobs else DEFAULT_JOBS
    part = sample(contents, jobs, seed, first=first)
    _check_runnable(part, topology)
    if part.jobs:
        scheduled = _replay(part, topology, seed, load, arrivals, priorities, time_scale)
    elif time_scale is not None:
        raise WorkloadError(
            "time_scale has no recorded arrivals to scale", where=contents.source, hint="write load=0.7"
        )
    else:
        scheduled = arrivals_of(
            topology,
            part.kernels,
            part.graphs,
            jobs=jobs,
            load=DEFAULT_LOAD if load is None else load,
            arrivals=arrivals or DEFAULT_ARRIVALS,
            priorities=priorities or 1,
            seed=seed,
        )
    workload = Workload(name or contents.source, part.kernels, part.graphs, scheduled)
    notes = (*part.notes, modelled) if modelled else part.notes
    return DrawnWorkload(workload, notes, modelled, problems)


def _replay(
    part: FileContents,
    topology: Topology,
    seed: int,
    load: float | None,
    arrivals: str | None,
    priorities: int | None,
    time_scale: float | None,
) -> tuple[Job, ...]:
    """The jobs of a file at their recorded times, or as the options say."""
    _, pick_rng, time_rng = streams(seed)
    count = len(part.jobs)
    times = _times(part, topology, time_rng, load, arrivals, time_scale)
    levels = [job.priority for job in part.jobs]
    if priorities is not None:
        levels = pick_rng.integers(priorities, size=count).tolist()
    homes = [job.home for job in part.jobs]
    if not part.homes:
        homes = pick_rng.integers(len(topology.machines), size=count).tolist()
    columns = zip(part.jobs, times.tolist(), levels, homes, strict=True)
    return tuple(Job(job.graph, time, level, home) for job, time, level, home in columns)


def _times(
    part: FileContents,
    topology: Topology,
    rng: np.random.Generator,
    load: float | None,
    arrivals: str | None,
    time_scale: float | None,
) -> Times:
    if load is not None and time_scale is not None:
        raise WorkloadError("load and time_scale both set the gaps", where=part.source, hint="leave one of them out")
    count, last = len(part.jobs), part.jobs[-1].arrival_s
    scale = 1.0 if time_scale is None else time_scale
    times = np.array([job.arrival_s for job in part.jobs])
    if load is None and arrivals is None:
        return times * scale
    if arrivals == "batch":
        return PROCESSES[arrivals](1.0, count, rng)
    if last == 0 and (load is None or arrivals is None):
        raise WorkloadError(
            "all its jobs arrive at once, so there are no gaps to scale",
            where=part.source,
            hint=f"draw them: arrivals={arrivals or DEFAULT_ARRIVALS}&load={load or DEFAULT_LOAD}",
        )
    if load is None:
        rate = count / (last * scale)
    else:
        often = Counter(job.graph for job in part.jobs)
        weights = [float(often[graph]) for graph in range(len(part.graphs))]
        rate = load * jobs_per_second(topology, part.graphs, weights, part.kernels)
    return times * (count / last / rate) if arrivals is None else PROCESSES[arrivals](rate, count, rng)


def _add_modelled_times(
    contents: FileContents, topology: Topology, rng: np.random.Generator, heterogeneity: float | None
) -> tuple[FileContents, str]:
    """The contents with times for every device kind, if the file has times of CPUs only; and a note on it, or ""."""
    measured = sorted({name for kernel in contents.kernels for name in kernel.implementations})
    if measured != [_CPU_TYPE]:
        if heterogeneity is not None:
            raise WorkloadError(
                f"its kernels have times for {', '.join(measured)}, so no time is modelled",
                where=contents.source,
                hint="leave heterogeneity out",
            )
        return contents, ""
    present = [topology.kind_of[kind] for kind, count in topology.kind_counts.items() if count]
    others = [kind for kind in present if kind.type != _CPU_TYPE]
    if not others:
        return contents, ""
    cores = next((kind.slots for kind in present if kind.type == _CPU_TYPE), _ASSUMED_CORES)
    spread = DEFAULT_HETEROGENEITY if heterogeneity is None else heterogeneity
    factors = _factors(rng, len(contents.kernels), others, cores, spread)
    kernels = []
    for kernel, factor in zip(contents.kernels, factors, strict=True):
        base = kernel.implementations[_CPU_TYPE]
        times = {kind: Profile(base.fixed_s * f, base.per_work_s * f) for kind, f in factor.items()}
        kernels.append(replace(kernel, implementations={**kernel.implementations, **times}))
    note = (
        f"Times on {', '.join(kind.name for kind in others)} are modelled, because the file has times of CPUs only: "
        f"each kernel's time on a CPU times a random factor (heterogeneity={spread:g}), without demand on shared "
        "resources."
    )
    return replace(contents, kernels=tuple(kernels)), note


def _factors(
    rng: np.random.Generator, count: int, kinds: Sequence[DeviceKind], cores: int, heterogeneity: float
) -> list[dict[str, float]]:
    """For each of `count` kernels: its time on each device kind over that on one core, drawn as for random kernels."""
    # The cluster has one device of each kind, and the CPU. All have one type, so that no kernel leaves a kind out.
    core = DeviceKind("the CPU that was measured", "any", cores)
    bare = [core, *(DeviceKind(kind.name, "any", kind.slots) for kind in kinds)]
    devices = tuple(Device(f"d{i}", kind.name, "m", "r", "s", "w", ()) for i, kind in enumerate(bare))
    drawn = random_kernels(rng, Topology("bare", tuple(bare), (), devices), count, heterogeneity)
    times = [{kind: profile.per_work_s for kind, profile in kernel.implementations.items()} for kernel in drawn]
    return [{kind.name: time[kind.name] / time[core.name] for kind in kinds} for time in times]


def _runnable_part(contents: FileContents, topology: Topology) -> tuple[FileContents, tuple[SkippedRecord, ...]]:
    """The contents without the jobs (or graphs) that the topology cannot run, and a problem for each of those."""
    why = _reasons(contents, topology)
    if not why:
        return contents, ()
    graphs = [index for index in range(len(contents.graphs)) if index not in why]
    if not graphs:
        raise InfeasibleError(
            f"{topology.name!r} can run none of its graphs: {next(iter(why.values()))}",
            where=contents.source,
            hint="use another topology",
        )
    what, users = (
        ("job", [job.graph for job in contents.jobs]) if contents.jobs else ("graph", range(len(contents.graphs)))
    )
    problems = (
        SkippedRecord(f"{contents.source}: {what} {n}", why[graph]) for n, graph in enumerate(users) if graph in why
    )
    kept = (job for job in contents.jobs if job.graph not in why)
    return _compact(contents, graphs, kept), tuple(problems)


def _reasons(contents: FileContents, topology: Topology) -> Mapping[int, str]:
    """Index of each graph that the topology cannot run -> the reason."""
    why = {}
    kernels = {kernel.name: kernel for kernel in contents.kernels}
    for index, graph in enumerate(contents.graphs):
        used = dict.fromkeys(task.kernel for task in graph.tasks)
        try:
            check_graphs(topology, [kernels[name] for name in used], [graph])
        except InfeasibleError as error:
            why[index] = error.message
    return why


def _check_runnable(part: FileContents, topology: Topology) -> None:
    try:
        check_graphs(topology, part.kernels, part.graphs)
    except InfeasibleError as error:
        hint = f"{error.hint}; or leave such jobs out with keep_good=1"
        if part.topology is not None:
            hint = f"use the cluster that the file describes (symphony workload convert … --topology-out); or {hint}"
        raise InfeasibleError(error.message, where=f"{part.source}: {error.where}", hint=hint) from None


def _check_has_graphs(contents: FileContents) -> None:
    if not contents.graphs:
        holds = [f"{len(contents.kernels)} kernels"] if contents.kernels else []
        holds += [f"the table {name!r}" for name in contents.tables]
        raise WorkloadError(
            f"it has no task graphs and no jobs, only {', '.join(holds) or 'an empty list'}",
            where=contents.source,
            hint="name a file with graphs or jobs; `symphony workload show` lists the contents of a file",
        )


def _checked(contents: FileContents, option: str, number: int, count: int) -> int:
    """`number`, if it is below `count`."""
    if not 0 <= number < count:
        what = "jobs" if contents.jobs else "graphs"
        least = 1 if option == "jobs" else 0
        raise WorkloadError(
            f"{option} is {number + least:,}, and there are {count:,} {what} to choose from",
            where=contents.source,
            hint=f"write {option}={least} to {option}={count - 1 + least}",
        )
    return number


def _compact(contents: FileContents, graphs: Sequence[int], jobs: Iterable[Job]) -> FileContents:
    """The contents with these graphs only, and the kernels that they use; jobs have the new indices of their graphs."""
    new_index = {graph: index for index, graph in enumerate(graphs)}
    chosen = tuple(contents.graphs[graph] for graph in graphs)
    used = {task.kernel for graph in chosen for task in graph.tasks}
    return replace(
        contents,
        graphs=chosen,
        kernels=tuple(kernel for kernel in contents.kernels if kernel.name in used),
        jobs=tuple(replace(job, graph=new_index[job.graph]) for job in jobs),
    )
