"""Real training jobs on one GPU: `python -m benchmarks.gpu_training [--quick] [--only …] [--seconds S] [--json FILE]`.

- *speeds*: steps/s of the four kinds of job of `examples/gpu_training.py`: alone, in pairs, and beside a load on all
  CPU cores. Two processes take turns; compilation is not measured.
- *lists*: heavy-tailed lists of these jobs through the real runtime, on one GPU with two slots. For each list all
  policies in turn, in an order that rotates from list to list. All start with the same speed samples, one for each
  measurement of *speeds* (--cold: with none).

Unfair: jobs take seconds, not hours, and rounds are as short. A job that is stopped costs its slot a new process, which
has to start JAX. This is long beside such jobs, hits policies that preempt often, and is included; policies are told
the measured time as the cost of restoring. Processes are otherwise reused, and compiled programs are kept on disk and
in memory. Without a GPU, two CPU processes stand for one, with tiny models: this shows only that the benchmark runs.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import before, gather, parser
from examples.gpu_training import KINDS, gpu_name, initial, job, one_device, program, training_kernel
from symphony.engines.local import LocalEngine
from symphony.runtime.cluster import Cluster
from symphony.training_jobs.job_forecast import JobForecast
from symphony.training_jobs.live.speed_beliefs import SPEEDS_FORMAT, JobKind

SECTIONS = ("speeds", "lists")
POLICIES = ("planner", "srtf", "las", "max-min-fairness-packed", "fifo")
TUNING_SEEDS = 100  # lower seeds are for tuning
LENGTHS_S = (0.2, 10.0)  # of jobs alone
MEDIAN_S, SIGMA = 0.5, 1.2  # of the lengths, before they are cut: heavy-tailed
LOAD = 1.3  # work that arrives over the capacity of the GPU if it runs one job at a time
ROUND_S = 1.0
SHARE = 0.8  # nominal coverage of forecasts
FORECASTS_AT = (0.3, 0.6, 0.9)  # of the arrivals
MAX_LIST_S = 120.0  # after which a list is taken to have failed
Figures = dict[str, Any]


# --- speeds


def measure(pipe: Any, environment: dict[str, str], size: str) -> None:
    """A process that trains: receives (kind, seconds), reports when it is ready, then its steps/s."""
    os.environ.update(environment)
    import jax

    ready: dict[str, Any] = {}
    while (asked := pipe.recv()) is not None:
        kind, seconds = asked
        _, step = program(kind, size)
        weights = ready.pop(kind, None)
        if weights is None:
            weights = initial(kind, size, 0)
        for number in range(3):
            weights, loss = step(weights, 0, number)
        jax.block_until_ready(loss)
        pipe.send("ready")
        pipe.recv()
        began, steps = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            weights, loss = step(weights, 0, steps)
            jax.block_until_ready(loss)
            steps += 1
        pipe.send(steps / (time.monotonic() - began))
        ready[kind] = weights


def busy() -> None:
    """Load one core and the memory."""
    block = np.ones(1 << 22)
    while True:
        block = np.sqrt(block + 1.0)


class Trainers:
    """Two processes that train on the same device."""

    def __init__(self, environment: dict[str, str], size: str) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for _ in range(2):
            ours, theirs = self._context.Pipe()
            self._processes.append(self._context.Process(target=measure, args=(theirs, environment, size), daemon=True))
            self._processes[-1].start()
            self._pipes.append(ours)

    def together(self, kinds: Sequence[str], seconds: float) -> list[float]:
        """Steps/s of one or two jobs at the same time."""
        pipes = self._pipes[: len(kinds)]
        for pipe, kind in zip(pipes, kinds, strict=True):
            pipe.send((kind, seconds))
        for pipe in pipes:
            pipe.recv()
        for pipe in pipes:
            pipe.send("go")
        return [pipe.recv() for pipe in pipes]

    def beside_load(self, kind: str, seconds: float, cores: int) -> float:
        """Steps/s of a job beside so many processes that compute on the CPU."""
        load = [self._context.Process(target=busy, daemon=True) for _ in range(cores)]
        for process in load:
            process.start()
        time.sleep(min(seconds, 1.0))
        [speed] = self.together([kind], seconds)
        for process in load:
            process.kill()
            process.join()
        return speed

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)
            process.kill()


def speeds(options: Any, seconds: float) -> Iterator[Figures]:
    """Take the measurements that are not in the file."""
    known = {(row["how"], tuple(row["kinds"])) for row in options.before}
    trainers = Trainers(options.environment, options.size)
    cores = len(os.sched_getaffinity(0))
    try:
        for kind in KINDS:
            if ("alone", (kind,)) not in known:
                yield {"how": "alone", "kinds": [kind], "steps_per_s": trainers.together([kind], seconds)}
        pairs = list(combinations_with_replacement(KINDS, 2))
        for pair in pairs[:2] if options.quick else pairs:
            if ("pair", pair) not in known and time.monotonic() < options.until_s:
                yield {"how": "pair", "kinds": list(pair), "steps_per_s": trainers.together(pair, seconds)}
        for kind in KINDS[:1] if options.quick else KINDS:
            if ("CPU load", (kind,)) not in known and time.monotonic() < options.until_s:
                loaded = trainers.beside_load(kind, seconds, cores)
                yield {"how": "CPU load", "kinds": [kind], "steps_per_s": [loaded]}
    finally:
        trainers.close()


def alone(rows: Sequence[Figures]) -> dict[str, float]:
    """Steps/s of each kind alone."""
    return {row["kinds"][0]: row["steps_per_s"][0] for row in rows if row["how"] == "alone"}


def show_speeds(rows: Sequence[Figures], console: Console) -> Figures:
    """A table of speeds alone, and of the share kept beside others."""
    own, kept = alone(rows), dict[tuple[str, str], list[float]]()
    for row in rows:
        near = ["CPU load"] if row["how"] == "CPU load" else row["kinds"][::-1] if row["how"] == "pair" else []
        for kind, other, speed in zip(row["kinds"], near, row["steps_per_s"], strict=False):
            kept.setdefault((kind, other), []).append(speed / own[kind])
    table = Table("", "steps/s alone", *(f"beside {other}" for other in (*KINDS, "CPU load")), box=None)
    for kind in KINDS:
        cells = [f"{np.mean(kept[kind, o]):.0%}" if (kind, o) in kept else "" for o in (*KINDS, "CPU load")]
        table.add_row(kind, f"{own[kind]:.1f}", *cells)
    console.print(table)
    return {"alone": own, "kept": {f"{kind} beside {other}": float(np.mean(x)) for (kind, other), x in kept.items()}}


# --- lists


def draw_list(seed: int, jobs: int, per_s: dict[str, float]) -> list[tuple[float, str, int, float]]:
    """Arrival, kind, steps, and seconds alone of each job."""
    rng = np.random.default_rng([seed, 27])
    length_s = np.clip(MEDIAN_S * np.exp(SIGMA * rng.normal(size=jobs)), *LENGTHS_S)
    kinds = rng.permutation(np.resize(KINDS, jobs))
    gaps = rng.exponential(size=jobs)
    arrival_s = np.cumsum(gaps) * length_s.sum() / LOAD / gaps.sum()
    steps = [max(2, round(per_s[kind] * s)) for kind, s in zip(kinds, length_s, strict=True)]
    rows = zip(arrival_s - arrival_s[0], kinds, steps, strict=True)
    return [(float(at), str(kind), count, count / per_s[str(kind)]) for at, kind, count in rows]


def write_samples(path: Path, rows: Sequence[Figures], kinds: dict[str, JobKind], device: str) -> None:
    """The measured speeds, alone and in pairs, as samples for the models: one job for each measurement."""
    numbers, samples = {kind: number for number, kind in enumerate(KINDS)}, []
    for row in rows:
        for place, (kind, speed) in enumerate(zip(row["kinds"], row["steps_per_s"], strict=True)):
            if row["how"] != "CPU load":
                near = [numbers[row["kinds"][1 - place]]] if row["how"] == "pair" else []
                samples.append([len(samples), numbers[kind], device, near, False, -math.log(speed), time.time()])
    path.write_text(json.dumps({"format": SPEEDS_FORMAT, "kinds": [kinds[kind] for kind in KINDS], "samples": samples}))


class Lists:
    """One engine, whose processes all policies use in turn."""

    def __init__(self, options: Any, measured: Sequence[Figures], folder: Path) -> None:
        self.options, self.per_s, self.folder = options, alone(measured), folder
        os.environ.update(options.environment)
        began = time.monotonic()
        self.engine = LocalEngine(one_device(options.gpu))
        # The cost of stopping a job, beside its checkpoint: a process starts, and its first job loads a program.
        self.restart_s = time.monotonic() - began
        self.restart_s += self._first_job_s()
        self.samples = folder / "samples.json"
        if not options.cold:
            kinds = {kind: JobKind.of(self.kernel(kind)) for kind in KINDS}
            write_samples(self.samples, measured, kinds, options.gpu or "emulated")

    def _first_job_s(self) -> float:
        """Seconds of the first job of a process, which has one step."""
        cluster = Cluster(self.engine, policy="fifo", profiles=self.folder / "first.json", at_once=64)
        try:
            first = cluster.submit(self.job(KINDS[0], 1, 0))
            first.result()
            return float(first._state.ended_s - first._state.runs[0].attempts[-1].sent_s)
        finally:
            cluster.stop(wait=False)

    def kernel(self, kind: str) -> Any:
        o = self.options
        return training_kernel(kind, 1, size=o.size, device=o.gpu or "emulated", restore_s=self.restart_s)

    def job(self, kind: str, steps: int, seed: int) -> Any:
        o = self.options
        return job(kind, steps, seed, size=o.size, device=o.gpu or "emulated", restore_s=self.restart_s)

    def run(self, policy: str, jobs: Sequence[tuple[float, str, int, float]]) -> Figures:
        """Run one list under one policy."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            learned = Path(name) / "profiles-training.json"
            if self.samples.exists():
                shutil.copy(self.samples, learned)
            cluster = Cluster(
                self.engine,
                policy=policy,
                profiles=Path(name) / "profiles.json",
                round_s=ROUND_S,
                at_once=64,
                policy_timeout_s=5.0,
            )
            try:
                found = self._run(cluster, policy, jobs)
            finally:
                cluster.stop(wait=False)
            return found

    def _warm_up(self, cluster: Cluster) -> None:
        """Let every process compile every kind, and the policy its program."""
        for kind in KINDS:
            for started in [cluster.submit(self.job(kind, 3, seed)) for seed in range(2)]:
                started.result()
        cluster.forecasts()

    def _run(self, cluster: Cluster, policy: str, jobs: Sequence[tuple[float, str, int, float]]) -> Figures:
        self._warm_up(cluster)
        learner = cluster._rounds.speeds.learner
        rounds_before, samples_before = learner._rounds, len(learner.beliefs.store.samples)
        errors_before = len(learner.errors)
        asks = {round(share * len(jobs)) for share in FORECASTS_AT}
        asked: list[tuple[float, Future[list[JobForecast]]]] = []
        began, submitted = time.monotonic(), []
        with ThreadPoolExecutor(1) as thread:
            for number, (arrival_s, kind, steps, _) in enumerate(jobs):
                time.sleep(max(began + arrival_s - time.monotonic(), 0.0))
                submitted.append(cluster.submit(self.job(kind, steps, number)))
                if number in asks:
                    asked.append((time.monotonic(), thread.submit(cluster.forecasts, SHARE)))
            for one in submitted:
                if not one.wait(max(began + jobs[-1][0] + MAX_LIST_S - time.monotonic(), 0.1)):
                    raise RuntimeError(f"{policy}: a job of the list did not end within {MAX_LIST_S:g} s")
        for one in submitted:
            one.result()
        completion = np.asarray([one.completion_s for one in submitted])
        slow = completion / np.asarray([length_s for *_, length_s in jobs])
        runs = [len(one._state.runs[0].attempts) for one in submitted]
        return {
            "policy": policy,
            "jobs": len(jobs),
            "mean_s": float(completion.mean()),
            "p99_slowdown": float(np.quantile(slow, 0.99)),
            "mean_slowdown": float(slow.mean()),
            "makespan_s": max(one._state.ended_s for one in submitted) - began,
            "stops": sum(runs) - len(runs),
            "rounds": learner._rounds - rounds_before,
            "samples": len(learner.beliefs.store.samples) - samples_before,
            "samples_before": samples_before,
            "rejected": dict(learner.beliefs.store.reasons),
            "round_errors": [error for _, error in learner.errors[errors_before:]],
            "believed_over_measured": self._believed(cluster),
            "forecasts": self._covered(asked, submitted),
            "fallbacks": dict(cluster.statistics.fallbacks),
            "decision_p99_s": cluster.statistics.latency_quantile(0.99),
            "times_s": completion.tolist(),
        }

    def _believed(self, cluster: Cluster) -> dict[str, float]:
        """Believed over measured steps/s of each kind alone, at the end of a list."""
        step_s = {kind: cluster._rounds.speeds.step_s(self.kernel(kind), 0) for kind in KINDS}
        return {kind: 1 / seconds / self.per_s[kind] for kind, seconds in step_s.items()}

    def _covered(self, asked: Sequence[tuple[float, Future[list[JobForecast]]]], jobs: Sequence[Any]) -> Figures:
        """The number of covered forecasts of ends of jobs, which assume that the planner decides."""
        ended = {one.id: one._state.ended_s for one in jobs}
        inside, below, count = 0, 0, 0
        for at_s, made in asked:
            for one in made.result():
                if one.job in ended:
                    took_s = ended[one.job] - at_s
                    inside += one.finish_s.low <= took_s <= one.finish_s.high
                    below += took_s < one.finish_s.low
                    count += 1
        return {"made": count, "inside": inside, "sooner": below}


