"""Local search from the plans of all baselines; every candidate is simulated.

It makes no assumption about a scenario: contention, tenants, failures and transfers are the simulator's. So every value
found is one that a policy could reach; the search cannot show that none is better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.oracle.bounds import Objective
from symphony.oracle.instance import Instance
from symphony.oracle.replay import Plan, Script, linear_order, shared_plan, tables
from symphony.scheduling.indexing import put
from symphony.simulator.contention import Bottleneck, ContentionModel
from symphony.simulator.rollout import Carry, begin, finished, step
from symphony.simulator.scenarios import ScenarioArrays
from symphony.simulator.world import World

SIMULATION_BATCH = 64  # candidates that are simulated at once
SEARCH_TEMPERATURE = 0.02  # at first, a candidate worse by this fraction may replace the current plan
MAX_STALE_ROUNDS = 12  # rounds without a new best, after which the search returns to the best
WINDOW_HORIZONS = 4  # length of counter windows, which plans do not read, in horizons


@dataclass(frozen=True)
class PlanOutcome:
    """A plan's result in the simulator."""

    value_s: float  # the objective; inf if the plan gets stuck
    start_s: np.ndarray  # f[N]
    finish_s: np.ndarray  # f[N]


class _State(eqx.Module):
    carry: Carry
    start: Array  # f[lines]
    finish: Array  # f[lines]
    steps: Array


@eqx.filter_jit
def _run(s: ScenarioArrays, scripts: Script, contention: ContentionModel, max_steps: Array) -> _State:
    """Simulate several plans on one scenario until the last has finished."""
    tasks = s.workload.kernel.shape[1]
    lines = scripts.rank.shape[1]

    def fresh(script: Script) -> _State:
        carry = begin(s, script, jax.random.key(0))
        return _State(carry, jnp.zeros(lines), jnp.zeros(lines), jnp.asarray(0, jnp.int32))

    def move(state: _State, script: Script) -> _State:
        carry, log = step(state.carry, s, script, contention, record=True)
        assert log is not None
        now = log.before.total
        (job, gang, *_), (left_job, left_gang, _) = log.started, log.left
        return _State(
            carry,
            put(state.start, job * tasks + gang, now, job >= 0),
            put(state.finish, left_job * tasks + left_gang, now, left_job >= 0),
            state.steps + 1,
        )

    start = jax.vmap(fresh)(scripts)
    return until_finished(s, start, lambda state: jax.vmap(move)(state, scripts), max_steps)


BatchState = TypeVar("BatchState", bound=Any)  # a batch of states with `carry` and `steps`


def until_finished(
    s: ScenarioArrays, start: BatchState, move: Callable[[BatchState], BatchState], max_steps: Array
) -> BatchState:
    """Repeat `move` until all runs of a batch have finished, or `max_steps` times."""

    def unfinished(state: BatchState) -> Array:
        done = jax.vmap(lambda carry: finished(carry.world, s))(state.carry)
        return ~done.all() & (state.steps[0] < max_steps)

    return jax.lax.while_loop(unfinished, move, start)


def objective_values(world: World, objective: Objective, jobs: int) -> np.ndarray:
    """The objective of each run of a batch, in seconds [B]; inf if it did not finish."""
    done = np.asarray(world.core.jobs_done >= jobs) & ~np.asarray(world.stalled)
    amount = world.now if objective == "makespan" else world.completion_sum
    total = np.asarray(amount.whole, float) + np.asarray(amount.part, float)
    return np.where(done, total if objective == "makespan" else total / jobs, np.inf)


class PlanSimulator:
    """Simulates plans of one instance in batches of one size, with one compiled program."""

    def __init__(
        self,
        i: Instance,
        objective: Objective,
        *,
        horizon_s: float,
        contention: ContentionModel | None = None,
        batch: int = SIMULATION_BATCH,
    ) -> None:
        """`horizon_s`: the approximate length of a run."""
        self.i, self.objective, self.batch = i, objective, batch
        self.contention = contention or Bottleneck()
        s = i.arrays
        if not i.scenario.disturbances.offer_at_windows and WINDOW_HORIZONS * horizon_s > s.window:
            s = replace(s, window=np.float64(WINDOW_HORIZONS * horizon_s))
        self.arrays: ScenarioArrays = jax.device_put(s)
        # Far more than needed to place, fetch, start and finish every gang.
        self.max_steps = 1000 + 64 * (len(i) + sum(map(len, i.inputs))) + 64 * len(i.scenario.phases)

    def __call__(self, plans: Sequence[Plan]) -> list[PlanOutcome]:
        """Simulate at most a batch of plans."""
        filled = [*plans, *[plans[-1]] * (self.batch - len(plans))]
        scripts = Script(**{name: jnp.asarray(table) for name, table in tables(self.i, filled).items()})
        state = _run(self.arrays, scripts, self.contention, jnp.asarray(self.max_steps, jnp.int32))
        value = objective_values(state.carry.world, self.objective, len(self.i.scenario.workload.jobs))
        start, finish = np.asarray(state.start)[:, self.i.line], np.asarray(state.finish)[:, self.i.line]
        return [PlanOutcome(float(value[k]), start[k], finish[k]) for k in range(len(plans))]


