"""Workloads of training jobs with measured speeds, listed or drawn: true speeds, and what policies believe at first.

For a *list*, policies know all measured speeds, as its authors' scheduler did. *Drawn* jobs have hidden true speeds;
policies start from estimates by the jobs' descriptions (`job_features.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from symphony.lowering.readers.job_lists import CheckpointCost, JobShape, gang_graph
from symphony.lowering.readers.reading import FileContents
from symphony.problem.errors import InfeasibleError, WorkloadError
from symphony.problem.speeds import Speeds
from symphony.problem.topology import Topology
from symphony.problem.workload import Job, Kernel, TaskGraph, Workload
from symphony.training_jobs.beliefs import JobDescriptions
from symphony.training_jobs.ground_truth import (
    DOUBTFUL_MODELS,
    MeasuredSpeeds,
    as_measured,
    believed_speeds,
    kernel_of,
    scenario_speeds,
)
from symphony.training_jobs.job_features import (
    EXPECTED_CROWDING,
    estimate_kept_speed,
    estimate_step_s,
    gpu_features,
    job_features,
)

# In Philly's trace the log of the length has a deviation of 2; here it is cut so that a run ends.
LENGTH_LOG_SPREAD, MIN_LENGTH_FACTOR, MAX_LENGTH_FACTOR = 1.4, 0.05, 30.0
WIDTHS = {1: 0.75, 2: 0.10, 4: 0.15}  # as in the family `training`
CHECKPOINT_COST = CheckpointCost(checkpoint_s=20.0, restore_s=40.0)  # chosen; Gavel's paper: 2% of a six-minute round


class MeasuredJobs(NamedTuple):
    """A workload, its true speeds, and the speeds that policies believe at first."""

    workload: Workload
    shapes: tuple[JobShape, ...]  # of the workload's kernels, in order
    truth: Speeds
    believed: Speeds


def sharable(topology: Topology, slots: int = 2) -> Topology:
    """The same cluster with so many slots on each device."""
    return replace(topology, kinds=tuple(replace(kind, slots=slots) for kind in topology.kinds))


def listed(
    reading: FileContents, table: MeasuredSpeeds, topology: Topology, jobs: Sequence[Job] | None = None
) -> MeasuredJobs:
    """A job list with its measured speeds, all known to policies; pairs that were not measured must not share."""
    by_name = {str(shape): shape for shape in table.shapes}
    missing = [kernel.name for kernel in reading.kernels if kernel.name not in by_name]
    if missing:
        raise WorkloadError(f"no speeds were measured for {missing[0]}", where=reading.source, hint="remove its jobs")
    shapes = tuple(by_name[kernel.name] for kernel in reading.kernels)
    truth = as_measured(table, shapes)
    kernels = tuple(kernel_of(shape, topology, _seconds(shape, truth, topology)) for shape in shapes)
    workload = Workload(reading.source, kernels, reading.graphs, tuple(reading.jobs if jobs is None else jobs))
    return MeasuredJobs(workload, shapes, truth, believed_speeds(truth, table.unfit | table.composed))


def drawn(
    table: MeasuredSpeeds,
    topology: Topology,
    seed: int,
    *,
    jobs: int = 60,
    load: float = 0.8,
    hours: float = 1.0,
    models: Sequence[Iterable[str]] = (),
    widths: bool = True,
) -> MeasuredJobs:
    """Jobs of measured shapes, with true speeds drawn for this seed.

    `load`: relative to what the cluster sustains without sharing; `hours`: median time of a job on its best GPU.
    `models`: each entry names the models of one of equally long parts of the list, so that the mix may shift; by
    default, all models but the doubtful ones. `widths`: False = jobs of one GPU only.
    """
    present = {kind for kind, count in topology.kind_counts.items() if count}
    known = {shape.model for shape in table.shapes} - DOUBTFUL_MODELS
    stretches = [sorted(set(some)) for some in models] or [sorted(known)]
    for name in {name for some in stretches for name in some} - {shape.model for shape in table.shapes}:
        raise WorkloadError(f"no speeds of {name!r}", where="models", hint=f"use {', '.join(sorted(known))}")
    rng = np.random.default_rng([seed, 4])
    able = [shape for shape in table.shapes if any((shape, gpu) in table.rates for gpu in present)]
    picked = [_pick(rng, able, stretches[n * len(stretches) // jobs], topology, widths) for n in range(jobs)]
    # All shapes that may be drawn become kernels, so that all seeds have one size and share a compiled program.
    every = {name for some in stretches for name in some}
    shapes = tuple(s for s in able if s.model in every and (s.gpus in WIDTHS if widths else s.gpus == 1))
    truth = scenario_speeds(as_measured(table, shapes), seed)
    kernels: list[Kernel] = []
    guesses: dict[tuple[str, str], tuple[float, float]] = {}
    for shape in shapes:
        fits = _seconds(shape, truth, topology)
        guess = {gpu: estimate_step_s(shape, gpu) for gpu in fits}
        guesses |= {(str(shape), gpu): (s, estimate_step_s(shape, gpu, spread=True)) for gpu, s in guess.items()}
        kernels.append(kernel_of(shape, topology, guess))
    singles = [shape for shape in shapes if shape.gpus == 1]
    beside = {
        (str(a), str(b), gpu): estimate_kept_speed(a, b, gpu)
        for a in singles
        for b in singles
        for gpu in table.gpus
        if (str(a), str(b), gpu) in truth.beside
    }
    lengths = 3600 * hours * np.clip(rng.lognormal(0.0, LENGTH_LOG_SPREAD, jobs), MIN_LENGTH_FACTOR, MAX_LENGTH_FACTOR)
    best = [min(_seconds(shape, truth, topology).values()) for shape in picked]
    graphs: list[TaskGraph] = []
    index: dict[tuple[str, float], int] = {}
    graph_of: list[int] = []
    for shape, seconds, unit in zip(picked, lengths, best, strict=True):
        units = float(max(1, round(seconds / unit)))
        if (str(shape), units) not in index:
            index[str(shape), units] = len(graphs)
            graphs.append(gang_graph(str(shape), shape.gpus, units, CHECKPOINT_COST, unit="steps"))
        graph_of.append(index[str(shape), units])
    rate = load * _capacity(picked, truth, topology) / float(np.mean(lengths * [shape.gpus for shape in picked]))
    arrivals = np.cumsum(rng.exponential(1 / rate, jobs))
    listed_jobs = tuple(Job(graph, float(at)) for graph, at in zip(graph_of, arrivals, strict=True))
    workload = Workload(f"measured:{seed}", tuple(kernels), tuple(graphs), listed_jobs)
    return MeasuredJobs(workload, shapes, truth, believed_speeds(Speeds(guesses, beside), table.unfit))


def describe_jobs(jobs: MeasuredJobs, topology: Topology) -> JobDescriptions:
    """Features and initial estimates of a workload's kernels on the device kinds of a cluster."""
    kinds = [kind.name for kind in topology.kinds]
    index = jobs.workload.kernel_index
    models = sorted({shape.model for shape in jobs.shapes})
    count = len(jobs.shapes)
    unit_s, kept = np.zeros((count, len(kinds), 2)), np.ones((count, count, len(kinds)))
    for (kernel, kind), seconds in jobs.believed.unit_s.items():
        unit_s[index[kernel], kinds.index(kind)] = seconds
    for (kernel, other, kind), share in jobs.believed.beside.items():
        kept[index[kernel], index[other], kinds.index(kind)] = share
    return JobDescriptions(
        features=np.stack([job_features(shape) for shape in jobs.shapes]),
        kinds=np.stack([gpu_features(kind) for kind in kinds]),
        family=np.asarray([models.index(shape.model) for shape in jobs.shapes]),
        unit_s=unit_s,
        kept=kept,
        crowding=EXPECTED_CROWDING,
    )


