"""Look-ahead: before deciding, ask the simulator what would come of the policy's best few actions.

    observation ─► policy ─► its best actions ─┐
        └────────► worlds that may be ─────────┴─► each action in each world, rolled forward ─► least expected cost

The same worlds serve all actions, so that luck cancels in the differences. The policy's own choice stands unless
another is better by more than the worlds disagree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from symphony.policies.features import Features, job_features
from symphony.policies.learned import MASKED_SCORE, Learned, action_at
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.errors import PolicyError
from symphony.scheduling.indexing import smallest, take
from symphony.scheduling.policy import Action, Observation, Policy
from symphony.simulator import instant_effects
from symphony.simulator.contention import Bottleneck, ContentionModel
from symphony.simulator.hypothesis import sample_world, scenario_of, work_factors
from symphony.simulator.rollout import Carry, finished, observe, step
from symphony.simulator.world import World
from symphony.telemetry.tuning import Tuning

CANDIDATE_POOL_FACTOR = 4  # so many times as many actions are looked through for distinct ones


class LookAhead(Policy):
    """Decides as a learned policy does, after trying its best few actions in worlds that may be.

    Shown what every policy is shown. `rolls` decides in those worlds: the policy itself if None, or a cheaper one.
    """

    learned: Learned
    rolls: Policy | None = None
    candidates: int = eqx.field(static=True, default=4)  # actions
    samples: int = eqx.field(static=True, default=4)  # worlds
    # Numbers that are no shapes are arrays: one compiled program serves all.
    horizon: Array = eqx.field(converter=jnp.asarray, default=16.0)  # typical times of a gang to look ahead
    most: Array = eqx.field(converter=jnp.asarray, default=512)  # steps of the simulator to look ahead, at most
    caution: Array = eqx.field(converter=jnp.asarray, default=1.0)  # standard errors that others must be better by
    spread: Array = eqx.field(converter=jnp.asarray, default=0.05)  # of work about its profiles
    contention: ContentionModel = Bottleneck()

    def __check_init__(self) -> None:
        """Refuse what cannot be looked ahead with."""
        if not isinstance(self.learned, Learned):
            raise PolicyError(
                f"look-ahead is given {type(self.learned).__name__}, which does not rank its actions",
                hint='give a policy that learned: sy.policies.named("symphony")',
            )
        if min(self.candidates, self.samples) < 1:
            raise PolicyError(
                f"look-ahead with {self.candidates} candidates and {self.samples} samples",
                hint="write 1 or more of each",
            )

    @property
    def name(self) -> str:
        """What tables call it."""
        return "look-ahead"

    @property
    def tuning(self) -> Tuning:
        """The policy's own filter."""
        return self.learned.tuning

    def init(self, topology: TopologyArrays) -> Any:
        """The policy's own memory."""
        return self.learned.init(topology)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> tuple[Any, Any]:
        """What both policies prepare."""
        return self.learned.prepare(topology, workload), self._rolling.prepare(topology, workload)

    @property
    def _rolling(self) -> Policy:
        return Learned(self.learned.network) if self.rolls is None else self.rolls

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """The action of least expected cost."""
        memory, actions, costs = self.weigh(key, state, observation)
        best = prefer(costs, self.caution)
        return memory, jax.tree.map(lambda x: take(x, best), actions)

    def weigh(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action, Array]:
        """The policy's memory, its best actions [C], its own choice first, and what they cost in each world [N, C]."""
        shown = replace(observation, prepared=observation.prepared[0])
        memory, said, _, _, seen = self.learned.consider(key, state, shown)
        index = distinct(said.scores, seen, self.candidates)
        actions = jax.vmap(lambda index: action_at(seen, index))(jnp.maximum(index, 0))
        costs = self.costs(key, memory, observation, actions)
        return memory, actions, jnp.where(index >= 0, costs, jnp.inf)

    def costs(self, key: Array, memory: Any, observation: Observation, actions: Action) -> Array:
        """Seconds in the system, summed over the jobs in it, after each action in each world [N, C]."""
        policy = self._rolling
        state = memory if self.rolls is None else policy.init(observation.topology)
        prepared = observation.prepared[1]
        graphs = observation.prepared[0].graphs
        end = observation.now.plus(self.horizon * graphs.scale)
        loads, amounts = jax.random.split(key)

        def in_one(loads: Array, amounts: Array) -> Array:
            s = scenario_of(observation, work_factors(amounts, self.spread))
            world = sample_world(loads, observation, s, self.contention)

            def after(action: Action) -> Array:
                begun = Carry(instant_effects.act(world, s, action, jnp.asarray(True))[0], state, prepared, key)
                carry, _ = jax.lax.while_loop(going, moved, (begun, jnp.asarray(0, jnp.int32)))
                return cost(carry.world)

            def going(now: tuple[Carry, Array]) -> Array:
                carry, steps = now
                return ~finished(carry.world, s) & (carry.world.now.minus(end) < 0) & (steps < self.most)

            def moved(now: tuple[Carry, Array]) -> tuple[Carry, Array]:
                carry, steps = now
                return step(carry, s, policy, self.contention, record=False)[0], steps + 1

            def cost(world: World) -> Array:
                left = job_features(observe(world, s, False), graphs)
                # Those who are not through have the rest of their longest path before them, at the least.
                rest = jnp.where(left.there, left.age_s + left.path_s, 0).sum()
                # Nothing was under way but a window that never ends: no time to compare with.
                lost = world.core.windows > observation.core.windows
                return jnp.where(lost, jnp.inf, world.completion_sum.total + rest)

            return jax.vmap(after)(actions)

        return jax.vmap(in_one)(jax.random.split(loads, self.samples), jax.random.split(amounts, self.samples))


def distinct(scores: Array, seen: Features, count: int) -> Array:
    """Numbers of the best actions [C], -1 = none; of pairs that look alike, such as equal idle devices, the first."""
    many, each = seen.device.shape
    order = smallest(
        jnp.where(scores > MASKED_SCORE / 2, -scores, jnp.inf), min(count * CANDIDATE_POOL_FACTOR, scores.shape[0])
    )
    pair = jnp.minimum(order, many * each - 1)
    looks = jnp.concatenate([(pair // each)[:, None], take(seen.pairs.reshape(many * each, -1), pair)], axis=1)
    is_pair = (order >= 0) & (order < many * each)
    same = (looks[:, None] == looks).all(axis=-1) & is_pair[:, None] & is_pair
    again = jnp.tril(same, -1).any(axis=1)
    rank = jnp.where((order >= 0) & ~again, jnp.arange(order.shape[0]), jnp.inf)
    place = smallest(rank, min(count, order.shape[0]))
    return jnp.where(place >= 0, take(order, place), -1)


def prefer(costs: Array, caution: Array) -> Array:
    """The action of least mean cost [N, C], or the first unless that is better by so many standard errors."""
    gain = costs[:, :1] - costs
    mean = gain.mean(axis=0)
    error = jnp.sqrt(((gain - mean) ** 2).sum(axis=0) / max(costs.shape[0] - 1, 1) / costs.shape[0])
    best = jnp.where(jnp.isfinite(mean), mean, -jnp.inf).argmax()
    return jnp.where(take(mean, best) > caution * take(error, best), best, 0)
