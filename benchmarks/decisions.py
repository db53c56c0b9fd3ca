"""The cost of one decision of each policy: `python -m benchmarks.decisions [--quick] [--json FILE]`.

A policy's compiled `decide` is called by itself on observations from the middle of a run, as a service would call it.
Every figure includes the dispatch of a compiled program; the row "(does nothing)" is that alone. Policies that solve a
linear program on the host are shown at a change of the set of jobs, where they do solve it.

The rows "symphony, natively" and "symphony, in NumPy" are the network's decision as real runs take it, with and without
a compiler at installation (`runtime/native.c`, `runtime/plain_network.py`), in CPU time of its thread: fresh states of
a made-up run on the same cluster, 16 jobs of 16 to 64 tasks, all kinds of devices equal to all kernels, new background
loads on every row between any two turns. The two are measured in turns. They exist for clusters that plain turns suit.

Unfair to learned and vectorised policies: a decision alone leaves a vector machine idle.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
from jax import Array
from rich.console import Console
from rich.table import Table

import symphony as sy
from benchmarks.common import arguments, keep, machine
from symphony.baselines import BASELINES, FOR_TRAINING, Fifo
from symphony.policies import SHIPPED, named
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.topologies import topology
from symphony.runtime import turn as happened
from symphony.runtime.budget import Budget
from symphony.runtime.graph import submission
from symphony.runtime.live_workload import LiveWorkload, Shapes
from symphony.runtime.native import NativeNetwork, library
from symphony.runtime.plain_network import PlainAction, PlainNetwork
from symphony.runtime.plain_turn import MAX_DEVICES, PlainCore, suits
from symphony.runtime.profiles import Profiles
from symphony.runtime.turn import SchedulerEvent
from symphony.scheduling import state
from symphony.scheduling.policy import Action, Observation, Policy, wait
from symphony.scheduling.state import RUNNING
from symphony.simulator.contention import Bottleneck
from symphony.simulator.rollout import begin_batch, observe, run_steps, without_arrivals
from symphony.simulator.scenario_source import scenario
from symphony.simulator.scenarios import ScenarioArrays, pick, stack

CASES = {
    "the paper's cluster, DAGs": ("paper", "variant-calling?load=1.2"),
    "24 GPUs, training": ("gpu24", "training?load=1.2"),
    "8 devices, DAGs": ("fat-tree:8", "layered?jobs=200&load=1.2"),
    "64 devices, DAGs": ("fat-tree:64", "layered?jobs=200&load=1.2"),
    "500 devices, DAGs": ("fat-tree:500", "layered?jobs=1000&load=1.2"),
    "1,024 devices, DAGs": ("fat-tree:1024", "layered?jobs=2000&load=1.2"),
    "5,000 devices, DAGs": ("fat-tree:5000", "layered?jobs=4000&load=1.2"),
}
STEPS = 2048  # into the run
ROUNDS = 4  # in turns


class Nothing(Policy):
    """Waits, to measure the cost of the call itself."""

    def init(self, topology: TopologyArrays) -> None: ...

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        return state, wait()


def middle(cluster: str, work: str, steps: int = STEPS) -> tuple[ScenarioArrays, Any]:
    """A scenario, and the world after some steps of a run under FIFO, which leaves gangs waiting to be placed."""
    one = scenario(topology(cluster), work, 0)
    batch = stack([one])
    carry = begin_batch(batch, Fifo(), jax.random.split(jax.random.key(0), 1))
    carry = run_steps(batch, carry, Fifo(), Bottleneck(), steps, False)[0]
    return pick(batch, 0), jax.tree.map(lambda x: x[0], carry.world)


def cost(policy: Policy, s: ScenarioArrays, world: Any, calls: int) -> dict[str, float]:
    """Seconds of a decision: median and 99th percentile of single calls."""
    state = policy.init(s.topology)

    # Functions of their own: JAX would hash a method's policy, which may hold arrays.
    def prepares(topology: TopologyArrays, workload: WorkloadArrays) -> Any:
        return policy.prepare(topology, workload)

    def decides(key: Array, state: Any, shown: Observation) -> tuple[Any, Action]:
        return policy.decide(key, state, shown)

    prepared = jax.jit(prepares)(s.topology, without_arrivals(s.workload))
    shown = jax.jit(observe, static_argnums=2)(world, s, policy.cheats, prepared)
    decide = jax.jit(decides)
    key = jax.random.key(0)
    began = time.perf_counter()
    jax.block_until_ready(decide(key, state, shown))
    compile_s = time.perf_counter() - began
    seconds = np.zeros(calls)
    for call in range(calls):
        began = time.perf_counter()
        jax.block_until_ready(decide(key, state, shown))
        seconds[call] = time.perf_counter() - began
    return {"p50_s": float(np.median(seconds)), "p99_s": float(np.percentile(seconds, 99)), "compile_s": compile_s}


def _nothing(*_: Any) -> None:
    """A kernel of `plain_seconds`."""


def plain_costs(cluster: str, calls: int) -> dict[str, dict[str, float]]:
    """CPU seconds of a decision of the network in plain turns, in all ways that suit the cluster."""
    ways: dict[str, type[Timed]] = {} if library() is None else {"natively": TimedNative}
    devices = len(topology(cluster).devices)
    ways |= {"in NumPy": TimedPlain} if devices <= MAX_DEVICES else {}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, kind in ways.items():
            found[way] += plain_seconds(cluster, calls // ROUNDS, kind(named(SHIPPED)))
    return {
        way: {"p50_s": float(np.median(some)), "p99_s": float(np.percentile(some, 99))}
        for way, some in found.items()
        if some
    }


def plain_seconds(cluster: str, calls: int, network: Any) -> list[float]:
    """CPU seconds of single decisions of a `Timed` network; none if plain turns do not suit the cluster."""
    described, rng, profiles = topology(cluster), np.random.default_rng(0), Profiles()
    workload = LiveWorkload(described, profiles, Shapes())
    if not suits(workload.t):
        return []
    kernels = [sy.kernel(device=described.kinds[0].type, name=f"k{number}")(_nothing) for number in range(6)]
    for number, kernel in enumerate(kernels):
        kernel.key = f"k{number}"
        for kind in described.kinds:
            if kind.type not in kernel.implementations:
                kernel.implementation(device=kind.type)(_nothing)
            profiles.timing(kernel.key, kind.name).mean = [float(np.log(rng.uniform(0.1, 1.0))), -20.0]
    budget = Budget(network, 0.0)
    core = PlainCore(workload, state.empty(workload.t, workload.w, workload.shapes.jobs, np), budget)
    rows, now_s, seconds = len(described.resources), 0.0, network.seconds
    while len(seconds) < calls:
        now_s += 0.05
        events = []
        if workload.free:
            graph = sy.graph("made up")
            made: list[Any] = []
            for _ in range(int(rng.integers(16, 65))):
                reads = rng.choice(len(made), min(len(made), int(rng.integers(0, 3))), replace=False)
                made.append(graph.task(kernels[int(rng.integers(6))], *(made[int(one)] for one in reads)))
            row = workload.add(submission(graph), [1 << 20] * len(made))
            events.append(SchedulerEvent(happened.ARRIVED, graph=row))
        running = [gang for gang, status in enumerate(core.status) if status == RUNNING]
        ended = rng.choice(running, min(len(running), 4), replace=False).tolist() if running else []
        events += [SchedulerEvent(happened.FINISHED, gang) for gang in ended]
        core.turn(events, now_s, (rng.uniform(0, 0.5, rows).astype(np.float32), np.full(rows, 0.1, np.float32)))
        used = {row for row, job in zip(core.graph, core.job, strict=True) if job >= 0}
        for row in set(range(workload.shapes.jobs)) - used - set(workload.free):
            workload.remove(row)
    return seconds


class Timed:
    """Keeps the CPU time of its decisions, without what is computed once for each change of the graphs."""

    def __init__(self, policy: Any) -> None:
        super().__init__(policy)  # type: ignore[call-arg]
        self.seconds: list[float] = []

    def decide(self, core: PlainCore) -> PlainAction:
        """Decide, and record the CPU time."""
        self.prepare(core.workload)  # type: ignore[attr-defined]
        began = time.thread_time()
        action = super().decide(core)  # type: ignore[misc]
        self.seconds.append(time.thread_time() - began)
        return action


class TimedPlain(Timed, PlainNetwork):
    """In NumPy."""


class TimedNative(Timed, NativeNetwork):
    """In `native.c`."""


def main() -> None:
    """Measure the learned policy and every baseline in every case."""
    args = arguments(__doc__ or "", tuple(CASES))
    console = Console()
    figures: dict[str, Any] = {}
    policies: dict[str, Policy] = {"(does nothing)": Nothing(), SHIPPED: named(SHIPPED)}
    policies |= {name: kind() for name, kind in BASELINES.items()}
    table = Table(title=f"Microseconds of one decision, p50 / p99 ({machine()['device']})")
    table.add_column("policy")
    cases = [case for case in CASES if case in args.only][: 1 if args.quick else None]
    worlds = {case: middle(*CASES[case]) for case in cases}
    for case in cases:
        table.add_column(case, justify="right")
    for name, policy in policies.items():
        row = [name]
        for case in cases:
            if name in FOR_TRAINING and "training" not in case:
                row.append("–")
                continue
            got = cost(policy, *worlds[case], calls=100 if args.quick else 500)
            figures.setdefault(case, {})[name] = got
            row.append(f"{got['p50_s'] * 1e6:,.0f} / {got['p99_s'] * 1e6:,.0f}")
            keep(args.json, figures=figures)
        table.add_row(*row)
    for case in cases:
        for way, plain in plain_costs(CASES[case][0], 200 if args.quick else 1000).items():
            figures[case][f"{SHIPPED}, {way}"] = plain
    for name in (f"{SHIPPED}, natively", f"{SHIPPED}, in NumPy"):
        got_of = [figures[case].get(name) for case in cases]
        table.add_row(name, *(f"{g['p50_s'] * 1e6:,.0f} / {g['p99_s'] * 1e6:,.0f}" if g else "–" for g in got_of))
    keep(args.json, figures=figures)
    console.print(table)


if __name__ == "__main__":
    main()
