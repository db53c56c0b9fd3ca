"""Our simulator against others: `python -m benchmarks.fidelity [--quick] [--only SECTION …] [--json FILE]`.

Three comparisons: tiled Cholesky and LU with StarPU's simulator (makespan), 24 GPUs with Gavel's (mean completion of
50 jobs), and a testbed of 32 GPUs as measured by Shockwave's authors, beside the error of their simulator. All without
tenants and failures.

Unfair to ours: the policies are ours, too, so that a difference may be due to a policy. StarPU's simulator charges for
new buffers, submission and queueing, and returns finished tiles to main memory; ours does not. Unfair to the others:
each of their figures is one run, and runs are sensitive: 1% in kernel times changes a makespan by several per cent, and
Gavel's FIFO depends on the placement of one job. This is not a blind test: changes that followed from comparisons are
listed in docs/lab/fidelity-lessons.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.stats import kendalltau, spearmanr

from benchmarks.common import arguments, data, keep
from benchmarks.starpu_cholesky import factorisation_on
from symphony.baselines.allox import AlloX
from symphony.baselines.earliest_finish import Heft
from symphony.baselines.gavel import (
    AllocationOptions,
    AllocationProgram,
    FinishTimeFairness,
    Gavel,
    MaxMinFairness,
    MaxMinFairnessPlain,
    MaxSumThroughput,
    max_sum,
)
from symphony.baselines.simple import Fifo
from symphony.baselines.starpu import Dm, Dmda, Dmdas, Heteroprio
from symphony.lowering import readers
from symphony.lowering.readers.reading import Collector, FileContents
from symphony.lowering.readers.tables import number, read_table, text, whole
from symphony.problem.arrays import TopologyArrays
from symphony.problem.topologies import topology as built_in
from symphony.problem.topology import Topology
from symphony.problem.workload import Job, Workload
from symphony.scheduling.one_of import OneOf
from symphony.scheduling.policy import Action, Observation, Policy, best_device, pick_gang, place
from symphony.simulator.records import RunRecord
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import CALM, Scenario, draw
from symphony.training_jobs.round_planning import PlanInputs

Figures = dict[str, Any]
TARGET = 0.10  # the largest error that meets the target
SECTIONS = ("starpu", "gavel", "shockwave")


def off(ours: float, theirs: float) -> float:
    """Relative error of our figure."""
    return ours / theirs - 1


def verdict(error: float) -> str:
    """Whether an error meets the target, for a table."""
    return "met" if abs(error) <= TARGET else "[bold]missed[/bold]"


# ------------------------------------------------------------------------------------------------------- StarPU

REFEREE = Path(__file__).parent / "results" / "starpu.json"  # makespans of StarPU 1.3.10 in SimGrid mode, tiles of 960


def referee() -> dict[tuple[str, str, int], dict[str, float]]:
    """(graph, machine, tiles) -> scheduler -> ms, small graphs first."""
    cases = json.loads(REFEREE.read_text())["cases"]
    return {(case["graph"], case["machine"], case["tiles"]): case["ms"] for case in cases}


# Makespans of tiled Cholesky.
STARPU: Mapping[tuple[str, int], Mapping[str, float]] = {
    (machine, tiles): ms for (graph, machine, tiles), ms in referee().items() if graph == "cholesky"
}
AIMED_AT = ("dm", "dmda", "dmdas")  # those whose makespans have a target
HELD_OUT = ("attila", (6, 12, 20))  # a machine and sizes that were not used while the rules were changed
GPU_WEIGHT = 13.33  # of a GPU in StarPU's random scheduler, where a core has 1
TOUCH = replace(CALM, work_noise=0.01)  # a makespan is the median of runs whose kernels take 1% more or less
DRAWS = 9
STARPU_DRAWS = 3  # for each of many graphs
APART = 0.05  # two schedulers nearer than this are a tie


class WeightedRandom(Policy):
    """StarPU's random: places the oldest gang on a device drawn in proportion to the assumed speed of its type."""

    def init(self, topology: TopologyArrays) -> None: ...

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Draw a device. The reader puts cores first among the kinds."""
        gang = pick_gang(observation)
        weight = jnp.where(jnp.asarray(observation.topology.device_kind) > 0, jnp.log(GPU_WEIGHT), 0.0)
        # The largest of Gumbel draws, each moved by the logarithm of its weight, falls in proportion to the weights.
        score = weight + jax.random.gumbel(key, weight.shape)
        return state, place(gang, best_device(observation, gang, score))


SCHEDULERS: Mapping[str, Policy] = {
    "random": WeightedRandom(),
    "eager": Fifo(),
    "dm": Dm(),
    "dmda": Dmda(),
    "dmdas": Dmdas(),
    "heft": Heft(),
    "heteroprio": Heteroprio(),
}


def factorisation(graph: str, machine: str, tiles: int) -> tuple[Topology, Workload]:
    """A tiled factorisation on one of StarPU's machines."""
    reading = readers.read(data("starpu-perfmodels"), "starpu", machine=machine)
    kernels, graphs = factorisation_on(reading, graph, tiles)
    assert reading.topology is not None
    return reading.topology, Workload(f"{graph}:{tiles}", kernels, graphs, (Job(0, 0.0),))


