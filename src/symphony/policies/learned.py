"""The learned policy: graph neural networks over cluster and task graphs, an LSTM, and a pointer network over pairs.

One decision:

    observation ─► features ─► rows, devices ─► topology encoder ─┐
                               gangs, graphs ─► graph encoder ────┼─► pairs of a gang and a device ─► scores ─► action
                               scene ─────────► LSTM ─────────────┘   preempt, configure, wait ──────┘
                                                 └─► value (for training)

The score of a pair is the network's output plus a heuristic prior with learned weights:

    score = network(pair) − λ · regret − μ · remaining + ν · criticality − κ · queue

*regret*: delay against the earliest finish time of the gang on any device; *remaining*: the longest path left of its
job; *criticality*: the gang's share of that path; *queue*: time for which its best device is busy beyond the transfer
of its inputs. With a network output of 0 this is a good heuristic: earliest finish time under the belief, shortest job
first.

The forward pass also runs on NumPy arrays, in real runs: see `Network.on_host`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from symphony.estimation.tuning import FILTER_FACTORS, BeliefSlopes, Tuning
from symphony.policies.encoders import Dense, GraphEncoder, HostRoutes, Mlp, TopologyEncoder, on_host, relu
from symphony.policies.features import (
    Candidates,
    Features,
    GangColumn,
    GraphTables,
    OtherColumn,
    PairColumn,
    RowColumn,
    SceneColumn,
    extract_features,
    graph_tables,
)
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.objective import MEAN_ONLY, OBJECTIVE_NAMES, ObjectiveLike, objective_weights
from symphony.scheduling.indexing import FloatScalar, IntScalar, float_array, namespace, take
from symphony.scheduling.policy import Action, Observation, Policy, choose, place, preempt, reconfigure, wait

AnyPolicy = TypeVar("AnyPolicy", bound=Policy)
MASKED_SCORE = -1e9  # score of an action that the mask forbids; infinite ones have no gradient
NON_ESTIMATES = (PairColumn.ISOLATED, PairColumn.SLOWER_DEVICE, PairColumn.IDLE)  # features kept without `estimates`


@dataclass(frozen=True)
class Sizes:
    """Sizes of the network, and switches for ablations."""

    gangs: int = 16  # candidates of a decision
    devices: int = 8  # choices for each candidate
    preempts: int = 4  # running gangs that might be preempted
    configures: int = 4  # gangs that a slot might be configured for
    width: int = 32  # of embeddings
    memory: int = 64  # of the LSTM
    topology: bool = True  # the topology encoder; without it, devices are embedded independently
    graph: bool = True  # the graph encoder
    deviation: bool = True  # the belief's standard deviation as a feature
    prior: bool = True  # the heuristic in the scores
    sharpness: float = 1.0  # initial scale of that heuristic: a smaller one explores more
    estimates: bool = True  # estimates of finish times as features; without them, isolated times only

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Numbers of candidates, choices for each, preemptions and reconfigurations."""
        return self.gangs, self.devices, self.preempts, self.configures


STANDARD = Sizes()
# As in the paper: embeddings of 16, all kernels and devices as candidates (here up to a bound), no heuristic in the
# scores and no estimates. The paper does not give the size of its LSTM.
PUBLISHED = Sizes(gangs=32, devices=48, width=16, memory=64, prior=False, estimates=False)
PRESETS = {"standard": STANDARD, "published": PUBLISHED}


class Memory(NamedTuple):
    """The state of the LSTM."""

    hidden: Float[Array, "*batch memory"]
    cell: Float[Array, "*batch memory"]


class Prepared(eqx.Module):
    """Computed once before a run."""

    graphs: GraphTables
    nodes: Float[Array, "graphs tasks width"]  # embeddings of gangs


class Embeddings(NamedTuple):
    """Embeddings of a decision. Leading axes may be decisions."""

    device: Float[Array, "*batch devices width"]
    gang: Float[Array, "*batch candidates width"]
    other_action: Float[Array, "*batch others width"]
    scene: Float[Array, "*batch memory"]


