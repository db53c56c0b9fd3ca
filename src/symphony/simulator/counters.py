"""Simulated performance counters, and the belief about the loads by others that follows from them.

At the end of a window, the mean load of every counted row is read. The load of a row comes in bursts, and the row has a
counter for a part of the window's slices only (`counted_rows.py`), so that a reading errs by
`burst * load * sqrt(1/n - 1/N)`, with the tails of Student's t. Our own part of the load is known. The belief is that
of `estimation/flow_filter.py`, the same as for real counters.

Where demands of our own kernels are hidden (`hidden_demands.py`), the belief of a machine is also about the factor of
each kernel: a counter of a row counts its flows, and each kernel by what its profile says it put on that row. Factors
are the same on all machines, so what machines believe of them is multiplied, and what was believed beforehand is
counted once.

Dimensions: R rows, G groups, S rows of a group, F flows, N kernels with hidden demands (0 if none), D delay.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from symphony.estimation import flow_filter
from symphony.estimation.flow_filter import FlowBelief, FlowParameters, Readings, RunTimes
from symphony.estimation.tuning import FILTER_FACTORS, FilterStep, Tuning, tuned
from symphony.problem.arrays import TopologyArrays
from symphony.problem.errors import InputError
from symphony.scheduling.indexing import take
from symphony.simulator.scenarios import BELIEFS, READING_ERRORS, ScenarioArrays

READ_BATCHES = 8  # one in so many scenarios of a batch is updated at once
WINDOW_STRIDE, ROW_STRIDE = 337, 101  # of windows and rows in the cyclic list of errors
PARAMETERS = FlowParameters()
FACTOR_STD, FACTOR_CHANGES, FACTOR_DRIFT = 0.7, 1e-6, 0.02  # of a hidden factor: deviation beforehand; per window
MIN_FACTOR = 0.05


class Counters(eqx.Module):
    """The belief after the readings so far, and readings yet to be delivered."""

    belief: FlowBelief  # f[G, F + N], f[G, F + N, F + N]: flows, then factors of demands where these are hidden
    rows: Array  # f[R, 2]: mean and standard deviation of the load by others
    raw: Array  # f[R]: the same by the last reading alone, without inference
    late: Array  # f[D, R, 2 + N]: delayed readings, our own part of them and that of each kernel, the next one last
    slope: Array  # f[K, R, 2]: of `rows`, by the filter's factors; K = 0: not needed
    carried: Any  # state of the computation of `slope` between windows


def begin(s: ScenarioArrays, tuning: Tuning | None = None) -> Counters:
    event = _event(s.topology, s.joint)
    groups, _, flows = event.shape
    kernels = 0 if s.demand_factor is None else s.workload.time_fixed.shape[0]
    parameters = _parameters(None if tuning is None else tuning.factors, flows, kernels)
    belief = flow_filter.start(jnp, flows + kernels, parameters, (groups,))
    rows = s.topology.row_kind.shape[0]
    slopes = None if tuning is None else tuning.slopes
    if slopes and kernels:
        raise InputError("demand_noise is not 0 in a training run with --telemetry-gradient", hint="leave one out")
    return Counters(
        belief,
        _rows(s.topology, event, belief),
        jnp.zeros(rows),
        jnp.zeros((s.late, rows, 2 + kernels)),
        jnp.zeros((FILTER_FACTORS if slopes else 0, rows, 2)),
        slopes.begin(belief) if slopes else None,
    )


def _parameters(factors: Array | None, flows: int, kernels: int) -> FlowParameters:
    """Parameters of the filter. With hidden demands, those of levels are f[F + N]."""
    p = PARAMETERS if factors is None else tuned(factors, PARAMETERS)
    if not kernels:
        return p

    def each(of_flows: Array | float, of_factors: float) -> Array:
        return jnp.where(jnp.arange(flows + kernels) < flows, of_flows, of_factors)

    return p._replace(
        changes=each(p.changes, FACTOR_CHANGES),
        on_share=each(p.on_share, 1 - FACTOR_CHANGES),
        on_mean=each(p.on_mean, 1.0),
        on_std=each(p.on_std, FACTOR_STD),
        drift=each(p.drift, FACTOR_DRIFT),
        lowest=each(p.lowest, MIN_FACTOR),
    )


def _event(t: TopologyArrays, joint: bool) -> Array:
    """Load of each row at level 1 of each flow [G, S, F]. A filter for each row has one flow for each."""
    loads = jnp.asarray(t.flow_load, float)
    return loads if joint else jnp.broadcast_to(jnp.eye(loads.shape[1]), (*loads.shape[:2], loads.shape[1]))


def _to_rows(t: TopologyArrays, of_groups: Array) -> Array:
    """Values of each group's rows [G, S], as values of all rows [R]."""
    value = of_groups[jnp.maximum(jnp.asarray(t.row_group), 0), jnp.asarray(t.row_slot)]
    return jnp.where(jnp.asarray(t.row_group) >= 0, value, 0.0)


