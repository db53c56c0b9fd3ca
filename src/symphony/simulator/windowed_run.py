"""Runs from one counter window to the next, so that a learner can update beliefs about speeds in between.

The true speeds, the graphs and all disturbances stay as they are. One compiled program serves all windows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.problem.speeds import PACKED, BeliefArrays
from symphony.scheduling.feasible import per_gang
from symphony.scheduling.indexing import BoolScalar, FloatScalar, IntScalar
from symphony.scheduling.policy import Policy
from symphony.simulator import instant_effects
from symphony.simulator.contention import ContentionModel
from symphony.simulator.records import RunRecord
from symphony.simulator.rollout import Carry, StepLog, begin, finished, run_or_skip, step, without_arrivals
from symphony.simulator.run import Trace, record
from symphony.simulator.scenarios import Scenario, ScenarioArrays

STEPS_PER_CALL = 64


class JobSnapshot(eqx.Module):
    """What a scheduler knows of its jobs at an instant."""

    now_s: FloatScalar
    windows: IntScalar
    over: BoolScalar
    job: Int[Array, " gangs"]
    kernel: Int[Array, " gangs"]
    status: Int[Array, " gangs"]
    units_left: Float[Array, " gangs"]  # as the gangs report it
    holds: Int[Array, " lanes"]
    since_s: Float[Array, " lanes"]  # when the worker started
    setup: Bool[Array, " lanes"]


start = eqx.filter_jit(begin)


@eqx.filter_jit
def with_beliefs(
    s: ScenarioArrays, carry: Carry, policy: Policy, new_beliefs: BeliefArrays
) -> tuple[ScenarioArrays, Carry]:
    """The same run with new beliefs about speeds: profiles are set to their means, and the policy prepares again."""
    believed = jnp.asarray(new_beliefs.mean.unit_s)[..., PACKED]
    w = s.workload
    seconds = jnp.where(jnp.isfinite(w.time_fixed) & (believed > 0), believed, w.time_fixed).astype(w.time_fixed.dtype)
    workload = replace(w, time_fixed=seconds)
    prepared = policy.prepare(s.topology, without_arrivals(workload))
    return replace(s, workload=workload, believed=new_beliefs), replace(carry, prepared=prepared)


@eqx.filter_jit
def run_to_window(
    s: ScenarioArrays, carry: Carry, policy: Policy, contention: ContentionModel, window: IntScalar
) -> tuple[Carry, StepLog, BoolScalar]:
    """Up to STEPS_PER_CALL steps, not beyond the end of `window`. Also returns whether that, or the run, has ended."""

    def advance(carry: Carry) -> tuple[Carry, StepLog]:
        carry, log = step(carry, s, policy, contention, record=True, alone=True)
        assert log is not None
        return carry, log

    def ended(carry: Carry) -> BoolScalar:
        return (carry.world.core.windows >= window) | finished(carry.world, s)

    def body(carry: Carry, _: None) -> tuple[Carry, StepLog]:
        return run_or_skip(~ended(carry), advance, carry, carry)

    carry, log = jax.lax.scan(body, carry, None, length=STEPS_PER_CALL)
    return carry, log, ended(carry)


@eqx.filter_jit
def snapshot(s: ScenarioArrays, carry: Carry) -> JobSnapshot:
    world, core = carry.world, carry.world.core
    tasks = s.workload.kernel.shape[1]
    return JobSnapshot(
        now_s=world.now.total,
        windows=core.windows,
        over=finished(world, s),
        job=jnp.repeat(core.job, tasks),
        kernel=per_gang(core, jnp.asarray(s.workload.kernel)),
        status=core.status.astype(jnp.int32),
        units_left=instant_effects.units_left(world, s),
        holds=core.lane_holds,
        since_s=core.lane_since.total,
        setup=core.lane_setup,
    )


def run_record(scenario: Scenario, carry: Carry, logs: list[StepLog], policy: str) -> RunRecord:
    """The record of a run, from the logs of its windows."""
    log = jax.tree.map(lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *logs)
    host: Any = jax.tree.map(np.asarray, replace(carry, key=jax.random.key_data(carry.key)))
    return record(scenario, Trace(log, host), policy, 0.0)