def lists(options: Any, measured: Sequence[Figures]) -> Iterator[Figures]:
    """Run list after list, each under all policies, until the time is up."""
    known = {(row["seed"], row["policy"]) for row in options.before}
    policies = ("planner", "fifo") if options.quick else options.policies
    with tempfile.TemporaryDirectory() as name:
        lists, per_s = Lists(options, measured, Path(name)), alone(measured)
        longest_s = 0.0
        try:
            for number in range(1 if options.quick else options.lists):
                seed = options.first_seed + number
                turn = number % len(policies)
                for policy in (*policies[turn:], *policies[:turn]):
                    if (seed, policy) in known or time.monotonic() + longest_s > options.until_s:
                        continue
                    began = time.monotonic()
                    found = lists.run(policy, draw_list(seed, options.jobs, per_s))
                    longest_s = max(longest_s, time.monotonic() - began)
                    yield {"seed": seed, "restart_s": lists.restart_s, "per_s": per_s, **found}
        finally:
            lists.engine.close()


def show_lists(rows: Sequence[Figures], console: Console) -> Figures:
    """Means over the lists that every policy has run; and the planner over the best heuristic of each."""
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    by = {(row["seed"], row["policy"]): row for row in rows}
    seeds = [seed for seed in sorted({row["seed"] for row in rows}) if all((seed, p) in by for p in policies)]
    names = (
        "",
        "mean completion, s",
        "planner over it",
        "p99 of slow-down",
        "stops",
        "samples",
        "error",
        "in 80% band",
    )
    table, summary = Table(*names, title=f"{len(seeds)} lists on one GPU", box=None), dict[str, Any]()
    for policy in policies if seeds else ():
        mine = [by[seed, policy] for seed in seeds]
        mean = {key: float(np.mean([row[key] for row in mine])) for key in ("mean_s", "p99_slowdown", "stops")}
        ratio = [by[seed, "planner"]["mean_s"] / by[seed, policy]["mean_s"] for seed in seeds if "planner" in policies]
        late = [error for row in mine for error in row["round_errors"][len(row["round_errors"]) // 2 :]]
        made = sum(row["forecasts"]["made"] for row in mine)
        held = sum(row["forecasts"]["inside"] for row in mine) / made if made else float("nan")
        error = float(np.median(late)) if late else float("nan")
        over = float(np.exp(np.mean(np.log(ratio)))) if ratio else float("nan")
        summary[policy] = {**mean, "planner_over_it": over, "late_error": error, "coverage": held}
        table.add_row(
            policy, f"{mean['mean_s']:.2f}", f"{over:.3f}", f"{mean['p99_slowdown']:.1f}", f"{mean['stops']:.0f}",
            f"{np.mean([row['samples'] for row in mine]):.0f}", f"{error:.0%}", f"{held:.0%}",
        )  # fmt: skip
    rivals = [policy for policy in policies if policy != "planner"]
    if seeds and "planner" in policies and rivals:
        for key in ("mean_s", "p99_slowdown"):
            best = [by[seed, "planner"][key] / min(by[seed, rival][key] for rival in rivals) for seed in seeds]
            summary[f"{key}_over_best"] = {"each": best, "mean": float(np.mean(best)), "worst": max(best)}
    console.print(table)
    console.print(json.dumps({key: value for key, value in summary.items() if key.endswith("over_best")}))
    return summary


def main() -> None:
    """Measure and print. Every row is stored at once, so that a run may be stopped and resumed."""
    options_parser = parser(__doc__.splitlines()[0], SECTIONS)
    options_parser.add_argument("--seconds", type=float, default=480.0, help="start nothing that would end later")
    options_parser.add_argument("--lists", type=int, default=5)
    options_parser.add_argument("--jobs", type=int, help="jobs of a list; by default 30")
    options_parser.add_argument("--first-seed", type=int, default=TUNING_SEEDS)
    options_parser.add_argument("--policies", nargs="+", default=POLICIES)
    options_parser.add_argument("--cold", action="store_true", help="begin every list without speed samples")
    options_parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="only show these")
    options = options_parser.parse_args()
    options.until_s = time.monotonic() + (45.0 if options.quick else options.seconds)
    options.jobs = options.jobs or (8 if options.quick else 30)
    options.gpu = gpu_name()
    options.size = "full" if options.gpu else "tiny"
    found, console = dict[str, Any](gpu=options.gpu), Console(width=140)
    import jax

    jax.config.update("jax_platforms", "cpu")  # of this process: the GPU is for the jobs
    with tempfile.TemporaryDirectory() as programs:
        options.environment = {
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "JAX_COMPILATION_CACHE_DIR": programs,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        if not options.gpu:
            options.environment["JAX_PLATFORMS"] = "cpu"
        measured = before(options, "speeds")
        until_s = options.until_s
        if "speeds" not in options.only:
            options.until_s = 0.0  # measure only what the lists need
        more = partial(speeds, options, 0.3 if options.quick else 2.0)
        gather(options, found, "speeds", measured, more, partial(show_speeds, console=console))
        options.until_s = until_s
        if "lists" in options.only:
            rows = before(options, "lists")
            more = partial(lists, options, measured)
            gather(options, found, "lists", rows, more, partial(show_lists, console=console))
    if measured and "lists" in options.only:
        show_speeds(measured, console)


if __name__ == "__main__":
    main()