class PolicyOutput(eqx.Module):
    """Output of the network. Actions: candidates * choices pairs, other actions, and to wait."""

    scores: Float[Array, "*batch actions"]  # MASKED_SCORE where the mask forbids
    log_probs: Float[Array, "*batch actions"]
    value: Float[Array, "*batch"]


class ScoreParts(NamedTuple):
    """Scores of actions, and what the value is computed from."""

    pairs: Float[Array, "*batch candidates choices"]
    others: Float[Array, "*batch others"]
    waits: Float[Array, "*batch"]
    context: Float[Array, "*batch contexts"]


class NetworkForward:
    """The forward pass; `Network` has the fields."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def encode(self, g: GraphTables) -> Float[Array, "graphs tasks width"]:
        """Embeddings of gangs in their graphs."""
        nodes = self.graph(g)
        return nodes if self.sizes.graph else namespace(nodes).zeros_like(nodes)

    def embed_gangs(
        self, nodes: Float[Array, "graphs tasks width"], gangs: Candidates
    ) -> Float[Array, "*batch candidates width"]:
        here = nodes[gangs.graph, gangs.task]
        return relu(self.gang(namespace(here).concatenate([gangs.features, here], axis=-1)))

    def embed(
        self, t: TopologyArrays | HostRoutes, nodes: Float[Array, "graphs tasks width"], seen: Features
    ) -> Embeddings:
        rows = seen.rows if self.sizes.deviation else without(seen.rows, RowColumn.BACKGROUND_STD)
        encoded = self.topology(t, rows, seen.devices) if self.sizes.topology else self.alone(seen.devices)
        device = relu(encoded)
        gang = self.embed_gangs(nodes, seen.gangs)
        xp = namespace(gang)
        there = seen.gangs.there[..., None]
        gangs = (gang * there).sum(axis=-2) / xp.maximum(there.sum(axis=-2), 1)
        up = xp.asarray(t.exists)[:, None]
        devices = (device * up).sum(axis=-2) / xp.maximum(up.sum(), 1)
        mixed = self.scene(xp.concatenate([seen.scene, gangs, devices], axis=-1))
        scene = relu(mixed + seen.objective @ self.objective)
        others = self.embed_gangs(nodes, seen.other_actions.gangs) if seen.other_actions.device.size else gang[:0]
        return Embeddings(device, gang, others, scene)

    def remember(self, memory: Memory, scene: Float[Array, " memory"]) -> Memory:
        """One step of the LSTM."""
        if not isinstance(scene, np.ndarray):
            return Memory(*self.lstm(scene, (memory.hidden, memory.cell)))
        cell, size = self.lstm, len(scene)
        # Four products each: for one of this size, OpenBLAS would wake another thread and wait for it.
        gates = cell.weight_ih.reshape(4, size, size) @ scene + cell.weight_hh.reshape(4, size, size) @ memory.hidden
        gates += cell.bias.reshape(4, size)
        i, f, _, o = 1 / (1 + np.exp(-gates))
        kept = memory.cell * f + np.tanh(gates[2]) * i
        return Memory(np.tanh(kept) * o, kept)

    def score_actions(
        self, seen: Features, embedded: Embeddings, hidden: Float[Array, "*batch memory"]
    ) -> PolicyOutput:
        score, other, waits, context = self.score_parts(seen, embedded, hidden)
        scores = jnp.concatenate([score.reshape(*score.shape[:-2], -1), other, waits[..., None]], axis=-1)
        return PolicyOutput(scores, log_probabilities(score, other, waits), self.critic(context)[..., 0])

    def score_parts(self, seen: Features, embedded: Embeddings, hidden: Float[Array, "*batch memory"]) -> ScoreParts:
        xp = namespace(hidden)
        context = xp.concatenate([embedded.scene, hidden], axis=-1)
        device = self.pair_device(embedded.device)
        here = gather_devices(device, seen.device)
        pairs = seen.pairs if self.sizes.deviation else without(seen.pairs, PairColumn.UNCERTAINTY)
        if not self.sizes.estimates:
            pairs = without(pairs, *(column for column in PairColumn if column not in NON_ESTIMATES))
        mixed = self.pair(pairs) + here
        mixed += self.pair_gang(embedded.gang)[..., :, None, :] + self.pair_scene(context)[..., None, None, :]
        mixed = relu(mixed)
        score = self.score(mixed)[..., 0]
        if self.sizes.prior:
            score += self.prior(seen)
        score = xp.where(seen.allowed, score, MASKED_SCORE)

        other = xp.zeros(seen.other_actions.device.shape)
        if other.size:
            where = xp.take_along_axis(embedded.device, xp.maximum(seen.other_actions.device, 0)[..., None], axis=-2)
            around = xp.broadcast_to(context[..., None, :], (*where.shape[:-1], context.shape[-1]))
            inputs = xp.concatenate([seen.other_actions.features, embedded.other_action, where, around], axis=-1)
            other = xp.where(seen.other_actions.allowed, self.other_action(inputs)[..., 0] + self.apart, MASKED_SCORE)

        best = xp.where(seen.allowed[..., None], mixed[..., : self.sizes.width], 0).max(axis=(-3, -2))
        waits = self.waiting(xp.concatenate([context, best], axis=-1))[..., 0] + self.idle
        return ScoreParts(score, other, xp.where(seen.may_wait, waits, MASKED_SCORE), context)

    def prior(self, seen: Features) -> Float[Array, "*batch candidates choices"]:
        """The heuristic's scores."""
        gangs, pairs = seen.gangs, seen.pairs
        xp = namespace(pairs)
        order = self.critical * gangs.features[..., GangColumn.CRITICAL]
        order -= self.remaining * gangs.features[..., GangColumn.REMAINING]
        # The best candidate has order 0, so that waiting is compared with a fixed score.
        order -= xp.where(gangs.there, order, MASKED_SCORE).max(axis=-1, keepdims=True)
        # Time for which the best device (the first) is busy beyond the transfer of the inputs: no need to hurry.
        queue, fetch = pairs[..., 0, PairColumn.QUEUE], pairs[..., 0, PairColumn.FETCH]
        order -= self.queue * xp.maximum(queue - fetch, 0)
        return order[..., :, None] - xp.exp(self.regret) * pairs[..., PairColumn.REGRET]


