"""Forecasts of jobs against what happened: `python -m benchmarks.futures [--only …] [--quick] [--json FILE]`.

Are 80% bands of start and finish right in 75 to 85% of cases? Every band is shown before its outcome is known, and is
calibrated from the outcomes before it, so that all figures are of held-out outcomes. Sections:

- simulator: runs of a drawn workload whose true times nobody knows: typical times of kernels differ from the belief by
  15%, those of runs by 20%. Asked three times in each run, for all jobs in the system.
- local: real processes of `sy.local` on this machine, which may be busy; naps of drawn lengths, in graphs.
- service: the same through HTTP, for two users, with more jobs than are admitted at once.

Kind to forecasts: tasks of the last two nap, so that they do not slow each other down; kernels come again and again.
Unkind: this machine is shared, the first runs are of kernels of which nothing is known, and arrivals end.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import symphony as sy
from benchmarks.common import arguments, keep, machine
from symphony.counterfactuals.futures import Stage
from symphony.counterfactuals.outlook import outlook_of
from symphony.counterfactuals.record import Record
from symphony.counterfactuals.snapshot import KernelBelief, Snapshot, SnapshotJob, SnapshotTask
from symphony.problem.workload import Kernel, Workload
from symphony.service.futures import Futures
from symphony.simulator.records import RunRecord
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import CALM, draw
from tests.compiling import compile_quickly

SECTIONS = ("simulator", "local", "service")
FIRST_SEED = 200  # those below were looked at while forecasts were worked on
SEEDS, JOBS, ASK_EVERY, GAP_S = 12, 90, 4, 1.6
BELIEF_STD, NOISE_STD = 0.15, 0.2
ASKED = (0.25, 0.5, 0.75)  # of the time until the last arrival
POLICY = "eft-belief"


# ------------------------------------------------------------------------------------------------------- simulator


def simulator(options: Any) -> Record:
    record = Record()
    topology = sy.topology("machine")
    for seed in range(FIRST_SEED, FIRST_SEED + (1 if options.quick else SEEDS)):
        believed = _plain(sy.workload("layered?jobs=24&tasks=6&graphs=6&load=1.1", topology, seed))
        truth = _shifted(believed, np.random.default_rng([seed, 9]))
        scenario = draw(topology, truth, seed, replace(CALM, work_noise=NOISE_STD))
        [run] = simulate([scenario], sy.policies.named(POLICY))
        last_s = max(job.arrival_s for job in truth.jobs)
        for share in ASKED:
            at_s = share * last_s
            snapshot = snapshot_of(run, believed, topology, at_s)
            if snapshot.jobs:
                played = Stage(snapshot, seed=seed).play(policy=POLICY)
                made = [(job, outlook_of(record, played, n, job, at_s)[1]) for n, job in enumerate(snapshot.jobs)]
                for job, forecasts in made:
                    stays = [stay for stay in run.gangs if stay.job == job.job]
                    start_s = min(stay.start_s for stay in stays) - at_s
                    end_s = next(one.finish_s for one in run.jobs if one.job == job.job) - at_s
                    record.settle(forecasts, start_s, end_s)
    return record


def _plain(work: Workload) -> Workload:
    """Without transfers, which live clusters do not have: inputs come with the kernel."""
    graphs = tuple(
        replace(graph, edges=tuple(replace(edge, bytes=0.0) for edge in graph.edges if edge.source is not None))
        for graph in work.graphs
    )
    return replace(work, graphs=graphs)


def _shifted(work: Workload, rng: np.random.Generator) -> Workload:
    """With other typical times."""

    def shifted(kernel: Kernel) -> Kernel:
        factor = {name: float(np.exp(rng.normal(0.0, BELIEF_STD))) for name in kernel.implementations}
        return replace(
            kernel,
            implementations={
                name: replace(one, fixed_s=one.fixed_s * factor[name], per_work_s=one.per_work_s * factor[name])
                for name, one in kernel.implementations.items()
            },
        )

    return replace(work, kernels=tuple(shifted(kernel) for kernel in work.kernels))


def snapshot_of(run: RunRecord, work: Workload, topology: sy.Topology, at_s: float) -> Snapshot:
    """What is known at an instant of a run."""
    kinds = [kind.name for kind in topology.kinds]
    beliefs = [KernelBelief(k, dict.fromkeys(kinds, BELIEF_STD), dict.fromkeys(kinds, NOISE_STD)) for k in work.kernels]
    stays = {(stay.job, stay.gang): stay for stay in run.gangs}
    finish = {job.job: job.finish_s for job in run.jobs}
    jobs = []
    for number, job in enumerate(work.jobs):
        if not job.arrival_s <= at_s < finish[number]:
            continue
        graph = work.graphs[job.graph]
        first = {task.name: task for task in graph.tasks}
        left = [n for n in range(len(graph.all_gangs)) if stays[number, n].finish_s > at_s]
        new = {n: k for k, n in enumerate(left)}
        tasks = []
        for n in left:
            stay, gang = stays[number, n], graph.all_gangs[n]
            task = first[gang.tasks[0]]
            reads = tuple(new[a] for a, b, _ in graph.gang_edges if b == n and a in new)
            now = SnapshotTask(work.kernel_index[task.kernel], reads, len(gang.tasks), task.size, task.units)
            runs = stay.start_s <= at_s
            tasks.append(now._replace(devices=stay.devices, elapsed_s=at_s - stay.start_s) if runs else now)
        jobs.append(SnapshotJob(number, tuple(tasks), priority=job.priority))
    recent = [job for job in work.jobs if job.arrival_s <= at_s]
    like = [
        SnapshotJob(0, tuple(
            SnapshotTask(work.kernel_index[task.kernel], tuple(a for a, b, _ in graph.gang_edges if b == n),
                    len(gang.tasks), task.size, task.units)
            for n, (gang, task) in enumerate((g, {t.name: t for t in graph.tasks}[g.tasks[0]]) for g in graph.all_gangs)
        ))
        for graph in (work.graphs[job.graph] for job in recent)
    ]  # fmt: skip
    return Snapshot(topology, beliefs, jobs, recent=like, recent_s=at_s)


# ------------------------------------------------------------------------------------------- real processes


@sy.kernel(device="cpu")
def short(seconds: float) -> None:
    time.sleep(seconds)


@sy.kernel(device="cpu")
def long(seconds: float, *inputs: Any) -> None:
    time.sleep(seconds)


def drawn_graph(rng: random.Random) -> Any:
    """A few naps: some side by side, then perhaps one that reads them."""
    graph = sy.graph("naps")
    first = [graph.task(short, rng.lognormvariate(0.0, 0.3)) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.6:
        graph.task(long, rng.lognormvariate(1.1, 0.3), *first)
    return graph


def submit_and_ask(
    submit: Callable[[Any], Any], ask: Callable[[list[Any]], object], jobs: int, seed: int, gap_s: float
) -> None:
    """Jobs at random times; now and then, all that have not ended are asked for."""
    rng, came = random.Random(seed), []
    for number in range(jobs):
        came.append(submit(drawn_graph(rng)))
        if number % ASK_EVERY == ASK_EVERY - 1:
            ask([job for job in came if job.status in ("waiting", "running")])
        time.sleep(rng.expovariate(1 / gap_s))
    for job in came:
        job.result(600.0)


def local(options: Any) -> Record:
    with tempfile.TemporaryDirectory() as folder, sy.local(profiles=Path(folder) / "profiles.json") as cluster:
        submit_and_ask(cluster.submit, lambda jobs: cluster.outlooks(), 10 if options.quick else JOBS, 0, GAP_S)
        return cluster.record


@contextmanager
def served(folder: Path) -> Iterator[tuple[Any, Any]]:
    from symphony.engines.local import LocalEngine
    from symphony.service import tokens
    from symphony.service.service import Service
    from symphony.service.serving import Server

    service = Service(LocalEngine, folder)
    server = Server(service, "127.0.0.1", 0, None)
    try:
        users = [
            sy.connect(server.url, token=tokens.create(service.database, user, (tokens.SUBMIT, tokens.READ), days=1.0))
            for user in ("ann", "bob")
        ]
        yield service, users
    finally:
        server.close()
        service.close()


def service(options: Any) -> Record:
    jobs = 10 if options.quick else JOBS
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as (found, users):
        rng = random.Random(1)

        def submit(graph: Any) -> Any:
            return rng.choice(users).submit(graph)

        def ask(some: list[Any]) -> None:
            for job in some:
                with suppress(sy.SymphonyError):  # it has ended meanwhile
                    job._cluster.when(job.id)

        submit_and_ask(submit, ask, jobs, 1, GAP_S)
        time.sleep(1.0)
        return Futures(found).record


def main() -> None:
    options = arguments(__doc__.splitlines()[0], SECTIONS)
    if options.quick:
        compile_quickly()  # it is compilation that takes the time
    console, found = Console(), {}
    for section in options.only:
        began = time.process_time()
        record = {"simulator": simulator, "local": local, "service": service}[section](options)
        rows = [row._asdict() for row in record.rows()]
        found[section] = {"rows": rows, "cpu_s": time.process_time() - began}
        for row in record.rows():
            if row.by != "user":
                console.print(
                    f"{section:9} {row.what:6} {row.by:7} {row.value:14} {row.scored:5}  held {row.coverage:.0%}  "
                    f"(model {row.model_coverage:.0%})  width {row.width:.0%}  error {row.error:.0%}"
                )
        late = list(record.scored)[len(record.scored) // 2 :]
        for what in ("start", "finish"):
            some = [one for one in late if one.what == what]
            held = np.mean([one.shown.low <= one.actual_s <= one.shown.high for one in some]) if some else float("nan")
            found[section][f"{what}_second_half"] = float(held)
            console.print(f"{section:9} {what:6} second half: held {held:.0%} of {len(some)}")
        keep(options.json, machine=machine(), **found)


if __name__ == "__main__":
    main()
