"""One turn of the scheduler: events in, commands out, in one compiled program.

What has happened is told to the core; then, as at every instant of the simulator, gangs leave, inputs are found, gangs
start and decisions are made until nothing is left to do (`scheduling/instant.py` has the rules). A turn is a pure
function: if a policy's turn takes too long or breaks a rule, it is thrown away and another policy takes the same turn.

    K job slots   T gangs of a job   G = K*T gangs   L lanes   W workers of a gang   R rows   B events of a turn
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
from symphony.scheduling import advance, instant
from symphony.scheduling.advance import Arrival
from symphony.scheduling.clock import Amount
from symphony.scheduling.feasible import startable
from symphony.scheduling.indexing import BIG, put, smallest, take
from symphony.scheduling.policy import Observation, Policy
from symphony.scheduling.state import ABSENT, DONE, QUEUED, Core

AT_ONCE = 32  # events that one turn takes in; more take several
ARRIVED, DROPPED, FINISHED, STOPPED, FAILED, REPAIRED = range(6)  # kinds of events


@dataclass(frozen=True)
class Event:
    """Something that has happened, in numbers."""

    kind: int
    who: int = 0  # gang FINISHED or STOPPED; job slot DROPPED; device FAILED or REPAIRED
    graph: int = 0  # of a job that ARRIVED …
    home: int = 0
    priority: int = 0


class Moment(eqx.Module):
    """What a turn is told."""

    kind: Any  # i32[B]
    who: Any  # i32[B]
    graph: Any  # i32[B]
    home: Any  # i32[B]
    priority: Any  # i32[B]
    count: Any  # i32: how many of them there are
    now: Amount
    background: Any  # f[R]: belief about loads by others, its mean …
    background_std: Any  # f[R]: … and its deviation

    @classmethod
    def of(cls, events: Sequence[Event], now_s: float, background: np.ndarray, deviation: np.ndarray) -> Moment:
        """At most `AT_ONCE` events."""
        rows = np.zeros((5, AT_ONCE), np.int32)
        for k, event in enumerate(events):
            rows[:, k] = event.kind, event.who, event.graph, event.home, event.priority
        whole = int(now_s)
        now = Amount(np.int32(whole), np.float32(now_s - whole))  # type: ignore[arg-type]
        return cls(*rows, np.int32(len(events)), now, background, deviation)


class Answer(eqx.Module):
    """What an engine is to be told, and what the turn says of itself."""

    started: Any  # i32[L]: gangs, in order; -1 fills up
    devices: Any  # i32[L, W]: of those
    saved: Any  # i32[L]: gangs to preempt
    next: Any  # i32[L]: gangs that wait for nothing but a lane, in order
    next_device: Any  # i32[L]: of those
    jobs: Any  # i32[K]: number of the job in each slot, -1 = free
    decisions: Any  # i32
    refused: Any  # i32
    stuck: Any  # bool: nothing runs, though a gang could be placed


class _Turn(eqx.Module):
    core: Core
    policy_state: Any
    told: Array  # i32: events so far
    started: Array  # i32[L]
    saved: Array  # i32[L]


def take_turn(
    policy: Policy,
    t: TopologyArrays,
    w: WorkloadArrays,
    core: Core,
    state: Any,
    prepared: Any,
    moment: Moment,
    key: Array,
) -> tuple[Core, Any, Answer]:
    """Tell the core what has happened, and let the policy decide until nothing is left to do."""
    yes = jnp.asarray(True)

    def leave(x: _Turn) -> _Turn:
        return replace(x, core=instant.leave(x.core, t, w)[0])

    def fetch(x: _Turn) -> _Turn:
        # Engines move inputs together with the kernel that reads them: what is wanted somewhere is as good as there.
        core, found = instant.next_fetch(x.core, t, w, x.core.fetches > 0)
        core = advance.inputs_there(core, found.gang, found.device, jnp.asarray(1), found.goes)
        return replace(x, core=advance.copy_made(core, found.parent, take(t.place, found.device)[0], found.goes))

    def start(x: _Turn) -> _Turn:
        core, begun = instant.start(x.core, t, w, moment.now)
        return replace(x, core=core, started=put(x.started, (x.started >= 0).sum(), begun.gang, begun.when))

    def decide(x: _Turn) -> _Turn:
        drawn = jax.random.fold_in(key, x.core.decisions)
        state, action = policy.decide(drawn, x.policy_state, observe(x.core, t, w, moment, prepared))
        core, commands, _ = advance.apply(x.core, t, w, action, yes)
        saved = put(x.saved, (x.saved >= 0).sum(), commands.save, commands.save >= 0)
        return replace(x, core=core, policy_state=state, saved=saved)

    def event(number: int) -> Any:
        def happened(x: _Turn) -> _Turn:
            k, core = x.told, replace(x.core, waited=~yes)
            who = moment.who[k]
            if number == ARRIVED:
                job = Arrival(moment.graph[k], moment.home[k], moment.priority[k], moment.now)
                core = advance.admit(core, w, job, yes)
            elif number == DROPPED:
                core = advance.job_dropped(core, w, who, yes)
            elif number == FINISHED:
                core = advance.gang_finished(core, who, yes)
            elif number == STOPPED:
                core = advance.gang_stopped(core, who, yes)
            elif number == FAILED:
                core = advance.device_failed(core, t, who, yes)
            else:
                core = advance.device_repaired(core, who, yes)
            return replace(x, core=core, told=k + 1)

        return happened

    parts = [leave, fetch, start, decide, *(event(number) for number in range(REPAIRED + 1))]

    def todo(x: _Turn) -> Array:
        """The next part, the first that has something to do; how many parts there are if none has."""
        happens = jnp.where(x.told < moment.count, 4 + moment.kind[x.told], len(parts))
        now = [instant.leaves(x.core), (x.core.fetches > 0).any(), startable(x.core)[0].any(), x.told < moment.count]
        number = jnp.where(instant.wanted(x.core, t), 3, len(parts))
        for part, when in reversed(list(zip((0, 1, 2, happens), now, strict=True))):
            number = jnp.where(when, part, number)
        return number

    def step(x: tuple[_Turn, Array]) -> tuple[_Turn, Array]:
        after = jax.lax.switch(x[1], parts, x[0])
        return after, todo(after)

    none = jnp.full(core.lane_holds.shape, -1, jnp.int32)
    begin = _Turn(core, state, jnp.asarray(0, jnp.int32), none, none)
    end, _ = jax.lax.while_loop(lambda x: x[1] < len(parts), step, (begin, todo(begin)))
    return end.core, end.policy_state, _answer(core, end, t)


def _answer(before: Core, end: _Turn, t: TopologyArrays) -> Answer:
    core = end.core
    waits = (core.status == QUEUED) & (core.inputs_left == 0) & (core.workers == 1)
    order = jnp.where(waits, core.sequence, BIG).astype(jnp.float32)
    following = smallest(jnp.where(waits, order, jnp.inf), end.started.shape[0])
    return Answer(
        started=end.started,
        devices=take(core.device, end.started).astype(jnp.int32),
        saved=end.saved,
        next=following,
        next_device=take(core.device, following)[:, 0].astype(jnp.int32),
        jobs=core.job,
        decisions=core.decisions - before.decisions,
        refused=core.refused - before.refused,
        stuck=(core.lane_holds < 0).all() & instant.wanted(replace(core, waited=jnp.asarray(False)), t),
    )


def observe(core: Core, t: TopologyArrays, w: WorkloadArrays, moment: Moment, prepared: Any) -> Observation:
    """What a policy is shown."""
    return Observation(
        core=replace(core, reading=moment.background + core.own_reading),
        topology=t,
        workload=w,
        now=moment.now,
        own_load=instant.running_load(core, t, w),
        background=moment.background,
        background_std=moment.background_std,
        true_background=None,
        units_left=jnp.where((core.status == ABSENT) | (core.status == DONE), 0.0, 1.0),  # a kernel says 1 until done
        prepared=prepared,
    )
