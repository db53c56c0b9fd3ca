"""Runs from start to end, and their records: the door through which the rest of Symphony uses the simulator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np

from symphony.problem.errors import LimitError, PolicyError
from symphony.problem.runnable import critical_path_s
from symphony.problem.topology import RESOURCE_KINDS, Topology
from symphony.problem.workload import Workload
from symphony.scheduling.policy import PLACE, Policy
from symphony.scheduling.state import FINISHED, RUNNING, SAVED
from symphony.simulator.contention import Bottleneck, ContentionModel
from symphony.simulator.idleness import idle_ready_share
from symphony.simulator.next_event import EVENT_ARRIVAL
from symphony.simulator.records import GangRecord, JobRecord, RunRecord
from symphony.simulator.rollout import Carry, StepLog, begin_batch, run_steps
from symphony.simulator.scenarios import Scenario, ScenarioArrays, stack
from symphony.simulator.world import World

STEPS_PER_CHUNK = 1024  # steps between looks at the progress
MIN_GANGS_TO_RUN_SINGLY = 256  # gangs in the system from which on a CPU runs scenarios one by one
MAX_STEPS_PER_JOB = 4_000_000  # a run that completes no job in so many is not getting anywhere

Result = TypeVar("Result")


@dataclass
class Trace:
    """Everything that one run logged, in order, as NumPy columns; rows where nothing of a kind happened are -1."""

    log: StepLog
    carry: Carry  # of this run alone, at its end

    @property
    def before_s(self) -> np.ndarray:
        """Time at which a step began: gangs left and started then, and decisions were made."""
        return np.asarray(self.log.before[0]) + np.asarray(self.log.before[1], np.float64)

    @property
    def after_s(self) -> np.ndarray:
        """Time of a step's event."""
        return np.asarray(self.log.after[0]) + np.asarray(self.log.after[1], np.float64)


def simulate(
    scenarios: Sequence[Scenario],
    policy: Policy,
    *,
    name: str = "",
    contention: ContentionModel | None = None,
    progress: Callable[[float], None] | None = None,
    batch: ScenarioArrays | None = None,
) -> list[RunRecord]:
    """Run a policy on scenarios of one topology side by side. `progress` is told the share of jobs done.

    `batch` is what `stack` makes of the scenarios, for those who run several policies on them.
    """
    batch = stack(list(scenarios)) if batch is None else batch
    started = time.perf_counter()

    def recorded(number: int, trace: Trace) -> RunRecord:
        return record(scenarios[number], trace, name or policy.name, 0.0)

    records, compile_s = _run_each(batch, scenarios, policy, recorded, contention, progress, record_log=True)
    wall_s = (time.perf_counter() - started - compile_s) / len(scenarios)
    records = [replace(run, wall_s=wall_s) for run in records]
    for run in records:
        if run.stalled:
            raise PolicyError(
                f"policy {run.policy!r} stalled on seed {run.seed}: gangs could be placed, nothing was under way, "
                f"and it waited for ever ({len(run.jobs)} jobs were complete, {run.refused} of its {run.decisions} "
                "actions were against the rules)",
                hint="answer wait() only while something is running, and actions that the rules allow: see docs/guides/"
                "policies.md; sy.testing.check_policy finds such cases",
            )
    return records


def run_traces(
    batch: ScenarioArrays,
    scenarios: Sequence[Scenario],
    policy: Policy,
    *,
    contention: ContentionModel | None = None,
    progress: Callable[[float], None] | None = None,
    record_log: bool = True,
) -> tuple[list[Trace], float]:
    """Run a batch to its end. Also returns the seconds that compilation took."""
    return _run_each(batch, scenarios, policy, lambda _, trace: trace, contention, progress, record_log)


