"""Proofs and plans of the oracle: `python -m benchmarks.oracle [--quick] [--json FILE]`.

Proofs: graphs of Symphony's own families on four unlike devices (a CPU and GPUs of three generations), all in one
memory, and on the same devices with a memory each and one bus between them. Each has 60 s for a whole proof: two
agreeing configurations, the replay in the simulator and the checks; the simulator's compilation is not counted. Search:
larger graphs on whole topologies, against the best of all baselines.

Unfair to the oracle: the solver has two threads, on a machine that may have other load (stored with the figures).
Unfair to the baselines: the oracle has full knowledge, and a minute for each scenario.
"""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import arguments, keep
from symphony.lowering.family import workload
from symphony.oracle.oracle import Oracle, Solution
from symphony.oracle.provable import four_devices
from symphony.problem.topologies import topology
from symphony.problem.topology import Topology
from symphony.simulator.scenarios import CALM, Scenario, draw
from tests.compiling import compile_quickly

STARTS = ("heft", "eft-exact", "sjf")


def scenario(cluster: Topology, spec: str, seed: int) -> Scenario:
    """A scenario without disturbances, with job slots for all jobs."""
    drawn = workload(spec, cluster, seed)
    return draw(cluster, drawn, seed, CALM, job_slots=len(drawn.jobs))


def row(found: Solution, spec: str, seed: int, began: float) -> dict[str, Any]:
    return {
        "workload": spec,
        "seed": seed,
        "gangs": len(found.run.gangs),
        "label": found.label,
        "scope": found.scope,
        "value_s": found.value_s,
        "bound_s": found.bound_s,
        "best_baseline": found.best_baseline,
        "best_baseline_s": found.baselines[found.best_baseline],
        "improvement": 1 - found.value_s / found.baselines[found.best_baseline],
        "checks": [f"{check.what}: {check.passed}" for check in found.checks],
        "candidates": found.candidates,
        "solve_s": found.solve_s,
        "wall_s": time.perf_counter() - began,
    }


def measure(
    console: Console, title: str, oracle: Oracle, cases: list[tuple[Topology, str, int]]
) -> list[dict[str, Any]]:
    table = Table(title=title)
    for column in ("workload", "seed", "gangs", "oracle, s", "label", "bound, s", "best baseline", "gain", "took, s"):
        table.add_column(column, justify="left" if column in ("workload", "label", "best baseline") else "right")
    rows = []
    for cluster, spec, seed in cases:
        began = time.perf_counter()
        got = row(oracle.solve(scenario(cluster, spec, seed)), f"{spec} on {cluster.name}", seed, began)
        rows.append(got)
        console.print(f"{got['workload']} {seed}: {got['label']}", style="dim")
        table.add_row(
            got["workload"], str(seed), str(got["gangs"]), f"{got['value_s']:.4g}", got["label"],
            f"{got['bound_s']:.4g}", got["best_baseline"], f"{got['improvement']:.1%}", f"{got['solve_s']:.0f}",
        )  # fmt: skip
    console.print(table)
    return rows


def main() -> None:
    args = arguments("What the oracle proves and finds.", ("free", "bus", "search"))
    if args.quick:
        compile_quickly()  # most of the time is compilation
    console = Console(width=140)
    figures: dict[str, Any] = {}
    seeds = range(1) if args.quick else range(3)
    limit = 5.0 if args.quick else 60.0
    prover = Oracle(limit, starts=STARTS)
    names = ("layered",) if args.quick else ("layered", "fork-join", "series-parallel")
    if "free" in args.only and not (args.quick and "bus" in args.only):  # compiles three programs more
        size = 20 if args.quick else 50
        specs = [f"{name}:{size}?jobs=1&graphs=1&arrivals=batch" for name in names]
        if not args.quick:
            # Wider than the devices, or all alike: packing decides, not the longest path, and proofs are harder.
            specs += ["layered:10?jobs=5&graphs=5&arrivals=batch", "cholesky:6?jobs=1&arrivals=batch"]
        cases = [(four_devices(bus=False), spec, seed) for spec in specs for seed in seeds]
        figures["free"] = measure(console, f"{size} tasks, four unlike devices, no transfers", prover, cases)
        keep(args.json, **figures)
    if "bus" in args.only:
        size = 10 if args.quick else 30
        specs = [f"{name}:{size}?jobs=1&graphs=1&arrivals=batch" for name in names]
        cases = [(four_devices(bus=True), spec, seed) for spec in specs for seed in seeds]
        figures["bus"] = measure(console, f"{size} tasks, four unlike devices, one bus", prover, cases)
        keep(args.json, **figures)
    if "search" in args.only:
        clusters = ("machine",) if args.quick else ("machine", "paper")
        specs = ["cholesky:8?jobs=1&arrivals=batch", "layered:64?jobs=1&graphs=1&arrivals=batch"]
        cases = [(topology(name), spec, 0) for name in clusters for spec in (specs[:1] if args.quick else specs)]
        searcher = prover if args.quick else Oracle(limit)
        figures["search"] = measure(console, "Best known against the best of the baselines", searcher, cases)
    keep(args.json, **figures)


if __name__ == "__main__":
    main()
