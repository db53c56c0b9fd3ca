"""The cost of unseen work: `python -m benchmarks.unseen [--only CASE …] [--quick] [--json FILE]`.

The shipped weights on kernels, a cluster and a family of graphs that they were not trained on, against weights that
were trained further on these alone. Both run the same scenarios, which neither has seen.

Unfair to the shipped weights: the others were trained for longer, and for one case only. Unfair to the others: they
have minutes. It needs an accelerator; processes with a case each (`--only`) may share it, and a file: `--json FILE`
keeps the results of other cases.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import keep, parser
from symphony.evaluation.scorecard import FIRST_HELD_OUT_SEED
from symphony.evaluation.statistics import paired
from symphony.learning.train import (
    RoundSize,
    ScenarioDistribution,
    TrainingRound,
    TrainingScenarios,
    compare_with_rivals,
    draw,
    train,
)
from symphony.learning.update import PPO
from symphony.policies import SHIPPED, Learned, named, save
from symphony.problem.topologies import topology
from symphony.simulator.contention import Bottleneck
from symphony.simulator.scenarios import stack
from tests.compiling import compile_quickly

RIVAL = "eft-belief"
SIZE = RoundSize(pool=96, scenarios=64, validation=40, every=12)
AIM = 1.03


@dataclass(frozen=True)
class Case:
    """Something that was not trained on."""

    topology: str
    workloads: tuple[str, ...]

    def course(self) -> ScenarioDistribution:
        """The scenarios of the training."""
        return ScenarioDistribution(topology(self.topology), self.workloads, (0.5, 1.0), 24)


CASES = {
    "kernels": Case("paper", ("layered?heterogeneity=2&ccr=0.1&kernels=6",)),  # with twice the heterogeneity
    "cluster": Case("fat-tree:16", ("layered", "eeg")),
    "family": Case("paper", ("series-parallel",)),
}


def held_out(course: ScenarioDistribution, drawn: TrainingScenarios, seeds: int) -> TrainingScenarios:
    """Scenarios that were used neither for training nor for validation."""
    held = [course.scenario(seed) for seed in range(FIRST_HELD_OUT_SEED, FIRST_HELD_OUT_SEED + seeds)]
    fresh = replace(drawn, held=held, validation=stack(held), rivals=np.ones(seeds))
    return replace(fresh, rivals=compare_with_rivals(fresh, named(RIVAL), Bottleneck()))


def measure(case: Case, rounds: int, minutes: float, rate: float, size: RoundSize, out: Path | None) -> dict[str, Any]:
    """Train further, and compare mean completion times over the rival's, by scenario."""
    course, method, shipped = case.course(), replace(PPO, rate=rate), named(SHIPPED)
    assert isinstance(shipped, Learned)
    drawn = draw(course, size, method, Bottleneck(), (RIVAL,))

    def tell(told: TrainingRound) -> None:
        print(f"round {told.number + 1} {told.seconds:.0f} s {told.rate:,.0f}/s {told.against or ''}", flush=True)

    trained, history = train(
        topology=course.topology,
        workload=list(case.workloads),
        rounds=rounds,
        minutes=minutes,
        start=shipped,
        size=size,
        method=method,
        drawn_before=[drawn],
        tell=tell,
    )
    if out is not None:
        save(out, trained.network, {"topologies": [case.topology], "workloads": list(case.workloads)})
    test = held_out(course, drawn, size.validation)
    return {
        "shipped": compare_with_rivals(test, shipped, Bottleneck()).tolist(),
        "trained": compare_with_rivals(test, trained, Bottleneck()).tolist(),
        "looks": [(told.number + 1, told.against) for told in history if told.against is not None],
        "decisions": history[-1].decisions,
        "seconds": history[-1].seconds,
    }


def table(found: dict[str, dict[str, Any]]) -> Table:
    """A table with a row for each case."""
    shown = Table(title=f"mean completion time against {RIVAL}, geometric means; loss of not having seen it")
    for column in ("case", "shipped", "trained on it", "shipped / trained (95%)", f"aim: {AIM}", "decisions"):
        shown.add_column(column)
    for name, row in found.items():
        ratio = paired(row["shipped"], row["trained"]).ratio
        assert ratio is not None
        shown.add_row(
            name,
            *(f"{np.exp(np.mean(np.log(row[who]))):.3f}" for who in ("shipped", "trained")),
            f"{ratio.value:.3f} ({ratio.low:.3f} … {ratio.high:.3f})",
            "met" if ratio.value <= AIM else "missed",
            f"{row['decisions']:,}",
        )
    return shown


def main() -> None:
    """Measure the cases."""
    given = parser((__doc__ or "").splitlines()[0], tuple(CASES))
    given.add_argument("--rounds", type=int, default=36)
    given.add_argument("--minutes", type=float, default=float("inf"), help="of training, for each case")
    given.add_argument("--rate", type=float, default=1e-3, help="of learning, at first")
    given.add_argument("--weights", type=Path, metavar="FOLDER", help="keep what was trained")
    options = given.parse_args()
    size = replace(SIZE, pool=4, scenarios=2, group=2, validation=4, every=1) if options.quick else SIZE
    rounds = 1 if options.quick else options.rounds
    if options.quick:
        compile_quickly()  # most of the time is compilation
    for name in options.only[: 1 if options.quick else None]:
        out = None if options.weights is None else options.weights / f"{name}.policy"
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
        case = Case("machine", ("cholesky:3?jobs=2",)) if options.quick else CASES[name]
        row = measure(case, rounds, options.minutes, options.rate, size, out)
        there = options.json is not None and options.json.exists()
        kept = json.loads(options.json.read_text())["cases"] if there else {}
        keep(options.json, cases=kept | {name: row})
        Console().print(table(kept | {name: row}))


if __name__ == "__main__":
    main()
