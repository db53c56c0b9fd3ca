"""The effect of each part of the learned policy: `python -m benchmarks.ablation [--quick] [--json FILE]`.

A cell is the policy without one part, or without most parts. All cells are trained with the same scenarios, seeds and
number of decisions. Like the paper's RNN, the black box sees raw readings of all devices, the graph and isolated times.
*shortlist only* sees the same, but only of devices where a gang would finish early. Reported are the final quality
(mean completion time on validation scenarios over that of earliest finish with the true state), the decisions until a
fixed quality is reached, and the time.

Unfair to the cells: learning rate and sizes were chosen for the whole policy. Unfair to the whole policy: every cell
considers the same few gangs and, except for the black box, the same few devices, chosen by earliest finish. Figures are
stored after each validation; the same command continues with the missing cells. One cell is trained while the next are
compiled, so other load of the cores slows both.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import keep
from benchmarks.train_seeds import train_seeds
from symphony.learning.train import RoundSize, ScenarioDistribution, TrainingRound, TrainingScenarios, draw
from symphony.learning.update import A2C, PPO, Method
from symphony.policies.learned import STANDARD, Sizes
from symphony.problem.topologies import topology
from symphony.simulator.contention import Bottleneck
from symphony.simulator.scenarios import Disturbances
from tests.compiling import compile_quickly

WORKLOADS = ("variant-calling:1", "layered", "eeg", "intrusion:20")
RIVAL = "eft-exact"
AHEAD = 2  # cells compiled while one is trained: for an accelerator, a program takes a minute or more
REACH = 0.98  # of the rival's mean completion time: the fixed quality


@dataclass(frozen=True)
class Cell:
    """One way to build and train the policy."""

    sizes: Sizes = STANDARD
    method: Method = PPO
    corrected: bool = True  # the Bayesian network; without it, the policy sees raw readings
    gradient: str = "none"  # into the Bayesian network


BLIND = replace(STANDARD, topology=False, deviation=False, prior=False, estimates=False)
# All devices: a shortlist of those where a gang would finish early would reveal the estimates.
BLACK = replace(BLIND, devices=48)
CELLS = {
    "whole": Cell(),
    "no Bayesian network": Cell(corrected=False),
    "no deviation": Cell(replace(STANDARD, deviation=False)),
    "no topology encoder": Cell(replace(STANDARD, topology=False)),
    "no graph encoder": Cell(replace(STANDARD, graph=False)),
    "no prior": Cell(replace(STANDARD, prior=False)),
    "softer prior": Cell(replace(STANDARD, sharpness=0.3)),
    "group baseline only": Cell(method=replace(PPO, baseline="group")),
    "A2C as published": Cell(method=A2C),
    "gradient: sampled": Cell(gradient="sampled"),
    "gradient: implicit": Cell(gradient="implicit"),
    "shortlist only": Cell(replace(BLIND, graph=False), corrected=False),
    "black box": Cell(BLACK, corrected=False),
    "black box, A2C": Cell(BLACK, A2C, corrected=False),
}


@dataclass
class Figures:
    """Figures of one cell and one seed."""

    cell: str
    seed: int
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def looks(self) -> list[tuple[int, float]]:
        """Decisions so far and the quality, at every validation."""
        return [(x["decisions"], x["against"]) for x in self.history if x["against"] is not None]

    @property
    def final(self) -> float:
        """The quality at the last validation; the best of several would be too favourable."""
        return self.looks[-1][1]

    @property
    def until(self) -> float:
        """Decisions until the quality is reached; infinite if it never is."""
        return next((float(decisions) for decisions, quality in self.looks if quality <= REACH), float("inf"))

    @property
    def seconds(self) -> float:
        """This cell's share of the training time, without the first round, which loads the program."""
        return self.history[-1]["seconds"] - self.history[0]["seconds"]


def drawn(size: RoundSize, corrected: bool, quick: bool = False) -> TrainingScenarios:
    """The scenarios of all cells that see corrected readings, or raw ones."""
    disturbances = Disturbances(belief="joint" if corrected else "raw")
    course = ScenarioDistribution(topology("paper"), WORKLOADS, (0.5, 1.0), 24, disturbances)
    if quick:
        course = ScenarioDistribution(topology("machine"), ("cholesky:3?jobs=2",), (0.5, 1.0), 2, disturbances)
    return draw(course, size, PPO, Bottleneck(), (RIVAL,))