def cholesky(machine: str, tiles: int) -> tuple[Topology, Workload]:
    """Tiled Cholesky on one of StarPU's machines."""
    return factorisation("cholesky", machine, tiles)


def makespans_ms(topology: Topology, workload: Workload, names: Sequence[str], draws: int) -> dict[str, list[float]]:
    """Sorted makespans of some runs with each scheduler."""
    drawn = [draw(topology, workload, seed, TOUCH, job_slots=1) for seed in range(draws)]
    # One program for all schedulers: compiling takes far longer than a run.
    policies = tuple(SCHEDULERS[name] for name in names)
    return {
        name: sorted(1e3 * simulate([one], OneOf(policies, jnp.int32(index)))[0].makespan_s for one in drawn)
        for index, name in enumerate(names)
    }


def ranking(theirs: Mapping[str, float], ours: Mapping[str, float]) -> Figures:
    """Agreement of two lists of makespans on the order of schedulers."""
    names = [name for name in theirs if name in ours]
    pairs = [(a, b) for a, b in combinations(names, 2) if abs(np.log(theirs[a] / theirs[b])) > np.log(1 + APART)]
    alike = [(theirs[a] < theirs[b]) == (ours[a] < ours[b]) for a, b in pairs]
    return {
        "theirs": sorted(names, key=theirs.__getitem__),
        "ours": sorted(names, key=ours.__getitem__),
        "kendall_tau": float(kendalltau([theirs[n] for n in names], [ours[n] for n in names]).statistic),
        "pairs_apart": len(pairs),
        "pairs_alike": sum(alike),
        "turned_round": [
            " < ".join(sorted(p, key=theirs.__getitem__)) for p, ok in zip(pairs, alike, strict=True) if not ok
        ],
    }


def starpu(quick: bool, kept: Sequence[Figures] = ()) -> Iterator[Figures]:
    """Run the cases that are not in the file."""
    before = {(case["graph"], case["machine"], case["tiles"]): case for case in kept}
    for (graph, machine, tiles), theirs in referee().items():
        if quick and (graph, machine, tiles) != ("cholesky", "sirocco", 4):
            continue
        if (graph, machine, tiles) in before:
            yield before[graph, machine, tiles]
            continue
        topology, workload = factorisation(graph, machine, tiles)
        runs = makespans_ms(topology, workload, [name for name in SCHEDULERS if name in theirs], STARPU_DRAWS)
        ours = {name: float(np.median(lengths)) for name, lengths in runs.items()}
        yield {
            "graph": graph,
            "machine": machine,
            "tiles": tiles,
            "tasks": len(workload.graphs[0].tasks),
            "held_out": machine == HELD_OUT[0] or tiles in HELD_OUT[1],
            "starpu_ms": theirs,
            "ours_ms": ours,
            "runs_ms": runs,
            "error": {name: off(ms, theirs[name]) for name, ms in ours.items()},
            "ranking": ranking(theirs, ours),
        }


