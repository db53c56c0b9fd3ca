"""A run in stretches: from the end of one counter window to the end of the next, with a look in between.

Whoever learns while a run goes on changes what policies are told of speeds. The truth, the graphs and all that has been
drawn stay as they are. One compiled program serves all stretches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.problem.speeds import PACKED, BeliefArrays
from symphony.scheduling.feasible import per_gang
from symphony.scheduling.policy import Policy
from symphony.simulator import instant_effects
from symphony.simulator.contention import ContentionModel
from symphony.simulator.records import RunRecord
from symphony.simulator.rollout import Carry, StepLog, begin, finished, step, without_arrivals
from symphony.simulator.run import Trace, record
from symphony.simulator.scenarios import Scenario, ScenarioArrays

STEPS_PER_CALL = 64  # of a call


class JobSnapshot(eqx.Module):
    """What a scheduler knows of its jobs at an instant. G gangs, L lanes."""

    now_s: Array  # f[]
    windows: Array  # i32[]
    over: Array  # bool[]
    job: Array  # i32[G]
    kernel: Array  # i32[G]
    status: Array  # i32[G]
    units_left: Array  # f[G]: as the gangs report it
    holds: Array  # i32[L]
    since_s: Array  # f[L]: when the worker started
    setup: Array  # bool[L]


@eqx.filter_jit
def start(s: ScenarioArrays, policy: Policy, key: Array) -> Carry:
    """A run before its first step."""
    return begin(s, policy, key)


@eqx.filter_jit
def with_beliefs(
    s: ScenarioArrays, carry: Carry, policy: Policy, new_beliefs: BeliefArrays
) -> tuple[ScenarioArrays, Carry]:
    """The same run, where policies are told these speeds: profiles follow them, and what was prepared from profiles."""
    believed = jnp.asarray(new_beliefs.mean.unit_s)[..., PACKED]
    w = s.workload
    seconds = jnp.where(jnp.isfinite(w.time_fixed) & (believed > 0), believed, w.time_fixed).astype(w.time_fixed.dtype)
    workload = replace(w, time_fixed=seconds)
    prepared = policy.prepare(s.topology, without_arrivals(workload))
    return replace(s, workload=workload, believed=new_beliefs), replace(carry, prepared=prepared)


@eqx.filter_jit
def run_to_window(
    s: ScenarioArrays, carry: Carry, policy: Policy, contention: ContentionModel, window: Array
) -> tuple[Carry, StepLog, Array]:
    """Up to STEPS steps, not beyond the end of a window of that number. Also whether that, or the run, is over."""

    def on(carry: Carry) -> tuple[Carry, StepLog]:
        carry, log = step(carry, s, policy, contention, record=True, alone=True)
        assert log is not None
        return carry, log

    said = jax.eval_shape(on, carry)[1]
    nothing = jax.tree.map(lambda x: jnp.full(x.shape, -1 if x.dtype == jnp.int32 else 0, x.dtype), said)

    def there(carry: Carry) -> Array:
        return (carry.world.core.windows >= window) | finished(carry.world, s)

    def body(carry: Carry, _: None) -> tuple[Carry, StepLog]:
        return jax.lax.cond(there(carry), lambda carry: (carry, nothing), on, carry)

    carry, log = jax.lax.scan(body, carry, None, length=STEPS_PER_CALL)
    return carry, log, there(carry)


@eqx.filter_jit
def snapshot(s: ScenarioArrays, carry: Carry) -> JobSnapshot:
    """What may be known now."""
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
    """The records of a run, from the logs of its stretches."""
    log = jax.tree.map(lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *logs)
    host: Any = jax.tree.map(np.asarray, replace(carry, key=jax.random.key_data(carry.key)))
    return record(scenario, Trace(log, host), policy, 0.0)
