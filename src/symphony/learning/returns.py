"""Advantages of decisions: the cost of the run after a decision, against the expected cost.

Runs of one scenario have the same jobs at the same times, so their mean cost from some time on is an input-dependent
baseline (Mao et al., 2019), which removes the randomness of arrivals. The remaining differences are partly due to
earlier decisions: a run that is behind stays behind for a while. Its state shows that, and a critic learns it:

    expected cost from t on = mean over the runs of the scenario + critic(state) − mean of critic over those runs

So the critic need not know future arrivals, and the mean need not know the state of the run. Advantages are the
generalised ones (Schulman et al., 2016) of this expectation. Either part can be used alone: the mean, or the critic,
which then has to predict everything (A2C).
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from symphony.learning.rollouts import Decisions
from symphony.problem.errors import InputError

GROUP, CRITIC, BOTH = "group", "critic", "both"  # baseline: mean over runs, critic, or both
COST_SCALE = 32.0  # gang times; in units of jobs times this, costs of runs of a scenario differ by about 1


class Advantages(eqx.Module):
    """For decisions [B, N]; 0 where there is none."""

    advantage: Array  # of unit mean square in each scenario
    target: Array  # for the critic


def advantages(d: Decisions, unit_s: Array, group: int, memory: float = 1.0, baseline: str = BOTH) -> Advantages:
    """Advantages and the critic's targets. The `group` runs of a scenario are adjacent.

    `unit_s` [B]: typical time of a gang. `memory`: the λ of generalised advantages, per mean completion time of a job;
    1 = no decay. `baseline`: GROUP, CRITIC or BOTH.
    """
    if baseline not in (GROUP, CRITIC, BOTH):
        raise InputError(f"the baseline is {baseline!r}", hint=f"use {GROUP}, {CRITIC} or {BOTH}")
    runs = d.time.shape[0]
    kept = d.kept
    time = jnp.where(kept, d.time, d.end[:, None])
    unit = COST_SCALE * unit_s
    cost = jnp.where(kept, d.cost, d.total[:, None]) / unit[:, None]
    total = d.total / unit
    critic = jnp.where(kept, d.made.value, 0) if baseline != GROUP else jnp.zeros_like(cost)  # 0 at the end

    def expected(run: Array) -> tuple[Array, Array]:
        """Means over the group at the times of one run's decisions: cost to come, and the critic's value [N]."""
        others = run // group * group + jnp.arange(group)

        def at(other: Array) -> tuple[Array, Array]:
            times = jnp.concatenate([jnp.zeros(1), time[other], d.end[None, other]])
            costs = jnp.concatenate([jnp.zeros(1), cost[other], total[None, other]])
            values = jnp.concatenate([critic[other, :1], critic[other], jnp.zeros(1)])
            return total[other] - jnp.interp(time[run], times, costs), jnp.interp(time[run], times, values)

        to_come, values = jax.lax.map(at, others)
        return to_come.mean(axis=0), values.mean(axis=0)

    value = critic
    if baseline != CRITIC:
        to_come, mean_critic = jax.lax.map(expected, jnp.arange(runs), batch_size=min(runs, 256))
        value = jnp.where(kept, -to_come + critic - mean_critic, 0)
    later = jnp.concatenate([value[:, 1:], jnp.zeros((runs, 1))], axis=1)
    spent = jnp.concatenate([cost[:, 1:], total[:, None]], axis=1) - cost
    difference = jnp.where(kept, later - spent - value, 0)
    # The mean completion time of a job is the time scale on which decisions matter.
    lasts = jnp.concatenate([time[:, 1:], d.end[:, None]], axis=1) - time
    decay = memory ** (lasts / jnp.maximum(d.stay_s, 1e-12)[:, None])

    def back(ahead: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        difference, decay = now
        ahead = difference + decay * ahead
        return ahead, ahead

    _, advantage = jax.lax.scan(back, jnp.zeros(runs), (difference.T, decay.T), reverse=True)
    advantage = jnp.where(kept, advantage.T, 0)
    target = jnp.where(kept, d.made.value + advantage, 0)
    # Scenarios differ in length and load by orders of magnitude; all get equal weight.
    square = (advantage**2).reshape(runs // group, -1).sum(axis=1)
    spread = jnp.sqrt(square / jnp.maximum(kept.reshape(runs // group, -1).sum(axis=1), 1))
    return Advantages(advantage / jnp.repeat(jnp.maximum(spread, 1e-12), group)[:, None], target)
