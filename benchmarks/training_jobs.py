"""Training jobs: `python -m benchmarks.training_jobs [--quick] [--only SECTION …] [--seeds N] [--json FILE]`.

- *gavel*: Gavel's own list on its 24 GPUs, with everything told that Gavel had measured. Mean completion of its jobs 50
  to 99, beside the figures that its own simulator reports.
- *drawn*: jobs whose speeds nobody knows, in the closed loop, over a range of loads. Every policy hears the same kind
  of reports of the jobs that it placed, and is told what the same models make of them. Beside it, what none can beat.
- *calibration*: how much of what is measured lies within 90% intervals, for families that no model has seen.
- *scale*: CPU seconds of one plan.

Drawn jobs can be measured in parts, by many processes: `--first-seed`, `--seeds`, `--policies`, `--loads`, and a file
of its own for each; `--merge FILE …` puts them together. A run that is given a file it wrote before goes on from there.
Seeds below 200 were looked at while the planner was worked on.

Unfair to the heuristics: those that do not pack have devices that nobody shares. Unfair to all on Gavel's list: a fifth
of its pairs is held out, and such pairs share nothing. A list is one observation: see the intervals of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table as Printed

from benchmarks.common import before, data, gather, in_parts, parser
from benchmarks.fidelity import GAVEL, MEASURED, ROUND_S, SLOTS, mean_completion_s, under_way
from benchmarks.training_bound import bound_s
from symphony import baselines
from symphony.evaluation.metrics import metrics
from symphony.lowering import readers
from symphony.problem.topologies import topology
from symphony.scheduling.state import FREE
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import CALM, Scenario, draw
from symphony.training_jobs import performance_model
from symphony.training_jobs.beliefs import NO_NEIGHBOUR, JobDescriptions, SpeedQuery
from symphony.training_jobs.closed_loop import ClosedLoopRun, run
from symphony.training_jobs.ground_truth import DOUBTFUL_MODELS, MeasuredSpeeds, measured
from symphony.training_jobs.job_features import estimate_kept_speed, estimate_step_s, gpu_features, job_features
from symphony.training_jobs.measured_jobs import MeasuredJobs, describe_jobs, drawn, listed, sharable
from symphony.training_jobs.planner import Planner
from symphony.training_jobs.round_planning import WAITS, PlanInputs
from tests.compiling import compile_quickly

Figures = dict[str, Any]
SECTIONS = ("gavel", "drawn", "calibration", "scale")
LOADS = (0.9, 2.0, 4.0)  # of what the cluster sustains if jobs do not share; lists are short, so that all end
ROUNDS = replace(CALM, window_s=ROUND_S, offer_at_windows=True)
OURS = "planner"
TRUTH, GUESSES, BOUND = f"{OURS}, knows the truth", f"{OURS}, guesses", "nobody can be below"
GAVELS = ("max-min-fairness", "max-sum-throughput", "min-total-duration", "finish-time-fairness")
RIVALS = (*GAVELS, *(f"{name}-packed" for name in GAVELS), "allox", "srtf", "las", "tiresias", "optimus", "tetris",
          "drf", "least-interference", "load-balancing", "fifo-passing")  # fmt: skip
SHARING = frozenset({"least-interference", *(f"{name}-packed" for name in GAVELS)})  # the others have GPUs for one
FEW_ARRIVALS = 32  # of a list: too few to keep the cluster loaded, so that means are low; it runs, and quickly
PACKED_BY_GAVEL = {0: 57_022.0, 1: 83_982.0}  # what its simulator reports for max_min_fairness_packed


@cache
def tables() -> MeasuredSpeeds:
    """Gavel's."""
    return measured(data("gavel", "isolated_throughput.csv").parent)


# -------------------------------------------------------------------------------------------------------- a list


