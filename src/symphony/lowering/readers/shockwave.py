"""Shockwave's job lists, and what its authors measured on 32 GPUs.

The card of the testbed is not named in the files, so profiles are for any device of type `gpu`.
"""

from __future__ import annotations

from pathlib import Path

from symphony.lowering.readers.gavel import shape_of
from symphony.lowering.readers.job_lists import JobShape, ListedJob, checkpoint_cost, gpu_cluster, lower, rate_kernel
from symphony.lowering.readers.reading import Collector, FileContents, Format
from symphony.lowering.readers.tables import (
    CellParser,
    CsvTable,
    beside,
    blank_or,
    has_columns,
    number,
    one_of,
    rate,
    read_table,
    text,
    unique,
    whole,
)
from symphony.problem import limits
from symphony.problem.build import DeviceSpec
from symphony.problem.workload import Kernel

_GPU_COUNT = whole(1, limits.WORKERS_PER_GANG)
_SHOCKWAVE_RATE_COLUMNS = {"model": text, "batch_size": blank_or(whole(1)), "num_gpus": _GPU_COUNT, "steps_per_s": rate}
_SHOCKWAVE_JOB_COLUMNS = {
    "job": text,
    "model": text,
    "batch_size": blank_or(whole(1)),
    "total_steps": whole(1),
    "num_gpus": _GPU_COUNT,
    "adaptation": one_of("accordion", "gns", "static"),
    "priority_weight": number(),
    "duration_s": number(),
    "arrival_s": number(),
}
_MODE = one_of("measured", "simulated")
_RUNS = {
    "policy": text,
    "mode": _MODE,
    "job_position": whole(),
    "jct_s": number(),
    "finish_time_fairness": number(),
}
_SUMMARY = {
    "policy": text,
    "mode": _MODE,
    "makespan_s": number(),
    "avg_jct_s": number(),
    "cluster_utilization": number(0, 1),
}
_TIMELINE = {
    "policy": text,
    "job_position": whole(),
    "round": whole(),
    "steps_per_s": rate,
    "batch_size": blank_or(whole(1)),
}
_UNKNOWN_GPU_NOTE = "The files do not say which GPU the testbed has, so profiles are for any device of type gpu."
_SIMULATOR_ERROR_NOTE = (
    "The authors' own simulator errs by -8% to +9% in mean completion time and -4% to -9% in makespan: differences "
    "below about 10% mean little."
)


def read_rates(path: Path, collector: Collector) -> FileContents:
    """Rates measured on the testbed: kernels for any GPU."""
    table = _rate_table(path, collector)
    kernels = [rate_kernel(shape_of(row), {"gpu": row["steps_per_s"]}) for row in table.rows]
    unfit = [str(shape_of(row)) for row in table.rows if not row["steps_per_s"]]
    none = f"A rate of 0 means that it was not measured or does not fit; there is no kernel for {', '.join(unfit)}."
    return FileContents(
        "shockwave-rates",
        str(path),
        kernels=tuple(kernel for kernel in kernels if kernel),
        tables={"rates": table.rows},
        notes=(_UNKNOWN_GPU_NOTE, *([none] if unfit else []), *table.notes),
        problems=tuple(collector.problems),
    )


