"""Tables of graphs and profiles that several policies prepare before a run, and ways to choose among gangs and kinds.

A graphs, T gangs of a graph, E edges, Y device kinds, G gangs in the system, K job slots. Gangs of the same number and
graph are alike in all that profiles say; so policies work that out for graphs [A, T], which are few, and look it up for
the gangs in the system [G], which are many. Tables over paths are found by relaxing all edges until nothing changes,
which takes as many rounds as the longest path has gangs. Functions with `xp` also run on NumPy arrays, with xp=numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.problem.arrays import KIND_INDEX, TopologyArrays, WorkloadArrays
from symphony.scheduling.indexing import first_min
from symphony.scheduling.policy import Observation
from symphony.scheduling.state import READY

# Rows that data crosses: those from whose capacities `WorkloadArrays.rank` takes a middling bandwidth.
_DATA_ROW_KINDS = tuple(KIND_INDEX[kind] for kind in ("link", "switch", "nic", "memory", "peer"))


class DataEdges(eqx.Module):
    """Data edges between gangs; padding, and data from the job's home, point from and to gang T, which is none."""

    source: Array  # i32[A, E]
    target: Array  # i32[A, E]
    seconds: Array  # f[A, E]: mean transfer time


def data_edges(t: TopologyArrays, w: WorkloadArrays, xp: Any = jnp) -> DataEdges:
    """The edges of all graphs, with the time that they take over a middling link."""
    tasks, target = w.kernel.shape[1], reading_gangs(w, xp)
    between = (w.in_source >= 0) & (target < tasks)
    source, size = xp.where(between, w.in_source, tasks), xp.where(between, w.in_bytes, 0)
    return DataEdges(source, xp.where(between, target, tasks), size * seconds_per_byte(t, xp))


def reading_gangs(w: WorkloadArrays, xp: Any = jnp) -> Any:
    """The gang that reads over each edge [A, E]; beyond the last for padding."""
    number = xp.arange(w.in_source.shape[1])
    if xp is np:
        return np.stack([np.searchsorted(starts, number, side="right") - 1 for starts in w.in_start])
    return jax.vmap(lambda starts: jnp.searchsorted(starts, number, side="right") - 1)(jnp.asarray(w.in_start))


def seconds_per_byte(t: TopologyArrays, xp: Any = jnp) -> Any:
    """Of a middling transfer: over the median of the rows that data crosses, as in `WorkloadArrays.rank`."""
    crossed = (xp.asarray(t.row_kind)[:, None] == xp.asarray(_DATA_ROW_KINDS)).any(axis=1) & (t.row_group >= 0)
    if xp is np:  # which warns where there is none
        return np.float32(1 / np.median(t.capacity[crossed])) if crossed.any() else np.float32(1e-10)
    middle = jnp.nanmedian(jnp.where(crossed, t.capacity, jnp.nan))
    return jnp.where(jnp.isnan(middle), 1e-10, 1 / middle)


def devices_by_kind(t: TopologyArrays, xp: Any = jnp) -> Array:
    """How many devices there are of each kind [Y]."""
    kinds = xp.arange(t.kind_memory.shape[0])
    return ((t.device_kind[:, None] == kinds) & t.exists[:, None]).sum(axis=0)


def gang_seconds(t: TopologyArrays, w: WorkloadArrays, xp: Any = jnp) -> Array:
    """Isolated seconds of every gang on each device kind [A, T, Y]; inf where it cannot run, or there is no device."""
    seconds = (w.time_fixed[w.kernel] + w.time_work[w.kernel] * w.work[..., None]) * w.units[..., None]
    able = (w.runs_on[..., None] >> xp.arange(seconds.shape[-1])) & 1 > 0
    return xp.where(able & (devices_by_kind(t, xp) > 0), seconds, xp.inf)


def device_mean(t: TopologyArrays, table: Array, able: Array) -> Array:
    """Mean of a table [A, T, Y] over the devices of the kinds that are `able` [A, T, Y]."""
    weight = jnp.where(able, devices_by_kind(t), 0)
    return jnp.where(able, table * weight, 0).sum(axis=-1) / jnp.maximum(weight.sum(axis=-1), 1)


