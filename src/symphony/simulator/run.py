"""Whole runs and their records: the interface of the simulator to the other packages."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np

from symphony.problem.errors import LimitError, PolicyError
from symphony.problem.program_cache import call_combined, compiled
from symphony.problem.runnable import critical_path_s
from symphony.problem.topology import RESOURCE_KINDS, Topology
from symphony.problem.workload import Workload
from symphony.scheduling.policy import PLACE, Policy
from symphony.scheduling.state import FINISHED, RUNNING, SAVED
from symphony.simulator.contention import Bottleneck, ContentionModel
from symphony.simulator.idleness import idle_ready_share
from symphony.simulator.next_event import EVENT_ARRIVAL
from symphony.simulator.records import GangRecord, JobRecord, RunRecord
from symphony.simulator.rollout import STEP_OPTIONS, Carry, StepLog, begin_all, run_all, run_key
from symphony.simulator.scenarios import Scenario, ScenarioArrays, stack
from symphony.simulator.world import World

STEPS_PER_CHUNK = 1024  # steps between progress reports
MIN_GANGS_TO_RUN_SINGLY = 256  # gangs in the system; with as many, a CPU runs scenarios one by one
MAX_STEPS_PER_JOB = 4_000_000  # a run that completes no job in as many steps is aborted

Result = TypeVar("Result")


@dataclass
class Trace:
    """The log of one run, as NumPy arrays with one entry for each step; -1 where nothing happened."""

    log: StepLog
    carry: Carry  # at its end

    @property
    def before_s(self) -> np.ndarray:
        """Time of departures, decisions and starts."""
        return np.asarray(self.log.before.whole) + np.asarray(self.log.before.part, np.float64)

    @property
    def after_s(self) -> np.ndarray:
        """Time of events."""
        return np.asarray(self.log.after.whole) + np.asarray(self.log.after.part, np.float64)


def simulate(
    scenarios: Sequence[Scenario],
    policy: Policy,
    *,
    name: str = "",
    contention: ContentionModel | None = None,
    progress: Callable[[float], None] | None = None,
    batch: ScenarioArrays | None = None,
) -> list[RunRecord]:
    """Run a policy on scenarios of one topology. `progress` is called with the share of jobs done.

    `batch` is the result of `stack`, for callers that run several policies on the same scenarios.
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
                f"policy {run.policy!r} stalled on seed {run.seed}: gangs could be placed, nothing was running, "
                f"and it waited for ever ({len(run.jobs)} jobs were complete, {run.refused} of its {run.decisions} "
                "actions were refused)",
                hint="return wait() only while work is running, and only actions that are allowed: see docs/guides/"
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
    compiler_options: Mapping[str, Any] | None = None,
) -> tuple[list[Trace], float]:
    """Run a batch to its end. Also returns the seconds that compilation took."""
    return _run_each(
        batch, scenarios, policy, lambda _, trace: trace, contention, progress, record_log, compiler_options
    )


def compile_run(
    batch: ScenarioArrays,
    scenarios: Sequence[Scenario],
    policy: Policy,
    contention: ContentionModel,
    compiler_options: Mapping[str, Any] | None,
) -> None:
    """Compile what `run_traces` without a log needs, so that the time of the run itself can be measured."""
    part, seeds = _shards(batch, scenarios)[0]
    first = _program(_begin_all, part, policy, seeds)(part, policy, seeds)
    settings = (policy, contention, STEPS_PER_CHUNK, False)
    _program(run_all, part, first, *settings, options=compiler_options or STEP_OPTIONS)


