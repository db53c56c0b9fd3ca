"""Where the learned policy does harm: `python -m benchmarks.harmless [--quick] [--minutes M] [--json FILE]`.

Every family and every trace of the shared data, on clusters of 2 to 500 devices: `symphony` against the best heuristic
of each cell (mean completion, p99 of slow-down, makespan), and against `eft-belief` seed by seed. A cell is one
workload on one cluster. Cells are shared among processes, one for each core, in parts of a few seeds; `--json FILE`
keeps every part, and the same command goes on where it was stopped. The worst cells and seeds are named.

Unfair to `symphony`: the best of ten heuristics is chosen after the fact, for each cell and figure. Unfair to the
heuristics: most families, `paper` and `machine` were in its training. Training jobs run without rounds.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import decima
from benchmarks.common import before, data, keep, parser
from benchmarks.starpu_cholesky import cholesky_on
from benchmarks.waiting import heavy_tailed
from symphony.evaluation.compare import compare
from symphony.lowering import readers
from symphony.policies import SHIPPED, named
from symphony.problem.errors import DataError, InfeasibleError, SymphonyWarning
from symphony.problem.topologies import topology
from symphony.problem.topology import Topology
from symphony.problem.workload import Job, Workload
from symphony.scheduling.policy import Policy
from symphony.simulator.scenario_source import scenario
from tests.compiling import compile_quickly

RIVAL = "eft-belief"
HEURISTICS = (RIVAL, "eft-rebinding", "heft", "dmda", "dmdas", "tetris", "paragon-profiled", "sjf", "graphene", "peft")
QUICK = HEURISTICS[:2]
TRAINING_HEURISTICS = (RIVAL, "eft-rebinding", "fifo-passing", "tetris", "sjf", "srtf", "las")
FIGURES = {"mean": "mean_completion_s", "p99": "p99_slowdown", "makespan": "makespan_s"}
WITHIN_20 = ("isolated_share", "within10_share", "within20_share")
IDLE = "idle_ready_share"
FIRST_SEED = 900_000  # for looking; the final table takes a block that was never used
PART = 5  # seeds that are run together
CLUSTERS = ("fat-tree:2", "machine", "paper", "fat-tree:64", "fat-tree:500")
GPUS = ("gpu24", "fat-tree:64")
FAMILIES = {
    "layered": "layered?jobs={jobs}",
    "fork-join": "fork-join?jobs={jobs}",
    "series-parallel": "series-parallel?jobs={jobs}",
    "communicating": "layered?jobs={jobs}&ccr=1&heterogeneity=2",
    "eeg": "eeg?jobs={jobs}",
    "intrusion": "intrusion?jobs={jobs}",
    "variant-calling": "variant-calling?jobs={jobs}",
    "cholesky": "cholesky:6?jobs={few}",
    "lu": "lu:5?jobs={few}",
    "qr": "qr:5?jobs={few}",
    "heavy": "layered:24?jobs={jobs}&load=1",  # drawn by `heavy_tailed`
    "heavy, load 0.7": "layered:12?jobs={jobs}&load=0.7",
}
GRAPHS = {
    "pegasus": "wfinstances/pegasus?jobs=8&load=0.9",
    "makeflow": "wfinstances/makeflow?jobs=8&load=0.9",
    "nextflow": "wfinstances/nextflow?jobs={few}&load=0.9",
    "tpch": "tpch-cloudlab?jobs={few}&load=0.9",
    "dagbench": "dagbench?jobs={jobs}&load=0.9",
    "readys": "readys-graphs?jobs=4&load=0.9",
}
JOB_LISTS = {
    "training": "training?jobs={jobs}",
    "gavel": "gavel/traces/generated_gap2700_seed0.csv?jobs={jobs}&load=0.9&keep_good=1",
    "philly": "philly/jobs.csv.gz?jobs={jobs}&load=0.9&keep_good=1",
    "shockwave": "shockwave/traces/dynamic_120jobs_100.csv?jobs={jobs}&load=0.9&keep_good=1",
    "muri": "muri/trace2.csv.gz?jobs={jobs}&load=0.9&keep_good=1",
    "openb": "openb/openb_pod_list_cpu072.csv.gz?jobs={jobs}&load=0.9&keep_good=1",
}
STARPU = ("attila", "hannibal", "mirage", "sirocco")
TILES = (6, 12, 20)  # 56, 364 and 1,540 tasks
SOC = "socrates/job_Top{}.txt?jobs=40&load=0.9"
SOC_JOBS = ("", "2", "3", "5", "6", "7", "8", "10")


@dataclass(frozen=True)
class HarmCell:
    """A workload on a cluster, by name."""

    work: str
    cluster: str

    def __str__(self) -> str:
        return f"{self.work} on {self.cluster}"

    @property
    def heuristics(self) -> tuple[str, ...]:
        return TRAINING_HEURISTICS if self.work in JOB_LISTS else HEURISTICS

    def problem(self) -> tuple[Topology, Any]:
        """Its topology, and a spec or a draw of its workloads."""
        if self.work.startswith("starpu"):
            found = readers.read(data("starpu-perfmodels"), "starpu", machine=self.cluster)
            kernels, graphs = cholesky_on(found, int(self.work.partition(":")[2]))
            assert found.topology is not None
            return found.topology, Workload(self.work, kernels, graphs, (Job(0, 0.0),))
        if self.work.startswith("soc"):
            spec = str(data("socrates")) + SOC.format(self.work.partition(":")[2]).removeprefix("socrates")
            chip = readers.read(spec.partition("?")[0], "socrates").topology
            assert chip is not None
            return chip, spec
        cluster = topology(self.cluster)
        many = len(cluster.devices) >= 64
        spec = (FAMILIES | GRAPHS | JOB_LISTS)[self.work].format(jobs=80 if many else 30, few=30 if many else 10)
        if self.work.startswith("heavy"):
            return cluster, partial(heavy_tailed, spec=spec)
        return cluster, spec if self.work in FAMILIES or self.work == "training" else str(data()) + "/" + spec


def cells(quick: bool = False) -> list[HarmCell]:
    """All cells. Whether a cluster can run a workload shows when it is drawn."""
    if quick:
        return [HarmCell("layered", "machine")]
    found = [HarmCell(work, cluster) for cluster in CLUSTERS for work in (*FAMILIES, *GRAPHS)]
    found += [HarmCell(work, cluster) for cluster in GPUS for work in JOB_LISTS]
    found += [HarmCell(f"starpu:{tiles}", machine) for machine in STARPU for tiles in TILES]
    return found + [HarmCell(f"soc:{job}", "DASH") for job in SOC_JOBS]


Part = tuple[HarmCell, tuple[int, ...], str, tuple[str, ...]]  # of a cell: seeds, the policy, heuristics


def policies(policy: str, heuristics: Sequence[str]) -> dict[str, Policy]:
    """By name; `decima:FILE` is a network of `benchmarks.decima`."""
    kind, _, file = policy.partition(":")
    mine = decima.load(file) if kind == "decima" else named(policy)
    return {policy: mine} | {name: named(name) for name in heuristics}


def measure(part: Part) -> dict[str, Any]:
    """One part of a cell: the figures of every policy, by seed, or why there are none."""
    cell, seeds, policy, heuristics = part
    row: dict[str, Any] = {"work": cell.work, "cluster": cell.cluster, "policy": policy, "seeds": list(seeds)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SymphonyWarning)
        try:
            cluster, work = cell.problem()
            scenario(cluster, work, seeds[0])
        except (InfeasibleError, DataError) as error:
            return row | {"skipped": str(error).splitlines()[0][:120]}
        report = compare(policies(policy, heuristics), topology=cluster, workload=work, seeds=seeds)

    def figures(name: str) -> dict[str, list[float]]:
        found = {short: report.values(name, metric) for short, metric in FIGURES.items()}
        found["within20"] = np.sum([report.values(name, metric) for metric in WITHIN_20], axis=0)
        found["idle"] = report.values(name, IDLE)
        return {short: [float(f"{x:.5g}") for x in values] for short, values in found.items()}

    return row | {"devices": len(cluster.devices), "values": {n: figures(n) for n in (policy, *heuristics)}}


def one_core(numbers: Any) -> None:
    """Keep a process on a core of its own: JAX would use all of them."""
    mine = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {mine[numbers.get() % len(mine)]})


def run(jobs: Sequence[Part], minutes: float) -> Iterator[dict[str, Any]]:
    """Results as they come, from as many processes as there are cores, until all are done or time is up."""
    end = time.monotonic() + 60 * minutes
    cores = min(len(os.sched_getaffinity(0)), len(jobs))
    if cores <= 1:
        for job in jobs:
            if time.monotonic() < end:
                yield measure(job)
        return
    spawn = multiprocessing.get_context("spawn")
    numbers = spawn.Queue()
    for number in range(1000):  # processes are replaced: their programs would fill the memory
        numbers.put(number)
    with spawn.Pool(cores, one_core, (numbers,), maxtasksperchild=8) as pool:
        results = pool.imap_unordered(measure, jobs)
        for _ in jobs:
            try:
                yield results.next(max(0.0, min(end - time.monotonic(), 1e6)))
            except multiprocessing.TimeoutError:
                return  # what is under way is lost, and done again by the next run


def summary(rows: Sequence[dict[str, Any]], policy: str) -> list[dict[str, Any]]:
    """For each cell: ratios to the best heuristic of each figure, and to the rival by seed; geometric means."""
    found: dict[HarmCell, list[dict[str, Any]]] = {}
    for row in rows:
        if "values" in row and row["policy"] == policy:
            found.setdefault(HarmCell(row["work"], row["cluster"]), []).append(row)
    lines = []
    for cell, parts in found.items():
        seeds = [seed for row in parts for seed in row["seeds"]]

        def values(name: str, figure: str, parts: list[dict[str, Any]] = parts) -> np.ndarray:
            return np.concatenate([row["values"][name][figure] for row in parts])

        line: dict[str, Any] = {"cell": str(cell), "work": cell.work, "cluster": cell.cluster, "seeds": len(seeds)}
        line["devices"] = parts[0]["devices"]
        for figure in FIGURES:
            mine = np.log(values(policy, figure))
            others = [name for name in parts[0]["values"] if name != policy]
            ratio = {n: float(np.exp(np.mean(mine - np.log(values(n, figure))))) for n in others}
            best = max(ratio, key=lambda n: ratio[n])
            line[figure], line[f"{figure}_best"] = ratio[best], best
        beside = values(policy, "mean") / values(RIVAL, "mean")
        line["beside"], line["by_seed"] = float(np.exp(np.log(beside).mean())), beside.tolist()
        line["worst_seed"], line["worst"] = seeds[int(beside.argmax())], float(beside.max())
        for figure in ("within20", "idle"):
            line[figure] = [float(values(name, figure).mean()) for name in (policy, RIVAL)]
        lines.append(line)
    return lines


def table(lines: Sequence[dict[str, Any]]) -> Table:
    """A line for each cell."""
    shown = Table("cell", "seeds", *FIGURES, f"mean / {RIVAL}", "worst seed", "gangs within 20%", "idle, work ready")
    for line in lines:
        shown.add_row(
            line["cell"],
            str(line["seeds"]),
            *(f"{line[figure]:.3f} ({line[f'{figure}_best']})" for figure in FIGURES),
            f"{line['beside']:.3f}",
            f"{line['worst']:.3f} ({line['worst_seed']})",
            " / ".join(f"{x:.0%}" for x in line["within20"]),
            " / ".join(f"{x:.1%}" for x in line["idle"]),
        )
    return shown


def verdict(lines: Sequence[dict[str, Any]], count: int = 5) -> Iterator[str]:
    """Geometric means over cells, and the worst cells and seeds by name."""
    for figure in FIGURES:
        ratios = [line[figure] for line in lines]
        worst = sorted(lines, key=lambda line: -line[figure])[:count]
        named = ", ".join(f"{line['cell']} {line[figure]:.3f}" for line in worst)
        yield f"{figure} over the best heuristic: {np.exp(np.mean(np.log(ratios))):.3f}, worst: {named}"
    worst = sorted(lines, key=lambda line: -line["worst"])[:count]
    named = ", ".join(f"{line['cell']} seed {line['worst_seed']} {line['worst']:.3f}" for line in worst)
    beside = np.concatenate([line["by_seed"] for line in lines])
    above = f"{(beside > 1.15).sum()} of {len(beside)} above 1.15"
    yield f"mean over {RIVAL}: {np.exp(np.mean(np.log(beside))):.3f}, {above}, worst seeds: {named}"
    within = np.mean([line["within20"] for line in lines], axis=0)
    yield f"gangs within 20% of isolated speed: {within[0]:.1%}, under {RIVAL} {within[1]:.1%}"


def picture(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Ratios to the best heuristic: workloads by clusters, a panel for each figure, and one for the worst seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    works = list(dict.fromkeys(line["work"] for line in lines))
    clusters = list(dict.fromkeys(line["cluster"] for line in sorted(lines, key=lambda line: line["devices"])))
    panels = {figure: f"{figure} / best heuristic" for figure in FIGURES} | {"worst": f"worst seed / {RIVAL}"}
    figure, axes = plt.subplots(1, len(panels), figsize=(4 + 3 * len(panels), 0.3 * len(works) + 2), sharey=True)
    for axis, (key, title) in zip(axes, panels.items(), strict=True):
        grid = np.full((len(works), len(clusters)), np.nan)
        for line in lines:
            grid[works.index(line["work"]), clusters.index(line["cluster"])] = line[key]
        axis.imshow(np.log2(grid), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
        for (y, x), value in np.ndenumerate(grid):
            if np.isfinite(value):
                axis.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=6)
        axis.set_title(title, fontsize=9)
        axis.set_xticks(range(len(clusters)), clusters, rotation=90, fontsize=7)
        axis.set_yticks(range(len(works)), works, fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    """Measure what is missing, print, keep."""
    given = parser((__doc__ or "").splitlines()[0], ())
    given.add_argument("--cells", nargs="+", metavar="TEXT", help="only cells with one of these texts in their names")
    given.add_argument("--policy", default=SHIPPED, help="or a file written by training, or decima:FILE")
    given.add_argument("--heuristics", nargs="+", metavar="NAME", help=f"these, {RIVAL} among them, instead of all")
    given.add_argument("--seeds", type=int, default=20)
    given.add_argument("--first-seed", type=int, default=FIRST_SEED)
    given.add_argument("--minutes", type=float, default=float("inf"), help="stop then; the next run goes on")
    given.add_argument("--picture", type=Path, metavar="FILE", help="write a plot, as PNG")
    given.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="measure nothing; put these together")
    options = given.parse_args()
    if options.heuristics and RIVAL not in options.heuristics:
        given.error(f"--heuristics needs {RIVAL} among them")
    if options.quick:
        compile_quickly()  # it is compilation that takes the time
    count = 2 if options.quick else options.seeds
    starts = range(options.first_seed, options.first_seed + count, PART)
    parts = [tuple(range(start, min(start + PART, options.first_seed + count))) for start in starts]
    rows = before(options, "harmless")
    done = {(row["work"], row["cluster"], row["policy"], *row["seeds"]) for row in rows}
    chosen = [c for c in cells(options.quick) if not options.cells or any(text in str(c) for text in options.cells)]
    few = QUICK if options.quick else options.heuristics
    jobs = [(c, part, options.policy, tuple(few or c.heuristics)) for part in parts for c in chosen]
    jobs = [job for job in jobs if (job[0].work, job[0].cluster, job[2], *job[1]) not in done]
    for row in [] if options.merge else run(jobs, options.minutes):
        rows.append(row)
        print(row["work"], row["cluster"], row["seeds"][0], row.get("skipped", ""), flush=True)
        keep(options.json, harmless={"rows": rows})
    lines = summary(rows, options.policy)
    if not lines:
        raise SystemExit("no cell was measured")
    Console(width=200).print(table(lines))
    print("\n".join(verdict(lines)))
    left_out = {f"{row['work']} on {row['cluster']}: {row['skipped']}" for row in rows if "skipped" in row}
    print("\n".join(f"left out: {line}" for line in sorted(left_out)))
    if options.picture:
        picture(lines, options.picture)


if __name__ == "__main__":
    main()
