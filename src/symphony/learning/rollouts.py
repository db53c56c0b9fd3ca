"""Runs to learn from: many scenarios in parallel, of which only the decisions are kept.

B runs, N decisions kept of each. A run takes several steps for every decision. The inputs of a decision are stored when
it is made, so that memory does not grow with the steps. The network costs more than the rest of a step, and under
`vmap` it runs for all runs if one needs it. So runs that have reached a decision wait until most others have too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from symphony.estimation.tuning import Tuning
from symphony.policies.features import FeatureJacobian, Features, feature_jacobian
from symphony.policies.learned import Learned, Memory, action_at
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.errors import InputError
from symphony.scheduling.policy import Action, Observation, Policy
from symphony.scheduling.state import Core
from symphony.simulator.contention import ContentionModel
from symphony.simulator.rollout import begin, decision_due, finished, observe, step
from symphony.simulator.scenarios import ScenarioArrays, batch_axes
from symphony.simulator.world import World

MIN_WAITING_SHARE = 0.5  # of the unfinished runs: when so many wait for a decision, the policy is called
COMPLETION, SLOWDOWN, MAKESPAN = "completion", "slowdown", "makespan"


class Decision(eqx.Module):
    """Inputs and outcome of a decision."""

    features: Features
    memory: Memory  # before it
    action: Array  # i32
    log_prob: Array  # f: of the action
    value: Array  # f: of the critic
    jacobian: FeatureJacobian | None  # of the features by the filter's factors, if these are trained too


class Decisions(eqx.Module):
    """The decisions of runs [B, N], in order."""

    made: Decision
    time: Array  # f: seconds since the start
    cost: Array  # f: of the run until then
    count: Array  # i32[B]: decisions kept
    end: Array  # f[B]: seconds at the end of the run
    total: Array  # f[B]: cost of the whole run
    stay_s: Array  # f[B]: mean completion time of a job

    @property
    def kept(self) -> Array:
        """Which entries hold a decision [B, N]."""
        return jnp.arange(self.time.shape[1]) < self.count[:, None]


class RecordingPolicy(Policy):
    """Decides as the learned policy does, and keeps the last decision in its state."""

    learned: Learned

    @property
    def tuning(self) -> Tuning:
        return self.learned.tuning

    def init(self, topology: TopologyArrays) -> Memory:
        """The policy's state, without a decision yet: its shapes depend on the scenario."""
        return self.learned.init(topology)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Any:
        return self.learned.prepare(topology, workload)

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """The policy's action; the state is its memory and the decision."""
        before, _ = state
        memory, output, log_prob, index, features = self.learned.consider(key, before, observation)
        counts = self.learned.network.sizes.counts
        jacobian = None if observation.background_slope is None else feature_jacobian(observation, *counts)
        decision = Decision(features, before, index, log_prob, output.value, jacobian)
        return (memory, decision), action_at(features, index)


def rates(objective: str, s: ScenarioArrays, core: Core) -> Array:
    """Cost per second of each job in the system, by job slot [S]."""
    if objective == COMPLETION:
        return jnp.ones(core.job.shape)
    if objective == SLOWDOWN:
        return 1 / jnp.asarray(s.workload.isolated)[core.graph]
    if objective == MAKESPAN:
        return jnp.full(core.job.shape, 1 / jnp.maximum((core.job >= 0).sum(), 1))
    raise InputError(f"the objective is {objective!r}", hint=f"use {COMPLETION}, {SLOWDOWN} or {MAKESPAN}")


def weighted_cost(weights: Array, s: ScenarioArrays, core: Core, here: Array, seconds: Array) -> Array:
    """Cost of the `seconds` before now for the jobs that were `here` [S], under weights of objectives.

    Slow-downs count times the mean isolated time of the graphs, the makespan times the number of jobs, so that all
    four are times of jobs in the system, of the same order.
    """
    isolated = jnp.asarray(s.workload.isolated)
    slower = isolated.mean() * rates(SLOWDOWN, s, core)
    so_far = (core.now.minus(core.arrived) - seconds / 2) / isolated[core.graph]
    all_jobs = rates(MAKESPAN, s, core) * s.workload.jobs
    each = jnp.stack([rates(COMPLETION, s, core), slower * so_far, all_jobs, slower])  # as in `OBJECTIVE_NAMES`
    return seconds * (jnp.where(here, each, 0).sum(axis=1) @ weights)


