"""Training jobs through the real runtime: `python -m benchmarks.training_service [--quick] [--json FILE]`.

Everything is real but the GPUs: submissions, a process for each of the 24 GPUs of `gpu24` (all in one machine here, so
that gangs are packed), checkpoints in files, runs that are stopped and go on, progress as jobs tell of it, beliefs
learned from that, and plans made of them in rounds. What a process does instead of training is to sleep for as long as
a step takes, by the hidden truth of drawn jobs (Gavel's measured rates, changed for every seed). Time goes SCALE times
as fast: a round of six minutes takes six seconds, and a job has fewer steps, not faster ones.

All policies get the same jobs, and the same models learn from what they place. Beside each: what the simulator's closed
loop says of the same list and policy. The simulator has no processes to start, and measures speeds to the digit.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import symphony as sy
from benchmarks.common import before, gather, in_parts, parser
from benchmarks.training_jobs import ROUNDS, Figures, tables
from symphony.engines.local import LocalEngine
from symphony.policies import named
from symphony.problem.speeds import PACKED
from symphony.problem.topologies import topology
from symphony.problem.topology import Topology
from symphony.runtime.cluster import Cluster
from symphony.runtime.graph import Graph
from symphony.simulator.scenarios import Scenario, draw
from symphony.training_jobs.closed_loop import run
from symphony.training_jobs.measured_jobs import CHECKPOINT_COST, MeasuredJobs, describe_jobs, drawn

SECTION = "training_service"
SCALE = 60.0
POLICIES = ("planner", "max-sum-throughput", "eft-belief", "fifo")
NOISE = 0.06  # by which jobs of one kind differ
LOAD, HOURS = 4.0, 0.5
LONGEST_S = 4 * 3600.0  # lists with a job that takes longer alone are left out: a run takes as long as its longest job


def one_machine(whole: Topology) -> Topology:
    """The same devices in one machine, which is all that a local engine has. They are processes, and called so."""
    kinds = tuple(replace(kind, type="emulated") for kind in whole.kinds)
    devices = tuple(replace(device, machine="here", rack="here", socket="here") for device in whole.devices)
    return replace(whole, name="24 GPUs of three kinds", kinds=kinds, devices=devices)


def training(step_s: float, checkpoint_s: float, restore_s: float) -> Callable[..., int]:
    """What a process does instead of training."""

    def train(job: Any) -> int:
        import time

        if job.began:
            time.sleep(restore_s)
        began = time.monotonic() - job.began * step_s
        while True:
            done = min(int((time.monotonic() - began) / step_s), job.total)
            job.reached(done)
            if done >= job.total:
                return done
            if job.save_now:
                time.sleep(checkpoint_s)
                began += checkpoint_s
                job.save(None)
            time.sleep(min(step_s, 0.05))

    return train


def graphs(made: MeasuredJobs, cluster: Topology, seed: int) -> Iterator[tuple[float, Graph]]:
    """When jobs come, and what they are. A step is one of the whole gang; Gavel counts those of all its workers."""
    shapes = {str(shape): shape for shape in made.shapes}
    rng = np.random.default_rng([seed, 9])
    checkpoint_s, restore_s = (seconds / SCALE for seconds in CHECKPOINT_COST)
    for number, job in enumerate(made.workload.jobs):
        task = made.workload.graphs[job.graph].tasks[0]
        shape, noise = shapes[task.kernel], float(np.exp(rng.normal(0, NOISE)))
        kernel = None
        for kind in (kind.name for kind in cluster.kinds if (task.kernel, kind.name) in made.truth.unit_s):
            unit_s = made.truth.unit_s[task.kernel, kind][PACKED]
            function = training(noise * shape.gpus * unit_s, checkpoint_s, restore_s)
            if kernel is None:
                kernel = sy.training(
                    steps=max(1, round(task.units / shape.gpus / SCALE)),
                    workers=shape.gpus,
                    device=kind,
                    name=task.kernel,
                    kind=shape.model,
                    batch=shape.batch or 0,
                    checkpoint_s=checkpoint_s,
                    restore_s=restore_s,
                )(function)
            else:
                kernel.implementation(kind)(function)
        assert kernel is not None
        graph = sy.graph(f"{task.kernel} ({number})")
        graph.task(kernel)
        yield job.arrival_s / SCALE, graph


def warm_up(running: Cluster) -> None:
    """Have all compiled that the first gang, the first round and the first reports need: it takes seconds, once."""
    kernel = sy.training(steps=60, workers=4, device="v100", kind="warm-up")(training(0.1, 0.0, 0.0))
    graph = sy.graph("warm-up")
    graph.task(kernel)
    for _ in range(2):
        running.submit(graph).result()
    while (late := running._rounds._learning) is not None and not late.done():
        time.sleep(0.1)


def real(policy: str, made: MeasuredJobs, cluster: Topology, seed: int) -> Figures:
    """One list through the runtime. Times are as long as they would have been at real speed."""
    with tempfile.TemporaryDirectory() as folder:
        profiles = Path(folder) / "profiles.json"
        options: dict[str, Any] = {"round_s": 360.0 / SCALE, "at_once": 64, "policy_timeout_s": 5.0}
        with Cluster(LocalEngine(cluster), policy=policy, profiles=profiles, **options) as running:
            warm_up(running)
            began, jobs = time.monotonic(), []
            for arrival_s, graph in graphs(made, cluster, seed):
                time.sleep(max(began + arrival_s - time.monotonic(), 0.0))
                jobs.append(running.submit(graph))
            for job in jobs:
                job.result()
            learner = running._rounds.speeds.learner
            completion = [SCALE * job.completion_s for job in jobs]
            runs = [len(job._state.runs[0].attempts) for job in jobs]
            return {
                "mean_s": float(np.mean(completion)),
                "makespan_s": SCALE * max(job._state.ended_s - began for job in jobs),
                "stops": sum(runs) - len(runs),
                "samples": len(learner.beliefs.store.samples),
                "aside": dict(learner.beliefs.store.reasons),
                "error": float(np.median([error for _, error in learner.errors[-20:]])) if learner.errors else None,
                "fallbacks": dict(running.statistics.fallbacks),
                "decision_p99_s": running.statistics.latency_quantile(0.99),
            }


def simulated(policy: str, made: MeasuredJobs, cluster: Topology, seed: int) -> Figures:
    """The same in the simulator's closed loop."""
    scenario: Scenario = draw(cluster, made.workload, seed, replace(ROUNDS, work_noise=NOISE), job_slots=64)
    out = run(replace(scenario, truth=made.truth, believed=made.believed), named(policy), describe_jobs(made, cluster))
    ended = [job.completion_s for job in out.run.jobs]
    return {"mean_s": float(np.mean(ended)), "samples": out.samples}


