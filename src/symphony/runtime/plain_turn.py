"""Turns in plain Python: the same state, rules and decisions as the compiled turn.

A call of a compiled program costs more than short kernels take, and its cost grows with the padded sizes of all arrays.
Here the cost of an event depends on what the event touches: queues are deques, ready gangs are in a heap. The rules are
those of `scheduling/instant.py` and `scheduling/advance.py`; the decision is that of `EftBelief`, or of a network
(`budget.py`). Among many devices, `native.c` decides. Tests take the same turns with both and compare commands and
cores.

Left out, because no kernel of a live workload has them: reconfiguration, exchange within gangs, and demand by size.
`suits` says whether a topology can be scheduled here.
"""

from __future__ import annotations

import heapq
import math
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from symphony.problem.arrays import TopologyArrays
from symphony.problem.topology import LOCAL, PEER
from symphony.runtime import turn as happened
from symphony.runtime.background_load import UNREAD_LOAD, RowLoads
from symphony.runtime.budget import Budget
from symphony.runtime.live_workload import LiveWorkload
from symphony.runtime.native import NativeTables, suits_native
from symphony.runtime.plain_network import PlainAction
from symphony.runtime.turn import SchedulerEvent, TurnCommands
from symphony.scheduling.clock import Amount
from symphony.scheduling.policy import PLACE, PREEMPT, WAIT
from symphony.scheduling.state import (
    ABSENT,
    DONE,
    FINISHED,
    FREE,
    MAX_COPIES,
    PLACING,
    QUEUED,
    READY,
    RECONFIGURING,
    RUNNING,
    SAVING,
    UNCONFIGURED,
    WAITING,
    Core,
)

_NO_COPIES = (-1,) * (MAX_COPIES - 1)
_ROOT_HALF, _NORMAL_PEAK = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)
MAX_DEVICES = 64  # with more, estimates in Python or NumPy take longer than the compiled program
FEW_DEVICES = 4  # with more, the heuristic's decision is faster in `native.c`


def suits(t: TopologyArrays) -> bool:
    """Whether clusters with this topology can be scheduled in plain Python."""
    return (len(t.device_kind) <= MAX_DEVICES or suits_native(t)) and not np.any(t.kind_reconfigure)


def expected_slowdown(load: float, std: float) -> float:
    """Mean of max(1, L) for a load L that is normally distributed, as `scheduling.estimate.row_slowdown`."""
    above = load - 1.0
    if std <= 0 or above > 6 * std:
        return max(load, 1.0)
    if above < -6 * std:
        return 1.0
    z = above / std
    return 1.0 + 0.5 * above * math.erfc(-z * _ROOT_HALF) + std * _NORMAL_PEAK * math.exp(-0.5 * z * z)


