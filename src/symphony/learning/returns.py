"""What a decision was worth: what its run cost afterwards, against what was to be expected.

Runs of one scenario meet the same jobs at the same times. What they cost from some time on, on average, is known
without learning, and takes the luck of arrivals out (Mao et al., 2019: input-dependent baselines). What is left differs
by what was decided before that time, which is not this decision's merit either: a run that is behind stays behind for
a while. That can be seen in its state, and a critic learns it. Together,

    expected cost from t on = mean over the runs of the scenario + critic(state) − mean of critic over those runs

so that the critic need not know what will arrive, and the mean need not know how the run stands. Differences from
decision to decision of this expectation are then added up with weights that fall with time (generalised advantages;
Schulman et al., 2016). Either may be had alone: the mean, or the critic, which then has to know everything (A2C).
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from symphony.learning.rollouts import Decisions
from symphony.problem.errors import InputError

GROUP, CRITIC, BOTH = "group", "critic", "both"  # what is expected: the mean over runs, what the critic says, or both
COST_SCALE = 32.0  # gang times: in jobs times so long, what runs of a scenario cost differs by about one


class Advantages(eqx.Module):
    """Of decisions [B, N]; 0 where there is none."""

    advantage: Array  # to one unit of spread for each scenario
    target: Array  # what the critic should have said


def advantages(d: Decisions, unit_s: Array, group: int, memory: float = 1.0, baseline: str = BOTH) -> Advantages:
    """Advantages and the critic's targets. Runs of a scenario follow one another, `group` of them.

    `unit_s` [B]: the typical time of a gang. `memory`: share of a later surprise that is put
    down to a decision, for every time that a job takes on average; 1 = all of it. `baseline`: what is expected.
    """
    if baseline not in (GROUP, CRITIC, BOTH):
        raise InputError(f"the baseline is {baseline!r}", hint=f"use {GROUP}, {CRITIC} or {BOTH}")
    runs = d.time.shape[0]
    kept = d.kept
    time = jnp.where(kept, d.time, d.end[:, None])
    unit = COST_SCALE * unit_s
    cost = jnp.where(kept, d.cost, d.total[:, None]) / unit[:, None]
    total = d.total / unit
    # At the end there is nothing left to say.
    said = jnp.where(kept, d.made.value, 0) if baseline != GROUP else jnp.zeros_like(cost)

    def expected(run: Array) -> tuple[Array, Array]:
        """Means over the group, at the times of one run's decisions: cost to come, and what critics say [N]."""
        others = run // group * group + jnp.arange(group)

        def at(other: Array) -> tuple[Array, Array]:
            times = jnp.concatenate([jnp.zeros(1), time[other], d.end[None, other]])
            costs = jnp.concatenate([jnp.zeros(1), cost[other], total[None, other]])
            says = jnp.concatenate([said[other, :1], said[other], jnp.zeros(1)])
            return total[other] - jnp.interp(time[run], times, costs), jnp.interp(time[run], times, says)

        to_come, says = jax.lax.map(at, others)
        return to_come.mean(axis=0), says.mean(axis=0)

    value = said
    if baseline != CRITIC:
        to_come, says = jax.lax.map(expected, jnp.arange(runs), batch_size=min(runs, 256))
        value = jnp.where(kept, -to_come + said - says, 0)
    later = jnp.concatenate([value[:, 1:], jnp.zeros((runs, 1))], axis=1)
    spent = jnp.concatenate([cost[:, 1:], total[:, None]], axis=1) - cost
    surprise = jnp.where(kept, later - spent - value, 0)
    # A job's time in the system, on average over the group: the time scale on which decisions matter.
    lasts = jnp.concatenate([time[:, 1:], d.end[:, None]], axis=1) - time
    fade = memory ** (lasts / jnp.maximum(d.stay_s, 1e-12)[:, None])

    def back(ahead: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        surprise, fade = now
        ahead = surprise + fade * ahead
        return ahead, ahead

    _, advantage = jax.lax.scan(back, jnp.zeros(runs), (surprise.T, fade.T), reverse=True)
    advantage = jnp.where(kept, advantage.T, 0)
    target = jnp.where(kept, d.made.value + advantage, 0)
    # Scenarios differ in length and load by orders of magnitude; each counts alike.
    square = (advantage**2).reshape(runs // group, -1).sum(axis=1)
    spread = jnp.sqrt(square / jnp.maximum(kept.reshape(runs // group, -1).sum(axis=1), 1))
    return Advantages(advantage / jnp.repeat(jnp.maximum(spread, 1e-12), group)[:, None], target)
