"""Training of `placer.py` on episodes of rounds, in worlds drawn from the belief.

Three methods (`train(how=…)`):

- `actor-critic`: the predecessor of the published system (Harmony), in the world of the mean belief.
- `meta`: members of the ensemble are scenarios. In each, one step of policy gradient adapts the weights; the outer step
  (PPO) differentiates through it, so that good initial weights are learned. `adapt` takes the inner step later.
- `history`: the same scenarios without an inner step; errors of predicted speeds in the last rounds are an input
  (`RoundInputs.residual`).

The belief is the mean of the members in all three; the true world is that mean, or a member. The baseline of an action
is the mean of other episodes of the same list of jobs: with a learned critic, nothing was learned. Later costs are
discounted (FADES): over sixty rounds of a list, the effect of one action would be lost in noise. GPUs of a kind are one
pool, without machines; jobs that arrive in a round wait for the next one.

The most likely actions are evaluated regularly on held-out lists. The best weights there are the result, so training
cannot make things worse; `TrainedPlacer.validation_costs` has the costs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from benchmarks.placer import (
    MASKED_LOGIT,
    RESIDUAL_DECAY,
    UNTRAINED_SHARPNESS,
    RoundAllocation,
    RoundInputs,
    action_features,
    apply_action,
    network,
)
from symphony.problem.errors import InputError
from symphony.problem.speeds import PACKED, SPREAD
from symphony.training_jobs.beliefs import NO_NEIGHBOUR, Beliefs, SpeedQuery

TRAINING_METHODS = ("actor-critic", "meta", "history")
ROUND_S, MOVING_S, HORIZON_S = 600.0, 60.0, 1800.0
PPO_CLIP, PLACER_LEARNING_RATE, INNER_STEP = 0.2, 3e-3, 0.1  # of the ratio; of Adam; of the inner step
PPO_EPOCHS = 3  # steps of Adam on each batch of episodes
DISCOUNT = 0.9  # discount of costs per round
VALIDATION_INTERVAL, VALIDATION_LISTS = 20, 8  # steps; lists in each world
SPREAD_OF_LENGTHS, LONGEST_H = 1.4, 6.0  # as jobs are drawn; cut so that episodes end


class SpeedWorld(NamedTuple):
    """N kernels on Y kinds of GPU."""

    unit_s: Any  # f[N, Y]; 0 = does not run there
    kept: Any  # f[N, N, Y]; 0 = must not share


class SpeedWorlds(NamedTuple):
    """The mean belief, and K possible worlds."""

    believed: SpeedWorld
    doubt: Array  # f[N, Y]
    members: SpeedWorld  # with a leading K
    width: Array  # i[N]: GPUs of a kernel's jobs
    gpus: Array  # i[Y]


class JobLists(NamedTuple):
    """B lists of J jobs."""

    kernel: Array  # i[B, J]
    arrival_s: Array  # f[B, J]
    length_s: Array  # f[B, J]: on the GPU with the best believed speed


class EpisodeSteps(NamedTuple):
    """Decisions of episodes: T rounds, J jobs, A actions."""

    features: Array  # f[T, J, A, F]
    gain: Array  # f[T, J, A]
    able: Array  # bool[T, J, A]
    action: Array  # i[T, J]
    real: Array  # bool[T, J]: there was a job to place
    logp: Array  # f[T, J]
    cost: Array  # f[T]: time that jobs spent in the system in a round, in job-rounds


class TrainedPlacer(NamedTuple):
    """Weights, mean cost of an episode in each step, and how often each member was the scenario."""

    weights: eqx.nn.MLP
    costs: list[float]  # job-rounds a job, actions drawn
    validation_costs: list[
        tuple[int, float]
    ]  # after so many steps; the same of most likely actions on lists not trained on
    used: np.ndarray  # i[K]


def speed_worlds(beliefs: Beliefs, width: np.ndarray, gpus: np.ndarray, widest: np.ndarray) -> SpeedWorlds:
    """Speeds by each member, of every kernel on every kind, and of every pair; gangs wider than a machine are spread.

    `width` [N]: GPUs of each kernel's jobs; `gpus` [Y]; `widest` [Y]: the most GPUs of a kind that a machine has.
    """
    d = beliefs.described
    n, y = d.unit_s.shape[:2]
    kernel, kind = (x.ravel() for x in np.meshgrid(np.arange(n), np.arange(y), indexing="ij"))
    spread = np.where(width[kernel] > widest[kind], SPREAD, PACKED)
    alone = SpeedQuery(kernel, kind, spread, np.full(len(kernel), NO_NEIGHBOUR))
    a, b, k = (x.ravel() for x in np.meshgrid(np.arange(n), np.arange(n), np.arange(y), indexing="ij"))
    pairs = SpeedQuery(a, k, np.zeros(len(a), int), b)
    trust = float(beliefs.ensemble.trust)

    def members(q: SpeedQuery) -> np.ndarray:
        said = np.asarray(beliefs.ensemble.members(jnp.asarray(q.inputs(d)))[0])
        return np.asarray(q.guess(d) + trust * said)  # [K, ...]

    log_alone = members(alone).reshape(-1, n, y)
    packed = members(SpeedQuery(a, k, np.zeros(len(a), int), np.full(len(a), NO_NEIGHBOUR))).reshape(-1, n, n, y)
    log_pairs = members(pairs).reshape(-1, n, n, y)
    runs, may = d.unit_s[..., PACKED] > 0, (d.kept > 0) & (width == 1)[:, None, None] & (width == 1)[:, None]
    kept = np.where(may, np.clip(np.exp(packed - log_pairs), 0.02, 1.0), 0.0)
    believed = SpeedWorld(np.where(runs, np.exp(log_alone.mean(axis=0)), 0.0), kept.mean(axis=0))
    every = SpeedWorld(np.where(runs, np.exp(log_alone), 0.0), kept)
    to = partial(jax.tree.map, lambda x: jnp.asarray(x, jnp.float32))
    return SpeedWorlds(to(believed), jnp.asarray(log_alone.std(axis=0), jnp.float32), to(every),
                  jnp.asarray(width, jnp.int32), jnp.asarray(gpus, jnp.int32))  # fmt: skip


def job_lists(seed: int, w: SpeedWorlds, number: int, jobs: int, load: float) -> JobLists:
    """Lists of jobs of these kernels, drawn like those of `measured_jobs`."""
    rng = np.random.default_rng([seed, 8])
    able = np.flatnonzero((np.asarray(w.believed.unit_s) > 0).any(axis=1) & (np.asarray(w.width) > 0))
    kernel = rng.choice(able, (number, jobs))
    length = 3600 * np.clip(rng.lognormal(0, SPREAD_OF_LENGTHS, (number, jobs)), 0.05, LONGEST_H)
    unit_s = np.asarray(w.believed.unit_s)[able]
    best = np.where(unit_s > 0, unit_s, np.inf).min(axis=1, keepdims=True)
    relative = np.where(unit_s > 0, best / np.where(unit_s > 0, unit_s, 1.0), 0.0)
    sustained = float((relative.mean(axis=0) * np.asarray(w.gpus)).sum())
    gap = (length * np.asarray(w.width)[kernel]).mean(axis=1, keepdims=True) / (load * sustained)
    arrival = np.cumsum(rng.exponential(1.0, (number, jobs)) * gap, axis=1)
    return JobLists(jnp.asarray(kernel), jnp.asarray(arrival, jnp.float32), jnp.asarray(length, jnp.float32))


def episode(
    weights: eqx.nn.MLP,
    w: SpeedWorlds,
    true: SpeedWorld,
    one: JobLists,
    key: Array,
    rounds: int,
    history: bool,
    drawn: bool = True,
) -> EpisodeSteps:
    """A whole episode of one list of jobs in a world; actions are `drawn`, or the most likely ones."""
    kernel, width = one.kernel, w.width[one.kernel]
    jobs = kernel.shape[0]
    told, real = (_of(x, kernel) for x in (w.believed, true))
    units = one.length_s * told.unit_s.max(axis=1)  # here `unit_s` is speed, in units a second
    every = jnp.arange(jobs)

    def a_round(carry: tuple[Any, Array, Array], at: tuple[Array, Array]) -> tuple[tuple[Any, Array, Array], Any]:
        left, home, residual = carry
        now, key = at
        here = (one.arrival_s <= now) & (left > 0)
        soonest = jnp.where(here, left / told.unit_s.max(axis=1), jnp.inf)
        order = jnp.argsort(soonest * width)
        weight = _weights(soonest, told.unit_s, jnp.where(here, width, 0), w.gpus)
        moved = (home >= 0)[:, None] & (home[:, None] != jnp.arange(w.gpus.shape[0]))
        worth = told.unit_s / told.unit_s.max(axis=1, keepdims=True) * weight[:, None]
        worth = worth * jnp.where(moved, 1 - MOVING_S / HORIZON_S, 1.0)
        table = RoundInputs(
            (worth * here[:, None])[order],
            jnp.where((here[:, None] & here & (every[:, None] != every))[..., None], told.kept, 0.0)[order][:, order],
            jnp.where(here, width, 0)[order],
            w.doubt[kernel][order],
            (residual * history)[order],
            jnp.log(jnp.clip(soonest, 1.0, 1e6) / 3600)[order],
        )

        def place(taken: RoundAllocation, at: tuple[Array, Array]) -> tuple[RoundAllocation, Any]:
            j, key = at
            features, gain, able, partner = action_features(jnp, table, taken, j)
            features = jax.lax.stop_gradient(features)
            there = table.width[j] > 0
            able &= there | (jnp.arange(able.shape[0]) == 0)
            logits = jnp.where(able, UNTRAINED_SHARPNESS * gain + jax.vmap(weights)(features), MASKED_LOGIT)
            action = jax.random.categorical(key, logits) if drawn else jnp.argmax(logits)
            logp = jax.nn.log_softmax(logits)[action]
            return apply_action(jnp, table, taken, j, action, partner), (features, gain, able, action, there, logp)

        nobody = jnp.full(jobs, -1, jnp.int32)
        taken, made = jax.lax.scan(
            place, RoundAllocation(w.gpus.astype(jnp.float32), nobody, nobody), (every, jax.random.split(key, jobs))
        )
        kind = jnp.zeros(jobs, jnp.int32).at[order].set(taken.kind)
        partner = (
            jnp.zeros(jobs, jnp.int32)
            .at[order]
            .set(jnp.where(taken.partner >= 0, order[taken.partner], -1).astype(jnp.int32))
        )
        speed, said = (_speed(x, kind, partner) for x in (real, told))
        lost = jnp.where((home >= 0) & (kind >= 0) & (kind != home), MOVING_S, 0.0)
        needs = jnp.where(speed > 0, left / jnp.maximum(speed, 1e-30) + lost, jnp.inf)
        cost = jnp.where(here, jnp.minimum(needs / ROUND_S, 1.0), 0.0).sum()
        left_now = jnp.where(needs <= ROUND_S, 0.0, left - speed * (ROUND_S - lost))
        off = jnp.clip(jnp.log(jnp.maximum(speed, 1e-30) / jnp.maximum(said, 1e-30)), -1, 1)
        residual = residual + jnp.where(here & (speed > 0), RESIDUAL_DECAY * (off - residual), 0.0)
        return (jnp.where(here, left_now, left), jnp.where(here, kind, -1), residual), (*made, cost)

    start = units, jnp.full(jobs, -1, jnp.int32), jnp.zeros(jobs)
    times = ROUND_S * jnp.arange(1, rounds + 1)
    (left, _, _), made = jax.lax.scan(a_round, start, (times, jax.random.split(key, rounds)))
    # Unfinished jobs are charged their remaining time at their best speed.
    late = jnp.where(left > 0, left / real.unit_s.max(axis=1) / ROUND_S, 0.0).sum()
    steps = EpisodeSteps(*made)
    return steps._replace(cost=steps.cost.at[-1].add(late))


def _of(world: SpeedWorld, kernel: Array) -> SpeedWorld:
    """Speeds of a list's jobs in units a second, and the shares that they keep beside one another."""
    seconds = world.unit_s[kernel]
    return SpeedWorld(
        jnp.where(seconds > 0, 1 / jnp.where(seconds > 0, seconds, 1.0), 0.0), world.kept[kernel][:, kernel]
    )


