"""Training of the shipped weights: `python -m benchmarks.weights OUT [--quick] [--rounds N] [--minutes M]`.

Trains from random weights, or from given ones (`--soften`: see `Network.scaled`), in rounds of five kinds in turn: many
jobs on `paper` and on `machine`; one large graph alone, on `machine` and on a node whose cores are worth using beside
its GPUs; and one small graph alone on four unlike devices. It needs an accelerator; the same command resumes a run that
was stopped.
"""

from __future__ import annotations

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.waiting import heavy_tailed
from symphony.learning.train import RIVALS as MANY_RIVALS
from symphony.learning.train import RoundSize, ScenarioDistribution, TrainingRound, TrainingScenarios, draw, train
from symphony.learning.update import PPO
from symphony.oracle.provable import four_devices
from symphony.policies import Learned, Network, Sizes, load, save
from symphony.policies.weights import mean
from symphony.problem.topologies import topology
from symphony.simulator.contention import Bottleneck
from symphony.simulator.scenarios import CALM
from tests.compiling import compile_quickly

MANY = (
    "variant-calling:1", "layered", "layered?ccr=1&heterogeneity=0.5", "fork-join", "eeg", "intrusion:20", "cholesky:4",
    "lu:3",
)  # fmt: skip
ONE = (
    "cholesky:12?jobs=1", "lu:8?jobs=1", "qr:8?jobs=1", "layered:240?jobs=1&graphs=1", "cholesky:10?jobs=1&tile=1440",
    "lu:9?jobs=1", "fork-join:200?jobs=1&graphs=1", "cholesky:11?jobs=1",
)  # fmt: skip
# Task times over four orders of magnitude: short jobs that wait behind long ones make the tail.
HEAVY = tuple(partial(heavy_tailed, spec=spec) for spec in ("layered:24?jobs=24&load=1", "layered:12?jobs=24&load=0.7"))
LARGE = (*ONE[:-1], "cholesky:14?jobs=1")  # the larger the graph, the longer cores are worth using
SMALL = ("layered:16?jobs=1", "fork-join:16?jobs=1", "layered:20?jobs=1&ccr=1", "lu:3?jobs=1")
NODE = Path(__file__).parent / "node.toml"
SIZE = RoundSize(pool=160, scenarios=32, every=32)
ONE_SIZE = replace(SIZE, pool=96, validation=24)
SOFT = Sizes(sharpness=0.3)  # see docs/lab/ablation.md
RIVALS = ("eft-belief", "dmdas", "heft")  # of one graph


@dataclass(frozen=True)
class Kind:
    """A kind of round."""

    course: ScenarioDistribution
    size: RoundSize
    rivals: tuple[str, ...]
    turns: tuple[int, ...]  # of eight


def kinds(quick: bool) -> tuple[Kind, ...]:
    """The kinds of rounds, and their sizes."""
    paper, machine, node = topology("paper"), topology("machine"), topology(NODE)
    made = (
        Kind(ScenarioDistribution(paper, (*MANY, *HEAVY), (0.5, 1.0), 24), SIZE, MANY_RIVALS, (0, 4)),
        Kind(ScenarioDistribution(machine, (*MANY, *HEAVY), (0.5, 1.0), 24), SIZE, MANY_RIVALS, (2, 6)),
        Kind(ScenarioDistribution(node, LARGE, (0.5, 1.0), 1, CALM), ONE_SIZE, RIVALS, (1, 5)),
        Kind(ScenarioDistribution(machine, ONE, (0.5, 1.0), 1), ONE_SIZE, RIVALS, (3,)),
        Kind(ScenarioDistribution(four_devices(bus=False), SMALL, (0.5, 1.0), 1, CALM), SIZE, RIVALS, (7,)),
    )
    if not quick:
        return made
    little = RoundSize(pool=8, scenarios=2, group=4, validation=4, every=4)
    course = replace(made[-1].course, workloads=("cholesky:3?jobs=2",))  # each kind would be several programs
    return (Kind(course, little, RIVALS[:1], tuple(range(8))),)


def drawn(quick: bool) -> list[TrainingScenarios]:
    """The scenarios of eight rounds."""
    chosen = kinds(quick)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as processes:
        each = partial(processes.map, chunksize=8)
        made = [draw(x.course, x.size, PPO, Bottleneck(), x.rivals, each) for x in chosen]
    return [made[at] for turn in range(8) for at, x in enumerate(chosen) if turn in x.turns]


def add_to_mean(path: Path, network: Network) -> None:
    """Add a network to the mean in a file, from which a stopped training continues."""
    found = load(path) if path.exists() else None
    before = [] if found is None else [found[0].network] * found[1]["looks"]
    save(path, mean([*before, network]), {"looks": len(before) + 1})


def main() -> None:
    """Draw and train; the best weights so far are in the folder after every validation, as `best.policy`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument("--rounds", type=int, default=240)
    parser.add_argument("--scenarios", type=int, default=SIZE.scenarios, help="scenarios of a round, each run 16 times")
    parser.add_argument("--rate", type=float, default=PPO.rate, help="initial learning rate")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--from", dest="start", help="initial weights")
    parser.add_argument(
        "--soften", type=float, default=1.0, metavar="F", help="multiply all scores of the initial weights by F"
    )
    parser.add_argument("--every", type=int, default=SIZE.every, help="rounds between validations")
    parser.add_argument(
        "--mean", type=int, metavar="N", help="write the mean of validated weights from round N on to mean.policy"
    )
    given = parser.parse_args()
    if given.quick:
        compile_quickly()  # most of the time is compilation
    chosen = kinds(given.quick)
    size = chosen[0].size if given.quick else replace(SIZE, scenarios=given.scenarios, every=given.every)
    start = None if given.start is None else Learned(load(given.start)[0].network.scaled(given.soften))
    if not (given.out / "training").exists():
        (given.out / "mean.policy").unlink(missing_ok=True)  # of another training

    def look(rounds: int, network: Network) -> None:
        if given.mean is not None and rounds >= given.mean:
            add_to_mean(given.out / "mean.policy", network)

    def tell(told: TrainingRound) -> None:
        look = "" if told.against is None else f"  against the best rival {told.against:.4f}"
        print(
            f"round {told.number + 1:4} {told.seconds:6.0f} s {told.rate:8,.0f}/s  entropy {told.entropy:.2f}{look}",
            flush=True,
        )

    train(
        topology=[x.course.topology for x in chosen],
        workload=[*MANY, *LARGE, *SMALL],
        rounds=4 if given.quick else given.rounds,
        minutes=given.minutes,
        start=start,
        sizes=SOFT,
        size=size,
        method=replace(PPO, rate=given.rate),
        checkpoint=given.out,
        drawn_before=drawn(given.quick),
        tell=tell,
        look=look,
    )


if __name__ == "__main__":
    main()
