"""The scheduler's books, moved by hand: a small cluster and events one at a time, without a simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from symphony.problem.arrays import topology_arrays, workload_arrays
from symphony.problem.topology import (
    CLUSTER,
    MACHINE,
    RACK,
    SOCKET,
    SWITCH,
    Device,
    DeviceKind,
    Hop,
    Resource,
    Topology,
)
from symphony.problem.workload import Edge, Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.scheduling import advance, state
from symphony.scheduling.clock import Amount
from symphony.scheduling.feasible import facts, per_gang
from symphony.scheduling.policy import Action, Observation, Policy

GB = 1e9
MIB = float(1 << 20)
OUT = (SWITCH, SOCKET, MACHINE, RACK, CLUSTER)
CPU0, CPU1, GPU, FPGA = range(4)  # devices of CLUSTER4


def cluster() -> Topology:
    """Two CPUs of two slots on one socket, sharing a memory; a GPU and an FPGA of two contexts in another machine."""
    kinds = (
        DeviceKind("cpu", "cpu", slots=2, memory=64 * MIB),
        DeviceKind("gpu", "gpu", memory=16 * MIB),
        DeviceKind("fpga", "fpga", slots=2, reconfigure_s=0.5),
    )
    rows = (
        Resource("a/memory", "memory", 10 * GB, "a"),
        Resource("a/nic", "nic", 1 * GB, "a"),
        Resource("gpu/link", "link", 4 * GB, "b"),
        Resource("fpga/link", "link", 2 * GB, "b"),
        Resource("b/nic", "nic", 2 * GB, "b"),
    )
    cpu = (Hop("a/memory", OUT), Hop("a/nic", (RACK, CLUSTER)))
    devices = (
        Device("cpu0", "cpu", "a", "rack", "a/s", "a/s/root", cpu),
        Device("cpu1", "cpu", "a", "rack", "a/s", "a/s/root", cpu, home="cpu0"),
        Device("gpu", "gpu", "b", "rack", "b/s", "b/s/w", (Hop("gpu/link", OUT), Hop("b/nic", (RACK,)))),
        Device("fpga", "fpga", "b", "rack", "b/s", "b/s/w", (Hop("fpga/link", OUT), Hop("b/nic", (RACK,)))),
    )
    return Topology("by hand", kinds, rows, devices, (0.0,) * 7)


KERNELS = (
    Kernel("any", {"cpu": Profile(4.0), "gpu": Profile(1.0), "fpga": Profile(0.5)}),
    Kernel("cpu only", {"cpu": Profile(2.0, demand={"memory": 6 * GB}, memory=40 * MIB)}),
    Kernel("train", {"cpu": Profile(1.0), "gpu": Profile(0.25)}, exchange_bytes=0.5 * GB),
)


def dot(kernel: str, *, size: float = 1.0, units: float = 1.0, name: str = "dot") -> TaskGraph:
    """A graph of one task."""
    return TaskGraph(name, (Task("a", kernel, size, units),))


def pair(kernel: str = "train", units: float = 8.0, **options: float | bool) -> TaskGraph:
    """A graph of one gang of two workers."""
    tasks = (Task("w0", kernel, units=units), Task("w1", kernel, units=units))
    return TaskGraph("pair", tasks, gangs=(Gang("pair", ("w0", "w1"), **options),))  # type: ignore[arg-type]


def chain(first: str = "any", second: str = "any", size: float = 1 * GB) -> TaskGraph:
    """Two tasks; the second reads what the first makes. The first reads as much from the job's home."""
    return TaskGraph("chain", (Task("a", first), Task("b", second)), (Edge(None, "a", size), Edge("a", "b", size)))


def work(*graphs: TaskGraph, priorities: Sequence[int] = (), homes: Sequence[int] = ()) -> Workload:
    """One job of each graph, all at time 0."""
    numbers = range(len(graphs))
    priority = dict(enumerate(priorities))
    home = dict(enumerate(homes))
    jobs = tuple(Job(n, 0.0, priority.get(n, 0), home.get(n, 0)) for n in numbers)
    return Workload("by hand", KERNELS, graphs, jobs)


def jitted(function):
    """Compiled: op by op, JAX would compile every operation by itself."""
    return jax.jit(function)