def _weights(soonest: Array, speed: Array, width: Array, gpus: Array) -> Array:
    """As `planner.weights`."""
    runs = jnp.isfinite(soonest)
    number = runs.sum()
    relative = jnp.where(runs[:, None], speed / speed.max(axis=1, keepdims=True), 0.0).sum(axis=0)
    count = jnp.maximum(1.0, (relative / jnp.maximum(number, 1) * gpus).sum())
    lacks = jnp.maximum(0.0, 1 - count / jnp.maximum(1, width.sum()))
    later = number - 1 - jnp.argsort(jnp.argsort(soonest))
    return jnp.where(runs, 1 + width * lacks * later / count, 0.0)


def _speed(world: SpeedWorld, kind: Array, partner: Array) -> Array:
    """Units a second of jobs on these kinds beside these partners [J]."""
    rows = jnp.arange(kind.shape[0])
    kept = jnp.where(partner >= 0, world.kept[rows, partner, kind], 1.0)
    return jnp.where(kind >= 0, world.unit_s[rows, kind] * kept, 0.0)


def _advantage(cost: Array) -> Array:
    """Advantage of each round's actions [B, R, T] over the other R episodes of the same list."""

    def back(later: Array, now: Array) -> tuple[Array, Array]:
        to_go = now + DISCOUNT * later
        return to_go, to_go

    to_go = jnp.moveaxis(
        jax.lax.scan(back, jnp.zeros(cost.shape[:2]), jnp.moveaxis(cost, -1, 0), reverse=True)[1], 0, -1
    )
    off = to_go.mean(axis=1, keepdims=True) - to_go
    return off / (off.std() + 1e-6)