def _run_each(
    batch: ScenarioArrays,
    scenarios: Sequence[Scenario],
    policy: Policy,
    use: Callable[[int, Trace], Result],
    contention: ContentionModel | None,
    progress: Callable[[float], None] | None,
    record_log: bool,
) -> tuple[list[Result], float]:
    """What `use` makes of the number and the trace of each run, and the seconds that compilation took.

    On CPUs, programs run side by side, one on each core; meanwhile others are made use of.
    """
    began = time.perf_counter()
    contention = contention or Bottleneck()
    keys = jax.vmap(jax.random.key)(np.asarray([s.seed for s in scenarios], np.uint32))
    keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    shards = split(batch, keys, len(scenarios), programs(batch, len(scenarios)))
    each = len(shards[0][1])
    compiled = _compiled(*shards[0], policy, contention, record_log)
    compile_s = time.perf_counter() - began
    jobs = sum(len(s.workload.jobs) for s in scenarios)
    done = [0.0] * len(shards)

    def run(shard: int) -> list[Result]:
        part, part_keys = shards[shard]
        carry = begin_batch(part, policy, part_keys)
        logs: list[StepLog] = []
        completed, since = -1.0, 0
        while since < MAX_STEPS_PER_JOB:
            carry, log, over = compiled(part, carry, policy, contention, STEPS_PER_CHUNK, record_log)
            if record_log:
                logs.append(jax.tree.map(np.asarray, log))
            done[shard] = float(np.asarray(carry.world.core.jobs_done).sum())
            completed, since = done[shard], 0 if done[shard] > completed else since + STEPS_PER_CHUNK
            if progress is not None:
                progress(min(sum(done) / jobs, 1.0))
            if bool(np.all(over)):
                break
        else:
            raise PolicyError(
                f"no job was completed in {MAX_STEPS_PER_JOB:,} steps, at {float(carry.world.now.total.max()):.6g} s "
                f"of simulated time with {completed:.0f} jobs complete",
                hint="counter windows or phases may be too short for so idle a cluster (longer window_s, phase_s), "
                "failures may outrun checkpoints, or the policy keeps preempting or reconfiguring",
            )
        whole = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *logs) if logs else None
        if whole is not None and (whole.after[0][:, 1:] < whole.after[0][:, :-1]).any():
            raise LimitError(
                "simulated time went beyond 2^31 seconds, 68 years, which the clock cannot count",
                hint="give durations and arrivals in seconds, and fewer jobs of such length",
            )
        host = jax.tree.map(np.asarray, _without_key(carry))
        numbers = range(shard * each, min((shard + 1) * each, len(scenarios)))
        return [
            use(number, Trace(*(jax.tree.map(lambda x, i=i: x[i], columns) for columns in (whole, host))))
            for i, number in enumerate(numbers)
        ]

    # Settings such as 64-bit mode belong to a thread, so what runs one by one stays in the caller's.
    at_once = min(cores(), len(shards))
    if at_once == 1:
        parts = [run(shard) for shard in range(len(shards))]
    else:
        with ThreadPoolExecutor(at_once) as pool:
            parts = list(pool.map(run, range(len(shards))))
    return [result for part in parts for result in part], compile_s