def _run_each(
    batch: ScenarioArrays,
    scenarios: Sequence[Scenario],
    policy: Policy,
    use: Callable[[int, Trace], Result],
    contention: ContentionModel | None,
    progress: Callable[[float], None] | None,
    record_log: bool,
    compiler_options: Mapping[str, Any] | None = None,
) -> tuple[list[Result], float]:
    """Apply `use` to the number and the trace of each run; also returns the seconds that compilation took.

    On CPUs, one program runs on each core, and `use` is applied as soon as a program has ended.
    """
    began = time.perf_counter()
    contention = contention or Bottleneck()
    shards = _shards(batch, scenarios)
    each = len(shards[0][1])
    begin = _program(_begin_all, shards[0][0], policy, shards[0][1])
    first = begin(shards[0][0], policy, shards[0][1])
    settings = (policy, contention, STEPS_PER_CHUNK, record_log)
    run_chunk = _program(run_all, shards[0][0], first, *settings, options=compiler_options or STEP_OPTIONS)
    compile_s = time.perf_counter() - began
    jobs = sum(len(s.workload.jobs) for s in scenarios)
    done = [0.0] * len(shards)

    def run(shard: int) -> list[Result]:
        part, seeds = shards[shard]
        carry = begin(part, policy, seeds) if shard else first
        logs: list[StepLog] = []
        completed, steps = -1.0, 0  # steps since the last completion
        while steps < MAX_STEPS_PER_JOB:
            carry, log, ended = run_chunk(part, carry, *settings)
            if record_log:
                logs.append(jax.tree.map(np.asarray, log))
            done[shard] = float(np.asarray(carry.world.core.jobs_done).sum())
            completed, steps = done[shard], 0 if done[shard] > completed else steps + STEPS_PER_CHUNK
            if progress is not None:
                progress(min(sum(done) / jobs, 1.0))
            if bool(np.all(ended)):
                break
        else:
            raise PolicyError(
                f"no job was completed in {MAX_STEPS_PER_JOB:,} steps, at {float(carry.world.now.total.max()):.6g} s "
                f"of simulated time with {completed:.0f} jobs complete",
                hint="counter windows or phases may be too short (try a longer window_s or phase_s), failures may be "
                "more frequent than checkpoints, or the policy keeps preempting or reconfiguring",
            )
        whole = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *logs) if logs else None
        if whole is not None and (whole.after.whole[:, 1:] < whole.after.whole[:, :-1]).any():
            raise LimitError(
                "simulated time exceeded 2^31 seconds (68 years), the range of the clock",
                hint="give durations and arrivals in seconds, or use fewer or shorter jobs",
            )
        host = jax.tree.map(np.asarray, replace(carry, key=None))
        numbers = range(shard * each, min((shard + 1) * each, len(scenarios)))
        return [
            use(number, Trace(*(jax.tree.map(lambda x, i=i: x[i], columns) for columns in (whole, host))))
            for i, number in enumerate(numbers)
        ]

    # Settings such as 64-bit mode are thread-local, so sequential runs stay in the caller's thread.
    at_once = min(cores(), len(shards))
    if at_once == 1:
        parts = [run(shard) for shard in range(len(shards))]
    else:
        with ThreadPoolExecutor(at_once) as pool:
            parts = list(pool.map(run, range(len(shards))))
    return [result for part in parts for result in part], compile_s


def _shards(batch: ScenarioArrays, scenarios: Sequence[Scenario]) -> list[tuple[ScenarioArrays, jax.Array]]:
    """The part of a batch that each program runs, with the seeds of its runs."""
    seeds = np.asarray([s.seed for s in scenarios], np.uint32)
    shards = split(batch, seeds, len(scenarios), programs(batch, len(scenarios)))
    return [(part, jax.device_put(own)) for part, own in shards]


def _begin_all(batch: ScenarioArrays, policy: Policy, seeds: jax.Array) -> Carry:
    return begin_all(batch, policy, jax.vmap(run_key)(seeds))


