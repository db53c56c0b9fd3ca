"""Graph networks: over the cluster's rows and devices, and over the task graphs."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from symphony.policies.features import DEVICE_FEATURES, NODE_FEATURES, ROW_FEATURES, GraphTables
from symphony.problem.arrays import VOID_KIND, TopologyArrays
from symphony.scheduling.indexing import take

MAX_DENSE_ROUTES = 2**14  # rows times devices up to which sums along routes are products with a matrix


class Dense(eqx.Module):
    """A linear layer over the last axis, whatever comes before it."""

    weight: Array  # f[in, out]
    bias: Array  # f[out]

    def __init__(self, key: Array, before: int, after: int, gain: float = 1.0) -> None:
        self.weight = gain * jax.random.normal(key, (before, after)) * (2.0 / before) ** 0.5
        self.bias = jnp.zeros(after)

    def __call__(self, x: Array) -> Array:
        """Apply it."""
        return x @ self.weight + self.bias


class Mlp(eqx.Module):
    """Layers with ReLU between them, and none after the last."""

    layers: tuple[Dense, ...]

    def __init__(self, key: Array, *widths: int, gain: float = 1.0) -> None:
        keys = jax.random.split(key, len(widths) - 1)
        last = len(widths) - 2
        self.layers = tuple(
            Dense(keys[i], widths[i], widths[i + 1], gain if i == last else 1.0) for i in range(len(widths) - 1)
        )

    def __call__(self, x: Array) -> Array:
        """Apply them."""
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)


def routes(t: TopologyArrays) -> Array:
    """Which rows lie on which devices' routes [D, R], each device's summing to 1."""
    rows = jnp.arange(t.capacity.shape[0])
    on = ((t.route_row[:, :, None] == rows) & (t.row_group >= 0)).any(axis=1)
    return on / jnp.maximum(on.sum(axis=1, keepdims=True), 1)


def row_statics(t: TopologyArrays) -> Array:
    """What does not change about rows [R, VOID_KIND + 1]: the kind, and the capacity among rows of that kind."""
    kind = t.row_kind[:, None] == jnp.arange(VOID_KIND)
    log = jnp.log(jnp.where(t.row_group >= 0, t.capacity, 1.0))
    most = jnp.where(kind, log[:, None], -jnp.inf).max(axis=0)
    relative = jnp.where(kind, log[:, None] - jnp.where(jnp.isfinite(most), most, 0), 0).sum(axis=1)
    return jnp.concatenate([1.0 * kind, relative[:, None]], axis=1) * (t.row_group >= 0)[:, None]


class TopologyEncoder(eqx.Module):
    """Rows tell the devices whose routes cross them, these tell their rows, and those the devices again."""

    row: Dense
    device: Dense
    up: Dense
    down: Dense
    again: Dense

    def __init__(self, key: Array, width: int) -> None:
        keys = jax.random.split(key, 5)
        self.row = Dense(keys[0], ROW_FEATURES + VOID_KIND + 1, width)
        self.device = Dense(keys[1], DEVICE_FEATURES, width)
        self.up = Dense(keys[2], width, width)
        self.down = Dense(keys[3], width, width)
        self.again = Dense(keys[4], width, width)

    def __call__(self, t: TopologyArrays, rows: Array, devices: Array) -> Array:
        """Embeddings of devices [..., D, width]."""
        lead = rows.shape[:-1]
        statics = jnp.broadcast_to(row_statics(t), (*lead, VOID_KIND + 1))
        row = jax.nn.relu(self.row(jnp.concatenate([rows, statics], axis=-1)))
        device = jax.nn.relu(self.device(devices) + to_devices(t, row, self.up))
        row = jax.nn.relu(row + to_rows(t, self.down(device)))
        return device + to_devices(t, row, self.again)


def to_devices(t: TopologyArrays, row: Array, layer: Dense) -> Array:
    """The mean over the rows of each device's route, through a layer [..., D, width]; nothing where there is no row.

    The layer comes after the mean, which is the same as before it: there are several times as many rows as devices.
    """
    on = take(t.row_group, t.route_row) >= 0
    if t.exists.shape[0] * t.capacity.shape[0] <= MAX_DENSE_ROUTES:
        mean = routes(t) @ row
    else:
        picked = jnp.where(on[..., None], jnp.take(row, t.route_row, axis=-2), 0)
        mean = picked.sum(axis=-2) / jnp.maximum(on.sum(axis=1), 1)[:, None]
    return layer(mean) * on.any(axis=1)[:, None]


def to_rows(t: TopologyArrays, device: Array) -> Array:
    """The mean over the devices whose routes cross each row [..., R, width]."""
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
    """Gangs of a task graph tell those that read from them and those that they read from, twice."""

    node: Dense
    down: tuple[Dense, ...]
    up: tuple[Dense, ...]

    def __init__(self, key: Array, width: int, rounds: int = 2) -> None:
        keys = jax.random.split(key, 2 * rounds + 1)
        self.node = Dense(keys[0], NODE_FEATURES, width)
        self.down = tuple(Dense(k, width, width, 0.5) for k in keys[1 : rounds + 1])
        self.up = tuple(Dense(k, width, width, 0.5) for k in keys[rounds + 1 :])

    def __call__(self, g: GraphTables) -> Array:
        """Embeddings of gangs [A, T, width]."""
        x = jax.nn.relu(self.node(g.nodes))

        def told(x: Array, source: Array, target: Array) -> Array:
            """The mean of what each gang is told along the edges."""
            there = (source < x.shape[0])[:, None]
            said = jnp.where(there, x.at[source].get(mode="clip"), 0)
            total = jnp.zeros_like(x).at[target].add(said, mode="drop")
            count = jnp.zeros((x.shape[0], 1)).at[target].add(1.0 * there, mode="drop")
            return total / jnp.maximum(count, 1)

        for down, up in zip(self.down, self.up, strict=True):
            forth = jax.vmap(told)(down(x), g.links.source, g.links.target)
            back = jax.vmap(told)(up(x), g.links.target, g.links.source)
            x = jax.nn.relu(x + forth + back)
        return x