def cores() -> int:
    """Programs to run side by side: the cores at hand on a CPU, one on an accelerator."""
    return (os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1


def programs(batch: ScenarioArrays, size: int) -> int:
    """How many programs a batch is split into.

    An accelerator runs one. A CPU runs one on each core if scenarios are small, as each operation then serves many; if
    they are not, one for each scenario, which skips the parts of a step that it does not need.
    """
    gangs = batch.job_slots * batch.workload.kernel.shape[-1]
    return min(size, cores()) if jax.default_backend() != "cpu" or gangs < MIN_GANGS_TO_RUN_SINGLY else size


def split(batch: ScenarioArrays, keys: jax.Array, size: int, parts: int) -> list[tuple[ScenarioArrays, jax.Array]]:
    """A batch in parts of equal size, so that one program serves all; the last scenario is repeated to fill up."""
    parts = min(parts, size)
    each = -(-size // parts)
    shards = []
    for part in range(parts):
        rows = np.minimum(np.arange(part * each, (part + 1) * each), size - 1)
        shard = jax.tree.map(lambda x, rows=rows: jax.device_put(np.asarray(x)[rows]), replace(batch, topology=None))
        shards.append((replace(shard, topology=batch.topology), keys[rows]))
    return shards


_programs: dict[Any, Any] = {}


def _compiled(
    batch: ScenarioArrays, keys: jax.Array, policy: Policy, contention: ContentionModel, record_log: bool
) -> Callable[..., tuple[Carry, StepLog, Any]]:
    """The program for these shapes: compiled ahead, so that its time can be told apart from the run's."""
    carry = begin_batch(batch, policy, keys)
    leaves, structure = jax.tree.flatten((batch, carry, policy, contention))
    # What is not an array (say, a policy's float) is compiled into the program, so its value is part of the key.
    described = tuple((x.shape, x.dtype) if eqx.is_array(x) else x for x in leaves)
    key = (structure, described, record_log)
    if key not in _programs:
        _programs[key] = run_steps.lower(batch, carry, policy, contention, STEPS_PER_CHUNK, record_log).compile()
    return _programs[key]


def _without_key(carry: Carry) -> Carry:
    return replace(carry, key=jax.vmap(jax.random.key_data)(carry.key))


def record(scenario: Scenario, trace: Trace, policy: str, wall_s: float) -> RunRecord:
    """The records of one run, from its log."""
    workload, log = scenario.workload, trace.log
    before, after = trace.before_s, trace.after_s
    world = trace.carry.world
    kernels = {kernel.name: kernel for kernel in workload.kernels}
    isolated = [critical_path_s(scenario.topology, kernels, graph) for graph in workload.graphs]
    jobs = []
    for row in np.flatnonzero(log.completed >= 0):
        number = int(log.completed[row])
        job = workload.jobs[number]
        jobs.append(JobRecord(number, job.graph, job.arrival_s, float(before[row]), isolated[job.graph], job.priority))
    jobs.sort(key=lambda x: x.job)
    stays = _stays(scenario, trace, before, after)
    return RunRecord(
        policy=policy,
        seed=scenario.seed,
        jobs=tuple(jobs),
        gangs=tuple(stays),
        makespan_s=max((job.finish_s for job in jobs), default=0.0),
        utilisation=_utilisation(scenario.topology, world),
        decisions=int(world.core.decisions),
        events=int(world.events),
        refused=int(world.core.refused),
        wall_s=wall_s,
        stalled=bool(world.stalled),
        jobs_outside=_outside(workload, log, before, after),
        devices=len(scenario.topology.devices),
        idle_ready_share=idle_ready_share(scenario.topology, workload, stays),
    )


def _outside(workload: Workload, log: StepLog, before: np.ndarray, after: np.ndarray) -> int:
    """Jobs admitted later than they arrived, by more than a step of that length is rounded."""
    rows = log.event[0] == EVENT_ARRIVAL
    admitted, step = after[rows], after[rows] - before[rows]
    arrived = np.asarray([job.arrival_s for job in workload.jobs[: len(admitted)]])
    return int((admitted - arrived > 1e-6 * (1 + step)).sum())


def _utilisation(topology: Topology, world: World) -> dict[str, float]:
    elapsed = max(float(world.now.whole) + float(world.now.part), 1e-12)
    used = (np.asarray(world.used, float) + np.asarray(world.used_area, float)) / elapsed
    kinds = np.asarray([list(RESOURCE_KINDS).index(resource.kind) for resource in topology.resources], int)
    return {
        kind: float(used[: len(kinds)][kinds == index].mean())
        for index, kind in enumerate(RESOURCE_KINDS)
        if (kinds == index).any()
    }


def _stays(scenario: Scenario, trace: Trace, before: np.ndarray, after: np.ndarray) -> list[GangRecord]:
    """Walk the log once, opening a stay when a gang starts and closing it when the gang leaves."""
    log, workload = trace.log, scenario.workload
    kind, job, gang, _, _, accepted, _ = log.decision
    start_job, start_gang, devices, _, isolated, setup = log.started
    left_job, left_gang, left_status = log.left
    event_kind = log.event[0]
    parents: list[list[list[int]]] = [[[] for _ in graph.all_gangs] for graph in workload.graphs]
    for graph, inputs in zip(workload.graphs, parents, strict=True):
        for source, target, _ in graph.gang_edges:
            if source >= 0:
                inputs[target].append(source)
    ready: dict[tuple[int, int], float] = {}  # since when a gang could have been placed, if it was given back
    placed: dict[tuple[int, int], float] = {}
    done: dict[tuple[int, int], float] = {}
    open_stays: dict[tuple[int, int], tuple[float, tuple[int, ...], float, float]] = {}
    admitted: dict[int, float] = {}
    stays: list[GangRecord] = []
    arrivals = 0
    busy = (left_job >= 0) | (kind == PLACE) | (start_job >= 0) | (event_kind == EVENT_ARRIVAL)
    for row in np.flatnonzero(busy):
        if left_job[row] >= 0:
            who = (int(left_job[row]), int(left_gang[row]))
            status = int(left_status[row])
            if status >= RUNNING:
                began, where, alone, set_up = open_stays.pop(who)
                if status == SAVED:
                    gangs = workload.graphs[workload.jobs[who[0]].graph].all_gangs
                    set_up += gangs[who[1]].checkpoint_s
                stays.append(
                    GangRecord(
                        job=who[0],
                        gang=who[1],
                        devices=where,
                        ready_s=_ready(who, ready, done, admitted, parents[workload.jobs[who[0]].graph]),
                        placed_s=placed[who],
                        start_s=began,
                        finish_s=float(before[row]),
                        isolated_s=alone,
                        setup_s=min(set_up, float(before[row]) - began),
                        outcome={FINISHED: "finished", SAVED: "preempted"}.get(status, "failed"),
                    )
                )
            if status == FINISHED:
                done[who] = float(before[row])
            else:
                ready[who] = float(before[row])
        if kind[row] == PLACE and accepted[row]:
            placed[int(job[row]), int(gang[row])] = float(before[row])
        if start_job[row] >= 0:
            who = (int(start_job[row]), int(start_gang[row]))
            where = tuple(int(d) for d in devices[row] if d >= 0)
            open_stays[who] = (float(before[row]), where, float(isolated[row]), float(setup[row]))
        if event_kind[row] == EVENT_ARRIVAL:
            admitted[arrivals] = float(after[row])
            arrivals += 1
    return stays


def _ready(
    who: tuple[int, int],
    given_back: dict[tuple[int, int], float],
    done: dict[tuple[int, int], float],
    admitted: dict[int, float],
    parents: list[list[int]],
) -> float:
    times = [admitted[who[0]], *(done[who[0], parent] for parent in parents[who[1]])]
    # A stay that was given back began to wait again when the one before it ended; that entry is consumed here.
    return given_back.pop(who, max(times))
