"""Speed of the simulator: `python -m benchmarks.simulator [--quick] [--json FILE]`.

An event is an arrival, a decision, or any other event of docs/concepts/simulation.md; a gang's start, its leaving and
zero-time steps are not counted. Every run has all features on: gangs of two among the kernels, transfers, FPGAs,
failures, tenants in phases and counter windows.

Unfair to the plain Python simulator: it is written to be obvious, recomputes everything at every event, and runs a
cheaper policy. Unfair to ours: one scenario alone leaves a vector machine idle.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import arguments, keep, machine
from symphony.baselines import EftBelief, ShortestQueue
from symphony.problem import build, topologies
from symphony.problem.topology import Topology
from symphony.problem.workload import Edge, Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.scheduling.policy import Policy
from symphony.simulator.contention import Bottleneck
from symphony.simulator.rollout import begin_batch, run_steps
from symphony.simulator.run import cores, split
from symphony.simulator.scenarios import Disturbances, Scenario, ScenarioArrays, draw, stack

CACHE_RESIDENT = 64  # scenarios of 32 devices x 128 tasks whose state stays in a core's cache


def small_cluster() -> Topology:
    """32 devices: 8 machines with a CPU, two GPUs and a third GPU or an FPGA each."""

    def machine_spec(name: str, fourth: str) -> build.MachineSpec:
        switch = build.SwitchSpec(bandwidth="16 GB/s", devices=("gpu", "gpu", fourth))
        socket = build.SocketSpec(memory="100 GB/s", cache="32 MB", devices=("cpu",), switch=(switch,))
        return build.MachineSpec(name=name, count=4, nic="12 GB/s", socket=(socket,))

    return build.build(
        build.ClusterSpec(
            name="bench-32",
            device={
                "cpu": build.DeviceSpec(type="cpu", memory="128 GB"),
                "gpu": build.DeviceSpec(type="gpu", memory="16 GB", device_memory="500 GB/s", link="12 GB/s"),
                "fpga": build.DeviceSpec(
                    type="fpga", memory="8 GB", device_memory="20 GB/s", link="6 GB/s", reconfigure="200 ms"
                ),
            },
            machine=(machine_spec("a", "gpu"), machine_spec("b", "fpga")),
        )
    )


def workload(topology: Topology, seed: int, jobs: int, tasks: int, rate: float) -> Workload:
    """Random graphs of `tasks` gangs; one in eight has two workers that exchange data."""
    rng = np.random.default_rng(seed)
    types = {kind.type for kind in topology.kinds}
    kernels = tuple(
        Kernel(
            f"k{k}",
            {
                kind: Profile(
                    per_work_s=float(rng.uniform(0.5, 2.0)) * slower,
                    demand={"compute": 1.0, "memory": float(rng.uniform(0, 40e9)), "device_memory": 100e9},
                    memory=1e9,
                )
                for kind, slower in (("cpu", 4.0), ("gpu", 1.0), ("fpga", 1.2))
                if kind in types
            },
            exchange_bytes=1e8,
        )
        for k in range(12)
    )
    graphs = []
    for number in range(8):
        members: list[Task] = []
        gangs, edges, leaders = [], [], []
        for i in range(tasks):
            workers = 2 if rng.random() < 0.125 else 1
            names = [f"t{i}.{w}" for w in range(workers)]
            task = Task(names[0], f"k{rng.integers(len(kernels))}", float(rng.uniform(0.5, 2.0)))
            members += [replace(task, name=name) for name in names]
            gangs.append(Gang(f"g{i}", tuple(names), preemptible=True, checkpoint_s=0.1, restore_s=0.1))
            for parent in rng.choice(i, min(i, 2), replace=False) if i else []:
                edges.append(Edge(leaders[parent], names[0], float(rng.uniform(0, 5e8))))
            leaders.append(names[0])
        edges.append(Edge(None, leaders[0], 1e8))
        graphs.append(TaskGraph(f"graph{number}", tuple(members), tuple(edges), tuple(gangs)))
    times = np.cumsum(rng.exponential(1 / rate, jobs))
    return Workload(
        "bench",
        kernels,
        tuple(graphs),
        tuple(Job(int(rng.integers(8)), float(t), home=int(rng.integers(1000))) for t in times),
    )


def scenario(topology: Topology, seed: int, *, jobs: int = 600, tasks: int = 16, job_slots: int = 8) -> Scenario:
    """A scenario that keeps its job slots busy."""
    rate = 0.05 * len(topology.devices) * 16 / tasks
    drawn = workload(topology, seed, jobs, tasks, rate)
    disturbances = Disturbances(failures_per_day=20.0, repair_s=30.0, window_s=1.0, phase_s=20.0)
    return draw(topology, drawn, seed, disturbances, job_slots=job_slots)


def tile(batch: ScenarioArrays, size: int) -> ScenarioArrays:
    """A batch of `size` scenarios from a few different ones."""
    have = batch.phases.shape[0]
    rows = np.arange(size) % have
    return replace(jax.tree.map(lambda x: x[rows], replace(batch, topology=None)), topology=batch.topology)


def longer(batch: ScenarioArrays, jobs: int) -> ScenarioArrays:
    """The same scenarios with their arrivals repeated until there are `jobs` of them."""
    w = batch.workload
    have = int(np.asarray(w.jobs).min())
    lap = np.arange(jobs) // have
    number = np.arange(jobs) % have
    period = np.ceil(np.asarray(w.arrival_whole)[:, have - 1] + 1).astype(np.int64)
    whole = np.asarray(w.arrival_whole)[:, number] + lap[None, :] * period[:, None]
    columns = {name: np.asarray(getattr(w, name))[:, number] for name in ("arrival_part", "graph", "priority", "home")}
    return replace(
        batch,
        workload=replace(
            w,
            jobs=jnp.full_like(w.jobs, jobs),
            arrival_whole=jnp.asarray(whole, jnp.int32),
            **{name: jnp.asarray(column) for name, column in columns.items()},
        ),
    )


def measure(batch: ScenarioArrays, policy: Policy, steps: int, seconds: float) -> dict[str, float]:
    """Compile, warm up, and count events for about `seconds`."""
    size = batch.phases.shape[0]
    keys = jax.random.split(jax.random.key(0), size)
    parts = max(cores(), -(-size // CACHE_RESIDENT)) if jax.default_backend() == "cpu" else 1
    shards = split(batch, keys, size, parts)
    carries = [begin_batch(shard, policy, shard_keys) for shard, shard_keys in shards]
    began = time.perf_counter()
    program = run_steps.lower(shards[0][0], carries[0], policy, Bottleneck(), steps, False).compile()
    compile_s = time.perf_counter() - began

    def advance(index: int) -> None:
        carry, _, _ = program(shards[index][0], carries[index], policy, Bottleneck(), steps, False)
        carries[index] = jax.block_until_ready(carry)

    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(advance, range(len(shards))))
        before = sum(int(carry.world.events.sum()) for carry in carries)
        began, rounds = time.perf_counter(), 0
        while rounds == 0 or time.perf_counter() - began < seconds:
            list(pool.map(advance, range(len(shards))))
            rounds += 1
        took = time.perf_counter() - began
    events = sum(int(carry.world.events.sum()) for carry in carries) - before
    finished = sum(
        int((carry.world.core.jobs_done >= shard.workload.jobs).sum())
        for carry, (shard, _) in zip(carries, shards, strict=True)
    )
    assert finished == 0, f"{finished} scenarios ran out of jobs: the figures would be too low"
    return {
        "scenarios": size,
        "events_per_s": events / took,
        "us_per_event": took / events * 1e6,
        "events_per_step": events / (rounds * steps * size),
        "compile_s": compile_s,
    }


def plain_python(one: Scenario, seconds: float) -> dict[str, float]:
    """Events per second of the plain Python simulator, without its checks."""
    from tests.simulator.reference import Reference, fifo

    world = Reference(one)
    world.check = lambda: None  # type: ignore[method-assign]
    began, events = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        world.run(fifo, max_events=len(world.events) + 200)
        events = len(world.events) + len(world.decisions)
    took = time.perf_counter() - began
    return {"events_per_s": events / took, "us_per_event": took / events * 1e6}


def main() -> None:
    args = arguments("How fast the simulator is.", ("parallel", "python", "devices", "tasks", "jobs"))
    gpu = jax.default_backend() != "cpu"
    seconds = 1.0 if args.quick else 2.0
    cluster = small_cluster()
    distinct = stack([scenario(cluster, seed) for seed in range(8)])
    console = Console(width=120)
    figures: dict[str, Any] = {}

    # Stored after every figure, so that a stopped run loses nothing.
    if "parallel" in args.only:
        for got in parallel(console, distinct, args.quick, gpu, seconds):
            figures.setdefault("parallel", []).append(got)
            keep(args.json, **figures)
    if "python" in args.only:
        ours = measure(longer(tile(distinct, 1), 100_000), ShortestQueue(), 256, seconds)
        python = plain_python(scenario(cluster, 0), seconds)
        ratio = ours["events_per_s"] / python["events_per_s"]
        figures["plain_python"] = {**python, "ours_alone": ours, "speed_up": ratio}
        console.print(
            f"One scenario alone: {ours['events_per_s']:,.0f} events/s, {ratio:.0f} times as fast as the plain Python "
            f"simulator ({python['events_per_s']:,.0f})."
        )

    def curve(name: str, title: str, points: list[tuple[str, ScenarioArrays]]) -> None:
        table = Table(title=title)
        for column in (name, "us/event", "events/s", "compile, s"):
            table.add_column(column, justify="right")
        figures[name] = []
        for label, batch in points:
            got = measure(batch if name == "jobs" else longer(batch, 100_000), ShortestQueue(), 256, seconds / 2)
            figures[name].append({name: label, **got})
            keep(args.json, **figures)
            table.add_row(label, f"{got['us_per_event']:.1f}", f"{got['events_per_s']:,.0f}", f"{got['compile_s']:.1f}")
        console.print(table)

    if "devices" in args.only:
        counts = [1024] if args.quick else [32, 128, 512, 2048, 10_000]
        curve(
            "devices",
            "One scenario, 128 tasks, against devices (fat-tree:N)",
            [(f"{n:,}", stack([scenario(topologies.topology(f"fat-tree:{n}"), 0)])) for n in counts],
        )
    if "tasks" in args.only:
        slots = [64] if args.quick else [2, 8, 32, 128, 512]
        curve(
            "tasks",
            "One scenario, 32 devices, against tasks in the system",
            [(f"{n * 16:,}", stack([scenario(cluster, 0, job_slots=n)])) for n in slots],
        )
    if "jobs" in args.only:
        lengths = [1_000_000] if args.quick else [10_000, 100_000, 1_000_000]
        base = stack([scenario(cluster, 0)])
        curve(
            "jobs",
            "One scenario, 32 devices x 128 tasks, against the length of the trace",
            [(f"{n:,}", longer(base, n)) for n in lengths],
        )
    keep(args.json, **figures)


def parallel(
    console: Console, distinct: ScenarioArrays, quick: bool, gpu: bool, seconds: float
) -> Iterator[dict[str, Any]]:
    """Measure many scenarios side by side."""
    sizes = [1, 64] if quick else [1, 64, 1024, 8192, *([12288, 32768] if gpu else [])]
    policies: list[Policy] = [ShortestQueue()] if quick else [ShortestQueue(), EftBelief()]
    table = Table(title=f"Scenarios side by side: 32 devices x 128 tasks, all features on ({machine()['device']})")
    for column in ("policy", "scenarios", "events/s", "us/event", "events/step", "compile, s"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for policy in policies:
        for size in sizes:
            jobs = 100_000 if size <= 64 else 3_000  # enough not to run out
            got = measure(longer(tile(distinct, size), jobs), policy, 64 if size > 1024 else 256, seconds)
            yield {"policy": policy.name, **got}
            table.add_row(
                policy.name, f"{size:,}", f"{got['events_per_s']:,.0f}", f"{got['us_per_event']:.3g}",
                f"{got['events_per_step']:.2f}", f"{got['compile_s']:.1f}",
            )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    main()
