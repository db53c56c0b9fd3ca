"""A fixed plan, and the policy that follows it in the simulator."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.oracle.instance import Instance
from symphony.problem.arrays import TopologyArrays
from symphony.scheduling.indexing import NO_INDEX, first_min, take
from symphony.scheduling.policy import Action, Observation, Policy, place
from symphony.scheduling.state import PLACING
from symphony.simulator.records import RunRecord


@dataclass(frozen=True)
class Plan:
    """The devices of every gang of an instance, and the order in which gangs are placed."""

    devices: np.ndarray  # i[N, W]: of each worker; -1 beyond the gang's last
    rank: np.ndarray  # i[N]: 0 is placed first; every gang after its parents
    moves: np.ndarray  # bool[N]: it fetches inputs, with the bus to itself
    after: np.ndarray  # i[N]: it is placed after so many gangs with `moves` have all their inputs


def shared_plan(devices: np.ndarray, rank: np.ndarray) -> Plan:
    """A plan that places gangs as early as their rank allows, and lets transfers share resources."""
    return Plan(devices, rank, np.zeros(len(rank), bool), np.zeros(len(rank), int))


def linear_order(i: Instance, key: np.ndarray) -> np.ndarray:
    """Ranks in order of the key, except that every gang comes after its parents [N]."""
    waiting = [len(parents) for parents in i.parents]
    ready = [(key[gang], gang) for gang, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    rank = np.empty(len(i), int)
    for turn in range(len(i)):
        _, gang = heapq.heappop(ready)
        rank[gang] = turn
        for child in i.children[gang]:
            waiting[child] -= 1
            if waiting[child] == 0:
                heapq.heappush(ready, (key[child], child))
    return rank


def decode(i: Instance, run: RunRecord) -> Plan:
    """The plan of a run; of a gang with several stays, the last counts."""
    devices = np.full((len(i), int(i.workers.max())), -1)
    placed = np.zeros(len(i))
    started = np.zeros(len(i))
    for stay in run.gangs:
        gang = i.index[stay.job, stay.gang]
        devices[gang, : len(stay.devices)] = stay.devices
        placed[gang], started[gang] = stay.placed_s, stay.start_s
    order = np.lexsort((started, placed))
    key = np.empty(len(i))
    key[order] = np.arange(len(i))
    return shared_plan(devices, linear_order(i, key))


class Script(Policy):
    """Follows a plan, given as tables over all jobs and gangs.

    A gang is placed only after all gangs that the plan puts before it on its devices, even if a device idles meanwhile.
    """

    cheats: ClassVar[bool] = True

    devices: Array  # i32[J * T, W]
    position: Array  # i32[J * T, W]: how many workers the plan puts on that device before it
    rank: Array  # i32[J * T]
    moves: Array  # bool[J * T]
    after: Array  # i32[J * T]

    @property
    def name(self) -> str:
        """The name in tables."""
        return "oracle"

    def init(self, topology: TopologyArrays) -> tuple[Array, Array]:
        """Workers placed on each device so far [D], and gangs with `moves` placed so far."""
        return jnp.zeros(topology.device_kind.shape[0], jnp.int32), jnp.asarray(0, jnp.int32)

    def decide(
        self, key: Array, state: tuple[Array, Array], observation: Observation
    ) -> tuple[tuple[Array, Array], Action]:
        """The candidate of lowest rank whose predecessors have been placed, or wait."""
        placed, moving = state
        core, tasks = observation.core, observation.workload.kernel.shape[1]
        gangs = jnp.arange(core.status.shape[0])
        line = take(core.job, gangs // tasks) * tasks + gangs % tasks
        devices, position = take(self.devices, line), take(self.position, line)
        fetched = jnp.maximum(moving - (core.fetches.sum() > 0), 0)  # at most one gang with `moves` is fetching
        turn = ((position <= take(placed, devices)) & take(core.up, devices)) | (devices < 0)
        turn = turn.all(axis=1) & (take(self.after, line) <= fetched)
        allowed = observation.candidates & (turn | (core.status == PLACING))
        least, gang = first_min(jnp.where(allowed, take(self.rank, line), NO_INDEX))
        found = least < NO_INDEX
        worker = take(core.placed, gang)
        device = devices[gang, worker]
        here = (jnp.arange(placed.shape[0]) == device) & found
        placed = jnp.where(here, jnp.maximum(placed, position[gang, worker] + 1), placed)
        moving = moving + (found & (worker == 0) & take(self.moves, take(line, gang)))
        return (placed, moving), place(jnp.where(found, gang, -1), device)


def tables(i: Instance, plans: list[Plan]) -> dict[str, np.ndarray]:
    """The fields of `Script` for several plans, with a leading axis."""
    w, line = i.arrays.workload, i.line
    lines, width = w.graph.shape[0] * w.kernel.shape[1], w.max_workers
    out: dict[str, Any] = {
        "devices": np.full((len(plans), lines, width), -1, np.int32),
        "position": np.zeros((len(plans), lines, width), np.int32),
        "rank": np.zeros((len(plans), lines), np.int32),
        "moves": np.zeros((len(plans), lines), bool),
        "after": np.zeros((len(plans), lines), np.int32),
    }
    for number, plan in enumerate(plans):
        workers = plan.devices.shape[1]
        out["devices"][number, line, :workers] = plan.devices
        out["position"][number, line, :workers] = positions(plan, len(i.slots))
        out["rank"][number, line] = plan.rank
        out["moves"][number, line] = plan.moves
        out["after"][number, line] = plan.after
    return out


def positions(plan: Plan, devices: int) -> np.ndarray:
    """The number of workers before each worker on its device [N, W]."""
    order = np.argsort(plan.rank)
    flat = plan.devices[order].reshape(-1)
    counted = np.cumsum(flat[:, None] == np.arange(devices), axis=0)
    before = np.where(flat >= 0, counted[np.arange(len(flat)), flat] - 1, 0)
    position = np.zeros_like(plan.devices)
    position[order] = before.reshape(plan.devices.shape)
    return position


def script(i: Instance, plan: Plan) -> Script:
    return Script(**{name: jnp.asarray(table[0]) for name, table in tables(i, [plan]).items()})