_arrive, _apply, _start = jitted(advance.job_arrived), jitted(advance.apply), jitted(advance.start_gang)
_finish, _leave, _release = jitted(advance.gang_finished), jitted(advance.gang_leaves), jitted(advance.release_children)
_there, _copy, _window = jitted(advance.inputs_there), jitted(advance.copy_made), jitted(advance.window_ended)
_fail, _repair, _setup = jitted(advance.device_failed), jitted(advance.device_repaired), jitted(advance.setup_ended)
_drop, _stop = jitted(advance.job_dropped), jitted(advance.gang_stopped)
_recall, _moved = jitted(advance.gang_recalled), jitted(advance.time_moved)
_facts, _per_gang = jitted(facts), jitted(per_gang)
_empty = jax.jit(state.empty, static_argnums=2)
_prepare = jax.jit(lambda policy, topology, workload: policy.prepare(topology, workload))
_decide = jax.jit(lambda policy, key, state, observation: policy.decide(key, state, observation))
YES = jnp.asarray(True)


@jax.jit
def _read(core: state.Core, noise: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A reading with an error that belongs to its window, and what is taken for background, with its deviation.

    What is inferred from readings is tests/simulator's.
    """
    error = jax.random.normal(jax.random.fold_in(jax.random.key(7), core.windows), core.reading.shape)
    mean = core.reading * jnp.maximum(1 + noise * error, 0)
    return mean, jnp.maximum(mean - core.own_reading, 0), noise * mean


class Books:
    """What the scheduler knows, and the ways to change it. Gang i of the job in slot k is k * tasks + i."""

    def __init__(self, workload: Workload, topology: Topology | None = None, *, arrived: int | None = None) -> None:
        self.topology = topology or cluster()
        self.workload = workload
        jobs = len(workload.jobs)
        self.t = jax.device_put(topology_arrays(self.topology))
        self.w = jax.device_put(workload_arrays(self.topology, workload))
        self.tasks = self.w.kernel.shape[1]
        self.core = _empty(self.t, self.w, jobs)
        self.now = Amount.of(jnp.asarray(0.0, jnp.float32))  # of one type, as after time has passed: one program
        for _ in range(jobs if arrived is None else arrived):
            self.arrive()

    def arrive(self) -> None:
        """The next job arrives."""
        self.core = _arrive(self.core, self.w, YES)

    def pass_time(self, seconds: float) -> None:
        """Time goes by; nothing else happens."""
        self.now = self.now.plus(jnp.asarray(seconds))
        self.core = _moved(self.core, self.t, self.now)

    def decide(self, action: Action) -> bool:
        """Apply an action; whether it was accepted."""
        self.core, self.commands, accepted = _apply(self.core, self.t, self.w, action, YES)
        return bool(accepted)

    def facts(self, gang: int):
        """What the workload says of a gang."""
        return _facts(self.core, self.w, jnp.asarray(gang))

    def start(self, gang: int) -> list[float]:
        """A queued gang starts; the set-up time of each worker's slot."""
        arguments = (self.t, self.w, jnp.asarray(gang), self.facts(gang), self.now, YES)
        self.core, setup = _start(self.core, *arguments)
        workers = int(np.asarray(self.core.device[gang] >= 0).sum())
        return np.asarray(setup)[:workers].tolist()

    def leave(self, gang: int) -> None:
        """A gang that is leaving leaves, and its children are told."""
        assert bool(self.core.leaving[gang])
        self.core = _leave(self.core, self.t, self.w, jnp.asarray(gang), self.facts(gang), YES)
        while int(self.core.releasing) >= 0:
            self.core = _release(self.core, self.w)

    def finish(self, gang: int) -> None:
        """A running gang has no work left, and leaves."""
        self.core = _finish(self.core, jnp.asarray(gang), YES)
        self.leave(gang)

    def stop(self, gang: int) -> None:
        """A running gang has stopped before it was done, and leaves."""
        self.core = _stop(self.core, jnp.asarray(gang), YES)
        self.leave(gang)

    def recall(self, gang: int) -> None:
        """A gang leaves the queue that it waits in, if it does."""
        self.core = _recall(self.core, jnp.asarray(gang), YES)
        if self.core.leaving[gang]:
            self.leave(gang)

    def drop(self, slot: int) -> None:
        """The job in a slot is given up."""
        self.core = _drop(self.core, self.w, jnp.asarray(slot), YES)

    def fetched(self, gang: int) -> None:
        """One more input of a gang that is placed has come."""
        device = self.core.device[gang, 0].astype(jnp.int32)
        self.core = _there(self.core, jnp.asarray(gang), device, jnp.asarray(1), YES)

    def copied(self, source: int, memory: int) -> None:
        """The output of a gang lies in one more memory."""
        self.core = _copy(self.core, jnp.asarray(source), jnp.asarray(memory), YES)

    def setup_ended(self, lane: int) -> None:
        """The set-up of a slot has ended."""
        self.core = _setup(self.core, self.t, jnp.asarray(lane), YES)

    def fail(self, device: int) -> None:
        """A device goes down."""
        self.core = _fail(self.core, self.t, jnp.asarray(device), YES)

    def repair(self, device: int) -> None:
        """A device is up again."""
        self.core = _repair(self.core, jnp.asarray(device), YES)

    def window(self, reading: Sequence[float], own: Sequence[float], offer: bool = False) -> None:
        """A counter window ends; loads of the rows of the cluster."""
        rows = np.zeros((2, self.t.capacity.shape[0]), np.float32)
        rows[0, : len(reading)], rows[1, : len(own)] = reading, own
        self.core = _window(self.core, jnp.asarray(rows[0]), jnp.asarray(rows[1]), jnp.asarray(offer), YES)

    def observe(
        self,
        own_load: Sequence[float] = (),
        *,
        noise: float = 0.0,
        true_background: Sequence[float] | None = None,
        units_left: Sequence[float] | None = None,
        policy: Policy | None = None,
    ) -> Observation:
        """What a policy is shown now."""

        def rows(values: Sequence[float]) -> jax.Array:
            return jnp.asarray(np.pad(np.asarray(values, np.float32), (0, self.t.capacity.shape[0] - len(values))))

        mean, background, deviation = _read(self.core, noise)
        hidden = dict.fromkeys(("jobs", "arrival_whole", "arrival_part", "graph", "priority", "home"))
        workload = replace(self.w, **hidden)
        every = _per_gang(self.core, self.w.units)
        return Observation(
            core=replace(self.core, reading=mean),
            topology=self.t,
            workload=workload,
            now=self.now,
            own_load=rows(own_load),
            background=background,
            background_std=deviation,
            true_background=None if true_background is None else rows(true_background),
            units_left=every if units_left is None else every.at[: len(units_left)].set(jnp.asarray(units_left)),
            prepared=None if policy is None else _prepare(policy, self.t, workload),
        )

    def status(self) -> list[int]:
        """Where every gang of the workload is, job by job (jobs in slots of their own number)."""
        counts = [len(self.workload.graphs[job.graph].all_gangs) for job in self.workload.jobs]
        every = np.asarray(self.core.status).reshape(-1, self.tasks)[: len(counts)]
        return [int(x) for row, count in zip(every, counts, strict=True) for x in row[:count]]


JOBS = 12  # slots of shared books, and graphs that they know


def shared_books(workload: Workload, *, arrived: int | None = None) -> Books:
    """Books of one of two shapes, of graphs of one gang or of two: a policy compiles once for all tests that use them.

    They know graphs that no job is of, and have slots that stay free.
    """
    gangs = max(len(graph.all_gangs) for graph in workload.graphs)
    fill = (pair(), pair() if gangs == 1 else chain()) * JOBS
    graphs = (replace(graph, name=f"none {n}") for n, graph in enumerate(fill[len(workload.graphs) : JOBS]))
    jobs = (Job(0, 1e6),) * (JOBS - len(workload.jobs))
    full = replace(workload, graphs=(*workload.graphs, *graphs), jobs=(*workload.jobs, *jobs))
    assert gangs <= 2 and len(workload.graphs) <= JOBS - 2 and len(full.jobs) == JOBS
    books = Books(full, arrived=len(workload.jobs) if arrived is None else arrived)
    books.workload = workload
    return books


def whole_decision(policy: Policy, observation: Observation, seed: int = 0) -> Action:
    """A policy's action."""
    shown = observation if policy.cheats else replace(observation, true_background=None)
    return _decide(policy, jax.random.key(seed), policy.init(observation.topology), shown)[1]


def decision(policy: Policy, observation: Observation, seed: int = 0) -> tuple[int, int, int]:
    """A policy's action: kind, gang, device."""
    action = whole_decision(policy, observation, seed)
    return int(action.kind), int(action.gang), int(action.device)
