"""Gavel's measured rates, its co-located pairs and its job lists.

A step's rate is that of the whole gang, as it was measured on that many GPUs. So there is a kernel for each (model,
batch, number of GPUs), and none of them exchanges anything: the measured step holds the exchange already.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from symphony.lowering.readers.job_lists import JobShape, ListedJob, StepRates, checkpoint_cost, lower, rate_kernel
from symphony.lowering.readers.reading import Collector, FileContents, Format
from symphony.lowering.readers.tables import (
    CsvRow,
    CsvTable,
    any_text,
    beside,
    blank_or,
    has_columns,
    number,
    one_of,
    rate,
    read_table,
    select,
    text,
    unique,
    whole,
    word_option,
)
from symphony.problem import limits
from symphony.problem.workload import Kernel

PLACEMENTS = ("consolidated", "unconsolidated")
UNMEASURED = ("refuse", "linear")
_GPU_COUNT = whole(1, limits.WORKERS_PER_GANG)
_GAVEL_RATE_COLUMNS = {
    "gpu": text,
    "placement": one_of(*PLACEMENTS),
    "model": text,
    "batch_size": blank_or(whole(1)),
    "num_gpus": _GPU_COUNT,
    "steps_per_s": rate,
}
_SECOND_RATE_COLUMN = {"steps_per_s_second_measurement": blank_or(rate)}
_PAIR_COLUMNS = {
    "gpu": text,
    "model_a": text,
    "batch_a": blank_or(whole(1)),
    "model_b": text,
    "batch_b": blank_or(whole(1)),
    "steps_per_s_a": rate,
    "steps_per_s_b": rate,
    "isolated_a": rate,
    "isolated_b": rate,
    "fits_together": one_of("0", "1"),
}
_GAVEL_JOB_COLUMNS = {
    "job": text,
    "model": text,
    "batch_size": blank_or(whole(1)),
    "total_steps": whole(1),
    "num_gpus": _GPU_COUNT,
    "priority_weight": number(),
    "arrival_s": number(),
}
_RATE_NOTES = (
    "The time of a step is that of the whole gang, measured on that many GPUs; the exchange between workers is in it.",
    "A worker is taken to demand the whole of its GPU's compute; what sharing really costs is in the table of pairs.",
    "The second measurement is kept in the table only. It agrees within about 6%, but that of Recommendation is 1.5 to "
    "12 times the first: never pool the two.",
    "Some scaling is better than linear, and some spread placements are faster than packed ones: noise of the "
    "measurement, kept as it is.",
)


def shape_of(row: CsvRow) -> JobShape:
    """What decides the rate of a row's job."""
    return JobShape(row["model"], row["batch_size"], row["num_gpus"])


def rates_of(rows: Iterable[CsvRow], placement: str) -> StepRates:
    """Rates of each shape on each GPU, from the rows of one placement."""
    rates: dict[JobShape, dict[str, float]] = {}
    for row in rows:
        if row["placement"] == placement:
            rates.setdefault(shape_of(row), {})[row["gpu"]] = row["steps_per_s"]
    return rates


def read_rates(path: Path, collector: Collector, *, placement: str = PLACEMENTS[0]) -> FileContents:
    """Measured rates: kernels for the GPUs that they fit, from the rows of one placement; all rows as a table."""
    placement = word_option("placement", placement, PLACEMENTS)
    table = _rate_table(path, collector)
    rates = rates_of(table.rows, placement)
    kernels = [rate_kernel(shape, on) for shape, on in rates.items()]
    unfit = [f"{shape} on {gpu}" for shape, on in rates.items() for gpu, steps in on.items() if not steps]
    notes = [
        f"Profiles are those of the {placement} placement (placement= takes the other); where nothing was measured, "
        "there is no implementation."
    ]
    if unfit:
        notes.append(f"A rate of 0 means that it does not fit, so there is no implementation: {', '.join(unfit)}.")
    return FileContents(
        "gavel-rates",
        str(path),
        kernels=tuple(kernel for kernel in kernels if kernel),
        tables={"rates": table.rows},
        notes=(*notes, *_RATE_NOTES, *table.notes),
        problems=tuple(collector.problems),
    )


def read_pairs(path: Path, collector: Collector) -> FileContents:
    """Rates of two jobs on one GPU, together and alone: a table, one row for each pair."""
    table = read_table(path, collector, _PAIR_COLUMNS)

    def good(row: CsvRow) -> bool:
        row["fits_together"] = row["fits_together"] == "1"
        runs = row["steps_per_s_a"] > 0 and row["steps_per_s_b"] > 0
        if row["fits_together"] != runs:
            said = "fits" if row["fits_together"] else "does not fit"
            rates = f"{row['steps_per_s_a']:g} and {row['steps_per_s_b']:g}"
            collector.bad(table.where(row), f"it is said that the pair {said} together, but its rates are {rates}")
        return bool(row["fits_together"] == runs)

    table = unique(table.keep(good), collector, _pair)
    unfit = sum(not row["fits_together"] for row in table.rows)
    return FileContents(
        "gavel-pairs",
        str(path),
        tables={"pairs": table.rows},
        notes=(
            "Pairs were measured on one GPU only. A pair is one observation: its mirror image is none, and is refused.",
            f"{unfit} of {len(table.rows)} pairs do not fit together: they are kept, marked, with rates of 0.",
            *table.notes,
        ),
        problems=tuple(collector.problems),
    )