class Network(NetworkForward, eqx.Module):
    """All trained parameters. Saved weights depend on the order of the fields."""

    topology: TopologyEncoder
    alone: Dense  # embedding of devices without the topology encoder
    graph: GraphEncoder
    gang: Dense
    scene: Dense
    lstm: eqx.nn.LSTMCell
    pair: Dense  # projections of the features of a pair …
    pair_gang: Dense  # … and of the embeddings of its gang, its device and the scene into one space
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
    apart: Array  # bias of the scores of other actions …
    idle: Array  # … and of waiting
    factors: Float[Array, " factors"]  # overrides for the counter filter, see `estimation.tuning`
    objective: Float[Array, "objectives memory"]  # effect of the weights of objectives on the scene; at first none
    sizes: Sizes = eqx.field(static=True)

    def __init__(self, key: Array, sizes: Sizes = STANDARD) -> None:
        n, m = sizes.width, sizes.memory
        keys = iter(jax.random.split(key, 14))
        self.sizes = sizes
        self.topology = TopologyEncoder(next(keys), n)
        self.alone = Dense(next(keys), self.topology.device.weight.shape[0], n)
        self.graph = GraphEncoder(next(keys), n)
        self.gang = Dense(next(keys), len(GangColumn) + n, n)
        self.scene = Dense(next(keys), len(SceneColumn) + 2 * n, m)
        self.lstm = eqx.nn.LSTMCell(m, m, key=next(keys))
        self.pair = Dense(next(keys), len(PairColumn), 2 * n)
        self.pair_gang = Dense(next(keys), n, 2 * n)
        self.pair_device = Dense(next(keys), n, 2 * n)
        self.pair_scene = Dense(next(keys), 2 * m, 2 * n)
        self.score = Mlp(next(keys), 2 * n, n, 1, gain=0.01)
        self.other_action = Mlp(next(keys), len(OtherColumn) + 2 * n + 2 * m, n, 1, gain=0.01)
        self.waiting = Mlp(next(keys), 2 * m + n, n, 1, gain=0.01)
        self.critic = Mlp(next(keys), 2 * m, m, 1, gain=0.1)
        self.regret = jnp.log(jnp.asarray(20.0 * sizes.sharpness))
        self.remaining = jnp.asarray(3.0 * sizes.sharpness)
        self.critical = jnp.asarray(6.0 * sizes.sharpness)
        self.queue = jnp.asarray(0.0)
        self.apart = jnp.asarray(-4.0)
        self.idle = jnp.asarray(-2.0)
        self.factors = jnp.zeros(FILTER_FACTORS)
        self.objective = jnp.zeros((len(OBJECTIVE_NAMES), m))

    def scaled(self, by: float) -> Network:
        """The network with all scores multiplied by `by`, an inverse temperature.

        The best action stays the same; below 1, other actions are sampled more often. A trained network hardly samples
        any but its best action; to train it further, it must explore again.
        """

        def scaled(mlp: Mlp) -> Mlp:
            last = mlp.layers[-1]
            return eqx.tree_at(
                lambda m: (m.layers[-1].weight, m.layers[-1].bias), mlp, (by * last.weight, by * last.bias)
            )

        def parts(n: Network) -> tuple[Any, ...]:
            return n.score, n.other_action, n.waiting, n.regret, n.remaining, n.critical, n.queue, n.apart, n.idle

        score, other_action, waiting, regret, *others = parts(self)
        new = (scaled(score), scaled(other_action), scaled(waiting), regret + jnp.log(by), *(by * x for x in others))
        return eqx.tree_at(parts, self, new)

    def features(self, observation: Observation, by_due: bool = True) -> Features:
        return extract_features(observation, *self.sizes.counts, by_due=by_due)

    def on_host(self) -> NetworkForward:
        """The forward pass with NumPy arrays as weights."""
        return on_host(self)


