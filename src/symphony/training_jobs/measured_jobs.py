"""Workloads of training jobs whose speeds were measured: listed or drawn, with the truth and what is told of it.

Of a *list*, all that was measured is told: its speeds are those that its authors' scheduler had. *Drawn* jobs have a
hidden truth of their own, and what is told at first is a guess from their descriptions (`training_features`).
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
from symphony.training_jobs.ground_truth import (
    DOUBTFUL_MODELS,
    MeasuredSpeeds,
    as_measured,
    believed_speeds,
    kernel_of,
    scenario_speeds,
)
from symphony.training_jobs.job_features import estimate_kept_speed, estimate_step_s

# Philly's jobs: the logarithm's spread is 2, cut so that a run ends. The shares of widths are those of `training`.
LENGTH_LOG_SPREAD, MIN_LENGTH_FACTOR, MAX_LENGTH_FACTOR = 1.4, 0.05, 30.0
WIDTHS = {1: 0.75, 2: 0.10, 4: 0.15}
CHECKPOINT_COST = CheckpointCost(
    checkpoint_s=20.0, restore_s=40.0
)  # chosen; Gavel's paper has 2% of a round of six minutes


class MeasuredJobs(NamedTuple):
    """Jobs, the shapes of their kernels, how fast those really are, and what policies are told of that at first."""

    workload: Workload
    shapes: tuple[JobShape, ...]  # of the workload's kernels, in order
    truth: Speeds
    believed: Speeds


def sharable(topology: Topology, slots: int = 2) -> Topology:
    """The same cluster, where so many jobs may share a device."""
    return replace(topology, kinds=tuple(replace(kind, slots=slots) for kind in topology.kinds))


def listed(
    reading: FileContents, table: MeasuredSpeeds, topology: Topology, jobs: Sequence[Job] | None = None
) -> MeasuredJobs:
    """A job list with its measured speeds, all of them told; pairs that were not measured must not share."""
    by_name = {str(shape): shape for shape in table.shapes}
    missing = [kernel.name for kernel in reading.kernels if kernel.name not in by_name]
    if missing:
        raise WorkloadError(f"{missing[0]} was not measured", where=reading.source, hint="leave its jobs out")
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
    """Jobs of measured shapes with a truth of their own.

    `load`: of what the cluster sustains if every job is alone on the GPU that it gets; `hours`: median time of a job on
    the GPU that suits it best. `models`: those to draw from, in as many equal stretches of the list as there are
    entries, so that what comes may change on the way; all that are not doubtful if there is none.
    """
    present = {kind for kind, count in topology.kind_counts.items() if count}
    known = {shape.model for shape in table.shapes} - DOUBTFUL_MODELS
    stretches = [sorted(set(some)) for some in models] or [sorted(known)]
    for name in {name for some in stretches for name in some} - {shape.model for shape in table.shapes}:
        raise WorkloadError(f"no {name!r} was measured", where="models", hint=f"use {', '.join(sorted(known))}")
    rng = np.random.default_rng([seed, 4])
    able = [shape for shape in table.shapes if any((shape, gpu) in table.rates for gpu in present)]
    picked = [_pick(rng, able, stretches[n * len(stretches) // jobs], topology, widths) for n in range(jobs)]
    # Every job that might have been drawn is a kernel, so that all seeds are of one size and share a program.
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
    for shape, seconds, unit in zip(picked, lengths, best, strict=True):
        units = float(max(1, round(seconds / unit)))
        if (str(shape), units) not in index:
            index[str(shape), units] = len(graphs)
            graphs.append(gang_graph(str(shape), shape.gpus, units, CHECKPOINT_COST, unit="steps"))
    rate = load * _capacity(picked, truth, topology) / float(np.mean(lengths * [shape.gpus for shape in picked]))
    arrivals = np.cumsum(rng.exponential(1 / rate, jobs))
    listed_jobs = tuple(
        Job(index[str(shape), float(max(1, round(seconds / unit)))], float(at))
        for shape, seconds, unit, at in zip(picked, lengths, best, arrivals, strict=True)
    )
    workload = Workload(f"measured:{seed}", tuple(kernels), tuple(graphs), listed_jobs)
    return MeasuredJobs(workload, shapes, truth, believed_speeds(Speeds(guesses, beside), table.unfit))


def _pick(
    rng: np.random.Generator, able: Sequence[JobShape], models: Sequence[str], t: Topology, wide: bool
) -> JobShape:
    """A model, then a width, then a batch size."""
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
    """Seconds of a step on each kind of GPU that is there and that it fits."""
    kinds = [kind for kind, count in topology.kind_counts.items() if count]
    return {kind: truth.unit_s[str(shape), kind][0] for kind in kinds if (str(shape), kind) in truth.unit_s}


def _capacity(picked: Sequence[JobShape], truth: Speeds, topology: Topology) -> float:
    """GPUs of the cluster, each counted as what a job keeps there of its speed on the kind that suits it best."""
    total = 0.0
    for kind, count in topology.kind_counts.items():
        kept = []
        for shape in picked:
            seconds = _seconds(shape, truth, topology)
            kept.append(min(seconds.values()) / seconds[kind] if kind in seconds else 0.0)
        total += count * float(np.mean(kept))
    return total
