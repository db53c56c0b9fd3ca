"""Alibaba's openb trace of 2023: what pods requested, and the machines that they ran on.

A pod that requests GPUs is a gang of one worker for each GPU. A pod that requests part of a GPU loads that share of the
GPU's compute and reserves that share of its memory, so that shares of a GPU never add up to more than the whole. Any
other pod is one worker on a CPU, with the cores and the memory that it requested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from symphony.lowering.readers import tables
from symphony.lowering.readers.job_lists import ListedJob, gang_graph, lower
from symphony.lowering.readers.reading import Collector, FileContents, Format
from symphony.lowering.readers.tables import CellParser, CsvRow, CsvTable
from symphony.problem import limits
from symphony.problem.topology import Device, DeviceKind, Hop, Resource, Topology
from symphony.problem.workload import Kernel, Profile

MIB = 2**20
GPU_PODS = 4  # that run on one GPU at once
CORES_PER_POD = 8  # no pod without a GPU requests fewer, so a CPU has a slot for each 8 cores
# Bytes. The types G2 and G3 are not disclosed; a pod reserves a share of the memory, so any number will do.
_GPU_MEMORY_BYTES: Mapping[str, float] = {
    "P100": 16e9,
    "T4": 16e9,
    "V100M16": 16e9,
    "V100M32": 32e9,
    "A10": 24e9,
    "G2": 32e9,
    "G3": 32e9,
}
_OTHER_GPU_MEMORY_BYTES = 32e9
_PODS: Mapping[str, CellParser] = {
    "name": tables.text,
    "cpu_milli": tables.whole(0),
    "memory_mib": tables.whole(0),
    "num_gpu": tables.whole(0, limits.WORKERS_PER_GANG),
    "gpu_milli": tables.whole(0, 1000),
}
_OPTIONAL_TIME = tables.blank_or(tables.clock)
_TIMES: Mapping[str, CellParser] = {
    "gpu_spec": tables.any_text,
    "qos": tables.any_text,
    "pod_phase": tables.any_text,
    "creation_time": _OPTIONAL_TIME,
    "deletion_time": _OPTIONAL_TIME,
    "scheduled_time": _OPTIONAL_TIME,
}
_MACHINES: Mapping[str, CellParser] = {
    "sn": tables.text,
    "cpu_milli": tables.whole(1),
    "memory_mib": tables.whole(1),
    "gpu": tables.whole(0, 64),
    "model": tables.any_text,
}


_ASSUMPTION_NOTES = (
    "Pods take as long on any device: the trace has no rates. They cannot be preempted.",
    "A pod's share of a GPU is a load of its compute and a reservation of its memory; shares never exceed the whole.",
    "The cores and the host memory that a pod with GPUs requests are not modelled, and its workers may be placed on "
    "several machines.",
    "Lists other than default are resampled from it, so they are not independent samples.",
)
_CLUSTER_NOTES = (
    f"A GPU runs at most {GPU_PODS} pods at once, and a CPU one for every {CORES_PER_POD} cores (no pod without a GPU "
    "requests fewer).",
    "G2 and G3 are undisclosed types; their memory is assumed to be 32 GB, which affects no pod of this trace.",
    "Links between machines are not in the list, so transfers cost nothing.",
)


def read_pods(
    path: Path, collector: Collector, *, machines: str | None = None, duration_s: float | str | None = None
) -> FileContents:
    """A list of pods. `duration_s`: the length of pods whose length is not in the list.

    `machines`: the list of machines; None: `openb_node_list_all_node.csv.gz` in the same folder, if it is there.
    """
    length_s = None if duration_s is None else tables.option_value("duration_s", duration_s, tables.number(1.0))
    table = tables.read_table(path, collector, _PODS, optional=_TIMES)
    table = table.checked(collector, _contradiction).unique(collector, lambda row: row["name"])
    topology = _cluster_of(path, machines, collector)
    memory = {model.lower(): size for model, size in _GPU_MEMORY_BYTES.items()}
    memory |= {kind.name: kind.memory for kind in (topology.kinds if topology else ()) if kind.type == "gpu"}
    kernels = tuple({_name(row): _kernel(row, memory) for row in table.rows}.values())
    if any(row["creation_time"] is not None for row in table.rows):
        listed, notes = _arrivals(table, length_s, collector)
        lowered = lower(listed, kernels, collector, None, unit="s")
        contents = replace(lowered, tables={"pods": lowered.tables["jobs"]})
        notes += lowered.notes
    elif length_s is not None:
        graphs = tuple(gang_graph(_name(row), max(1, row["num_gpu"]), length_s, None, unit="s") for row in table.rows)
        contents = FileContents(kernels=kernels, graphs=graphs, tables={"pods": table.rows})
        notes = [f"The list has no times: every pod takes {length_s:g} s, and arrivals are drawn."]
    else:
        contents = FileContents(kernels=kernels, tables={"pods": table.rows})
        notes = ["The list has no times, so there are no jobs: duration_s= would make graphs of that length."]
    notes += [*_ASSUMPTION_NOTES, *(_CLUSTER_NOTES if topology else ()), *table.notes]
    return replace(contents, topology=topology, notes=tuple(notes))


def read_machines(path: Path, collector: Collector) -> FileContents:
    """A list of machines: a topology."""

    def no_model(row: CsvRow) -> str:
        return f"it has {row['gpu']} GPUs and no model of them" if row["gpu"] and not row["model"] else ""

    table = tables.read_table(path, collector, _MACHINES).unique(collector, lambda row: row["sn"])
    table = table.checked(collector, no_model)
    return FileContents(
        topology=_topology(table.rows) if table.rows else None,
        tables={"machines": table.rows},
        notes=(*_CLUSTER_NOTES, *table.notes),
    )


def _arrivals(table: CsvTable, length_s: float | None, collector: Collector) -> tuple[list[ListedJob], list[str]]:
    """The pods with their arrivals and lengths, and notes on what was assumed."""

    def unusable(row: CsvRow) -> str:
        created, deleted = row["creation_time"], row["deletion_time"]
        if created is None:
            return "it has no creation_time, so its arrival is unknown"
        if deleted is None:
            unknown = "it has no deletion_time, so its length is unknown (duration_s= gives one)"
            return unknown if length_s is None else ""
        ordered = created <= _start(row) <= deleted
        return "" if ordered else "creation_time, scheduled_time and deletion_time are out of order"

    table = table.checked(collector, unusable)
    listed, unscheduled, instant, unknown = [], 0, 0, 0
    for row in table.rows:
        deleted = row["deletion_time"]
        seconds = (length_s or 0.0) if deleted is None else deleted - _start(row)
        unscheduled += row["scheduled_time"] is None
        unknown += deleted is None
        instant += not seconds
        workers = max(1, row["num_gpu"])
        listed.append(ListedJob(row, table.where(row), row["creation_time"], _name(row), workers, seconds or 1.0))
    notes = [
        "A pod arrives when it was created and takes as long as from scheduled_time to deletion_time.",
        f"Pods that were never scheduled ({unscheduled}) are kept, and take as long as from creation to deletion.",
    ]
    if instant:
        notes.append(f"Pods of less than the clock's second take 1 s ({instant} of them).")
    if unknown:
        notes.append(f"Pods without a deletion_time take {length_s:g} s ({unknown} of them).")
    return listed, notes


def _start(row: CsvRow) -> float:
    return float(row["creation_time"] if row["scheduled_time"] is None else row["scheduled_time"])


def _contradiction(row: CsvRow) -> str:
    """What is wrong with a pod's requests."""
    if row["num_gpu"] and not row["gpu_milli"]:
        return f"it requests {row['num_gpu']} GPUs and no part of them"
    if row["gpu_milli"] and not row["num_gpu"]:
        return f"it requests {row['gpu_milli']} thousandths of no GPU"
    return "" if row["num_gpu"] or row["cpu_milli"] else "it requests nothing"


