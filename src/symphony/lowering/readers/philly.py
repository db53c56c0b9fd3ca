"""Microsoft's Philly trace: jobs with their lengths, virtual clusters, and how many machines were active."""

from __future__ import annotations

from pathlib import Path

from symphony.lowering.readers.job_lists import WHOLE, Listed, lower, saving_options
from symphony.lowering.readers.reading import Collector, Format, Reading
from symphony.lowering.readers.tables import (
    Row,
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
_JOBS = {
    "week": whole(),
    "submit_s": number(),
    "duration_s": number(low=1e-3),
    "num_gpus": whole(1, limits.WORKERS_PER_GANG),
    "vc": text,
}
_CLUSTERS = {"vc": text, "nodes": whole(1)}
_ACTIVE = {"time": moment, "active_nodes": whole(), "total_nodes": whole()}
# A second of training: the trace says how long jobs ran, not what they did.
_KERNEL = Kernel("training", {"gpu": Profile(fixed_s=1.0, demand=WHOLE)})


def read_jobs(
    path: Path,
    collector: Collector,
    *,
    week: int | str | None = None,
    vc: str | None = None,
    checkpoint_s: float | str = 10.0,
    restore_s: float | str = 30.0,
) -> Reading:
    """Jobs: gangs of `num_gpus` workers that take `duration_s` on any GPU."""
    saving = saving_options(checkpoint_s, restore_s)
    table = read_table(path, collector, _JOBS)

    def good(row: Row) -> bool:
        expected = int(row["submit_s"] // WEEK_S)
        if row["week"] != expected:
            collector.bad(table.where(row), f"week is {row['week']}, but it was submitted in week {expected}")
        return bool(row["week"] == expected)

    chosen = select(select(table.keep(good), "vc", vc), "week", week)
    start_s = 0 if week is None else min((row["week"] for row in chosen.rows), default=0) * WEEK_S
    listed = (
        Listed(
            row,
            chosen.where(row),
            row["submit_s"] - start_s,
            _KERNEL.name,
            row["num_gpus"],
            row["duration_s"],
        )
        for row in chosen.rows
    )
    made = lower(listed, [_KERNEL], collector, saving, unit="s")
    clock = "2017-09-04 00:00" if week is None else f"the start of week {week}"
    notes = (
        f"Arrivals count from {clock}.",
        "Jobs take as long on any GPU: the trace has neither model nor GPU type. A worker is taken to demand the whole "
        "of its GPU's compute, and workers to exchange nothing (the length holds what they did).",
        "The list has no failures, users, queueing or placement; weeks 4, 9 and 14 are not in it.",
        saving.note("chosen"),
        *chosen.notes,
    )
    return Reading(
        "philly-jobs",
        str(path),
        made.kernels,
        made.graphs,
        made.jobs,
        tables={"jobs": made.rows},
        notes=notes,
        problems=tuple(collector.problems),
    )


def read_clusters(path: Path, collector: Collector) -> Reading:
    """How many machines each virtual cluster has: a table."""
    table = unique(read_table(path, collector, _CLUSTERS), collector, lambda row: row["vc"])
    notes = (
        "Eleven of the trace's fifteen virtual clusters are listed, and not how many GPUs a machine has: no topology.",
        *table.notes,
    )
    return Reading(
        "philly-clusters", str(path), tables={"machines": table.rows}, notes=notes, problems=tuple(collector.problems)
    )


def read_active(path: Path, collector: Collector) -> Reading:
    """How many machines were active, every tenth minute: a table."""
    table = read_table(path, collector, _ACTIVE)

    def good(row: Row) -> bool:
        if row["active_nodes"] > row["total_nodes"]:
            collector.bad(table.where(row), f"{row['active_nodes']} of {row['total_nodes']} machines are active")
        return bool(row["active_nodes"] <= row["total_nodes"])

    table = unique(table.keep(good), collector, lambda row: row["time"])
    totals = sorted({row["total_nodes"] for row in table.rows})
    notes = ["It holds no jobs.", *table.notes]
    if len(totals) > 1:
        notes.append(f"total_nodes is not always the same: {', '.join(map(str, totals))}.")
    return Reading(
        "philly-active",
        str(path),
        tables={"active": table.rows},
        notes=tuple(notes),
        problems=tuple(collector.problems),
    )


FORMATS = (
    Format("philly-jobs", "Philly: training jobs with arrivals and lengths", has_columns(*_JOBS), read_jobs),
    Format("philly-clusters", "Philly: machines of the virtual clusters", has_columns(*_CLUSTERS), read_clusters),
    Format("philly-active", "Philly: active machines over time", has_columns(*_ACTIVE), read_active),
)
