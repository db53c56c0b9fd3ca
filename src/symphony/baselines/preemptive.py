"""Preemptive policies: gangs later in some order are preempted for gangs earlier in that order.

**SRTF** (shortest remaining time first; Schrage, 1968) runs the job with the least remaining time, and is optimal for
the mean completion time on one machine. **LAS** (least attained service) needs no estimate: it runs the job with the
least service so far. **Tiresias** (Gu et al., NSDI 2019) makes LAS two-dimensional (service is GPUs times seconds) and
discrete: a few queues, a job moves to the next one when its service exceeds a threshold, first come first served within
a queue, and a job that has waited many times as long as it last ran is promoted to the first queue.

Differences here: on heterogeneous devices, remaining time is that on a gang's fastest device kind, and a gang is placed
on the fastest idle device, with all its workers on one kind and on as few machines as possible. A gang is not moved to
a faster device that becomes idle. Of Tiresias, the variant without information on job lengths (2D-LAS) is implemented,
not the Gittins index; its profile of jobs that need consolidation is not needed, because all gangs are consolidated
where possible. Service is that of a job's present gang and of its preempted gangs. All preempt at every decision: when
a job arrives or any other event happens while a gang waits.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from symphony.problem.arrays import TopologyArrays
from symphony.problem.errors import LimitError
from symphony.problem.spans import distance
from symphony.scheduling import clock
from symphony.scheduling.clock import Amount
from symphony.scheduling.graph_tables import unit_seconds
from symphony.scheduling.indexing import NO_INDEX, FloatScalar, IntScalar, first, first_min, take
from symphony.scheduling.policy import (
    Action,
    Observation,
    Policy,
    choose,
    idle_devices,
    movable,
    pick_gang,
    place,
    preempt,
    wait,
)
from symphony.scheduling.state import PLACING, RUNNING, SAVING

MAX_TRACKED_JOBS = 512  # job slots whose service is recorded


def remaining_s(observation: Observation) -> Float[Array, " gangs"]:
    """Isolated seconds that each gang has left on its fastest device kind."""
    return observation.units_left * unit_seconds(observation).min(axis=1)


def compact_device(observation: Observation, gang: IntScalar) -> IntScalar:
    """The idle device for a gang's next worker, by: same kind as the first worker, a kind with room for all workers,
    speed, distance to the first worker, idle devices of that kind on the same machine."""
    core, t = observation.core, observation.topology
    allowed = observation.feasible(gang) & idle_devices(observation)
    left = take(core.workers, gang) - take(core.placed, gang)
    kind, machine = jnp.asarray(t.device_kind), t.place[:, 3]
    alike = (kind[:, None] == kind) & allowed
    origin = take(core.device, gang)[0]
    far = jnp.where(origin >= 0, distance(take(t.place, origin), t.place), 0)
    company = jnp.minimum((alike & (machine[:, None] == machine)).sum(axis=1), left)
    same = (origin < 0) | (kind == take(kind, origin))  # the slowest worker sets the pace of all
    best = allowed
    for score in (same, alike.sum(axis=1) >= left, -observation.seconds(gang), -far, company):
        best &= score == jnp.where(best, score.astype(float), -jnp.inf).max()
    return jnp.where(best.any(), first(best), first(observation.feasible(gang)))


def place_or_preempt(
    observation: Observation, score: Float[Array, " gangs"], *, slack: ArrayLike = 0.0, preempts: ArrayLike = True
) -> Action:
    """Place the waiting gang of the lowest score, preempting gangs whose scores are higher by more than `slack`.

    If preemption cannot make enough room, the first gang in order that fits on idle devices is placed.
    """
    core, t = observation.core, observation.topology
    tasks = observation.workload.kernel.shape[1]
    priority = jnp.repeat(core.priority, tasks)
    idle = idle_devices(observation)
    gang = pick_gang(observation, -score)
    wanted = take(core.workers, gang)

    feasible = observation.feasible(gang)
    level = take(priority, gang)
    worse = (priority < level) | ((priority == level) & (score > take(score, gang) + slack))
    held = core.lane_holds >= 0

    def devices_of(gangs: Array) -> Array:
        lanes = take(gangs, core.lane_holds) & held
        return jnp.zeros(feasible.shape, bool).at[t.lane_device].max(lanes) & feasible & core.up

    victims = movable(observation) & worse & (gang >= 0) & preempts
    soon = (idle & feasible) | devices_of(core.status == SAVING)
    could = soon | devices_of(victims)
    fits = (idle & feasible).sum() >= wanted
    provided = soon.sum() >= wanted
    enough = could.sum() >= wanted

    # The last gang in order that holds a device which the new gang can use.
    useful = victims & (feasible[core.device] & (core.device >= 0)).any(axis=1)
    useful &= priority == jnp.where(useful, priority, NO_INDEX).min()
    victim = first_min(jnp.where(useful, -score, jnp.inf))[1]

    kinds = jnp.arange(t.kind_memory.shape[0])
    idle_kinds = (idle[:, None] & (jnp.asarray(t.device_kind)[:, None] == kinds)).sum(axis=0)
    small = (((core.runs_on[:, None] >> kinds) & 1) * idle_kinds).sum(axis=1) >= core.workers
    other = pick_gang(observation, jnp.where(small, -score, -jnp.inf))
    other = jnp.where(take(small, other), other, -1)

    partly = (gang >= 0) & (take(core.status, gang) == PLACING)
    makes_room = choose(provided, wait(), preempt(victim))
    elsewhere = place(other, compact_device(observation, other))
    action = choose(enough, makes_room, elsewhere)
    return choose(gang < 0, wait(), choose(partly | fits, place(gang, compact_device(observation, gang)), action))


class Srtf(Policy):
    """Shortest remaining time first, preempting gangs with more remaining time."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        return state, place_or_preempt(observation, remaining_s(observation))