def roll_out(
    batch: ScenarioArrays,
    learned: Learned,
    keys: Array,
    contention: ContentionModel,
    objective: Array,
    keep: int,
    most_steps: int,
    axis: str | None = None,
) -> tuple[Decisions, World]:
    """Run every scenario of a batch to its end, or for `most_steps`; also returns the final worlds.

    `objective` [B, objectives]: weights for each run, which the policy sees, and by which costs are counted.

    `axis` names the axis over which several trainings are mapped, so that their loops end together. If each ended by
    itself, every step would copy all decisions.
    """
    axes = batch_axes(batch)

    def recording(weights: Array) -> RecordingPolicy:
        return RecordingPolicy(replace(learned, objective=weights))

    def started(s: ScenarioArrays, key: Array, weights: Array) -> Any:
        recorder = recording(weights)
        carry = begin(s, recorder, key)
        shape = jax.eval_shape(lambda: _decision_shape(s, recorder, carry))
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
        return replace(carry, policy_state=(carry.policy_state, blank))

    carry = jax.vmap(started, in_axes=(axes, 0, 0))(batch, keys, objective)
    runs = keys.shape[0]
    made = jax.tree.map(lambda x: jnp.zeros((runs, keep, *x.shape[1:]), x.dtype), carry.policy_state[1])
    empty = jnp.zeros((runs, keep))
    which = jnp.arange(runs)

    def moved(s: ScenarioArrays, carry: Any, weights: Array, asks: bool) -> tuple[Any, Array]:
        before = carry.world
        carry, _ = step(carry, s, recording(weights), contention, record=False, asks=asks)
        after = carry.world
        here = (after.core.job >= 0) & (after.core.job == before.core.job)
        return carry, weighted_cost(weights, s, after.core, here, after.now.minus(before.now))

    def all_moved(carry: Any, asks: bool) -> tuple[Any, Array]:
        return jax.vmap(partial(moved, asks=asks), in_axes=(axes, 0, 0))(batch, carry, objective)

    def counted(what: Callable[[World, ScenarioArrays], Array], carry: Any) -> Array:
        number = jax.vmap(what, in_axes=(0, axes))(carry.world, batch).sum()
        return number if axis is None else jax.lax.psum(number, axis)

    def unfinished(carry: Any) -> Array:
        return counted(lambda world, s: ~finished(world, s), carry)

    def most_wait(carry: Any) -> Array:
        return counted(decision_due, carry) >= MIN_WAITING_SHARE * unfinished(carry)

    def without_policy(state: Any) -> Any:
        carry, total, steps, _ = state
        carry, spent = all_moved(carry, asks=False)
        return carry, total + spent, steps + 1, most_wait(carry)

    def body(state: Any) -> Any:
        carry, made, time, cost, total, steps = state
        carry, total, steps, _ = jax.lax.while_loop(
            lambda state: ~state[-1] & (state[-2] < most_steps), without_policy, (carry, total, steps, most_wait(carry))
        )
        before = carry.world
        carry, spent = all_moved(carry, asks=True)
        number = before.core.decisions
        at = jnp.where(carry.world.core.decisions > number, number, keep)

        def write(x: Array, new: Array) -> Array:
            return x.at[which, at].set(new, mode="drop")

        made = jax.tree.map(write, made, carry.policy_state[1])
        # A decision is made before time moves.
        time, cost = write(time, before.now.total), write(cost, total)
        return carry, made, time, cost, total + spent, steps + 1

    start = (carry, made, empty, empty, jnp.zeros(runs), 0)
    carry, made, time, cost, total, _ = jax.lax.while_loop(
        lambda state: (unfinished(state[0]) > 0) & (state[-1] < most_steps), body, start
    )
    world = carry.world
    count = jnp.minimum(world.core.decisions, keep)
    stay_s = world.completion_sum.total / jnp.maximum(world.core.jobs_done, 1)
    return Decisions(made, time, cost, count, world.now.total, total, stay_s), world


def _decision_shape(s: ScenarioArrays, recorder: RecordingPolicy, carry: Any) -> Decision:
    """A decision, of which only the shape is used."""
    observation = observe(carry.world, s, False, carry.prepared)
    state, _ = recorder.decide(carry.key, (carry.policy_state, None), observation)
    return state[1]
