"""Look-ahead: Monte Carlo rollouts of the policy's best few actions before each decision.

    observation ─► policy ─► its best actions ─┐
        └────────► sampled worlds ─────────────┴─► a rollout of each action in each world ─► least expected cost

All actions are evaluated in the same worlds (common random numbers), which reduces the variance of their differences.
The policy's own choice is kept unless another is better by more than the standard error.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from symphony.estimation.tuning import Tuning
from symphony.policies.features import Features, job_features
from symphony.policies.learned import MASKED_SCORE, Learned, action_at, first_come
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.errors import PolicyError
from symphony.scheduling.indexing import FloatScalar, IntScalar, smallest, take
from symphony.scheduling.policy import Action, Observation, Policy
from symphony.simulator import instant_effects
from symphony.simulator.contention import Bottleneck, ContentionModel
from symphony.simulator.hypothesis import sample_world, scenario_of, work_factors
from symphony.simulator.rollout import Carry, finished, observe, step
from symphony.simulator.world import World

CANDIDATE_POOL_FACTOR = 4  # distinct actions are selected from this many times as many


class LookAhead(Policy):
    """A learned policy with rollouts of its best few actions in sampled worlds.

    `rolls` is the rollout policy: the learned policy itself if None, or a cheaper one.
    """

    learned: Learned
    rolls: Policy | None = None
    candidates: int = eqx.field(static=True, default=4)  # actions
    samples: int = eqx.field(static=True, default=4)  # worlds
    # Numbers that are not shapes are arrays: one compiled program serves all values.
    horizon: FloatScalar = eqx.field(converter=jnp.asarray, default=16.0)  # of a rollout, in typical times of a gang
    most: IntScalar = eqx.field(converter=jnp.asarray, default=512)  # simulator steps of a rollout, at most
    caution: FloatScalar = eqx.field(
        converter=jnp.asarray, default=1.0
    )  # standard errors that others must be better by
    spread: FloatScalar = eqx.field(converter=jnp.asarray, default=0.05)  # log-standard deviation of work
    contention: ContentionModel = Bottleneck()

    def __check_init__(self) -> None:
        if not isinstance(self.learned, Learned):
            raise PolicyError(
                f"look-ahead needs a learned policy, not {type(self.learned).__name__}, which does not score actions",
                hint='give a learned policy: sy.policies.named("symphony")',
            )
        if min(self.candidates, self.samples) < 1:
            raise PolicyError(
                f"look-ahead has {self.candidates} candidates and {self.samples} samples",
                hint="write 1 or more of each",
            )

    @property
    def name(self) -> str:
        return "look-ahead"

    @property
    def tuning(self) -> Tuning:
        return self.learned.tuning

    def init(self, topology: TopologyArrays) -> Any:
        return self.learned.init(topology)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> tuple[Any, Any]:
        return self.learned.prepare(topology, workload), self._rollout_policy.prepare(topology, workload)

    @property
    def _rollout_policy(self) -> Policy:
        return replace(first_come(self.learned), draws=False, slopes=None) if self.rolls is None else self.rolls

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        memory, actions, costs = self.weigh(key, state, observation)
        best = prefer(costs, self.caution)
        return memory, jax.tree.map(lambda x: take(x, best), actions)

    def weigh(
        self, key: Array, state: Any, observation: Observation
    ) -> tuple[Any, Action, Float[Array, "worlds actions"]]:
        """The policy's state, its best actions, its own choice first, and their costs in each world."""
        shown = replace(observation, prepared=observation.prepared[0])
        memory, output, _, _, seen = first_come(self.learned).consider(key, state, shown)
        index = distinct(output.scores, seen, self.candidates)
        actions = jax.vmap(lambda index: action_at(seen, index))(jnp.maximum(index, 0))
        costs = self.costs(key, memory, observation, actions)
        return memory, actions, jnp.where(index >= 0, costs, jnp.inf)

    def costs(
        self, key: Array, memory: Any, observation: Observation, actions: Action
    ) -> Float[Array, "worlds actions"]:
        """Seconds in the system, summed over the present jobs, after each action in each world."""
        policy = self._rollout_policy
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
                # Jobs that are not complete need at least the rest of their longest path.
                rest = jnp.where(left.there, left.age_s + left.path_s, 0).sum()
                # Only the endless counter window was left: the rollout has stalled.
                lost = world.core.windows > observation.core.windows
                return jnp.where(lost, jnp.inf, world.completion_sum.total + rest)

            return jax.vmap(after)(actions)

        return jax.vmap(in_one)(jax.random.split(loads, self.samples), jax.random.split(amounts, self.samples))


def distinct(scores: Float[Array, " actions"], seen: Features, count: int) -> Int[Array, " best"]:
    """Indices of the best actions, -1 = none; of pairs with equal features, such as equal idle devices, the first."""
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


def prefer(costs: Float[Array, "worlds actions"], caution: FloatScalar) -> IntScalar:
    """The action of least mean cost if it is better than the first by `caution` standard errors, else the first."""
    gain = costs[:, :1] - costs
    mean = gain.mean(axis=0)
    error = jnp.sqrt(((gain - mean) ** 2).sum(axis=0) / max(costs.shape[0] - 1, 1) / costs.shape[0])
    best = jnp.where(jnp.isfinite(mean), mean, -jnp.inf).argmax()
    return jnp.where(take(mean, best) > caution * take(error, best), best, 0)
