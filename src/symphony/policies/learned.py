"""The learned policy: graph networks over cluster and task graphs, a memory, and a pointer over pairs.

One decision:

    observation ─► see ─► rows, devices ─► topology encoder ─┐
                          gangs, graphs ─► graph encoder ────┼─► pairs of a gang and a device ─► scores ─► action
                          scene ─────────► LSTM ─────────────┘   preempt, configure, wait ──────┘
                                            └─► value (for training)

The score of a pair is a heuristic's, with weights that are learned, too, plus what the network says:

    score = network(pair) − λ · regret − μ · remaining + ν · criticality − κ · queue

where *regret* is how much later than on its best device the gang would finish there, *remaining* the time that its job
has left, *criticality* how much of that the gang heads, and *queue* how much longer its best device is busy than its
inputs take to come. A network that says nothing is a good heuristic: earliest
finish under the belief, shortest job first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from symphony.policies.encoders import Dense, GraphEncoder, Mlp, TopologyEncoder
from symphony.policies.features import (
    CRITICAL,
    FETCH,
    GANG_FEATURES,
    NON_ESTIMATES,
    OTHER_ACTION_FEATURES,
    PAIR_FEATURES,
    QUEUE,
    REGRET,
    REMAINING,
    SCENE_FEATURES,
    UNCERTAINTY,
    Candidates,
    Features,
    GraphTables,
    extract_features,
    graph_tables,
)
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.indexing import take
from symphony.scheduling.policy import Action, Observation, Policy, choose, place, preempt, reconfigure, wait
from symphony.telemetry.tuning import FILTER_FACTORS, BeliefSlopes, Tuning

MASKED_SCORE = -1e9  # a score; infinite ones have no gradient


@dataclass(frozen=True)
class Sizes:
    """How large the network is, and what it is made of; the switches are for ablations."""

    gangs: int = 16  # looked at in a decision
    devices: int = 8  # looked at for each gang
    preempts: int = 4  # running gangs that might be preempted
    configures: int = 4  # gangs that a slot might be configured for
    width: int = 32  # of embeddings
    memory: int = 64  # of the LSTM
    topology: bool = True  # the topology encoder; without it, devices are looked at one by one
    graph: bool = True  # the graph encoder
    deviation: bool = True  # the belief's deviation is seen
    prior: bool = True  # the heuristic in the scores
    sharpness: float = 1.0  # of that heuristic, to begin with: the less, the more else is tried
    estimates: bool = True  # what a pair would take is told; without it, only how long the gang runs alone

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """How many gangs, devices, preemptions and configurations are looked at."""
        return self.gangs, self.devices, self.preempts, self.configures


STANDARD = Sizes()
# As far as the paper says: embeddings of 16, every kernel and device looked at (here up to so many), no heuristic in
# the scores and nothing estimated beforehand. It does not say how wide its LSTM is.
PUBLISHED = Sizes(gangs=32, devices=48, width=16, memory=64, prior=False, estimates=False)
PRESETS = {"standard": STANDARD, "published": PUBLISHED}


class Memory(eqx.Module):
    """What the LSTM carries from decision to decision."""

    hidden: Array
    cell: Array


class Prepared(eqx.Module):
    """What is worked out before a run."""

    graphs: GraphTables
    nodes: Array  # f[A, T, width]: embeddings


class Embeddings(eqx.Module):
    """What a decision looks like to the network."""

    device: Array  # f[D, width]
    gang: Array  # f[K, width]
    other_action: Array  # f[X, width]
    scene: Array  # f[memory]


class PolicyOutput(eqx.Module):
    """What the network says to a decision."""

    scores: Array  # f[K * M + X + 1]: of pairs, asides, and of waiting; NEVER where not allowed
    log_probs: Array  # f[K * M + X + 1]: logarithms of their probabilities
    value: Array  # f[]


class Network(eqx.Module):
    """Everything that is trained."""

    topology: TopologyEncoder
    alone: Dense  # instead of the topology encoder
    graph: GraphEncoder
    gang: Dense
    scene: Dense
    lstm: eqx.nn.LSTMCell
    pair: Dense  # numbers of a pair …
    pair_gang: Dense  # … and embeddings of its gang, its device and the scene, into one space
    pair_device: Dense
    pair_scene: Dense
    score: Mlp
    other_action: Mlp
    waiting: Mlp
    critic: Mlp
    regret: Array  # λ, as a logarithm
    remaining: Array  # μ
    critical: Array  # ν
    queue: Array  # κ
    apart: Array  # score of what places nothing, to begin with …
    idle: Array  # … and of waiting
    factors: Array  # f[FACTORS]: how readings become beliefs, see `telemetry.tuning`
    sizes: Sizes = eqx.field(static=True)

    def __init__(self, key: Array, sizes: Sizes = STANDARD) -> None:
        n, m = sizes.width, sizes.memory
        keys = iter(jax.random.split(key, 14))
        self.sizes = sizes
        self.topology = TopologyEncoder(next(keys), n)
        self.alone = Dense(next(keys), self.topology.device.weight.shape[0], n)
        self.graph = GraphEncoder(next(keys), n)
        self.gang = Dense(next(keys), GANG_FEATURES + n, n)
        self.scene = Dense(next(keys), SCENE_FEATURES + 2 * n, m)
        self.lstm = eqx.nn.LSTMCell(m, m, key=next(keys))
        self.pair = Dense(next(keys), PAIR_FEATURES, 2 * n)
        self.pair_gang = Dense(next(keys), n, 2 * n)
        self.pair_device = Dense(next(keys), n, 2 * n)
        self.pair_scene = Dense(next(keys), 2 * m, 2 * n)
        self.score = Mlp(next(keys), 2 * n, n, 1, gain=0.01)
        self.other_action = Mlp(next(keys), OTHER_ACTION_FEATURES + 2 * n + 2 * m, n, 1, gain=0.01)
        self.waiting = Mlp(next(keys), 2 * m + n, n, 1, gain=0.01)
        self.critic = Mlp(next(keys), 2 * m, m, 1, gain=0.1)
        self.regret = jnp.log(jnp.asarray(20.0 * sizes.sharpness))
        self.remaining = jnp.asarray(3.0 * sizes.sharpness)
        self.critical = jnp.asarray(6.0 * sizes.sharpness)
        self.queue = jnp.asarray(0.0)
        self.apart = jnp.asarray(-4.0)
        self.idle = jnp.asarray(-2.0)
        self.factors = jnp.zeros(FILTER_FACTORS)

    def scaled(self, by: float) -> Network:
        """All scores times so much: the best action stays the best, and others are drawn more often for less than 1.

        A network that has been trained draws little else than its best; whoever trains it on lets it try again.
        """

        def scaled(mlp: Mlp) -> Mlp:
            last = mlp.layers[-1]
            return eqx.tree_at(
                lambda m: (m.layers[-1].weight, m.layers[-1].bias), mlp, (by * last.weight, by * last.bias)
            )

        def parts(n: Network) -> tuple[Any, ...]:
            return n.score, n.other_action, n.waiting, n.regret, n.remaining, n.critical, n.queue, n.apart, n.idle

        score, aside, waiting, regret, *others = parts(self)
        told = (scaled(score), scaled(aside), scaled(waiting), regret + jnp.log(by), *(by * x for x in others))
        return eqx.tree_at(parts, self, told)

    def encode(self, g: GraphTables) -> Array:
        """Embeddings of gangs in their graphs [A, T, width]."""
        nodes = self.graph(g)
        return nodes if self.sizes.graph else jnp.zeros_like(nodes)

    def embed_gangs(self, nodes: Array, gangs: Candidates) -> Array:
        """Embeddings of gangs [..., K, width]."""
        return jax.nn.relu(self.gang(jnp.concatenate([gangs.features, nodes[gangs.graph, gangs.task]], axis=-1)))

    def embed(self, t: TopologyArrays, nodes: Array, seen: Features) -> Embeddings:
        """Embeddings, for one decision, or many [...]."""
        rows = seen.rows if self.sizes.deviation else seen.rows.at[..., -1].set(0)
        encoded = self.topology(t, rows, seen.devices) if self.sizes.topology else self.alone(seen.devices)
        device = jax.nn.relu(encoded)
        gang = self.embed_gangs(nodes, seen.gangs)
        there = seen.gangs.there[..., None]
        gangs = (gang * there).sum(axis=-2) / jnp.maximum(there.sum(axis=-2), 1)
        up = jnp.asarray(t.exists)[:, None]
        devices = (device * up).sum(axis=-2) / jnp.maximum(up.sum(), 1)
        scene = jax.nn.relu(self.scene(jnp.concatenate([seen.scene, gangs, devices], axis=-1)))
        return Embeddings(device, gang, self.embed_gangs(nodes, seen.other_actions.gangs), scene)

    def remember(self, memory: Memory, scene: Array) -> Memory:
        """One step of the LSTM."""
        return Memory(*self.lstm(scene, (memory.hidden, memory.cell)))

    def score_actions(self, seen: Features, embedded: Embeddings, hidden: Array) -> PolicyOutput:
        """Scores and value; for one decision, or many [...]."""
        context = jnp.concatenate([embedded.scene, hidden], axis=-1)
        device = self.pair_device(embedded.device)
        here = gather_devices(device, seen.device)
        pairs = seen.pairs if self.sizes.deviation else seen.pairs.at[..., UNCERTAINTY].set(0)
        if not self.sizes.estimates:
            pairs = jnp.zeros_like(pairs).at[..., NON_ESTIMATES].set(pairs[..., NON_ESTIMATES])
        mixed = self.pair(pairs) + here
        mixed += self.pair_gang(embedded.gang)[..., :, None, :] + self.pair_scene(context)[..., None, None, :]
        score = self.score(jax.nn.relu(mixed))[..., 0]
        if self.sizes.prior:
            score += self.prior(seen)
        score = jnp.where(seen.allowed, score, MASKED_SCORE)

        where = jnp.take_along_axis(embedded.device, jnp.maximum(seen.other_actions.device, 0)[..., None], axis=-2)
        around = jnp.broadcast_to(context[..., None, :], (*where.shape[:-1], context.shape[-1]))
        told = jnp.concatenate([seen.other_actions.features, embedded.other_action, where, around], axis=-1)
        aside = jnp.where(seen.other_actions.allowed, self.other_action(told)[..., 0] + self.apart, MASKED_SCORE)

        best = jnp.where(seen.allowed[..., None], jax.nn.relu(mixed), 0).max(axis=(-3, -2))[..., : self.sizes.width]
        waits = self.waiting(jnp.concatenate([context, best], axis=-1))[..., 0] + self.idle
        waits = jnp.where(seen.may_wait, waits, MASKED_SCORE)
        scores = jnp.concatenate([score.reshape(*score.shape[:-2], -1), aside, waits[..., None]], axis=-1)
        return PolicyOutput(scores, log_probabilities(score, aside, waits), self.critic(context)[..., 0])

    def prior(self, seen: Features) -> Array:
        """The heuristic's scores [..., K, M]."""
        gangs = seen.gangs
        order = self.critical * gangs.features[..., CRITICAL] - self.remaining * gangs.features[..., REMAINING]
        order -= jnp.where(gangs.there, order, MASKED_SCORE).max(
            axis=-1, keepdims=True
        )  # so that waiting has a fixed rival
        # How much longer the best device (the first) is busy than it takes to fetch the inputs: then there is no hurry.
        order -= self.queue * jnp.maximum(seen.pairs[..., 0, QUEUE] - seen.pairs[..., 0, FETCH], 0)
        return order[..., :, None] - jnp.exp(self.regret) * seen.pairs[..., REGRET]


