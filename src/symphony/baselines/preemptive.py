"""Policies that preempt: whoever comes later in some order makes room for whoever comes earlier.

**SRTF** (shortest remaining time first; Schrage, 1968) runs the job with the least time left, and is optimal for the
mean completion time on one machine. **LAS** (least attained service) needs no estimate: it runs the job that has been
served least. **Tiresias** (Gu et al., NSDI 2019) makes LAS two-dimensional (service is GPUs times seconds) and
discrete: a few queues, a job moves to the next one when its service passes a threshold, first come first served within
a queue, and a job that has waited many times as long as it last ran goes back to the first queue.

Where ours differ: on unlike devices, time left is that on a gang's fastest device kind, and a gang goes to the fastest
idle device, all its workers on one kind and on as few machines as possible if there is room. A gang is not moved to a
faster device that falls idle. Of Tiresias, the variant that knows nothing of jobs' lengths (2D-LAS) is here, not the
Gittins index; its profile of who needs to be consolidated is not needed, because everyone is where possible. Service is
that of a job's present gang and of the gangs that were preempted. All preempt when a decision is wanted: when a job
arrives or any other event happens while someone waits.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from symphony.problem.arrays import TopologyArrays
from symphony.problem.errors import LimitError
from symphony.problem.spans import distance
from symphony.scheduling.clock import Amount
from symphony.scheduling.graph_tables import unit_seconds
from symphony.scheduling.indexing import NO_INDEX, first, first_min, take
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

MAX_TRACKED_JOBS = 512  # in the system at once, whose service is remembered


def remaining_s(observation: Observation) -> Array:
    """Isolated seconds that each gang has left on its fastest device kind [G]."""
    return observation.units_left * unit_seconds(observation).min(axis=1)


def compact_device(observation: Observation, gang: Array) -> Array:
    """The idle device for a gang's next worker: of a kind that has room for all, fast, near the first, in company."""
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
    observation: Observation, score: Array, *, slack: ArrayLike = 0.0, preempts: ArrayLike = True
) -> Action:
    """Place the waiting gang of the lowest score, preempting for it gangs whose scores are higher by more than `slack`.

    If even that does not make room for it, the first in order that fits on idle devices is placed.
    """
    core, t = observation.core, observation.topology
    tasks = observation.workload.kernel.shape[1]
    priority = jnp.repeat(core.priority, tasks)
    idle = idle_devices(observation)
    gang = pick_gang(observation, -score)
    wanted = take(core.workers, gang)

    feasible = observation.feasible(gang)
    worse = (priority < take(priority, gang)) | (
        (priority == take(priority, gang)) & (score > take(score, gang) + slack)
    )
    held = core.lane_holds >= 0

    def devices_of(gangs: Array) -> Array:
        lanes = take(gangs, core.lane_holds) & held
        return jnp.zeros(feasible.shape, bool).at[t.lane_device].max(lanes) & feasible & core.up

    victims = movable(observation) & worse & (gang >= 0) & preempts
    soon = (idle & feasible) | devices_of(core.status == SAVING)
    could = soon | devices_of(victims)
    fits = (idle & feasible).sum() >= wanted
    provided = soon.sum() >= wanted
    worth_it = could.sum() >= wanted

    # The last in order among those who hold a device that the gang can use.
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
    action = choose(worth_it, makes_room, elsewhere)
    return choose(gang < 0, wait(), choose(partly | fits, place(gang, compact_device(observation, gang)), action))


