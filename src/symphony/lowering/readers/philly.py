"""Microsoft's Philly trace: jobs with their lengths, virtual clusters, and how many machines were active."""

from __future__ import annotations

from pathlib import Path

from symphony.lowering.readers.job_lists import WHOLE_GPU_DEMAND, ListedJob, checkpoint_cost, lower
from symphony.lowering.readers.reading import Collector, FileContents, Format
from symphony.lowering.readers.tables import (
    CsvRow,
    has_columns,
    moment,
    number,
    read_table,
    select,
    text,
    unique,
    whole,
)
from symphony.problem import limits
from symphony.problem.workload import Kernel, Profile

WEEK_S = 7 * 86400
_PHILLY_JOB_COLUMNS = {
    "week": whole(),
    "submit_s": number(),
    "duration_s": number(low=1e-3),
    "num_gpus": whole(1, limits.WORKERS_PER_GANG),
    "vc": text,
}
_CLUSTERS = {"vc": text, "nodes": whole(1)}
_ACTIVE = {"time": moment, "active_nodes": whole(), "total_nodes": whole()}
# A second of training: the trace says how long jobs ran, not what they did.
_SECOND_OF_TRAINING = Kernel("training", {"gpu": Profile(fixed_s=1.0, demand=WHOLE_GPU_DEMAND)})


def read_jobs(
    path: Path,
    collector: Collector,
    *,
    week: int | str | None = None,
    vc: str | None = None,
    checkpoint_s: float | str = 10.0,
    restore_s: float | str = 30.0,
) -> FileContents:
    """Jobs: gangs of `num_gpus` workers that take `duration_s` on any GPU."""
    saving = checkpoint_cost(checkpoint_s, restore_s)
    table = read_table(path, collector, _PHILLY_JOB_COLUMNS)

    def good(row: CsvRow) -> bool:
        expected = int(row["submit_s"] // WEEK_S)
        if row["week"] != expected:
            collector.bad(table.where(row), f"week is {row['week']}, but it was submitted in week {expected}")
        return bool(row["week"] == expected)

    chosen = select(select(table.keep(good), "vc", vc), "week", week)
    start_s = 0 if week is None else min((row["week"] for row in chosen.rows), default=0) * WEEK_S
    listed = (
        ListedJob(
            row,
            chosen.where(row),
            row["submit_s"] - start_s,
            _SECOND_OF_TRAINING.name,
            row["num_gpus"],
            row["duration_s"],
        )
        for row in chosen.rows
    )
    made = lower(listed, [_SECOND_OF_TRAINING], collector, saving, unit="s")
    clock = "2017-09-04 00:00" if week is None else f"the start of week {week}"
    notes = (
        f"Arrivals count from {clock}.",
        "Jobs take as long on any GPU: the trace has neither model nor GPU type. A worker is taken to demand the whole "
        "of its GPU's compute, and workers to exchange nothing (the length holds what they did).",
        "The list has no failures, users, queueing or placement; weeks 4, 9 and 14 are not in it.",
        saving.note("chosen"),
        *chosen.notes,
    )
    return FileContents(
        "philly-jobs",
        str(path),
        made.kernels,
        made.graphs,
        made.jobs,
        tables={"jobs": made.rows},
        notes=notes,
        problems=tuple(collector.problems),
    )


def read_clusters(path: Path, collector: Collector) -> FileContents:
    """How many machines each virtual cluster has: a table."""
    table = unique(read_table(path, collector, _CLUSTERS), collector, lambda row: row["vc"])
    notes = (
        "Eleven of the trace's fifteen virtual clusters are listed, and not how many GPUs a machine has: no topology.",
        *table.notes,
    )
    return FileContents(
        "philly-clusters", str(path), tables={"machines": table.rows}, notes=notes, problems=tuple(collector.problems)
    )


def read_active(path: Path, collector: Collector) -> FileContents:
    """How many machines were active, every tenth minute: a table."""
    table = read_table(path, collector, _ACTIVE)

    def good(row: CsvRow) -> bool:
        if row["active_nodes"] > row["total_nodes"]:
            collector.bad(table.where(row), f"{row['active_nodes']} of {row['total_nodes']} machines are active")
        return bool(row["active_nodes"] <= row["total_nodes"])

    table = unique(table.keep(good), collector, lambda row: row["time"])
    totals = sorted({row["total_nodes"] for row in table.rows})
    notes = ["It holds no jobs.", *table.notes]
    if len(totals) > 1:
        notes.append(f"total_nodes is not always the same: {', '.join(map(str, totals))}.")
    return FileContents(
        "philly-active",
        str(path),
        tables={"active": table.rows},
        notes=tuple(notes),
        problems=tuple(collector.problems),
    )


PHILLY_FORMATS = (
    Format(
        "philly-jobs", "Philly: training jobs with arrivals and lengths", has_columns(*_PHILLY_JOB_COLUMNS), read_jobs
    ),
    Format("philly-clusters", "Philly: machines of the virtual clusters", has_columns(*_CLUSTERS), read_clusters),
    Format("philly-active", "Philly: active machines over time", has_columns(*_ACTIVE), read_active),
)
