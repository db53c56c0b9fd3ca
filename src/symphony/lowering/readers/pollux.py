"""Pollux: job lists, timed with the step times of its models on placements of up to 64 T4 GPUs.

A job runs for as many steps as its model took at its batch size to the last recorded epoch. A step's time is that on
the smallest number of machines on which that many GPUs were measured, interpolated between batch sizes per GPU. Where a
GPU cannot hold its part of the batch, it makes several passes and exchanges gradients after the last.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from symphony.lowering.readers import tables
from symphony.lowering.readers.job_lists import (
    WHOLE_GPU_DEMAND,
    JobShape,
    ListedJob,
    checkpoint_cost,
    gpu_cluster,
    lower,
)
from symphony.lowering.readers.reading import Collector, FileContents, Format
from symphony.lowering.readers.tables import CellParser, CsvRow, CsvTable
from symphony.problem import limits
from symphony.problem.build import DeviceSpec
from symphony.problem.topology import Topology
from symphony.problem.workload import Kernel, Profile

POLLUX_GPU = "t4"
GPUS_PER_NODE = 4
_GPU_COUNT = tables.whole(1, limits.WORKERS_PER_GANG)
_STEP_COLUMNS = {"local_batch": tables.whole(1), "step_time_s": tables.number(low=1e-6), "sync_time_s": tables.number()}
_PLACEMENTS: Mapping[str, CellParser] = {
    "model": tables.text,
    "placement": tables.whole(1),
    "nodes": tables.whole(1),
    "gpus": _GPU_COUNT,
    **_STEP_COLUMNS,
}
_SCALABILITY = {column: parse for column, parse in _PLACEMENTS.items() if column != "placement"}
_EFFICIENCY: Mapping[str, CellParser] = {
    "model": tables.text,
    "batch_size": tables.whole(1),
    "epoch": tables.whole(),
    "progress": tables.number(),
    "iteration": tables.whole(1),
    "metric": tables.number(-1e9, 1e9),
    "grad_sqr": tables.number(0.0, math.inf),
    "grad_var": tables.number(0.0, math.inf),
}
_POLLUX_JOB_COLUMNS: Mapping[str, CellParser] = {
    "load": tables.text,
    "workload": tables.text,
    "job": tables.text,
    "submit_s": tables.clock,
    "model": tables.text,
    "num_gpus": _GPU_COUNT,
    "batch_size": tables.whole(1),
}
_TABLES = "placements.csv, scalability.csv and statistical_efficiency.csv"


class StepTime(NamedTuple):
    step_s: float
    sync_s: float  # the part of it that is gradient exchange


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
        """The smallest number of machines on which that many GPUs were measured."""
        return min(self._times[model, gpus], default=None) if (model, gpus) in self._times else None

    def step(self, model: str, gpus: int, batch: int) -> float | None:
        """Seconds of a step of `batch` samples on that many GPUs; None if it was not measured."""
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
    """One of the job lists of a file. `measured`: the folder of the step times; None: the folder of the file."""
    preemption = checkpoint_cost(checkpoint_s, restore_s)
    folder = path.absolute().parent if measured is None else Path(measured)
    placements = _measured(path, folder, "placements.csv", collector, _PLACEMENTS).checked(collector, _contradiction)
    placements = placements.unique(collector, lambda row: (row["model"], row["placement"], row["local_batch"]))
    scalability = _measured(path, folder, "scalability.csv", collector, _SCALABILITY)
    scalability = scalability.unique(
        collector, lambda row: (row["model"], row["nodes"], row["gpus"], row["local_batch"])
    )
    efficiency = _measured(path, folder, "statistical_efficiency.csv", collector, _EFFICIENCY)
    efficiency = efficiency.unique(collector, lambda row: (row["model"], row["batch_size"], row["epoch"]))
    steps = StepTimes([*placements.rows, *scalability.rows])
    last: dict[tuple[str, int], tuple[int, int]] = {}  # (model, batch) -> last epoch, iterations until then
    for row in efficiency.rows:
        key = (row["model"], row["batch_size"])
        last[key] = max(last.get(key, (-1, 0)), (row["epoch"], row["iteration"]))
    all_lists = tables.read_table(path, collector, _POLLUX_JOB_COLUMNS)
    table = all_lists.select("load", load).select("workload", workload)
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
            if (steps.machines(model, gpus) or 0) > -(-gpus // GPUS_PER_NODE):
                spread.add(str(shape))
            iterations = float(last[model, batch][1])
            listed.append(ListedJob(row, table.where(row), row["submit_s"], str(shape), gpus, iterations))
    notes = [
        f"The file holds {len({(row['load'], row['workload']) for row in all_lists.rows})} job lists; this is load "
        f"{load}, workload {workload} (load= and workload= select another).",
        "Jobs run at the batch size and on the number of GPUs that they are listed with, to the last recorded epoch; "
        "Pollux itself would change both.",
        "A step's time is that on the smallest number of machines measured for that many GPUs, between the nearest "
        "batch sizes of a GPU; a batch that does not fit takes several passes. It includes the exchange, so kernels "
        "exchange nothing.",
        preemption.note("30 s to restart is chosen"),
        "The cluster is that of the published runs: 16 machines of 4 T4.",
        "One fifth of the placements is held out, so the authors' published numbers cannot be reproduced exactly.",
    ]
    if spread:
        names = ", ".join(sorted(spread))
        notes.append(f"Measured on more machines than needed, because no packed placement was measured: {names}.")
    contents = lower(listed, kernels.values(), collector, preemption, unit="steps")
    return replace(contents, topology=cluster(), notes=(*notes, *contents.notes, *table.notes))


def cluster() -> Topology:
    """The cluster of the measurements: 16 g4dn.12xlarge, each with 4 T4 and 50 Gbit/s."""
    t4 = DeviceSpec(type="gpu", memory=16e9, device_memory=300e9, link=12e9)
    return gpu_cluster("pollux64", POLLUX_GPU, t4, machines=16, gpus=GPUS_PER_NODE, nic=6.25e9)


def _measured(path: Path, folder: Path, name: str, collector: Collector, columns: Mapping[str, CellParser]) -> CsvTable:
    hint = f"write measured=PATH of the folder that holds {_TABLES}"
    return tables.read_table(tables.companion(path, None, folder / name, hint=hint), collector, columns)


def _contradiction(row: CsvRow) -> str:
    """What is wrong with a placement, which has a digit for each machine: 31 is 3 GPUs on one and 1 on another."""
    digits = [int(digit) for digit in str(row["placement"])]
    if len(digits) == row["nodes"] and sum(digits) == row["gpus"]:
        return ""
    return f"placement {row['placement']} is not {row['gpus']} GPUs on {row['nodes']} machines"


def _mean(steps: list[StepTime]) -> StepTime:
    return StepTime(*(sum(column) / len(steps) for column in zip(*steps, strict=True)))


def _between(measured: Mapping[int, StepTime], local: float) -> StepTime:
    """The step at a batch size per GPU, interpolated; below the smallest measured size, that of the smallest."""
    sizes = sorted(measured)
    above = min(bisect_left(sizes, local), len(sizes) - 1)
    below = max(0, above - 1)
    a, b = measured[sizes[below]], measured[sizes[above]]
    if sizes[above] <= local or local <= sizes[below]:
        return b if sizes[above] <= local else a
    share = (local - sizes[below]) / (sizes[above] - sizes[below])
    return StepTime(*(x + share * (y - x) for x, y in zip(a, b, strict=True)))


POLLUX_FORMAT = Format(
    "pollux-jobs",
    "Pollux: lists of training jobs with their arrivals",
    tables.has_columns(*_POLLUX_JOB_COLUMNS),
    read_jobs,
)