class PlainCore:
    """The scheduler's state, with the fields of `Core`, and what is derived from them.

    Lists, or arrays of `array` where `native.c` reads them: those stay where they are.
    """

    def __init__(self, workload: LiveWorkload, core: Core, budget: Budget | None = None) -> None:
        """Continue from `core`, which has NumPy arrays. Without a `budget`, the heuristic decides everything."""
        self.budget = budget
        self._form = core  # types and shapes for `core`
        self.use(workload)
        # jobs
        self.job, self.graph, self.home = _ints(core.job), _ints(core.graph), _ints(core.home)
        self.priority, self.arrived = _ints(core.priority), _reals(core.arrived.total)
        self.unfinished, self.dropped = _ints(core.unfinished), core.dropped.tolist()
        # gangs
        self.status, self.workers, self.runs_on = _bytes(core.status), _ints(core.workers), _ints(core.runs_on)
        self.waiting_for, self.sequence = core.waiting_for.tolist(), core.sequence.tolist()
        self.devices = [[d for d in row if d >= 0] for row in core.device.tolist()]  # of the workers placed so far
        self.first_device = _ints(core.device[:, 0])  # of the workers placed so far, or before
        self.lanes = [[lane for lane in row if lane >= 0] for row in core.lane.tolist()]
        self.inputs_left, self.resumed = _ints(core.inputs_left), _bytes(core.resumed)
        self.copies, self.copied, self.held = _ints(core.copies), core.copied.tolist(), _reals(core.held.total)
        # devices
        self.up, self.lanes_free = _bytes(core.up), _ints(core.lanes_free)
        self.queued, self.queued_s = _ints(core.queued), _reals(core.queued_s)
        self.memory_free = _ints(core.memory_free)
        # lanes
        self.lane_holds, self.lane_kernel = _ints(core.lane_holds), core.lane_kernel.tolist()
        self.lane_since, self.lane_estimate = _reals(core.lane_since.total), _reals(core.lane_estimate)
        # scalars
        self.jobs_seen, self.jobs_done = int(core.jobs_seen), int(core.jobs_done)
        self.next_sequence, self.now_s = int(core.next_sequence), float(core.now.total)
        self.waited, self.wake_s, self.offered = bool(core.waited), float(core.wake_s), bool(core.offered)
        self.decisions, self.windows = int(core.decisions), int(core.windows)
        # derived
        tasks = self.tasks
        self._ready: list[tuple[int, int, int]] = []  # heap of (-priority, job, gang); some entries may be outdated
        self.placing = -1  # gang that is partly placed
        self.busy = self.status.count(QUEUED) + self.status.count(RUNNING)
        self._up_of = [0] * len(self._device_count)  # devices that are up, by kind
        for device, up in enumerate(self.up):
            self._up_of[self._kind[device]] += up
        self._held_lanes = sum(gang >= 0 for gang in self.lane_holds)
        self._queues: list[deque[tuple[int, int]]] = [deque() for _ in self.up]  # (sequence, gang), some outdated
        waits = []
        for gang, status in enumerate(self.status):
            if status == READY:
                heapq.heappush(self._ready, (-self.priority[gang // tasks], self.job[gang // tasks], gang))
            elif status in (PLACING, QUEUED):
                waits.append((self.sequence[gang], gang))
                self.placing = gang if status == PLACING else self.placing
        for sequence, gang in sorted(waits):
            for device in self.devices[gang]:
                self._queues[device].append((sequence, gang))
        self._own_load: list[float] | None = None  # of each row; None = to be computed
        self._others: RowLoads | None = None
        # Mean and deviation of the load by others of each row …
        self.background: tuple[np.ndarray, np.ndarray] = (np.zeros(0), np.zeros(0))
        self._background: tuple[list[float], list[float]] | None = None  # … as lists; None = to be computed
        self.native = NativeTables(self) if suits_native(workload.t) else None
        self._dirty: set[int] = set()  # devices on which a gang may have become startable
        self._began: list[tuple[int, list[int]]] = []  # gangs that started in this turn …
        self._saved: list[int] = []  # … and those to preempt
        self.order: list[SchedulerEvent] = []  # the events of the last turn, as they were applied; early ones last

    def use(self, workload: LiveWorkload) -> None:
        """Set the workload: its arrays are read at every event."""
        self.workload, t, self._w, self.tasks = workload, workload.t, workload.tables, workload.shapes.tasks
        self._kind, self._slots = t.device_kind.tolist(), t.slots.tolist()
        self._memory = t.place[:, LOCAL].tolist()  # device whose memory each device uses
        self.one_memory = len({m for m, exists in zip(self._memory, t.exists.tolist(), strict=True) if exists}) <= 1
        self._device_count = np.bincount(t.device_kind, minlength=len(t.kind_memory)).tolist()
        self._device_kinds = sorted(set(self._kind[d] for d in np.flatnonzero(t.exists).tolist()))
        self._lanes_of: list[list[int]] = [[] for _ in self._kind]
        for lane, (device, exists) in enumerate(zip(t.lane_device.tolist(), t.lane_exists.tolist(), strict=True)):
            if exists:
                self._lanes_of[device].append(lane)
        self.lane_device = t.lane_device.tolist()
        self._route = [
            list(zip(rows, kinds, spans, strict=True))
            for rows, kinds, spans in zip(
                t.route_row.tolist(), t.route_kind.tolist(), t.route_spans.tolist(), strict=True
            )
        ]
        self._capacity, self._latency = t.capacity.tolist(), t.latency.tolist()
        self._places, self._peers = t.place.tolist(), t.peers.tolist()
        self._all_devices = [d for d, exists in enumerate(t.exists.tolist()) if exists]

    def core(self) -> Core:
        """The state as NumPy arrays, in the form of the core from which it was made."""
        form, width = self._form, self._form.device.shape[1]

        def padded(rows: list[list[int]]) -> list[list[int]]:
            return [row + [-1] * (width - len(row)) for row in rows]

        heads = [self._head(device) for device in range(len(self.up))]
        found: dict[str, Any] = {
            "placed": [len(row) for row in self.devices],
            "device": padded(self.devices),
            "lane": padded(self.lanes),
            "head": heads,
            "head_needs": [0 if gang < 0 else self._needs(gang, device) for device, gang in enumerate(heads)],
            "now": self.now_s,
            # empty between turns
            "leaving": [False] * len(self.status),
            "releasing": -1,
            "fetches": [0] * len(self.up),
            "lane_setup": [gang >= 0 and self.status[gang] == SAVING for gang in self.lane_holds],
        }
        unused = ("release_from", "refused", "reading", "own_reading")
        values: dict[str, Any] = {}
        for name in (field.name for field in fields(Core)):
            old = getattr(form, name)
            value = old if name in unused else found[name] if name in found else getattr(self, name)
            if isinstance(old, Amount):
                whole = np.floor(np.asarray(value, float))
                part = np.asarray(value, float) - whole
                values[name] = Amount(whole.astype(old.whole.dtype), part.astype(old.part.dtype))
            else:
                values[name] = np.array(value, old.dtype).reshape(old.shape)
        return Core(**values)

    def queue(self) -> Iterator[tuple[int, int]]:
        """Gangs that wait only for free slots, in queue order, each with the device of its first worker."""
        live = (self._waiting(device) for device, count in enumerate(self.queued) if count)
        for _, gang, device in heapq.merge(*live):
            if self.devices[gang][0] == device and self.status[gang] == QUEUED:
                yield gang, device

    def _waiting(self, device: int) -> Iterator[tuple[int, int, int]]:
        for sequence, gang in self._queues[device]:
            if self.sequence[gang] == sequence and QUEUED >= self.status[gang] >= PLACING:
                yield sequence, gang, device

    # --- a turn

    def turn(self, events: Sequence[SchedulerEvent], now_s: float, others: RowLoads | None) -> TurnCommands:
        """Apply the events, and decide until nothing is left to do.

        Engines may run ahead of the core. An event of a gang that has not started is applied after its start, if it
        starts before the decisions; else it is reported as early. `order` has the events as they were applied.
        """
        self._moved(now_s)
        if others is not self._others or not self.background[0].size:
            background, deviation = (np.full(len(self._capacity), value, np.float32) for value in UNREAD_LOAD)
            if others is not None:
                background[: len(others[0])], deviation[: len(others[1])] = others
            self._others, self.background, self._background = others, (background, deviation), None
            if self.native is not None:
                self.native.set(background=background, deviation=deviation)
        self._own_load = None
        before = self.decisions
        self._began, self._saved, self.order = [], [], []
        behind: dict[int, int] = {}  # by gang that has finished before it was started: the number of the event
        for number, event in enumerate(events):
            self.waited = False
            if event.kind != happened.FINISHED:
                self._apply(event)
            elif not self._finished(event.who):
                behind[event.who] = number
                continue
            self.order.append(event)
            if self._dirty:
                self._start_all()
        self._catch_up(behind, events)
        self.order += [events[number] for number in behind.values()]
        self._decide_all()
        stuck = not self._held_lanes and self._stuck()
        wake_s = self.wake_s if self.waited else math.inf
        early, made = list(behind.values()), self.decisions - before
        return TurnCommands(self._began, self._saved, early, list(self.job), wake_s, made, 0, stuck)

    def _catch_up(self, behind: dict[int, int], events: Sequence[SchedulerEvent]) -> None:
        """Apply events of gangs that had not started, once they have. Leaves the others in `behind`."""
        at = 0  # in the list of those that have started
        while behind and at < len(self._began):
            gang = self._began[at][0]
            at += 1
            if gang in behind and self._finished(gang):
                self.order.append(events[behind.pop(gang)])
                if self._dirty:
                    self._start_all()

    def _moved(self, now_s: float) -> None:
        """Set the clock. READY gangs that could have started in the meantime were held for that time."""
        if self._ready:
            open_of = self._open_of()
            for entry in self._ready:
                if self._is_ready(entry) and self._enough(entry[2], open_of):
                    self.held[entry[2]] += now_s - self.now_s
        self.now_s = now_s

    def _open_of(self) -> list[int]:
        """How many devices of each kind could start a worker now."""
        if len(self.up) > MAX_DEVICES:
            free, queued = (np.frombuffer(some, np.int32) for some in (self.lanes_free, self.queued))
            is_open = (np.frombuffer(self.up, np.int8) > 0) & (free > 0) & (queued == 0)
            return np.bincount(self.workload.t.device_kind[is_open], minlength=len(self._up_of)).tolist()
        found = [0] * len(self._up_of)
        for device, up in enumerate(self.up):
            if up and self.lanes_free[device] > 0 and not self.queued[device]:
                found[self._kind[device]] += 1
        return found

    def _apply(self, event: SchedulerEvent) -> None:
        kind, who = event.kind, event.who
        if kind == happened.ARRIVED:
            self._admit(event)
        elif kind == happened.DROPPED:
            self._drop(who)
        elif kind == happened.STOPPED:
            if self.status[who] in (RUNNING, SAVING):
                self._leave(who)
        elif kind == happened.FAILED:
            self._device_failed(who)
        elif kind == happened.REPAIRED:
            self._up_of[self._kind[who]] += not self.up[who]
            self.up[who] = True
            self._dirty.add(who)
        elif kind == happened.RECALLED:
            if self.status[who] == QUEUED:
                self._leave(who)
        elif kind == happened.ROUND:
            self.windows += 1
            self.offered = True
        elif kind == happened.ENTERED:
            self._enter(who)

    def _finished(self, gang: int) -> bool:
        """False if the core has not started the gang: engines may run ahead of it."""
        if self.status[gang] != RUNNING and self.status[gang] != SAVING:
            return False
        self.busy -= self.status[gang] == RUNNING
        self.status[gang] = FINISHED
        self._leave(gang)
        return True

    def _admit(self, event: SchedulerEvent) -> None:
        slot, row, tasks, w = self.job.index(-1), event.graph, self.tasks, self._w
        number = self.jobs_seen
        self.job[slot], self.graph[slot], self.home[slot] = number, row, event.home
        self.priority[slot], self.arrived[slot], self.dropped[slot] = event.priority, self.now_s, False
        self.unfinished[slot] = gangs = int(w.gangs[row])
        self.jobs_seen += 1
        first, parents, zero = slot * tasks, w.parents[row].tolist(), [0] * tasks
        every = slice(first, first + tasks)
        status = [ABSENT if i >= gangs else WAITING if parents[i] > 0 else READY for i in range(tasks)]
        self.status[every], self.waiting_for[every] = array("b", status), parents
        self.workers[every], self.runs_on[every] = _ints(w.workers[row]), _ints(w.runs_on[row])
        self.inputs_left[every], self.resumed[every] = _ints(np.diff(w.in_start[row])), array("b", zero)
        self.copied[every], self.held[every] = zero, array("d", zero)
        for index in range(gangs):
            if status[index] == READY:
                heapq.heappush(self._ready, (-event.priority, number, first + index))

    def _enter(self, gang: int) -> None:
        slot, index = divmod(gang, self.tasks)
        if self.job[slot] < 0 or self.dropped[slot]:
            return
        w, row = self._w, self.graph[slot]
        self.unfinished[slot] += 1
        self.status[gang], self.workers[gang] = READY, w.workers.item(row, index)
        self.runs_on[gang], self.inputs_left[gang] = w.runs_on.item(row, index), 0
        self.copied[gang], self.held[gang], self.resumed[gang] = 0, 0.0, False
        heapq.heappush(self._ready, (-self.priority[slot], self.job[slot], gang))

    def _drop(self, slot: int) -> None:
        if self.job[slot] < 0 or self.dropped[slot]:
            return
        gangs = range(slot * self.tasks, (slot + 1) * self.tasks)
        holding = [gang for gang in gangs if PLACING <= self.status[gang] < DONE]
        self.unfinished[slot], self.dropped[slot] = len(holding), True
        kept = {gang: self.status[gang] for gang in holding}
        self.status[gangs.start : gangs.stop] = array("b", [kept.get(gang, ABSENT) for gang in gangs])
        if not holding:
            self.job[slot] = -1
            self.jobs_done += 1
        for gang in holding:
            if self.status[gang] in (PLACING, QUEUED):
                self._leave(gang)

    def _device_failed(self, device: int) -> None:
        self._up_of[self._kind[device]] -= self.up[device]
        self.up[device] = False
        for lane in self._lanes_of[device]:
            if self.lane_holds[lane] == RECONFIGURING:
                self.lane_holds[lane] = FREE
                self.lanes_free[device] += 1
            self.lane_kernel[lane] = UNCONFIGURED
        for gang in range(len(self.status)):
            if PLACING <= self.status[gang] <= SAVING and device in self.devices[gang]:
                self._leave(gang)

    # --- gangs leave and start

    def _leave(self, gang: int) -> None:
        """Take a gang off its devices: it has finished, was saved, or must be placed again."""
        before, tasks, w = self.status[gang], self.tasks, self._w
        slot, index = divmod(gang, tasks)
        devices, row = self.devices[gang], self.graph[slot]
        done = before == FINISHED
        self.busy -= before in (QUEUED, RUNNING)
        over = done or self.dropped[slot]
        if before >= RUNNING:
            self._own_load = None
            self.resumed[gang] = True
            self._held_lanes -= len(self.lanes[gang])
            for lane in self.lanes[gang]:
                self.lane_holds[lane] = FREE
                device = self.lane_device[lane]
                self.lanes_free[device] += 1
                self.memory_free[device] += self._needs(gang, device)
                self._dirty.add(device)
        if done:
            copies = array("i", (self._memory[devices[0]], *_NO_COPIES))
            self.copies[gang * MAX_COPIES : (gang + 1) * MAX_COPIES] = copies
        self.status[gang] = DONE if done else ABSENT if over else READY
        self.inputs_left[gang] = int(w.in_start[row, index + 1] - w.in_start[row, index])
        self.devices[gang], self.lanes[gang] = [], []
        if before < RUNNING:
            self._leave_queues(gang, devices)
        if gang == self.placing:
            self.placing = -1
        if over:
            self.unfinished[slot] -= 1
            self._release(slot, row, index)
        else:
            heapq.heappush(self._ready, (-self.priority[slot], self.job[slot], gang))

    def _release(self, slot: int, row: int, index: int) -> None:
        """Release the children of a gang; free the slot of a complete job."""
        w, first = self._w, slot * self.tasks
        for target in w.out_target[row, w.out_start[row, index] : w.out_start[row, index + 1]].tolist():
            child = first + target
            self.waiting_for[child] -= 1
            if not self.waiting_for[child] and self.status[child] == WAITING:
                self.status[child] = READY
                heapq.heappush(self._ready, (-self.priority[slot], self.job[slot], child))
        if not self.unfinished[slot]:
            self.status[first : first + self.tasks] = array("b", [ABSENT] * self.tasks)
            self.job[slot] = -1
            self.jobs_done += 1

    def _leave_queues(self, gang: int, devices: Sequence[int]) -> None:
        """A gang, whose status has changed already, is no longer in the queues of its devices."""
        for device in devices:
            left = self.queued[device] = self.queued[device] - 1
            # An empty queue holds exactly 0 seconds, without rounding errors.
            rest = max(self.queued_s[device] - self._seconds(gang, device), 0.0) if left else 0.0
            self.queued_s[device] = rest
            self._dirty.add(device)

    def _head(self, device: int) -> int:
        """The gang at the head of a queue, -1 = none. Removes outdated entries."""
        queue = self._queues[device]
        while queue:
            sequence, gang = queue[0]
            if self.sequence[gang] == sequence and QUEUED >= self.status[gang] >= PLACING:
                return gang
            queue.popleft()
        return -1

    def _startable(self, device: int) -> int:
        """The gang that can start at the head of a queue, -1 = none."""
        if not self.up[device] or self.lanes_free[device] <= 0:
            return -1
        gang = self._head(device)
        if gang < 0 or self.status[gang] != QUEUED:
            return -1
        if self.memory_free[device] < self._needs(gang, device):
            return -1
        for other in self.devices[gang]:
            if other != device and (not self.up[other] or self.lanes_free[other] <= 0 or self._head(other) != gang):
                return -1
            if other != device and self.memory_free[other] < self._needs(gang, other):
                return -1
        return gang

    def _start_all(self) -> None:
        """Start gangs until none can, those that were placed first before others."""
        while self._dirty:
            least, chosen = None, -1
            for device in list(self._dirty):
                gang = self._startable(device)
                if gang < 0:
                    self._dirty.discard(device)
                elif least is None or self.sequence[gang] < least:
                    least, chosen = self.sequence[gang], gang
            if chosen >= 0:
                self._start(chosen)

    def _start(self, gang: int) -> None:
        slot, index = divmod(gang, self.tasks)
        kernel = self._w.kernel.item(self.graph[slot], index)
        lanes, devices = [], self.devices[gang]
        for device in devices:
            lane = next(lane for lane in self._lanes_of[device] if self.lane_holds[lane] == FREE)
            self.lane_holds[lane], self.lane_kernel[lane] = gang, kernel
            self.lane_since[lane], self.lane_estimate[lane] = self.now_s, self._seconds(gang, device)
            self.lanes_free[device] -= 1
            self.memory_free[device] -= self._needs(gang, device)
            lanes.append(lane)
        self.lanes[gang], self.status[gang], self._own_load = lanes, RUNNING, None
        self._held_lanes += len(lanes)
        self._leave_queues(gang, devices)
        self._began.append((gang, devices))

    # --- decisions

    def _decide_all(self) -> None:
        while not self.waited:
            gang = self.placing if self.placing >= 0 else self._next()
            if gang < 0:
                if self.offered:
                    self._wait(math.inf)
                return
            began = time.perf_counter()
            action = None if self.budget is None else self.budget.decide(self, gang)
            if action is None:
                action = PlainAction(PLACE, gang, self._best_device(gang))
            if self.budget is not None:
                self.budget.decided(action, time.perf_counter() - began)
            if action.kind == WAIT:
                self._wait(action.wait_s if action.wait_s > 0 else math.inf)
            elif action.kind == PREEMPT:
                self.decisions += 1
                self.status[action.gang] = SAVING
                self.busy -= 1
                self._saved.append(action.gang)
            else:
                self.decisions += 1
                self._place(action.gang, action.device)
                self._start_all()

    def _wait(self, seconds: float) -> None:
        self.offered, self.waited, self.wake_s = False, True, seconds
        self.decisions += 1

    def _is_ready(self, entry: tuple[int, int, int]) -> bool:
        return self.status[entry[2]] == READY and self.job[entry[2] // self.tasks] == entry[1]

    def _next(self) -> int:
        """The gang to place next: highest priority, then oldest job, then lowest number; -1 = none."""
        kept, found = [], -1
        while self._ready and found < 0:
            entry = self._ready[0]
            if self._is_ready(entry) and self._enough(entry[2], self._up_of):
                found = entry[2]
            else:
                heapq.heappop(self._ready)
                if self._is_ready(entry):  # too few devices are up
                    kept.append(entry)
        for entry in kept:
            heapq.heappush(self._ready, entry)
        return found

    def ready_gangs(self) -> list[int]:
        """READY gangs, in ascending order."""
        return sorted(entry[2] for entry in self._ready if self._is_ready(entry))

    def _enough(self, gang: int, devices_of: Sequence[int]) -> bool:
        """Whether, among so many devices of each kind, at least as many can run a gang as it has workers."""
        bits = self.runs_on[gang]
        return sum(count for kind, count in enumerate(devices_of) if bits >> kind & 1) >= self.workers[gang]

    def _stuck(self) -> bool:
        return self.offered or any(self._is_ready(e) and self._enough(e[2], self._up_of) for e in self._ready)

    def _best_device(self, gang: int) -> int:
        """The feasible device with the least cost; ties go to the lowest number."""
        if self.native is not None and len(self._all_devices) > FEW_DEVICES:
            return self.native.best_device(self, gang)
        bits, taken = self.runs_on[gang], self.devices[gang]
        allowed = [d for d in self._all_devices if self.up[d] and bits >> self._kind[d] & 1 and d not in taken]
        if len(allowed) == 1:
            return allowed[0]
        costs = self._costs(gang, allowed)
        return allowed[min(range(len(allowed)), key=costs.__getitem__)]

    def _costs(self, gang: int, devices: Sequence[int]) -> list[float]:
        """Seconds until the gang would finish on each device, and delay of others, as `scheduling.estimate.cost_s`."""
        slot, index = divmod(gang, self.tasks)
        w, kernel = self._w, self._w.kernel.item(self.graph[slot], index)
        own = self.own_load()
        if self._background is None:
            self._background = self.background[0].tolist(), self.background[1].tolist()
        background, deviation = self._background
        load = [mine + others for mine, others in zip(own, background, strict=True)]
        demands = w.demand_fixed[kernel].tolist()
        fetches = self.fetches_of(gang) if self.inputs_left[gang] and not self.one_memory else ()
        found = []
        for device in devices:
            queue = (
                self._queue_s(device, load, deviation) if self.lanes_free[device] <= 0 or self.queued[device] else 0.0
            )
            slow, harm, demand = 1.0, 0.0, demands[self._kind[device]]
            for row, resource, _ in self._route[device]:
                need = demand[resource] / self._capacity[row]
                if need > 0:
                    slow = max(slow, expected_slowdown(load[row] + need, deviation[row]))
                    harm += own[row] * (max(load[row] + need, 1.0) / max(load[row], 1.0) - 1.0)
            fetch = sum(self._transfer_s(copies, size, device, load) for copies, size in fetches)
            run = self._seconds(gang, device) * slow
            cost = max(queue, fetch) + run + (run * harm if math.isfinite(run) else 0.0)
            found.append(math.inf if math.isnan(cost) else cost)
        return found

    def _queue_s(self, device: int, load: Sequence[float], deviation: Sequence[float]) -> float:
        """Seconds of work ahead of a new gang on a device, under contention."""
        w, left, excess, runs = self._w, 0.0, 0.0, 0
        for lane in self._lanes_of[device]:
            gang = self.lane_holds[lane]
            if gang < 0:
                continue
            slot, index = divmod(gang, self.tasks)
            demand = w.demand_fixed[w.kernel.item(self.graph[slot], index), self._kind[device]].tolist()
            slow = 1.0
            for row, resource, _ in self._route[device]:
                if demand[resource] > 0:
                    slow = max(slow, expected_slowdown(load[row], deviation[row]))
            left += max(self.lane_estimate[lane] * slow - (self.now_s - self.lane_since[lane]), 0.0)
            excess, runs = excess + slow - 1.0, runs + 1
        return (self.queued_s[device] * (1.0 + excess / max(runs, 1)) + left) / max(self._slots[device], 1)

    def fetches_of(self, gang: int) -> list[tuple[Sequence[int], float]]:
        """Memories that hold the next few inputs of a gang, and the sizes of these inputs in bytes."""
        slot, index = divmod(gang, self.tasks)
        w, row = self._w, self.graph[slot]
        end = int(w.in_start[row, index + 1])
        begin = end - self.inputs_left[gang]
        found: list[tuple[Sequence[int], float]] = []
        for edge in range(begin, min(begin + w.fan, end)):
            source = int(w.in_source[row, edge])
            copies = self._copies_of(slot * self.tasks + source) if source >= 0 else [self.home[slot]]
            found.append((copies, float(w.in_bytes[row, edge])))
        return found

    def _copies_of(self, gang: int) -> Sequence[int]:
        """Memories that hold the output of a gang, -1 = none."""
        return self.copies[gang * MAX_COPIES : (gang + 1) * MAX_COPIES]

    def _span(self, a: int, b: int) -> int:
        """Span of traffic between two devices, as `problem.spans.span` has it."""
        here, there = self._places[a], self._places[b]
        if here[0] == there[0]:
            return LOCAL
        if self._peers[a] >= 0 and self._peers[a] == self._peers[b]:
            return PEER
        return max(level for level in range(1, 6) if here[level - 1] != there[level - 1])

    def _transfer_s(self, copies: Sequence[int], size: float, device: int, load: Sequence[float]) -> float:
        """Seconds to move `size` bytes from the fastest of `copies` (-1 = none) to a device."""
        if size <= 0:
            return 0.0
        least = math.inf
        for copy in copies:
            if copy < 0:
                continue
            reach = self._span(copy, device)
            if reach == LOCAL:
                return 0.0
            speed = min(self._bandwidth(copy, reach, load), self._bandwidth(device, reach, load))
            least = min(least, size / speed + self._latency[reach])
        return least

    def _bandwidth(self, device: int, span: int, load: Sequence[float]) -> float:
        """Bytes/s for new traffic of a span at a device."""
        rows = (row for row, _, spans in self._route[device] if spans >> span & 1)
        return min((self._capacity[row] / (1 + load[row]) for row in rows), default=math.inf)

    def own_load(self) -> list[float]:
        """Load of running workers on each row, by their profiles."""
        if self._own_load is None:
            w, tasks, load = self._w, self.tasks, [0.0] * len(self._capacity)
            for lane, gang in enumerate(self.lane_holds):
                if gang >= 0:
                    slot, index = divmod(gang, tasks)
                    device = self.lane_device[lane]
                    demand = w.demand_fixed[w.kernel.item(self.graph[slot], index), self._kind[device]].tolist()
                    for row, resource, _ in self._route[device]:
                        load[row] += demand[resource] / self._capacity[row]
            self._own_load = load
        return self._own_load

    def _seconds(self, gang: int, device: int) -> float:
        """Isolated seconds of a gang on a device; inf where it cannot run."""
        slot, index = divmod(gang, self.tasks)
        w, row, kind = self._w, self.graph[slot], self._kind[device]
        kernel = w.kernel.item(row, index)
        per_unit = w.time_fixed.item(kernel, kind) + w.time_work.item(kernel, kind) * w.work.item(row, index)
        return per_unit * w.units.item(row, index)

    def best_s(self, gang: int) -> float:
        """Isolated seconds of a gang on the fastest kind that may run it; inf if there is none."""
        slot, index = divmod(gang, self.tasks)
        w, row, bits = self._w, self.graph[slot], self.runs_on[gang]
        fixed, per_work = (table[w.kernel.item(row, index)].tolist() for table in (w.time_fixed, w.time_work))
        work = w.work.item(row, index)
        each = (fixed[kind] + per_work[kind] * work for kind in self._device_kinds if bits >> kind & 1)
        return min(each, default=math.inf) * w.units.item(row, index)

    def in_window(self, gang: int) -> bool:
        """Whether a gang belongs to a large graph (`task_window.py`)."""
        slot, index = divmod(gang, self.tasks)
        return index >= self._w.gangs.item(self.graph[slot])

    def _needs(self, gang: int, device: int) -> int:
        """Memory of a worker of a gang on a device, in the unit of `memory_free`."""
        slot, index = divmod(gang, self.tasks)
        return self._w.footprint.item(self.graph[slot], index, self._kind[device])

    def _place(self, gang: int, device: int) -> None:
        """Append the next worker of a gang to a device's queue."""
        devices = self.devices[gang]
        if not devices:
            entry = -self.priority[gang // self.tasks], self.job[gang // self.tasks], gang
            if self._ready[0] == entry:
                heapq.heappop(self._ready)
            else:
                self._ready.remove(entry)
                heapq.heapify(self._ready)
            self.sequence[gang], self.first_device[gang] = self.next_sequence, device
            self.next_sequence += 1
            if self.inputs_left[gang]:
                self._fetch(gang, device)
        devices.append(device)
        if len(devices) < self.workers[gang]:
            self.status[gang], self.placing = PLACING, gang
        else:
            self.status[gang], self.placing, self.held[gang] = QUEUED, -1, 0.0
            self.busy += 1
        self._queues[device].append((self.sequence[gang], gang))
        self.queued[device] += 1
        self.queued_s[device] += self._seconds(gang, device)
        self._dirty.update(devices)

    def _fetch(self, gang: int, device: int) -> None:
        """Engines move inputs together with the kernel that reads them, so all inputs are there at once."""
        if not self.one_memory:
            slot, index = divmod(gang, self.tasks)
            w, row, memory = self._w, self.graph[slot], self._memory[device]
            end = int(w.in_start[row, index + 1])
            for edge in range(end - self.inputs_left[gang], end):
                source = int(w.in_source[row, edge])
                if source < 0 or w.in_bytes[row, edge] <= 0:
                    continue
                parent = slot * self.tasks + source
                copies = self._copies_of(parent)
                if all(copy < 0 or self._span(copy, memory) != LOCAL for copy in copies) and memory not in copies:
                    self.copies[parent * MAX_COPIES + 1 + self.copied[parent] % (MAX_COPIES - 1)] = memory
                    self.copied[parent] += 1
        self.inputs_left[gang] = 0


def _bytes(values: Any) -> array[int]:
    return array("b", np.asarray(values, np.int8).tobytes())


def _ints(values: Any) -> array[int]:
    return array("i", np.asarray(values, np.int32).tobytes())


def _reals(values: Any) -> array[float]:
    return array("d", np.asarray(values, np.float64).tobytes())
