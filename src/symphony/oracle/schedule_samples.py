"""Schedules sampled from a learned policy: many runs of one scenario, each with its own random key."""

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
from symphony.oracle.search import objective_values, until_finished
from symphony.policies import Learned
from symphony.policies.learned import first_come
from symphony.scheduling.state import DONE, PLACING, Core
from symphony.simulator.contention import Bottleneck, ContentionModel
from symphony.simulator.rollout import Carry, begin, step
from symphony.simulator.scenarios import ScenarioArrays


@dataclass(frozen=True)
class SampledSchedule:
    """The plan of a sampled run, and its result."""

    value_s: float  # the objective; inf if the run did not finish
    plan: Plan


class _State(eqx.Module):
    carry: Carry
    devices: Array  # i32[lines, W]: the last placement of each gang
    turn: Array  # i32[lines]: its sequence number in that
    steps: Array


@eqx.filter_jit
def _draw(s: ScenarioArrays, policy: Learned, keys: Array, contention: ContentionModel, max_steps: Array) -> _State:
    """Simulate one scenario with several keys until the last run has finished."""
    w = s.workload
    tasks, lines = w.kernel.shape[1], w.graph.shape[0] * w.kernel.shape[1]

    def fresh(key: Array) -> _State:
        devices = jnp.full((lines, w.max_workers), -1, jnp.int32)
        return _State(begin(s, policy, key), devices, jnp.zeros(lines, jnp.int32), jnp.asarray(0, jnp.int32))

    def move(state: _State) -> _State:
        # A gang that is placed in a step keeps its devices at least until the next step.
        carry, _ = step(state.carry, s, policy, contention, record=False)
        line = _trace_gangs(carry.world.core, tasks, lines)
        devices = state.devices.at[line].set(carry.world.core.device.astype(jnp.int32), mode="drop")
        turn = state.turn.at[line].set(carry.world.core.sequence, mode="drop")
        return _State(carry, devices, turn, state.steps + 1)

    return until_finished(s, jax.vmap(fresh)(keys), jax.vmap(move), max_steps)


def _trace_gangs(core: Core, tasks: int, none: int) -> Array:
    """The row of every gang that holds devices [G]; `none` for other gangs."""
    gang = jnp.arange(core.status.shape[0])
    holds = (core.status >= PLACING) & (core.status < DONE)
    return jnp.where(holds, core.job[gang // tasks] * tasks + gang % tasks, none)


class Sampler:
    """Samples schedules of one instance in batches of one size, with one compiled program."""

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
        self.policy = first_come(Learned(learned.network, draws=True))  # plans are replayed so
        self.contention = contention or Bottleneck()
        self.arrays: ScenarioArrays = jax.device_put(i.arrays)
        # A sampled run may wait where a plan does not.
        self.max_steps = 4000 + 256 * (len(i) + sum(map(len, i.inputs))) + 256 * len(i.scenario.phases)

    def __call__(self, key: Array) -> list[SampledSchedule]:
        """A batch of schedules; equal keys give equal schedules."""
        keys = jax.random.split(key, self.batch)
        state = _draw(self.arrays, self.policy, keys, self.contention, jnp.asarray(self.max_steps, jnp.int32))
        value = objective_values(state.carry.world, self.objective, len(self.i.scenario.workload.jobs))
        devices = np.asarray(state.devices)[:, self.i.line, : int(self.i.workers.max())]
        turn = np.asarray(state.turn)[:, self.i.line]
        return [
            SampledSchedule(float(value[k]), shared_plan(devices[k], linear_order(self.i, turn[k].astype(float))))
            for k in range(self.batch)
        ]


def expected_best(values: np.ndarray, count: int) -> float:
    """The expected minimum of `count` values drawn without replacement."""
    ranked, total = np.sort(values), len(values)
    chance, left = count / total, 1.0  # that this value is drawn if no better one is; that no better one is
    mean = 0.0
    for better in range(total - count + 1):
        mean += left * chance * ranked[better]
        left *= 1 - chance
        chance = count / (total - better - 1) if total > better + 1 else 1.0
    return float(mean)