def starpu_tables(cases: Sequence[Figures]) -> Iterator[Table]:
    """Makespans and rankings of every case, and how many meet the targets."""
    table = Table(
        title="Makespan in ms: StarPU's simulator / ours, error (aim: dm, dmda, dmdas within 10%); * held out"
    )
    table.add_column("graph, machine, tasks")
    for name in SCHEDULERS:
        table.add_column(name, justify="right")
    table.add_column("pairs alike")
    table.add_column("turned round")
    for case in cases:
        theirs, ours, r = case["starpu_ms"], case["ours_ms"], case["ranking"]
        cells = [
            f"{theirs[n]:.0f} / {ours[n]:.0f} {'[bold]' * (n in AIMED_AT and abs(off(ours[n], theirs[n])) > TARGET)}"
            f"{off(ours[n], theirs[n]):+.1%}"
            if n in ours
            else ""
            for n in SCHEDULERS
        ]
        name = f"{case['graph']}, {case['machine']}, {case['tasks']}{' *' * case['held_out']}"
        table.add_row(name, *cells, f"{r['pairs_alike']} of {r['pairs_apart']}", ", ".join(r["turned_round"]))
    yield table
    table = Table(
        "cases", *AIMED_AT, "pairs alike", title=f"Within {TARGET:.0%}, and pairs over {APART:.0%} apart ranked alike"
    )
    for name, some in (("all", cases), ("held out", [case for case in cases if case["held_out"]])):
        met = {n: [abs(case["error"][n]) <= TARGET for case in some if n in case["error"]] for n in AIMED_AT}
        alike, apart = (sum(case["ranking"][key] for case in some) for key in ("pairs_alike", "pairs_apart"))
        table.add_row(name, *(f"{sum(of)} of {len(of)}" for of in met.values()), f"{alike} of {apart}")
    yield table


# -------------------------------------------------------------------------------------------------------- Gavel

# Mean completion in s of the jobs that Gavel measures, in its simulator, by the seed of the list.
GAVEL: Mapping[int, Mapping[str, float]] = {
    0: dict(fifo=87_048, max_min_fairness=82_778, max_min_fairness_perf=57_921, allox=61_492,
            finish_time_fairness_perf=60_850),
    1: dict(fifo=295_906, max_min_fairness_perf=93_536, allox=143_739, finish_time_fairness_perf=94_823),
}  # fmt: skip
MEASURED = 50  # jobs 50 to 99 of a run, the first of which is the first that the list has after those under way
ROUND_S = 360.0
ARRIVALS = 480  # jobs of a list that are run: enough to keep the cluster loaded until the measured ones are done
QUICK_ARRIVALS = 210  # enough for those that are run in a hurry
SLOTS = 256
PLANNERS: Mapping[str, Policy] = {
    "fifo": Fifo(),
    "max_min_fairness": MaxMinFairnessPlain(),
    "max_min_fairness_perf": MaxMinFairness(),
    "allox": AlloX(),
    "finish_time_fairness_perf": FinishTimeFairness(),
}


def under_way(reading: FileContents) -> int:
    """How many jobs were under way when the first measured job of a list arrived.

    Gavel writes a list when that job arrives: first all jobs that it has, with the steps they have left, that job among
    them; then again that job, and those after it. So the last two that arrive at 0 are one job.
    """
    start = [job.graph for job in reading.jobs if job.arrival_s == 0]
    assert len(start) > 1 and start[-1] == start[-2], "the list does not hold its first measured job twice"
    return len(start) - 2


def gavel_case(seed: int, arrivals: int = ARRIVALS) -> tuple[Scenario, range]:
    """Gavel's 24 GPUs with one of its lists, and the numbers of the jobs that are measured."""
    reading = readers.read(data("gavel", "traces", f"generated_gap2700_seed{seed}.csv"), "gavel-jobs")
    first = under_way(reading)
    jobs = (reading.jobs[:first] + reading.jobs[first + 1 :])[:arrivals]
    workload = Workload(f"gavel:{seed}", reading.kernels, reading.graphs, jobs)
    rounds = replace(CALM, window_s=ROUND_S, offer_at_windows=True)
    scenario = draw(built_in("gpu24"), workload, 0, rounds, job_slots=SLOTS)
    return scenario, range(first, first + MEASURED)


def mean_completion_s(run: RunRecord, numbers: Iterable[int]) -> float:
    """Mean completion of some of the jobs."""
    completion = {job.job: job.completion_s for job in run.jobs}
    return float(np.mean([completion[number] for number in numbers]))