def gavel_case(seed: int, slots: int, arrivals: int) -> tuple[Scenario, range]:
    """One of Gavel's lists on its cluster, all told that was measured; and the jobs that count."""
    reading = readers.read(data("gavel", "traces", f"generated_gap2700_seed{seed}.csv"), "gavel-jobs")
    first = under_way(reading)
    jobs = (reading.jobs[:first] + reading.jobs[first + 1 :])[:arrivals]
    cluster = sharable(topology("gpu24"), slots)
    made = listed(reading, tables(), cluster, jobs)
    scenario = draw(cluster, made.workload, 0, ROUNDS, job_slots=SLOTS if arrivals > FEW_ARRIVALS else FEW_ARRIVALS)
    return replace(scenario, truth=made.truth, believed=made.believed), range(first, min(first + MEASURED, arrivals))


def gavel(options: Any) -> Iterator[Figures]:
    """Ours, and Gavel's policies in ours, on its lists."""
    names = (OURS,) if options.quick else (OURS, *RIVALS)  # each takes half a minute to compile
    for seed, arrivals in ((0, FEW_ARRIVALS),) if options.quick else ((0, 210), (1, 480)):
        for name in (name for name in names if not options.policies or name in options.policies):
            policy = planner(options.planner) if name == OURS else baselines.named(name)
            scenario, numbers = gavel_case(seed, slots_for(name), arrivals)
            began = time.perf_counter()
            done = simulate([scenario], policy, name=name)[0]
            assert done.jobs_outside == 0, "jobs found no job slot"
            yield {
                "list": seed,
                "policy": name,
                "mean_s": mean_completion_s(done, numbers),
                "alone_s": alone_s(scenario, numbers),
                "gavel_packed_s": PACKED_BY_GAVEL[seed],
                "gavel_fifo_s": GAVEL[seed]["fifo"],
                "wall_s": time.perf_counter() - began,
            }


def alone_s(scenario: Scenario, numbers: Sequence[int]) -> float:
    """Mean time of jobs that are alone on their best GPU from the instant they arrive: no policy can do better."""
    kernels = {kernel.name: kernel for kernel in scenario.workload.kernels}
    jobs = [scenario.workload.graphs[scenario.workload.jobs[n].graph].tasks[0] for n in numbers]
    best = [min(p.seconds(1.0) for p in kernels[t.kernel].implementations.values()) * t.units for t in jobs]
    return float(np.mean(best))


# ------------------------------------------------------------------------------------------------------- unknown


def unknown_case(
    seed: int, slots: int, jobs: int, load: float, models: Sequence[Sequence[str]] = ()
) -> tuple[Scenario, MeasuredJobs]:
    """Jobs of whose speeds only guesses are told."""
    cluster = sharable(topology("gpu24"), slots)
    made = drawn(tables(), cluster, seed, jobs=jobs, load=load, models=models)
    scenario = draw(cluster, made.workload, seed, replace(ROUNDS, work_noise=0.06), job_slots=64 if jobs <= 64 else 128)
    return replace(scenario, truth=made.truth, believed=made.believed), made


def knowing(scenario: Scenario, made: MeasuredJobs) -> Scenario:
    """The same, where the truth is told."""
    never = {pair for pair, kept in made.believed.beside.items() if kept == 0}
    beside = {pair: 0.0 if pair in never else kept for pair, kept in made.truth.beside.items()}
    return replace(scenario, believed=replace(made.truth, beside=beside))


def planner(settings: Sequence[str]) -> Planner:
    """Ours, with settings as `name=value`."""
    return Planner(**{name: float(value) for name, value in (setting.split("=") for setting in settings)})  # type: ignore[arg-type]


def in_the_loop(name: str, settings: Sequence[str], scenario: Scenario, made: MeasuredJobs) -> ClosedLoopRun:
    """One run of ours (as it is, by guesses, told the truth) or of a rival."""
    described = describe_jobs(made, scenario.topology)
    if not name.startswith(OURS):
        return run(scenario, baselines.named(name), described)
    if name == TRUTH:
        return run(knowing(scenario, made), planner(settings), described, learns=False)
    return run(scenario, planner(settings), described, learns=name == OURS)


