"""True speeds of training jobs, alone and sharing a GPU, from measured tables.

Gavel's tables hold measurements of 83 jobs (a model and batch size on one to eight GPUs): rates alone, packed on one
machine or spread over several, and rates of pairs on one GPU. The clusters of Pollux, Shockwave and Muri have one kind
of GPU and no pairs, so they add nothing here; `benchmarks/contention` uses Pollux's placements to judge the rule for
exchange.

What the tables do not contain:

- *Unpublished pairs* (a fifth is held out) are composed from what each job causes and suffers on that GPU: a
  log-additive fit with a median error of 10 to 20%. `MeasuredSpeeds.composed` lists them.
- *Pairs that do not fit in memory* must not share. If they do, each runs at a twentieth of its speed.
- *Jobs of several GPUs* were never measured sharing. They are given the whole memory, so that nothing can share.
- *Three or more on a GPU*: the costs of the neighbours are added (docs/concepts/simulation.md).
- *Recommendation* was measured twice, with results up to twelve times apart. It is in the tables, because Gavel's
  simulations use it, but in no drawn workload.

`scenario_speeds` perturbs the tables for each scenario (rates, pairs, sensitivities, cost of crowding), so that no
policy can know them by heart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from symphony.lowering import readers
from symphony.lowering.readers.gavel import PLACEMENTS, rates_of
from symphony.lowering.readers.job_lists import JobShape
from symphony.problem.errors import DataError
from symphony.problem.speeds import Speeds
from symphony.problem.topology import Topology
from symphony.problem.workload import Kernel, Profile

REPEAT_LOG_STD = 0.06  # deviation of the log of repeated measurements of one rate
SENSITIVITY_LOG_STD = 0.15  # deviation, between scenarios, of the log of what a job suffers and causes
MAX_CROWDING = 0.3  # largest cost of every neighbour after the first
THRASHING_SPEED = 0.05  # relative speed of jobs that do not fit together
DOUBTFUL_MODELS = frozenset({"Recommendation"})
PAIR_FIT_RIDGE = 1.0  # regularisation of the fit that composes pairs, in measurements

Pair = tuple[JobShape, JobShape, str]


@dataclass(frozen=True)
class MeasuredSpeeds:
    """Measured speeds. GPUs are device kinds."""

    rates: Mapping[tuple[JobShape, str], tuple[float, float]]  # steps per second: packed, spread
    kept: Mapping[Pair, float]  # share of the speed beside the other; both orders of every pair that fits
    unfit: frozenset[Pair]  # do not fit together
    composed: frozenset[Pair]  # not measured but composed

    @property
    def shapes(self) -> tuple[JobShape, ...]:
        return tuple(dict.fromkeys(shape for shape, _ in self.rates))

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(gpu for _, gpu in self.rates))


def measured(folder: Path) -> MeasuredSpeeds:
    """Gavel's tables in a folder."""
    rates = readers.read(folder / "isolated_throughput.csv", "gavel-rates").tables["rates"]
    pairs = readers.read(folder / "colocated_pairs.csv", "gavel-pairs").tables["pairs"]
    packed, spread = (rates_of(rates, placement) for placement in PLACEMENTS)
    both = {
        (shape, gpu): (steps, spread.get(shape, {}).get(gpu) or steps)
        for shape, on in packed.items()
        for gpu, steps in on.items()
        if steps
    }
    kept: dict[Pair, float] = {}
    unfit: set[Pair] = set()
    for row in pairs:
        a, b = JobShape(row["model_a"], row["batch_a"], 1), JobShape(row["model_b"], row["batch_b"], 1)
        if row["fits_together"] in ("0", 0, False):
            unfit |= {(a, b, row["gpu"]), (b, a, row["gpu"])}
            continue
        for one, other, side in ((a, b, "a"), (b, a, "b")):
            share = row[f"steps_per_s_{side}"] / row[f"isolated_{side}"]
            kept[one, other, row["gpu"]] = float(np.clip(share, THRASHING_SPEED, 1.0))
    if not both or not kept:
        raise DataError("there are no rates or no pairs", where=str(folder), hint="name the folder of Gavel's tables")
    known = MeasuredSpeeds(both, kept, frozenset(unfit), frozenset())
    filled = with_composed_pairs(known)
    return replace(known, kept=kept | filled, composed=frozenset(filled))


