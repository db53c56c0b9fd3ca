"""Simulated performance counters, and the belief about loads that follows, by the same posterior as for real counters.

The load of a row in a window is the sum of Symphony's own load, which the scheduler knows, and the load by others,
which it does not. A counter reads the sum twice in every window, each time in a part of the window's time slices; in
the other slices it counts other rows of the machine (multiplexing). So a reading has two errors: the noise of counters
(`counter_noise`), and the change of the load while it was not counted. For each row there are two unknowns, three
readings and one identity: a Bayesian network for `telemetry/posterior.py`.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.scheduling.indexing import take
from symphony.simulator.scenarios import READING_ERRORS, ScenarioArrays
from symphony.telemetry import posterior
from symphony.telemetry.posterior import Belief, Parameters, Window, Wiring
from symphony.telemetry.tuning import FILTER_FACTORS, FilterStep, Tuning, tuned

SLICES_PER_WINDOW = 24.0  # of a window
READINGS_PER_WINDOW = 2  # of each row in each window
READ_BATCHES = 8  # one in so many scenarios of a batch is updated at once
MIN_LOAD = 0.01  # resolution of a load
OWN, OTHERS = 0, 1  # the free rates
WINDOW_STRIDE, READING_STRIDE = 337, 101  # of windows and readings in the cyclic list of errors
# total = own + others; own is read once, without error.
WIRING = Wiring(
    loading=np.array([[1.0, 1.0], [1.0, 0.0]]),
    pool=np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    anchor=np.zeros((0, 2)),
    beside=np.zeros((0, 3, 3)),
    soft=np.zeros((0, 2)),
    tolerance=np.zeros(0),
)
# Loads by others change seldom, and then abruptly; readings are noisier than those of a CPU's own events, and their
# noise is proportional to the load itself, which is known in part (`leap`).
PARAMETERS = Parameters(
    spread=1.0, innovation=0.2, turn=25.0, stride=1.0, leap=0.01, memory=0.02, faith=20.0, freedom=4.0
)


class Counters(eqx.Module):
    """The belief after the readings so far, and readings yet to be delivered."""

    belief: Belief  # f[R, …]
    raw: Array  # f[R]: the last reading, without inference
    late: Array  # f[D, R, 3]: delayed readings, the next one last
    slope: Array  # f[F, R, 2]: of belief mean and std of the load by others, by the filter's factors; F = 0: not needed
    carried: Any  # state of the computation of `slope` between windows


def begin(s: ScenarioArrays, tuning: Tuning | None = None) -> Counters:
    rows = s.topology.row_kind.shape[0]
    wiring = jax.tree.map(jnp.asarray, WIRING)
    belief = posterior.start(jnp, wiring, PARAMETERS, (rows,))
    slopes = None if tuning is None else tuning.slopes
    return Counters(
        belief,
        jnp.zeros(rows),
        jnp.zeros((s.late, rows, READINGS_PER_WINDOW + 1)),
        jnp.zeros((FILTER_FACTORS if slopes else 0, rows, 2)),
        slopes.begin(belief) if slopes else None,
    )


class Settings(eqx.Module):
    """The parameters of a scenario that readings depend on."""

    noise: Array  # f[]
    error: Array  # f[ERRORS]
    counters: Array  # f[]
    delay: Array  # i32[]
    peers: Array  # i32[R]: rows that share the counters of each row's machine

    @classmethod
    def of(cls, s: ScenarioArrays) -> Settings:
        numbers = s.counter_noise, s.counter_error, s.counters, s.delay, s.topology.row_peers
        return cls(*map(jnp.asarray, numbers))


class EndedWindow(eqx.Module):
    """A window that has ended."""

    number: Array  # i32[]
    load: Array  # f[R]: mean load of each row
    square: Array  # f[R]: mean of its square
    own: Array  # f[R]: Symphony's own part of it


def read(counters: Counters, settings: Settings, past: EndedWindow, tuning: Tuning | None = None) -> Counters:
    """Update the belief after a window. `tuning`: the policy's overrides for the filter."""
    load = past.load
    shared = settings.counters > 0
    share = jnp.where(shared, jnp.minimum(1.0, settings.counters / settings.peers), 1.0)  # of the time, with a counter
    slices = jnp.maximum(SLICES_PER_WINDOW * share / READINGS_PER_WINDOW, 0.5)
    unseen = 1 / slices - 1 / SLICES_PER_WINDOW
    wandered = jnp.maximum(past.square - load**2, 0.0)
    noise = (settings.noise * load) ** 2
    variance = jnp.where(shared, (noise + wandered) * unseen, READINGS_PER_WINDOW * noise)
    number = jnp.arange(READINGS_PER_WINDOW * load.shape[0]).reshape(load.shape[0], READINGS_PER_WINDOW)
    error = (
        take(settings.error, (past.number * WINDOW_STRIDE + number * READING_STRIDE) % READING_ERRORS)
        * jnp.sqrt(variance)[:, None]
    )
    readings = jnp.concatenate([jnp.maximum(load[:, None] + error, 0.0), past.own[:, None]], axis=1)
    arrives, late = readings, counters.late
    if late.shape[0]:
        late = jnp.concatenate([readings[None], late])
        arrives = jnp.take(late, settings.delay, axis=0)
        late = late[:-1]
    counted = jnp.where(shared, slices, SLICES_PER_WINDOW / (2 * READINGS_PER_WINDOW))
    ran = jnp.stack([counted, counted, jnp.full_like(load, SLICES_PER_WINDOW)], axis=1)
    come = past.number >= settings.delay  # before the first sample there is nothing to learn from
    seen = Window(arrives, ran * come, jnp.full_like(ran, SLICES_PER_WINDOW), jnp.full_like(load, MIN_LOAD))
    wiring = jax.tree.map(lambda x: jnp.asarray(x, load.dtype), WIRING)

    def filtered(factors: Array | None, belief: Belief) -> Belief:
        parameters = PARAMETERS if factors is None else tuned(factors, PARAMETERS)
        return posterior.update(jnp, wiring, parameters, belief, seen)

    factors = None if tuning is None else tuning.factors
    belief = filtered(factors, counters.belief)
    slope, carried = counters.slope, counters.carried
    if tuning is not None and tuning.slopes is not None:
        step = FilterStep(tuning.factors, counters.belief, belief, seen, past.number, filtered)
        carried, slope = tuning.slopes.after(carried, step)
    new, old = (belief, slope, carried), (counters.belief, counters.slope, counters.carried)
    belief, slope, carried = jax.tree.map(lambda new, old: jnp.where(come, new, old).astype(old.dtype), new, old)
    return Counters(belief, arrives[:, :READINGS_PER_WINDOW].mean(axis=1), late, slope, carried)


