"""Policies that plan on the host: a NumPy function assigns devices, and the policy's decisions carry the plan out.

Some schedulers solve a linear program or a matching. A subclass of `HostPlanner` gets `PlanInputs` (the cluster and the
gangs that run or wait) and returns a `RoundPlan`. This file requests a plan when one is due, preempts gangs that run
elsewhere, and places the others. A plan is due when time has passed and devices are free while a gang waits (or
whatever is free, if the policy `displaces`), and at the end of a *round*: a counter window of the scenario. If the
scenario offers decisions at the end of windows (`Disturbances(window_s=360, offer_at_windows=True)`), every round is
planned; otherwise only those at whose end a gang waits.

The plan is made in a host callback. No JAX runs in it, so several threads may call it. A batch of scenarios makes one
call per step, which plans for the scenarios that need it (about 0.4 ms plus the time of the plan itself).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.problem.arrays import TopologyArrays
from symphony.problem.speeds import BeliefArrays, SpeedArrays
from symphony.scheduling.clock import Amount
from symphony.scheduling.graph_tables import unit_seconds
from symphony.scheduling.indexing import NO_INDEX, first, first_min, take
from symphony.scheduling.policy import (
    Action,
    Observation,
    Policy,
    best_device,
    choose,
    idle_devices,
    movable,
    pick_gang,
    place,
    preempt,
    wait,
)
from symphony.scheduling.state import FREE, PLACING, READY, RUNNING, SAVING

MAX_PLANNED_GANGS = 256  # rows of a plan
ABSENT, WAITS, RUNS, FIXED = range(4)  # standing of a row. RUNS may be preempted; FIXED may not, or is queued


class PlanInputs(NamedTuple):
    """Inputs of a plan. M rows, one for each gang that runs or waits; L lanes; D devices; Y kinds; N kernels."""

    boundary: Any  # bool[]: a round has just ended
    seed: Any  # u32[]
    windows: Any  # i32[]: rounds so far
    now_s: Any  # f[]
    since_s: Any  # f[]: since the previous plan
    gang: Any  # i32[M], -1 = no gang
    job: Any  # i32[M]: number of its job
    kernel: Any  # i32[M]
    priority: Any  # i32[M]
    workers: Any  # i32[M]
    standing: Any  # i32[M]
    left: Any  # f[M]: units
    age_s: Any  # f[M]: since the arrival of its job
    ran_s: Any  # f[M]: running time since the previous plan
    rate: Any  # f[M, Y]: units/s in isolation; 0 = cannot run there
    moving_s: Any  # f[M]: to write a checkpoint and read it back
    need: Any  # f[M, Y, H]: load of a worker on the resources of a device's route; H = 0 unless the policy packs
    beside: Any  # f[N, N, Y]: believed share of the speed beside another kernel; N = 0: unknown
    beside_std: Any  # f[N, N, Y]: deviation of its log
    unit_s: Any  # f[N, Y, 2]: believed seconds per unit, packed and spread; N = 0: as in the profiles
    unit_std: Any  # f[N, Y, 2]: deviation of its log
    crowding: Any  # f[]: further cost of every neighbour after the first
    holder: Any  # i32[L]: gang that holds it; negative = free, or held otherwise
    queued: Any  # i32[D]: workers in the queue
    up: Any  # bool[D]
    kind: Any  # i32[D]
    machine: Any  # i32[D]
    lane_device: Any  # i32[L]
    lane_exists: Any  # bool[L]
    # the previous plan
    old_gang: Any  # i32[M]
    old_job: Any  # i32[M]
    old_plan: Any  # i32[L]
    book: Any  # f[M, C]: state of the policy for each row; in `plan`, already in the order of the present rows
    memo: Any  # f[K]: state of the policy


class RoundPlan(NamedTuple):
    """The row of each lane, the order of placement, and the policy's new state."""

    lanes: Any  # i32[L]: row, -1 = none
    stay: Any  # bool[M]: already runs on its devices
    rank: Any  # i32[M]: order of placement; NO_INDEX = not placed
    book: Any  # f[M, C]
    memo: Any  # f[K]


def rows_of(mask: np.ndarray) -> list[int]:
    """Indices at which a mask is true."""
    return [int(row) for row in np.flatnonzero(mask)]


