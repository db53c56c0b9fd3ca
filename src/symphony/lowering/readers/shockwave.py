"""Shockwave's job lists, timed with the rates that its authors measured on 32 GPUs.

The card of the testbed is not named in the files, so profiles are for any device of type `gpu`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from symphony.lowering.readers import tables
from symphony.lowering.readers.gavel import shape_of
from symphony.lowering.readers.job_lists import JobShape, ListedJob, checkpoint_cost, gpu_cluster, lower, rate_kernel
from symphony.lowering.readers.reading import Collector, FileContents, Format
from symphony.problem import limits
from symphony.problem.build import DeviceSpec
from symphony.problem.workload import Kernel

_GPU_COUNT = tables.whole(1, limits.WORKERS_PER_GANG)
_SHOCKWAVE_RATE_COLUMNS = {
    "model": tables.text,
    "batch_size": tables.blank_or(tables.whole(1)),
    "num_gpus": _GPU_COUNT,
    "steps_per_s": tables.rate,
}
_SHOCKWAVE_JOB_COLUMNS = {
    "job": tables.text,
    "model": tables.text,
    "batch_size": tables.blank_or(tables.whole(1)),
    "total_steps": tables.whole(1),
    "num_gpus": _GPU_COUNT,
    "adaptation": tables.one_of("accordion", "gns", "static"),
    "priority_weight": tables.number(),
    "duration_s": tables.number(),
    "arrival_s": tables.clock,
}


def read_jobs(
    path: Path,
    collector: Collector,
    *,
    rates: str | None = None,
    checkpoint_s: float | str = 0.0,
    restore_s: float | str = 0.0,
) -> FileContents:
    """A job list: gangs of `num_gpus` workers for `total_steps` steps, at the rates of the testbed."""
    preemption = checkpoint_cost(checkpoint_s, restore_s)
    usual = path.absolute().parent.parent / "testbed32_isolated_throughput.csv"
    rates_path = tables.companion(path, rates, usual, hint="write rates=PATH of that file")
    rate_table = tables.read_table(rates_path, collector, _SHOCKWAVE_RATE_COLUMNS).unique(collector, shape_of)
    measured = {shape_of(row): row["steps_per_s"] for row in rate_table.rows}
    table = tables.read_table(path, collector, _SHOCKWAVE_JOB_COLUMNS)
    kernels: dict[JobShape, Kernel | None] = {}
    listed, apart = [], 0
    for row in table.rows:
        shape = shape_of(row)
        if shape not in kernels:
            kernels[shape] = rate_kernel(shape, {"gpu": measured.get(shape, 0.0)})
        if kernels[shape] is None:
            collector.bad(table.where(row), f"{shape} has no rate above 0 in {rates_path.name}")
            continue
        steps = float(row["total_steps"])
        apart += not 0.9 <= steps / measured[shape] / (row["duration_s"] or 1.0) <= 1.1
        listed.append(ListedJob(row, table.where(row), row["arrival_s"], str(shape), row["num_gpus"], steps))
    contents = lower(listed, filter(None, kernels.values()), collector, preemption, unit="steps")
    jobs = contents.tables["jobs"]
    adapting = sum(row["adaptation"] != "static" for row in jobs)
    notes = (
        "The files do not say which GPU the testbed has, so profiles are for any device of type gpu.",
        f"Jobs keep the batch size that they are listed with: {adapting} of {len(jobs)} jobs changed theirs while they "
        "ran (column adaptation in the table of jobs), and that is not modelled.",
        f"A job is as long as its steps at the rates of {rates_path.name}; the listed duration_s of {apart} jobs "
        "differs from that by more than 10%, and is kept in the table.",
        preemption.note("by default nothing, as in Gavel's simulator, from which Shockwave's was derived"),
        "The cluster is the testbed's 32 GPUs, assumed to be four in a machine with 12.5 GB/s between machines.",
        "priority_weight is a share, not an urgency: it is kept in the table of jobs only.",
        "The authors' own simulator errs by -8% to +9% in mean completion time and -4% to -9% in makespan: differences "
        "below about 10% mean little.",
    )
    topology = gpu_cluster("shockwave32", "gpu", DeviceSpec(type="gpu"), machines=8, gpus=4, nic=12.5e9)
    return replace(contents, topology=topology, notes=(*notes, *contents.notes, *table.notes))


SHOCKWAVE_FORMAT = Format(
    "shockwave-jobs",
    "Shockwave: lists of training jobs with their arrivals",
    tables.has_columns(*_SHOCKWAVE_JOB_COLUMNS),
    read_jobs,
)
