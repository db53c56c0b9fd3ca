"""Real kernels on the machine at hand: `python -m benchmarks.real_kernels [--quick] [--only SECTION …] [--json FILE]`.

    policies    jobs of three applications (examples/), submitted at once: makespan and mean completion by policy
    others      the same graphs, with Dask (distributed, processes on this machine) and plain Ray tasks, where installed
    prediction  makespans that the simulator predicts with the profiles of earlier rounds, against the measured ones

All have as many processes as the machine has cores, and take turns in an order drawn for each round. Unfair to Dask and
Ray: they know nothing of the kernels and use CPUs only, while Symphony has learned times in earlier rounds, and uses
GPUs. Unfair to Symphony: its processes are pinned, a disadvantage on a busy machine. By default, Dask returns freed
memory to the system at once, which makes kernels with arrays several times slower; that is switched off.
"""

from __future__ import annotations

import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import symphony as sy
from benchmarks.common import keep, machine, parser
from examples.mix import WARM_UP, Round, cache, clusters, graphs, ratio, run
from symphony import policies
from symphony.engines.worker import ONE_THREAD, unpickled
from symphony.problem.program_cache import keep_programs
from symphony.problem.workload import Workload
from symphony.runtime.graph import submission
from symphony.scheduling.one_of import OneOf
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import CALM, draw

SECTIONS = ("policies", "others", "prediction")
POLICIES = ("fifo", "heft", "eft-belief", "symphony", "symphony-late", "symphony-budget")
QUICK_POLICIES = ("fifo", "eft-belief")
FIRST = "fifo"  # the reference of ratios
ROUNDS, QUICK_ROUNDS = 10, 2
AIM = 0.10  # of the error of a prediction
DRAWS = 8  # simulated runs of a prediction


def call(function: Callable[..., Any], head: bytes, buffers: Sequence[bytes], *inputs: Any) -> Any:
    """What a process of Dask or Ray runs: arguments as Symphony sends them, with results of other tasks."""
    args, kwargs = unpickled(head, buffers, inputs)
    return function(*args, **kwargs)


class Others(ABC):
    """Another system that runs graphs: submits tasks one by one, with their inputs."""

    @abstractmethod
    def send(self, function: Callable[..., Any], head: bytes, buffers: list[bytes], inputs: list[Any]) -> Any:
        """Submit a task; returns a reference to its value."""

    @abstractmethod
    def wait(self, last: Sequence[Any], done: Callable[[int], None]) -> None:
        """Wait for the last task of each job; returns the times of their ends."""

    def run(self, jobs: Sequence[sy.Graph], counts: bool) -> Round:
        """Submit all jobs at once."""
        began = time.monotonic()
        last = []
        for graph in jobs:
            made: list[Any] = []
            for task, sent in zip(graph.tasks, submission(graph).calls, strict=True):
                buffers = [bytes(buffer) for buffer in sent.arguments.buffers]
                inputs = [made[source] for source in sent.reads]
                made.append(self.send(task.kernel.implementations["cpu"], sent.arguments.head, buffers, inputs))
            last.append(made[-1])
        ended = [0.0] * len(jobs)

        def done(number: int) -> None:
            ended[number] = time.monotonic() - began

        self.wait(last, done)
        return Round(max(ended), tuple(ended), float("nan"))


class Dask(Others):
    """Dask's distributed scheduler with a process for each slot."""

    def __init__(self, slots: int, stack: ExitStack) -> None:
        import dask
        from distributed import Client, LocalCluster

        memory = {"MALLOC_TRIM_THRESHOLD_": 1 << 30, "MALLOC_MMAP_THRESHOLD_": 1 << 25}  # kept, as by anybody else
        dask.config.set({f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in memory.items()})
        cluster = LocalCluster(
            n_workers=slots, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
        )
        self.client = stack.enter_context(Client(stack.enter_context(cluster)))

    def send(self, function: Callable[..., Any], head: bytes, buffers: list[bytes], inputs: list[Any]) -> Any:
        """Submit as impure: results of earlier rounds must not be reused."""
        return self.client.submit(call, function, head, buffers, *inputs, pure=False)

    def wait(self, last: Sequence[Any], done: Callable[[int], None]) -> None:
        """Wait by callbacks, which are counted."""
        left = threading.Semaphore(0)

        def finished(number: int) -> Callable[[Any], None]:
            return lambda _: (done(number), left.release())  # type: ignore[func-returns-value]

        for number, future in enumerate(last):
            future.add_done_callback(finished(number))
        for future in last:
            left.acquire()
            future.result()