def unknown(options: Any) -> Iterator[Figures]:
    """One load and seed after the other, all policies; but for what has been measured."""
    names: Sequence[str] = (BOUND, OURS) if options.quick else (BOUND, OURS, TRUTH, GUESSES, *RIVALS)
    names = [name for name in names if not options.policies or name in options.policies]
    known = {(row["load"], row["seed"], row["policy"]) for row in options.before}
    first, count = options.first_seed, 1 if options.quick else options.seeds
    for load in LOADS[1:2] if options.quick else options.loads:
        for seed in range(first, first + count):
            for name in (name for name in names if (load, seed, name) not in known):
                jobs = options.jobs // 4 if options.quick else options.jobs
                scenario, made = unknown_case(seed, slots_for(name), jobs, load)
                began = time.perf_counter()
                if name == BOUND:
                    found = {"mean_s": bound_s(scenario)}
                else:
                    found = figures(in_the_loop(name, options.planner, scenario, made), scenario)
                yield {"load": load, "seed": seed, "policy": name, **found, "wall_s": time.perf_counter() - began}


def slots_for(name: str) -> int:
    """How many jobs may share a GPU under a policy."""
    return 1 if name in RIVALS and name not in SHARING else 2


def figures(out: ClosedLoopRun, scenario: Scenario) -> Figures:
    """What is kept of a run in the loop. Slow-downs and fairness are by true speeds; profiles are guesses."""
    completion = [job.completion_s for job in out.run.jobs]
    true = tuple(replace(job, isolated_s=truly_alone_s(scenario, job.job)) for job in out.run.jobs)
    measured = metrics(replace(out.run, jobs=true))
    return {
        "mean_s": float(np.mean(completion)),
        "p99_s": float(np.percentile(completion, 99)),
        "makespan_s": out.run.makespan_s,
        "worst_slowdown": measured["max_slowdown"],
        "worst_fairness": measured["max_unfairness"],
        "unfair_share": measured["unfair_share"],
        "samples": out.samples,
        "refits": sum(entry.what == "refit" for entry in out.log),
        "drifts": sum(entry.what == "drift" for entry in out.log),
        "errors": out.errors,
    }


def truly_alone_s(scenario: Scenario, number: int) -> float:
    """Seconds of a job alone on the GPU that suits it best, of those that have as many as it needs."""
    assert scenario.truth is not None
    graph = scenario.workload.graphs[scenario.workload.jobs[number].graph]
    task, width = graph.tasks[0], int(len(graph.tasks) > 1)  # one GPU in a machine: gangs are spread
    known = scenario.truth.unit_s
    able = [kind for kind, count in scenario.topology.kind_counts.items() if count >= len(graph.tasks)]
    return task.units * min(known[task.kernel, kind][width] for kind in able if (task.kernel, kind) in known)


def compared(rows: Sequence[Figures], figure: str) -> dict[str, Figures]:
    """Every policy against ours, seed by seed: relative difference of the means, with its 95% interval."""
    by: dict[str, dict[int, float]] = {}
    for row in (row for row in rows if figure in row):
        by.setdefault(row["policy"], {})[row["seed"]] = row[figure]
    base = by.get(OURS, {})
    found = {}
    for name, values in by.items():
        seeds = sorted(set(values) & set(base))
        if not seeds:
            continue
        a, b = np.asarray([base[s] for s in seeds]), np.asarray([values[s] for s in seeds])
        low, high = interval(a, b)
        found[name] = {"mean": float(b.mean()), "ours": float(a.mean() / b.mean() - 1), "low": low, "high": high}
        found[name]["seeds"] = len(seeds)
    return found


def interval(a: np.ndarray, b: np.ndarray, draws: int = 4000) -> tuple[float, float]:
    """95% interval of the relative difference of two means, by drawing seeds again and again."""
    pick = np.random.default_rng(0).integers(0, len(a), (draws, len(a)))
    low, high = np.percentile(a[pick].mean(axis=1) / b[pick].mean(axis=1) - 1, [2.5, 97.5])
    return float(low), float(high)


# --------------------------------------------------------------------------------------------------- calibration


