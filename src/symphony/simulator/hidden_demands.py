"""Demands of our own kernels that differ from their profiles by a hidden factor for each kernel.

The factor applies to every shared row but compute: how many cores a worker takes is known. What policies are shown,
demands and own loads, is by the factors that are believed (`counters.py`).
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.problem.arrays import KIND_INDEX, TopologyArrays, WorkloadArrays
from symphony.scheduling.indexing import IntScalar, take
from symphony.simulator.scenarios import ScenarioArrays


def is_hidden(t: TopologyArrays, devices: Int[Array, "*shape"]) -> Bool[Array, "*shape hops"]:
    """Rows of the devices' routes of which the true demand is hidden."""
    return take(t.route_kind, devices) != KIND_INDEX["compute"]


def true_demand(
    s: ScenarioArrays, kernel: IntScalar, devices: Int[Array, " workers"], declared: Float[Array, "workers hops"]
) -> Float[Array, "workers hops"]:
    if s.demand_factor is None:
        return declared
    return jnp.where(is_hidden(s.topology, devices), take(s.demand_factor, kernel), 1.0) * declared


def add_load(
    kernel_load: Int[Array, "kernels rows"],
    s: ScenarioArrays,
    kernel: IntScalar,
    devices: Int[Array, " workers"],
    load: Int[Array, "workers hops"],
) -> Int[Array, "kernels rows"]:
    """Add the hidden part of the load of a gang's workers; none is kept if nothing is hidden."""
    if s.demand_factor is None:
        return kernel_load
    rows = take(s.topology.route_row, devices)
    return kernel_load.at[kernel, rows].add(jnp.where(is_hidden(s.topology, devices), load, 0), mode="drop")


def declared_load(s: ScenarioArrays, kernel_load: Float[Array, "kernels rows"]) -> Float[Array, "kernels rows"]:
    """Loads by kernel as they would be by the profiles."""
    return kernel_load if s.demand_factor is None else kernel_load / jnp.asarray(s.demand_factor)[:, None]


def believed_load(
    s: ScenarioArrays, own: Float[Array, " rows"], kernel_load: Float[Array, "kernels rows"], factors: Array | None
) -> Float[Array, " rows"]:
    """Our own load by the believed factors. `own`, `kernel_load`: what it is in truth."""
    return own if factors is None else own - kernel_load.sum(0) + factors @ declared_load(s, kernel_load)


def believed_workload(w: WorkloadArrays, factors: Array | None) -> WorkloadArrays:
    """The workload with demands by the believed factors f[kernels]."""
    if factors is None:
        return w
    hidden = jnp.arange(w.demand_fixed.shape[-1]) != KIND_INDEX["compute"]
    scale = jnp.where(hidden, factors[:, None, None], 1.0)
    return replace(w, demand_fixed=w.demand_fixed * scale, demand_work=w.demand_work * scale)
