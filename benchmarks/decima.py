"""A network in the manner of Decima (Mao and others, 2019): `python -m benchmarks.decima OUT [--quick] [--minutes M]`.

Decima embeds task graphs by messages from children to parents, sums nodes to jobs and jobs to the cluster, scores the
nodes that may run, and limits how many executors a job may use. Of the hardware it knows how many executors are free.
It is trained here by our trainer, on what `benchmarks.weights` draws, to measure what the hardware's structure, the
beliefs and the estimates of the learned policy add with the same data and budget.

Differences: executors are unlike, so that a gang goes to the idle device on which its profile is fastest; the limit on
a job lowers the scores of its gangs instead of cutting them off; messages go a fixed number of times; the bound on
waiting applies, as to all learned policies. It needs an accelerator; the same command resumes a run that was stopped.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.weights import LARGE, MANY, SIZE, SMALL, drawn, kinds
from symphony.estimation.tuning import FILTER_FACTORS
from symphony.learning.train import TrainingRound, train
from symphony.learning.update import PPO
from symphony.policies import Learned, Network, Sizes
from symphony.policies.encoders import Mlp
from symphony.policies.features import Features, GraphTables, NodeColumn, SceneColumn, extract_features
from symphony.policies.learned import MASKED_SCORE, Embeddings, Memory, PolicyOutput, log_probabilities
from symphony.problem.arrays import TopologyArrays
from symphony.problem.objective import OBJECTIVE_NAMES
from symphony.scheduling.indexing import first_min, take
from symphony.scheduling.policy import Observation, idle_devices
from symphony.scheduling.state import QUEUED, RUNNING
from tests.compiling import compile_quickly

NODES = (NodeColumn.ISOLATED, NodeColumn.PARENTS, NodeColumn.CHILDREN, NodeColumn.WORKERS)
JOBS = 3  # columns of a candidate's job: its work left, its running share of the slots, its unfinished gangs
SCENE = (SceneColumn.JOBS, SceneColumn.READY, SceneColumn.BUSY, SceneColumn.IDLE)
MESSAGES = 4
OVER_LIMIT = 10.0  # decrease of a score if the job runs on all slots and may run on no slot
DECIMA = Sizes(gangs=32, devices=1, preempts=0, configures=0, width=16, memory=1)


class DecimaNetwork(eqx.Module):
    """The methods of `Network` that a learned policy and its training use."""

    node: Mlp
    message: Mlp
    job: Mlp
    score: Mlp
    limit: Mlp
    critic: Mlp
    idle: Array  # score of waiting
    factors: Array  # of the counter filter, not trained
    objective: Array  # not used
    sizes: Sizes = eqx.field(static=True)

    def __init__(self, key: Array, sizes: Sizes = DECIMA) -> None:
        n, keys = sizes.width, iter(jax.random.split(key, 6))
        scene = n + len(SCENE)
        self.sizes = sizes
        self.node = Mlp(next(keys), len(NODES), 2 * n, n)
        self.message = Mlp(next(keys), n, 2 * n, n, gain=0.5)
        self.job = Mlp(next(keys), n + JOBS, 2 * n, n)
        self.score = Mlp(next(keys), 2 * n + scene, 2 * n, 1, gain=0.1)
        self.limit = Mlp(next(keys), n + scene, 2 * n, 1, gain=0.1)
        self.critic = Mlp(next(keys), scene, 2 * n, 1, gain=0.1)
        self.idle, self.factors = jnp.asarray(-2.0), jnp.zeros(FILTER_FACTORS)
        self.objective = jnp.zeros((len(OBJECTIVE_NAMES), sizes.memory))

    def features(self, observation: Observation, by_due: bool = True) -> Features:
        """Candidates with features of their jobs, each with the idle device that is fastest for it."""
        seen = extract_features(observation, *self.sizes.counts, by_due=by_due)
        core, tasks = observation.core, observation.workload.kernel.shape[1]
        idle, gang = idle_devices(observation), seen.gangs.number

        def fastest(gang: Array) -> tuple[Array, Array]:
            free = idle & observation.feasible(gang)
            seconds, device = first_min(jnp.where(free, observation.seconds(gang), jnp.inf))
            return jnp.minimum(device, idle.shape[0] - 1), jnp.isfinite(seconds)

        device, free = jax.vmap(fastest)(gang)
        busy = ((core.status == RUNNING) | (core.status == QUEUED)).reshape(-1, tasks).sum(axis=1)
        g: GraphTables = observation.prepared.graphs
        open_ = core.status.reshape(-1, tasks) < RUNNING
        left = jnp.log1p(jnp.where(open_, g.best[core.graph], 0).sum(axis=1) / g.scale)
        share = busy / jnp.maximum(observation.topology.slots.sum(), 1)
        job = jnp.stack([left, share, jnp.log1p(core.unfinished)], axis=1)
        allowed = seen.gangs.there & free
        return replace(
            seen,
            gangs=replace(seen.gangs, features=take(job, gang // tasks)),
            device=device[:, None],
            allowed=allowed[:, None],
            may_wait=seen.may_wait | ~allowed.any(),
        )

    def encode(self, g: GraphTables) -> Array:
        """Embeddings of gangs [graphs, tasks, width]: sums of messages from children, several times."""
        nodes = own = self.node(g.nodes[..., NODES])

        def from_children(x: Array, parent: Array, child: Array) -> Array:
            sent = jnp.where((child < x.shape[0])[:, None], x.at[child].get(mode="clip"), 0)
            return jnp.zeros_like(x).at[parent].add(sent, mode="drop")

        for _ in range(MESSAGES):
            sent = jax.vmap(from_children)(self.message(nodes), g.links.source, g.links.target)
            nodes = own + jnp.tanh(sent)
        return nodes

    def embed(self, t: TopologyArrays, nodes: Array, seen: Features) -> Embeddings:
        """Embeddings of candidates (`gang`), their jobs (`other_action`) and the cluster (`scene`)."""
        gang = nodes[seen.gangs.graph, seen.gangs.task]
        job = self.job(jnp.concatenate([nodes.mean(axis=1)[seen.gangs.graph], seen.gangs.features], axis=-1))
        there = seen.gangs.there[..., None]
        cluster = jnp.where(there, job, 0).sum(axis=-2) / jnp.maximum(there.sum(axis=-2), 1)
        scene = jnp.concatenate([cluster, seen.scene[..., SCENE]], axis=-1)
        return Embeddings(seen.devices, gang, job, scene)

    def remember(self, memory: Memory, scene: Array) -> Memory:
        return memory

    def score_actions(self, seen: Features, embedded: Embeddings, hidden: Array) -> PolicyOutput:
        scene = jnp.broadcast_to(embedded.scene[..., None, :], (*embedded.gang.shape[:-1], embedded.scene.shape[-1]))
        score = self.score(jnp.concatenate([embedded.gang, embedded.other_action, scene], axis=-1))
        limit = jax.nn.sigmoid(self.limit(jnp.concatenate([embedded.other_action, scene], axis=-1)))
        score -= OVER_LIMIT * jax.nn.relu(seen.gangs.features[..., 1:2] - limit)
        score = jnp.where(seen.allowed, score, MASKED_SCORE)
        waits = jnp.where(seen.may_wait, self.idle, MASKED_SCORE)
        none = jnp.zeros((*waits.shape, 0))
        scores = jnp.concatenate([score[..., 0], waits[..., None]], axis=-1)
        return PolicyOutput(scores, log_probabilities(score, none, waits), self.critic(embedded.scene)[..., 0])


def decima(key: Array) -> Learned:
    """A policy with random weights."""
    return Learned(cast(Network, DecimaNetwork(key)))


def load(path: str | Path) -> Learned:
    """A policy that training wrote."""
    with Path(path).open("rb") as file:
        sizes = Sizes(**json.loads(file.readline())["sizes"])
        return Learned(cast(Network, eqx.tree_deserialise_leaves(file, DecimaNetwork(jax.random.key(0), sizes))))


def main() -> None:
    """Train on the scenarios of the shipped weights; `best.policy` is written after every validation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument("--rounds", type=int, default=240)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    given = parser.parse_args()
    if given.quick:
        compile_quickly()  # most of the time is compilation
    chosen = kinds(given.quick)

    def tell(told: TrainingRound) -> None:
        look = "" if told.against is None else f"  against the best rival {told.against:.4f}"
        print(f"round {told.number + 1:4} {told.seconds:6.0f} s {told.rate:8,.0f}/s{look}", flush=True)

    options: dict[str, Any] = {"rounds": 4 if given.quick else given.rounds, "minutes": given.minutes}
    train(
        topology=[x.course.topology for x in chosen],
        workload=[*MANY, *LARGE, *SMALL],
        start=decima(jax.random.key(0)),
        sizes=DECIMA,
        size=chosen[0].size if given.quick else SIZE,
        method=PPO,
        checkpoint=given.out,
        drawn_before=drawn(given.quick),
        tell=tell,
        **options,
    )


if __name__ == "__main__":
    main()