def calibration(options: Any) -> Iterator[Figures]:
    """Families left out one by one; Gavel's tables as they are."""
    table = tables()
    shapes = [shape for shape in table.shapes if shape.model not in DOUBTFUL_MODELS]
    index = {shape: n for n, shape in enumerate(shapes)}
    models = sorted({shape.model for shape in shapes})
    gpus = list(table.gpus)
    unit_s, kept = np.zeros((len(shapes), len(gpus), 2)), np.ones((len(shapes), len(shapes), len(gpus)))
    rows: list[tuple[int, int, int, int]] = []
    seen: list[float] = []
    for (shape, gpu), rates in table.rates.items():
        if shape in index:
            unit_s[index[shape], gpus.index(gpu)] = [
                estimate_step_s(shape, gpu, spread=spread) for spread in (False, True)
            ]
            for spread in range(1 if shape.gpus == 1 else 2):
                rows.append((index[shape], gpus.index(gpu), spread, NO_NEIGHBOUR))
                seen.append(-np.log(rates[spread]))
    for (a, b, gpu), share in table.kept.items():
        if a in index and b in index and (a, b, gpu) not in table.composed:
            kept[index[a], index[b], gpus.index(gpu)] = estimate_kept_speed(a, b, gpu)
            rows.append((index[a], gpus.index(gpu), 0, index[b]))
            seen.append(-np.log(share * table.rates[a, gpu][0]))
    described = JobDescriptions(
        np.stack([job_features(shape) for shape in shapes]), np.stack([gpu_features(gpu) for gpu in gpus]),
        np.asarray([models.index(shape.model) for shape in shapes]), unit_s, kept,
    )  # fmt: skip
    query = SpeedQuery(*np.asarray(rows).T)
    y, x = np.asarray(seen) - query.guess(described), query.inputs(described)
    family = described.family[query.kernel]
    for seed in range(1 if options.quick else 5):
        for number, model in enumerate(models[:1] if options.quick else models):
            rest = np.random.default_rng(seed).permutation(np.flatnonzero(family != number))
            rest = rest[: performance_model.MAX_FIT_SAMPLES]
            known = performance_model.fit_data(x[rest], y[rest], np.zeros(len(rest)), family[rest], 1e9)
            key = jax.random.key(seed)
            ensemble = performance_model.fit(key, performance_model.untrained(key, x.shape[1]), known)
            mean, std = (np.asarray(z) for z in ensemble.predict(x[family == number]))
            off = y[family == number] - mean
            yield {
                "seed": seed, "family": model, "speeds": len(off),
                "within": int((np.abs(off) < performance_model.Z_90 * std).sum()),
                "rms": float(np.sqrt(np.mean(off**2))), "rms_guess": float(np.sqrt(np.mean(y[family == number] ** 2))),
                "std": float(std.mean()),
            }  # fmt: skip


# --------------------------------------------------------------------------------------------------------- scale


def scale(options: Any) -> Iterator[Figures]:
    """CPU seconds of one plan from scratch; 24 kernels, pairs told."""
    sizes = ((64, 80), (200, 250)) if options.quick else ((64, 80), (500, 625), (2_000, 2_500), (10_000, 30_000))
    for gpus, jobs in sizes:
        p = crowd(gpus, jobs)
        taken = []
        for _ in range(3):
            began = time.process_time()
            Planner(rows=len(p.gang)).plan(p._replace(book=np.zeros((len(p.gang), 1)), memo=np.zeros(1)))
            taken.append(time.process_time() - began)
        yield {"gpus": gpus, "jobs": len(p.gang), "median_s": float(np.median(taken))}


