"""Decisions of the learned policy in plain turns: features in NumPy from a `PlainCore`, then the network in NumPy.

The network is that of `policies/learned.py`, with NumPy arrays as weights. The features are those of
`policies/features.py`: there over padded arrays of everything, here of what is there, with tables that are kept until
the graphs change. Tests compare them, and the decisions, with those of the compiled program. A small operation costs a
microsecond whatever it does, so there are few of them: columns of the same kind are computed together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from symphony.policies.encoders import HostRoutes
from symphony.policies.features import (
    MAX_LOG,
    DeviceColumn,
    GangColumn,
    OtherColumn,
    PairColumn,
    SceneColumn,
    graph_tables,
    log_time,
)
from symphony.policies.late_binding import MAX_BACKLOG_S, LateBinding
from symphony.policies.learned import MASKED_SCORE, Learned, Memory
from symphony.problem.arrays import KIND_INDEX
from symphony.problem.spans import span
from symphony.problem.topology import LOCAL, SPANS
from symphony.runtime.live_workload import LiveWorkload
from symphony.scheduling.guard import MAX_REGRET, OVERRUN, overdue_jobs
from symphony.scheduling.holding import MIN_SHARE, MIN_WAIT_S
from symphony.scheduling.policy import PLACE, PREEMPT, WAIT
from symphony.scheduling.state import ABSENT, DONE, FINISHED, RUNNING

if TYPE_CHECKING:
    from symphony.runtime.plain_turn import PlainCore

_D, _G, _P, _O, _S = DeviceColumn, GangColumn, PairColumn, OtherColumn, SceneColumn
JOB_COLUMNS = [_G.REMAINING, _G.JOB_WORK, _G.SLOWDOWN, _G.AGE, _G.READY, _G.UNFINISHED]
SCALED_CUT = ("kernel", "work", "units", "workers", "runs_on", "preemptible", "parents", "in_start", "out_start")
_OVER = frozenset((ABSENT, DONE, FINISHED))
_INF = np.float32(np.inf)
NOT_NUMBERS = "scores of the network are not numbers"


class PlainAction(NamedTuple):
    """One decision: `kind` is PLACE, PREEMPT or WAIT."""

    kind: int
    gang: int = -1
    device: int = -1
    wait_s: float = math.inf


class _Devices(NamedTuple):
    """The devices now [D]."""

    up: np.ndarray
    idle: np.ndarray
    free: np.ndarray  # slots
    queued: np.ndarray
    memory: np.ndarray  # that is free
    running_s: np.ndarray
    queue_s: np.ndarray


class _Running(NamedTuple):
    """Lanes that hold a gang [n], in ascending order."""

    lane: np.ndarray
    device: np.ndarray
    need: np.ndarray  # demand of the worker on the rows of the device's route, as a share of their capacity [n, H]


class _Loads(NamedTuple):
    """Loads of the rows on the routes of devices [D, H]."""

    own: np.ndarray
    total: np.ndarray
    std: np.ndarray
    rows: np.ndarray  # own load of each row [R] …
    all_rows: np.ndarray  # … and with others
    running: _Running  # whose load it is


class _Ready(NamedTuple):
    """READY gangs in ascending order; then the one that is partly placed, if there is one."""

    gang: np.ndarray
    slot: np.ndarray
    at: np.ndarray  # in tables of graphs, flat
    kernel: list[int]
    able: np.ndarray  # bool[n, kinds]: kinds that may run it
    seconds: np.ndarray  # f32[n, kinds]: isolated; inf where it cannot run
    enough: np.ndarray  # bool[n]: it may be placed now


class _Jobs(NamedTuple):
    """Of each job slot."""

    columns: np.ndarray  # JOB_COLUMNS
    left_s: np.ndarray
    path_s: np.ndarray
    overdue: np.ndarray  # bool: see `scheduling.guard`
    jobs: int  # how many there are


class PlainNetwork:
    """A learned policy and the state of its LSTM, for one scheduler. With `LateBinding`, it binds late."""

    def __init__(self, policy: Learned | LateBinding) -> None:
        self._late = isinstance(policy, LateBinding)
        learned = policy.learned if isinstance(policy, LateBinding) else policy
        self.network, self._objective = learned.network.on_host(), np.asarray(learned.objective)
        nothing: Any = np.zeros(self.network.sizes.memory, np.float32)
        self.memory = Memory(nothing, nothing)
        self._workload: LiveWorkload | None = None
        self._version = -1

    # --- tables

    def prepare(self, workload: LiveWorkload) -> None:
        """Compute what depends on the topology once, and what depends on the graphs when they have changed."""
        if workload is not self._workload:
            self._workload, self._version = workload, -1
            self._use(workload)
        if workload.version != self._version:
            self._version = workload.version
            with np.errstate(divide="ignore", invalid="ignore"):
                self._prepare(workload)

    def _use(self, workload: LiveWorkload) -> None:
        self._routes = HostRoutes(workload.t)
        t = self._t = SimpleNamespace(**vars(workload.t))  # reading a field of a module takes a microsecond
        self._w = workload.tables
        devices, slots = len(t.exists), workload.shapes.jobs
        self._kinds = np.arange(len(t.kind_memory))
        self._is_kind = (t.device_kind[:, None] == self._kinds) & t.exists[:, None]
        self._of_kind = self._is_kind.astype(np.float32)
        self._slots = np.maximum(t.slots, 1).astype(np.float32)
        self._total_slots = max(int(t.slots.sum()), 1)
        self._capacity = t.capacity[t.route_row].astype(np.float32)
        self._memory = np.maximum(t.kind_memory[t.device_kind], 1)
        self._is_compute = t.route_kind == KIND_INDEX["compute"]
        crossed = (t.route_spans[:, :, None] >> np.arange(len(SPANS))) & 1 > 0
        self._not_crossed = np.where(crossed, 0, np.inf).astype(np.float32)
        self._reach: Any = None
        self._needs: dict[int, tuple[bytes, np.ndarray, np.ndarray]] = {}  # by kernel, see `_need`
        self._device_table = np.zeros((len(_D), devices), np.float32)
        self._device_table[_D.SLOTS] = np.log(self._slots)
        self._arrived, self._isolated = np.zeros(slots), np.ones(slots, np.float32)
        self._left_s, self._path_s = np.zeros(slots, np.float32), np.zeros(slots, np.float32)

    def _measure_distances(self) -> None:
        """By source and target [D, D]: where the bandwidths at both ends are in [D, spans], and the latency."""
        t, devices = self._t, len(self._t.exists)
        reach = span(t.place[:, None], t.peers[:, None], t.place, t.peers)
        ends = np.arange(devices)[:, None], np.arange(devices)
        self._reach = np.array([np.broadcast_to(end, reach.shape) * len(SPANS) + reach for end in ends])
        self._moved = (reach != LOCAL).astype(np.float32)
        self._latency = self._moved * t.latency[reach].astype(np.float32)

    def _prepare(self, workload: LiveWorkload) -> None:
        """As `Learned.prepare`, without padding beyond the largest graph."""
        w = workload.w
        tasks = int(np.flatnonzero(w.workers.any(axis=0)).max(initial=0)) + 1
        edges = max(int(w.in_start[:, -1].max()), 1)
        cut: dict[str, Any] = {
            name: getattr(w, name)[:, : tasks + 1 if name.endswith("_start") else tasks] for name in SCALED_CUT
        }
        small = replace(w, **cut, in_source=w.in_source[:, :edges], in_bytes=w.in_bytes[:, :edges])
        g = graph_tables(workload.t, small, np)
        self._tasks, self._scale = tasks, float(g.scale)
        self._nodes = self.network.encode(g).astype(np.float32, copy=False)
        table = np.zeros((*g.best.shape, len(_G)), np.float32)
        table[..., _G.ISOLATED], table[..., _G.TAIL] = log_time(g.best, g.scale), log_time(g.tail, g.scale)
        table[..., _G.NEXT_KIND] = g.choice / MAX_LOG
        table[..., _G.WORKERS], table[..., _G.PREEMPTIBLE] = np.log(np.maximum(small.workers, 1)), small.preemptible
        table[..., _G.CHILDREN] = np.log1p(np.diff(small.out_start))
        self._gang_table = table.reshape(-1, len(_G))
        self._best, self._tail = g.best.astype(np.float32), g.tail.astype(np.float32)
        self._inputs = np.minimum(np.log1p(g.bytes_s / g.scale), MAX_LOG).reshape(-1)
        fastest = (g.fastest[..., None] == self._kinds) * g.best[..., None]
        self._fastest_s = fastest.reshape(-1, len(self._kinds)).astype(np.float32)  # best, at the fastest kind
        self._device_table[_D.SLOWER_KIND] = g.speed[self._t.device_kind]
        self._any_preemptible = bool(small.preemptible.any())
        self._known: dict[int, tuple[int, int]] = {}  # by slot: job and unfinished gangs that `_left_s` is of

    def _need(self, kernel: int) -> tuple[np.ndarray, np.ndarray]:
        """Demand of a worker on the rows of each device's route, as a share of their capacity [D, H].

        Also the contention between two of them, as `late_binding.mutual_slowdown` has it [D].
        """
        demand = self._w.demand_fixed[kernel]
        known, key = self._needs.get(kernel), demand.tobytes()
        if known is None or known[0] != key:
            need = demand[self._t.device_kind[:, None], self._t.route_kind] / self._capacity
            shared = np.where(self._is_compute, 0, need)
            slow = np.maximum(2 * shared, 1)
            mutual = np.log(slow.max(axis=1)) + np.minimum(np.log1p((shared * (slow - 1)).sum(axis=1)), MAX_LOG)
            known = self._needs[kernel] = key, need, mutual
        return known[1], known[2]

    # --- decisions

    def decide(self, core: PlainCore) -> PlainAction:
        """The action with the highest score. There must be a gang that may be placed."""
        self.prepare(core.workload)
        with np.errstate(divide="ignore", invalid="ignore"):  # of pairs that the mask excludes
            devices = self._devices_now(core)
            wants = devices.idle | (devices.up & (devices.queue_s < MAX_BACKLOG_S))
            partly = core.placing >= 0
            if self._late and not partly and not wants.any():
                return PlainAction(WAIT)
            seen = self.features(core, devices)
        network = self.network
        embedded = network.embed(self._routes, self._nodes, seen)
        self.memory = network.remember(self.memory, embedded.scene)
        pairs, others, waits, _ = network.score_parts(seen, embedded, self.memory.hidden)
        pair = int(pairs.argmax()) if pairs.size else -1
        best, other = pairs.item(pair) if pairs.size else -math.inf, max(others.tolist(), default=-math.inf)
        if math.isnan(best) or math.isnan(waits):
            raise ValueError(NOT_NUMBERS)
        action = PlainAction(WAIT, wait_s=seen.wait_s)
        if best >= other and best >= waits:
            c, d = divmod(pair, pairs.shape[1])
            action = PlainAction(PLACE, int(seen.gangs.number[c]), int(seen.device[c, d]))
        elif other >= waits:
            action = PlainAction(PREEMPT, int(seen.other_actions.gangs.number[others.argmax()]))
        if self._late and not partly and action.kind == PLACE:
            return self._later(seen, pairs, wants) or action
        return action

    def _later(self, seen: Any, pairs: Any, wants: np.ndarray) -> PlainAction | None:
        """The best placement on a device that is about to be free, as `LateBinding`; None = place at once."""
        at, column = np.arange(len(pairs)), pairs.argmax(axis=1)
        score, device, pair = pairs[at, column], seen.device[at, column], seen.pairs[at, column]
        mutual = np.array([self._need(kernel)[1][d] for kernel, d in zip(seen.kernels, device.tolist(), strict=True)])
        cost = pair[:, _P.SLOWDOWN] + pair[:, _P.HARM] - mutual / 2
        open_ = wants[device] & (score > MASKED_SCORE / 2)
        if open_.any():
            best = int(np.where(open_, score - np.exp(self.network.regret) * cost, MASKED_SCORE).argmax())
            return PlainAction(PLACE, int(seen.gangs.number[best]), int(device[best]))
        return PlainAction(WAIT, wait_s=seen.wait_s) if seen.may_wait else None

    # --- features

    def features(self, core: PlainCore, devices: _Devices | None = None) -> Any:
        """As `extract_features`, without padding: fields of `Features`; and the kernels of the candidates."""
        now = devices or self._devices_now(core)
        t, scale, partly = self._t, self._scale, core.placing >= 0
        running = self._running(core)
        crossed = t.route_row[running.device].reshape(-1)
        rows = np.bincount(crossed, running.need.reshape(-1), len(t.capacity)).astype(np.float32)
        background, std = core.background
        load = rows + background
        loads = _Loads(rows[t.route_row], load[t.route_row], std[t.route_row], rows, load, running)

        ready = self._ready(core, now, partly)
        overdue, wait_s = self._held(core, ready, now, loads) if now.idle.any() and not partly else (None, math.inf)
        jobs = self._job_features(core, ready)
        chosen = self._shortlist(core, ready, jobs, overdue)
        gangs = self._candidates(core, ready.gang[chosen], jobs, partly)
        kernels = [ready.kernel[one] for one in chosen.tolist()]
        work_s = float(np.add.reduce(jobs.left_s)) / self._total_slots
        device, allowed, pairs = self._pairs(core, kernels, ready.seconds[chosen], gangs.number, now, loads, work_s)
        optional = overdue is None and not partly

        table = self._device_table
        ready_s = np.add.reduce(self._fastest_s[ready.at[: len(ready.at) - partly]], axis=0)
        asked = ready_s / np.maximum((now.up * self._slots) @ self._of_kind, 1)
        times = np.zeros((5, len(now.up)), np.float32)
        times[0], times[1], times[3] = now.queue_s, now.running_s / self._slots, asked[t.device_kind]
        times[:4] /= scale
        times[4] = now.queued / self._slots
        np.minimum(np.log1p(times, out=times), MAX_LOG, out=times)
        table[: _D.FREE_SLOTS], table[_D.QUEUED] = times[:4], times[4]
        table[_D.FREE_SLOTS], table[_D.FREE_MEMORY] = now.free / self._slots, now.memory / self._memory
        table[_D.IDLE], table[_D.UP] = now.idle, now.up

        scene = np.zeros(len(_S), np.float32)
        path = float(np.add.reduce(jobs.path_s)) / max(jobs.jobs, 1)
        scene[_S.JOBS], scene[_S.BUSY] = math.log1p(jobs.jobs), math.log1p(core.busy)
        scene[_S.READY] = math.log1p(np.count_nonzero(ready.enough))
        scene[_S.WORK] = min(math.log1p(work_s / scale), MAX_LOG)
        scene[_S.PATH], scene[_S.IDLE] = (
            min(math.log1p(path / scale), MAX_LOG),
            np.count_nonzero(now.idle) / len(now.up),
        )
        scene[_S.BACKGROUND] = np.add.reduce(background) / len(background)
        scene[_S.BACKGROUND_STD] = np.add.reduce(std) / len(std)
        seen = np.empty((3, len(rows)), np.float32)
        seen[0], seen[1], seen[2] = rows, background, std
        return SimpleNamespace(
            rows=np.minimum(np.log1p(seen, out=seen), MAX_LOG, out=seen).T,
            devices=(table * now.up).T,
            gangs=gangs,
            kernels=kernels,
            pairs=pairs,
            device=device,
            allowed=allowed,
            other_actions=self._other_actions(core, jobs, optional and len(ready.gang) > 0),
            scene=scene,
            may_wait=np.bool_((core.busy > 0 and optional) or not allowed.any()),
            wait_s=wait_s,
            objective=self._objective,
        )

    def _devices_now(self, core: PlainCore) -> _Devices:
        state = np.array([core.up, core.lanes_free, core.queued, core.queued_s, core.memory_free])
        up, open_ = state[0] > 0, (state[1] > 0) & (state[2] == 0)
        lanes = np.array([core.lane_holds, core.lane_estimate, core.lane_since])
        left = np.maximum(lanes[1] - (core.now_s - lanes[2]), 0) * (lanes[0] >= 0)
        running_s = np.bincount(self._t.lane_device, left, len(up))
        queue_s = (state[3] + running_s) / self._slots
        queue_s[open_] = 0
        return _Devices(up, up & open_, state[1], state[2], state[4], running_s, queue_s.astype(np.float32))

    def _running(self, core: PlainCore) -> _Running:
        holds = np.array(core.lane_holds)
        lane = np.flatnonzero(holds >= 0)
        device = self._t.lane_device[lane]
        slot, index = np.divmod(holds[lane], core.tasks)
        kernel, kind = self._w.kernel[np.array(core.graph)[slot], index], self._t.device_kind[device]
        demand = self._w.demand_fixed[kernel[:, None], kind[:, None], self._t.route_kind[device]]
        return _Running(lane, device, demand / self._capacity[device])

    def _ready(self, core: PlainCore, now: _Devices, partly: bool) -> _Ready:
        w, found = self._w, core.ready_gangs()
        if partly:
            found.append(core.placing)
        gang = np.array(found, int)
        slot, index = np.divmod(gang, core.tasks)
        graph = np.array(core.graph)[slot]
        at, wide = graph * self._tasks + index, graph * core.tasks + index
        runs_on = np.array([core.runs_on[one] for one in found], int)
        able = (runs_on[:, None] >> self._kinds) & 1 > 0
        kernel, work, units = w.kernel.take(wide), w.work.take(wide)[:, None], w.units.take(wide)[:, None]
        seconds = (w.time_fixed.take(kernel, 0) + w.time_work.take(kernel, 0) * work) * units
        enough = able @ (now.up @ self._of_kind) >= w.workers.take(wide)
        if partly:
            enough[:-1] = False
        return _Ready(gang, slot, at, kernel.tolist(), able, np.where(able, seconds, _INF), enough)

    def _held(self, core: PlainCore, ready: _Ready, now: _Devices, loads: _Loads) -> tuple[np.ndarray | None, float]:
        """Which gangs may not be held any longer (None if none), and how long others may: `scheduling.holding`."""
        workers = np.array([core.workers[one] for one in ready.gang.tolist()])
        held = ready.enough & (ready.able @ (now.idle @ self._of_kind) >= workers)
        if not held.any():
            return None, math.inf
        least, here = _best_of_kind(self._is_kind & now.idle[:, None], loads.total.max(axis=1))
        wait_s, _ = _best_of_kind(self._is_kind & now.up[:, None], now.queue_s)
        kernels = {kernel: number for number, kernel in enumerate(dict.fromkeys(ready.kernel))}
        need = np.array([self._need(kernel)[0][here] for kernel in kernels])
        slow = np.maximum((loads.total[here] + need) * (need > 0), 1).max(axis=2)
        slow = slow[[kernels[kernel] for kernel in ready.kernel]]
        now_s = np.where(np.isfinite(least), ready.seconds * slow, np.inf).min(axis=1)
        gain_s = np.where(held, np.maximum(now_s - (ready.seconds + wait_s).min(axis=1), 0), 0)
        left_s = np.where(held, gain_s - np.array([core.held[one] for one in ready.gang.tolist()]), np.inf)
        overdue = held & (left_s <= np.maximum(MIN_SHARE * gain_s, MIN_WAIT_S))
        return overdue if overdue.any() else None, float(left_s.min())

    def _job_features(self, core: PlainCore, ready: _Ready) -> _Jobs:
        count = 0
        for slot, job in enumerate(core.job):
            key = job, core.unfinished[slot]
            count += job >= 0
            if self._known.get(slot) != key:
                self._known[slot] = key
                self._set_job(core, slot, job)
        columns = np.empty((len(JOB_COLUMNS), len(core.job)), np.float32)
        age = core.now_s - self._arrived
        slow = (age + self._path_s) / self._isolated
        late = np.asarray(overdue_jobs(np.array(core.job) >= 0, slow, np))
        columns[0], columns[1], columns[2] = self._path_s, self._left_s, slow
        columns[:2] /= self._scale
        logs = columns[:3]
        np.log(np.maximum(logs, 1e-12, out=logs), out=logs)
        np.minimum(np.maximum(logs, -MAX_LOG, out=logs), MAX_LOG, out=logs)
        columns[3], columns[4] = age / self._scale, np.bincount(ready.slot, minlength=len(core.job))
        columns[5] = core.unfinished
        np.log1p(columns[3:], out=columns[3:])
        np.minimum(columns[3], MAX_LOG, out=columns[3])
        return _Jobs(columns.T, self._left_s, self._path_s, late, count)

    def _set_job(self, core: PlainCore, slot: int, job: int) -> None:
        """Remaining work and path of a job, whose unfinished gangs have changed."""
        if job < 0:
            self._left_s[slot] = self._path_s[slot] = 0
            return
        graph, first = core.graph[slot], slot * core.tasks
        best, tail = self._best[graph], self._tail[graph]
        going = np.array([status not in _OVER for status in core.status[first : first + len(best)]])
        self._left_s[slot], self._path_s[slot] = best @ going, (tail * going).max()
        self._arrived[slot], self._isolated[slot] = core.arrived[slot], self._w.isolated[graph]

    def _shortlist(self, core: PlainCore, ready: _Ready, jobs: _Jobs, overdue: np.ndarray | None) -> np.ndarray:
        """Positions of the candidates in `ready`, as `features.shortlist`."""
        path, priority = jobs.path_s, np.array(core.priority)[ready.slot]
        allowed = ready.enough
        allowed = allowed & (priority == np.where(allowed, priority, -(2**31)).max())
        late = allowed & jobs.overdue[ready.slot]
        allowed = late if late.any() else allowed
        tail = self._tail.reshape(-1)[ready.at] * allowed
        most = np.zeros(len(path), np.float32)
        np.maximum.at(most, ready.slot, tail)
        short = np.float32(0.5) * (path / (path + np.float32(self._scale)))
        key = 1 - tail / np.maximum(most, 1e-12)[ready.slot] + short[ready.slot]
        key[~allowed] = np.inf
        count = min(self.network.sizes.gangs, len(core.status), np.count_nonzero(allowed))
        chosen = np.argsort(key, kind="stable")[:count]
        if overdue is not None and (overdue & allowed).any() and not overdue[chosen].any():
            chosen[-1] = np.where(overdue, key, np.inf).argmin()
        return chosen

    def _candidates(self, core: PlainCore, gang: np.ndarray, jobs: _Jobs, placed: bool) -> SimpleNamespace:
        """As `features.candidate_features`. `placed`: some of their workers may have devices."""
        slot, index = np.divmod(gang, core.tasks)
        graph = np.array(core.graph)[slot]
        at = graph * self._tasks + index
        features = self._gang_table[at]
        features[:, JOB_COLUMNS] = jobs.columns[slot]
        path = jobs.path_s[slot]
        features[:, _G.CRITICAL] = self._tail.reshape(-1)[at] / np.maximum(path, 1e-12)
        features[:, _G.SHORTER_JOBS] = np.add.reduce(path[:, None] > path, axis=1) / max(len(path), 1)
        numbers = gang.tolist()
        waits = [core.inputs_left[one] > 0 for one in numbers]
        if any(waits):
            features[:, _G.INPUTS] = self._inputs[at] * waits
        if placed:
            features[:, _G.PLACED] = [len(core.devices[one]) / core.workers[one] for one in numbers]
        features[:, _G.RESUMED] = [core.resumed[one] for one in numbers]
        return SimpleNamespace(number=gang, graph=graph, task=index, features=features, there=np.ones(len(gang), bool))

    def _pairs(
        self,
        core: PlainCore,
        kernels: list[int],
        seconds: np.ndarray,
        gangs: np.ndarray,
        now: _Devices,
        loads: _Loads,
        work_s: float,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `features.pair_features`: devices of each candidate, the action mask, and the features of the pairs."""
        t, count = self._t, min(self.network.sizes.devices, len(now.up))
        numbers = {kernel: number for number, kernel in enumerate(dict.fromkeys(kernels))}
        which = np.array([numbers[kernel] for kernel in kernels], int)
        need = np.array([self._need(kernel)[0] for kernel in numbers])  # [kernels, D, H]
        total, asks = loads.total + need, need > 0
        slow = np.maximum(total * asks, 1).max(axis=2)
        run = seconds[:, t.device_kind]
        fetch = self._fetch_s(core, gangs.tolist(), loads)
        finish = np.maximum(now.queue_s, fetch) + run * slow[which]
        able = np.isfinite(run)
        if not now.up.all():
            able &= now.up
        if core.placing >= 0:
            able[:, core.devices[core.placing]] = False
        relative = np.maximum(total, 1) / np.maximum(loads.total, 1)
        harm = np.add.reduce(loads.own * (relative - 1), axis=2)
        able &= self._trusted(core, able, run, fetch, which, total, asks, harm, now, loads, work_s)
        finish[~able] = np.inf
        row = np.arange(len(finish))[:, None]
        device = np.argsort(finish, axis=1, kind="stable")[:, :count]
        finish = finish[row, device]
        allowed = np.isfinite(finish)
        finish[~allowed] = 0
        least, kind = finish[:, :1], (which[:, None], device)
        high = np.maximum((total + loads.std) * asks, 1).max(axis=2)
        isolated = run[row, device]
        pairs = np.zeros((len(_P), *device.shape), np.float32)
        logs = np.empty((5, *device.shape), np.float32)
        logs[0], logs[1] = finish, isolated
        logs[:2] /= self._scale
        logs[2] = isolated / np.where(allowed, isolated, np.inf).min(axis=1, initial=np.inf, keepdims=True)
        logs[3] = slow[kind]
        logs[4] = high[kind] / logs[3]
        np.log(np.maximum(logs, 1e-12, out=logs), out=logs)
        np.minimum(np.maximum(logs[:2], -MAX_LOG, out=logs[:2]), MAX_LOG, out=logs[:2])
        pairs[_P.FINISH] = logs[0]
        pairs[_P.ISOLATED : _P.HARM] = logs[1:]
        logs[0], logs[1] = finish / np.maximum(least, 1e-12) - 1, (finish - least) / self._scale
        logs[2] = now.queue_s[device] / self._scale
        logs[3] = fetch[row, device] / self._scale if fetch.ndim else 0
        logs[4] = harm[kind]
        np.log1p(np.maximum(logs, 0, out=logs), out=logs)
        np.minimum(logs[1:], MAX_LOG, out=logs[1:])
        pairs[: _P.FINISH] = logs[:2]
        pairs[_P.QUEUE : _P.SETUP] = logs[2:4]
        pairs[_P.HARM], pairs[_P.IDLE] = logs[4], now.idle[device]
        if not allowed.all():
            pairs[:, ~allowed] = 0
        return device, allowed, np.moveaxis(pairs, 0, -1)

    def _trusted(
        self,
        core: PlainCore,
        able: np.ndarray,
        run: np.ndarray,
        fetch: np.ndarray,
        which: np.ndarray,
        total: np.ndarray,
        asks: np.ndarray,
        harm: np.ndarray,
        now: _Devices,
        loads: _Loads,
        work_s: float,
    ) -> np.ndarray:
        """Devices that each candidate may be placed on [C, D], as `scheduling.guard.trusted`."""
        slow, others = _bottleneck(np.stack([total, total - loads.own]), loads.std, asks)
        run_s = run * slow[which]
        share = np.where(run_s > work_s, work_s / run_s, 1)
        run_s = run * (share * (slow * (1 + harm))[which] + (1 - share) * others[which])
        cost = np.maximum(self._queue_s(core, now, loads), fetch) + run_s
        cost[~able | np.isnan(cost)] = np.inf
        return cost <= (1 + MAX_REGRET) * cost.min(axis=1, keepdims=True)

    def _queue_s(self, core: PlainCore, now: _Devices, loads: _Loads) -> np.ndarray:
        """Mean seconds ahead of a new gang on each device, as `scheduling.estimate.queue_s`.

        At least `scheduling.guard.overrun_s`.
        """
        t, many, (lanes, device, need) = self._t, len(now.up), loads.running
        ran = np.zeros(len(core.lane_since))
        ran[lanes] = core.now_s - np.array(core.lane_since)[lanes]
        slow = _bottleneck(loads.total[device], loads.std[device], need)
        left = np.maximum(np.array(core.lane_estimate)[lanes] * slow - ran[lanes], 0)
        runs = np.maximum(np.bincount(device, minlength=many), 1)
        queued = np.array(core.queued_s) * (1 + np.bincount(device, slow - 1, many) / runs)
        closed = ~((now.free > 0) & (now.queued == 0))
        least = np.full(many, np.inf)
        np.minimum.at(least, t.lane_device, np.where(t.lane_exists, ran, np.inf))
        overrun = OVERRUN * np.where(np.isfinite(least), least, 0)
        return closed * np.maximum((queued + np.bincount(device, left, many)) / self._slots, overrun)

    def _fetch_s(self, core: PlainCore, gangs: Sequence[int], loads: _Loads) -> np.ndarray:
        """Seconds to fetch the inputs of gangs to each device [C, D]; a scalar 0 if nothing is to be moved."""
        inputs = []
        for number, gang in enumerate(gangs):
            if core.inputs_left[gang] and not core.one_memory:
                inputs += [(number, copies, size) for copies, size in core.fetches_of(gang) if size > 0]
        if not inputs:
            return np.zeros((), np.float32)
        t = self._t
        if self._reach is None:
            self._measure_distances()
        bandwidth = ((t.capacity / (1 + loads.all_rows))[t.route_row][:, :, None] + self._not_crossed).min(axis=1)
        speed = bandwidth.take(self._reach)
        per_byte = self._moved / np.minimum(speed[0], speed[1])
        found = np.zeros((len(gangs), len(t.exists)), np.float32)
        for number, copies, size in inputs:
            some = [copy for copy in copies if copy >= 0]
            times = size * per_byte[some] + self._latency[some]
            found[number] += times[0] if len(some) == 1 else times.min(axis=0, initial=np.inf)
        return found

    def _other_actions(self, core: PlainCore, jobs: _Jobs, allowed: bool) -> SimpleNamespace:
        """Preemptions, as `features.other_actions`. Nothing can be configured here."""
        victims = (
            sorted(self._movable(core))[: self.network.sizes.preempts] if self._any_preemptible and allowed else []
        )
        device = np.array([core.devices[gang][0] for _, gang in victims], int)
        features = np.zeros((len(victims), len(_O)), np.float32)
        gangs = None
        if victims:
            w = self._w
            gangs = self._candidates(core, np.array([gang for _, gang in victims], int), jobs, placed=True)
            cost = w.checkpoint[gangs.graph, gangs.task] + w.restore[gangs.graph, gangs.task]
            times = np.stack([[-left for left, _ in victims], cost], axis=1) / self._scale
            features[:, _O.PREEMPTS] = 1
            features[:, (_O.WORK_LEFT, _O.COST)] = np.minimum(np.log1p(times), MAX_LOG)
            features[:, _O.FREE_SLOTS] = np.array(core.lanes_free)[device] / self._slots[device]
        return SimpleNamespace(gangs=gangs, device=device, features=features, allowed=np.ones(len(victims), bool))

    def _movable(self, core: PlainCore) -> Iterator[tuple[float, int]]:
        """Running gangs that are worth saving, each with the seconds that it has left, negated."""
        w = self._w
        for gang in {holds for holds in core.lane_holds if holds >= 0}:
            slot, index = divmod(gang, core.tasks)
            graph = core.graph[slot]
            if core.status[gang] != RUNNING or not w.preemptible[graph, index]:
                continue
            ran = core.now_s - core.lane_since[core.lanes[gang][0]]
            if ran > w.checkpoint[graph, index] + w.restore[graph, index] * (1 + core.resumed[gang]):
                yield -self._best.item(graph, index), gang


def _bottleneck(load: np.ndarray, std: np.ndarray, need: np.ndarray) -> np.ndarray:
    """Mean slow-down by the worst of the rows that are needed [..., H], as `scheduling.estimate`."""
    from scipy.special import ndtr  # takes a tenth of a second to import

    known = std <= 0
    above, scale = load - 1, np.where(known, 1, std)
    z = above / scale
    chance, density = ndtr(z), np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    mean = np.where(known, np.maximum(load, 1), 1 + above * chance + scale * density)
    return np.where(need > 0, mean, 1).max(axis=-1, initial=1)


def _best_of_kind(mine: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least key among the devices of each kind, and the first device that has it."""
    keys = np.where(mine, key[:, None], np.inf)
    return keys.min(axis=0), keys.argmin(axis=0)
