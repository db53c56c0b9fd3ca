"""The simulator again, slow and obvious: docs/concepts/simulation.md, rule by rule, in plain Python.

It is the check on the fast one, so it keeps as little as it can. Queue heads, loads, shares and rates are
worked out anew whenever they are needed; nothing is carried along that could go stale. Where the document
leaves a choice, the comment at that place begins with "Reading:".

    world = Reference(scenario)
    world.run(fifo)
    world.events, world.starts, world.readings, world.stays, world.jobs
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations
from typing import Any

from symphony.problem.topology import LOCAL, PEER
from symphony.problem.workload import Gang, Kernel, Profile, TaskGraph
from symphony.simulator.records import GangRecord, JobRecord
from symphony.simulator.scenarios import Scenario

UNIT = 1 << 16  # loads are integers: multiples of 2**-16 of a row's capacity
UNLIMITED = 1e15  # bytes/s of a transfer that crosses no row
COPIES = 4  # of an output: the original, and the last three others

# In the order in which simultaneous events happen.
EVENTS = ("finished", "set-up", "fetched", "arrival", "repair", "failure", "background", "window", "thought", "woken")

# ("place", job, gang, device[, sequence number below 0]), ("preempt", job, gang), ("reconfigure", device, kernel),
# ("wait",) or ("wait", seconds)
Action = tuple[Any, ...]
Choose = Callable[["Reference"], Action]


PATIENCE = 512  # events with nothing under way and a gang to place, after which the policy has stalled


class State(Enum):
    """Where a gang is in its life. A gang of a job that has not arrived is not in the world at all."""

    WAITING = "waiting"
    READY = "ready"
    PLACING = "placing"
    QUEUED = "queued"
    RUNNING = "running"
    SAVING = "saving"
    DONE = "done"


IN_QUEUE = (State.PLACING, State.QUEUED)
ON_SLOTS = (State.RUNNING, State.SAVING)


@dataclass(eq=False)
class LiveGang:
    """A gang of a job in the system: what it is, and how far it has come."""

    job: int
    index: int  # into TaskGraph.all_gangs
    gang: Gang
    kernel: Kernel
    kernel_index: int
    work: float  # of one unit
    units: float  # there truly are to do
    inputs: list[tuple[int, float]]  # (source gang or -1, bytes), in the order of fetching
    state: State = State.WAITING
    sequence: int = -1
    devices: list[int] = field(default_factory=list)  # of the workers placed so far
    slots: list[int] = field(default_factory=list)  # of the workers, while on slots
    fetched: list[int] = field(default_factory=list)  # memory that each input reached since it was placed
    done: float = 0.0  # units
    worked: float = 0.0  # units ever done, those lost to failures included
    lost: float = 0.0
    restore: bool = False  # it has left its slots unfinished: every further start reads a checkpoint
    copies: list[int] = field(default_factory=list)  # memories with its output: the original, then by age
    ready_s: float = 0.0
    placed_s: float = 0.0
    start_s: float = 0.0
    setup_s: float = 0.0  # of this stay
    held_s: float = 0.0  # READY though devices were open to it

    @property
    def workers(self) -> int:
        """How many devices it needs."""
        return len(self.gang.tasks)

    @property
    def left(self) -> float:
        """Units still to do."""
        return max(0.0, self.units - self.done)


@dataclass
class Slot:
    """Room for one worker on a device."""

    kernel: int = -1  # that it is configured for
    gang: LiveGang | None = None
    setup_until: float | None = None

    @property
    def free(self) -> bool:
        """Whether a worker may start in it."""
        return self.gang is None and self.setup_until is None


@dataclass
class Transfer:
    """An input on its way to the memory of the device that fetches it."""

    gang: LiveGang
    device: int  # whose engine fetches
    target: int  # memory
    ends: tuple[list[int], list[int]]  # rows crossed at the source and at the target
    bandwidth: float
    left_s: float  # at full bandwidth; latency · bw extra bytes are just `latency` more of these seconds


def bottleneck(shares: list[float]) -> float:
    """The default contention model: the smallest share."""
    return min(shares, default=1.0)


class Reference:
    """One run of one scenario. Make it, `run` a policy, read the records."""

    def __init__(
        self,
        scenario: Scenario,
        compose: Callable[[list[float]], float] = bottleneck,
        more: Callable[[Action], bool] = lambda action: False,
    ) -> None:
        self.scenario, self.topology, self.workload = scenario, scenario.topology, scenario.workload
        self.compose = compose
        self.more = more  # whether the next decision was made along with an action
        names = {device.name: index for index, device in enumerate(self.topology.devices)}
        rows = {resource.name: index for index, resource in enumerate(self.topology.resources)}
        self.device_names = names
        self.kinds = [self.topology.kind_of[device.kind] for device in self.topology.devices]
        self.memory = [names[device.home or device.name] for device in self.topology.devices]
        self.capacity = [resource.capacity for resource in self.topology.resources]
        self.routes = [[(rows[hop.resource], hop.spans) for hop in d.route] for d in self.topology.devices]

        self.now = 0.0
        self.slots = [[Slot() for _ in range(kind.slots)] for kind in self.kinds]
        self.repair_at: list[float | None] = [None] * len(self.kinds)  # None: it is up
        self.active: dict[int, list[LiveGang]] = {}  # the gangs of every job in the system
        self.transfers: list[Transfer] = []
        self.background = [0] * len(rows)
        self.arrived = self.next_sequence = self.phase_count = self.failure_count = 0
        self.phase_at = scenario.phases[0].gap_s if scenario.phases else math.inf
        self.failure_at = scenario.failures[0].gap_s if scenario.failures else math.inf

        self.waited = False  # since the last event
        self.wake_at = math.inf  # when a wait that has a bound is over
        self.offered = False  # a window has ended, and the decision that it offers has not been taken
        self.thought_at: float | None = None  # when the scheduler, now thinking, will have finished
        self.thought_through = False

        self.events: list[tuple[float, str, int, int, int]] = []  # time, kind, job, gang, device
        self.decisions: list[tuple[float, Action, bool]] = []
        self.starts: list[tuple[float, int, int, tuple[int, ...], tuple[int, ...]]] = []
        self.readings: list[list[float]] = []
        self.held: list[float] = []  # after each event, seconds for which gangs in the system were held, all together
        self.stays: list[GangRecord] = []
        self.jobs: list[JobRecord] = []
        self.refused = 0
        self.stalled = False
        self.idle_events = 0
        self._window_sum = [0.0] * len(rows)  # ∫ L since the window began
        self._busy_s = [0.0] * len(rows)  # ∫ min(1, own load) since time 0

    # ---------------------------------------------------------------- the loop

    def run(self, choose: Choose, max_events: int = 100_000) -> Reference:
        """Run to the end, to a stall, or until `max_events` events have happened."""
        while not self.complete and len(self.events) < max_events:
            self.settle()
            self.check()
            if self.must_decide():
                self.decide(choose(self))
                continue
            event = self.next_event()
            if event is None:
                self.stalled = True
                break
            stuck = not self.under_way() and (self.actionable() or self.placing())
            self.advance(event[0])
            self.happen(*event)
            self.held.append(sum(g.held_s for gangs in self.active.values() for g in gangs))
            self.idle_events = self.idle_events + 1 if stuck else 0
            if self.idle_events > PATIENCE:
                self.stalled = True
                break
        self.check()
        return self

    @property
    def complete(self) -> bool:
        """Whether no job is left."""
        return self.arrived == len(self.workload.jobs) and not self.active

    @property
    def makespan_s(self) -> float:
        """When the run ended: with the last job, unless it stalled or was cut short."""
        return self.now

    @property
    def utilisation(self) -> dict[str, float]:
        """Mean of min(1, own load) over the rows of each resource kind and the whole run."""
        shares: dict[str, list[float]] = {}
        for resource, busy_s in zip(self.topology.resources, self._busy_s, strict=True):
            shares.setdefault(resource.kind, []).append(busy_s / self.now if self.now else 0.0)
        return {kind: sum(values) / len(values) for kind, values in shares.items()}

    def settle(self) -> None:
        """Start gangs and begin fetches, the lowest sequence number first, until none can."""
        while True:
            queued = sorted(self.gangs(*IN_QUEUE), key=lambda g: g.sequence)
            startable = [g for g in queued if self.startable(g)]
            unfetched = [g for g in queued if len(g.fetched) < len(g.inputs)]
            fetching = [g for g in unfetched if self.engine_idle(g.devices[0])]
            if startable:
                self.start(startable[0])
            elif fetching:
                self.begin_fetch(fetching[0])
            else:
                return

    def must_decide(self) -> bool:
        """Whether the policy decides now; if it first has to think, begin that."""
        wanted = not self.waited and (self.placing() is not None or bool(self.actionable()) or self.offered)
        latency = self.scenario.disturbances.latency_s
        if wanted and (latency == 0 or self.thought_through):
            return True
        self.thought_through = False  # what it thought about is gone
        if wanted and self.thought_at is None:
            self.thought_at = self.now + latency
        return False

    def under_way(self) -> bool:
        """Whether anything is going on that is not of the outside world's making."""
        return (
            any(self.gangs(State.RUNNING))
            or any(slot.setup_until is not None for slots in self.slots for slot in slots)
            or bool(self.transfers)
            or (self.arrived < len(self.workload.jobs) and len(self.active) < self.scenario.job_slots)
            or any(repair_at is not None for repair_at in self.repair_at)
            or self.thought_at is not None
        )

    def next_event(self) -> tuple[float, str, int, int, int] | None:
        """The earliest event ahead; among equals the first kind in the list, then the lowest index."""
        ahead: list[tuple[float, int, int, int, int]] = []  # time, kind, device, job, gang

        def add(time: float, kind: str, job: int = -1, gang: int = -1, device: int = -1) -> None:
            if time < math.inf:
                ahead.append((time, EVENTS.index(kind), device, job, gang))

        shares = self.shares()
        for g in self.gangs(State.RUNNING):
            if not self.in_setup(g):
                add(self.now + g.left * self.seconds_per_unit(g, shares), "finished", g.job, g.index)
        for slot in (slot for slots in self.slots for slot in slots):
            if slot.setup_until is not None:
                add(slot.setup_until, "set-up")
        for t in self.transfers:
            end = self.now + max(0.0, t.left_s) / self.transfer_share(t, shares)
            add(end, "fetched", t.gang.job, t.gang.index, t.device)
        if self.arrived < len(self.workload.jobs) and len(self.active) < self.scenario.job_slots:
            add(max(self.now, self.workload.jobs[self.arrived].arrival_s), "arrival", self.arrived)
        for device, repair_at in enumerate(self.repair_at):
            if repair_at is not None:
                add(repair_at, "repair", device=device)
        if self.scenario.failures:
            add(self.failure_at, "failure", device=self.device_names[self.next_failure.device])
        add(self.phase_at, "background")
        add((len(self.readings) + 1) * self.scenario.disturbances.window_s, "window")
        if self.thought_at is not None:
            add(self.thought_at, "thought")
        add(self.wake_at, "woken")
        if not ahead:
            return None
        time, kind, device, job, gang = min(ahead)
        return time, EVENTS[kind], job, gang, device

    def advance(self, to: float) -> None:
        """Let work, transfers and integrals go on until the next event."""
        step = to - self.now
        assert step >= 0, "time runs backwards"
        own, shares = self.own_load(), self.shares()
        for row, load in enumerate(own):
            self._busy_s[row] += step * min(1.0, load / UNIT)
            self._window_sum[row] += step * (load + self.background[row]) / UNIT
        for g in self.gangs(State.RUNNING):
            if not self.in_setup(g) and (unit_s := self.seconds_per_unit(g, shares)) > 0:
                g.done += step / unit_s
                g.worked += step / unit_s
        for t in self.transfers:
            t.left_s -= step * self.transfer_share(t, shares)
        for g in self.gangs(State.READY):
            if sum(self.usable(g, d) and self.open(d) for d in range(len(self.kinds))) >= g.workers:
                g.held_s += step
        self.now = to

    def happen(self, time: float, kind: str, job: int, gang: int, device: int) -> None:
        """One event."""
        self.events.append((time, kind, job, gang, device))
        self.waited = False
        self.wake_at = math.inf
        match kind:
            case "finished":
                self.finish(self.active[job][gang])
            case "set-up":
                self.end_setup()
            case "fetched":
                self.end_fetch(next(t for t in self.transfers if t.device == device))
            case "arrival":
                self.arrive(job)
            case "repair":
                self.repair_at[device] = None
            case "failure":
                self.fail(device)
            case "background":
                self.change_background()
            case "window":
                window_s = self.scenario.disturbances.window_s
                self.readings.append([total / window_s for total in self._window_sum])
                self._window_sum = [0.0] * len(self._window_sum)
                self.offered = self.offered or self.scenario.disturbances.offer_at_windows
            case "thought":
                self.thought_at = None
                self.thought_through = True

    # ---------------------------------------------------------------- what a policy may ask

    def gangs(self, *states: State) -> Iterator[LiveGang]:
        """The gangs of the jobs in the system that are in one of `states`, by job and index."""
        return (g for gangs in self.active.values() for g in gangs if g.state in states)

    def actionable(self) -> list[tuple[int, int]]:
        """(job, gang) of every READY gang for which enough devices are up that can run it."""
        return [(g.job, g.index) for g in self.gangs(State.READY) if self.enough_devices(g)]

    def placing(self) -> tuple[int, int] | None:
        """(job, gang) of the gang that is partly placed."""
        return next(((g.job, g.index) for g in self.gangs(State.PLACING)), None)

    def feasible_devices(self, job: int, gang: int) -> list[int]:
        """Devices on which the next worker of a gang may be placed."""
        g = self.active[job][gang]
        return [d for d in range(len(self.kinds)) if self.usable(g, d) and d not in g.devices]

    def backlog(self, device: int) -> int:
        """Gangs running, saving or queued on a device."""
        return sum(device in g.devices for g in self.gangs(*IN_QUEUE, *ON_SLOTS))

    # ---------------------------------------------------------------- decisions

    def decide(self, action: Action) -> None:
        """Apply an action of the policy, or refuse it."""
        self.thought_through = self.thought_through and self.more(action)
        accepted = self.apply(action)
        self.decisions.append((self.now, action, accepted))
        if not accepted:
            self.refused += 1
            for g in list(self.gangs(State.PLACING)):
                self.make_ready(g)
        self.waited = not accepted or action[0] == "wait"
        if accepted and action[0] == "wait" and len(action) > 1 and action[1] > 0:
            self.wake_at = self.now + action[1]
        self.offered = self.offered and not self.waited

    def apply(self, action: Action) -> bool:
        """Do what the action says if the rules allow it; whether they do."""
        placing = self.placing()
        if placing is not None and action[:3] != ("place", *placing):
            return False
        match action:
            case ("wait",) | ("wait", _):
                return True
            case ("place", int(job), int(gang), int(device), *order) if self.exists(job, gang):
                return device in range(len(self.kinds)) and self.place(self.active[job][gang], device, *order)
            case ("preempt", int(job), int(gang)) if self.exists(job, gang):
                return self.preempt(self.active[job][gang])
            case ("reconfigure", int(device), int(kernel)) if device in range(len(self.kinds)):
                return self.reconfigure(device, kernel)
            case _:
                return False

    def exists(self, job: int, gang: int) -> bool:
        """Whether the job is in the system and has that gang."""
        return job in self.active and gang in range(len(self.active[job]))

    def place(self, g: LiveGang, device: int, order: int = 0) -> bool:
        """Put the next worker of a gang on a device."""
        # Reading: "actionable" is asked of a READY gang; one that is partly placed only needs a fit device.
        if g.state is not State.PLACING and not (g.state is State.READY and self.enough_devices(g)):
            return False
        if not self.usable(g, device) or device in g.devices:
            return False
        if g.state is State.READY:
            g.state, g.sequence = State.PLACING, order if order < 0 else self.next_sequence
            self.next_sequence += 1
        g.devices.append(device)
        if len(g.devices) == g.workers:
            g.state, g.placed_s, g.held_s = State.QUEUED, self.now, 0.0
        return True

    def preempt(self, g: LiveGang) -> bool:
        """Make a running gang write a checkpoint and leave."""
        if g.state is not State.RUNNING or not g.gang.preemptible or self.in_setup(g):
            return False
        g.state, g.restore = State.SAVING, True
        for slot in self.slots_of(g):
            slot.setup_until = self.now + g.gang.checkpoint_s
        return True

    def reconfigure(self, device: int, kernel: int) -> bool:
        """Configure a free slot for a kernel."""
        free = [slot for slot in self.slots[device] if slot.free]
        if self.repair_at[device] is not None or not self.kinds[device].reconfigurable or not free:
            return False
        if kernel not in range(len(self.workload.kernels)):
            return False
        if self.workload.kernels[kernel].on(self.kinds[device]) is None:
            return False
        free[0].kernel, free[0].setup_until = kernel, self.now + self.kinds[device].reconfigure_s
        return True

    # ---------------------------------------------------------------- what happens to gangs

    def arrive(self, job: int) -> None:
        """A job enters: its gangs come into the world."""
        graph = self.workload.graphs[self.workload.jobs[job].graph]
        tasks = {task.name: task for task in graph.tasks}
        noise = self.scenario.work_noise
        self.active[job] = []
        for index, gang in enumerate(graph.all_gangs):
            task = tasks[gang.tasks[0]]
            kernel_index = self.workload.kernel_index[task.kernel]
            kernel = self.workload.kernels[kernel_index]
            units = task.units * noise[(31 * job + index) % len(noise)]
            inputs = [(source, size) for source, target, size in graph.gang_edges if target == index]
            work = kernel.work(task.size)
            self.active[job].append(LiveGang(job, index, gang, kernel, kernel_index, work, units, inputs))
        self.arrived += 1
        self.wake(job)

    def wake(self, job: int) -> None:
        """Gangs of a job whose parents have all finished become READY."""
        gangs = self.active[job]
        for g in gangs:
            if g.state is State.WAITING and all(gangs[s].state is State.DONE for s, _ in g.inputs if s >= 0):
                self.make_ready(g)

    def make_ready(self, g: LiveGang) -> None:
        """A gang leaves wherever it was and may be placed (again); inputs will be fetched (again)."""
        self.leave(g)
        g.state, g.ready_s = State.READY, self.now

    def leave(self, g: LiveGang) -> None:
        """Free the devices of a gang and drop the transfers for it."""
        for slot in self.slots_of(g):
            slot.gang = slot.setup_until = None
        self.transfers = [t for t in self.transfers if t.gang is not g]
        g.devices, g.slots, g.fetched, g.sequence = [], [], [], -1

    def startable(self, g: LiveGang) -> bool:
        """Whether a gang can begin to run now."""
        return (
            g.state is State.QUEUED
            and len(g.fetched) == len(g.inputs)
            and all(
                self.repair_at[d] is None
                and self.head(d) is g
                and any(slot.free for slot in self.slots[d])
                and self.free_memory(d) >= self.footprint(g, d)
                for d in g.devices
            )
        )

    def start(self, g: LiveGang) -> None:
        """A gang takes a slot on each of its devices."""
        g.state, g.start_s, g.setup_s = State.RUNNING, self.now, 0.0
        for d in g.devices:
            free = [index for index, slot in enumerate(self.slots[d]) if slot.free]
            setup_s = g.gang.restore_s if g.restore else 0.0
            if self.kinds[d].reconfigurable:
                configured = [index for index in free if self.slots[d][index].kernel == g.kernel_index]
                setup_s += 0.0 if configured else self.kinds[d].reconfigure_s
                free = configured or free
            slot = self.slots[d][free[0]]
            slot.gang, slot.kernel = g, g.kernel_index
            # Reading: a set-up that takes no time is none, and so no event.
            slot.setup_until = self.now + setup_s if setup_s > 0 else None
            g.slots.append(free[0])
            g.setup_s = max(g.setup_s, setup_s)
        self.starts.append((self.now, g.job, g.index, tuple(g.devices), tuple(g.slots)))

    def end_setup(self) -> None:
        """The set-up of one slot, the first that is due; a gang that was saving and has no other is READY."""
        due = (slot for slots in self.slots for slot in slots if slot.setup_until == self.now)
        slot = next(due)
        slot.setup_until = None
        if slot.gang is not None and slot.gang.state is State.SAVING and not self.in_setup(slot.gang):
            slot.gang.setup_s += slot.gang.gang.checkpoint_s
            self.end_stay(slot.gang, "preempted")
            self.make_ready(slot.gang)

    def end_stay(self, g: LiveGang, outcome: str) -> None:
        """Write down a stay of a gang on its devices."""
        setup_s = min(g.setup_s, self.now - g.start_s)
        isolated_s = g.units * self.isolated_unit_s(g)
        times = (g.ready_s, g.placed_s, g.start_s, self.now)
        self.stays.append(GangRecord(g.job, g.index, tuple(g.devices), *times, isolated_s, setup_s, outcome))

    def finish(self, g: LiveGang) -> None:
        """A gang has no work left; perhaps its job is complete."""
        slack = self.slack(g)
        assert abs(g.done - g.units) <= slack, f"{g.done} units done of {g.units}"
        assert abs(g.worked - g.lost - g.units) <= slack, f"worked {g.worked}, lost {g.lost}, had {g.units}"
        self.end_stay(g, "finished")
        g.copies = [self.memory[g.devices[0]]]
        self.leave(g)
        g.state, g.done = State.DONE, g.units
        self.wake(g.job)
        if all(other.state is State.DONE for other in self.active[g.job]):
            job = self.workload.jobs[g.job]
            isolated_s = self.isolated_job_s(self.workload.graphs[job.graph])
            self.jobs.append(JobRecord(g.job, job.graph, job.arrival_s, self.now, isolated_s, job.priority))
            del self.active[g.job]

    # ---------------------------------------------------------------- disturbances

    def fail(self, device: int) -> None:
        """A device goes down, and every gang with a worker on it leaves."""
        down_s = self.next_failure.down_s
        self.failure_count += 1
        self.failure_at += self.next_failure.gap_s
        if self.repair_at[device] is not None:
            return
        for g in list(self.gangs(*IN_QUEUE, *ON_SLOTS)):
            if device not in g.devices:
                continue
            if g.state in ON_SLOTS:
                self.end_stay(g, "failed")
                every = g.gang.checkpoint_units
                kept = math.floor(g.done / every) * every if every < math.inf else 0.0
                g.lost += g.done - kept
                g.done, g.restore = kept, True
            self.make_ready(g)
        self.repair_at[device] = self.now + down_s
        # Reading: a slot that the policy was reconfiguring is set up no further; after the repair it is free.
        self.slots[device] = [Slot() for _ in self.slots[device]]

    @property
    def next_failure(self) -> Any:
        """The entry of the repeating list of failures that comes next."""
        return self.scenario.failures[self.failure_count % len(self.scenario.failures)]

    def change_background(self) -> None:
        """The tenants of one group change phase."""
        phases = self.scenario.phases
        phase = phases[self.phase_count % len(phases)]
        for row, resource in enumerate(self.topology.resources):
            if resource.group == phase.group:
                self.background[row] = round(UNIT * phase.load.get(resource.name, phase.load.get(resource.kind, 0.0)))
        self.phase_count += 1
        self.phase_at += phases[self.phase_count % len(phases)].gap_s

    # ---------------------------------------------------------------- fetching

    def engine_idle(self, device: int) -> bool:
        """Whether the fetch engine of a device has nothing under way."""
        return all(t.device != device for t in self.transfers)

    def begin_fetch(self, g: LiveGang) -> None:
        """The engine of a gang's first device takes up its next input."""
        devices = self.topology.devices
        source, size = g.inputs[len(g.fetched)]
        target = self.memory[g.devices[0]]
        copies = [self.home_memory(g.job)] if source < 0 else self.active[g.job][source].copies
        nearest = min(copies, key=lambda memory: self.topology.distance(devices[memory], devices[target]))
        span = self.topology.span(devices[nearest], devices[target])
        if span == LOCAL or size == 0:
            # Reading: no transfer, so no new copy either (also where an edge without bytes comes from afar).
            g.fetched.append(target)
            return
        ends = (self.crossed(nearest, span), self.crossed(target, span))
        bandwidth = min((self.capacity[row] for end in ends for row in end), default=UNLIMITED)
        left_s = self.topology.latency_s[span] + size / bandwidth
        self.transfers.append(Transfer(g, g.devices[0], target, ends, bandwidth, left_s))

    def end_fetch(self, t: Transfer) -> None:
        """A transfer ends: one more memory holds a copy."""
        g = t.gang
        source, _ = g.inputs[len(g.fetched)]
        g.fetched.append(t.target)
        self.transfers.remove(t)
        if source >= 0:
            copies = self.active[g.job][source].copies
            # Reading: a memory that holds a copy already (a neighbour just fetched it) gets no second one.
            if t.target not in copies:
                copies.append(t.target)
            if len(copies) > COPIES:
                del copies[1]

    def home_memory(self, job: int) -> int:
        """The memory of the first device of a job's home machine."""
        machines = self.topology.machines
        home = machines[self.workload.jobs[job].home % len(machines)]
        return next(m for m, d in zip(self.memory, self.topology.devices, strict=True) if d.machine == home)

    # ---------------------------------------------------------------- devices

    def profile(self, g: LiveGang, device: int) -> Profile:
        """What a worker of the gang costs on a device that can run it."""
        profile = g.kernel.on(self.kinds[device])
        assert profile is not None
        return profile

    def footprint(self, g: LiveGang, device: int) -> float:
        """Bytes of device memory that a worker takes."""
        return self.profile(g, device).memory_bytes(g.work)

    def usable(self, g: LiveGang, device: int) -> bool:
        """Whether a device is up and can run the gang's kernel."""
        kind = self.kinds[device]
        if self.repair_at[device] is not None or g.kernel.on(kind) is None:
            return False
        return self.footprint(g, device) <= kind.memory

    def enough_devices(self, g: LiveGang) -> bool:
        """Whether as many devices are usable as the gang has workers."""
        return sum(self.usable(g, d) for d in range(len(self.kinds))) >= g.workers

    def head(self, device: int) -> LiveGang:
        """The gang in a device's queue with the lowest sequence number."""
        return min((g for g in self.gangs(*IN_QUEUE) if device in g.devices), key=lambda g: g.sequence)

    def free_memory(self, device: int) -> float:
        """Bytes of a device's memory that no worker takes."""
        # Reading: footprints count against the device's own kind, even where devices share a home memory.
        used = sum(self.footprint(g, device) for g in self.gangs(*ON_SLOTS) if device in g.devices)
        return self.kinds[device].memory - used

    def open(self, device: int) -> bool:
        """Whether a gang that is placed on a device now could start there at once, if it can run there."""
        queued = any(device in g.devices for g in self.gangs(*IN_QUEUE))
        return self.repair_at[device] is None and not queued and any(slot.free for slot in self.slots[device])

    def slots_of(self, g: LiveGang) -> list[Slot]:
        """The slots that a gang holds."""
        return [self.slots[d][s] for d, s in zip(g.devices, g.slots, strict=False)]

    def in_setup(self, g: LiveGang) -> bool:
        """Whether any slot of the gang is in set-up."""
        return any(slot.setup_until is not None for slot in self.slots_of(g))

    # ---------------------------------------------------------------- contention

    def crossed(self, device: int, span: int) -> list[int]:
        """Rows of a device's route that its traffic over a span crosses."""
        return [row for row, spans in self.routes[device] if span in spans]

    def demands(self, g: LiveGang, device: int) -> list[tuple[int, int]]:
        """(row, load) of a worker's computation on each row of its device's route."""
        profile = self.profile(g, device)
        loads = []
        for row, _ in self.routes[device]:
            kind = self.topology.resources[row].kind
            demand = profile.demand.get(kind, 0.0) + g.work * profile.demand_per_work.get(kind, 0.0)
            if kind != "compute" and self.scenario.demand_factor:
                demand *= self.scenario.demand_factor[self.workload.kernel_index[g.kernel.name]]
            loads.append((row, round(UNIT * (demand / self.capacity[row]))))
        return loads

    def exchange(self, g: LiveGang) -> tuple[float, list[list[int]]]:
        """τ, and the rows that each worker crosses to exchange."""
        if g.workers == 1:
            return 0.0, [[]]
        devices = [self.topology.devices[d] for d in g.devices]
        if len({self.memory[d] for d in g.devices}) == 1:
            span = LOCAL
        elif devices[0].peers and len({device.peers for device in devices}) == 1:
            span = PEER
        else:
            span = max(self.topology.distance(a, b) for a, b in combinations(devices, 2))
        crossed = [self.crossed(d, span) for d in g.devices]
        bandwidth = min((self.capacity[row] for rows in crossed for row in rows), default=math.inf)
        return g.kernel.exchange_bytes / bandwidth, crossed

    def own_load(self) -> list[int]:
        """Load of every row by workers and transfers, in units of 2**-16 of its capacity."""
        load = [0] * len(self.capacity)
        # Reading: a gang loads its rows for as long as it holds its slots, while it saves too.
        for g in self.gangs(*ON_SLOTS):
            tau, crossed = self.exchange(g)
            slowest = max(self.alone_s(g, d) for d in g.devices)
            for d, rows in zip(g.devices, crossed, strict=True):
                for row, amount in self.demands(g, d):
                    load[row] += amount
                for row in rows if tau > 0 else []:
                    traffic = g.kernel.exchange_bytes / (slowest + tau)
                    load[row] += round(UNIT * (traffic / self.capacity[row]))
        for t in self.transfers:
            # A row that both ends cross (say, the link between sockets) counts at the source only.
            out, into = t.ends
            for row in out + [row for row in into if row not in out]:
                load[row] += round(UNIT * (t.bandwidth / self.capacity[row]))
        return load

    def shares(self) -> list[float]:
        """What every user gets of each row: min(1, 1/L)."""
        total = [own + hidden for own, hidden in zip(self.own_load(), self.background, strict=True)]
        return [min(1.0, UNIT / load) if load > 0 else 1.0 for load in total]

    def seconds_per_unit(self, g: LiveGang, shares: list[float]) -> float:
        """One over the gang's rate: t/s + τ/s' of its slowest worker."""
        tau, crossed = self.exchange(g)
        slowest = 0.0
        for d, rows in zip(g.devices, crossed, strict=True):
            compute = self.compose([shares[row] for row, amount in self.demands(g, d) if amount > 0])
            traffic = self.compose([shares[row] for row in rows])
            slowest = max(slowest, self.alone_s(g, d) * self.slowed(g, d) / compute + tau / traffic)
        return slowest

    def alone_s(self, g: LiveGang, device: int) -> float:
        """Seconds of a unit of a worker with its device to itself: the truth's, if there is one, else the profile's."""
        truth = self.scenario.truth
        known = truth.unit_s.get((g.kernel.name, self.kinds[device].name)) if truth else None
        if known is None:
            return self.profile(g, device).seconds(g.work)
        packed, spread = known
        peers = {self.topology.devices[d].peers for d in g.devices}
        machines = {self.topology.devices[d].machine for d in g.devices}
        linked = len(peers) == 1 and peers != {""}
        return g.work * (packed if len(machines) == 1 or linked else spread)

    def slowed(self, g: LiveGang, device: int) -> float:
        """How many times as long a unit takes beside those who hold the other slots of a device."""
        truth = self.scenario.truth
        if truth is None:
            return 1.0
        others = [slot.gang for slot in self.slots[device] if slot.gang is not None and slot.gang is not g]
        kind = self.kinds[device].name
        kept = [truth.beside.get((g.kernel.name, other.kernel.name, kind), 1.0) for other in others]
        crowd = 1 + truth.crowding * max(0, len(others) - 1)
        return crowd * (1 + sum(1 / share - 1 for share in kept))

    def transfer_share(self, t: Transfer, shares: list[float]) -> float:
        """A transfer's rate as a fraction of its bandwidth."""
        return min(self.compose([shares[row] for row in end]) for end in t.ends)

    def isolated_unit_s(self, g: LiveGang) -> float:
        """One unit of a gang on its devices, with nothing else there."""
        return max(self.alone_s(g, d) for d in g.devices) + self.exchange(g)[0]

    def isolated_job_s(self, graph: TaskGraph) -> float:
        """Longest path of a graph with every gang alone on the fastest devices of the topology."""
        tasks = {task.name: task for task in graph.tasks}
        end = [0.0] * len(graph.all_gangs)
        for index in graph.order:
            task = tasks[graph.all_gangs[index].tasks[0]]
            kernel = self.workload.kernels[self.workload.kernel_index[task.kernel]]
            work = kernel.work(task.size)
            workers = len(graph.all_gangs[index].tasks)
            # self.kinds has an entry for each device; the slowest of the fastest `workers` sets the pace.
            fits = [p for k in self.kinds if (p := kernel.on(k)) and p.memory_bytes(work) <= k.memory]
            own_s = task.units * sorted(profile.seconds(work) for profile in fits)[workers - 1]
            parents = [s for s, t, _ in graph.gang_edges if t == index and s >= 0]
            end[index] = own_s + max((end[s] for s in parents), default=0.0)
        return max(end)

    # ---------------------------------------------------------------- properties that hold in every run

    def slack(self, g: LiveGang) -> float:
        """Units by which rounding may put work off: 1e-9 of it, and what the clock cannot resolve."""
        unit_s = self.isolated_unit_s(g)
        return 1e-9 * g.units + (1e-12 * self.now / unit_s if unit_s > 0 else 0.0)

    def check(self) -> None:
        """Assert the named properties."""
        self.check_devices()
        self.check_gangs()
        assert all(load >= 0 for load in self.own_load()), "a load is negative"
        assert len(self.active) <= self.scenario.job_slots, "more jobs than job slots"

    def check_devices(self) -> None:
        """No device runs more workers than slots, no device memory is oversubscribed, one fetch at a time."""
        for d, kind in enumerate(self.kinds):
            here = [g for g in self.gangs(*ON_SLOTS) if d in g.devices]
            assert len(here) <= kind.slots, f"device {d} runs {len(here)} workers in {kind.slots} slots"
            held = [slot.gang for slot in self.slots[d] if slot.gang is not None]
            assert {id(g) for g in held} == {id(g) for g in here}, f"the slots of device {d} hold other gangs"
            assert len(held) == len(here), f"a gang holds two slots of device {d}"
            used = sum(self.footprint(g, d) for g in here)
            assert used <= kind.memory * (1 + 1e-12), f"device {d} has {kind.memory} bytes and uses {used}"
            assert sum(t.device == d for t in self.transfers) <= 1, f"device {d} fetches two at once"
            assert self.repair_at[d] is None or not self.backlog(d), f"device {d} is down and has gangs"

    def check_gangs(self) -> None:
        """No gang split, no task before its inputs, work conserved; at most one gang partly placed."""
        for t in self.transfers:
            assert t.gang.state in IN_QUEUE and t.gang.devices[0] == t.device, "a transfer for nobody"
        assert sum(1 for _ in self.gangs(State.PLACING)) <= 1, "two gangs are partly placed"
        for g in (g for gangs in self.active.values() for g in gangs):
            name = f"gang {g.index} of job {g.job}"
            whole = g.state in (State.QUEUED, *ON_SLOTS)
            assert len(set(g.devices)) == len(g.devices), f"two workers of {name} are on one device"
            assert g.state is State.PLACING or len(g.devices) == g.workers * whole, f"{name} is split"
            assert len(g.slots) == g.workers * (g.state in ON_SLOTS), f"{name} runs in part"
            if g.state not in (State.WAITING, State.DONE):
                parents = [self.active[g.job][source] for source, _ in g.inputs if source >= 0]
                assert all(p.state is State.DONE for p in parents), f"{name} goes before its parents"
            if g.state in ON_SLOTS:
                reached = [self.memory[g.devices[0]]] * len(g.inputs)
                assert g.fetched == reached, f"{name} runs before its inputs are there"
                slack = self.slack(g)
                assert -slack <= g.done <= g.units + slack, f"{name} did {g.done} of {g.units} units"
                assert abs(g.worked - g.lost - g.done) <= slack, f"{name} gained or lost work"