@jax.custom_batching.custom_vmap
def read_when(
    when: Array, counters: Counters, settings: Settings, past: EndedWindow, tuning: Tuning | None = None
) -> Counters:
    """Update the belief if a window has ended.

    In a batch, few windows end at once: only these scenarios are gathered and updated.
    """
    new = read(counters, settings, past, tuning)
    return jax.tree.map(lambda new, old: jnp.where(when, new, old), new, counters)


@read_when.def_vmap
def _read_some(size: int, batched: Any, *given: Any) -> tuple[Counters, Any]:
    def spread(x: Array, along: bool) -> Array:
        return x if along else jnp.broadcast_to(x, (size, *x.shape))

    when, counters, settings, past, tuning = jax.tree.map(spread, given, tuple(batched))
    at_once = max(1, size // READ_BATCHES)

    def some(state: tuple[Counters, Array]) -> tuple[Counters, Array]:
        counters, left = state
        which = jnp.nonzero(left, size=at_once, fill_value=size)[0]
        picked = jax.tree.map(lambda x: x.at[which].get(mode="clip"), (counters, settings, past, tuning))
        new = jax.vmap(read)(*picked)
        counters = jax.tree.map(lambda x, fresh: x.at[which].set(fresh, mode="drop"), counters, new)
        return counters, left.at[which].set(False, mode="drop")

    counters, _ = jax.lax.while_loop(lambda state: state[1].any(), some, (counters, when))
    return counters, jax.tree.map(lambda _: True, counters)


def believed(counters: Counters, s: ScenarioArrays, own: Array) -> tuple[Array, Array]:
    """Belief mean and std [R] of the load by others on each row, given Symphony's own load in the last window."""
    belief = posterior.predict(jnp, counters.belief, jnp.broadcast_to(1.0 * s.delay, own.shape))
    others = belief.mean[:, OTHERS]
    deviation = jnp.sqrt(jnp.maximum(belief.cov[:, OTHERS, OTHERS], 0.0))
    known = belief.read[:, OTHERS] > 0
    others, deviation = jnp.where(known, others, 0.0), jnp.where(known, deviation, 1.0)
    raw = jnp.maximum(counters.raw - own, 0.0)
    others = jnp.where(s.corrected, others, raw)
    return others, jnp.where(s.corrected, deviation, s.counter_noise * counters.raw)


def slope(counters: Counters, s: ScenarioArrays) -> Array | None:
    """Derivative of belief mean and std by the filter's factors [F, R, 2]; None unless training needs it."""
    if not counters.slope.shape[0]:
        return None
    known = (counters.belief.read[:, OTHERS] > 0) & s.corrected
    return jnp.where(known[:, None], counters.slope, 0.0)
