"""The best that is known: plans of all baselines, improved by local search, each candidate run in the simulator.

Nothing is assumed of a scenario: contention, tenants, failures and transfers are what the simulator makes of them, with
the true state. So a value found here is one that a policy could reach; that none could do better, it cannot say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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

SIMULATION_BATCH = 64  # candidates side by side
SEARCH_TEMPERATURE = 0.02  # at first, a candidate so much worse than the current plan may replace it
MAX_STALE_ROUNDS = 12  # rounds without a new best, after which the search goes back to the best
WINDOW_HORIZONS = 4  # counter windows are made so many horizons long: a plan does not read them


@dataclass(frozen=True)
class PlanOutcome:
    """What a plan came to in the simulator."""

    value_s: float  # the objective; inf if the plan gets stuck
    start_s: np.ndarray  # f[N]
    finish_s: np.ndarray  # f[N]


class _State(eqx.Module):
    carry: Carry
    start: Array  # f[lines]
    finish: Array  # f[lines]
    steps: Array


@eqx.filter_jit
def _run(s: ScenarioArrays, scripts: Script, contention: ContentionModel, most: Array) -> _State:
    """Several plans on one scenario, side by side, until the last has ended."""
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

    def going(state: _State) -> Array:
        over = jax.vmap(lambda carry: finished(carry.world, s))(state.carry)
        return ~over.all() & (state.steps[0] < most)

    return jax.lax.while_loop(going, lambda state: jax.vmap(move)(state, scripts), jax.vmap(fresh)(scripts))


class PlanSimulator:
    """Plans of one instance, run in batches of one size so that one program serves all."""

    def __init__(
        self,
        i: Instance,
        objective: Objective,
        *,
        horizon_s: float,
        contention: ContentionModel | None = None,
        batch: int = SIMULATION_BATCH,
    ) -> None:
        """`horizon_s`: about how long a run takes."""
        self.i, self.objective, self.batch = i, objective, batch
        self.contention = contention or Bottleneck()
        s = i.arrays
        if not i.scenario.disturbances.offer_at_windows and WINDOW_HORIZONS * horizon_s > s.window:
            s = replace(s, window=np.float64(WINDOW_HORIZONS * horizon_s))
        self.arrays: ScenarioArrays = jax.device_put(s)
        tasks = s.workload.kernel.shape[1]
        self.line = np.asarray([job * tasks + gang for job, gang in i.who])
        # Far more than a plan that gets on needs: every gang is placed, fetched, started and left.
        self.most = 1000 + 64 * (len(i) + sum(map(len, i.inputs))) + 64 * len(i.scenario.phases)

    def __call__(self, plans: Sequence[Plan]) -> list[PlanOutcome]:
        """Run the plans; at most as many as a batch holds."""
        filled = [*plans, *[plans[-1]] * (self.batch - len(plans))]
        scripts = Script(**{name: jnp.asarray(table) for name, table in tables(self.i, filled).items()})
        state = _run(self.arrays, scripts, self.contention, jnp.asarray(self.most, jnp.int32))
        world = state.carry.world
        jobs = len(self.i.scenario.workload.jobs)
        done = np.asarray(world.core.jobs_done >= jobs) & ~np.asarray(world.stalled)
        spent = world.now if self.objective == "makespan" else world.completion_sum
        total = np.asarray(spent.whole, float) + np.asarray(spent.part, float)
        value = np.where(done, total if self.objective == "makespan" else total / jobs, np.inf)
        start, finish = np.asarray(state.start)[:, self.line], np.asarray(state.finish)[:, self.line]
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
    """Local search from the best of some plans. Also returns how many candidates were run.

    Each round runs a batch of neighbours of the current plan and goes to the best of them, also to a worse one while
    the search is young. `progress` is told the share of the time that has gone, and the best value so far.
    """
    rng = np.random.default_rng(seed)
    known = [
        (outcome, plan) for some in _chunks(plans, run.batch) for outcome, plan in zip(run(some), some, strict=True)
    ]
    best = current = min(known, key=lambda x: x[0].value_s)
    began, turn, stale = time.perf_counter(), 0, 0  # compilation is over by now
    while (rounds is None or turn < rounds) and (gone := (time.perf_counter() - began) / time_s) < 1:
        batch = [neighbour(run.i, current[1], current[0], rng) for _ in range(run.batch)]
        turn += 1
        found = min(zip(run(batch), batch, strict=True), key=lambda x: x[0].value_s)
        warmth = SEARCH_TEMPERATURE * (1 - (gone if rounds is None else turn / rounds))
        if found[0].value_s < current[0].value_s * (1 + warmth * rng.random()):
            current = found
        stale += 1
        if current[0].value_s < best[0].value_s:
            best, stale = current, 0
        elif stale >= MAX_STALE_ROUNDS:
            current, stale = best, 0
        if progress is not None:
            progress(min(gone, 1.0), best[0].value_s)
    return best[1], best[0], turn * run.batch


def _chunks(plans: Sequence[Plan], size: int) -> list[Sequence[Plan]]:
    return [plans[k : k + size] for k in range(0, len(plans), size)]


def neighbour(i: Instance, plan: Plan, outcome: PlanOutcome, rng: np.random.Generator) -> Plan:
    """A plan that differs in a few places, most of them on the path that decides when everything ends."""
    devices, key = plan.devices.copy(), plan.rank.astype(float)
    path = critical(i, plan, outcome)
    for _ in range(1 + min(rng.geometric(0.6), 6) - 1 if rng.random() < 0.9 else 1 + rng.integers(2, 10)):
        gang = int(rng.choice(path)) if rng.random() < 0.7 else int(rng.integers(len(i)))
        match rng.integers(4):
            case 0:
                _reassign(i, devices, gang, rng)
            case 1:  # earlier or later, near by
                key[gang] += rng.normal(0, max(2.0, 0.1 * len(i)))
            case 2:
                _reassign(i, devices, gang, rng)
                key[gang] += rng.normal(0, max(2.0, 0.1 * len(i)))
            case _:  # two that run at about the same time swap places
                near = np.argsort(np.abs(outcome.start_s - outcome.start_s[gang]))[1 : 2 + len(i) // 8]
                other = int(rng.choice(near)) if len(near) else gang
                if _can_run_on(i, gang, devices[other]) and _can_run_on(i, other, devices[gang]):
                    devices[[gang, other]] = devices[[other, gang]]
                    key[gang], key[other] = key[other], key[gang]
    return shared_plan(devices, linear_order(i, key))


def _can_run_on(i: Instance, gang: int, devices: np.ndarray) -> bool:
    """Whether a gang can run on another's devices."""
    mine = devices[devices >= 0]
    return len(mine) == i.workers[gang] and bool(np.isfinite(i.seconds[gang, mine]).all())


def _reassign(i: Instance, devices: np.ndarray, gang: int, rng: np.random.Generator) -> None:
    """One worker of a gang goes to another device, rather to a fast one."""
    able = np.isfinite(i.seconds[gang])
    able[devices[gang][devices[gang] >= 0]] = False
    if able.any():
        speed = np.where(able, 1 / i.seconds[gang], 0.0)
        devices[gang, rng.integers(i.workers[gang])] = rng.choice(len(able), p=speed / speed.sum())


def critical(i: Instance, plan: Plan, outcome: PlanOutcome) -> np.ndarray:
    """Gangs on a path back from the last to finish: each began when the next, a parent or a neighbour, ended."""
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