def gather_devices(device: Array, which: Array) -> Array:
    """Embeddings [..., D, width] of the devices [..., K, M] that are looked at."""
    if device.ndim == 2:
        return take(device, which)
    # In training: the gradient of a look-up adds up number by number, that of a product is a product.
    chosen = (which.reshape(*which.shape[:-2], -1, 1) == jnp.arange(device.shape[-2])) * 1.0
    return (chosen @ device).reshape(*which.shape, device.shape[-1])


def log_probabilities(pairs: Array, asides: Array, waits: Array) -> Array:
    """Logarithms of probabilities, of scores of pairs [..., K, M], asides [..., X] and waiting [...], in a row.

    To wait or not comes first, then which gang to place or what else to do, then which device, and each is weighed by
    the best that it leads to. If all were one draw, eight devices that are alike would be eight times as likely as one,
    and waiting, which is one, would seem best when it hardly is.
    """
    many = pairs.shape[-2]
    acts = jnp.concatenate([pairs.max(axis=-1), asides], axis=-1)
    best = acts.max(axis=-1)
    act = jax.nn.log_sigmoid(best - waits)[..., None] + jax.nn.log_softmax(acts)
    placed = act[..., :many, None] + jax.nn.log_softmax(pairs)
    flat = placed.reshape(*placed.shape[:-2], -1)
    told = jnp.concatenate([flat, act[..., many:]], axis=-1)
    scores = jnp.concatenate([pairs.reshape(flat.shape), asides], axis=-1)
    told = jnp.where(scores > MASKED_SCORE / 2, told, MASKED_SCORE)
    return jnp.concatenate([told, jax.nn.log_sigmoid(waits - best)[..., None]], axis=-1)