class Ray(Others):
    """Plain Ray tasks, of one CPU each."""

    def __init__(self, slots: int, stack: ExitStack) -> None:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read when Ray is imported
        import ray

        ray.init("local", num_cpus=slots, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        stack.callback(ray.shutdown)
        self.ray, self.remote = ray, ray.remote(num_cpus=1)(call)

    def send(self, function: Callable[..., Any], head: bytes, buffers: list[bytes], inputs: list[Any]) -> Any:
        """Large arguments go into Ray's store by themselves."""
        return self.remote.remote(function, head, buffers, *inputs)

    def wait(self, last: Sequence[Any], done: Callable[[int], None]) -> None:
        """Wait for whichever ends first."""
        left = list(last)
        while left:
            [ready], left = self.ray.wait(left, num_returns=1)
            self.ray.get(ready)
            done(last.index(ready))


def predicted(cluster: sy.Cluster, workload: Workload, policy: OneOf) -> float:
    """Makespan in the simulator, with the observed noise of times and latency of decisions."""
    as_here = replace(CALM, latency_s=think_s(cluster), work_noise=noise(cluster))
    slots = len(workload.jobs)
    drawn = [draw(cluster.topology, workload, seed, as_here, job_slots=slots) for seed in range(DRAWS)]
    return float(np.mean([run.makespan_s for run in simulate(drawn, policy)]))


def noise(cluster: sy.Cluster) -> float:
    """Deviation of the logarithm of run times, over all kernels, weighted by their seconds."""
    known = [timing for timing in cluster.profiles.values() if timing.runs]
    weights = [timing.runs * timing.fixed_s for timing in known]
    return float(np.average([timing.noise_std for timing in known], weights=weights))


def think_s(cluster: sy.Cluster) -> float:
    """Mean seconds of a decision."""
    counted = cluster.statistics
    return float(np.sum(counted.latency_s)) / max(counted.decisions, 1)


class Ours:
    """Symphony with one policy, and the simulator's prediction of its next round."""

    def __init__(self, cluster: sy.Cluster, policy: OneOf | None) -> None:
        self.cluster, self.policy = cluster, policy  # None: nothing is predicted
        self.known: list[Workload] = []  # the round before, with what is known now: times of slots, and of kernels
        self.expected_s: list[list[float]] = []

    def run(self, jobs: Sequence[sy.Graph], counts: bool) -> Round:
        """Predict, if the round counts, then run."""
        if self.policy is not None and self.known and counts:
            self.expected_s.append([predicted(self.cluster, known, self.policy) for known in self.known])
        done = run(self.cluster, jobs)
        self.known = [self.cluster.workload(done.jobs, held=held) for held in (True, False)]
        return replace(done, jobs=())  # which hold their arguments


def compete(parts: Mapping[str, Any], jobs: Sequence[sy.Graph], count: int, warm_up: int) -> Iterator[dict[str, Round]]:
    """Rounds in which all take turns, after warm-up rounds."""
    rng = np.random.default_rng(0)
    for number in range(warm_up + count):
        counts = number >= warm_up
        found = {name: parts[name].run(jobs, counts) for name in rng.permutation(list(parts)).tolist()}
        if counts:
            yield found


def main() -> None:
    """Measure and print."""
    taken = parser(__doc__ or "", SECTIONS)
    taken.add_argument("--rounds", type=int, help="how many")
    taken.add_argument("--warm-up", type=int, default=WARM_UP, help="rounds before those that count")
    taken.add_argument("--seconds", type=float, default=math.inf, help="begin no round later than this")
    options = taken.parse_args()
    began_s, out = time.monotonic(), Console()
    jax.config.update("jax_platforms", "cpu")  # this process only decides: the GPUs are for kernels
    keep_programs(cache())
    os.environ.update(ONE_THREAD)
    count = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    warm_up = min(options.warm_up, 1) if options.quick else options.warm_up
    jobs = graphs(1 if options.quick else 2)
    before = machine()
    with ExitStack() as stack:
        names = QUICK_POLICIES if options.quick else POLICIES
        found = clusters(names, None, stack)
        predict = "prediction" in options.only
        all_policies = tuple(map(policies.named, names))  # in one program
        parts: dict[str, Any] = {
            name: Ours(cluster, OneOf(all_policies, jnp.int32(number)) if predict else None)
            for number, (name, cluster) in enumerate(found.items())
        }
        topology = found[FIRST].topology
        slots = sum(topology.kind_of[d.kind].slots for d in topology.devices if topology.kind_of[d.kind].type == "cpu")
        if "others" in options.only:
            for name, kind in (("dask", Dask), ("ray", Ray)):
                try:
                    parts[name] = kind(slots, stack)
                except ModuleNotFoundError as error:
                    out.print(f"{name} is left out: {error.name} is not installed; type: make install-dev")
        measured: list[dict[str, Round]] = []
        for one in compete(parts, jobs, count, warm_up):
            measured.append(one)
            expected = {name: parts[name].expected_s for name in found if predict}
            keep(  # after each round, so that a stopped run has the rounds so far
                options.json,
                before=before,
                devices=[device.name for device in topology.devices],
                kernels=sum(len(graph.tasks) for graph in jobs),
                rounds=[{name: one_round(part) for name, part in each.items()} for each in measured],
                predicted_s=expected,
                handling_s={name: cluster.statistics.mean_handling_s for name, cluster in found.items()},
                seconds_for_a_decision={name: think_s(cluster) for name, cluster in found.items()},
                fallbacks={name: dict(cluster.statistics.fallbacks) for name, cluster in found.items()},
                learned=str(found[FIRST].profiles).splitlines(),
            )
            if time.monotonic() - began_s > options.seconds:
                break
    out.print(makespans(measured, list(parts)))
    if predict:
        out.print(errors(measured, expected))
    out.print(f"{len(jobs)} jobs, {sum(len(graph.tasks) for graph in jobs)} kernels, {topology.name}, {before}")


def one_round(measured: Round) -> dict[str, Any]:
    """A round for the file."""
    return {name: value for name, value in asdict(measured).items() if name != "jobs"}


def makespans(measured: Sequence[Mapping[str, Round]], names: Sequence[str]) -> Table:
    """A table of medians, and of ratios by round with 95% intervals."""
    made = Table(title=f"{len(measured)} rounds, in turns: medians, and ratios to {FIRST} (95% interval)")
    for title in ("", "makespan, s", f"/ {FIRST}", "mean completion, s", f"/ {FIRST}"):
        made.add_column(title, justify="right" if title else "left")
    for name in names:
        cells = []
        for what in ("makespan_s", "mean_completion_s"):
            ours, theirs = ([getattr(one[who], what) for one in measured] for who in (name, FIRST))
            cells += [f"{np.median(ours):.3f}", "" if name == FIRST else ratio(ours, theirs)]
        made.add_row(name, *cells)
    return made


def errors(measured: Sequence[Mapping[str, Round]], expected: Mapping[str, Sequence[Sequence[float]]]) -> Table:
    """Errors of predictions by round, also of those with times of kernels only, without overheads."""
    made = Table(title=f"Makespan that the simulator predicts, against that measured (aim: {AIM:.0%})")
    for title in ("", "predicted, s", "measured, s", "median error", "median of its size", "", "kernels only"):
        made.add_column(title, justify="right" if title else "left")
    for name, said in expected.items():
        was = np.array([one[name].makespan_s for one in measured])
        off, bare = np.array(said).T / was - 1
        size = float(np.median(np.abs(off)))
        verdict = "met" if size <= AIM else "[bold]missed[/bold]"
        made.add_row(
            name,
            f"{np.median([each[0] for each in said]):.3f}",
            f"{np.median(was):.3f}",
            f"{np.median(off):+.1%}",
            f"{size:.1%}",
            verdict,
            f"{np.median(bare):+.1%}, {np.median(np.abs(bare)):.1%}",
        )
    return made


if __name__ == "__main__":
    main()
