"""A turn does what the simulator does: told of its events, the runtime starts the same gangs on the same devices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import symphony as sy
from symphony.problem.arrays import topology_arrays, workload_arrays
from symphony.problem.workload import Edge, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.runtime import turn as happened
from symphony.runtime.live_workload import JOB_ARRAYS
from symphony.runtime.turn import SchedulerEvent, TurnCommands, pack_events, take_turn, unpack_events
from symphony.scheduling import state
from symphony.scheduling.state import FINISHED
from symphony.simulator.next_event import EVENT_ARRIVAL, EVENT_FAILURE, EVENT_FINISHED, EVENT_REPAIR, EVENT_WOKEN
from symphony.simulator.run import run_traces
from symphony.simulator.scenarios import CALM, draw, stack
from tests.runtime.machines import machine
from tests.simulator.scripted import Patient

JOBS, SLOTS = 10, 4


def random_work(seed: int) -> Workload:
    """Random graphs without data: where inputs come from takes no time in either."""
    rng = np.random.default_rng(seed)
    kernels = tuple(
        Kernel(f"k{n}", {"cpu": Profile(rng.uniform(1, 3)), "big": Profile(rng.uniform(0.5, 2))}) for n in range(3)
    )
    graphs = []
    for number in range(3):
        tasks = tuple(Task(f"t{k}", f"k{rng.integers(3)}") for k in range(6))
        pairs = [(a, b) for b in range(6) for a in range(b)]
        chosen = (pairs[k] for k in rng.choice(len(pairs), 6, replace=False))
        graphs.append(TaskGraph(f"g{number}", tasks, tuple(Edge(f"t{a}", f"t{b}") for a, b in chosen)))
    times = np.sort(rng.uniform(0, 15, JOBS))
    jobs = tuple(Job(int(rng.integers(3)), float(at), int(rng.integers(2))) for at in times)
    return Workload("random", kernels, tuple(graphs), jobs)


def by_instants(trace: Any) -> list[tuple[float, tuple[int, int, int, int], list[tuple[int, int, int]]]]:
    """The simulator's events (time, then kind, job, gang, device), and what started before the next one."""
    log = jax.tree.map(np.asarray, trace.log)
    found: list[tuple[float, tuple[int, int, int, int], list[tuple[int, int, int]]]] = []
    for step in range(len(trace.before_s)):
        job, gang, devices = (int(log.started[0][step]), int(log.started[1][step]), log.started[2][step])
        if job >= 0:
            found[-1][2].append((job, gang, int(devices[0])))
        kind = int(log.event[0][step])
        if kind in (EVENT_ARRIVAL, EVENT_FINISHED, EVENT_FAILURE, EVENT_REPAIR, EVENT_WOKEN):
            found.append((float(trace.after_s[step]), tuple(int(x[step]) for x in log.event), []))  # type: ignore[arg-type]
    return found


def test_the_runtime_starts_what_the_simulator_starts() -> None:
    topology, policy = machine(others=2), Patient(sy.baselines.EftStatic())
    t = jax.device_put(topology_arrays(topology))
    none = np.zeros((2, *t.capacity.shape), np.float32)
    key = jax.random.key(0)
    turn = jax.jit(lambda w, core, moment: take_turn(policy, t, w, core, None, None, unpack_events(moment), key))
    rough = replace(CALM, failures_per_day=4000.0, repair_s=1.0)
    scenarios = [draw(topology, random_work(seed), seed, rough, job_slots=SLOTS) for seed in range(3)]
    traces, _ = run_traces(stack(scenarios), scenarios, policy)
    woken = 0
    for seed, (scenario, trace) in enumerate(zip(scenarios, traces, strict=True)):
        work = scenario.workload
        w = workload_arrays(topology, work)
        w = jax.device_put(replace(w, fan=4, **dict.fromkeys(JOB_ARRAYS)))
        core = jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), state.empty(t, w, SLOTS))
        instants = by_instants(trace)
        assert len(instants) > 6 * JOBS
        arrived, wakes_s = 0, math.inf
        for now_s, (kind, job, gang, device), expected in instants:
            tasks = w.kernel.shape[1]
            if kind == EVENT_ARRIVAL:
                event = SchedulerEvent(
                    happened.ARRIVED, graph=work.jobs[arrived].graph, priority=work.jobs[arrived].priority
                )
                arrived += 1
            elif kind == EVENT_FINISHED:
                slot = np.asarray(core.job).tolist().index(job)
                event = SchedulerEvent(happened.FINISHED, slot * tasks + gang)
            elif kind == EVENT_WOKEN:
                assert now_s == pytest.approx(wakes_s, abs=1e-4), "the runtime would not have woken then"
                event = SchedulerEvent(happened.WOKEN)
                woken += 1
            else:
                event = SchedulerEvent(happened.FAILED if kind == EVENT_FAILURE else happened.REPAIRED, device)
            core, _, data = turn(w, core, pack_events([event], now_s, none))
            answer = TurnCommands.of(np.asarray(data), core.lane_holds.shape[0], 1)
            wakes_s = now_s + answer.wake_s
            began = [(int(answer.jobs[gang // tasks]), gang % tasks, device) for gang, [device] in answer.started]
            assert began == expected, f"seed {seed}, at {now_s} s"
        assert turn._cache_size() == 1, "one program will do"
        assert int(core.jobs_done) == JOBS and FINISHED not in np.asarray(core.status)
    assert woken > JOBS
