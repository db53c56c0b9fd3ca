"""One turn of the scheduler: events in, commands out, in one compiled program.

Events update the core. Then, as at every instant of the simulator, gangs leave, inputs are fetched, gangs start and
decisions are made until nothing is left to do (`scheduling/instant.py` has the rules). A turn is a pure function: if a
policy's turn takes too long or breaks a rule, its result is discarded and another policy takes the same turn.

    K job slots   T gangs of a job   G = K*T gangs   W workers of a gang   L lanes   R rows
    B events of a turn   S = L + B
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.speeds import BeliefArrays
from symphony.scheduling import advance, instant
from symphony.scheduling.advance import Arrival
from symphony.scheduling.clock import Amount
from symphony.scheduling.feasible import per_gang, startable
from symphony.scheduling.indexing import put, put_all, take
from symphony.scheduling.policy import Observation, Policy
from symphony.scheduling.state import ABSENT, DONE, RUNNING, SAVING, Core

EVENTS_PER_TURN = 32  # more events take several turns
# Kinds of events. ROUND: a round of training jobs has ended. ENTERED: a task of a large graph took a place in the
# window of its job (`task_window.py`). WOKEN: the time that the policy asked to wait has passed.
ARRIVED, DROPPED, FINISHED, STOPPED, FAILED, REPAIRED, RECALLED, ROUND, ENTERED, WOKEN = range(10)


@dataclass(frozen=True)
class SchedulerEvent:
    """One event, by indices of the core."""

    kind: int
    who: int = 0  # gang FINISHED, STOPPED, RECALLED or ENTERED; job slot DROPPED; device FAILED or REPAIRED
    graph: int = 0  # of a job that ARRIVED …
    home: int = 0
    priority: int = 0


class TurnInputs(eqx.Module):
    """The events of a turn, the time, and the belief about the load by others."""

    kind: Array  # i32[B]
    who: Array  # i32[B]
    graph: Array  # i32[B]
    home: Array  # i32[B]
    priority: Array  # i32[B]
    count: Array  # i32: how many of them there are
    now: Amount
    background: Array  # f[R]: belief about loads by others, its mean …
    background_std: Array  # f[R]: … and its deviation


EVENT_FIELDS = 5
PackedInputs = tuple[np.ndarray, np.ndarray]  # `TurnInputs` as one integer and one float vector


def pack_events(events: Sequence[SchedulerEvent], now_s: float, others: np.ndarray) -> PackedInputs:
    """Pack at most `EVENTS_PER_TURN` events. `others`: f[2, R], mean and deviation of the load by others."""
    whole = np.zeros(EVENT_FIELDS * EVENTS_PER_TURN + 2, np.int32)
    for k, event in enumerate(events):
        whole[k : EVENT_FIELDS * EVENTS_PER_TURN : EVENTS_PER_TURN] = (
            event.kind,
            event.who,
            event.graph,
            event.home,
            event.priority,
        )
    seconds = int(now_s)
    whole[-2:] = len(events), seconds
    part = np.empty(1 + others.size, np.float32)
    part[0], part[1:] = now_s - seconds, others.reshape(-1)
    return whole, part


def unpack_events(moment: tuple[Array, Array]) -> TurnInputs:
    """Inverse of `pack_events`, inside the compiled program."""
    whole, part = moment
    rows = whole[: EVENT_FIELDS * EVENTS_PER_TURN].reshape(EVENT_FIELDS, EVENTS_PER_TURN)
    background, deviation = part[1:].reshape(2, -1)
    kind, who, graph, home, priority = rows
    now = Amount(whole[-1], part[0])
    return TurnInputs(kind, who, graph, home, priority, whole[-2], now, background, deviation)


@dataclass(frozen=True)
class TurnCommands:
    """Commands for the engine, and statistics of the turn."""

    started: list[tuple[int, list[int]]]  # gangs, in order, each with the devices of its workers
    saved: list[int]  # gangs to preempt
    early: list[int]  # numbers of the FINISHED events of gangs that the core had not started
    jobs: list[int]  # number of the job in each slot, -1 = free
    wake_s: float  # send WOKEN after this time unless another event comes first; inf = never
    decisions: int
    refused: int
    stuck: bool  # nothing runs, though a gang could be placed

    @classmethod
    def of(cls, data: np.ndarray, lanes: int, workers: int) -> TurnCommands:
        """Unpack the output vector of the compiled program."""
        most = lanes + EVENTS_PER_TURN
        early = 2 * most
        devices = early + EVENTS_PER_TURN
        rest = devices + most * workers
        decisions, refused, stuck = data[rest : rest + 3].tolist()
        wake_s = float(data[rest + 3 : rest + 4].view(np.float32)[0])
        rows = data[devices:rest].reshape(most, workers)
        gangs = [
            (gang, row[row >= 0].tolist()) for gang, row in zip(data[:most].tolist(), rows, strict=True) if gang >= 0
        ]
        saved = [gang for gang in data[most:early].tolist() if gang >= 0]
        is_early = np.flatnonzero(data[early:devices]).tolist()
        return cls(gangs, saved, is_early, data[rest + 4 :].tolist(), wake_s, decisions, refused, bool(stuck))


class _TurnState(eqx.Module):
    core: Core
    policy_state: Any
    next_event: Array  # i32: index of the next event
    early: Array  # bool[B]
    started: Array  # i32[S]
    devices: Array  # i32[S, W]
    saved: Array  # i32[S]


def take_turn(
    policy: Policy,
    t: TopologyArrays,
    w: WorkloadArrays,
    core: Core,
    state: Any,
    prepared: Any,
    moment: TurnInputs,
    key: Array,
    speeds: BeliefArrays | None = None,
) -> tuple[Core, Any, Array]:
    """Apply the events to the core, and let the policy decide until nothing is left to do.

    `speeds`: beliefs about training jobs. Returns the new core, the policy's state, and the vector that
    `TurnCommands.of` unpacks.
    """
    yes = jnp.asarray(True)

    def leave(x: _TurnState) -> _TurnState:
        return replace(x, core=instant.leave(x.core, t, w)[0])

    def fetch(x: _TurnState) -> _TurnState:
        # Engines move inputs together with the kernel that reads them, so a fetch ends at once.
        core, found = instant.next_fetch(x.core, t, w, x.core.fetches > 0)
        core = advance.inputs_there(core, found.gang, found.device, jnp.asarray(1), found.goes)
        return replace(x, core=advance.copy_made(core, found.parent, take(t.place, found.device)[0], found.goes))

    def start(x: _TurnState) -> _TurnState:
        core, begun = instant.start(x.core, t, w, moment.now)
        # Restoring and set-up are part of the run: engines do not report when they end.
        lanes = take(core.lane, begun.gang)
        core = replace(core, lane_setup=put_all(core.lane_setup, lanes, False, begun.when & (lanes >= 0)))
        at = (x.started >= 0).sum()
        started = put(x.started, at, begun.gang, begun.when)
        return replace(x, core=core, started=started, devices=put(x.devices, at, begun.devices, begun.when))

    def decide(x: _TurnState) -> _TurnState:
        drawn = jax.random.fold_in(key, x.core.decisions)
        state, action = policy.decide(drawn, x.policy_state, observe(x.core, t, w, moment, prepared, speeds))
        core, commands, _ = advance.apply(x.core, t, w, action, yes)
        saved = put(x.saved, (x.saved >= 0).sum(), commands.save, commands.save >= 0)
        return replace(x, core=core, policy_state=state, saved=saved)

    def event(number: int) -> Any:
        def happened(x: _TurnState) -> _TurnState:
            k, core, early = x.next_event, advance.woken(x.core, yes), x.early
            who = moment.who[k]
            if number == ARRIVED:
                job = Arrival(moment.graph[k], moment.home[k], moment.priority[k], moment.now)
                core = advance.admit(core, w, job, yes)
            elif number == DROPPED:
                core = advance.job_dropped(core, w, who, yes)
            elif number == FINISHED:
                # An engine may run ahead of the core; and a gang that was to be preempted may have finished first.
                runs = (take(core.status, who) == RUNNING) | (take(core.status, who) == SAVING)
                core, early = advance.gang_finished(core, who, runs), put(early, k, ~runs)
            elif number == STOPPED:
                core = advance.gang_stopped(core, who, yes)
            elif number == FAILED:
                core = advance.device_failed(core, t, who, yes)
            elif number == REPAIRED:
                core = advance.device_repaired(core, who, yes)
            elif number == RECALLED:
                core = advance.gang_recalled(core, who, yes)
            elif number == ROUND:  # the policy may plan again
                core = advance.window_ended(core, core.reading, core.own_reading, yes, yes)
            elif number == ENTERED:
                core = advance.gang_entered(core, w, who, yes)
            return replace(x, core=core, next_event=k + 1, early=early)

        return happened

    parts = [leave, fetch, start, decide, *(event(number) for number in range(WOKEN + 1))]

    def todo(x: _TurnState) -> Array:
        """Index of the first part that has something to do; `len(parts)` if none has."""
        happens = jnp.where(x.next_event < moment.count, 4 + moment.kind[x.next_event], len(parts))
        number = jnp.where(instant.decision_wanted(x.core, t), 3, len(parts))
        number = jnp.where(x.next_event < moment.count, happens, number)
        number = jnp.where(startable(x.core)[0].any(), 2, number)
        number = jnp.where((x.core.fetches > 0).any(), 1, number)
        return jnp.where(instant.departure_pending(x.core), 0, number)

    def step(x: tuple[_TurnState, Array]) -> tuple[_TurnState, Array]:
        after = jax.lax.switch(x[1], parts, x[0])
        return after, todo(after)

    # Gangs sent ahead may start and finish within one turn, so more gangs can start than there are lanes.
    none = jnp.full(core.lane_holds.shape[0] + EVENTS_PER_TURN, -1, jnp.int32)
    nowhere = jnp.full((none.shape[0], core.device.shape[1]), -1, jnp.int32)
    core = advance.time_moved(core, t, moment.now)
    begin = _TurnState(core, state, jnp.asarray(0, jnp.int32), jnp.zeros(EVENTS_PER_TURN, bool), none, nowhere, none)
    end, _ = jax.lax.while_loop(lambda x: x[1] < len(parts), step, (begin, todo(begin)))
    return end.core, end.policy_state, _packed_commands(core, end, t)


def _packed_commands(before: Core, end: _TurnState, t: TopologyArrays) -> Array:
    """Pack in the order that `TurnCommands.of` unpacks."""
    core = end.core
    stuck = (core.lane_holds < 0).all() & instant.decision_wanted(replace(core, waited=jnp.asarray(False)), t)
    said = jnp.stack([core.decisions - before.decisions, core.refused - before.refused, stuck.astype(jnp.int32)])
    wake_s = jnp.where(core.waited, core.wake_s, jnp.inf).astype(jnp.float32)
    wakes = jax.lax.bitcast_convert_type(wake_s, jnp.int32)[None]  # bits, because the output is one integer vector
    early, devices = end.early.astype(jnp.int32), end.devices.reshape(-1)
    return jnp.concatenate([end.started, end.saved, early, devices, said, wakes, core.job])


def observe(
    core: Core,
    t: TopologyArrays,
    w: WorkloadArrays,
    moment: TurnInputs,
    prepared: Any,
    speeds: BeliefArrays | None = None,
) -> Observation:
    absent = (core.status == ABSENT) | (core.status == DONE)
    return Observation(
        core=replace(core, reading=moment.background + core.own_reading),
        topology=t,
        workload=w,
        now=moment.now,
        own_load=instant.running_load(core, t, w),
        background=moment.background,
        background_std=moment.background_std,
        true_background=None,
        units_left=jnp.where(absent, 0.0, per_gang(core, jnp.asarray(w.units))),  # already the remaining units
        prepared=prepared,
        believed=speeds,
    )
