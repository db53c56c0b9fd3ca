"""The weights that come with the package: `python -m benchmarks.weights OUT [--quick] [--rounds N] [--minutes M]`.

Trains the shipped weights on, in rounds of four kinds in turn: many jobs on `paper` and on `machine`, and one large
graph alone, on `machine` and on a node whose cores are worth using beside its GPUs. Many jobs have two rounds for each
of one graph. It wants an accelerator; stopped, the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from symphony.policies import named
from symphony.problem.topologies import topology
from symphony.simulator.contention import Bottleneck
from symphony.training.train import Course, Drawn, Round, Size, draw, train
from symphony.training.update import PPO

MANY = (
    "variant-calling:1", "layered", "layered?ccr=1&heterogeneity=0.5", "fork-join", "eeg", "intrusion:20", "cholesky:4",
    "lu:3",
)  # fmt: skip
ONE = (
    "cholesky:12?jobs=1", "lu:8?jobs=1", "qr:8?jobs=1", "layered:240?jobs=1&graphs=1", "cholesky:10?jobs=1&tile=1440",
    "lu:9?jobs=1", "fork-join:200?jobs=1&graphs=1", "cholesky:11?jobs=1",
)  # fmt: skip
NODE = Path(__file__).parent / "node.toml"
SIZE = Size(pool=160, scenarios=128, every=20)
ONE_SIZE = replace(SIZE, pool=96, validation=24)


def courses(quick: bool) -> list[tuple[Course, Size]]:
    """What is drawn, and how much of it; many jobs first."""
    many = [(Course(topology(name), MANY, (0.5, 1.0), 24), SIZE) for name in ("paper", "machine")]
    one = [(Course(cluster, ONE, (0.5, 1.0), 24), ONE_SIZE) for cluster in (topology("machine"), topology(NODE))]
    if not quick:
        return many + one
    small = Size(pool=8, scenarios=4, group=4, validation=8, every=2)
    return [(replace(course, workloads=("cholesky:4?jobs=2",)), small) for course, _ in many + one]


def main() -> None:
    """Draw, and train; what was best so far is in the folder after every look, as `best.policy`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true", help="see that it runs")
    parser.add_argument("--rounds", type=int, default=240)
    parser.add_argument("--rate", type=float, default=2e-3, help="of learning, at first")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--from", dest="start", default="symphony", help="weights to go on from")
    given = parser.parse_args()
    method = replace(PPO, rate=given.rate)
    chosen = courses(given.quick)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as processes:
        each = partial(processes.map, chunksize=8)
        drawn = [draw(course, size, method, Bottleneck(), each=each) for course, size in chosen]
    paper, machine, one_machine, one_node = drawn
    turns: Sequence[Drawn] = (paper, machine, one_machine, paper, machine, one_node)

    def tell(told: Round) -> None:
        look = "" if told.against is None else f"  against the best rival {told.against:.4f}"
        print(
            f"round {told.number + 1:4} {told.seconds:6.0f} s {told.rate:8,.0f}/s  entropy {told.entropy:.2f}{look}",
            flush=True,
        )

    train(
        topology=[course.topology for course, _ in chosen],
        workload=[*MANY, *ONE],
        rounds=4 if given.quick else given.rounds,
        minutes=given.minutes,
        start=named(given.start),
        size=chosen[0][1],
        method=method,
        checkpoint=given.out,
        drawn_before=turns,
        tell=tell,
    )


if __name__ == "__main__":
    main()
