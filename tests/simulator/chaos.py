"""A policy that does anything, some of it against the rules: for tests of the simulators."""

import jax
import jax.numpy as jnp

from symphony.scheduling.policy import (
    PLACE,
    PREEMPT,
    RECONFIGURE,
    WAIT,
    Action,
    Policy,
    best_device,
    pick_gang,
)
from symphony.scheduling.state import RUNNING


class Chaos(Policy):
    """Mostly places at random; sometimes preempts, reconfigures, waits, or asks for what is not allowed."""

    orderly: float = 0.8  # share of decisions that place a candidate on a feasible device

    def init(self, topology):
        return None

    def decide(self, key, state, observation):
        core, w = observation.core, observation.workload
        keys = jax.random.split(key, 6)
        gang = pick_gang(observation, jax.random.uniform(keys[0], core.status.shape))
        device = best_device(observation, gang, jax.random.uniform(keys[1], core.up.shape))
        running = jnp.where(core.status == RUNNING, jax.random.uniform(keys[2], core.status.shape), -1)
        other = Action(
            kind=jax.random.choice(keys[3], jnp.array([PLACE, PREEMPT, PREEMPT, RECONFIGURE, RECONFIGURE, WAIT])),
            gang=jnp.where(
                jax.random.bernoulli(keys[4], 0.7),
                jnp.argmax(running),
                jax.random.randint(keys[4], (), 0, core.status.size),
            ),
            device=jax.random.randint(keys[4], (), 0, core.up.size),
            kernel=jax.random.randint(keys[5], (), 0, w.exchange.size),
        )
        orderly = Action(*(jnp.asarray(x, jnp.int32) for x in (PLACE, gang, device, 0)))
        sensible = jax.random.bernoulli(keys[5], self.orderly) & observation.candidates.any()
        chosen = jax.tree.map(lambda a, b: jnp.where(sensible, a, b).astype(jnp.int32), orderly, other)
        return state, chosen
