"""Gavel's measured rates, its co-located pairs and its job lists.

A rate is that of a step of the whole gang, measured on that many GPUs. So there is a kernel for each (model, batch,
number of GPUs), without `exchange_bytes`: the measured step includes the exchange.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from symphony.lowering.readers import tables
from symphony.lowering.readers.job_lists import JobShape, ListedJob, StepRates, checkpoint_cost, lower, rate_kernel
from symphony.lowering.readers.reading import Collector, FileContents, Format
from symphony.lowering.readers.tables import CsvRow, CsvTable
from symphony.problem import limits
from symphony.problem.workload import Kernel

PLACEMENTS = ("consolidated", "unconsolidated")
UNMEASURED = ("refuse", "linear")
_GPU_COUNT = tables.whole(1, limits.WORKERS_PER_GANG)
_GAVEL_RATE_COLUMNS = {
    "gpu": tables.text,
    "placement": tables.one_of(*PLACEMENTS),
    "model": tables.text,
    "batch_size": tables.blank_or(tables.whole(1)),
    "num_gpus": _GPU_COUNT,
    "steps_per_s": tables.rate,
}
_SECOND_RATE_COLUMN = {"steps_per_s_second_measurement": tables.blank_or(tables.rate)}
_PAIR_COLUMNS = {
    "gpu": tables.text,
    "model_a": tables.text,
    "batch_a": tables.blank_or(tables.whole(1)),
    "model_b": tables.text,
    "batch_b": tables.blank_or(tables.whole(1)),
    "steps_per_s_a": tables.rate,
    "steps_per_s_b": tables.rate,
    "isolated_a": tables.rate,
    "isolated_b": tables.rate,
    "fits_together": tables.one_of("0", "1"),
}
_GAVEL_JOB_COLUMNS = {
    "job": tables.text,
    "model": tables.text,
    "batch_size": tables.blank_or(tables.whole(1)),
    "total_steps": tables.whole(1),
    "num_gpus": _GPU_COUNT,
    "priority_weight": tables.number(),
    "arrival_s": tables.clock,
}
_RATE_NOTES = (
    "The time of a step is that of the whole gang, measured on that many GPUs, exchange between workers included.",
    "A worker is assumed to demand all of its GPU's compute; the table of pairs has the measured cost of sharing.",
    "The second measurement is kept in the table only. It agrees within about 6%, except for Recommendation, where it "
    "is 1.5 to 12 times the first: never pool the two.",
    "Some scaling is better than linear, and some spread placements are faster than packed ones: measurement noise, "
    "kept as it is.",
)


def shape_of(row: CsvRow) -> JobShape:
    return JobShape(row["model"], row["batch_size"], row["num_gpus"])


def rates_of(rows: Iterable[CsvRow], placement: str) -> StepRates:
    """Rates of each shape on each GPU, from the rows of one placement."""
    rates: dict[JobShape, dict[str, float]] = {}
    for row in rows:
        if row["placement"] == placement:
            rates.setdefault(shape_of(row), {})[row["gpu"]] = row["steps_per_s"]
    return rates


def read_rates(path: Path, collector: Collector, *, placement: str = PLACEMENTS[0]) -> FileContents:
    """Kernels from the rates of one placement; the table `rates` has all rows."""
    placement = tables.option_value("placement", placement, tables.one_of(*PLACEMENTS))
    table = _rate_table(path, collector)
    rates = rates_of(table.rows, placement)
    kernels = [rate_kernel(shape, on) for shape, on in rates.items()]
    unfit = [f"{shape} on {gpu}" for shape, on in rates.items() for gpu, steps in on.items() if not steps]
    notes = [
        f"Profiles are those of the {placement} placement (placement= selects the other); where nothing was measured, "
        "there is no implementation."
    ]
    if unfit:
        notes.append(f"A rate of 0 means that the job does not fit, so there is no implementation: {', '.join(unfit)}.")
    return FileContents(
        kernels=tuple(kernel for kernel in kernels if kernel),
        tables={"rates": table.rows},
        notes=(*notes, *_RATE_NOTES, *table.notes),
    )


def read_pairs(path: Path, collector: Collector) -> FileContents:
    """The table `pairs`: rates of two jobs on one GPU, together and alone."""

    def contradiction(row: CsvRow) -> str:
        row["fits_together"] = row["fits_together"] == "1"
        if row["fits_together"] == (row["steps_per_s_a"] > 0 and row["steps_per_s_b"] > 0):
            return ""
        fits = "1" if row["fits_together"] else "0"
        return f"fits_together is {fits}, but the rates are {row['steps_per_s_a']:g} and {row['steps_per_s_b']:g}"

    def pair(row: CsvRow) -> object:
        """Equal for a pair and for its mirror image."""
        a, b = (row["model_a"], row["batch_a"] or 0), (row["model_b"], row["batch_b"] or 0)
        return row["gpu"], min(a, b), max(a, b)

    table = tables.read_table(path, collector, _PAIR_COLUMNS).checked(collector, contradiction).unique(collector, pair)
    unfit = sum(not row["fits_together"] for row in table.rows)
    notes = (
        "Pairs were measured on one GPU only. A pair is one observation: its mirror image is refused as a repeat.",
        f"{unfit} of {len(table.rows)} pairs do not fit together: they are kept, marked, with rates of 0.",
    )
    return FileContents(tables={"pairs": table.rows}, notes=(*notes, *table.notes))


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

    A gang of a width that was not measured is a bad record, unless `unmeasured` is `linear`: then the rate of the
    widest measured gang is scaled.
    """
    placement = tables.option_value("placement", placement, tables.one_of(*PLACEMENTS))
    linear = tables.option_value("unmeasured", unmeasured, tables.one_of(*UNMEASURED)) == "linear"
    preemption = checkpoint_cost(checkpoint_s, restore_s)
    usual = path.absolute().parent.parent / "isolated_throughput.csv"
    rates_path = tables.companion(path, rates, usual, hint="write rates=PATH of that file")
    measured = rates_of(_rate_table(rates_path, collector).rows, placement)
    table = tables.read_table(path, collector, _GAVEL_JOB_COLUMNS, optional={"vc": tables.any_text})
    clusters = len({row["vc"] for row in table.rows})
    table = table.select("vc", vc)
    kernels: dict[JobShape, Kernel | None] = {}
    listed = []
    for row in table.rows:
        shape = shape_of(row)
        if shape not in kernels:
            on = _scaled(measured, shape) if linear and shape not in measured else measured.get(shape, {})
            kernels[shape] = rate_kernel(shape, on)
        if kernels[shape] is None:
            unknown = "has no measured rate (unmeasured=linear would scale that of a narrower gang)"
            collector.bad(table.where(row), f"{shape} {'fits no GPU' if shape in measured else unknown}")
            continue
        steps = float(row["total_steps"])
        listed.append(ListedJob(row, table.where(row), row["arrival_s"], str(shape), row["num_gpus"], steps))
    notes = [
        f"Rates are the {placement} ones of {rates_path.name}.",
        preemption.note("by default nothing, as in Gavel's own simulator"),
        "The built-in topology gpu24 is the cluster of Gavel's published simulations of one-GPU jobs.",
        "priority_weight is a share, not an urgency: it is kept in the table of jobs only.",
    ]
    if clusters > 1 and vc is None:
        notes.append(f"The lists of {clusters} virtual clusters share one clock; vc= selects one of them.")
    guessed = sorted(str(shape) for shape, kernel in kernels.items() if kernel and shape not in measured)
    if guessed:
        notes.append(f"Not measured, so scaled from the widest measured gang: {', '.join(guessed)}.")
    contents = lower(listed, filter(None, kernels.values()), collector, preemption, unit="steps")
    return replace(contents, notes=(*notes, *contents.notes, *_RATE_NOTES[:2], *table.notes))