def cores() -> int:
    """Number of programs to run in parallel: all cores of a CPU, one on an accelerator."""
    return (os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1


def programs(batch: ScenarioArrays, size: int) -> int:
    """Number of programs into which a batch is split.

    An accelerator runs one. A CPU runs one on each core if scenarios are small, so that each operation serves many of
    them; otherwise one for each scenario, which skips the parts of a step that have nothing to do.
    """
    gangs = batch.job_slots * batch.workload.kernel.shape[-1]
    return min(size, cores()) if jax.default_backend() != "cpu" or gangs < MIN_GANGS_TO_RUN_SINGLY else size


def split(batch: ScenarioArrays, keys: Any, size: int, parts: int) -> list[tuple[ScenarioArrays, Any]]:
    """Split a batch and its keys or seeds into parts of equal size, for one program; the last scenario fills up."""
    parts = min(parts, size)
    each = -(-size // parts)
    shards = []
    for part in range(parts):
        rows = np.minimum(np.arange(part * each, (part + 1) * each), size - 1)
        shard = jax.tree.map(lambda x, rows=rows: jax.device_put(np.asarray(x)[rows]), replace(batch, topology=None))
        shards.append((replace(shard, topology=batch.topology), keys[rows]))
    return shards


_programs: dict[Any, Any] = {}


def _program(
    function: Callable[..., Any], *arguments: Any, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The program of a function for arguments of these shapes, compiled ahead of time, to time it separately."""
    arrays, constants = eqx.partition(arguments, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    # Leaves that are not arrays (say, a policy's float) are constants of the program, so their values are in the key.
    values, form = jax.tree.flatten(constants)
    key = (
        function,
        structure,
        tuple((x.shape, x.dtype) for x in leaves),
        form,
        tuple(values),
        tuple((options or {}).items()),
    )
    if key not in _programs:
        _programs[key] = compiled(call_combined, (function, constants), (arrays,), dict(options or {}) or None)
    program = _programs[key]
    return lambda *arguments: program(eqx.filter(arguments, eqx.is_array))


def record(scenario: Scenario, trace: Trace, policy: str, wall_s: float) -> RunRecord:
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
    """Jobs admitted later than they arrived, by more than the rounding error of the step."""
    rows = log.event.kind == EVENT_ARRIVAL
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
    decision, started, left = log.decision, log.started, log.left
    parents: list[list[list[int]]] = [[[] for _ in graph.all_gangs] for graph in workload.graphs]
    for task_graph, inputs in zip(workload.graphs, parents, strict=True):
        for source, target, _ in task_graph.gang_edges:
            if source >= 0:
                inputs[target].append(source)
    ready: dict[tuple[int, int], float] = {}  # when a gang that had left early could be placed again
    placed: dict[tuple[int, int], float] = {}
    done: dict[tuple[int, int], float] = {}
    open_stays: dict[tuple[int, int], tuple[float, tuple[int, ...], float, float]] = {}
    admitted: dict[int, float] = {}
    stays: list[GangRecord] = []
    busy = (left.job >= 0) | (decision.kind == PLACE) | (started.job >= 0) | (log.event.kind == EVENT_ARRIVAL)
    for row in np.flatnonzero(busy):
        now_s = float(before[row])
        if left.job[row] >= 0:
            job, gang = key = int(left.job[row]), int(left.gang[row])
            graph, status = workload.jobs[job].graph, int(left.status[row])
            if status >= RUNNING:
                start_s, devices, isolated_s, setup_s = open_stays.pop(key)
                if status == SAVED:
                    setup_s += workload.graphs[graph].all_gangs[gang].checkpoint_s
                # The first stay begins to wait when the parents are done, a later one when the stay before it ended.
                parents_done = max([admitted[job], *(done[job, parent] for parent in parents[graph][gang])])
                stays.append(
                    GangRecord(
                        job=job,
                        gang=gang,
                        devices=devices,
                        ready_s=ready.pop(key, parents_done),
                        placed_s=placed[key],
                        start_s=start_s,
                        finish_s=now_s,
                        isolated_s=isolated_s,
                        setup_s=min(setup_s, now_s - start_s),
                        outcome={FINISHED: "finished", SAVED: "preempted"}.get(status, "failed"),
                    )
                )
            (done if status == FINISHED else ready)[key] = now_s
        if decision.kind[row] == PLACE and decision.accepted[row]:
            placed[int(decision.job[row]), int(decision.gang[row])] = now_s
        if started.job[row] >= 0:
            devices = tuple(int(d) for d in started.devices[row] if d >= 0)
            stay = now_s, devices, float(started.isolated_s[row]), float(started.setup_s[row])
            open_stays[int(started.job[row]), int(started.gang[row])] = stay
        if log.event.kind[row] == EVENT_ARRIVAL:
            admitted[len(admitted)] = float(after[row])
    return stays
