"""A policy that does anything, some of it against the rules: for tests of the simulators."""

from dataclasses import replace

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
    with_more,
)
from symphony.scheduling.state import RUNNING


def more(action) -> bool:
    """Whether the next decision came with an action of the reference's kind."""
    return action[0] == "place" and action[3] % 2 == 0


def order_of(job, index):
    """The sequence number that a third of the gangs are given; 0: none."""
    return ((job + index) % 3 == 0) * (-1 - 997 * job - index)


class Chaos(Policy):
    """Mostly places at random; sometimes preempts, reconfigures, waits, or asks for what is not allowed."""

    orderly: float = 0.8  # share of decisions that place a candidate on a feasible device
    reorders: bool = False  # gives gangs sequence numbers (`order_of`)

    def init(self, topology):
        return None

    def decide(self, key, state, observation):
        core, t, w = observation.core, observation.topology, observation.workload
        keys = jax.random.split(key, 8)
        gang = pick_gang(observation, jax.random.uniform(keys[0], core.status.shape))
        device = best_device(observation, gang, jax.random.uniform(keys[1], core.up.shape))

        # Wild actions name something to the purpose mostly, and else anything, padding and -1 included.
        def one_of(key, mask):
            aim, number, luck = jax.random.split(key, 3)
            aimed = jnp.argmax(jax.random.uniform(aim, mask.shape) + mask)
            return jnp.where(jax.random.bernoulli(luck, 0.7), aimed, jax.random.randint(number, (), -1, mask.size))

        configurable = (t.kind_reconfigure[t.device_kind] > 0) & core.up
        where = one_of(keys[2], configurable)
        known = jnp.isfinite(w.time_fixed[:, t.device_kind[jnp.clip(where, 0, core.up.size - 1)]])
        kind = jax.random.choice(keys[3], jnp.array([PLACE, PREEMPT, PREEMPT, RECONFIGURE, RECONFIGURE, WAIT]))
        wild = Action(
            kind=kind,
            gang=jnp.where(kind == RECONFIGURE, 0, one_of(keys[4], core.status == RUNNING)),
            device=jnp.where(kind == PREEMPT, 0, where),
            kernel=one_of(keys[5], known),
        )
        orderly = Action(*(jnp.asarray(x, jnp.int32) for x in (PLACE, gang, device, 0)))
        sensible = jax.random.bernoulli(keys[6], self.orderly) & observation.candidates.any()
        chosen = jax.tree.map(lambda a, b: jnp.where(sensible, a, b).astype(a.dtype), orderly, wild)
        bound = jax.random.uniform(keys[7], (), minval=-0.2, maxval=0.6)  # of a wait, if it is above 0
        order = order_of(core.job[chosen.gang // w.kernel.shape[1]], chosen.gang % w.kernel.shape[1])
        order = (order if self.reorders else 0 * order).astype(jnp.int32)
        bounded = replace(chosen, seconds=bound.astype(chosen.seconds.dtype), order=order)
        return state, with_more(bounded, (chosen.kind == PLACE) & (chosen.device % 2 == 0))