class Srtf(Policy):
    """Shortest remaining time first, preempting those that have longer to go."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """The gang with the least time left; room is made for it."""
        return state, place_or_preempt(observation, remaining_s(observation))


class AttainedService(eqx.Module):
    """What preempted gangs had been given, by job slot [J]. What runs is added when somebody asks."""

    job: Array  # i32: whose it is
    banked: Array  # f: device-seconds of the stays that were cut short
    stay: Array  # f: seconds of the last of them
    stopped: Amount  # when it was


def no_attained_service(jobs: int) -> AttainedService:
    """Nobody has been preempted yet."""
    zero = jnp.zeros(jobs)
    return AttainedService(jnp.full(jobs, -1, jnp.int32), zero, zero, Amount(jnp.zeros(jobs, jnp.int32), zero))


def _of_jobs(service: AttainedService, observation: Observation) -> AttainedService:
    """The rows of the jobs now in the system [K], emptied for newcomers."""
    core = observation.core
    slots, jobs = core.job.shape[0], service.job.shape[0]
    if slots > jobs:
        raise LimitError(
            f"there are {slots} job slots, and service is remembered for {jobs}",
            where="LAS",
            hint=f"give the policy jobs={slots}, or draw the scenario with job_slots={jobs} or fewer",
        )
    rows: AttainedService = jax.tree.map(lambda x: x[:slots], service)
    mine = rows.job == core.job
    return AttainedService(core.job, jnp.where(mine, rows.banked, 0), jnp.where(mine, rows.stay, 0), rows.stopped)


def _running_s(observation: Observation) -> Array:
    """Seconds since each gang that runs started [G]; 0 for others."""
    core = observation.core
    lane = core.lane[:, 0]
    since = observation.now.minus(Amount(take(core.lane_since.whole, lane), take(core.lane_since.part, lane)))
    return jnp.where((lane >= 0) & (core.status == RUNNING), since, 0)


def _record_service(
    service: AttainedService, rows: AttainedService, action: Action, stays: Array, observation: Observation
) -> AttainedService:
    """Remember what the gang that is being preempted was given."""
    core = observation.core
    slots, tasks = rows.job.shape[0], observation.workload.kernel.shape[1]
    hit = (jnp.arange(slots) == action.gang // tasks) & (action.kind == preempt(0).kind)
    stay = take(stays, action.gang)
    given = stay * take(core.workers, action.gang)
    now = observation.now
    rows = AttainedService(
        rows.job,
        rows.banked + jnp.where(hit, given, 0),
        jnp.where(hit, stay, rows.stay),
        Amount(jnp.where(hit, now.whole, rows.stopped.whole), jnp.where(hit, now.part, rows.stopped.part)),
    )
    return jax.tree.map(lambda every, some: every.at[:slots].set(some), service, rows)


def attained_s(rows: AttainedService, stays: Array, observation: Observation) -> Array:
    """Device-seconds that each gang's job has attained [G]."""
    tasks = observation.workload.kernel.shape[1]
    running = (stays * observation.core.workers).reshape(-1, tasks).sum(axis=1)
    return jnp.repeat(rows.banked + running, tasks)


class Las(Policy):
    """Least attained service first, in device-seconds."""

    slack_s: Array = eqx.field(default=300.0, converter=jnp.asarray)  # device-seconds more that a victim must have had
    jobs: int = eqx.field(default=MAX_TRACKED_JOBS, static=True)

    def init(self, topology: TopologyArrays) -> AttainedService:
        """Nobody has been served."""
        return no_attained_service(self.jobs)

    def decide(self, key: Array, state: AttainedService, observation: Observation) -> tuple[AttainedService, Action]:
        """The gang whose job has had least; room is made for it."""
        rows, stays = _of_jobs(state, observation), _running_s(observation)
        action = place_or_preempt(observation, attained_s(rows, stays, observation), slack=self.slack_s)
        return _record_service(state, rows, action, stays, observation), action


class Tiresias(Policy):
    """Two-dimensional LAS in discrete queues, first come first served within each; the starved are promoted."""

    thresholds_s: Array = eqx.field(default=(3600.0, 36000.0), converter=lambda x: jnp.asarray(x, float))
    patience: Array = eqx.field(
        default=8.0, converter=jnp.asarray
    )  # last stays that it waits before promotion; 0 = never
    jobs: int = eqx.field(default=MAX_TRACKED_JOBS, static=True)

    def init(self, topology: TopologyArrays) -> AttainedService:
        """Nobody has been served."""
        return no_attained_service(self.jobs)

    def decide(self, key: Array, state: AttainedService, observation: Observation) -> tuple[AttainedService, Action]:
        """The oldest gang of the first queue; room is made for it by gangs of later queues."""
        rows, stays = _of_jobs(state, observation), _running_s(observation)
        tasks = observation.workload.kernel.shape[1]
        waits = ~(observation.core.status == RUNNING).reshape(-1, tasks).any(axis=1)
        starved = waits & (rows.stay > 0) & (self.patience > 0)
        starved &= observation.now.minus(rows.stopped) >= self.patience * rows.stay
        # As if it had just arrived: otherwise it would fall back the moment it ran.
        rows = AttainedService(
            rows.job, jnp.where(starved, 0, rows.banked), jnp.where(starved, 0, rows.stay), rows.stopped
        )
        queue = (attained_s(rows, stays, observation)[:, None] >= self.thresholds_s).sum(axis=1).astype(float)
        action = place_or_preempt(observation, queue)
        return _record_service(state, rows, action, stays, observation), action