def _rows(t: TopologyArrays, event: Array, belief: FlowBelief) -> Array:
    """Mean and standard deviation of the load of each row by others [R, 2]."""
    flows = event.shape[-1]
    belief = FlowBelief(belief.mean[..., :flows], belief.cov[..., :flows, :flows])
    return jnp.stack([_to_rows(t, x) for x in flow_filter.row_loads(jnp, event, belief)], axis=-1)


class Settings(eqx.Module):
    """The parameters of a scenario that readings depend on."""

    topology: TopologyArrays
    burst: Array  # f[]
    error: Array  # f[ERRORS]
    unseen: Array  # f[R]
    delay: Array  # i32[]
    ignored: Array  # bool[]: policies see what is typical, whatever is read
    joint: bool = eqx.field(static=True)

    @classmethod
    def of(cls, s: ScenarioArrays) -> Settings:
        ignored = jnp.asarray(s.belief == BELIEFS.index("none"))
        burst, error, unseen, delay = map(jnp.asarray, (s.burst, s.counter_error, s.unseen, s.delay))
        return cls(s.topology, burst, error, unseen, delay, ignored, s.joint)


class EndedWindow(eqx.Module):
    """A window that has ended."""

    number: Array  # i32[]
    load: Array  # f[R]: mean load of each row
    own: Array  # f[R]: Symphony's own part of it
    run_slow: Array  # f[D]: slow-down of the last run that ended on each device, 0 = none did
    run_windows: Array  # f[D]: its length, in windows
    run_uses: Array  # bool[D, H]: rows of the device's route that it loaded
    # where demands are hidden: of our own part,
    hidden: Array | float = 0.0  # f[R]: what kernels put on rows whose demands are hidden …
    kernels: Array | None = None  # … and f[N, R]: what each kernel would by its profile


def _runs(t: TopologyArrays, past: EndedWindow) -> RunTimes:
    """What runs show, by group. A padded or missing device has a slow-down of 0, which is none."""
    device, slot = jnp.asarray(t.group_device), jnp.asarray(t.hop_slot)
    there = (device >= 0)[..., None]
    used = take(past.run_uses & (slot >= 0), device) & there
    return RunTimes(
        slow=jnp.where(device >= 0, take(past.run_slow, device), 0.0),
        error=jnp.zeros(device.shape),  # isolated times are known
        windows=take(past.run_windows, device),
        own=take(past.own - past.hidden, take(t.route_row, device)),
        row=jnp.maximum(take(slot, device), 0),
        uses=used,
    )