def read_jobs(
    path: Path,
    collector: Collector,
    *,
    rates: str | None = None,
    checkpoint_s: float | str = 0.0,
    restore_s: float | str = 0.0,
) -> FileContents:
    """A job list: gangs of `num_gpus` workers for `total_steps` steps, at the rates of the testbed."""
    saving = checkpoint_cost(checkpoint_s, restore_s)
    rates_path = beside(path, rates, path.absolute().parent.parent / "testbed32_isolated_throughput.csv", "rates")
    measured = {shape_of(row): {"gpu": row["steps_per_s"]} for row in _rate_table(rates_path, collector).rows}
    table = read_table(path, collector, _SHOCKWAVE_JOB_COLUMNS)
    kernels: dict[JobShape, Kernel | None] = {}
    listed, apart = [], 0
    for row in table.rows:
        shape = shape_of(row)
        if shape not in kernels:
            kernels[shape] = rate_kernel(shape, measured.get(shape, {}))
        if kernels[shape] is None:
            collector.bad(table.where(row), f"{shape} has no rate above 0 in {rates_path.name}")
            continue
        steps = float(row["total_steps"])
        apart += not 0.9 <= steps / measured[shape]["gpu"] / (row["duration_s"] or 1.0) <= 1.1
        listed.append(ListedJob(row, table.where(row), row["arrival_s"], str(shape), row["num_gpus"], steps))
    made = lower(listed, filter(None, kernels.values()), collector, saving, unit="steps")
    adapting = sum(row["adaptation"] != "static" for row in made.rows)
    notes = [
        _UNKNOWN_GPU_NOTE,
        f"Jobs keep the batch size that they are listed with: {adapting} of {len(made.rows)} changed theirs on the way "
        "(adaptation in the table of jobs), and that is not modelled.",
        f"A job is as long as its steps at the rates of {rates_path.name}; the listed duration_s of {apart} jobs is "
        "more than 10% off that, and is kept in the table.",
        saving.note("usually nothing, as in the simulator that it grew from, Gavel's"),
        "The cluster is the testbed's 32 GPUs, taken to be four in a machine with 12.5 GB/s between machines.",
        "priority_weight is a share, not an urgency: it is kept in the table of jobs only.",
        _SIMULATOR_ERROR_NOTE,
    ]
    return FileContents(
        "shockwave-jobs",
        str(path),
        made.kernels,
        made.graphs,
        made.jobs,
        topology=gpu_cluster("shockwave32", "gpu", DeviceSpec(type="gpu"), machines=8, gpus=4, nic=12.5e9),
        tables={"jobs": made.rows},
        notes=(*notes, *table.notes),
        problems=tuple(collector.problems),
    )


def _rate_table(path: Path, collector: Collector) -> CsvTable:
    return unique(read_table(path, collector, _SHOCKWAVE_RATE_COLUMNS), collector, shape_of)


def _results(name: str, about: str, table: str, columns: dict[str, CellParser], *key: str, note: str) -> Format:
    """A file of results: a table and nothing else."""

    def read(path: Path, collector: Collector) -> FileContents:
        read = unique(read_table(path, collector, columns), collector, lambda row: tuple(row[k] for k in key))
        return FileContents(
            name,
            str(path),
            tables={table: read.rows},
            notes=(note, _SIMULATOR_ERROR_NOTE, *read.notes),
            problems=tuple(collector.problems),
        )

    return Format(name, about, has_columns(*columns), read)


SHOCKWAVE_FORMATS = (
    Format(
        "shockwave-rates",
        "Shockwave: steps per second of training jobs on the testbed",
        has_columns(*_SHOCKWAVE_RATE_COLUMNS, without=("gpu", "policy", "adaptation")),
        read_rates,
    ),
    Format(
        "shockwave-jobs",
        "Shockwave: lists of training jobs with their arrivals",
        has_columns(*_SHOCKWAVE_JOB_COLUMNS),
        read_jobs,
    ),
    _results(
        "shockwave-runs",
        "Shockwave: completion times of 120 jobs on the testbed, measured and simulated",
        "runs",
        _RUNS,
        "policy",
        "mode",
        "job_position",
        note="job_position is the row of dynamic_120jobs_100.csv, from 0.",
    ),
    _results(
        "shockwave-summary",
        "Shockwave: makespan and mean completion time on the testbed, measured and simulated",
        "summary",
        _SUMMARY,
        "policy",
        "mode",
        note="Times are in seconds.",
    ),
    _results(
        "shockwave-timeline",
        "Shockwave: measured rates of jobs by round",
        "timeline",
        _TIMELINE,
        "policy",
        "job_position",
        "round",
        note="A round lasts 120 s. job_position is the row of dynamic_120jobs_100.csv, from 0.",
    ),
)
