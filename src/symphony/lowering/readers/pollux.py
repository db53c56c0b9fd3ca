"""Pollux: job lists, and the step times of its models on every placement of up to 64 T4 GPUs.

A job runs for as many steps as its model took at its batch size to the last epoch that was recorded. A step's time is
measured for a number of GPUs, on the fewest machines that was measured, and interpolated between batch sizes per GPU.
Where a GPU cannot hold its part of the batch, it makes several passes and exchanges gradients after the last.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from symphony.lowering.readers.job_lists import (
    WHOLE_GPU_DEMAND,
    JobShape,
    ListedJob,
    checkpoint_cost,
    gpu_cluster,
    lower,
)
from symphony.lowering.readers.reading import Collector, FileContents, Format
from symphony.lowering.readers.tables import (
    CellParser,
    CsvRow,
    CsvTable,
    beside,
    has_columns,
    number,
    read_table,
    select,
    text,
    unique,
    whole,
)
from symphony.problem import limits
from symphony.problem.build import DeviceSpec
from symphony.problem.topology import Topology
from symphony.problem.workload import Kernel, Profile

POLLUX_GPU = "t4"
_GPU_COUNT = whole(1, limits.WORKERS_PER_GANG)
_STEP_COLUMNS = {"local_batch": whole(1), "step_time_s": number(low=1e-6), "sync_time_s": number()}
_PLACEMENTS: Mapping[str, CellParser] = {
    "model": text,
    "placement": whole(1),
    "nodes": whole(1),
    "gpus": _GPU_COUNT,
    **_STEP_COLUMNS,
}
_SCALABILITY: Mapping[str, CellParser] = {"model": text, "nodes": whole(1), "gpus": _GPU_COUNT, **_STEP_COLUMNS}
_EFFICIENCY: Mapping[str, CellParser] = {
    "model": text,
    "batch_size": whole(1),
    "epoch": whole(),
    "progress": number(),
    "iteration": whole(1),
    "metric": number(-1e9, 1e9),
    "grad_sqr": number(0.0, math.inf),
    "grad_var": number(0.0, math.inf),
}
_POLLUX_JOB_COLUMNS: Mapping[str, CellParser] = {
    "load": text,
    "workload": text,
    "job": text,
    "submit_s": number(),
    "model": text,
    "num_gpus": _GPU_COUNT,
    "batch_size": whole(1),
}
_RESULTS: Mapping[str, CellParser] = {
    "policy": text,
    "load": text,
    "workload": text,
    "jobs": whole(1),
    "avg_jct_s": number(),
    "p99_jct_s": number(),
}
_HELD_OUT = "One fifth of the placements is held out, so the authors' published numbers cannot be met exactly."


class StepTime(NamedTuple):
    """The time of a step, and the part of it that is exchange."""

    step_s: float
    sync_s: float


class StepTimes:
    """Measured step times by model, GPUs, machines and batch size per GPU."""

    def __init__(self, rows: Iterable[CsvRow]) -> None:
        times: dict[tuple[str, int], dict[int, dict[int, list[StepTime]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )
        for row in rows:
            step = StepTime(row["step_time_s"], row["sync_time_s"])
            times[row["model"], row["gpus"]][row["nodes"]][row["local_batch"]].append(step)
        self._times = times

    def machines(self, model: str, gpus: int) -> int | None:
        """The fewest machines on which so many GPUs were measured."""
        return min(self._times[model, gpus], default=None) if (model, gpus) in self._times else None

    def step(self, model: str, gpus: int, batch: int) -> float | None:
        """Seconds of a step of `batch` samples on so many GPUs on the fewest machines; None if nobody measured it."""
        machines = self.machines(model, gpus)
        if machines is None:
            return None
        measured = {local: _mean(steps) for local, steps in self._times[model, gpus][machines].items()}
        local = batch / gpus
        passes = max(1, math.ceil(local / max(measured) - 1e-9))
        step_s, sync_s = _between(measured, local / passes)
        return step_s + (passes - 1) * max(0.0, step_s - sync_s)


def read_jobs(
    path: Path,
    collector: Collector,
    *,
    load: float | str = "1.0",
    workload: int | str = "1",
    measured: str | None = None,
    checkpoint_s: float | str = 0.0,
    restore_s: float | str = 30.0,
) -> FileContents:
    """One of the job lists of a file. `measured`: the folder of the step times, usually the file's own."""
    saving = checkpoint_cost(checkpoint_s, restore_s)
    folder = path.absolute().parent if measured is None else Path(measured)
    placements = _placements(beside(path, None, folder / "placements.csv", "measured"), collector)
    scalability = _scalability(beside(path, None, folder / "scalability.csv", "measured"), collector)
    efficiency = _efficiency(beside(path, None, folder / "statistical_efficiency.csv", "measured"), collector)
    steps = StepTimes([*placements.rows, *scalability.rows])
    last: dict[tuple[str, int], tuple[int, int]] = {}
    for row in efficiency.rows:
        key = (row["model"], row["batch_size"])
        last[key] = max(last.get(key, (-1, 0)), (row["epoch"], row["iteration"]))
    whole_table = read_table(path, collector, _POLLUX_JOB_COLUMNS)
    table = select(select(whole_table, "load", load), "workload", workload)
    listed, kernels, spread = [], {}, set()
    for row in table.rows:
        model, gpus, batch = row["model"], row["num_gpus"], row["batch_size"]
        shape = JobShape(model, batch, gpus)
        seconds = steps.step(model, gpus, batch)
        if seconds is None:
            collector.bad(table.where(row), f"no step of {model} on {gpus} GPUs was measured")
        elif (model, batch) not in last:
            collector.bad(table.where(row), f"no training of {model} with a batch of {batch} was recorded")
        else:
            kernels[shape] = Kernel(str(shape), {POLLUX_GPU: Profile(fixed_s=seconds, demand=WHOLE_GPU_DEMAND)})
            if (steps.machines(model, gpus) or 0) > -(-gpus // 4):
                spread.add(str(shape))
            iterations = float(last[model, batch][1])
            listed.append(ListedJob(row, table.where(row), row["submit_s"], str(shape), gpus, iterations))
    made = lower(listed, kernels.values(), collector, saving, unit="steps")
    notes = [
        f"The file holds {len({(row['load'], row['workload']) for row in whole_table.rows})} job lists; this is load "
        f"{load}, workload {workload} (load= and workload= take another).",
        "Jobs run at the batch size and on the number of GPUs that they are listed with, to the last recorded epoch; "
        "Pollux itself would change both.",
        "A step's time is that on the fewest machines measured for so many GPUs, between the nearest batch sizes of a "
        "GPU; a batch that does not fit takes several passes. The exchange is in it, so kernels exchange nothing.",
        saving.note("30 s to restart is chosen"),
        "The cluster is that of the published runs: 16 machines of 4 T4.",
        _HELD_OUT,
    ]
    if spread:
        names = ", ".join(sorted(spread))
        notes.append(f"Measured on more machines than needed, for want of a packed placement: {names}.")
    return FileContents(
        "pollux-jobs",
        str(path),
        made.kernels,
        made.graphs,
        made.jobs,
        topology=cluster(),
        tables={"jobs": made.rows, "placements": placements.rows, "scalability": scalability.rows},
        notes=(*notes, *table.notes),
        problems=tuple(collector.problems),
    )


def read_placements(path: Path, collector: Collector) -> FileContents:
    """Step times by placement: kernels of one GPU for each model and batch size, and all rows as a table."""
    table = _placements(path, collector)
    kernels = tuple(
        Kernel(
            str(JobShape(row["model"], row["local_batch"], 1)),
            {POLLUX_GPU: Profile(fixed_s=row["step_time_s"], demand=WHOLE_GPU_DEMAND)},
        )
        for row in table.rows
        if row["gpus"] == 1
    )
    notes = (
        "A placement has a digit for each machine, the GPUs used there: 31 is three on one and one on another.",
        "Kernels are those of one GPU; what more GPUs do is in the table.",
        _HELD_OUT,
    )
    return FileContents(
        "pollux-placements",
        str(path),
        kernels,
        topology=cluster(),
        tables={"placements": table.rows},
        notes=(*notes, *table.notes),
        problems=tuple(collector.problems),
    )


def cluster() -> Topology:
    """The cluster of the measurements: 16 g4dn.12xlarge, each with 4 T4 and 50 Gbit/s."""
    t4 = DeviceSpec(type="gpu", memory=16e9, device_memory=300e9, link=12e9)
    return gpu_cluster("pollux64", POLLUX_GPU, t4, machines=16, gpus=4, nic=6.25e9)


def _placements(path: Path, collector: Collector) -> CsvTable:
    table = read_table(path, collector, _PLACEMENTS)

    def good(row: CsvRow) -> bool:
        digits = [int(digit) for digit in str(row["placement"])]
        agrees = len(digits) == row["nodes"] and sum(digits) == row["gpus"]
        if not agrees:
            said = f"{row['gpus']} GPUs on {row['nodes']} machines"
            collector.bad(table.where(row), f"placement {row['placement']} is not {said}")
        return agrees

    return unique(table.keep(good), collector, lambda row: (row["model"], row["placement"], row["local_batch"]))


def _scalability(path: Path, collector: Collector) -> CsvTable:
    table = read_table(path, collector, _SCALABILITY)
    return unique(table, collector, lambda row: (row["model"], row["nodes"], row["gpus"], row["local_batch"]))


def _efficiency(path: Path, collector: Collector) -> CsvTable:
    table = read_table(path, collector, _EFFICIENCY)
    return unique(table, collector, lambda row: (row["model"], row["batch_size"], row["epoch"]))


def _results(path: Path, collector: Collector) -> CsvTable:
    table = read_table(path, collector, _RESULTS)
    return unique(table, collector, lambda row: (row["policy"], row["load"], row["workload"]))


def _mean(steps: list[StepTime]) -> StepTime:
    return StepTime(*(sum(column) / len(steps) for column in zip(*steps, strict=True)))


def _between(measured: Mapping[int, StepTime], local: float) -> StepTime:
    """The step at a batch size between measured ones; the least measured stands for smaller ones."""
    sizes = sorted(measured)
    above = min(bisect_left(sizes, local), len(sizes) - 1)
    below = max(0, above - 1)
    a, b = measured[sizes[below]], measured[sizes[above]]
    if sizes[above] <= local or local <= sizes[below]:
        return b if sizes[above] <= local else a
    share = (local - sizes[below]) / (sizes[above] - sizes[below])
    return StepTime(*(x + share * (y - x) for x, y in zip(a, b, strict=True)))


def _only_a_table(
    name: str,
    about: str,
    table: str,
    columns: Mapping[str, CellParser],
    read_rows: Callable[[Path, Collector], CsvTable],
    note: str,
) -> Format:
    """A file of measurements: a table and nothing else."""

    def read(path: Path, collector: Collector) -> FileContents:
        found = read_rows(path, collector)
        problems = tuple(collector.problems)
        return FileContents(name, str(path), tables={table: found.rows}, notes=(note, *found.notes), problems=problems)

    return Format(name, about, has_columns(*columns, without=("placement",)), read)


POLLUX_FORMATS = (
    Format(
        "pollux-jobs",
        "Pollux: lists of training jobs with their arrivals",
        has_columns(*_POLLUX_JOB_COLUMNS),
        read_jobs,
    ),
    Format(
        "pollux-placements", "Pollux: step times on T4 GPUs by placement", has_columns(*_PLACEMENTS), read_placements
    ),
    _only_a_table(
        "pollux-scalability",
        "Pollux: step times on 6 to 64 T4 GPUs",
        "scalability",
        _SCALABILITY,
        _scalability,
        "Step times by machines and GPUs, for gangs that are larger than those of the placements.",
    ),
    _only_a_table(
        "pollux-efficiency",
        "Pollux: progress and gradient noise by epoch",
        "efficiency",
        _EFFICIENCY,
        _efficiency,
        "The metric is each model's own quality score; for some of them less is better.",
    ),
    _only_a_table(
        "pollux-results",
        "Pollux: completion times that its authors published",
        "results",
        _RESULTS,
        _results,
        "The numbers are the authors' simulator's.",
    ),
)
