"""Graph neural networks: message passing over the cluster's rows and devices, and over the task graphs.

The forward passes are classes of their own (`…Forward`), which know nothing of Equinox: with NumPy arrays as weights
(`on_host`) they run in NumPy, without the cost of modules, which is more than that of small products.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from symphony.policies.features import DeviceColumn, GraphTables, NodeColumn, RowColumn
from symphony.problem.arrays import VOID_KIND, TopologyArrays
from symphony.scheduling.graph_tables import gang_rows, sum_over_edges
from symphony.scheduling.indexing import namespace, take

MAX_DENSE_ROUTES = 2**14  # rows times devices up to which messages are products with an adjacency matrix


def relu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """In place for NumPy arrays: it is applied to intermediate results only."""
    return np.maximum(x, 0, out=x) if isinstance(x, np.ndarray) else jax.nn.relu(x)


def on_host(value: Any) -> Any:
    """A module as its forward pass, with NumPy arrays as weights; without a forward pass, a namespace."""
    if isinstance(value, tuple):
        return tuple(on_host(one) for one in value)
    if not isinstance(value, eqx.Module):
        return np.asarray(value) if eqx.is_array(value) else value
    host = next((base() for base in type(value).__mro__ if base.__name__.endswith("Forward")), SimpleNamespace())
    for name in (field.name for field in fields(value)):
        setattr(host, name, on_host(getattr(value, name)))
    return host


class DenseForward:
    weight: Any
    bias: Any

    def __call__(self, x: Float[Array, "*batch before"]) -> Float[Array, "*batch after"]:
        if x.ndim > 2 and isinstance(x, np.ndarray):  # one product; NumPy would compute one for each matrix
            return self(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)
        y = x @ self.weight
        y += self.bias
        return y


class Dense(DenseForward, eqx.Module):
    """A linear layer over the last axis."""

    weight: Float[Array, "before after"]
    bias: Float[Array, " after"]

    def __init__(self, key: Array, before: int, after: int, gain: float = 1.0) -> None:
        self.weight = gain * jax.random.normal(key, (before, after)) * (2.0 / before) ** 0.5
        self.bias = jnp.zeros(after)


class MlpForward:
    layers: Any

    def __call__(self, x: Float[Array, "*batch before"]) -> Float[Array, "*batch after"]:
        for layer in self.layers[:-1]:
            x = relu(layer(x))
        return self.layers[-1](x)


class Mlp(MlpForward, eqx.Module):
    """A multi-layer perceptron with ReLU between layers."""

    layers: tuple[Dense, ...]

    def __init__(self, key: Array, *widths: int, gain: float = 1.0) -> None:
        keys = jax.random.split(key, len(widths) - 1)
        last = len(widths) - 2
        self.layers = tuple(
            Dense(keys[i], widths[i], widths[i + 1], gain if i == last else 1.0) for i in range(len(widths) - 1)
        )


def routes(t: TopologyArrays) -> Float[Array, "devices rows"]:
    """Adjacency matrix of devices and the rows on their routes, normalised for each device."""
    rows = jnp.arange(t.capacity.shape[0])
    on = ((t.route_row[:, :, None] == rows) & (t.row_group >= 0)).any(axis=1)
    return on / jnp.maximum(on.sum(axis=1, keepdims=True), 1)


def row_statics(t: TopologyArrays, xp: Any = jnp) -> Float[Array, "rows statics"]:
    """Static features of rows: the kind (one-hot), and the log capacity relative to the largest of that kind."""
    kind = t.row_kind[:, None] == xp.arange(VOID_KIND)
    log = xp.log(xp.where(t.row_group >= 0, t.capacity, 1.0))
    most = xp.where(kind, log[:, None], -xp.inf).max(axis=0)
    relative = xp.where(kind, log[:, None] - xp.where(xp.isfinite(most), most, 0), 0).sum(axis=1)
    return xp.concatenate([1.0 * kind, relative[:, None]], axis=1) * (t.row_group >= 0)[:, None]


class TopologyForward:
    row: Any
    device: Any
    up: Any
    down: Any
    again: Any

    def __call__(
        self,
        t: TopologyArrays | HostRoutes,
        rows: Float[Array, "*batch rows row_columns"],
        devices: Float[Array, "*batch devices device_columns"],
    ) -> Float[Array, "*batch devices width"]:
        """Embeddings of devices."""
        if isinstance(t, HostRoutes):
            t.row_inputs[:, : len(RowColumn)] = rows
            inputs: Any = t.row_inputs
        else:
            statics = jnp.broadcast_to(row_statics(t), (*rows.shape[:-1], VOID_KIND + 1))
            inputs = jnp.concatenate([rows, statics], axis=-1)
        row = relu(self.row(inputs))
        device = relu(self.device(devices) + to_devices(t, row, self.up))
        row = relu(row + to_rows(t, self.down(device)))
        return device + to_devices(t, row, self.again)


class TopologyEncoder(TopologyForward, eqx.Module):
    """Message passing: rows → devices → rows → devices."""

    row: Dense
    device: Dense
    up: Dense
    down: Dense
    again: Dense

    def __init__(self, key: Array, width: int) -> None:
        keys = jax.random.split(key, 5)
        self.row = Dense(keys[0], len(RowColumn) + VOID_KIND + 1, width)
        self.device = Dense(keys[1], len(DeviceColumn), width)
        self.up = Dense(keys[2], width, width)
        self.down = Dense(keys[3], width, width)
        self.again = Dense(keys[4], width, width)


class HostRoutes:
    """The routes of a topology, for evaluation in NumPy."""

    def __init__(self, t: TopologyArrays) -> None:
        statics = row_statics(t, np).astype(np.float32)
        self.row_inputs = np.concatenate([np.zeros((len(statics), len(RowColumn)), np.float32), statics], axis=1)
        self.exists = t.exists
        on = t.row_group[t.route_row] >= 0
        self.routed = on.any(axis=1)[:, None]
        device, row = np.broadcast_to(np.arange(len(on))[:, None], on.shape)[on], t.route_row[on]
        there = t.exists[device]
        self.to_devices = Means(device, row, (len(on), len(t.capacity)))
        self.to_rows = Means(row[there], device[there], (len(t.capacity), len(on)))


class Means:
    """A sparse matrix whose rows hold equal values that add up to 1, or to 0: in compressed rows, as SciPy has it."""

    def __init__(self, to: np.ndarray, of: np.ndarray, shape: tuple[int, int]) -> None:
        """`to`, `of`: row and column of each entry, in any order; those named twice count once."""
        to, self.indices = np.unique(np.stack([to, of]), axis=1)
        count = np.bincount(to, minlength=shape[0])
        self.indptr = np.concatenate([[0], count.cumsum()])
        self._values, self._shape = (1 / count[to]).astype(np.float32), shape

    @cached_property
    def matrix(self) -> Any:
        from scipy.sparse import csr_matrix  # takes a tenth of a second to import; native decisions do not need it

        return csr_matrix((self._values, self.indices, self.indptr), self._shape)


def to_devices(
    t: TopologyArrays | HostRoutes, row: Float[Array, "*batch rows width"], layer: Dense
) -> Float[Array, "*batch devices width"]:
    """Messages to devices: mean over the rows of each device's route, then the layer; 0 for an empty route.

    The layer is linear, so it may follow the mean: there are several times as many rows as devices.
    """
    if isinstance(t, HostRoutes):
        return layer(t.to_devices.matrix @ row) * t.routed
    on = take(t.row_group, t.route_row) >= 0
    if t.exists.shape[0] * t.capacity.shape[0] <= MAX_DENSE_ROUTES:
        mean = routes(t) @ row
    else:
        picked = jnp.where(on[..., None], jnp.take(row, t.route_row, axis=-2), 0)
        mean = picked.sum(axis=-2) / jnp.maximum(on.sum(axis=1), 1)[:, None]
    return layer(mean) * on.any(axis=1)[:, None]


def to_rows(
    t: TopologyArrays | HostRoutes, device: Float[Array, "*batch devices width"]
) -> Float[Array, "*batch rows width"]:
    """Messages to rows: mean over the devices whose routes cross each row."""
    if isinstance(t, HostRoutes):
        return t.to_rows.matrix @ device
    rows = t.capacity.shape[0]
    if t.exists.shape[0] * rows <= MAX_DENSE_ROUTES:
        back = (routes(t) > 0).T & t.exists
        return (back / jnp.maximum(back.sum(axis=1, keepdims=True), 1)) @ device
    hops = t.route_row.shape[1]
    count = jnp.zeros(rows).at[t.route_row].add(1.0 * t.exists[:, None])
    flat = jnp.repeat(device * t.exists[:, None], hops, axis=-2)
    total = jnp.zeros((*device.shape[:-2], rows, device.shape[-1])).at[..., t.route_row.reshape(-1), :].add(flat)
    return total / jnp.maximum(count, 1)[:, None]


class GraphForward:
    node: Any
    down: Any
    up: Any

    def __call__(self, g: GraphTables) -> Float[Array, "graphs tasks width"]:
        """Embeddings of gangs."""
        x = relu(self.node(g.nodes))
        xp, tasks = namespace(x), x.shape[1]

        def aggregate(x: Array, source: Array, target: Array) -> Array:
            """Mean of the messages along the edges to each gang."""
            exists = (source < tasks)[..., None]
            total = sum_over_edges(target, xp.where(exists, gang_rows(x, source), 0), tasks)
            return total / xp.maximum(sum_over_edges(target, 1.0 * exists, tasks), 1)

        for down, up in zip(self.down, self.up, strict=True):
            forth = aggregate(down(x), g.links.source, g.links.target)
            back = aggregate(up(x), g.links.target, g.links.source)
            x = relu(x + forth + back)
        return x


class GraphEncoder(GraphForward, eqx.Module):
    """Message passing along the edges of task graphs, in both directions, for some rounds."""

    node: Dense
    down: tuple[Dense, ...]
    up: tuple[Dense, ...]

    def __init__(self, key: Array, width: int, rounds: int = 2) -> None:
        keys = jax.random.split(key, 2 * rounds + 1)
        self.node = Dense(keys[0], len(NodeColumn), width)
        self.down = tuple(Dense(k, width, width, 0.5) for k in keys[1 : rounds + 1])
        self.up = tuple(Dense(k, width, width, 0.5) for k in keys[rounds + 1 :])