def _loss(weights: eqx.nn.MLP, steps: EpisodeSteps, advantage: Array) -> Array:
    """PPO's; at the weights that the actions were drawn with, its gradient is the policy gradient."""
    each = jax.vmap(weights)(steps.features.reshape(-1, steps.features.shape[-1])).reshape(steps.gain.shape)
    logits = jnp.where(steps.able, UNTRAINED_SHARPNESS * steps.gain + each, MASKED_LOGIT)
    logp = jnp.take_along_axis(jax.nn.log_softmax(logits), steps.action[..., None], axis=-1)[..., 0]
    ratio = jnp.exp(logp - steps.logp)
    a = advantage[..., None]
    better = jnp.minimum(ratio * a, jnp.clip(ratio, 1 - PPO_CLIP, 1 + PPO_CLIP) * a)
    return -jnp.where(steps.real, better, 0.0).sum() / jnp.maximum(steps.real.sum(), 1)


def _true(w: SpeedWorlds, member: Array) -> SpeedWorld:
    """The world of a member; -1 = the mean belief."""
    return jax.tree.map(lambda m, mean: jnp.where(member < 0, mean, m[member]), w.members, w.believed)


def _episodes(
    weights: Any,
    w: SpeedWorlds,
    which: Array,
    batch: JobLists,
    key: Array,
    repeats: int,
    rounds: int,
    history: bool,
    own: bool,
) -> EpisodeSteps:
    """Episodes [B, R] of lists in the worlds of these members (-1 = mean belief); `own`: weights have a leading B."""

    def repeated(weights: Any, member: Array, one: JobLists, key: Array) -> EpisodeSteps:
        keys = jax.random.split(key, repeats)
        return jax.vmap(lambda k: episode(weights, w, _true(w, member), one, k, rounds, history))(keys)

    keys = jax.random.split(key, which.shape[0])
    by = eqx.filter_vmap(repeated, in_axes=(eqx.if_array(0) if own else None, 0, 0, 0))
    return by(weights, which, batch, keys)


