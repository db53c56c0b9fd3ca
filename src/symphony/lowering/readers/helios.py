"""Helios: what the virtual clusters of the Earth cluster were doing, and how many GPUs they had. No jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from symphony.lowering.readers.reading import Collector, FileContents, Format, read_text
from symphony.lowering.readers.tables import CsvRow, has_columns, header_of, moment, read_table, text, unique, whole
from symphony.problem.build import ClusterSpec, DeviceSpec, MachineSpec, RackSpec, SocketSpec, build
from symphony.problem.errors import DataError
from symphony.problem.topology import Topology

GPUS_PER_MACHINE = 8
_STATE_COLUMNS = {
    "vc": text,
    "time": moment,
    "running_gpujob_num": whole(),
    "pending_gpujob_num": whole(),
    "total_gpu_num": whole(),
    "running_gpu_num": whole(),
    "pending_gpu_num": whole(),
    "idle_gpu_num": whole(),
}
_NO_JOBS = "The file holds a series of states, not jobs: there is nothing to schedule in it."
_CLUSTER_NOTE = (
    f"The cluster is one rack for each virtual cluster, of machines with {GPUS_PER_MACHINE} GPUs (all sizes are "
    "multiples of that; the files do not say it, nor which GPU it is)."
)


def read_state(path: Path, collector: Collector) -> FileContents:
    """Jobs and GPUs running, pending and idle in each virtual cluster, every tenth minute: a table."""
    table = read_table(path, collector, _STATE_COLUMNS)

    def good(row: CsvRow) -> bool:
        held = row["running_gpu_num"] + row["idle_gpu_num"]
        if held != row["total_gpu_num"]:
            collector.bad(table.where(row), f"running and idle GPUs add up to {held}, not to {row['total_gpu_num']}")
        return bool(held == row["total_gpu_num"])

    table = unique(table.keep(good), collector, lambda row: (row["vc"], row["time"]))
    sizes: dict[str, int] = {}
    for row in table.rows:
        sizes[row["vc"]] = max(sizes.get(row["vc"], 0), row["total_gpu_num"])
    return FileContents(
        "helios-state",
        str(path),
        topology=_topology(sizes),
        tables={"state": table.rows},
        notes=(_NO_JOBS, _CLUSTER_NOTE, "A virtual cluster has its largest size in the file.", *table.notes),
        problems=tuple(collector.problems),
    )


def read_sizes(path: Path, collector: Collector) -> FileContents:
    """GPUs of each virtual cluster, day by day: a table, one column for each."""
    clusters = _clusters(path)
    table = read_table(path, collector, {"date": moment, **dict.fromkeys(clusters, whole()), "total": whole()})

    def good(row: CsvRow) -> bool:
        held = sum(row[name] for name in clusters)
        if held != row["total"]:
            collector.bad(table.where(row), f"the virtual clusters add up to {held} GPUs, not to {row['total']}")
        return bool(held == row["total"])

    table = unique(table.keep(good), collector, lambda row: row["date"])
    last = table.rows[-1] if table.rows else {}
    return FileContents(
        "helios-sizes",
        str(path),
        topology=_topology({name: last.get(name, 0) for name in clusters}),
        tables={"sizes": table.rows},
        notes=(
            _NO_JOBS,
            _CLUSTER_NOTE,
            "Sizes change from day to day; the cluster is that of the last day.",
            *table.notes,
        ),
        problems=tuple(collector.problems),
    )


def _clusters(path: Path) -> list[str]:
    """The columns between the date and the total."""
    header = header_of(read_text(path).encode())
    if header[:1] != ["date"] or header[-1] != "total" or len(header) < 3:
        raise DataError(
            "the header is not a date, virtual clusters and their total",
            where=f"{path}: line 1",
            hint="name a CSV file with the columns date, vc…, total, or say --format",
        )
    return header[1:-1]


def _topology(sizes: Mapping[str, int]) -> Topology | None:
    """A rack for each virtual cluster that has GPUs; None if none has."""
    racks = []
    for name, gpus in sizes.items():
        full, rest = divmod(gpus, GPUS_PER_MACHINE)
        machines = [_machine(f"{name}-m", full, GPUS_PER_MACHINE)] if full else []
        machines += [_machine(f"{name}-rest", 1, rest)] if rest else []
        if machines:
            racks.append(RackSpec(name=name, machine=tuple(machines)))
    return (
        build(ClusterSpec(name="helios", device={"gpu": DeviceSpec(type="gpu")}, rack=tuple(racks))) if racks else None
    )


def _machine(name: str, count: int, gpus: int) -> MachineSpec:
    return MachineSpec(name=name, count=count, socket=(SocketSpec(devices=("gpu",) * gpus),))


def _looks_like_sizes(path: Path, head: bytes) -> bool:
    header = header_of(head)
    return (
        len(header) > 2 and header[0] == "date" and header[-1] == "total" and all(c[:2] == "vc" for c in header[1:-1])
    )


HELIOS_FORMATS = (
    Format(
        "helios-state", "Helios: state of virtual clusters over time; no jobs", has_columns(*_STATE_COLUMNS), read_state
    ),
    Format("helios-sizes", "Helios: GPUs of virtual clusters by day; no jobs", _looks_like_sizes, read_sizes),
)