class SeatAllocation:
    """Seats that a plan may assign. A seat is one lane, or a pair of lanes of one device if `paired`."""

    def __init__(self, p: PlanInputs, *, paired: bool = False) -> None:
        self.p = p
        row_of = {int(gang): row for row, gang in enumerate(p.gang) if gang >= 0}
        self.holder = np.asarray([row_of.get(int(gang), -1) for gang in p.holder])
        self._held: dict[int, list[int]] = {}
        for lane in np.flatnonzero(self.holder >= 0):
            self._held.setdefault(int(self.holder[lane]), []).append(int(p.lane_device[lane]))
        leaves = np.isin(p.standing, (WAITS, RUNS))
        free = (p.holder == FREE) | ((self.holder >= 0) & leaves[self.holder])
        free &= p.lane_exists & p.up[p.lane_device]
        self.lanes = np.bincount(p.lane_device[free], minlength=len(p.kind)) - p.queued
        self.share = 2 if paired else 1  # lanes per seat, on devices that have enough
        self.free = np.where(self.lanes == 1, 1, np.maximum(self.lanes, 0) // self.share)
        slots = np.bincount(p.lane_device[p.lane_exists], minlength=len(p.kind))
        self.all = np.where(slots == 1, 1, slots // self.share)
        self.given: dict[int, tuple[int, ...]] = {}
        self.open = np.flatnonzero(free)

    def capacity(self, *, only_free: bool = False) -> np.ndarray:
        """Seats of each device kind, on devices that are up [Y]."""
        seats = np.where(self.p.up, self.free if only_free else self.all, 0)
        return np.bincount(self.p.kind, seats, minlength=self.p.rate.shape[1])

    def devices(self) -> np.ndarray:
        """Devices of each kind that are up [Y]: a limit on the workers of a gang, each on its own device."""
        return np.bincount(self.p.kind[self.p.up & (self.all > 0)], minlength=self.p.rate.shape[1])

    def where(self, row: int) -> tuple[int, ...]:
        """Devices that a row holds."""
        return tuple(self._held.get(row, ()))

    def take(self, rows: Sequence[int], devices: Sequence[int]) -> bool:
        """Assign a seat on each of the devices to one row, or to two that share it; returns whether all were free."""
        if len(devices) == 0 or any(self.free[d] < 1 for d in devices):
            return False
        for device in devices:
            self.free[device] -= 1
        for row in rows:
            self.given[row] = tuple(devices)
        return True

    def find(self, count: int, kinds: Sequence[int], *, whole: bool = False) -> tuple[int, ...]:
        """`count` free devices of these kinds on few machines, or (); `whole` = with room for a pair."""
        able = (self.free > 0) & np.isin(self.p.kind, kinds)
        if whole:
            able &= self.lanes >= self.share
        devices = np.flatnonzero(able)
        if len(devices) < count:
            return ()
        machines = self.p.machine[devices]
        alike = np.bincount(machines)[machines]
        # The machine with just enough devices, else the one with the most; on it, emptier devices first.
        fit = np.where(alike >= count, alike - count, NO_INDEX - alike)
        order = np.lexsort((devices, -self.free[devices], machines, fit))
        return tuple(int(d) for d in devices[order[:count]])

    def plan(self, order: Sequence[int], book: np.ndarray, memo: np.ndarray) -> RoundPlan:
        """The plan of the assigned seats; rows are placed in this order."""
        p = self.p
        lanes = np.full(len(p.holder), -1, np.int32)
        # A gang that cannot be moved now (it is restoring, say) must not be moved as soon as it can be.
        stay, rank = np.asarray(p.standing == FIXED), np.full(len(p.gang), NO_INDEX, np.int32)
        room: dict[int, list[int]] = {device: [] for device in range(len(p.kind))}
        for lane in self.open:
            room[int(p.lane_device[lane])].append(int(lane))
        for row, devices in self.given.items():
            for device in devices:
                lanes[room[device].pop()] = row
            stay[row] = p.standing[row] == RUNS and sorted(self.where(row)) == sorted(devices)
        for number, row in enumerate(order):
            if row in self.given:
                rank[row] = number
        return RoundPlan(lanes, stay, rank, book, memo)

    def keep(self) -> None:
        """Assign running rows their devices, and waiting rows those of the previous plan."""
        for row in rows_of(self.p.standing == RUNS):
            self.take([row], self.where(row))
        for row, devices in self.promised().items():
            self.take([row], devices)

    def promised(self) -> dict[int, tuple[int, ...]]:
        """Devices that the previous plan assigned to waiting rows, which may have been preempted to move there."""
        p = self.p
        old_row = {(int(g), int(j)): row for row, (g, j) in enumerate(zip(p.old_gang, p.old_job, strict=True))}
        promised = {}
        for row in rows_of(p.standing == WAITS):
            old = old_row.get((int(p.gang[row]), int(p.job[row])), -1)
            devices = tuple(int(d) for d in p.lane_device[p.old_plan == old]) if old >= 0 else ()
            if len(devices) == p.workers[row]:
                promised[row] = devices
        return promised


class RoundState(eqx.Module):
    """The plan that is being carried out."""

    gang: Array  # i32[M]
    job: Array  # i32[M]
    lanes: Array  # i32[L]
    stay: Array  # bool[M]
    rank: Array  # i32[M]
    book: Array  # f[M, C]
    memo: Array  # f[N]
    at: Amount
    windows: Array  # i32


class HostPlanner(Policy):
    """Carries out plans. Subclasses define the size of their state, and plan."""

    rows: int = eqx.field(default=MAX_PLANNED_GANGS, static=True)

    @property
    def preempts(self) -> bool:
        """Whether a plan is due at the end of a round even if no device is free."""
        return True

    @property
    def displaces(self) -> bool:
        """Whether a plan is due between rounds, while a gang waits, even if no device is free."""
        return False

    @property
    def packs(self) -> bool:
        """Whether `PlanInputs.need` is filled in."""
        return False

    @abstractmethod
    def sizes(self, kinds: int) -> tuple[int, int]:
        """Columns of the book, and length of the memo."""

    @abstractmethod
    def plan(self, inputs: PlanInputs) -> RoundPlan:
        """Assign devices. NumPy in, NumPy out."""

    def init(self, topology: TopologyArrays) -> RoundState:
        """The state before the first plan."""
        columns, numbers = self.sizes(topology.kind_memory.shape[0])
        none = jnp.full(self.rows, -1, jnp.int32)
        return RoundState(
            gang=none,
            job=none,
            lanes=jnp.full(topology.lane_device.shape[0], -1, jnp.int32),
            stay=jnp.zeros(self.rows, bool),
            rank=jnp.full(self.rows, NO_INDEX, jnp.int32),
            book=jnp.zeros((self.rows, columns)),
            memo=jnp.zeros(numbers),
            at=Amount.of(jnp.asarray(0.0)),
            windows=jnp.zeros((), jnp.int32),
        )

    def decide(self, key: Array, state: RoundState, observation: Observation) -> tuple[RoundState, Action]:
        """Plan if a plan is due; then return the next action of the plan."""
        core = observation.core
        tasks = observation.workload.kernel.shape[1]
        present = (core.status >= READY) & (core.status <= SAVING)
        gang = jnp.nonzero(present, size=self.rows, fill_value=-1)[0].astype(jnp.int32)
        job = jnp.where(gang >= 0, take(core.job, gang // tasks), -1)
        partly = (core.status == PLACING).any()
        boundary = core.windows != state.windows
        stale = (observation.now.minus(state.at) > 0) | (gang != state.gang).any() | (job != state.job).any()
        free = idle_devices(observation).any() | (core.status == SAVING).any() | self.displaces
        due = (stale & free & observation.candidates.any()) | (boundary & self.preempts)
        due &= ~partly

        def planned(state: RoundState) -> RoundState:
            inputs = self._plan_inputs(key, state, observation, gang, job, boundary)
            shapes = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
                RoundPlan(state.lanes, state.stay, state.rank, state.book, state.memo),
            )
            # Under vmap both branches run, so the callback gets `due`.
            made = jax.pure_callback(partial(_plan_all, self.plan), shapes, due, inputs, vmap_method="broadcast_all")
            return RoundState(
                gang, job, made.lanes, made.stay, made.rank, made.book, made.memo, observation.now, core.windows
            )

        state = jax.lax.cond(due, planned, lambda state: state, state)
        return state, _carry_out(state, observation, partly)

    def _plan_inputs(
        self, key: Array, state: RoundState, observation: Observation, gang: Array, job: Array, boundary: Array
    ) -> PlanInputs:
        core, t, w = observation.core, observation.topology, observation.workload
        tasks = w.kernel.shape[1]
        slot, lane = gang // tasks, take(core.lane[:, 0], gang)
        status = take(core.status, gang)
        fixed = ~take(movable(observation), gang) & (status != READY) & (status != SAVING)
        standing = jnp.where(fixed, FIXED, jnp.where(status == RUNNING, RUNS, WAITS))
        ran = observation.now.minus(Amount(take(core.lane_since.whole, lane), take(core.lane_since.part, lane)))
        since = observation.now.minus(state.at)
        arrived = Amount(take(core.arrived.whole, slot), take(core.arrived.part, slot))
        need = jnp.zeros((self.rows, t.kind_memory.shape[0], 0))
        if self.packs:
            kinds = jnp.arange(need.shape[1])
            of_kind = jnp.minimum(first(t.device_kind == kinds[:, None]), t.device_kind.shape[0] - 1)
            kernel, work = w.kernel[take(core.graph, slot), gang % tasks], w.work[take(core.graph, slot), gang % tasks]
            rows = t.route_kind[of_kind]  # [Y, H]
            fix, per = w.demand_fixed[kernel], w.demand_work[kernel]  # [M, Y, Q]
            demand = fix[:, kinds[:, None], rows] + work[:, None, None] * per[:, kinds[:, None], rows]
            need = demand / t.capacity[t.route_row[of_kind]]
        believed = observation.believed or _no_beliefs(need.shape[1])
        return PlanInputs(
            boundary=boundary,
            seed=jax.random.bits(key),
            windows=core.windows,
            now_s=observation.now.total,
            since_s=since,
            gang=gang,
            job=job,
            kernel=w.kernel[take(core.graph, slot), gang % tasks],
            priority=take(core.priority, slot),
            workers=take(core.workers, gang).astype(jnp.int32),
            standing=jnp.where(gang < 0, ABSENT, standing),
            left=take(observation.units_left, gang),
            age_s=observation.now.minus(arrived),
            ran_s=jnp.where(status == RUNNING, jnp.minimum(ran, since), 0),
            rate=1 / take(unit_seconds(observation), gang),
            moving_s=jnp.asarray(w.checkpoint + w.restore)[take(core.graph, slot), gang % tasks],
            need=need,
            beside=believed.mean.beside,
            beside_std=believed.beside_std,
            unit_s=believed.mean.unit_s,
            unit_std=believed.unit_std,
            crowding=believed.mean.crowding,
            holder=core.lane_holds,
            queued=core.queued,
            up=core.up,
            kind=jnp.asarray(t.device_kind),
            machine=t.place[:, 3],
            lane_device=jnp.asarray(t.lane_device),
            lane_exists=jnp.asarray(t.lane_exists),
            old_gang=state.gang,
            old_job=state.job,
            old_plan=state.lanes,
            book=state.book,
            memo=state.memo,
        )


def _no_beliefs(kinds: int) -> BeliefArrays:
    mean = SpeedArrays(jnp.zeros((0, kinds, 2)), jnp.zeros((0, 0, kinds)), jnp.zeros(()))
    return BeliefArrays(mean, mean.unit_s, mean.beside)


def _carry_out(state: RoundState, observation: Observation, partly: Array) -> Action:
    """The next action of the plan; wait if there is none."""
    core, t = observation.core, observation.topology
    tasks = observation.workload.kernel.shape[1]
    valid = (state.gang >= 0) & (take(core.job, state.gang // tasks) == state.job)
    # Gangs that started after the plan was made are where the plan wants them.
    lane = take(core.lane[:, 0], state.gang)
    older = state.at.minus(Amount(take(core.lane_since.whole, lane), take(core.lane_since.part, lane))) > 0
    misplaced = valid & take(movable(observation), state.gang) & older & ~state.stay
    ready = valid & take(observation.candidates, state.gang)
    least, row = first_min(jnp.where(ready, state.rank, NO_INDEX))
    gang = jnp.where(partly, pick_gang(observation), take(state.gang, row))
    row = jnp.where(partly, first(state.gang == gang), row)
    planned = jnp.zeros(core.up.shape, bool).at[t.lane_device].max(state.lanes == row)
    feasible = observation.feasible(gang)
    left = take(core.workers, gang) - take(core.placed, gang)
    go = (least < NO_INDEX) & ((planned & feasible).sum() >= left)
    device = best_device(observation, gang, 2.0 * planned + idle_devices(observation))
    otherwise = choose(go, place(gang, device), wait())
    preempted = preempt(take(state.gang, first(misplaced)))
    return choose(partly, place(gang, device), choose(misplaced.any(), preempted, otherwise))


def _plan_all(plan: Any, due: Any, inputs: PlanInputs) -> RoundPlan:
    """Plans for one scenario or a batch, on the host; where none is due, the result is not used."""
    due = np.asarray(due)
    leading = due.ndim
    batch = PlanInputs(*(np.asarray(x).reshape(due.size, *np.shape(x)[leading:]) for x in inputs))
    plans = RoundPlan(
        lanes=np.full(batch.holder.shape, -1, np.int32),
        stay=np.zeros(batch.gang.shape, bool),
        rank=np.full(batch.gang.shape, NO_INDEX, np.int32),
        book=batch.book.copy(),
        memo=batch.memo.copy(),
    )
    for index in np.flatnonzero(due):
        made = plan(_in_present_order(PlanInputs(*(x[index] for x in batch))))
        for all_of, one in zip(plans, made, strict=True):
            all_of[index] = one
    return RoundPlan(*(x.reshape(*due.shape, *x.shape[1:]) for x in plans))


def _in_present_order(p: PlanInputs) -> PlanInputs:
    """With the book in the order of the present rows (0 for new ones), and finite rates."""
    old = {(int(g), int(j)): row for row, (g, j) in enumerate(zip(p.old_gang, p.old_job, strict=True)) if g >= 0}
    source = np.asarray([old.get((int(g), int(j)), -1) for g, j in zip(p.gang, p.job, strict=True)])
    book = np.where((source >= 0)[:, None], p.book[source], 0.0)
    rate = np.where((p.gang >= 0)[:, None] & np.isfinite(p.rate), p.rate, 0.0)
    return p._replace(book=book.astype(float), memo=p.memo.astype(float), rate=rate.astype(float))