def without(features: Float[Array, "*shape columns"], *columns: IntEnum) -> Float[Array, "*shape columns"]:
    """The features with some columns set to 0."""
    xp = namespace(features)
    return xp.where(np.isin(np.arange(features.shape[-1]), columns), 0, features)


def gather_devices(
    device: Float[Array, "*batch devices width"], which: Int[Array, "*batch candidates choices"]
) -> Float[Array, "*batch candidates choices width"]:
    """Embeddings of the devices of all pairs."""
    if isinstance(device, np.ndarray):
        return device[which]
    if device.ndim == 2:
        return take(device, which)
    # In training: the gradient of a gather is a scatter, element by element; that of a matrix product is a product.
    chosen = (which.reshape(*which.shape[:-2], -1, 1) == jnp.arange(device.shape[-2])) * 1.0
    return (chosen @ device).reshape(*which.shape, device.shape[-1])


def log_probabilities(
    pairs: Float[Array, "*batch candidates choices"],
    others: Float[Array, "*batch others"],
    waits: Float[Array, "*batch"],
) -> Float[Array, "*batch actions"]:
    """Log-probabilities of all actions, from the scores of pairs, other actions and waiting.

    The choice is hierarchical: to wait or not; then which gang to place or which other action; then which device. Each
    level uses the best score below it. In a single softmax, eight equal devices would be eight times as likely as one,
    and waiting, which is one action, would be too unlikely.
    """
    many = pairs.shape[-2]
    acts = jnp.concatenate([pairs.max(axis=-1), others], axis=-1)
    best = acts.max(axis=-1)
    act = jax.nn.log_sigmoid(best - waits)[..., None] + jax.nn.log_softmax(acts)
    placed = act[..., :many, None] + jax.nn.log_softmax(pairs)
    flat = placed.reshape(*placed.shape[:-2], -1)
    log_probs = jnp.concatenate([flat, act[..., many:]], axis=-1)
    scores = jnp.concatenate([pairs.reshape(flat.shape), others], axis=-1)
    log_probs = jnp.where(scores > MASKED_SCORE / 2, log_probs, MASKED_SCORE)
    return jnp.concatenate([log_probs, jax.nn.log_sigmoid(waits - best)[..., None]], axis=-1)