def gavel(quick: bool) -> Iterator[Figures]:
    """Run each policy on each list."""
    for seed, theirs in GAVEL.items():
        for name, figure in theirs.items():
            if quick and (seed, name) not in ((0, "fifo"), (0, "max_min_fairness_perf")):
                continue
            scenario, measured = gavel_case(seed, QUICK_ARRIVALS if quick else ARRIVALS)
            run = simulate([scenario], PLANNERS[name], name=name)[0]
            assert run.jobs_outside == 0, f"{run.jobs_outside} jobs found no job slot"
            mean = mean_completion_s(run, measured)
            longest = max((job for job in run.jobs if job.job in measured), key=lambda job: job.completion_s)
            yield {
                "seed": seed,
                "policy": name,
                "gavel_s": figure,
                "ours_s": mean,
                "error": off(mean, figure),
                "longest_share": longest.completion_s / (mean * MEASURED),
                "loaded_until_s": scenario.workload.jobs[-1].arrival_s,
                "last_done_s": longest.finish_s,
            }


def gavel_tables(runs: Sequence[Figures]) -> Iterator[Table]:
    """A table of mean completion times."""
    table = Table(title="24 GPUs, jobs 50 to 99, mean completion in s: Gavel's simulator and ours (aim: within 10%)")
    for column in ("list", "policy", "Gavel", "ours", "error", "", "share of the longest job"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for run in runs:
        table.add_row(
            f"seed {run['seed']}", run["policy"], f"{run['gavel_s']:,.0f}", f"{run['ours_s']:,.0f}",
            f"{run['error']:+.1%}", verdict(run["error"]), f"{run['longest_share']:.0%}",
        )  # fmt: skip
    yield table


# ---------------------------------------------------------------------------------------------------- Shockwave

TESTBED_ROUND_S = 120.0


class RawThroughput(MaxSumThroughput):
    """Maximises the sum of steps per second over all models, as Gavel does; ours adds relative rates."""

    def allocate(
        self, options: AllocationOptions, rows: NDArray[Any], capacity: NDArray[Any], p: PlanInputs
    ) -> NDArray[Any]:
        return max_sum(options, len(rows), capacity, np.ones(len(rows)))


class MinTotalDuration(Gavel):
    """Minimises the makespan of the known jobs."""

    def allocate(
        self, options: AllocationOptions, rows: NDArray[Any], capacity: NDArray[Any], p: PlanInputs
    ) -> NDArray[Any]:
        return AllocationProgram(options, len(rows), capacity).lift(np.maximum(p.left[rows], 1e-6))[1]


TESTBED: Mapping[str, Policy] = {
    "max_min_fairness": MaxMinFairness(),
    "max_sum_throughput_perf": RawThroughput(),
    "min_total_duration": MinTotalDuration(),
}


def testbed_case(scale: float = 1.0, restart_s: float = 0.0) -> Scenario:
    """The testbed's 32 GPUs and 120 jobs; `scale`: of the work of jobs that change their batch size on the way."""
    listed = data("shockwave", "traces", "dynamic_120jobs_100.csv")
    reading = readers.read(listed, "shockwave-jobs", restore_s=restart_s)
    graphs, jobs = list(reading.graphs), []
    assert reading.topology is not None
    for job, row in zip(reading.jobs, reading.tables["jobs"], strict=True):
        graph = reading.graphs[job.graph]
        if row["adaptation"] != "static":
            graph = replace(graph, tasks=tuple(replace(task, units=task.units * scale) for task in graph.tasks))
        jobs.append(replace(job, graph=len(graphs)))
        graphs.append(graph)
    used = tuple(replace(graph, name=f"{number}: {graph.name}") for number, graph in enumerate(graphs))
    workload = Workload("shockwave", reading.kernels, used, tuple(jobs))
    rounds = replace(CALM, window_s=TESTBED_ROUND_S, offer_at_windows=True)
    return draw(reading.topology, workload, 0, rounds, job_slots=128)


def listed_gpu_s(scenario: Scenario) -> float:
    """GPU-seconds of all jobs, as their steps and rates say."""
    kernels = {kernel.name: kernel for kernel in scenario.workload.kernels}
    total = 0.0
    for job in scenario.workload.jobs:
        tasks = scenario.workload.graphs[job.graph].tasks
        total += sum(kernels[task.kernel].implementations["gpu"].seconds(1.0) * task.units for task in tasks)
    return total


def restarts(run: RunRecord) -> int:
    """The number of times that a job was resumed."""
    stays = sum(len(stay.devices) for stay in run.gangs)
    return stays - sum(len(stay.devices) for stay in run.gangs if stay.outcome == "finished")


def shockwave(quick: bool) -> Iterator[Figures]:
    """Run each policy: with jobs as listed, with the lengths of the authors' simulator, and also with restart costs.

    The cost of a restart follows from the GPU time that the testbed used beyond the authors' simulator.
    """
    run = {"policy": text, "mode": text}
    totals = {**run, "makespan_s": number(), "avg_jct_s": number(), "cluster_utilization": number(0, 1)}
    summary = read_table(data("shockwave", "testbed32_summary.csv"), Collector(), totals).rows
    times = {**run, "job_position": whole(), "jct_s": number()}
    jobs = read_table(data("shockwave", "testbed32_jobs.csv"), Collector(), times).rows
    listed = testbed_case()
    devices = len(listed.topology.devices)
    for name, policy in TESTBED.items():
        if quick and name != "max_min_fairness":
            continue
        by_mode = {row["mode"]: row for row in summary if row["policy"] == name}
        gpu_s = {mode: row["cluster_utilization"] * row["makespan_s"] * devices for mode, row in by_mode.items()}
        shorter = gpu_s["simulated"] / listed_gpu_s(listed)
        completion = {
            mode: {row["job_position"]: row["jct_s"] for row in jobs if (row["policy"], row["mode"]) == (name, mode)}
            for mode in by_mode
        }
        restart_s = 0.0
        for what, scale in (("as listed", 1.0), ("shorter", shorter), ("and restarts", shorter)):
            if quick and what != "as listed":
                continue
            run = simulate([testbed_case(scale, restart_s)], policy, name=name)[0]
            ours = {job.job: job.completion_s for job in run.jobs}
            order = sorted(ours)
            yield {
                "policy": name,
                "jobs": what,
                "scale": scale,
                "restart_s": restart_s,
                "mean_s": {
                    "measured": by_mode["measured"]["avg_jct_s"],
                    "theirs": by_mode["simulated"]["avg_jct_s"],
                    "ours": float(np.mean(list(ours.values()))),
                },
                "makespan_s": {
                    "measured": by_mode["measured"]["makespan_s"],
                    "theirs": by_mode["simulated"]["makespan_s"],
                    "ours": run.makespan_s,
                },
                "rank_correlation": {
                    who: float(spearmanr([completion["measured"][j] for j in order], [of[j] for j in order]).statistic)
                    for who, of in (("theirs", completion["simulated"]), ("ours", ours))
                },
            }
            if what == "shorter":
                restart_s = max(0.0, gpu_s["measured"] - gpu_s["simulated"]) / restarts(run)


def shockwave_tables(runs: Sequence[Figures]) -> Iterator[Table]:
    """Completion times and makespans beside the measured ones."""
    table = Table(
        title="32 GPUs, 120 jobs: measured, the authors' simulator, ours (aim: an error no larger than theirs)"
    )
    for column in ("policy", "jobs", "figure", "measured", "theirs", "ours", "their error", "our error", ""):
        table.add_column(column, justify="left" if column in ("policy", "jobs", "figure") else "right", no_wrap=True)
    for run in runs:
        for figure, label in (("mean_s", "mean completion, s"), ("makespan_s", "makespan, s")):
            got = run[figure]
            error = {who: off(got[who], got["measured"]) for who in ("theirs", "ours")}
            table.add_row(
                run["policy"], run["jobs"], label, *(f"{got[who]:,.0f}" for who in ("measured", "theirs", "ours")),
                f"{error['theirs']:+.1%}", f"{error['ours']:+.1%}",
                "met" if abs(error["ours"]) <= abs(error["theirs"]) else "[bold]missed[/bold]",
            )  # fmt: skip
        rank = run["rank_correlation"]
        table.add_row(
            "", "", "rank correlation of jobs", "1", f"{rank['theirs']:.2f}", f"{rank['ours']:.2f}", end_section=True
        )
    yield table


def main() -> None:
    args = arguments("The simulator against others'.", SECTIONS)
    console = Console(width=160)
    measure = {"starpu": starpu, "gavel": gavel, "shockwave": shockwave}
    tables = {"starpu": starpu_tables, "gavel": gavel_tables, "shockwave": shockwave_tables}
    figures: dict[str, list[Figures]] = {}
    before = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    measure["starpu"] = partial(starpu, kept=before.get("starpu", ()))
    for section in args.only:
        for got in measure[section](args.quick):
            figures.setdefault(section, []).append(got)
            keep(args.json, **figures)  # after every figure, so that a stopped run loses nothing
    for section, kept in figures.items():
        for table in tables[section](kept):
            console.print(table)


if __name__ == "__main__":
    main()