@eqx.filter_jit
def mean_cost(weights: eqx.nn.MLP, w: SpeedWorlds, which: Array, batch: JobLists, rounds: int, history: bool) -> Array:
    """Mean cost of a job in rounds under the most likely actions, for lists in the worlds of these members."""

    def one(member: Array, some: JobLists) -> Array:
        key = jax.random.key(0)
        return episode(weights, w, _true(w, member), some, key, rounds, history, drawn=False).cost.sum()

    return jax.vmap(one)(which, batch).mean() / batch.kernel.shape[1]


def _inner_step(weights: eqx.nn.MLP, steps: EpisodeSteps, advantage: Array) -> eqx.nn.MLP:
    """The inner step, which can be differentiated."""
    gradient = eqx.filter_grad(_loss)(weights, steps, advantage)
    return eqx.apply_updates(weights, jax.tree.map(lambda g: -INNER_STEP * g, gradient))


def _improve(
    weights: eqx.nn.MLP, state: Any, before: tuple[EpisodeSteps, Array] | None, steps: EpisodeSteps, advantage: Array
) -> tuple[eqx.nn.MLP, Any]:
    """One step of Adam, through the inner step on the episodes `before` if there was one."""

    def loss(weights: eqx.nn.MLP) -> Array:
        if before is None:
            return _loss(weights, steps, advantage)

        def one(old: EpisodeSteps, old_advantage: Array, new: EpisodeSteps, new_advantage: Array) -> Array:
            return _loss(_inner_step(weights, old, old_advantage), new, new_advantage)

        return eqx.filter_vmap(one)(*before, steps, advantage).mean()

    updates, state = _optimiser().update(eqx.filter_grad(loss)(weights), state)
    return eqx.apply_updates(weights, updates), state


def _optimiser() -> optax.GradientTransformation:
    # All weights in one vector: of the norm of many, XLA makes a program for GPUs that it then rejects (a scalar bias).
    return optax.flatten(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(PLACER_LEARNING_RATE)))