class AttainedService(eqx.Module):
    """Service of preempted gangs, by job slot. The service of running gangs is added by `attained_s`."""

    job: Int[Array, " jobs"]  # number of the job in the slot
    banked: Float[Array, " jobs"]  # device-seconds of preempted stays
    stay: Float[Array, " jobs"]  # seconds of the last preempted stay
    stopped: Amount  # [jobs], when that stay ended


def no_attained_service(jobs: int) -> AttainedService:
    zero = jnp.zeros(jobs)
    return AttainedService(jnp.full(jobs, -1, jnp.int32), zero, zero, Amount(jnp.zeros(jobs, jnp.int32), zero))


def _of_jobs(service: AttainedService, observation: Observation) -> AttainedService:
    """The rows of the present jobs, reset to 0 where a slot has a new job."""
    core = observation.core
    slots, jobs = core.job.shape[0], service.job.shape[0]
    if slots > jobs:
        raise LimitError(
            f"there are {slots} job slots, and the policy records the service of {jobs}",
            where="LAS",
            hint=f"give the policy jobs={slots}, or draw the scenario with job_slots={jobs} or fewer",
        )
    rows: AttainedService = jax.tree.map(lambda x: x[:slots], service)
    mine = rows.job == core.job
    return AttainedService(core.job, jnp.where(mine, rows.banked, 0), jnp.where(mine, rows.stay, 0), rows.stopped)


def _running_s(observation: Observation) -> Float[Array, " gangs"]:
    """Seconds since each running gang started; 0 for others."""
    core = observation.core
    lane = core.lane[:, 0]
    return jnp.where((lane >= 0) & (core.status == RUNNING), observation.now.minus(core.lane_since.take(lane)), 0)


def _record_service(
    service: AttainedService, rows: AttainedService, action: Action, stays: Array, observation: Observation
) -> AttainedService:
    """Add the service of the gang that is being preempted."""
    core = observation.core
    slots, tasks = rows.job.shape[0], observation.workload.kernel.shape[1]
    hit = (jnp.arange(slots) == action.gang // tasks) & (action.kind == preempt(0).kind)
    stay = take(stays, action.gang)
    rows = AttainedService(
        rows.job,
        rows.banked + jnp.where(hit, stay * take(core.workers, action.gang), 0),
        jnp.where(hit, stay, rows.stay),
        clock.where(hit, observation.now, rows.stopped),
    )
    return jax.tree.map(lambda every, some: every.at[:slots].set(some), service, rows)


def attained_s(
    rows: AttainedService, stays: Float[Array, " gangs"], observation: Observation
) -> Float[Array, " gangs"]:
    """Device-seconds that each gang's job has attained."""
    tasks = observation.workload.kernel.shape[1]
    running = (stays * observation.core.workers).reshape(-1, tasks).sum(axis=1)
    return jnp.repeat(rows.banked + running, tasks)


class Las(Policy):
    """Least attained service first, in device-seconds."""

    slack_s: FloatScalar = eqx.field(default=300.0, converter=jnp.asarray)  # device-seconds that a victim is ahead by
    jobs: int = eqx.field(default=MAX_TRACKED_JOBS, static=True)

    def init(self, topology: TopologyArrays) -> AttainedService:
        return no_attained_service(self.jobs)

    def decide(self, key: Array, state: AttainedService, observation: Observation) -> tuple[AttainedService, Action]:
        rows, stays = _of_jobs(state, observation), _running_s(observation)
        action = place_or_preempt(observation, attained_s(rows, stays, observation), slack=self.slack_s)
        return _record_service(state, rows, action, stays, observation), action


class Tiresias(Policy):
    """Two-dimensional LAS in discrete queues, first come first served within each; starved jobs are promoted."""

    thresholds_s: Float[Array, " queues"] = eqx.field(
        default=(3600.0, 36000.0), converter=lambda x: jnp.asarray(x, float)
    )
    # A job is promoted after a wait of this many times its last stay; 0 = never.
    patience: FloatScalar = eqx.field(default=8.0, converter=jnp.asarray)
    jobs: int = eqx.field(default=MAX_TRACKED_JOBS, static=True)

    def init(self, topology: TopologyArrays) -> AttainedService:
        return no_attained_service(self.jobs)

    def decide(self, key: Array, state: AttainedService, observation: Observation) -> tuple[AttainedService, Action]:
        rows, stays = _of_jobs(state, observation), _running_s(observation)
        tasks = observation.workload.kernel.shape[1]
        waits = ~(observation.core.status == RUNNING).reshape(-1, tasks).any(axis=1)
        starved = waits & (rows.stay > 0) & (self.patience > 0)
        starved &= observation.now.minus(rows.stopped) >= self.patience * rows.stay
        # Its service starts from 0: otherwise it would be demoted as soon as it ran.
        banked, stay = (jnp.where(starved, 0, x) for x in (rows.banked, rows.stay))
        rows = AttainedService(rows.job, banked, stay, rows.stopped)
        queue = (attained_s(rows, stays, observation)[:, None] >= self.thresholds_s).sum(axis=1).astype(float)
        action = place_or_preempt(observation, queue)
        return _record_service(state, rows, action, stays, observation), action
