"""Cost and gain of waiting: `python -m benchmarks.waiting [--only CASE …] [--seeds N] [--quick] [--json FILE]`.

`symphony`, and the same weights that never or always prefer to wait, against `eft-belief` on the same seeds. `heavy` is
the hard case: layered graphs on the 26 devices of `paper` whose task times span four orders of magnitude. Every seed is
printed.

Unfair to `symphony`: it was trained on none of the heavy-tailed work.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import keep, parser
from symphony.evaluation.compare import compare
from symphony.lowering import family
from symphony.policies import SHIPPED, Learned, named
from symphony.problem.topology import Topology
from symphony.problem.workload import Edge, TaskGraph, Workload
from symphony.scheduling.policy import Policy

RIVAL, FORBIDDEN, EAGER = "eft-belief", "never waits", "always waits"
SPREAD = 1.6  # standard deviation of the logarithm of a job's and of a task's size: together, four orders of magnitude
CASES = {
    "heavy": ("paper", "layered:24?jobs=60&load=1"),
    "layered": ("paper", "layered?jobs=60"),
    "variant-calling": ("paper", "variant-calling?jobs=60"),
    "machine": ("machine", "layered?jobs=60"),
}


def heavy_tailed(topology: Topology, seed: int, spec: str = CASES["heavy"][1]) -> Workload:
    """A workload whose jobs, and the tasks within each, differ in size by orders of magnitude; mean size as before."""
    drawn = family.workload(spec, topology, seed)
    rng = np.random.default_rng([seed, 7])

    def factors(count: int) -> np.ndarray:
        return rng.lognormal(-(SPREAD**2) / 2, SPREAD, count)

    def scaled(graph: TaskGraph, of_job: float) -> TaskGraph:
        factor = dict(zip((task.name for task in graph.tasks), of_job * factors(len(graph.tasks)), strict=True))
        tasks = tuple(replace(task, size=task.size * float(factor[task.name])) for task in graph.tasks)
        edges = tuple(Edge(e.source, e.target, e.bytes * float(factor[e.target])) for e in graph.edges)
        return replace(graph, tasks=tasks, edges=edges)

    sizes = factors(len(drawn.graphs))
    return replace(drawn, graphs=tuple(scaled(graph, size) for graph, size in zip(drawn.graphs, sizes, strict=True)))


def policies() -> dict[str, Policy]:
    """The shipped weights, and the same with waiting made impossible or always preferred."""
    shipped = named(SHIPPED)
    assert isinstance(shipped, Learned)

    def with_bias(bias: float) -> Learned:
        return eqx.tree_at(lambda p: p.network.idle, shipped, jnp.asarray(bias))

    return {SHIPPED: shipped, FORBIDDEN: with_bias(-1e6), EAGER: with_bias(1e6), RIVAL: named(RIVAL)}


def measure(case: str, seeds: range, names: list[str]) -> list[dict[str, Any]]:
    cluster, spec = CASES[case]
    work: Any = heavy_tailed if case == "heavy" else spec
    report = compare(
        {name: policy for name, policy in policies().items() if name in names},
        topology=cluster,
        workload=work,
        seeds=seeds,
    )
    rows = []
    for (name, seed), values in report.metrics_of.items():
        rows.append(
            {
                "case": case,
                "policy": name,
                "seed": seed,
                "ratio": values["mean_completion_s"] / report.metrics_of[RIVAL, seed]["mean_completion_s"],
                "p99_slowdown": values["p99_slowdown"],
                "idle_ready": values["idle_ready_share"],
            }
        )
    return rows


def show(case: str, rows: list[dict[str, Any]]) -> Table:
    """A table of all seeds and their summary."""
    table = Table(
        "policy", "mean completion / eft-belief, by seed", "mean", "worst", "p99 slow-down", "idle, work ready"
    )
    for name in dict.fromkeys(row["policy"] for row in rows):
        mine = [row for row in rows if row["policy"] == name]
        ratio = np.array([row["ratio"] for row in mine])
        table.add_row(
            name,
            " ".join(f"{x:.3f}" for x in ratio),
            f"{np.exp(np.log(ratio).mean()):.3f}",
            f"{ratio.max():.3f}",
            " ".join(f"{row['p99_slowdown']:.1f}" for row in mine),
            " ".join(f"{row['idle_ready']:.1%}" for row in mine),
        )
    table.title = case
    return table


def main() -> None:
    options = parser(__doc__ or "", tuple(CASES))
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--first-seed", type=int, default=500_000, help="seeds from here on were not used in training")
    options.add_argument("--policies", nargs="+", help="default: all; with --quick, the shipped one and its rival")
    chosen = options.parse_args()
    seeds = range(chosen.first_seed, chosen.first_seed + (2 if chosen.quick else chosen.seeds))
    names = chosen.policies or ([SHIPPED, RIVAL] if chosen.quick else [SHIPPED, FORBIDDEN, EAGER, RIVAL])
    console, rows = Console(width=200), []
    for case in chosen.only[:1] if chosen.quick else chosen.only:
        rows += (found := measure(case, seeds, names))
        console.print(show(case, found))
        keep(chosen.json, waiting={"rows": rows})


if __name__ == "__main__":
    main()