class Learned(Policy):
    """Decides as the network says: the best action, or a drawn one."""

    network: Network
    draws: bool = eqx.field(static=True, default=False)
    slopes: BeliefSlopes | None = eqx.field(static=True, default=None)  # in training: how beliefs depend on the factors

    @property
    def name(self) -> str:
        """What tables call it."""
        return "symphony"

    @property
    def tuning(self) -> Tuning:
        """The filter that it was trained with."""
        return Tuning(self.network.factors, self.slopes)

    def init(self, topology: TopologyArrays) -> Memory:
        """An empty memory."""
        nothing = jnp.zeros(self.network.sizes.memory)
        return Memory(nothing, nothing)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Prepared:
        """Tables of the graphs, and embeddings of their gangs."""
        g = graph_tables(topology, workload)
        return Prepared(g, self.network.encode(g))

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Place a gang, preempt one, configure a slot, or wait."""
        state, _, _, index, seen = self.consider(key, state, observation)
        return state, action_at(seen, index)

    def consider(
        self, key: Array, state: Memory, observation: Observation
    ) -> tuple[Memory, PolicyOutput, Array, Array, Features]:
        """A decision: memory, what was said, log-probability and number of the action, and what was seen."""
        seen = extract_features(observation, *self.network.sizes.counts)
        embedded = self.network.embed(observation.topology, observation.prepared.nodes, seen)
        memory = self.network.remember(state, embedded.scene)
        said = self.network.score_actions(seen, embedded, memory.hidden)
        index = jax.random.categorical(key, said.log_probs) if self.draws else said.scores.argmax()
        return memory, said, said.log_probs[index], index, seen


def action_at(seen: Features, index: Array) -> Action:
    """The action of a number: pairs come first, then asides, then waiting."""
    pairs, count = seen.device.size, seen.device.shape[1]
    pair = jnp.minimum(index, pairs - 1)
    action = place(take(seen.gangs.number, pair // count), take(seen.device.reshape(-1), pair))
    asides = seen.other_actions
    aside = jnp.clip(index - pairs, 0, max(asides.device.size - 1, 0))
    if asides.device.size:
        instead = choose(
            take(asides.saves, aside),
            preempt(take(asides.gangs.number, aside)),
            reconfigure(take(asides.device, aside), take(asides.kernel, aside)),
        )
        action = choose(index < pairs, action, instead)
    return choose(index < pairs + asides.device.size, action, wait(seen.wait_s))