def crowd(gpus: int, jobs: int, kernels: int = 24) -> PlanInputs:
    """Jobs that wait for a cluster of three kinds of GPU, four to a machine, each of which two may share."""
    rng = np.random.default_rng(0)
    best = rng.lognormal(0, 1, (kernels, 1)) * np.asarray([[1.0, 0.5, 0.15]]) * rng.lognormal(0, 0.2, (kernels, 3))
    kernel = rng.integers(0, kernels, jobs)
    lane_device = np.repeat(np.arange(gpus), 2)
    none = np.zeros(jobs)
    return PlanInputs(
        boundary=np.asarray(True), seed=np.asarray(0), windows=np.asarray(1), now_s=np.asarray(360.0),
        since_s=np.asarray(360.0), gang=np.arange(jobs), job=np.arange(jobs), kernel=kernel,
        priority=np.zeros(jobs, int), workers=rng.choice([1, 1, 1, 2, 4], jobs), standing=np.full(jobs, WAITS),
        left=rng.lognormal(8, 1.4, jobs), age_s=none, ran_s=none, rate=best[kernel], moving_s=none,
        need=np.zeros((jobs, 3, 0)), beside=rng.uniform(0.4, 1.0, (kernels, kernels, 3)),
        beside_std=np.zeros((kernels, kernels, 3)), unit_s=np.stack([1 / best, 1.3 / best], axis=-1),
        unit_std=np.zeros((kernels, 3, 2)), crowding=np.asarray(0.1), holder=np.full(2 * gpus, FREE),
        queued=np.zeros(gpus, int), up=np.ones(gpus, bool), kind=np.arange(gpus) * 3 // gpus,
        machine=np.arange(gpus) // 4, lane_device=lane_device, lane_exists=np.ones(2 * gpus, bool),
        old_gang=np.full(jobs, -1), old_job=np.full(jobs, -1), old_plan=np.full(2 * gpus, -1),
        book=np.zeros((jobs, 1)), memo=np.zeros(1),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------- printing


def beside(rows: Sequence[Figures], title: str, console: Console, extra: Sequence[str] = ()) -> Figures:
    """Print every policy against ours, seed by seed."""
    printed = Printed(title=title)
    shown = ["mean_s", "p99_s", "makespan_s", *extra]
    against = {figure: compared(rows, figure) for figure in shown}
    for column in ("policy", "seeds", *(f"{f}; ours against it" for f in shown)):
        printed.add_column(column)
    for name in sorted(against["mean_s"], key=lambda name: against["mean_s"][name]["mean"]):
        cells = [
            f"{a[name]['mean']:,.0f}; {a[name]['ours']:+.1%} [{a[name]['low']:+.1%}, {a[name]['high']:+.1%}]"
            if name in a
            else ""
            for a in against.values()
        ]
        printed.add_row(name, str(against["mean_s"][name]["seeds"]), *cells)
    console.print(printed)
    return against


def by_load(rows: Sequence[Figures], console: Console) -> Figures:
    """Print a table for each load."""
    loads = sorted({row["load"] for row in rows})
    return {str(x): beside([row for row in rows if row["load"] == x], f"load {x:g}", console) for x in loads}


def show(section: str, rows: Sequence[Figures], console: Console) -> Figures:
    """Print a section; what was made of it."""
    printed = Printed(title=section)
    if section == "drawn":
        return by_load(rows, console)
    for column in rows[0]:
        printed.add_column(column)
    for row in rows:
        printed.add_row(*(f"{value:,.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(printed)
    if section == "calibration":
        share = sum(row["within"] for row in rows) / sum(row["speeds"] for row in rows)
        console.print(f"within 90% intervals: {share:.1%} (aim: 87 to 93%)")
        return {"within": share}
    return {}


MEASURE: Mapping[str, Callable[[Any], Iterator[Figures]]] = {
    "gavel": gavel,
    "drawn": unknown,
    "calibration": calibration,
    "scale": scale,
}


def main() -> None:
    """Measure, print, keep. What is there is kept after every row, so that a run may be stopped."""
    options_parser = parser(__doc__.splitlines()[0], SECTIONS)
    in_parts(options_parser)
    options_parser.add_argument("--jobs", type=int, default=48, help="of each seed")
    options_parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="of drawn jobs")
    options_parser.add_argument("--policies", nargs="+", help="run these only")
    options_parser.add_argument("--planner", nargs="+", default=[], metavar="NAME=VALUE", help="settings of ours")
    options = options_parser.parse_args()
    if options.quick:
        compile_quickly()  # it is compilation that takes the time
    console = Console()
    found: dict[str, Any] = {}
    for section in options.only:
        # Learned policies are measured on the same lists by `training_policies`.
        rows = before(options, section) + (before(options, "policies") if section == "drawn" and options.merge else [])
        rows = [row for row in rows if section != "drawn" or "load" in row]
        gather(
            options, found, section, rows, partial(MEASURE[section], options), partial(show, section, console=console)
        )


if __name__ == "__main__":
    main()
