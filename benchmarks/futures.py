"""Forecasts of jobs against what happened: `python -m benchmarks.futures [--only …] [--quick] [--json FILE]`.

Do 80% bands of start and finish cover 75 to 85% of the outcomes? Every band is made before its outcome is known, and
calibrated with earlier outcomes only, so all outcomes are held out. Sections:

- simulator: runs of a drawn workload with unknown times: typical times of kernels differ from the belief by 15%, those
  of single runs by 20%. Forecasts of all jobs in the system, three times in each run.
- virtual: a service in virtual time, with naps of two users and more jobs than are admitted at once.
- local: real processes of `sy.local` on this machine, which may be busy; naps of drawn lengths, in graphs.
- service: the same through HTTP, for two users, with more jobs than are admitted at once.

Favourable to forecasts: tasks of the last three sections sleep, so that they do not slow each other down, and kernels
recur. Unfavourable: this machine is shared, kernels are unknown at first, and arrivals end.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console

import symphony as sy
from benchmarks.common import keep, machine, parser
from symphony.counterfactuals.futures import Stage
from symphony.counterfactuals.outlook import outlook_of
from symphony.counterfactuals.record import SHARE, Forecast, Record
from symphony.counterfactuals.snapshot import KernelBelief, Snapshot, SnapshotJob, SnapshotTask
from symphony.engines.engine import EngineEvent, Finished, Pickled, Work
from symphony.engines.worker import pickled
from symphony.problem.workload import Kernel, Workload
from symphony.runtime import cluster as cluster_module
from symphony.service import forecast_cache as cache_module
from symphony.service import futures as futures_module
from symphony.service.futures import Futures
from symphony.service.service import Service
from symphony.service.tokens import READ, SUBMIT, Token
from symphony.service.wire import Submit
from symphony.simulator.records import RunRecord
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import CALM, draw
from tests.compiling import compile_quickly
from tests.runtime.machines import machine as machine_of
from tests.whole_system.clients import Sender
from tests.whole_system.faults import Faults
from tests.whole_system.simulated_engine import SimulatedEngine
from tests.whole_system.virtual_time import Clock, keeping_time

SECTIONS = ("simulator", "virtual", "local", "service")
SEEDS, RUNS, JOBS = 12, 1, 180  # of the simulator, of real processes, jobs of such a run
ASK_EVERY_S = 1.0
VIRTUAL_RUNS, SLOTS, LONGER, VIRTUAL_ASK_S = 8, 4, 30.0, 60.0  # longer naps
LOADS, PERIOD = (1.4, 0.7), 60  # the load that arrives, and for how many jobs
BELIEF_STD, NOISE_STD = 0.15, 0.2
ASKED = (0.25, 0.5, 0.75)  # of the time until the last arrival
POLICY = "eft-belief"


# ------------------------------------------------------------------------------------------------------- simulator


def simulator(options: Any) -> Record:
    record = Record()
    topology = sy.topology("machine")
    for seed in range(options.first_seed, options.first_seed + (1 if options.quick else SEEDS)):
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
    """The workload without transfers: in live clusters, inputs are sent with the kernel."""
    graphs = tuple(
        replace(graph, edges=tuple(replace(edge, bytes=0.0) for edge in graph.edges if edge.source is not None))
        for graph in work.graphs
    )
    return replace(work, graphs=graphs)


def _shifted(work: Workload, rng: np.random.Generator) -> Workload:
    """The workload with other typical times."""

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
    """A snapshot of what is known at an instant of a run."""
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
        started = any(stays[number, n].start_s <= at_s for n in range(len(graph.all_gangs)))
        jobs.append(SnapshotJob(number, tuple(tasks), priority=job.priority, started=started))
    recent = [job for job in work.jobs if job.arrival_s <= at_s]
    like = [
        SnapshotJob(0, tuple(
            SnapshotTask(work.kernel_index[task.kernel], tuple(a for a, b, _ in graph.gang_edges if b == n),
                    len(gang.tasks), task.size, task.units)
            for n, (gang, task) in enumerate((g, {t.name: t for t in graph.tasks}[g.tasks[0]]) for g in graph.all_gangs)
        ), arrives_s=job.arrival_s - at_s)
        for job, graph in ((job, work.graphs[job.graph]) for job in recent)
    ]  # fmt: skip
    return Snapshot(topology, beliefs, jobs, recent=like)


# ----------------------------------------------------------------------------------------------------------- naps


@sy.kernel(device="cpu")
def short(seconds: float) -> None:
    time.sleep(seconds)


@sy.kernel(device="cpu")
def long(seconds: float, *inputs: Any) -> None:
    time.sleep(seconds)


def drawn_graph(rng: random.Random, longer: float = 1.0) -> Any:
    """A graph of a few parallel naps, and sometimes one that reads them; a second of naps on average."""
    graph = sy.graph("naps")
    first = [graph.task(short, longer * rng.lognormvariate(-1.39, 0.3)) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.6:
        graph.task(long, longer * rng.lognormvariate(-0.29, 0.3), *first)
    return graph


# ------------------------------------------------------------------------------------------------- virtual time


class Naps(SimulatedEngine):
    """Ends naps when they are over; injects no faults."""

    def __init__(self, topology: sy.Topology, clock: Clock, rng: random.Random) -> None:
        super().__init__(topology, clock, rng, Faults(), lambda where: None, lambda label: None)

    def _seconds(self, work: Work) -> float:
        return float(self._arguments(work)[0][0])

    def _outcome(self, one: Any, ended_s: float) -> EngineEvent:
        seconds = ended_s - one.began_s
        value = self._kept(Pickled(*pickled(None)))
        return Finished(one.work.number, value, one.began_s, seconds, cold=False, busy_s=seconds)

    def _label(self, work: Work) -> str:
        return ""


class Here:
    """Plays futures in this process, not in one of its own."""

    def call(self, function: Callable[..., Any], *arguments: Any, progress: Any = None) -> Any:
        return function(*arguments)

    def close(self) -> None:
        """Nothing runs."""


def virtual(options: Any) -> Record:
    record = Record()
    for seed in range(options.first_seed, options.first_seed + (1 if options.quick else VIRTUAL_RUNS)):
        for one in _virtual_run(seed, 20 if options.quick else JOBS):
            record.add(one)
    return record


def _virtual_run(seed: int, jobs: int) -> list[Forecast]:
    """Forecasts of a service in virtual time, in one thread: its clock moves when there is nothing to do."""
    rng, clock, sender = random.Random(seed), Clock(), Sender()
    engines: list[Naps] = []
    arrives_s, arrivals = clock.now, []
    for number in range(jobs):
        arrives_s += rng.expovariate(LOADS[number // PERIOD % len(LOADS)] * SLOTS / LONGER)
        arrivals.append(arrives_s)
    asked_s = clock.now + rng.uniform(0.0, VIRTUAL_ASK_S)
    topology = machine_of(slots=SLOTS)

    def engine() -> Naps:
        engines.append(Naps(topology, clock, rng))
        return engines[0]

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(keeping_time(clock))
        for module in (futures_module, cache_module, cluster_module):
            stack.enter_context(mock.patch.object(module, "time", clock))
        service = Service(engine, folder, policy=POLICY, threads=False)
        futures = Futures(service)
        futures._player = futures._what_if_player = Here()  # type: ignore[assignment]
        futures._plays.get = partial(futures._plays.get, wait_s=3_600.0)  # type: ignore[method-assign]
        service.listeners.append(futures.ended)
        state = service.state
        while arrivals or state.open:
            if not service.ledger.idle:
                service.ledger.step()
            elif engines[0].next_s <= clock.now:
                service.cluster.step()
            elif arrivals and arrivals[0] <= clock.now:
                arrivals.pop(0)
                body = sender.bytes_of(drawn_graph(rng, LONGER), 0, "")
                token = Token("0" * 8, rng.choice(("ann", "bob")), (SUBMIT, READ), 1, 0.0, None)
                service.submit(token, Submit.model_validate_json(body), body, "")
            elif arrivals and asked_s <= clock.now:
                asked_s = clock.now + rng.expovariate(1 / VIRTUAL_ASK_S)
                for job in list(state.open.values()):
                    with suppress(sy.SymphonyError):
                        futures.when(job, SHARE)
            else:
                clock.now = min([engines[0].next_s, *arrivals[:1], *([asked_s] if arrivals else [])])
        while not service.ledger.idle:
            service.ledger.step()
        service.database.dispose()
        return list(futures.record.scored)


# ------------------------------------------------------------------------------------------------- real processes


def submit_and_ask(submit: Callable[[Any], Any], ask: Callable[[list[Any]], object], jobs: int, seed: int) -> None:
    """Submit jobs at random times; meanwhile, request forecasts of all that have not ended, again and again."""
    rng, came, over = random.Random(seed), [], Event()

    def asks() -> None:
        while not over.wait(ASK_EVERY_S):
            with suppress(sy.SymphonyError):  # no forecast is ready, or all jobs have ended
                ask([job for job in came if job.status in ("waiting", "running")])

    asker = Thread(target=asks)
    asker.start()
    for number in range(jobs):
        came.append(submit(drawn_graph(rng)))
        load = LOADS[number // PERIOD % len(LOADS)]
        time.sleep(rng.expovariate(load * (os.cpu_count() or 1)))
    over.set()
    for job in came:
        job.result(600.0)
    asker.join()


def local(options: Any) -> Record:
    record = Record()
    for seed in range(options.first_seed, options.first_seed + (1 if options.quick else RUNS)):
        with tempfile.TemporaryDirectory() as folder, sy.local(profiles=Path(folder) / "profiles.json") as cluster:
            submit_and_ask(cluster.submit, lambda jobs: cluster.outlooks(), 10 if options.quick else JOBS, seed)
            for one in cluster.record.scored:
                record.add(one)
    return record


@contextmanager
def served(folder: Path) -> Iterator[tuple[Any, Any]]:
    from symphony.engines.local import LocalEngine
    from symphony.service import tokens
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
    record = Record()
    for seed in range(options.first_seed, options.first_seed + (1 if options.quick else RUNS)):
        with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as (found, users):
            rng = random.Random(seed)

            def submit(graph: Any, rng: random.Random = rng, users: Any = users) -> Any:
                return rng.choice(users).submit(graph)

            def ask(some: list[Any]) -> None:
                for job in some:
                    with suppress(sy.SymphonyError):  # it has ended meanwhile
                        job._cluster.when(job.id)

            submit_and_ask(submit, ask, 10 if options.quick else JOBS, seed)
            time.sleep(1.0)
            for one in Futures(found).record.scored:
                record.add(one)
    return record


def interval(held: int, of: int) -> tuple[float, float]:
    """The 95% interval of a share (Wilson). Outcomes are taken as independent, which those of one moment are not."""
    if not of:
        return 0.0, 1.0
    z, share = 1.96, held / of
    middle, half = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


def main() -> None:
    options_parser = parser(__doc__.splitlines()[0], SECTIONS)
    options_parser.add_argument("--first-seed", type=int, default=200, help="lower seeds were used for tuning")
    options = options_parser.parse_args()
    if options.quick:
        compile_quickly()  # most of the time is compilation
    console, found = Console(), {}
    for section in options.only:
        began = time.process_time()
        record = {"simulator": simulator, "virtual": virtual, "local": local, "service": service}[section](options)
        rows = [row for row in record.rows() if row.by != "user"]
        forecasts = [[x.job, x.what, x.at_s, *x.model, *x.shown, x.actual_s] for x in record.scored]
        figures = [row._asdict() for row in rows]
        found[section] = {"rows": figures, "cpu_s": time.process_time() - began, "forecasts": forecasts}
        for row in rows:
            low, high = interval(round(row.coverage * row.scored), row.scored)
            console.print(
                f"{section:9} {row.what:6} {row.value or 'all':14} {row.scored:5}  held {row.coverage:.0%} "
                f"({low:.0%} to {high:.0%}; model {row.model_coverage:.0%})  "
                f"width {row.width:.0%}  error {row.error:.0%}"
            )
        keep(options.json, machine=machine(), **found)


if __name__ == "__main__":
    main()
