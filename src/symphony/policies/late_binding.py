"""Late binding: the next gang of a device is decided when the device is about to be free.

A learned policy places every gang as soon as it is ready, into the queue of the device where it will finish first.
Where devices are few and have many slots (a machine), this is too early: queues are first in, first out, and a gang
that becomes ready later waits behind all of them, however short or critical it is. So a gang whose best device has a
backlog is held back. Of the others, the policy's preferred gang is placed, where scores are reduced by the cost of
contention now: the slow-down of the gang by others on the same rows, and of others by the gang, weighted like a later
finish. Half of the cost that two gangs of the same kernel would cause each other is added: a gang that can run now
without contention, and could not once only gangs of its kind are left, is placed first. Without that term, gangs that
cause no contention would be used up beside one another.

No gang is held back from a device on which it could start now for longer than it may gain (`scheduling/holding.py`);
after that the learned policy's own choice is used.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from symphony.estimation.tuning import Tuning
from symphony.policies.features import PairColumn, log1p_time
from symphony.policies.learned import MASKED_SCORE, Learned, Memory, action_at, first_come
from symphony.problem.arrays import KIND_INDEX, TopologyArrays, WorkloadArrays
from symphony.scheduling.estimate import needs
from symphony.scheduling.indexing import BoolScalar, FloatScalar, IntScalar, take
from symphony.scheduling.policy import Action, Observation, Policy, choose, idle_devices, place, wait
from symphony.scheduling.state import PLACING

MAX_BACKLOG_S = 0.01  # queue of a device that is about to be free: more than a decision takes


class LateBinding(Policy):
    """A learned policy that only places gangs on devices that are about to be free."""

    learned: Learned

    def __init__(self, learned: Learned) -> None:
        self.learned = first_come(learned)  # queues are short

    @property
    def name(self) -> str:
        return f"{self.learned.name}-late"

    @property
    def tuning(self) -> Tuning:
        return self.learned.tuning

    def init(self, topology: TopologyArrays) -> Memory:
        return self.learned.init(topology)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Any:
        return self.learned.prepare(topology, workload)

    def decide(self, key: Array, state: Memory, observation: Observation) -> tuple[Memory, Action]:
        wants = idle_devices(observation) | (observation.core.up & (observation.queue_s < MAX_BACKLOG_S))
        partly = (observation.core.status == PLACING).any()  # the learned policy places the remaining workers
        return jax.lax.cond(
            wants.any() | partly,
            lambda: self._evaluate(key, state, observation, wants, partly),
            lambda: (state, wait()),
        )

    def _evaluate(
        self, key: Array, state: Memory, observation: Observation, wants: Bool[Array, " devices"], partly: BoolScalar
    ) -> tuple[Memory, Action]:
        memory, output, _, index, seen = self.learned.consider(key, state, observation)
        rows, columns = seen.device.shape
        scores = output.scores[: rows * columns].reshape(rows, columns)
        at, column = jnp.arange(rows), scores.argmax(axis=1)
        score, device, pair = scores[at, column], seen.device[at, column], seen.pairs[at, column]
        cost = (
            pair[:, PairColumn.SLOWDOWN]
            + pair[:, PairColumn.HARM]
            - jax.vmap(partial(mutual_slowdown, observation))(seen.gangs.number, device) / 2
        )
        worth = score - jnp.exp(self.learned.network.regret) * cost
        open_ = take(wants, device) & (score > MASKED_SCORE / 2)
        best = jnp.where(open_, worth, MASKED_SCORE).argmax()
        late = choose(open_.any(), place(take(seen.gangs.number, best), take(device, best)), wait(seen.wait_s))
        unchanged = partly | (index >= rows * columns) | ~(open_.any() | seen.may_wait)
        return memory, choose(unchanged, action_at(seen, index), late)


def mutual_slowdown(observation: Observation, gang: IntScalar, device: IntScalar) -> FloatScalar:
    """Contention between two gangs of this kernel on a device, as the sum of the features SLOWDOWN and HARM.

    Cores are excluded: there are no more workers than slots.
    """
    t = observation.topology
    need = needs(observation, gang, device[None])[0]
    kind = take(t.row_kind, take(t.route_row, device))
    need = jnp.where(kind == KIND_INDEX["compute"], 0.0, need)
    slow = jnp.maximum(2 * need, 1)
    return jnp.log(slow.max()) + log1p_time((need * (slow - 1)).sum(), jnp.ones(()))
