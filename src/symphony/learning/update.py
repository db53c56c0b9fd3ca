"""One round of learning: from the decisions of many runs to better weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from symphony.learning.returns import BOTH, CRITIC
from symphony.learning.rollouts import Decision, Decisions
from symphony.policies.features import GraphTables
from symphony.policies.learned import Memory, Network, PolicyOutput
from symphony.problem.arrays import TopologyArrays


@dataclass(frozen=True)
class Method:
    """How weights are changed. The default is PPO (Schulman et al., 2017), against the group's mean and the critic."""

    rate: float = 3e-3  # of learning, at first; it falls to a tenth
    epochs: int = 2  # times that each run is learned from
    unroll: int = 32  # decisions through which the memory is followed back
    pieces: int = 512  # stretches of so many decisions, in one step
    clip: float = 0.2  # of the ratio of probabilities
    entropy: float = 0.002
    value: float = 0.5  # weight of the critic's loss
    norm: float = 0.5  # of the gradient, at most
    baseline: str = BOTH  # what is expected of a decision: see `returns`


PPO = Method()
# As published (Mnih et al., 2016, with the rate of the Symphony paper): one step, no clipping.
A2C = Method(rate=5e-3, epochs=1, clip=float("inf"), baseline=CRITIC)


class TrainingBatch(eqx.Module):
    """Stretches of runs to learn from [C], each of U decisions."""

    made: Decision  # [C, U]
    kept: Array  # bool[C, U]
    advantage: Array  # f[C, U]
    target: Array  # f[C, U]: of the critic
    scenario: Array  # i32[C]: of which scenario


def training_batch(decisions: Decisions, advantage: Array, target: Array, unroll: int, group: int) -> TrainingBatch:
    """Runs, `group` of each scenario, cut into stretches."""
    runs, many = advantage.shape

    def cut(x: Array) -> Array:
        return x.reshape(-1, unroll, *x.shape[2:])

    made, kept, advantage, target = jax.tree.map(cut, (decisions.made, decisions.kept, advantage, target))
    return TrainingBatch(made, kept, advantage, target, (jnp.arange(runs) // group).repeat(many // unroll))


def replay(network: Network, t: TopologyArrays, factors: Array, nodes: Array, made: Decision) -> PolicyOutput:
    """What the network says now to decisions in a row [U], with the memory that it had before the first.

    `factors` are those of the filter when they were made; what was seen is what the present ones would have shown.
    """
    seen = made.features if made.jacobian is None else made.features.perturbed(made.jacobian, network.factors - factors)
    embedded = network.embed(t, nodes, seen)

    def remember(memory: Memory, scene: Array) -> tuple[Memory, Array]:
        memory = network.remember(memory, scene)
        return memory, memory.hidden

    _, hidden = jax.lax.scan(remember, jax.tree.map(lambda x: x[0], made.memory), embedded.scene)
    return network.score_actions(seen, embedded, hidden)


def loss(
    network: Network, t: TopologyArrays, graphs: GraphTables, lesson: TrainingBatch, method: Method, factors: Array
) -> tuple[Array, dict[str, Array]]:
    """What is to be made small, and figures to watch. `factors`: of the filter, in those runs."""
    nodes = jax.vmap(network.encode)(graphs)[lesson.scenario]
    said = jax.vmap(jax.checkpoint(partial(replay, network, t, factors)))(nodes, lesson.made)
    made, kept = lesson.made, lesson.kept
    many = jnp.maximum(kept.sum(), 1)

    def mean(x: Array) -> Array:
        return jnp.where(kept, x, 0).sum() / many

    chance = jnp.take_along_axis(said.log_probs, made.action[..., None], axis=-1)[..., 0]
    entropy = -(jnp.exp(said.log_probs) * said.log_probs).sum(axis=-1)
    ratio = jnp.exp(jnp.where(kept, chance - made.log_prob, 0))
    clipped = jnp.clip(ratio, 1 - method.clip, 1 + method.clip)
    gain = mean(jnp.minimum(ratio * lesson.advantage, clipped * lesson.advantage))
    error = mean(optax.huber_loss(said.value, lesson.target))
    figures = {
        "entropy": mean(entropy),
        "clipped": mean(1.0 * (jnp.abs(ratio - 1) > method.clip)),
        "moved": mean((ratio - 1) - jnp.log(ratio)),
        "critic": error,
    }
    return -gain - method.entropy * mean(entropy) + method.value * error, figures


def optimiser(method: Method) -> optax.GradientTransformation:
    """Adam, for a rate of one."""
    return optax.chain(optax.clip_by_global_norm(method.norm), optax.adam(1.0))


def rate(method: Method, number: int, rounds: int) -> Array:
    """Of learning, in one of so many rounds: it falls to a tenth."""
    return jnp.asarray(optax.cosine_decay_schedule(method.rate, rounds, alpha=0.1)(number))


def learn(
    network: Network,
    state: Any,
    t: TopologyArrays,
    graphs: GraphTables,
    lesson: TrainingBatch,
    key: Array,
    method: Method,
    rate: Array,
) -> tuple[Network, Any, dict[str, Array]]:
    """Several passes over the stretches, some of them at a time, in random order. `graphs`: of each scenario.

    Stretches in which nothing was decided, a third of them where runs differ in length, take no time.
    """
    count = lesson.advantage.shape[0]
    each = min(method.pieces, count)
    factors = network.factors
    optimise = optimiser(method)
    filled = lesson.kept.any(axis=1)
    many = -(-filled.sum() // each)  # steps of a pass

    def order(key: Array) -> Array:
        """The filled ones in random order; then others, and again, to a whole number of steps."""
        mixed = jax.random.permutation(key, count)
        mixed = mixed[jnp.argsort(~filled[mixed], stable=True)]
        return jnp.resize(mixed, (-(-count // each), each))

    def step(network: Network, state: Any, which: Array) -> tuple[Network, Any, dict[str, Array]]:
        some = jax.tree.map(lambda x: x[which], lesson)
        (_, figures), slope = eqx.filter_value_and_grad(loss, has_aux=True)(network, t, graphs, some, method, factors)
        changes, state = optimise.update(slope, state, eqx.filter(network, eqx.is_inexact_array))
        figures["slope"] = optax.tree.norm(slope)
        return eqx.apply_updates(network, jax.tree.map(lambda x: rate * x, changes)), state, figures

    orders = jnp.stack([order(k) for k in jax.random.split(key, method.epochs)])
    learned, fixed = eqx.partition(network, eqx.is_array)
    nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: step(network, state, orders[0, 0])[2]))

    def body(carry: Any) -> Any:
        at, learned, state, sums = carry
        network, state, figures = step(eqx.combine(learned, fixed), state, orders[at // many, at % many])
        return at + 1, eqx.filter(network, eqx.is_array), state, jax.tree.map(jnp.add, sums, figures)

    total = method.epochs * many
    _, learned, state, sums = jax.lax.while_loop(lambda carry: carry[0] < total, body, (0, learned, state, nothing))
    return eqx.combine(learned, fixed), state, jax.tree.map(lambda x: x / jnp.maximum(total, 1), sums)
