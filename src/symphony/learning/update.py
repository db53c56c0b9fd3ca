"""One round of learning: weights are updated from the decisions of many runs (PPO)."""

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
    """Settings of the update. The default is PPO (Schulman et al., 2017)."""

    rate: float = 3e-3  # initial learning rate; decays to a tenth
    epochs: int = 2  # passes over the runs of a round
    unroll: int = 32  # length of a segment: decisions of backpropagation through the memory
    pieces: int = 512  # segments per gradient step
    clip: float = 0.2  # of the ratio of probabilities
    entropy: float = 0.002  # weight of the bonus
    value: float = 0.5  # weight of the critic's loss
    norm: float = 0.5  # largest norm of the gradient
    baseline: str = BOTH  # see `returns`


PPO = Method()
# As published (Mnih et al., 2016, with the rate of the Symphony paper): one step, no clipping.
A2C = Method(rate=5e-3, epochs=1, clip=float("inf"), baseline=CRITIC)


class TrainingBatch(eqx.Module):
    """C segments of runs, of U decisions each."""

    made: Decision  # [C, U]
    kept: Array  # bool[C, U]
    advantage: Array  # f[C, U]
    target: Array  # f[C, U]: for the critic
    scenario: Array  # i32[C]


def training_batch(decisions: Decisions, advantage: Array, target: Array, unroll: int, group: int) -> TrainingBatch:
    """Cut runs, `group` of each scenario, into segments."""
    runs, many = advantage.shape
    segments = runs * many // unroll

    def cut(x: Array) -> Array:
        return x.reshape(segments, unroll, *x.shape[2:])  # -1 cannot be resolved where a policy lists no such action

    made, kept, advantage, target = jax.tree.map(cut, (decisions.made, decisions.kept, advantage, target))
    return TrainingBatch(made, kept, advantage, target, (jnp.arange(runs) // group).repeat(many // unroll))


def replay(network: Network, t: TopologyArrays, factors: Array, nodes: Array, made: Decision) -> PolicyOutput:
    """Outputs of the present network for consecutive decisions [U], from the memory before the first.

    `factors`: of the filter when the decisions were made. Features are extrapolated to the present factors.
    """
    features = made.features
    if made.jacobian is not None:
        features = features.perturbed(made.jacobian, network.factors - factors)
    embedded = network.embed(t, nodes, features)

    def remember(memory: Memory, scene: Array) -> tuple[Memory, Array]:
        memory = network.remember(memory, scene)
        return memory, memory.hidden

    _, hidden = jax.lax.scan(remember, jax.tree.map(lambda x: x[0], made.memory), embedded.scene)
    return network.score_actions(features, embedded, hidden)


def loss(
    network: Network, t: TopologyArrays, graphs: GraphTables, batch: TrainingBatch, method: Method, factors: Array
) -> tuple[Array, dict[str, Array]]:
    """The loss, and figures for the log. `factors`: of the filter in those runs."""
    nodes = jax.vmap(network.encode)(graphs)[batch.scenario]
    output = jax.vmap(jax.checkpoint(partial(replay, network, t, factors)))(nodes, batch.made)
    made, kept = batch.made, batch.kept
    many = jnp.maximum(kept.sum(), 1)

    def mean(x: Array) -> Array:
        return jnp.where(kept, x, 0).sum() / many

    log_prob = jnp.take_along_axis(output.log_probs, made.action[..., None], axis=-1)[..., 0]
    entropy = -(jnp.exp(output.log_probs) * output.log_probs).sum(axis=-1)
    ratio = jnp.exp(jnp.where(kept, log_prob - made.log_prob, 0))
    clipped = jnp.clip(ratio, 1 - method.clip, 1 + method.clip)
    gain = mean(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))
    error = mean(optax.huber_loss(output.value, batch.target))
    figures = {
        "entropy": mean(entropy),
        "clipped": mean(1.0 * (jnp.abs(ratio - 1) > method.clip)),
        "moved": mean((ratio - 1) - jnp.log(ratio)),
        "critic": error,
    }
    return -gain - method.entropy * mean(entropy) + method.value * error, figures


def optimiser(method: Method) -> optax.GradientTransformation:
    """Adam with a learning rate of 1, which `learn` scales."""
    return optax.chain(optax.clip_by_global_norm(method.norm), optax.adam(1.0))


def rate(method: Method, number: int, rounds: int) -> Array:
    """The learning rate in a round: cosine decay to a tenth."""
    return jnp.asarray(optax.cosine_decay_schedule(method.rate, rounds, alpha=0.1)(number))


def learn(
    network: Network,
    state: Any,
    t: TopologyArrays,
    graphs: GraphTables,
    batch: TrainingBatch,
    key: Array,
    method: Method,
    rate: Array,
) -> tuple[Network, Any, dict[str, Array]]:
    """Several passes over the segments, in random minibatches. `graphs`: of each scenario.

    Segments without decisions (a third, if runs differ in length) are skipped.
    """
    count = batch.advantage.shape[0]
    each = min(method.pieces, count)
    factors = network.factors
    optimise = optimiser(method)
    filled = batch.kept.any(axis=1)
    many = -(-filled.sum() // each)  # steps per pass

    def order(key: Array) -> Array:
        """Filled segments in random order, then the others, repeated to a whole number of steps."""
        shuffled = jax.random.permutation(key, count)
        shuffled = shuffled[jnp.argsort(~filled[shuffled], stable=True)]
        return jnp.resize(shuffled, (-(-count // each), each))

    def step(network: Network, state: Any, which: Array) -> tuple[Network, Any, dict[str, Array]]:
        some = jax.tree.map(lambda x: x[which], batch)
        differentiated = eqx.filter_value_and_grad(loss, has_aux=True)
        (_, figures), gradient = differentiated(network, t, graphs, some, method, factors)
        changes, state = optimise.update(gradient, state, eqx.filter(network, eqx.is_inexact_array))
        figures["slope"] = optax.tree.norm(gradient)
        return eqx.apply_updates(network, jax.tree.map(lambda x: rate * x, changes)), state, figures

    orders = jnp.stack([order(k) for k in jax.random.split(key, method.epochs)])
    learned, fixed = eqx.partition(network, eqx.is_array)

    def figures() -> dict[str, Array]:
        some = jax.tree.map(lambda x: x[orders[0, 0]], batch)
        return loss(network, t, graphs, some, method, factors)[1]

    nothing = {**jax.tree.map(jnp.zeros_like, jax.eval_shape(figures)), "slope": jnp.zeros(())}

    def body(carry: Any) -> Any:
        at, learned, state, sums = carry
        network, state, figures = step(eqx.combine(learned, fixed), state, orders[at // many, at % many])
        return at + 1, eqx.filter(network, eqx.is_array), state, jax.tree.map(jnp.add, sums, figures)

    total = method.epochs * many
    _, learned, state, sums = jax.lax.while_loop(lambda carry: carry[0] < total, body, (0, learned, state, nothing))
    return eqx.combine(learned, fixed), state, jax.tree.map(lambda x: x / jnp.maximum(total, 1), sums)