def lists(options: Any) -> Iterator[Figures]:
    """One seed and policy after the other; but for what has been measured."""
    known = {(row["seed"], row["policy"]) for row in options.before}
    cluster = one_machine(topology("gpu24"))
    for seed, made in islice(short(cluster, options), 1 if options.quick else options.seeds):
        for policy in POLICIES[:1] if options.quick else options.policies:
            if (seed, policy) not in known:
                expected = simulated(policy, made, cluster, seed)
                yield {"seed": seed, "policy": policy, **real(policy, made, cluster, seed), "simulated": expected}


def short(cluster: Topology, options: Any) -> Iterator[tuple[int, MeasuredJobs]]:
    """Lists without a long job, by seed."""
    for seed in count(options.first_seed):
        made = drawn(tables(), cluster, seed, jobs=4 if options.quick else options.jobs, load=LOAD, hours=HOURS)
        tasks = [made.workload.graphs[job.graph].tasks[0] for job in made.workload.jobs]
        best = {kernel: min(s[PACKED] for (k, _), s in made.truth.unit_s.items() if k == kernel) for kernel in
                {task.kernel for task in tasks}}  # fmt: skip
        if max(task.units * best[task.kernel] for task in tasks) <= (LONGEST_S / 8 if options.quick else LONGEST_S):
            yield seed, made


def show(rows: Sequence[Figures], console: Console) -> Figures:
    """Means over seeds, and against the planner."""
    table = Table(title=f"training jobs through the real runtime, time {SCALE:g} times as fast", box=None)
    for name in (
        "",
        "lists",
        "mean completion, s",
        "planner against it",
        "simulated, s",
        "makespan, s",
        "stops",
        "samples",
    ):
        table.add_column(name, justify="left" if not name else "right")
    by, summary = {(row["seed"], row["policy"]): row for row in rows}, dict[str, Any]()
    for policy in dict.fromkeys(row["policy"] for row in rows):
        mine = [row for row in rows if row["policy"] == policy]
        pairs = [
            (by[row["seed"], "planner"]["mean_s"], row["mean_s"]) for row in mine if (row["seed"], "planner") in by
        ]
        ratio = sum(ours for ours, _ in pairs) / sum(theirs for _, theirs in pairs) - 1 if pairs else float("nan")

        def mean(of: Callable[[Figures], float], among: Sequence[Figures] = mine) -> str:
            return f"{np.mean([of(row) for row in among]):,.0f}"

        table.add_row(
            policy, str(len(mine)), mean(lambda r: r["mean_s"]), "" if policy == "planner" else f"{ratio:+.1%}",
            mean(lambda r: r["simulated"]["mean_s"]), mean(lambda r: r["makespan_s"]), mean(lambda r: r["stops"]),
            mean(lambda r: r["samples"]),
        )  # fmt: skip
        summary[policy] = {"lists": len(mine), "planner_against_it": ratio}
    console.print(table)
    return summary


def main() -> None:
    """Measure, print, keep. What is there is kept after every row, so that a run may be stopped."""
    options_parser = parser(__doc__.splitlines()[0], (SECTION,))
    in_parts(options_parser)
    options_parser.add_argument("--jobs", type=int, default=24, help="of each seed")
    options_parser.add_argument("--policies", nargs="+", default=POLICIES)
    options = options_parser.parse_args()
    rows = before(options, SECTION)
    gather(options, {}, SECTION, rows, partial(lists, options), partial(show, console=Console()))


if __name__ == "__main__":
    main()
