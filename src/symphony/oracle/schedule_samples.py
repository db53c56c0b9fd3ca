"""Schedules drawn from a policy that learned: many runs of one scenario side by side, each with a luck of its own."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.oracle.bounds import Objective
from symphony.oracle.instance import Instance
from symphony.oracle.replay import Plan, linear_order, shared_plan
from symphony.policies import Learned
from symphony.scheduling.state import DONE, PLACING, Core
from symphony.simulator.contention import Bottleneck, ContentionModel
from symphony.simulator.rollout import Carry, begin, finished, step
from symphony.simulator.scenarios import ScenarioArrays


@dataclass(frozen=True)
class SampledSchedule:
    """What a drawn run did, and what it came to."""

    value_s: float  # the objective; inf if it did not end
    plan: Plan


class _State(eqx.Module):
    carry: Carry
    devices: Array  # i32[lines, W]: where each gang was placed last
    turn: Array  # i32[lines]: its sequence number then
    steps: Array


@eqx.filter_jit
def _draw(s: ScenarioArrays, policy: Learned, keys: Array, contention: ContentionModel, most: Array) -> _State:
    """Runs of one scenario, side by side, until the last has ended."""
    w = s.workload
    tasks, lines = w.kernel.shape[1], w.graph.shape[0] * w.kernel.shape[1]

    def fresh(key: Array) -> _State:
        devices = jnp.full((lines, w.max_workers), -1, jnp.int32)
        return _State(begin(s, policy, key), devices, jnp.zeros(lines, jnp.int32), jnp.asarray(0, jnp.int32))

    def move(state: _State) -> _State:
        # A gang that is placed in a step holds its devices until the next one at least.
        carry, _ = step(state.carry, s, policy, contention, record=False)
        line = _trace_gangs(carry.world.core, tasks, lines)
        devices = state.devices.at[line].set(carry.world.core.device.astype(jnp.int32), mode="drop")
        turn = state.turn.at[line].set(carry.world.core.sequence, mode="drop")
        return _State(carry, devices, turn, state.steps + 1)

    def going(state: _State) -> Array:
        over = jax.vmap(lambda carry: finished(carry.world, s))(state.carry)
        return ~over.all() & (state.steps[0] < most)

    return jax.lax.while_loop(going, jax.vmap(move), jax.vmap(fresh)(keys))


def _trace_gangs(core: Core, tasks: int, none: int) -> Array:
    """The number in the trace of every gang that holds devices [G]; `none` for others."""
    gang = jnp.arange(core.status.shape[0])
    holds = (core.status >= PLACING) & (core.status < DONE)
    return jnp.where(holds, core.job[gang // tasks] * tasks + gang % tasks, none)


class Sampler:
    """Draws schedules of one instance, in batches of one size so that one program serves all."""

    def __init__(
        self,
        i: Instance,
        learned: Learned,
        objective: Objective,
        *,
        contention: ContentionModel | None = None,
        batch: int,
    ) -> None:
        self.i, self.objective, self.batch = i, objective, batch
        self.policy = Learned(learned.network, draws=True)
        self.contention = contention or Bottleneck()
        self.arrays: ScenarioArrays = jax.device_put(i.arrays)
        tasks = i.arrays.workload.kernel.shape[1]
        self.line = np.asarray([job * tasks + gang for job, gang in i.who])
        # A drawn run may wait where a plan does not.
        self.most = 4000 + 256 * (len(i) + sum(map(len, i.inputs))) + 256 * len(i.scenario.phases)

    def __call__(self, key: Array) -> list[SampledSchedule]:
        """A batch of schedules; equal keys give equal ones."""
        keys = jax.random.split(key, self.batch)
        state = _draw(self.arrays, self.policy, keys, self.contention, jnp.asarray(self.most, jnp.int32))
        world, jobs = state.carry.world, len(self.i.scenario.workload.jobs)
        done = np.asarray(world.core.jobs_done >= jobs)
        spent = world.now if self.objective == "makespan" else world.completion_sum
        total = np.asarray(spent.whole, float) + np.asarray(spent.part, float)
        value = np.where(done, total if self.objective == "makespan" else total / jobs, np.inf)
        devices = np.asarray(state.devices)[:, self.line, : int(self.i.workers.max())]
        turn = np.asarray(state.turn)[:, self.line]
        return [
            SampledSchedule(float(value[k]), shared_plan(devices[k], linear_order(self.i, turn[k].astype(float))))
            for k in range(self.batch)
        ]


def expected_best(values: np.ndarray, count: int) -> float:
    """The least of so many of the values, on average over which of them are drawn."""
    ranked, total = np.sort(values), len(values)
    chance, left = count / total, 1.0  # that the best is among them; that no better one is
    mean = 0.0
    for better in range(total - count + 1):
        mean += left * chance * ranked[better]
        left *= 1 - chance
        chance = count / (total - better - 1) if total > better + 1 else 1.0
    return float(mean)