def _pick(
    rng: np.random.Generator, able: Sequence[JobShape], models: Sequence[str], t: Topology, wide: bool
) -> JobShape:
    """Draw a model, then a width, then a batch size."""
    model = models[int(rng.integers(len(models)))]
    most = max(t.kind_counts.values())
    offered = sorted({s.gpus for s in able if s.model == model and s.gpus in WIDTHS and s.gpus <= most})
    offered = offered if wide else offered[:1]
    if not offered:
        raise InfeasibleError(f"{model} runs on no GPU of {t.name!r}", where="models", hint="use gpu24")
    shares = np.asarray([WIDTHS[width] for width in offered])
    width = int(rng.choice(offered, p=shares / shares.sum()))
    some = [s for s in able if s.model == model and s.gpus == width]
    return some[int(rng.integers(len(some)))]


def _seconds(shape: JobShape, truth: Speeds, topology: Topology) -> dict[str, float]:
    """True seconds per step on each kind of GPU that is present and can run it."""
    kinds = [kind for kind, count in topology.kind_counts.items() if count]
    return {kind: truth.unit_s[str(shape), kind][0] for kind in kinds if (str(shape), kind) in truth.unit_s}


def _capacity(picked: Sequence[JobShape], truth: Speeds, topology: Topology) -> float:
    """GPUs of the cluster, each counted as the mean speed of jobs there relative to their best kind."""
    total = 0.0
    for kind, count in topology.kind_counts.items():
        kept = []
        for shape in picked:
            seconds = _seconds(shape, truth, topology)
            kept.append(min(seconds.values()) / seconds[kind] if kind in seconds else 0.0)
        total += count * float(np.mean(kept))
    return total
