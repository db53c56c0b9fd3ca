"""Several placements from one evaluation of the network.

An evaluation takes time, and on a large cluster many gangs become ready meanwhile. So the best pair of a gang and a
device is placed, then the best of the remaining pairs. The main effect of a placement is on the queue of its device:
the heuristic's part of the scores is updated for that, without another evaluation. The network is evaluated again when
the best remaining action is to wait, to preempt or to configure, or when a gang has several workers.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from symphony.estimation.tuning import Tuning
from symphony.policies.features import Features, PairColumn
from symphony.policies.learned import MASKED_SCORE, Learned, Memory, action_at
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.errors import PolicyError
from symphony.scheduling.indexing import IntScalar, take
from symphony.scheduling.policy import Action, Observation, Policy, place, with_more


class PendingPlacements(eqx.Module):
    """Placements that were decided and are yet to be made: those from `next` to `end`."""

    gang: Int[Array, " placements"]
    device: Int[Array, " placements"]
    order: Int[Array, " placements"]
    next: IntScalar
    end: IntScalar


class Batched(Policy):
    """A learned policy that makes up to `most` placements per evaluation."""

    learned: Learned
    most: int = eqx.field(static=True, default=8)

    def __check_init__(self) -> None:
        if not isinstance(self.learned, Learned) or self.learned.draws:
            raise PolicyError(
                "Batched needs a learned policy that takes its best action",
                hint='give one from a file: Batched(sy.policies.named("symphony"), 8)',
            )
        if self.most < 1:
            raise PolicyError(f"the size of a batch is {self.most}", hint="write 1 or more")

    @property
    def name(self) -> str:
        return f"{self.learned.name}:{self.most}"

    @property
    def tuning(self) -> Tuning:
        return self.learned.tuning

    def init(self, topology: TopologyArrays) -> tuple[Memory, PendingPlacements]:
        none = jnp.zeros(self.most, jnp.int32)
        return self.learned.init(topology), PendingPlacements(none, none, none, jnp.int32(0), jnp.int32(0))

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Any:
        return self.learned.prepare(topology, workload)

    def decide(
        self, key: Array, state: tuple[Memory, PendingPlacements], observation: Observation
    ) -> tuple[tuple[Memory, PendingPlacements], Action]:
        """The next pending placement if it is still feasible; else a new evaluation."""
        memory, plan = state
        gang, device = take(plan.gang, plan.next), take(plan.device, plan.next)
        valid = (plan.next < plan.end) & take(observation.candidates, gang)
        valid &= take(observation.feasible(gang), device)

        def next_pending(_: None) -> tuple[tuple[Memory, PendingPlacements], Action]:
            later = eqx.tree_at(lambda p: p.next, plan, plan.next + 1)
            order = take(plan.order, plan.next)
            return (memory, later), with_more(place(gang, device, order), later.next < later.end)

        def evaluate(_none: None) -> tuple[tuple[Memory, PendingPlacements], Action]:
            new, output, _, index, seen = self.learned.consider(key, memory, observation)
            pending = self._plan(output.scores, index, seen, observation)
            return (new, pending), with_more(action_at(seen, index), pending.end > pending.next)

        return jax.lax.cond(valid, next_pending, evaluate, None)

    def _plan(
        self, scores: Float[Array, " actions"], index: IntScalar, seen: Features, observation: Observation
    ) -> PendingPlacements:
        """Further placements after the action with this index, by the same scores."""
        rows, columns = seen.device.shape
        count = rows * columns
        pairs, rest = scores[:count].reshape(rows, columns), scores[count:].max()
        alone = take(observation.core.workers, seen.gangs.number) == 1
        weight = jnp.exp(self.learned.network.regret)
        slots = take(observation.topology.slots, seen.device)
        busy = jnp.exp(seen.pairs[..., PairColumn.ISOLATED]) / jnp.maximum(
            slots, 1
        )  # in typical times of a gang, as `finish`
        without = pairs + weight * seen.pairs[..., PairColumn.REGRET]

        def taken(pair: Array, open_: Array, finish: Array) -> tuple[Array, Array]:
            """After a placement: the remaining gangs, and the finish times of all pairs."""
            device = take(seen.device.reshape(-1), pair)
            later = finish + jnp.where(seen.device == device, take(busy.reshape(-1), pair), 0)
            return open_ & (jnp.arange(rows) != pair // columns), later

        def one(carry: tuple[Array, Array, Array], _: None) -> tuple[Any, tuple[Array, Array, Array]]:
            open_, finish, going = carry
            least = jnp.where(seen.allowed, finish, jnp.inf).min(axis=1, keepdims=True)
            now = without - weight * jnp.log(jnp.maximum(finish / least, 1.0))
            flat = jnp.where(open_[:, None] & seen.allowed, now, MASKED_SCORE).reshape(-1)
            pair = flat.argmax()
            going &= (flat[pair] > MASKED_SCORE / 2) & (flat[pair] >= rest)
            device = take(seen.device.reshape(-1), pair)
            return (*taken(pair, open_, finish), going), (pair // columns, device, going)

        first = jnp.minimum(index, count - 1)
        placed = (index < count) & take(alone, first // columns)
        left = taken(first, alone, jnp.exp(seen.pairs[..., PairColumn.FINISH]))
        _, (which, devices, good) = jax.lax.scan(one, (*left, placed), None, length=self.most - 1)
        pad = jnp.zeros(1, jnp.int32)
        return PendingPlacements(
            jnp.concatenate([take(seen.gangs.number, which).astype(jnp.int32), pad]),
            jnp.concatenate([devices.astype(jnp.int32), pad]),
            jnp.concatenate([take(seen.order, which), pad]),
            jnp.int32(0),
            good.sum().astype(jnp.int32),
        )