def improve(
    run: PlanSimulator,
    plans: Sequence[Plan],
    *,
    time_s: float,
    rounds: int | None = None,
    seed: int = 0,
    progress: Callable[[float, float], None] | None = None,
) -> tuple[Plan, PlanOutcome, int]:
    """Local search from the best of the plans. Returns the best plan, its outcome and the number of candidates.

    Each round simulates a batch of neighbours of the current plan and moves to the best of them; early in the search,
    also to one that is slightly worse. `progress` is called with the share of the time used and the best value so far.
    """
    rng = np.random.default_rng(seed)
    evaluated = [
        (outcome, plan) for some in chunks(plans, run.batch) for outcome, plan in zip(run(some), some, strict=True)
    ]
    best = current = min(evaluated, key=lambda x: x[0].value_s)
    began, turn, stale = time.perf_counter(), 0, 0  # compilation has finished
    while (rounds is None or turn < rounds) and (elapsed := (time.perf_counter() - began) / time_s) < 1:
        batch = [neighbour(run.i, current[1], current[0], rng) for _ in range(run.batch)]
        turn += 1
        candidate = min(zip(run(batch), batch, strict=True), key=lambda x: x[0].value_s)
        temperature = SEARCH_TEMPERATURE * (1 - (elapsed if rounds is None else turn / rounds))
        if candidate[0].value_s < current[0].value_s * (1 + temperature * rng.random()):
            current = candidate
        stale += 1
        if current[0].value_s < best[0].value_s:
            best, stale = current, 0
        elif stale >= MAX_STALE_ROUNDS:
            current, stale = best, 0
        if progress is not None:
            progress(min(elapsed, 1.0), best[0].value_s)
    return best[1], best[0], turn * run.batch


def chunks(plans: Sequence[Plan], size: int) -> list[Sequence[Plan]]:
    return [plans[k : k + size] for k in range(0, len(plans), size)]


def neighbour(i: Instance, plan: Plan, outcome: PlanOutcome, rng: np.random.Generator) -> Plan:
    """A plan with a few random changes, most of them on the critical path."""
    devices, key = plan.devices.copy(), plan.rank.astype(float)
    path = critical(i, plan, outcome)
    for _ in range(1 + min(rng.geometric(0.6), 6) - 1 if rng.random() < 0.9 else 1 + rng.integers(2, 10)):
        gang = int(rng.choice(path)) if rng.random() < 0.7 else int(rng.integers(len(i)))
        match rng.integers(4):
            case 0:
                _reassign(i, devices, gang, rng)
            case 1:  # a little earlier or later
                key[gang] += rng.normal(0, max(2.0, 0.1 * len(i)))
            case 2:
                _reassign(i, devices, gang, rng)
                key[gang] += rng.normal(0, max(2.0, 0.1 * len(i)))
            case _:  # two gangs that run at about the same time are swapped
                near = np.argsort(np.abs(outcome.start_s - outcome.start_s[gang]))[1 : 2 + len(i) // 8]
                other = int(rng.choice(near)) if len(near) else gang
                if _can_run_on(i, gang, devices[other]) and _can_run_on(i, other, devices[gang]):
                    devices[[gang, other]] = devices[[other, gang]]
                    key[gang], key[other] = key[other], key[gang]
    return shared_plan(devices, linear_order(i, key))


def _can_run_on(i: Instance, gang: int, devices: np.ndarray) -> bool:
    mine = devices[devices >= 0]
    return len(mine) == i.workers[gang] and bool(np.isfinite(i.seconds[gang, mine]).all())


def _reassign(i: Instance, devices: np.ndarray, gang: int, rng: np.random.Generator) -> None:
    """Move one worker of a gang to another device, drawn in proportion to speed."""
    able = np.isfinite(i.seconds[gang])
    able[devices[gang][devices[gang] >= 0]] = False
    if able.any():
        speed = np.where(able, 1 / i.seconds[gang], 0.0)
        devices[gang, rng.integers(i.workers[gang])] = rng.choice(len(able), p=speed / speed.sum())


def critical(i: Instance, plan: Plan, outcome: PlanOutcome) -> np.ndarray:
    """Gangs on a critical path, from the last to finish back: each waited for the next, a parent or a gang before it
    on one of its devices."""
    start, finish = outcome.start_s, outcome.finish_s
    gang = int(np.argmax(finish))
    path = [gang]
    while len(path) <= len(i):
        shares = np.isin(plan.devices, plan.devices[gang][plan.devices[gang] >= 0]).any(axis=1)
        before = np.flatnonzero(shares & (finish <= start[gang]) & (finish > 0))
        causes = [*i.parents[gang], *(before[[np.argmax(finish[before])]] if len(before) else [])]
        causes = [cause for cause in causes if cause != gang]
        if not causes:
            break
        gang = int(max(causes, key=lambda cause: finish[cause]))
        path.append(gang)
    return np.asarray(path)