def read(counters: Counters, s: Settings, past: EndedWindow, tuning: Tuning | None = None) -> Counters:
    """Update the belief after a window. `tuning`: the policy's overrides for the filter."""
    t = s.topology
    counted = jnp.isfinite(s.unseen)
    unseen = jnp.where(counted, s.unseen, 0.0)
    others = jnp.maximum(past.load - past.own, 0.0)
    deviation = s.burst * jnp.sqrt((others**2 + past.own**2) * unseen)
    number = past.number * WINDOW_STRIDE + ROW_STRIDE * jnp.arange(past.load.shape[0])
    rate = jnp.maximum(past.load + deviation * take(s.error, number % READING_ERRORS), 0.0)
    kernel_loads = () if past.kernels is None else past.kernels
    arrives, late = jnp.stack([rate, past.own - past.hidden, *kernel_loads], axis=-1), counters.late
    if late.shape[0]:
        late = jnp.concatenate([arrives[None], late])
        arrives = jnp.take(late, s.delay, axis=0)
        late = late[:-1]
    event = _event(t, s.joint)
    read_rows = counted & (jnp.asarray(t.row_group) >= 0)
    seen = Readings(*(take(x, t.group_row) for x in (arrives[:, 0], arrives[:, 1], unseen, read_rows)))

    runs = _runs(t, past)
    flows, kernels = event.shape[-1], arrives.shape[-1] - 2
    counts, ran = event, event  # what readings count at level 1, and what slowed runs
    if past.kernels is not None:
        counts = jnp.concatenate([event, take(arrives[:, 2:], t.group_row)], axis=-1)
        ran = jnp.concatenate([event, take(past.kernels.T, t.group_row)], axis=-1)

    def parameters(factors: Array | None) -> FlowParameters:
        return _parameters(factors, flows, kernels)

    def filtered(factors: Array | None, belief: FlowBelief) -> FlowBelief:
        return flow_filter.update(jnp, ran, parameters(factors), belief, seen, runs, counts=counts)

    factors = None if tuning is None else tuning.factors
    belief = filtered(factors, counters.belief)
    slope, carried = counters.slope, counters.carried

    def rows(belief: FlowBelief) -> Array:
        behind = jnp.broadcast_to(1.0 * s.delay, belief.mean.shape)
        return _rows(
            t, event, flow_filter.forget(jnp, parameters(factors), belief, behind) if late.shape[0] else belief
        )

    if tuning is not None and tuning.slopes is not None:
        step = FilterStep(
            tuning.factors, counters.belief, belief, seen, event, past.number, filtered, rows, lambda x: _to_rows(t, x)
        )
        carried, slope = tuning.slopes.after(carried, step)
    raw = jnp.where(counted, jnp.maximum(arrives[:, 0] - arrives[:, 1:].sum(-1), 0.0), 0.0)
    come = (past.number >= s.delay) & ~s.ignored  # before the first sample there is nothing to learn from
    new = Counters(belief, rows(belief), raw, late, slope, carried)
    old = eqx.tree_at(lambda c: c.late, counters, late)
    return jax.tree.map(lambda new, old: jnp.where(come, new, old).astype(old.dtype), new, old)


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
    batched = tuple(batched)
    when, counters = (
        jax.tree.map(lambda x, along: x if along else jnp.broadcast_to(x, (size, *x.shape)), x, along)
        for x, along in zip(given[:2], batched[:2], strict=True)
    )
    others, along = given[2:], batched[2:]  # what all scenarios share, such as the topology, is not copied for each
    at_once = max(1, size // READ_BATCHES)
    axes = (0, *jax.tree.map(lambda along: 0 if along else None, along))

    def some(state: tuple[Counters, Array]) -> tuple[Counters, Array]:
        counters, left = state
        which = jnp.nonzero(left, size=at_once, fill_value=size)[0]
        picked = jax.tree.map(lambda x: x.at[which].get(mode="clip"), counters)
        rest = jax.tree.map(lambda x, along: x.at[which].get(mode="clip") if along else x, others, along)
        new = jax.vmap(read, in_axes=axes)(picked, *rest)
        counters = jax.tree.map(lambda x, fresh: x.at[which].set(fresh, mode="drop"), counters, new)
        return counters, left.at[which].set(False, mode="drop")

    counters, _ = jax.lax.while_loop(lambda state: state[1].any(), some, (counters, when))
    return counters, jax.tree.map(lambda _: True, counters)


def believed(counters: Counters, s: ScenarioArrays, own: Array, true: Array) -> tuple[Array, Array]:
    """Belief mean and std [R] of the load by others on each row. `own`: Symphony's load in the last window.

    `true`: the load by others at this instant, for scenarios that reveal it.
    """
    raw, exact = (s.belief == BELIEFS.index(name) for name in ("raw", "exact"))
    deviation = s.burst * jnp.sqrt(jnp.where(jnp.isfinite(s.unseen), s.unseen, 0.0)) * (counters.raw + own)
    mean = jnp.where(exact, true, jnp.where(raw, counters.raw, counters.rows[:, 0]))
    return mean, jnp.where(exact, 0.0, jnp.where(raw, deviation, counters.rows[:, 1]))


def believed_factors(counters: Counters, s: ScenarioArrays) -> Array | None:
    """Factor of each kernel's demands f[N], as policies see it; None if no demand is hidden."""
    if s.demand_factor is None:
        return None
    flows = _event(s.topology, s.joint).shape[-1]
    mean = counters.belief.mean[:, flows:]
    variance = jnp.diagonal(counters.belief.cov, axis1=-2, axis2=-1)[:, flows:]
    before = 1 / FACTOR_STD**2
    gained = jnp.maximum(1 / jnp.maximum(variance, 1e-9) - before, 0.0)
    learned = 1 + (gained * (mean - 1)).sum(0) / (before + gained.sum(0))
    exact, filtered = s.belief == BELIEFS.index("exact"), s.belief >= BELIEFS.index("rows")
    return jnp.where(exact, s.demand_factor, jnp.where(filtered, jnp.maximum(learned, MIN_FACTOR), 1.0))


def slope(counters: Counters, s: ScenarioArrays) -> Array | None:
    """Derivative of belief mean and std by the filter's factors [K, R, 2]; None unless training needs it."""
    if not counters.slope.shape[0]:
        return None
    filtered = (s.belief == BELIEFS.index("rows")) | (s.belief == BELIEFS.index("joint"))
    return jnp.where(filtered, counters.slope, 0.0)