def read_jobs(
    path: Path,
    collector: Collector,
    *,
    rates: str | None = None,
    placement: str = PLACEMENTS[0],
    unmeasured: str = UNMEASURED[0],
    vc: str | None = None,
    checkpoint_s: float | str = 0.0,
    restore_s: float | str = 0.0,
) -> FileContents:
    """A job list: gangs of `num_gpus` workers for `total_steps` steps, at the rates of another file.

    Gangs of a width that nobody measured are bad records, unless `unmeasured` is `linear`: then the rate of the widest
    measured gang is scaled.
    """
    placement = word_option("placement", placement, PLACEMENTS)
    linear = word_option("unmeasured", unmeasured, UNMEASURED) == "linear"
    saving = checkpoint_cost(checkpoint_s, restore_s)
    rates_path = beside(path, rates, path.absolute().parent.parent / "isolated_throughput.csv", "rates")
    measured = rates_of(_rate_table(rates_path, collector).rows, placement)
    table = read_table(path, collector, _GAVEL_JOB_COLUMNS, extra={"vc": any_text})
    several = len({row["vc"] for row in table.rows})
    table = select(table, "vc", vc)
    kernels: dict[JobShape, Kernel | None] = {}
    listed = []
    for row in table.rows:
        shape = shape_of(row)
        if shape not in kernels:
            on = _scaled(measured, shape) if linear and shape not in measured else measured.get(shape, {})
            kernels[shape] = rate_kernel(shape, on)
        if kernels[shape] is None:
            why = (
                "fits no GPU"
                if shape in measured
                else "has no measured rate (unmeasured=linear would scale a narrower gang's)"
            )
            collector.bad(table.where(row), f"{shape} {why}")
            continue
        steps = float(row["total_steps"])
        listed.append(ListedJob(row, table.where(row), row["arrival_s"], str(shape), row["num_gpus"], steps))
    made = lower(listed, filter(None, kernels.values()), collector, saving, unit="steps")
    notes = [
        f"Rates are the {placement} ones of {rates_path.name}.",
        saving.note("usually nothing, as in Gavel's own simulator"),
        "The built-in topology gpu24 is the cluster of Gavel's published simulations of one-GPU jobs.",
        "priority_weight is a share, not an urgency: it is kept in the table of jobs only.",
    ]
    if several > 1 and vc is None:
        notes.append(f"The lists of {several} virtual clusters run on one clock; vc= takes one of them.")
    guessed = sorted(str(shape) for shape, kernel in kernels.items() if kernel and shape not in measured)
    if guessed:
        names = ", ".join(guessed)
        notes.append(f"Not measured, so scaled from the widest gang that was: {names}.")
    return FileContents(
        "gavel-jobs",
        str(path),
        made.kernels,
        made.graphs,
        made.jobs,
        tables={"jobs": made.rows},
        notes=(*notes, *_RATE_NOTES[:2], *table.notes),
        problems=tuple(collector.problems),
    )


def _rate_table(path: Path, collector: Collector) -> CsvTable:
    table = read_table(path, collector, _GAVEL_RATE_COLUMNS, extra=_SECOND_RATE_COLUMN)
    return unique(table, collector, lambda row: (row["gpu"], row["placement"], shape_of(row)))


def _scaled(rates: StepRates, shape: JobShape) -> dict[str, float]:
    """Rates in proportion to those of the widest measured gang of the same model and batch that is narrower."""
    narrower = [s for s in rates if s[:2] == shape[:2] and s.gpus < shape.gpus]
    if not narrower:
        return {}
    widest = max(narrower, key=lambda s: s.gpus)
    return {gpu: steps * shape.gpus / widest.gpus for gpu, steps in rates[widest].items()}


def _pair(row: CsvRow) -> object:
    """The same for a pair and for its mirror image."""
    a, b = (row["model_a"], row["batch_a"] or 0), (row["model_b"], row["batch_b"] or 0)
    return row["gpu"], min(a, b), max(a, b)


GAVEL_FORMATS = (
    Format(
        "gavel-rates",
        "Gavel: steps per second of training jobs on V100, P100 and K80",
        has_columns("gpu", "placement", "model", "batch_size", "num_gpus", "steps_per_s"),
        read_rates,
    ),
    Format(
        "gavel-pairs",
        "Gavel: rates of two training jobs that share a GPU",
        has_columns("gpu", "model_a", "batch_a", "model_b", "batch_b", "fits_together"),
        read_pairs,
    ),
    Format(
        "gavel-jobs",
        "Gavel: lists of training jobs with their arrivals",
        has_columns("model", "batch_size", "total_steps", "num_gpus", "arrival_s", without=("adaptation",)),
        read_jobs,
    ),
)
