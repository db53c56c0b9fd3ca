"""Paragon (Delimitrou and Kozyrakis, 2013): classify by collaborative filtering, then place greedily.

A few applications are profiled on all server configurations and against all sources of interference; a new one on two
configurations only. The missing entries of both matrices (speed on each configuration; interference that it causes and
tolerates in each shared resource) are filled in by factorisation (singular values, then stochastic gradient). The
scheduler then looks for servers where the newcomer causes no more than the residents tolerate and they no more than it
does, takes the server configuration that suits it best, and among equals the tightest fit.

Ours differs. Kernels are applications, device kinds configurations, and resource kinds sources of interference. Every
second kernel is profiled everywhere, the others on two kinds drawn at random; although others see all profiles, Paragon
keeps to what it would know. Factors are found by alternating least squares on logarithms of times, the same objective
in fewer steps. A worker tolerates what leaves it 95% of its speed in the simulator's contention (loads of up to 1.05 in
all). What a row carries is ours and, as far as the belief tells, that of tenants. If no device with a free slot is
acceptable, the one with the least interference is taken. Devices much slower than the one that suits a gang best are
left alone while waiting ends earlier (`tables.worth_it`), by completed times as well.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.graph_tables import count_by_kind, devices_by_kind, seconds_now, worthwhile_kinds
from symphony.scheduling.indexing import first, take
from symphony.scheduling.policy import Action, Observation, Policy, best_device, idle_devices, pick_gang, place
from symphony.scheduling.state import PLACING

FULLY_PROFILED_EVERY = 2  # one kernel in so many is profiled everywhere
PROFILED_KINDS = 2  # device kinds on which the others are
MAX_TOLERATED_LOAD = 1.05  # load of a row that leaves 95% of the speed
RANK = 2
LEAST_SQUARES_ROUNDS = 30
FACTOR_RIDGE = 0.1


def complete(values: Array, known: Array, rank: int = RANK) -> Array:
    """A matrix [N, M] filled in from its `known` entries as `row + column + left · right`, by least squares in turn."""
    weight = known.astype(values.dtype)
    # What a row or column is by itself costs next to nothing; how it interacts must be earned.
    penalty = jnp.diag(jnp.asarray([1e-4, *[FACTOR_RIDGE] * rank], values.dtype))

    def solve(factors: Array, rest: Array, weight: Array) -> Array:
        """The best offsets and factors [N, 1 + rank] of the rows of `rest`, given the factors of its columns."""
        given = jnp.concatenate([jnp.ones_like(factors[:, :1]), factors], axis=1)
        gram = jnp.einsum("nm,mr,ms->nrs", weight, given, given) + penalty
        return jnp.linalg.solve(gram, jnp.einsum("nm,mr->nr", rest * weight, given)[..., None])[..., 0]

    def rows(columns: Array) -> Array:
        return solve(columns[:, 1:], values - columns[:, 0], weight)

    def columns(rows: Array) -> Array:
        return solve(rows[:, 1:], (values - rows[:, :1]).T, weight.T)

    values = jnp.where(known, values, 0)
    means = values.sum(axis=0) / jnp.maximum(weight.sum(axis=0), 1)
    start = jax.random.normal(jax.random.key(0), (values.shape[1], 1 + rank)).at[:, 0].set(means)
    right = jax.lax.fori_loop(0, LEAST_SQUARES_ROUNDS, lambda _, right: columns(rows(right)), start)
    left = rows(right)
    return jnp.where(known, values, left[:, :1] + right[:, 0] + left[:, 1:] @ right[:, 1:].T)


class KernelClasses(eqx.Module):
    """What Paragon believes of kernels, of which it has seen a part."""

    seconds: Array  # f[N, Y]: of one unit of typical work; inf where it cannot run
    causes: Array  # f[N, Y, Q + 1]: load of one worker on a row of each resource kind


def profiled(able: Array) -> Array:
    """Which kernels are profiled on which kinds [N, Y]: some on all, the others on two."""
    draw = jnp.where(able, jax.random.uniform(jax.random.key(1), able.shape), -1)
    order = (draw[:, None, :] > draw[:, :, None]).sum(axis=-1)  # kinds drawn before each
    everywhere = jnp.arange(able.shape[0]) % FULLY_PROFILED_EVERY == 0
    return able & (everywhere[:, None] | (order < PROFILED_KINDS))


def classify(t: TopologyArrays, w: WorkloadArrays) -> KernelClasses:
    """Complete times and interference from what is profiled."""
    kernels, kinds = w.time_fixed.shape
    used = (jnp.arange(w.kernel.shape[1]) < w.gangs[:, None]).astype(jnp.float32)
    count = jnp.zeros(kernels).at[w.kernel].add(used)
    work = jnp.zeros(kernels).at[w.kernel].add(used * w.work) / jnp.maximum(count, 1)
    able = jnp.isfinite(w.time_fixed) & (devices_by_kind(t) > 0)
    known = profiled(able)
    seconds = jnp.where(able, w.time_fixed + w.time_work * work[:, None], 1)
    believed = jnp.exp(complete(jnp.log(jnp.maximum(seconds, 1e-12)), known))

    device = first((t.device_kind == jnp.arange(kinds)[:, None]) & t.exists)  # one of each kind stands for all
    resources = jnp.arange(w.demand_fixed.shape[2])
    rows = t.route_row.at[device].get(mode="clip")
    here = (t.route_kind.at[device].get(mode="clip")[..., None] == resources) & jnp.isfinite(t.capacity[rows])[
        ..., None
    ]
    capacity = jnp.where(here, t.capacity[rows][..., None], jnp.inf).min(axis=1)  # [Y, Q + 1]
    load = (w.demand_fixed + work[:, None, None] * w.demand_work) / capacity
    flat = jnp.repeat(known, resources.shape[0], axis=1)
    causes = complete(load.reshape(kernels, -1), flat).reshape(load.shape)
    return KernelClasses(jnp.where(able, believed, jnp.inf), jnp.clip(causes, 0, 16))


class Paragon(Policy):
    """The oldest gang goes to the kind that suits it best among devices where nobody disturbs the other."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> tuple[KernelClasses, Array]:
        """Classify all kernels; what the seconds of all gangs are believed to be [A, T, Y]."""
        classes, w = classify(topology, workload), workload
        return classes, classes.seconds[w.kernel] * w.units[..., None]

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Oldest gang with a device to go to; acceptable interference, best kind, tightest fit."""
        (classes, seconds), t, w = observation.prepared, observation.topology, observation.workload
        idle = idle_devices(observation)
        free = count_by_kind(observation, idle)
        able = (w.runs_on[..., None] >> jnp.arange(free.shape[0])) & 1 > 0
        worth = worthwhile_kinds(observation, jnp.where(able, seconds_now(observation, seconds), jnp.inf))
        enough = (able * free).sum(axis=-1) >= w.workers
        partly = observation.core.status == PLACING
        found = (worth & (free > 0)).any(axis=-1) & enough
        gang = pick_gang(observation, among=observation.per_gang(found) | partly)

        f = observation.facts(gang)
        mine = f.kernel
        causes = classes.causes[mine][t.device_kind[:, None], t.route_kind]  # [D, H]
        load = take(observation.own_load + observation.background, t.route_row)
        used = causes > 1e-3
        excess = jnp.where(used, jnp.maximum(causes + load - MAX_TOLERATED_LOAD, 0), 0).sum(axis=1)
        slack = jnp.where(used, jnp.maximum(MAX_TOLERATED_LOAD - causes - load, 0), 0).sum(axis=1)
        time = take(classes.seconds[mine], t.device_kind)
        # Acceptable ones first, by kind and then tightness; of the others, the least interference.
        good = -(time / (1 + time) + 1e-4 * slack / (1 + slack))
        score = jnp.where(excess > 0, -2 - excess, good) - 1e3 * ~idle
        here = (idle & take(worth[f.graph, f.index], t.device_kind)) | take(partly, gang)
        return state, place(gang, best_device(observation, gang, jnp.where(here, score, -jnp.inf)))