def with_composed_pairs(table: MeasuredSpeeds) -> dict[Pair, float]:
    """The missing pairs, by a fit for each GPU: log kept = mean + what one suffers + what the other causes."""
    found: dict[Pair, float] = {}
    for gpu in table.gpus:
        jobs = [shape for shape in table.shapes if shape.gpus == 1 and (shape, gpu) in table.rates]
        index = {shape: number for number, shape in enumerate(jobs)}
        seen = [(index[a], index[b], np.log(kept)) for (a, b, g), kept in table.kept.items() if g == gpu]
        one, other, y = (np.asarray(column) for column in zip(*seen, strict=True))
        columns = np.zeros((len(y), 2 * len(jobs)))
        columns[np.arange(len(y)), one.astype(int)] = 1
        columns[np.arange(len(y)), len(jobs) + other.astype(int)] = 1
        middle = y.mean()
        weights = np.linalg.solve(
            columns.T @ columns + PAIR_FIT_RIDGE * np.eye(columns.shape[1]), columns.T @ (y - middle)
        )
        for a in jobs:
            for b in jobs:
                if (a, b, gpu) not in table.kept and (a, b, gpu) not in table.unfit:
                    log = middle + weights[index[a]] + weights[len(jobs) + index[b]]
                    found[a, b, gpu] = float(np.clip(np.exp(log), THRASHING_SPEED, 1.0))
    return found


def as_measured(table: MeasuredSpeeds, shapes: Iterable[JobShape]) -> Speeds:
    """True speeds that equal the tables."""
    wanted = set(shapes)
    unit_s = {
        (str(shape), gpu): (1 / packed, 1 / spread)
        for (shape, gpu), (packed, spread) in table.rates.items()
        if shape in wanted
    }
    beside = {(str(a), str(b), gpu): kept for (a, b, gpu), kept in table.kept.items() if {a, b} <= wanted}
    beside |= {(str(a), str(b), gpu): THRASHING_SPEED for a, b, gpu in table.unfit if {a, b} <= wanted}
    return Speeds(unit_s, beside)


def scenario_speeds(truth: Speeds, seed: int, *, strength: float = 1.0) -> Speeds:
    """True speeds of one scenario. `strength` scales all perturbations; 0 = `truth` unchanged."""
    rng = np.random.default_rng([seed, 3])
    names = sorted({kernel for kernel, _ in truth.unit_s})
    suffers, does = (
        dict(zip(names, rng.normal(0, SENSITIVITY_LOG_STD * strength, len(names)), strict=True)) for _ in "ab"
    )

    def repeat() -> float:
        return float(np.exp(rng.normal(0, REPEAT_LOG_STD * strength)))

    unit_s = {}
    for place, (packed, spread) in truth.unit_s.items():
        slower = repeat()
        unit_s[place] = (packed * slower, spread * slower * (repeat() if spread != packed else 1.0))
    beside = {}
    for (one, other, kind), kept in truth.beside.items():
        # A power keeps shares between 0 and 1; a job that loses nothing loses nothing in any scenario.
        power = np.exp(suffers[one] + does[other]) * repeat()
        beside[one, other, kind] = (
            float(np.clip(kept**power, THRASHING_SPEED, 1.0)) if kept > THRASHING_SPEED else THRASHING_SPEED
        )
    return Speeds(unit_s, beside, float(rng.uniform(0, MAX_CROWDING * strength)))


def believed_speeds(speeds: Speeds, never: Iterable[Pair]) -> Speeds:
    """Speeds as policies believe them: the same, except that the pairs `never` must not share."""
    forbidden = {(str(a), str(b), gpu) for a, b, gpu in never}
    return replace(speeds, beside=dict(speeds.beside) | {pair: 0.0 for pair in forbidden & speeds.beside.keys()})


def kernel_of(shape: JobShape, topology: Topology, seconds: Mapping[str, float]) -> Kernel:
    """A job as a kernel, with the `seconds` of a step on each device kind as its profile.

    It puts no load on any row, because the true speeds contain the cost of sharing. Gangs of several workers take the
    whole memory of their GPUs.
    """
    memory = {kind.name: kind.memory for kind in topology.kinds}
    part = 1.0 if shape.gpus > 1 else 1 / 16
    return Kernel(str(shape), {gpu: Profile(s, memory=memory[gpu] * part) for gpu, s in seconds.items()})