class Learned(Policy):
    """The action with the highest score, or a sample."""

    network: Network
    draws: bool = eqx.field(static=True, default=False)  # sample actions
    slopes: BeliefSlopes | None = eqx.field(static=True, default=None)  # in training: derivatives by the factors
    objective: Float[Array, " objectives"] = eqx.field(default_factory=lambda: float_array(MEAN_ONLY))
    by_due: bool = eqx.field(static=True, default=True)  # queues in order of due times; else first in, first out

    @property
    def name(self) -> str:
        return "symphony"

    @property
    def tuning(self) -> Tuning:
        return Tuning(self.network.factors, self.slopes)

    def init(self, topology: TopologyArrays) -> Memory:
        nothing = jnp.zeros(self.network.sizes.memory)
        return Memory(nothing, nothing)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Prepared:
        g = graph_tables(topology, workload)
        return Prepared(g, self.network.encode(g))

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        state, _, _, index, seen = self.consider(key, state, observation)
        return state, action_at(seen, index)

    def features(self, observation: Observation) -> Features:
        return replace(self.network.features(observation, self.by_due), objective=self.objective)

    def consider(
        self, key: Array, state: Memory, observation: Observation
    ) -> tuple[Memory, PolicyOutput, FloatScalar, IntScalar, Features]:
        """One decision: LSTM state, network output, log-probability and index of the action, and features."""
        seen = self.features(observation)
        embedded = self.network.embed(observation.topology, observation.prepared.nodes, seen)
        memory = self.network.remember(state, embedded.scene)
        output = self.network.score_actions(seen, embedded, memory.hidden)
        index = jax.random.categorical(key, output.log_probs) if self.draws else output.scores.argmax()
        return memory, output, output.log_probs[index], index, seen


def with_objective(policy: AnyPolicy, objective: ObjectiveLike) -> AnyPolicy:
    """The policy with these weights of objectives, in every learned policy that it uses; others stay as they are."""
    return _with(policy, objective=float_array(objective_weights(objective)))


def first_come(policy: AnyPolicy) -> AnyPolicy:
    """The policy with queues that are first in, first out.

    For where heuristics place gangs as well: these would always be behind gangs with due times.
    """
    return _with(policy, by_due=False)


def _with(policy: AnyPolicy, **values: Any) -> AnyPolicy:
    def changed(part: Any) -> Any:
        return replace(part, **values) if isinstance(part, Learned) else part

    return jax.tree.map(changed, policy, is_leaf=lambda part: isinstance(part, Learned))


def action_at(seen: Features, index: IntScalar) -> Action:
    """The action with an index: pairs come first, then other actions, then waiting."""
    pairs, count = seen.device.size, seen.device.shape[1]
    pair = jnp.minimum(index, pairs - 1)
    gang = pair // count
    action = place(take(seen.gangs.number, gang), take(seen.device.reshape(-1), pair), take(seen.order, gang))
    others = seen.other_actions
    other = jnp.clip(index - pairs, 0, max(others.device.size - 1, 0))
    if others.device.size:
        instead = choose(
            take(others.saves, other),
            preempt(take(others.gangs.number, other)),
            reconfigure(take(others.device, other), take(others.kernel, other)),
        )
        action = choose(index < pairs, action, instead)
    return choose(index < pairs + others.device.size, action, wait(seen.wait_s))
