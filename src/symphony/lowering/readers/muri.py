"""Muri's job lists, with the time of each stage of an iteration.

Times in the file are MILLISECONDS. An iteration has three stages, whose columns are unlabelled; by their values they
are input, GPU and network. The share of an iteration that a stage takes is the load that a worker puts on a resource:
its GPU's PCIe link, its GPU's compute, and its part of the machine's NIC. So jobs with different stages can share GPUs
at little cost, which is what Muri exploits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from symphony.lowering.readers.job_lists import JobShape, ListedJob, checkpoint_cost, gpu_cluster, lower
from symphony.lowering.readers.reading import Collector, FileContents, Format
from symphony.lowering.readers.tables import (
    MAX_CLOCK_S,
    CellParser,
    CsvRow,
    has_columns,
    number,
    read_table,
    text,
    whole,
)
from symphony.problem import limits
from symphony.problem.build import DeviceSpec
from symphony.problem.topology import Topology
from symphony.problem.workload import Kernel, Profile

MURI_GPU = "v100"
MACHINES, GPUS_PER_MACHINE = 8, 8
_LINK, _NIC = 12e9, 12.5e9  # bytes/s: PCIe gen 3 x16, 100 Gbit/s
_MILLISECONDS = number(0.0, limits.SECONDS * 1e3)
_MURI_JOB_COLUMNS: Mapping[str, CellParser] = {
    "job_id": text,
    "num_gpu": whole(1, limits.WORKERS_PER_GANG),
    "submit_time": number(0.0, MAX_CLOCK_S * 1e3),
    "iterations": whole(1),
    "model_name": text,
    "batch_size": whole(1),
    "duration": _MILLISECONDS,
    "interval": _MILLISECONDS,
    "iteration_time": number(1e-3, limits.SECONDS * 1e3),
    "resource_time_0": _MILLISECONDS,
    "resource_time_1": _MILLISECONDS,
    "resource_time_2": _MILLISECONDS,
    "priority": whole(),
}


def read_jobs(
    path: Path, collector: Collector, *, checkpoint_s: float | str = 0.0, restore_s: float | str = 30.0
) -> FileContents:
    """A job list: gangs of `num_gpu` workers for `iterations` iterations, with the load of their three stages."""
    preemption = checkpoint_cost(checkpoint_s, restore_s)
    table = read_table(path, collector, _MURI_JOB_COLUMNS).unique(collector, lambda row: row["job_id"])
    kernels: dict[tuple[JobShape, tuple[float, ...]], Kernel] = {}
    variants: dict[JobShape, int] = {}
    listed, apart, full = [], 0, set()
    for row in table.rows:
        shape, times = JobShape(row["model_name"], row["batch_size"], row["num_gpu"]), _times(row)
        if (shape, times) not in kernels:
            variants[shape] = variants.get(shape, 0) + 1
            name = str(shape) if variants[shape] == 1 else f"{shape}#{variants[shape]}"
            kernels[shape, times] = Kernel(name, {MURI_GPU: Profile(fixed_s=times[0] / 1e3, demand=_demand(times))})
            if max(times[1:]) > times[0]:
                full.add(name)
        kernel, iterations = kernels[shape, times].name, float(row["iterations"])
        apart += not 0.9 <= iterations * times[0] / (row["duration"] or 1.0) <= 1.1
        listed.append(ListedJob(row, table.where(row), row["submit_time"] / 1e3, kernel, row["num_gpu"], iterations))
    notes = [
        "Times in the file are milliseconds; here they are seconds, but the table of jobs has those of the file.",
        "The three resource times are unlabelled; they are assumed to be input, GPU and network, and become loads of "
        "the GPU's PCIe link, its compute and its part of the machine's NIC.",
        f"A job is as long as its iterations; the listed duration of {apart} jobs differs from that by more than 10%.",
        "The meaning of priority is not documented: it is kept in the table of jobs only.",
        preemption.note("30 s to restart is chosen"),
        f"The cluster is the testbed's: {MACHINES} machines of {GPUS_PER_MACHINE} V100, 12 GB/s to a GPU and 12.5 GB/s "
        "to a machine (chosen).",
    ]
    if full:
        notes.append(f"A stage that is longer than the iteration loads its resource fully: {', '.join(sorted(full))}.")
    several = [str(shape) for shape, count in variants.items() if count > 1]
    if several:
        notes.append(f"Listed with several sets of times, so each has a kernel (name#2, …): {', '.join(several)}.")
    contents = lower(listed, kernels.values(), collector, preemption, unit="iterations")
    return replace(contents, topology=cluster(), notes=(*notes, *contents.notes, *table.notes))


def cluster() -> Topology:
    """The testbed: 8 machines of 8 V100."""
    v100 = DeviceSpec(type="gpu", memory=32e9, device_memory=900e9, link=_LINK)
    return gpu_cluster("muri64", MURI_GPU, v100, machines=MACHINES, gpus=GPUS_PER_MACHINE, nic=_NIC)


def _times(row: CsvRow) -> tuple[float, ...]:
    """Milliseconds of an iteration and of its three stages."""
    return (row["iteration_time"], *(row[f"resource_time_{stage}"] for stage in range(3)))


def _demand(times: tuple[float, ...]) -> dict[str, float]:
    whole_s, *stages = times
    of_input, of_gpu, of_network = (min(1.0, stage / whole_s) for stage in stages)
    return {"link": of_input * _LINK, "compute": of_gpu, "nic": of_network * _NIC / GPUS_PER_MACHINE}


MURI_FORMAT = Format(
    "muri-jobs",
    "Muri: lists of training jobs with the times of their stages",
    has_columns(*_MURI_JOB_COLUMNS),
    read_jobs,
)