def _rate_table(path: Path, collector: Collector) -> CsvTable:
    table = tables.read_table(path, collector, _GAVEL_RATE_COLUMNS, optional=_SECOND_RATE_COLUMN)
    return table.unique(collector, lambda row: (row["gpu"], row["placement"], shape_of(row)))


def _scaled(rates: StepRates, shape: JobShape) -> dict[str, float]:
    """Rates in proportion to those of the widest measured gang of the same model and batch that is narrower."""
    narrower = [s for s in rates if s[:2] == shape[:2] and s.gpus < shape.gpus]
    if not narrower:
        return {}
    widest = max(narrower, key=lambda s: s.gpus)
    return {gpu: steps * shape.gpus / widest.gpus for gpu, steps in rates[widest].items()}


GAVEL_FORMATS = (
    Format(
        "gavel-rates",
        "Gavel: steps per second of training jobs on V100, P100 and K80",
        tables.has_columns(*_GAVEL_RATE_COLUMNS),
        read_rates,
    ),
    Format(
        "gavel-pairs",
        "Gavel: rates of two training jobs that share a GPU",
        tables.has_columns("gpu", "model_a", "batch_a", "model_b", "batch_b", "fits_together"),
        read_pairs,
    ),
    Format(
        "gavel-jobs",
        "Gavel: lists of training jobs with their arrivals",
        tables.has_columns("model", "batch_size", "total_steps", "num_gpus", "arrival_s", without=("adaptation",)),
        read_jobs,
    ),
)
