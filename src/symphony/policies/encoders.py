"""Graph neural networks: message passing over the cluster's rows and devices, and over the task graphs."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from symphony.policies.features import DeviceColumn, GraphTables, NodeColumn, RowColumn
from symphony.problem.arrays import VOID_KIND, TopologyArrays
from symphony.scheduling.indexing import take

MAX_DENSE_ROUTES = 2**14  # rows times devices up to which messages are products with an adjacency matrix


class Dense(eqx.Module):
    """A linear layer over the last axis."""

    weight: Float[Array, "before after"]
    bias: Float[Array, " after"]

    def __init__(self, key: Array, before: int, after: int, gain: float = 1.0) -> None:
        self.weight = gain * jax.random.normal(key, (before, after)) * (2.0 / before) ** 0.5
        self.bias = jnp.zeros(after)

    def __call__(self, x: Float[Array, "*batch before"]) -> Float[Array, "*batch after"]:
        return x @ self.weight + self.bias


class Mlp(eqx.Module):
    """A multi-layer perceptron with ReLU between layers."""

    layers: tuple[Dense, ...]

    def __init__(self, key: Array, *widths: int, gain: float = 1.0) -> None:
        keys = jax.random.split(key, len(widths) - 1)
        last = len(widths) - 2
        self.layers = tuple(
            Dense(keys[i], widths[i], widths[i + 1], gain if i == last else 1.0) for i in range(len(widths) - 1)
        )

    def __call__(self, x: Float[Array, "*batch before"]) -> Float[Array, "*batch after"]:
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)


def routes(t: TopologyArrays) -> Float[Array, "devices rows"]:
    """Adjacency matrix of devices and the rows on their routes, normalised for each device."""
    rows = jnp.arange(t.capacity.shape[0])
    on = ((t.route_row[:, :, None] == rows) & (t.row_group >= 0)).any(axis=1)
    return on / jnp.maximum(on.sum(axis=1, keepdims=True), 1)


def row_statics(t: TopologyArrays) -> Float[Array, "rows statics"]:
    """Static features of rows: the kind (one-hot), and the log capacity relative to the largest of that kind."""
    kind = t.row_kind[:, None] == jnp.arange(VOID_KIND)
    log = jnp.log(jnp.where(t.row_group >= 0, t.capacity, 1.0))
    most = jnp.where(kind, log[:, None], -jnp.inf).max(axis=0)
    relative = jnp.where(kind, log[:, None] - jnp.where(jnp.isfinite(most), most, 0), 0).sum(axis=1)
    return jnp.concatenate([1.0 * kind, relative[:, None]], axis=1) * (t.row_group >= 0)[:, None]


class TopologyEncoder(eqx.Module):
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

    def __call__(
        self,
        t: TopologyArrays,
        rows: Float[Array, "*batch rows row_columns"],
        devices: Float[Array, "*batch devices device_columns"],
    ) -> Float[Array, "*batch devices width"]:
        """Embeddings of devices."""
        lead = rows.shape[:-1]
        statics = jnp.broadcast_to(row_statics(t), (*lead, VOID_KIND + 1))
        row = jax.nn.relu(self.row(jnp.concatenate([rows, statics], axis=-1)))
        device = jax.nn.relu(self.device(devices) + to_devices(t, row, self.up))
        row = jax.nn.relu(row + to_rows(t, self.down(device)))
        return device + to_devices(t, row, self.again)


def to_devices(
    t: TopologyArrays, row: Float[Array, "*batch rows width"], layer: Dense
) -> Float[Array, "*batch devices width"]:
    """Messages to devices: mean over the rows of each device's route, then the layer; 0 for an empty route.

    The layer is linear, so it may follow the mean: there are several times as many rows as devices.
    """
    on = take(t.row_group, t.route_row) >= 0
    if t.exists.shape[0] * t.capacity.shape[0] <= MAX_DENSE_ROUTES:
        mean = routes(t) @ row
    else:
        picked = jnp.where(on[..., None], jnp.take(row, t.route_row, axis=-2), 0)
        mean = picked.sum(axis=-2) / jnp.maximum(on.sum(axis=1), 1)[:, None]
    return layer(mean) * on.any(axis=1)[:, None]


def to_rows(t: TopologyArrays, device: Float[Array, "*batch devices width"]) -> Float[Array, "*batch rows width"]:
    """Messages to rows: mean over the devices whose routes cross each row."""
    rows = t.capacity.shape[0]
    if t.exists.shape[0] * rows <= MAX_DENSE_ROUTES:
        back = (routes(t) > 0).T & t.exists
        return (back / jnp.maximum(back.sum(axis=1, keepdims=True), 1)) @ device
    hops = t.route_row.shape[1]
    count = jnp.zeros(rows).at[t.route_row].add(1.0 * t.exists[:, None])
    flat = jnp.repeat(device * t.exists[:, None], hops, axis=-2)
    total = jnp.zeros((*device.shape[:-2], rows, device.shape[-1])).at[..., t.route_row.reshape(-1), :].add(flat)
    return total / jnp.maximum(count, 1)[:, None]


class GraphEncoder(eqx.Module):
    """Message passing along the edges of task graphs, in both directions, for some rounds."""

    node: Dense
    down: tuple[Dense, ...]
    up: tuple[Dense, ...]

    def __init__(self, key: Array, width: int, rounds: int = 2) -> None:
        keys = jax.random.split(key, 2 * rounds + 1)
        self.node = Dense(keys[0], len(NodeColumn), width)
        self.down = tuple(Dense(k, width, width, 0.5) for k in keys[1 : rounds + 1])
        self.up = tuple(Dense(k, width, width, 0.5) for k in keys[rounds + 1 :])

    def __call__(self, g: GraphTables) -> Float[Array, "graphs tasks width"]:
        """Embeddings of gangs."""
        x = jax.nn.relu(self.node(g.nodes))

        def aggregate(x: Array, source: Array, target: Array) -> Array:
            """Mean of the messages along the edges to each gang."""
            exists = (source < x.shape[0])[:, None]
            messages = jnp.where(exists, x.at[source].get(mode="clip"), 0)
            total = jnp.zeros_like(x).at[target].add(messages, mode="drop")
            count = jnp.zeros((x.shape[0], 1)).at[target].add(1.0 * exists, mode="drop")
            return total / jnp.maximum(count, 1)

        for down, up in zip(self.down, self.up, strict=True):
            forth = jax.vmap(aggregate)(down(x), g.links.source, g.links.target)
            back = jax.vmap(aggregate)(up(x), g.links.target, g.links.source)
            x = jax.nn.relu(x + forth + back)
        return x
