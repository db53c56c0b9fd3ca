"""Late binding: who comes next at a device is decided when the device is about to be free.

A learned policy places every gang as soon as it is ready, into the queue of the device where it will finish first.
Where devices are few and have many slots (a machine), that gives away what it knows: queues are first in, first out,
and who comes later, however short or critical, waits behind all of them. So a gang whose best device has enough to do
is kept back. Of those that are not, the one is taken that the policy prefers, less what it would cost to run it just
now: by how much others on the same rows would slow it, and it them. That is weighed like a later finish. Half of what
it would cost beside its like is put on the other scale: who can run now for nothing, and will not be able to once only
its like is left, goes first. Without that, those who harm nobody would be used up, beside one another.

No gang is kept back from a device on which it could start now for longer than that may gain it
(`scheduling/holding.py`); then the learned policy's own choice is taken.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from symphony.policies.features import LOG_HARM, LOG_SLOWDOWN, log1p_time
from symphony.policies.learned import MASKED_SCORE, Learned, Memory, action_at
from symphony.problem.arrays import KIND_INDEX, TopologyArrays, WorkloadArrays
from symphony.scheduling.estimate import needs
from symphony.scheduling.indexing import take
from symphony.scheduling.policy import Action, Observation, Policy, choose, idle_devices, place, wait
from symphony.scheduling.state import PLACING
from symphony.telemetry.tuning import Tuning

MAX_BACKLOG_S = 0.01  # of work that a device may have before it: more than a decision takes


class LateBinding(Policy):
    """Decides as a learned policy does, but only for devices that are about to be free."""

    learned: Learned

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.learned.name}-late"

    @property
    def tuning(self) -> Tuning:
        """The policy's own filter."""
        return self.learned.tuning

    def init(self, topology: TopologyArrays) -> Memory:
        """The policy's memory."""
        return self.learned.init(topology)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Any:
        """As the policy does."""
        return self.learned.prepare(topology, workload)

    def decide(self, key: Array, state: Memory, observation: Observation) -> tuple[Memory, Action]:
        """The best gang whose best device wants one; or wait, without a thought if none does."""
        wants = idle_devices(observation) | (observation.core.up & (observation.queue_s < MAX_BACKLOG_S))
        partly = (observation.core.status == PLACING).any()  # what is begun is ended, as the policy says
        return jax.lax.cond(
            wants.any() | partly,
            lambda: self._think(key, state, observation, wants, partly),
            lambda: (state, wait()),
        )

    def _think(
        self, key: Array, state: Memory, observation: Observation, wants: Array, partly: Array
    ) -> tuple[Memory, Action]:
        memory, said, _, index, seen = self.learned.consider(key, state, observation)
        rows, columns = seen.device.shape
        scores = said.scores[: rows * columns].reshape(rows, columns)
        at, column = jnp.arange(rows), scores.argmax(axis=1)
        score, device, pair = scores[at, column], seen.device[at, column], seen.pairs[at, column]
        cost = (
            pair[:, LOG_SLOWDOWN]
            + pair[:, LOG_HARM]
            - jax.vmap(partial(mutual_slowdown, observation))(seen.gangs.number, device) / 2
        )
        worth = score - jnp.exp(self.learned.network.regret) * cost
        open_ = take(wants, device) & (score > MASKED_SCORE / 2)
        best = jnp.where(open_, worth, MASKED_SCORE).argmax()
        late = choose(open_.any(), place(take(seen.gangs.number, best), take(device, best)), wait(seen.wait_s))
        as_said = partly | (index >= rows * columns) | ~(open_.any() | seen.may_wait)
        return memory, choose(as_said, action_at(seen, index), late)


def mutual_slowdown(observation: Observation, gang: Array, device: Array) -> Array:
    """What two gangs of this kind would cost each other there, in the units of SLOW and HARM together.

    Cores do not count: there are no more workers than slots.
    """
    t = observation.topology
    need = needs(observation, gang, device[None])[0]
    kind = take(t.row_kind, take(t.route_row, device))
    need = jnp.where(kind == KIND_INDEX["compute"], 0.0, need)
    slow = jnp.maximum(2 * need, 1)
    return jnp.log(slow.max()) + log1p_time((need * (slow - 1)).sum(), jnp.ones(()))
