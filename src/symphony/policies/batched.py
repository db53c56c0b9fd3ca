"""Several decisions of one look: the scheduler thinks once, and places up to so many gangs.

Thinking takes time, and on a large cluster many gangs become ready while it does. So the best pair of a gang and a
device is placed, then the best of those that are left. What a placement changes most is how long its device is busy:
that much is brought up to date in the heuristic's part of the scores, and the network is not asked again. When the best
that is left is to wait, to preempt or to configure, or a gang wants several workers, it thinks again.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from symphony.policies.features import LOG_FINISH, LOG_ISOLATED, REGRET
from symphony.policies.learned import MASKED_SCORE, Learned, Memory, action_at
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.errors import PolicyError
from symphony.scheduling.indexing import take
from symphony.scheduling.policy import Action, Observation, Policy, place, with_more
from symphony.telemetry.tuning import Tuning


class PendingPlacements(eqx.Module):
    """What was decided and is yet to be done [B]."""

    gang: Array  # i32
    device: Array  # i32
    next: Array  # i32[]
    end: Array  # i32[]


class Batched(Policy):
    """Decides as a learned policy does, up to `most` placements at a time."""

    learned: Learned
    most: int = eqx.field(static=True, default=8)

    def __check_init__(self) -> None:
        """Refuse what cannot be."""
        if not isinstance(self.learned, Learned) or self.learned.draws:
            raise PolicyError(
                "batches are of a policy that learned and takes its best action",
                hint='give one from a file: Batched(sy.policies.named("symphony"), 8)',
            )
        if self.most < 1:
            raise PolicyError(f"batches of {self.most} decisions", hint="write 1 or more")

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.learned.name}:{self.most}"

    @property
    def tuning(self) -> Tuning:
        """The policy's own filter."""
        return self.learned.tuning

    def init(self, topology: TopologyArrays) -> tuple[Memory, PendingPlacements]:
        """No plan."""
        none = jnp.zeros(self.most, jnp.int32)
        return self.learned.init(topology), PendingPlacements(none, none, jnp.int32(0), jnp.int32(0))

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Any:
        """As the policy does."""
        return self.learned.prepare(topology, workload)

    def decide(
        self, key: Array, state: tuple[Memory, PendingPlacements], observation: Observation
    ) -> tuple[tuple[Memory, PendingPlacements], Action]:
        """The next of what is planned, if it can still be done; else think."""
        memory, plan = state
        gang, device = take(plan.gang, plan.next), take(plan.device, plan.next)
        stands = (plan.next < plan.end) & take(observation.candidates, gang)
        stands &= take(observation.feasible(gang), device)

        def go_on(_: None) -> tuple[tuple[Memory, PendingPlacements], Action]:
            later = eqx.tree_at(lambda p: p.next, plan, plan.next + 1)
            return (memory, later), with_more(place(gang, device), later.next < later.end)

        def think(_none: None) -> tuple[tuple[Memory, PendingPlacements], Action]:
            new, said, _chance, index, seen = self.learned.consider(key, memory, observation)
            made = self._plan(said.scores, index, seen, observation)
            return (new, made), with_more(action_at(seen, index), made.end > made.next)

        return jax.lax.cond(stands, go_on, think, None)

    def _plan(self, scores: Array, index: Array, seen: Any, observation: Observation) -> PendingPlacements:
        """What else to place after the action of that number, by the same scores."""
        rows, columns = seen.device.shape
        count = rows * columns
        pairs, rest = scores[:count].reshape(rows, columns), scores[count:].max()
        alone = take(observation.core.workers, seen.gangs.number) == 1
        weight = jnp.exp(self.learned.network.regret)
        slots = take(observation.topology.slots, seen.device)
        busy = jnp.exp(seen.pairs[..., LOG_ISOLATED]) / jnp.maximum(slots, 1)  # in typical times of a gang, as `finish`
        without = pairs + weight * seen.pairs[..., REGRET]

        def taken(pair: Array, open_: Array, finish: Array) -> tuple[Array, Array]:
            """After a placement: gangs that are left, and when the pairs would be done."""
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
            gang, device = take(seen.gangs.number, pair // columns), take(seen.device.reshape(-1), pair)
            return (*taken(pair, open_, finish), going), (gang, device, going)

        first = jnp.minimum(index, count - 1)
        placed = (index < count) & take(alone, first // columns)
        left = taken(first, alone, jnp.exp(seen.pairs[..., LOG_FINISH]))
        _, (gangs, devices, good) = jax.lax.scan(one, (*left, placed), None, length=self.most - 1)
        pad = jnp.zeros(1, jnp.int32)
        return PendingPlacements(
            jnp.concatenate([gangs.astype(jnp.int32), pad]),
            jnp.concatenate([devices.astype(jnp.int32), pad]),
            jnp.int32(0),
            good.sum().astype(jnp.int32),
        )