def measure(
    name: str,
    cell: Cell,
    seeds: list[int],
    size: RoundSize,
    rounds: int,
    given: TrainingScenarios,
    tell: Callable[[list[Figures]], None],
    turn: Lock,
) -> None:
    """Train one cell with several seeds side by side; `tell` is called with the figures after each validation."""

    def looked(history: list[list[TrainingRound]]) -> None:
        tell([Figures(name, seed, [asdict(x) for x in told]) for seed, told in zip(seeds, history, strict=True)])

    train_seeds(
        given,
        seeds,
        rounds=rounds,
        size=size,
        sizes=cell.sizes,
        method=cell.method,
        telemetry_gradient=cell.gradient,
        tell=looked,
        turn=turn,
    )


def table(figures: list[Figures]) -> Table:
    """One line for each cell: mean and range over seeds."""
    shown = Table(title=f"mean completion time against {RIVAL}; decisions until {REACH}")
    for column in ("cell", "seeds", "at the end", "range", "decisions until", "reached", "seconds"):
        shown.add_column(column)
    for name in dict.fromkeys(x.cell for x in figures):
        some = [x for x in figures if x.cell == name]
        finals, until = [x.final for x in some], [x.until for x in some]
        shown.add_row(
            name,
            str(len(some)),
            f"{np.mean(finals):.3f}",
            f"{min(finals):.3f} … {max(finals):.3f}",
            f"{np.median(until):,.0f}",
            f"{sum(np.isfinite(until))}/{len(some)}",
            f"{np.mean([x.seconds for x in some]):.0f}",
        )
    return shown


def main() -> None:
    """Train the cells that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", choices=CELLS, help="cells to train")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--every", type=int, default=4, help="rounds between validations")
    parser.add_argument("--together", type=int, default=5, help="trainings side by side, as many as memory allows")
    parser.add_argument("--quick", action="store_true", help="one cell and two tiny rounds: only shows that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file of the raw figures, from which a run continues")
    given = parser.parse_args()
    size = RoundSize(pool=96, scenarios=32, group=16, validation=40, every=given.every)
    if given.quick:
        compile_quickly()  # most of the time is compilation
        size, given.rounds, given.seeds = RoundSize(pool=4, scenarios=2, group=2, validation=4, every=1), 2, 2
    done: list[Figures] = []
    if given.json is not None and given.json.exists():
        kept = [Figures(**x) for x in json.loads(given.json.read_text())["cells"]]
        done = [x for x in kept if len(x.history) == given.rounds]  # a cell that was cut off starts again
    todo = []
    for name in given.only or list(CELLS)[: 1 if given.quick else None]:
        missing = [seed for seed in range(given.seeds) if not any((x.cell, x.seed) == (name, seed) for x in done)]
        todo += [(name, missing[at : at + given.together]) for at in range(0, len(missing), given.together)]
    console, turn = Console(), Lock()

    def tell(figures: list[Figures]) -> None:
        told = {(x.cell, x.seed) for x in figures}
        done[:] = [*(x for x in done if (x.cell, x.seed) not in told), *figures]
        look = f"{figures[0].cell}, seeds {[x.seed for x in figures]}, {len(figures[0].history)} rounds"
        console.print(f"{look}: {[round(x.final, 3) for x in figures]}")
        keep(given.json, rounds=given.rounds, size=asdict(size), cells=[asdict(x) for x in done])

    def one(name: str, seeds: list[int]) -> None:
        measure(name, CELLS[name], seeds, size, given.rounds, scenarios[CELLS[name].corrected], tell, turn)

    with ThreadPoolExecutor(1 + AHEAD) as threads:
        kinds = sorted({CELLS[name].corrected for name, _ in todo})
        scenarios = dict(zip(kinds, threads.map(lambda kind: drawn(size, kind, given.quick), kinds), strict=True))
        for ended in [threads.submit(one, *what) for what in todo]:
            ended.result()
    console.print(table(done))


if __name__ == "__main__":
    main()