@eqx.filter_jit
def _one_step(
    weights: eqx.nn.MLP,
    state: Any,
    w: SpeedWorlds,
    which: Array,
    some: JobLists,
    key: Array,
    how: str,
    repeats: int,
    rounds: int,
) -> tuple[eqx.nn.MLP, Any, Array]:
    """One training step as one program: play, for `meta` adapt and play again, improve. Also returns the mean cost."""
    first, second = jax.random.split(key)
    play = partial(_episodes, repeats=repeats, rounds=rounds, history=how == "history")
    played = play(weights, w, which, some, first, own=False)
    advantage = _advantage(played.cost)
    before = None
    if how == "meta":
        before = played, advantage
        adapted = eqx.filter_vmap(_inner_step, in_axes=(None, 0, 0))(weights, played, advantage)
        played = play(adapted, w, which, some, second, own=True)
        advantage = _advantage(played.cost)
    for _ in range(PPO_EPOCHS):
        weights, state = _improve(weights, state, before, played, advantage)
    return weights, state, played.cost.sum(axis=-1).mean() / some.kernel.shape[1]


def train(
    w: SpeedWorlds,
    *,
    how: str,
    seed: int = 0,
    steps: int = 60,
    batch: int = 7,
    repeats: int = 8,
    jobs: int = 24,
    rounds: int = 60,
    load: float = 3.0,
    goes_on: Callable[[int], bool] = lambda step: True,
) -> TrainedPlacer:
    """Weights for these worlds; `batch` lists of `jobs` per step, each `repeats` times, while `goes_on` is true."""
    members = int(w.members.unit_s.shape[0])
    if how not in TRAINING_METHODS:
        raise InputError(f"training is {how!r}", where="how", hint=f"write one of {', '.join(TRAINING_METHODS)}")
    if how != "actor-critic" and batch % members:
        raise InputError(
            f"{batch} lists do not use {members} members alike", where="batch", hint=f"use a multiple of {members}"
        )
    key = jax.random.key(seed)
    weights = network(jax.random.fold_in(key, 0))
    state = _optimiser().init(eqx.filter(weights, eqx.is_array))
    which = jnp.arange(batch) % members if how != "actor-critic" else jnp.full(batch, -1)
    every = jnp.tile(jnp.arange(members), VALIDATION_LISTS)
    held_out = job_lists(seed * 10_000 + 9_998, w, len(every), jobs, load)
    used, costs, judged, best = np.zeros(members, int), [], list[tuple[int, float]](), weights
    for step in range(steps + 1):
        if step % VALIDATION_INTERVAL == 0 or step == steps:
            served = (
                adapt(weights, w, repeats=repeats, jobs=jobs, rounds=rounds, load=load) if how == "meta" else weights
            )
            judged.append((step, float(mean_cost(served, w, every, held_out, rounds, how == "history"))))
            best = weights if judged[-1][1] <= min(cost for _, cost in judged) else best
        if step == steps or not goes_on(step):
            break
        some = job_lists(seed * 10_000 + step, w, batch, jobs, load)
        at = jax.random.fold_in(key, step + 1)
        weights, state, cost = _one_step(weights, state, w, which, some, at, how, repeats, rounds)
        costs.append(float(cost))
        used += np.bincount(np.asarray(which)[np.asarray(which) >= 0], minlength=members)
    assert how == "actor-critic" or (used > 0).all(), "a member of the ensemble was never the scenario"
    return TrainedPlacer(best, costs, judged, used)


@eqx.filter_jit
def _adapted(weights: eqx.nn.MLP, w: SpeedWorlds, some: JobLists, key: Array, repeats: int, rounds: int) -> eqx.nn.MLP:
    members = jnp.arange(some.kernel.shape[0])
    played = _episodes(weights, w, members, some, key, repeats, rounds, history=False, own=False)
    return _inner_step(weights, played, _advantage(played.cost))


def adapt(weights: eqx.nn.MLP, w: SpeedWorlds, *, seed: int = 0, repeats: int = 8, jobs: int = 24, rounds: int = 60,
          load: float = 3.0) -> eqx.nn.MLP:  # fmt: skip
    """The inner step, on episodes in all members at once, for a scheduler whose beliefs have changed."""
    some = job_lists(seed * 10_000 + 9_999, w, int(w.members.unit_s.shape[0]), jobs, load)
    return _adapted(weights, w, some, jax.random.key(seed), repeats, rounds)
