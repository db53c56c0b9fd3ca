"""The sketch: a simplified simulator for plans of one-worker gangs, a hundred times as fast (thousands per second).

Gangs are placed in order. Each goes to the allowed device where it finishes first, and starts when its inputs and a
slot are available. Inputs are fetched as in the simulator, one after the other at each device from the nearest copy;
transfers over one resource wait for one another instead of sharing it. Tenants, failures, set-up, memory limits,
contention of work and the bound on copies are omitted. The simulator evaluates the best plans again.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.oracle.instance import FULL_LOAD, Instance

UNREACHABLE_S = 1e30
MAX_CLASS_SPEED_RATIO = 1.5  # of two device kinds of one class, for every gang


class SketchInstance(eqx.Module):
    """An instance. N gangs with up to F inputs, L lanes (slots of devices), D devices, M memories, R resources."""

    seconds: Array  # f[N, L]; UNREACHABLE_S where it cannot run
    arrival: Array  # f[N]
    parent: Array  # i[N, F]: -1 = its job's home
    bytes: Array  # f[N, F]: 0 = none
    home: Array  # i[N]
    device: Array  # i[L]
    memory: Array  # i[L]
    allowed: Array  # bool[C, L]: the lanes that a choice allows
    distance: Array  # f[M, M]: the nearest copy is fetched
    pace: Array  # f[M, M]: seconds per byte
    latency: Array  # f[M, M]
    crossed: Array  # f[M, M, R]: load of a transfer on each resource


class _State(eqx.Module):
    free: Array  # f[L]: when the lane becomes free
    turn: Array  # f[D]: when the last gang in the queue was placed
    engine: Array  # f[D]: when the fetch engine has finished
    busy: Array  # f[R]: when the resource has carried all transfers
    there: Array  # f[N, M]: since when the memory holds the gang's output
    lane: Array  # i[N]
    start: Array  # f[N]
    finish: Array  # f[N]


@eqx.filter_jit
def _simulate(t: SketchInstance, order: Array, choice: Array) -> tuple[Array, Array, Array]:
    """Lanes, starts and finishes [B, N] of candidates: an order of the gangs [B, N] and a choice for each [B, N]."""
    gangs, inputs = t.parent.shape
    here = jnp.arange(t.pace.shape[0])
    load, crosses = t.crossed.max(axis=-1, initial=0), t.crossed > 0

    def take(k: Array, s: _State, order: Array, choice: Array) -> _State:
        gang = order[k]
        parents = t.parent[gang]
        ready = jnp.maximum(t.arrival[gang], jnp.where(parents >= 0, s.finish[parents], 0).max())
        turn = jnp.maximum(s.turn[t.device], ready)  # [L], as all that follows until a lane is chosen
        now = jnp.maximum(turn, s.engine[t.device])
        queued = jnp.where(crosses, s.busy, 0).max(axis=-1, initial=0)  # [M, M]
        fetches = []
        for number in range(inputs):
            parent, size = parents[number], t.bytes[gang, number]
            since = jnp.where(parent >= 0, s.there[parent], jnp.where(here == t.home[gang], 0, UNREACHABLE_S))
            source = jnp.where(since[:, None] < UNREACHABLE_S, t.distance, UNREACHABLE_S).argmin(axis=0)  # [M]
            length = t.latency[source, here] + size * t.pace[source, here]
            carried = queued[source, here] + load[source, here] * length
            moves = (since >= UNREACHABLE_S) & (size > 0)
            until = jnp.where(
                moves[t.memory],
                jnp.maximum(now + length[t.memory], carried[t.memory]),
                jnp.maximum(now, jnp.where(size > 0, since[t.memory], 0)),
            )
            fetches.append((parent, source, length, moves, now, until))
            now = until
        start = jnp.maximum(now, s.free)
        finish = start + t.seconds[gang]
        lane = jnp.where(t.allowed[choice[gang]], finish, 4 * UNREACHABLE_S).argmin()
        device, memory = t.device[lane], t.memory[lane]
        busy, there = s.busy, s.there
        for parent, source, length, moves, since, until in fetches:
            part = jnp.where(moves[memory], t.crossed[source[memory], memory] * length[memory], 0)
            busy = jnp.where(part > 0, jnp.maximum(busy, since[lane]) + part, busy)
            copied = jnp.where(moves[memory] & (parent >= 0), parent, gangs)
            there = there.at[copied, memory].set(until[lane], mode="drop")
        return _State(
            s.free.at[lane].set(finish[lane]),
            s.turn.at[device].set(turn[lane]),
            s.engine.at[device].set(now[lane]),
            busy,
            there.at[gang, memory].set(finish[lane]),
            s.lane.at[gang].set(lane),
            s.start.at[gang].set(start[lane]),
            s.finish.at[gang].set(finish[lane]),
        )

    def one(order: Array, choice: Array) -> tuple[Array, Array, Array]:
        lanes, none = jnp.zeros(t.device.shape[0]), jnp.zeros(gangs)
        rows = jnp.zeros(t.crossed.shape[-1])
        there = jnp.full((gangs, len(here)), UNREACHABLE_S)
        fresh = _State(lanes, lanes, lanes, rows, there, jnp.zeros(gangs, jnp.int32), none, none)
        done = jax.lax.fori_loop(0, gangs, lambda k, s: take(k, s, order, choice), fresh)
        return done.lane, done.start, done.finish

    return jax.vmap(one)(order, choice)


class Sketch:
    """Evaluates candidates of one instance. A choice is the index of a device, devices + a class, or `anywhere`."""

    def __init__(self, i: Instance) -> None:
        self.i = i
        devices = i.scenario.topology.devices
        self.class_of = classes(i)  # [D]
        self.anywhere = len(devices) + int(self.class_of.max()) + 1
        self.lanes = np.repeat(np.arange(len(devices)), i.slots)  # the device of each
        allowed = [
            *(self.lanes == device for device in range(len(devices))),
            *(self.class_of[self.lanes] == number for number in range(self.class_of.max() + 1)),
            np.ones(len(self.lanes), bool),
        ]
        fan = max(1, *map(len, i.inputs))
        parent, size = np.full((len(i), fan), -1), np.zeros((len(i), fan))
        for gang, inputs in enumerate(i.inputs):
            parent[gang, : len(inputs)] = [x.source for x in inputs]
            size[gang, : len(inputs)] = [x.bytes for x in inputs]
        owner = [devices[int(np.flatnonzero(i.memory_of == memory)[0])] for memory in range(len(i.bandwidth))]
        used = (i.crossed > 0).any(axis=(0, 1))

        def whole(values: np.ndarray) -> Array:
            return jnp.asarray(np.asarray(values, np.int32))

        def real(values: np.ndarray) -> Array:
            return jnp.asarray(np.asarray(values, np.float32))

        self.tables = SketchInstance(
            seconds=real(np.where(np.isfinite(i.seconds), i.seconds, UNREACHABLE_S)[:, self.lanes]),
            arrival=real(i.arrival_s),
            parent=whole(parent),
            bytes=real(size),
            home=whole(i.home),
            device=whole(self.lanes),
            memory=whole(i.memory_of[self.lanes]),
            allowed=jnp.asarray(np.stack(allowed)),
            distance=real(np.asarray([[i.scenario.topology.span(a, b) for b in owner] for a in owner])),
            pace=real(1 / i.bandwidth),
            latency=real(i.latency_s),
            crossed=real(i.crossed[:, :, used] / FULL_LOAD),
        )

    def __call__(self, order: np.ndarray, choice: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Devices, starts and finishes of candidates [B, N]."""
        lane, start, finish = _simulate(self.tables, jnp.asarray(order, jnp.int32), jnp.asarray(choice, jnp.int32))
        return self.lanes[np.asarray(lane)], np.asarray(start, float), np.asarray(finish, float)


def classes(i: Instance) -> np.ndarray:
    """The class of each device [D]: devices of one class are about equally fast for every gang."""
    class_of = np.full(len(i.slots), -1)
    for device in range(len(i.slots)):
        for first in range(device):
            mine, theirs = i.seconds[:, device], i.seconds[:, first]
            if (mine <= MAX_CLASS_SPEED_RATIO * theirs).all() and (theirs <= MAX_CLASS_SPEED_RATIO * mine).all():
                class_of[device] = class_of[first]
                break
        else:
            class_of[device] = class_of.max() + 1
    return class_of
