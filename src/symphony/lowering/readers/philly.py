"""Microsoft's Philly trace: jobs with their lengths and virtual clusters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from symphony.lowering.readers.job_lists import WHOLE_GPU_DEMAND, ListedJob, checkpoint_cost, lower
from symphony.lowering.readers.reading import Collector, FileContents, Format
from symphony.lowering.readers.tables import CsvRow, clock, has_columns, number, read_table, text, whole
from symphony.problem import limits
from symphony.problem.workload import Kernel, Profile

WEEK_S = 7 * 86400
_PHILLY_JOB_COLUMNS = {
    "week": whole(),
    "submit_s": clock,
    "duration_s": number(low=1e-3),
    "num_gpus": whole(1, limits.WORKERS_PER_GANG),
    "vc": text,
}
# A unit of work is a second of training: the trace says how long jobs ran, not which steps they made.
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
    preemption = checkpoint_cost(checkpoint_s, restore_s)

    def wrong_week(row: CsvRow) -> str:
        expected = int(row["submit_s"] // WEEK_S)
        agrees = row["week"] == expected
        return "" if agrees else f"week is {row['week']}, but the job was submitted in week {expected}"

    table = read_table(path, collector, _PHILLY_JOB_COLUMNS).checked(collector, wrong_week)
    table = table.select("vc", vc).select("week", week)
    start_s = 0 if week is None else min((row["week"] for row in table.rows), default=0) * WEEK_S
    name = _SECOND_OF_TRAINING.name
    listed = (
        ListedJob(row, table.where(row), row["submit_s"] - start_s, name, row["num_gpus"], row["duration_s"])
        for row in table.rows
    )
    start = "2017-09-04 00:00" if week is None else f"the start of week {week}"
    notes = (
        f"Arrivals count from {start}.",
        "Jobs take as long on any GPU: the trace has neither model nor GPU type. A worker is assumed to demand all of "
        "its GPU's compute and to exchange nothing (the length includes the exchange).",
        "The list has no failures, users, queueing or placement; weeks 4, 9 and 14 are not in it.",
        preemption.note("chosen"),
        *table.notes,
    )
    contents = lower(listed, [_SECOND_OF_TRAINING], collector, preemption, unit="s")
    return replace(contents, notes=(*notes, *contents.notes))


PHILLY_FORMAT = Format(
    "philly-jobs", "Philly: training jobs with arrivals and lengths", has_columns(*_PHILLY_JOB_COLUMNS), read_jobs
)