def fixed_point(relax: Callable[[Array], Array], start: Array, rounds: int) -> Array:
    """Apply `relax` until it changes nothing, `rounds` times at most."""
    if isinstance(start, np.ndarray):
        for _ in range(rounds):
            before, start = start, relax(start)
            if np.array_equal(before, start):
                break
        return start

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        table, _, done = carry
        new = relax(table)
        return new, (new != table).any(), done + 1

    def goes_on(carry: tuple[Array, Array, Array]) -> Array:
        return carry[1] & (carry[2] < rounds)

    return jax.lax.while_loop(goes_on, step, (start, jnp.asarray(True), jnp.asarray(0)))[0]


def max_over_edges(at: Array, values: Array, tasks: int) -> Array:
    """The largest of the values [A, E, ...] of the edges that belong to each gang [A, T, ...], or 0 if it has none."""
    if isinstance(values, np.ndarray):
        return _reduced(np.maximum, at, values, tasks)
    zero = jnp.zeros((tasks, *values.shape[2:]), values.dtype)
    return jax.vmap(lambda gang, value: zero.at[gang].max(value, mode="drop"))(at, values)


def sum_over_edges(at: Array, values: Array, tasks: int) -> Array:
    """The sum of the values [A, E, ...] of the edges that belong to each gang [A, T, ...]."""
    if isinstance(values, np.ndarray):
        return _reduced(np.add, at, values, tasks)
    zero = jnp.zeros((tasks, *values.shape[2:]), values.dtype)
    return jax.vmap(lambda gang, value: zero.at[gang].add(value, mode="drop"))(at, values)


def _reduced(operation: Any, at: np.ndarray, values: np.ndarray, tasks: int) -> np.ndarray:
    found = np.zeros((len(at), tasks + 1, *values.shape[2:]), values.dtype)  # the last is for padding
    operation.at(found, (np.arange(len(at))[:, None], at), values)
    return found[:, :tasks]


def gang_rows(table: Array, gang: Array) -> Array:
    """Rows of a table [A, T, ...] for the gangs at one end of the edges [A, E, ...]; none reads the last row."""
    if isinstance(table, np.ndarray):
        return table[np.arange(len(table))[:, None], np.minimum(gang, table.shape[1] - 1)]
    return jax.vmap(lambda rows, index: rows.at[index].get(mode="clip"))(table, gang)


def unit_seconds(observation: Observation) -> Array:
    """Isolated seconds of a unit of each gang on each device kind [G, Y]; inf where it cannot run."""
    core, w = observation.core, observation.workload
    kernel, work = observation.per_gang(w.kernel), observation.per_gang(w.work)
    seconds = w.time_fixed[kernel] + w.time_work[kernel] * work[:, None]
    able = (core.runs_on[:, None] >> jnp.arange(seconds.shape[1])) & 1 > 0
    return jnp.where(able, seconds, jnp.inf)


def count_by_kind(observation: Observation, devices: Array) -> Array:
    """How many of some devices [D] there are of each kind [Y]."""
    t = observation.topology
    return ((t.device_kind[:, None] == jnp.arange(t.kind_memory.shape[0])) & devices[:, None]).sum(axis=0)


def seconds_now(observation: Observation, seconds: Array) -> Array:
    """Isolated seconds as in `gang_seconds` [A, T, Y]; inf where no device of the kind is up."""
    return jnp.where(count_by_kind(observation, observation.core.up) > 0, seconds, jnp.inf)


def worthwhile_kinds(observation: Observation, seconds: Array) -> Array:
    """Which kinds a gang should take now rather than wait for its fastest kind [A, T, Y].

    Policies for machines that are alike give any free machine a task. Where some are a hundred times slower, that is
    absurd; so here a kind is out if the gang would end earlier by waiting until its fastest kind has done what is
    ready for it (what is ready and fastest there, over all slots of that kind).
    """
    core, t = observation.core, observation.topology
    kinds = jnp.arange(seconds.shape[-1])
    lanes = jnp.where((t.device_kind[:, None] == kinds) & core.up[:, None], t.slots[:, None], 0).sum(axis=0)
    ready = core.status == READY

    def compared() -> Array:
        least, fastest = first_min(seconds)
        ready_s = jnp.where(ready, observation.per_gang(jnp.where(jnp.isfinite(least), least, 0)), 0)
        there = observation.per_gang(fastest)[:, None] == kinds
        backlog = jnp.where(there, ready_s[:, None], 0).sum(axis=0) / jnp.maximum(lanes, 1)
        return seconds <= (least + backlog.at[fastest].get(mode="clip"))[..., None]

    # With nothing ready there is nothing to compare. (And a compiler would compare anew for every gang, but for this.)
    return jax.lax.cond(ready.any(), compared, lambda: jnp.zeros(seconds.shape, bool))