# -------------------------------------------------------------------- policies


def fifo(world: Reference) -> Action:
    """The oldest job first, then the lowest gang; on the device with the fewest gangs, then the lowest."""
    gang = world.placing() or min(world.actionable(), default=None)
    devices = world.feasible_devices(*gang) if gang else []
    if gang is None or not devices:
        return ("wait",)
    return ("place", *gang, min(devices, key=lambda d: (world.backlog(d), d)))


def random_policy(seed: int) -> Choose:
    """Places mostly; also preempts, reconfigures, waits, and now and then breaks the rules."""
    rng = random.Random(seed)

    def anything(world: Reference) -> Action:
        """Some action, seldom an allowed one. It names only what is in the system."""
        device = rng.randrange(len(world.kinds))
        if not world.active:
            return ("reconfigure", device, rng.randrange(len(world.workload.kernels)))
        job = rng.choice(list(world.active))
        gang = rng.randrange(len(world.active[job]))
        return rng.choice([("place", job, gang, device), ("preempt", job, gang), ("wait",)])

    def choose(world: Reference) -> Action:
        luck = rng.random()
        placing, actionable = world.placing(), world.actionable()
        if luck < 0.04:
            return anything(world)
        if placing is None and luck < 0.12:
            running = [(g.job, g.index) for g in world.gangs(State.RUNNING) if g.gang.preemptible]
            return ("preempt", *rng.choice(running)) if running else ("wait",)
        if placing is None and luck < 0.18:
            able = [d for d, kind in enumerate(world.kinds) if kind.reconfigurable]
            kernel = rng.randrange(len(world.workload.kernels))
            return ("reconfigure", rng.choice(able), kernel) if able else ("wait",)
        gang = placing or (rng.choice(actionable) if actionable and luck < 0.92 else None)
        devices = world.feasible_devices(*gang) if gang else []
        return ("place", *gang, rng.choice(devices)) if gang and devices else ("wait",)

    return choose