def _allowed(row: CsvRow) -> tuple[str, ...]:
    """The GPU types that a pod may run on, without repeats; () for any."""
    return tuple(dict.fromkeys(model for model in (row["gpu_spec"] or "").split("|") if model))


def _name(row: CsvRow) -> str:
    if not row["num_gpu"]:
        return f"cpu{row['cpu_milli'] / 1000:g}/{row['memory_mib']}MiB"
    return f"gpu{row['gpu_milli'] / 1000:g}" + "".join(f"/{model.lower()}" for model in _allowed(row))


def _kernel(row: CsvRow, memory: Mapping[str, float]) -> Kernel:
    """One second of a pod with these requests. `memory`: bytes of the GPUs, by device kind."""
    if not row["num_gpu"]:
        cores = {"compute": row["cpu_milli"] / 1000}
        return Kernel(_name(row), {"cpu": Profile(fixed_s=1.0, demand=cores, memory=float(row["memory_mib"] * MIB))})
    milli, allowed = row["gpu_milli"], tuple(model.lower() for model in _allowed(row))
    demand = {"compute": milli / 1000}
    profiles = {
        kind: Profile(fixed_s=1.0, demand=demand, memory=milli * memory.get(kind, _OTHER_GPU_MEMORY_BYTES) / 1000)
        for kind in allowed or memory
    }
    if not allowed:
        profiles["gpu"] = Profile(fixed_s=1.0, demand=demand)  # of other clusters: memory size unknown
    return Kernel(_name(row), profiles)


def _cluster_of(path: Path, machines: str | None, collector: Collector) -> Topology | None:
    usual = path.absolute().parent / "openb_node_list_all_node.csv.gz"
    if machines is None and not usual.exists():
        return None
    return read_machines(usual if machines is None else Path(machines), collector).topology


def _topology(rows: tuple[CsvRow, ...]) -> Topology:
    """Every machine has its CPU as one device, and its GPUs."""
    kinds: dict[str, DeviceKind] = {}
    resources: list[Resource] = []
    devices: list[Device] = []

    def add(name: str, kind: DeviceKind, machine: str, capacity: float) -> None:
        kinds[kind.name] = kind
        resources.append(Resource(f"{name}/compute", "compute", capacity, machine))
        devices.append(Device(name, kind.name, machine, "rack", machine, name, (Hop(f"{name}/compute"),)))

    for row in rows:
        machine, cores, memory = row["sn"], row["cpu_milli"] / 1000, row["memory_mib"]
        slots = max(1, min(int(cores) // CORES_PER_POD, limits.SLOTS_PER_DEVICE))
        add(f"{machine}/cpu", DeviceKind(f"cpu{cores:g}-{memory}MiB", "cpu", slots, memory * MIB), machine, cores)
        if row["gpu"]:
            gpu = DeviceKind(
                row["model"].lower(), "gpu", GPU_PODS, _GPU_MEMORY_BYTES.get(row["model"], _OTHER_GPU_MEMORY_BYTES)
            )
            for number in range(row["gpu"]):
                add(f"{machine}/{gpu.name}-{number}", gpu, machine, 1.0)
    return Topology("openb", tuple(kinds.values()), tuple(resources), tuple(devices))


OPENB_FORMATS = (
    Format("openb-pods", "Alibaba openb: pods with their requests and times", tables.has_columns(*_PODS), read_pods),
    Format("openb-machines", "Alibaba openb: machines with their GPUs", tables.has_columns(*_MACHINES), read_machines),
)
