"""Paragon (Delimitrou and Kozyrakis, 2013): classification by collaborative filtering, then greedy placement.

A few applications are profiled on all server configurations and against all sources of interference; a new one on two
configurations only. The missing entries of both matrices (speed on each configuration; interference caused and
tolerated in each shared resource) are completed by matrix factorisation (SVD, then stochastic gradient descent). The
scheduler then selects servers where the new application causes no more interference than the present ones tolerate, and
vice versa, of these the best server configuration, and among equals the tightest fit.

Differences here: kernels are applications, device kinds configurations, and resource kinds sources of interference.
Every second kernel is profiled on all kinds, the others on two random kinds; although other policies see all profiles,
Paragon uses only these. `ParagonProfiled` uses all profiles, and completes nothing. Factors are found by alternating
least squares on logarithms of times: the same objective in fewer steps. A worker tolerates contention that leaves it
95% of its speed (a total load of up to 1.05). The load of a row is Symphony's own plus the belief mean of the
background. If no device with a free slot is acceptable, the one with the least interference is used. Devices much
slower than a gang's best are not used while waiting finishes earlier (`worthwhile_kinds`), by completed times.
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from symphony.baselines.interference import oldest_placeable
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.graph_tables import devices_by_kind, seconds_now
from symphony.scheduling.indexing import first, take
from symphony.scheduling.policy import Action, Observation, Policy, best_device, idle_devices, place

FULLY_PROFILED_EVERY = 2  # one kernel in so many is profiled on all kinds
PROFILED_KINDS = 2  # device kinds on which the others are profiled
MAX_TOLERATED_LOAD = 1.05  # load of a row that leaves 95% of the speed
RANK = 2
LEAST_SQUARES_ROUNDS = 30
FACTOR_RIDGE = 0.1


def complete(values: Float[Array, "rows columns"], known: Bool[Array, "rows columns"]) -> Float[Array, "rows columns"]:
    """Complete a matrix from its `known` entries as `row + column + left · right`, by alternating least squares."""
    weight = known.astype(values.dtype)
    # Offsets of rows and columns are hardly penalised, factors are.
    penalty = jnp.diag(jnp.asarray([1e-4, *[FACTOR_RIDGE] * RANK], values.dtype))

    def solve(factors: Array, rest: Array, weight: Array) -> Array:
        """The best offsets and factors [rows, 1 + RANK] of the rows of `rest`, given the factors of its columns."""
        design = jnp.concatenate([jnp.ones_like(factors[:, :1]), factors], axis=1)
        gram = jnp.einsum("nm,mr,ms->nrs", weight, design, design) + penalty
        return jnp.linalg.solve(gram, jnp.einsum("nm,mr->nr", rest * weight, design)[..., None])[..., 0]

    def rows(columns: Array) -> Array:
        return solve(columns[:, 1:], values - columns[:, 0], weight)

    def columns(rows: Array) -> Array:
        return solve(rows[:, 1:], (values - rows[:, :1]).T, weight.T)

    values = jnp.where(known, values, 0)
    means = values.sum(axis=0) / jnp.maximum(weight.sum(axis=0), 1)
    start = jax.random.normal(jax.random.key(0), (values.shape[1], 1 + RANK)).at[:, 0].set(means)
    right = jax.lax.fori_loop(0, LEAST_SQUARES_ROUNDS, lambda _, right: columns(rows(right)), start)
    left = rows(right)
    return jnp.where(known, values, left[:, :1] + right[:, 0] + left[:, 1:] @ right[:, 1:].T)


class KernelClasses(eqx.Module):
    """Completed profiles of kernels."""

    seconds: Float[Array, "kernels kinds"]  # of one unit of typical work; inf where it cannot run
    causes: Float[Array, "kernels kinds resources"]  # load of one worker on a row of each resource kind


def profiled(able: Bool[Array, "kernels kinds"]) -> Bool[Array, "kernels kinds"]:
    """Which kernels are profiled on which kinds: some on all, the others on two."""
    draw = jnp.where(able, jax.random.uniform(jax.random.key(1), able.shape), -1)
    order = (draw[:, None, :] > draw[:, :, None]).sum(axis=-1)  # kinds drawn before each
    everywhere = jnp.arange(able.shape[0]) % FULLY_PROFILED_EVERY == 0
    return able & (everywhere[:, None] | (order < PROFILED_KINDS))


def classify(t: TopologyArrays, w: WorkloadArrays, every_profile: bool = False) -> KernelClasses:
    """Complete times and interference from what is profiled."""
    kernels, kinds = w.time_fixed.shape
    used = (jnp.arange(w.kernel.shape[1]) < w.gangs[:, None]).astype(jnp.float32)
    count = jnp.zeros(kernels).at[w.kernel].add(used)
    work = jnp.zeros(kernels).at[w.kernel].add(used * w.work) / jnp.maximum(count, 1)
    able = jnp.isfinite(w.time_fixed) & (devices_by_kind(t) > 0)
    known = able if every_profile else profiled(able)
    seconds = jnp.where(able, w.time_fixed + w.time_work * work[:, None], 1)
    believed = jnp.exp(complete(jnp.log(jnp.maximum(seconds, 1e-12)), known))

    device = first((t.device_kind == jnp.arange(kinds)[:, None]) & t.exists)  # a representative of each kind
    resources = jnp.arange(w.demand_fixed.shape[2])
    rows = t.route_row.at[device].get(mode="clip")
    here = t.route_kind.at[device].get(mode="clip")[..., None] == resources
    here &= jnp.isfinite(t.capacity[rows])[..., None]
    capacity = jnp.where(here, t.capacity[rows][..., None], jnp.inf).min(axis=1)  # [kinds, resources]
    load = (w.demand_fixed + work[:, None, None] * w.demand_work) / capacity
    flat = jnp.repeat(known, resources.shape[0], axis=1)
    causes = complete(load.reshape(kernels, -1), flat).reshape(load.shape)
    return KernelClasses(jnp.where(able, believed, jnp.inf), jnp.clip(causes, 0, 16))


class Paragon(Policy):
    """The oldest gang is placed on its fastest kind among devices with tolerable interference; ties: tightest fit."""

    every_profile: ClassVar[bool] = False  # or completes what was not profiled

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> tuple[KernelClasses, Array]:
        """The completed profiles, and the seconds of all gangs by them [graphs, tasks, kinds]."""
        classes, w = classify(topology, workload, self.every_profile), workload
        return classes, classes.seconds[w.kernel] * w.units[..., None]

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        (classes, seconds), t, w = observation.prepared, observation.topology, observation.workload
        able = (w.runs_on[..., None] >> jnp.arange(t.kind_memory.shape[0])) & 1 > 0
        gang, here = oldest_placeable(observation, jnp.where(able, seconds_now(observation, seconds), jnp.inf))
        mine = observation.facts(gang).kernel
        causes = classes.causes[mine][t.device_kind[:, None], t.route_kind]  # [devices, hops]
        load = take(observation.own_load + observation.background, t.route_row)
        used = causes > 1e-3
        excess = jnp.where(used, jnp.maximum(causes + load - MAX_TOLERATED_LOAD, 0), 0).sum(axis=1)
        slack = jnp.where(used, jnp.maximum(MAX_TOLERATED_LOAD - causes - load, 0), 0).sum(axis=1)
        time = take(classes.seconds[mine], t.device_kind)
        # Acceptable devices first, by speed and then tightness of fit; then by least interference.
        good = -(time / (1 + time) + 1e-4 * slack / (1 + slack))
        score = jnp.where(excess > 0, -2 - excess, good) - 1e3 * ~idle_devices(observation)
        return state, place(gang, best_device(observation, gang, jnp.where(here, score, -jnp.inf)))


class ParagonProfiled(Paragon):
    """The same, with the profiles that all other policies see."""

    every_profile: ClassVar[bool] = True
