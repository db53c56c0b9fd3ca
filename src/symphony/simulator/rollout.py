"""Whole runs: one step, many steps, many scenarios side by side."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int, UInt

from symphony.estimation.tuning import Tuning
from symphony.problem.arrays import WorkloadArrays
from symphony.scheduling.clock import Amount
from symphony.scheduling.feasible import startable
from symphony.scheduling.indexing import BoolScalar, FloatScalar, IntScalar, compute_once, take
from symphony.scheduling.instant import decision_wanted, departure_pending
from symphony.scheduling.policy import Action, Observation, Policy, wait
from symphony.simulator import counters, instant_effects
from symphony.simulator.contention import LOAD_UNIT, ContentionModel
from symphony.simulator.counters import EndedWindow, Settings, read_when
from symphony.simulator.hidden_demands import believed_load, believed_workload, declared_load
from symphony.simulator.next_event import EVENT_WINDOW, SimulatedEvent, advance_time
from symphony.simulator.scenarios import ScenarioArrays, batch_axes, pick
from symphony.simulator.world import World, initial


class Carry(eqx.Module):
    """The state of a run between steps."""

    world: World
    policy_state: Any
    prepared: Any  # by the policy, before the first step
    key: Array  # of the policy's own randomness


class LoggedDeparture(NamedTuple):
    """A gang that left its devices; job -1 = none."""

    job: IntScalar
    gang: IntScalar
    status: IntScalar  # before it left


class LoggedDecision(NamedTuple):
    """A decision of the policy; kind -1 = none."""

    kind: IntScalar
    job: IntScalar
    gang: IntScalar
    device: IntScalar
    kernel: IntScalar
    accepted: BoolScalar
    seconds: FloatScalar  # to wait at most


class LoggedStart(NamedTuple):
    """A gang that started; job -1 = none."""

    job: IntScalar
    gang: IntScalar
    devices: Int[Array, " workers"]
    lanes: Int[Array, " workers"]
    isolated_s: FloatScalar
    setup_s: FloatScalar


class LoggedEvent(NamedTuple):
    """The event to which time moved; kind -1 = time did not move."""

    kind: IntScalar
    job: IntScalar
    gang: IntScalar
    device: IntScalar


class StepLog(eqx.Module):
    """One step: a gang may leave, a decision be made, a gang start, and then time may move. -1 = nothing happened."""

    before: Amount  # time of the first three
    left: LoggedDeparture
    completed: IntScalar  # job
    decision: LoggedDecision
    started: LoggedStart
    after: Amount  # time of the event
    event: LoggedEvent
    reading: FloatScalar  # sum over all rows of the last counter reading
    held: FloatScalar  # sum over all gangs of the seconds for which they were held, up to the last event


def begin(s: ScenarioArrays, policy: Policy, key: Array) -> Carry:
    # Strong types: a weakly typed leaf would make the second call of `run_steps` compile again.
    world = initial(s, policy.tuning)
    prepared = policy.prepare(s.topology, without_arrivals(s.workload))
    carry = Carry(world, policy.init(s.topology), prepared, key)
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), carry)


def without_arrivals(w: WorkloadArrays) -> WorkloadArrays:
    """Kernels and graphs, without information about future jobs."""
    return replace(w, jobs=None, arrival_whole=None, arrival_part=None, graph=None, priority=None, home=None)


def finished(world: World, s: ScenarioArrays) -> BoolScalar:
    """Whether all jobs are complete, or the policy has stalled."""
    return (world.core.jobs_done >= s.workload.jobs) | world.stalled


def decision_due(world: World, s: ScenarioArrays) -> BoolScalar:
    """Whether the policy is to decide now: nothing else is to be done, and its latency has passed."""
    ready = (s.latency <= 0) | world.thought
    return ~instant_effects.unsettled(world) & decision_wanted(world.core, s.topology) & ready & ~finished(world, s)


def observe(world: World, s: ScenarioArrays, cheats: bool, prepared: Any = None) -> Observation:
    """What a policy is shown; only policies with `cheats` are shown the true background."""
    core = world.core
    background, std = counters.believed(world.counters, s, core.own_reading, world.background)
    factors = counters.believed_factors(world.counters, s)
    return Observation(
        core=replace(core, reading=background + core.own_reading),
        topology=s.topology,
        workload=believed_workload(without_arrivals(s.workload), factors),
        now=world.now,
        own_load=believed_load(s, world.load * LOAD_UNIT, world.kernel_load * LOAD_UNIT, factors),
        background=background,
        background_std=std,
        true_background=world.background if cheats else None,
        units_left=instant_effects.units_left(world, s),
        prepared=prepared,
        background_slope=counters.slope(world.counters, s),
        believed=s.believed,
    )


def step(
    carry: Carry,
    s: ScenarioArrays,
    policy: Policy,
    contention: ContentionModel,
    record: bool,
    alone: bool = False,
    key: Array | None = None,
    asks: bool | Array = True,
) -> tuple[Carry, StepLog | None]:
    """A gang leaves, a decision is made, a transfer and a gang start, time moves: each if its preconditions hold.

    In a batch, every part is computed and masked; `alone`, parts with nothing to do are skipped. `key`: the key of the
    next decision, if it has been computed already (`decision_key`). Without `asks`, the policy is not called: a run
    whose next decision is due stays there. Only steps that always ask (`asks=True`) are recorded.
    """
    w = s.workload
    before = carry.world
    world, left = _part(alone, departure_pending(before.core), instant_effects.leave, before, s)

    def decide(world: World, s: ScenarioArrays) -> tuple[tuple[World, Any], tuple[Action, Array]]:
        policy_key = decision_key(carry.key, world.core.decisions) if key is None else key
        shown = observe(world, s, policy.cheats, carry.prepared)
        state, action = policy.decide(policy_key, carry.policy_state, shown)
        when, action = compute_once((_mask(alone, decides), action))
        state = jax.tree.map(lambda new, old: jnp.where(when, new, old), state, carry.policy_state)
        world, accepted = instant_effects.act(world, s, action, when)
        return (world, state), (action, accepted)

    decides = decision_due(world, s)
    decided = world.core
    state, action, accepted = carry.policy_state, wait(), jnp.asarray(False)
    if asks is not False:
        decides &= asks
        (world, state), (action, accepted) = _part(alone, decides, decide, world, s, (world, state))

    after = after_decision(world, s, contention, policy.tuning, alone)
    world, start, event = after.world, after.start, after.event
    carry = Carry(world, state, carry.prepared, carry.key)
    if not record or asks is not True:
        return carry, None

    started, tasks = after.started.core, w.kernel.shape[1]

    def name(core: Any, gang: Array, valid: Array) -> tuple[Array, Array]:
        return jnp.where(valid, take(core.job, gang // tasks), -1), jnp.where(valid, gang % tasks, -1)

    log = StepLog(
        before=before.now,
        left=LoggedDeparture(*name(before.core, left.gang, left.gang >= 0), left.status),
        completed=jnp.where(left.completed, take(before.core.job, left.slot), -1),
        decision=LoggedDecision(
            jnp.where(decides, action.kind, -1),
            *name(decided, action.gang, decides),
            action.device,
            action.kernel,
            accepted,
            action.seconds,
        ),
        started=LoggedStart(
            *name(started, start.gang, start.gang >= 0),
            take(started.device, start.gang),
            take(started.lane, start.gang),
            start.isolated_s,
            start.setup_s,
        ),
        after=world.now,
        event=LoggedEvent(event.kind, *name(started, event.gang, event.gang >= 0), event.device),
        reading=world.core.reading.sum(),
        held=world.core.held.total.sum(),
    )
    return carry, log


class AfterDecision(eqx.Module):
    """Result of the part of a step after its decision."""

    world: World
    started: World  # before time moved
    start: instant_effects.StartLog
    event: SimulatedEvent


def after_decision(
    world: World, s: ScenarioArrays, contention: ContentionModel, tuning: Tuning | None = None, alone: bool = False
) -> AfterDecision:
    """The rest of a step: a transfer ends, a transfer and a gang start, time moves."""
    world, _ = _part(alone, world.closing >= 0, instant_effects.close_fetch, world, s)
    world, _ = _part(alone, instant_effects.fetchable(world).any(), instant_effects.open_fetch, world, s)
    world, start = _part(alone, startable(world.core)[0].any(), instant_effects.start, world, s)
    started = world

    ready = (s.latency <= 0) | world.thought
    moves = compute_once(
        ~instant_effects.unsettled(world) & ~(decision_wanted(world.core, s.topology) & ready) & ~finished(world, s)
    )
    move = partial(advance_time, contention=contention, when=_mask(alone, moves))
    world, event = _part(alone, moves, move, world, s)
    window_ended = event.kind == EVENT_WINDOW
    world, _ = _part(alone, window_ended, partial(_read, when=window_ended, tuning=tuning), world, s)
    return AfterDecision(world, started, start, event)


def act_if_due(world: World, s: ScenarioArrays, action: Action, when: Array, alone: bool = False) -> World:
    """Carry out an action if `when` and if a decision is due."""
    when &= decision_due(world, s)
    act = partial(instant_effects.act, action=action, when=_mask(alone, when))
    return _part(alone, when, act, world, s)[0]


def between_decisions(
    world: World, s: ScenarioArrays, contention: ContentionModel, alone: bool = False
) -> AfterDecision:
    """A step without a decision, which ends where the next decision may be due.

    `act_if_due` followed by such steps equals a sequence of `step`, cut at another point.
    """
    after = after_decision(world, s, contention, alone=alone)
    world, _ = _part(alone, departure_pending(after.world.core), instant_effects.leave, after.world, s)
    return replace(after, world=world)


def until_decision(
    carry: Carry, s: ScenarioArrays, policy: Policy, contention: ContentionModel, number: Array | None
) -> Carry:
    """Run until the policy is about to make decision `number` (from 0), or the run has finished.

    None is the first decision. The program is then far smaller: it does not contain the policy.
    """

    def earlier(carry: Carry) -> Array | bool:
        return False if number is None else carry.world.core.decisions < number

    def going(carry: Carry) -> Array:
        return ~finished(carry.world, s) & (earlier(carry) | ~decision_due(carry.world, s))

    def advance(carry: Carry) -> Carry:
        return step(carry, s, policy, contention, record=False, alone=True, asks=earlier(carry))[0]

    return jax.lax.while_loop(going, advance, carry)


def decision_key(key: Array, number: IntScalar) -> Array:
    return jax.random.fold_in(key, number)


def _read(world: World, s: ScenarioArrays, when: Array, tuning: Tuning | None) -> tuple[World, None]:
    """Update the belief after a counter window."""
    core, hidden = world.core, world.kernel_area / s.window
    world = replace(world, kernel_area=jnp.where(when, 0.0, world.kernel_area))
    true_own = core.own_reading
    own = believed_load(s, true_own, hidden, counters.believed_factors(world.counters, s))
    world = replace(world, core=replace(core, own_reading=jnp.where(when, own, true_own)))
    if not s.reads:  # without the filter, programs are far smaller
        return world, None
    runs = world.run_slow, world.run_s / s.window, world.run_uses
    window = EndedWindow(core.windows - 1, core.reading, true_own, *runs)
    if s.demand_factor is not None:
        window = replace(window, hidden=hidden.sum(0), kernels=declared_load(s, hidden))
    read = read_when(when, world.counters, Settings.of(s), window, tuning)
    return replace(world, counters=read, run_slow=jnp.where(when, 0.0, world.run_slow)), None


def _mask(alone: bool, needed: Array) -> Array:
    """The mask of a part: `alone`, it runs under a condition already."""
    return jnp.asarray(True) if alone else needed


def _part(
    alone: bool, needed: Array, part: Callable[..., Any], world: World, s: ScenarioArrays, otherwise: Any = None
) -> tuple[Any, Any]:
    """Run a part of a step; `alone`, only if it is needed. Its log is then filled with -1, 0 or False."""
    if not alone:
        return part(world, s)
    return run_or_skip(needed, lambda world: part(world, s), world, world if otherwise is None else otherwise)


def run_or_skip(
    needed: Array, part: Callable[[Any], tuple[Any, Any]], argument: Any, otherwise: Any
) -> tuple[Any, Any]:
    """Result and log of a part if it is needed, else `otherwise` and an empty log."""
    logs: list[Any] = []  # the shapes of the log, once `run` has been traced: to trace a part twice takes long

    def run(argument: Any) -> tuple[Any, Any]:
        result, log = part(argument)
        logs.append(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), log))
        return result, log

    def skip(argument: Any) -> tuple[Any, Any]:
        if not logs:  # `cond` traces `run` first, but does not promise it
            jax.eval_shape(run, argument)
        return otherwise, _blank_log(logs[0])

    return jax.lax.cond(needed, run, skip, argument)


def _blank_log(shapes: Any) -> Any:
    """A log of these shapes in which nothing happened."""
    return jax.tree.map(lambda x: jnp.full(x.shape, -1 if x.dtype == jnp.int32 else 0, x.dtype), shapes)


def run_key(seed: UInt[Array, ""]) -> Array:
    """The key from which the decisions of a run draw, if they do."""
    return jax.random.fold_in(jax.random.key(seed), 1)


def begin_all(batch: ScenarioArrays, policy: Policy, keys: Array) -> Carry:
    return jax.vmap(lambda s, key: begin(s, policy, key), in_axes=(batch_axes(batch), 0))(batch, keys)


def run_all(
    batch: ScenarioArrays, carry: Carry, policy: Policy, contention: ContentionModel, steps: int, record: bool
) -> tuple[Carry, StepLog | None, Array]:
    alone = batch.phases.shape[0] == 1

    def one(s: ScenarioArrays, carry: Carry) -> tuple[Carry, StepLog | None, Array]:
        # All keys are computed at once: a single one takes as long as a step. A step makes one decision at most.
        first = carry.world.core.decisions
        keys = jax.vmap(partial(decision_key, carry.key))(first + jnp.arange(steps))

        def body(carry: Carry, _: None) -> tuple[Carry, StepLog | None]:
            key = keys[carry.world.core.decisions - first]
            return step(carry, s, policy, contention, record, alone, key)

        carry, log = jax.lax.scan(body, carry, None, length=steps)
        return carry, log, finished(carry.world, s)

    if alone:
        return jax.tree.map(lambda x: x[None], one(pick(batch, 0), jax.tree.map(lambda x: x[0], carry)))
    return jax.vmap(one, in_axes=(batch_axes(batch), 0))(batch, carry)


# On CPUs, XLA splits every long reduction into three operations, so that sums vectorise. Ours are short, or search for
# one element; the cost of a step is the number of its operations.
# It would replace the list of an XLA_FLAGS that names passes itself, as that of the tests does.
_PASSES = "xla_disable_hlo_passes"
STEP_OPTIONS: dict[str, Any] = (
    {} if _PASSES in os.environ.get("XLA_FLAGS", "") else {_PASSES: "tree_reduction_rewriter"}
)
begin_batch: Any = eqx.filter_jit(begin_all)
run_steps: Any = eqx.filter_jit(run_all, compiler_options=STEP_OPTIONS)  # type: ignore[call-overload]
