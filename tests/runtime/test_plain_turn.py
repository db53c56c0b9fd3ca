"""Turns in plain Python are those of the compiled program: same commands and same core, turn by turn."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import symphony as sy
from symphony.baselines import EftBelief
from symphony.problem import topologies
from symphony.problem.arrays import topology_arrays
from symphony.problem.topology import Topology
from symphony.runtime import plain_turn
from symphony.runtime import turn as happened
from symphony.runtime.budget import Budget
from symphony.runtime.graph import Graph, submission
from symphony.runtime.kernels import KernelFunction
from symphony.runtime.live_workload import LiveWorkload, Shapes
from symphony.runtime.native import library
from symphony.runtime.plain_turn import PlainCore, suits
from symphony.runtime.profiles import Profiles
from symphony.runtime.programs import TurnProgram
from symphony.runtime.turn import SchedulerEvent
from symphony.scheduling import state
from symphony.scheduling.policy import Policy
from symphony.scheduling.state import ABSENT, DONE, QUEUED, RUNNING, SAVING, WAITING, Core
from tests.runtime.machines import machine

SHAPES = Shapes(jobs=4, tasks=12, edges=24, kernels=8, workers=4)
HEURISTIC = EftBelief()
FREE = (ABSENT, DONE)  # states of a place that a task may take
TOPOLOGIES = {
    "machine": machine(slots=3, others=3, memory=8e9),
    "fat-tree:16": topologies.topology("fat-tree:16"),
    "fat-tree:500": topologies.topology("fat-tree:500"),
}
needs_native = pytest.mark.skipif(library() is None, reason="native.c was not compiled")
LARGE = pytest.param("fat-tree:500", marks=needs_native)


class Both:
    """The same workload, scheduled twice."""

    def __init__(
        self,
        topology: Topology,
        seed: int,
        policy: Policy = HEURISTIC,
        budget: Budget | None = None,
        preemptible: bool = False,
    ) -> None:
        self.start(topology, seed, preemptible)
        self.program = TurnProgram(policy, self.workload)
        empty = state.empty(self.workload.t, self.workload.w, SHAPES.jobs, np)
        self.plain, self.packed = PlainCore(self.workload, empty, budget), self.program.packed(empty)
        self.policy_state = self.program.begin(self.workload)
        self.now_s = 0.0
        self.saved = 0  # gangs that were preempted
        self.caught_up = 0  # turns in which the core caught up with the engine

    def start(self, topology: Topology, seed: int, preemptible: bool = False) -> None:
        """Make the workload and the kernels."""
        self.preemptible = preemptible  # some kernels
        self.rng = np.random.default_rng(seed)
        self.workload = LiveWorkload(topology, Profiles(), SHAPES)
        types = sorted({kind.type for kind in topology.kinds})
        self.kernels = [self._kernel(number, types) for number in range(6)]

    def _kernel(self, number: int, types: list[str]) -> KernelFunction:
        count = int(self.rng.integers(1, len(types) + 1))
        chosen = self.rng.permutation(types)[:count]
        topology = self.workload.topology
        able = sum(topology.kind_of[device.kind].type in chosen for device in topology.devices)
        workers = int(min(able, self.rng.choice([1, 1, 1, 2, 3])))
        memory = float(self.rng.choice([0.0, 3e9, 5e9]))
        options: dict[str, Any] = {"preemptible": True} if self.preemptible and number % 2 else {}
        made = sy.kernel(device=str(chosen[0]), name=f"k{number}", workers=workers, memory=memory, **options)(_nothing)
        made.key = f"k{number}"
        for other in chosen[1:]:
            made.implementation(device=str(other))(_nothing)
        for kind in topology.kinds:
            timing = self.workload.profiles.timing(made.key, kind.name)
            timing.mean = [float(np.log(self.rng.uniform(0.1, 3.0))), float(np.log(self.rng.uniform(1e-9, 1e-8)))]
        return made

    def arrival(self) -> SchedulerEvent:
        graph, handles = Graph("random"), []
        for _ in range(int(self.rng.integers(1, SHAPES.tasks + 1))):
            count = int(self.rng.integers(0, min(len(handles), 2) + 1))
            reads = [handles[int(k)] for k in self.rng.choice(len(handles), count, replace=False)] if count else []
            handles.append(graph.task(self.kernels[int(self.rng.integers(len(self.kernels)))], *reads))
        sent, workload = submission(graph), self.workload
        sizes = [int(self.rng.integers(1, 2**28)) for _ in sent.calls]
        row = workload.add(sent, sizes)
        workload.w.in_bytes[row] = self.rng.integers(0, 3, SHAPES.edges) * self.rng.uniform(1e8, 1e9, SHAPES.edges)
        for kernel in range(len(workload.kernels)):  # some use more of what they share than others
            workload.w.demand_fixed[kernel] *= self.rng.uniform(0.2, 1.0)
        return SchedulerEvent(happened.ARRIVED, graph=row, priority=int(self.rng.integers(2)))

    def window(self) -> SchedulerEvent:
        """A job whose tasks enter one by one."""
        graph = Graph("window")
        for kernel in self.kernels:
            graph.task(kernel)
        row = self.workload.add_window(submission(graph))
        return SchedulerEvent(happened.ARRIVED, graph=row, priority=int(self.rng.integers(2)))

    def enters(self) -> SchedulerEvent | None:
        """A task takes a free place of a window."""
        core, tasks, gangs = self.plain, SHAPES.tasks, self.workload.w.gangs
        windows = [
            slot
            for slot, job in enumerate(core.job)
            if job >= 0 and not core.dropped[slot] and core.status[slot * tasks] == WAITING
            if gangs[core.graph[slot]] == 1
        ]
        free = [g for slot in windows for g in range(slot * tasks + 1, (slot + 1) * tasks) if core.status[g] in FREE]
        if not free:
            return None
        gang, kernel = int(self.rng.choice(free)), self.kernels[int(self.rng.integers(len(self.kernels)))]
        row, size = core.graph[gang // tasks], int(self.rng.integers(1, 2**28))
        self.workload.enter(row, gang % tasks, kernel, size, self.workload.kind_bits(kernel))
        return SchedulerEvent(happened.ENTERED, gang)

    def turn(self, events: list[SchedulerEvent]) -> None:
        self.now_s += float(self.rng.exponential(0.3))
        rows = len(self.workload.topology.resources)
        # No two devices are alike: rounding to 32 bits, as the compiled program does, would decide between them.
        others = (self.rng.uniform(1, 3, rows).astype(np.float32), np.full(rows, 0.1, np.float32))
        mine, order = self.plain.turn(events, self.now_s, others), self.plain.order
        assert sorted(order, key=id) == sorted(events, key=id)
        result = self.program.take(self.workload, self.packed, self.policy_state, order, self.now_s, others)
        self.packed, self.policy_state, theirs = result.core, result.policy_state, result.commands
        early = [events[number] for number in mine.early]
        self.caught_up += order[: len(order) - len(early)] != [event for event in events if event not in early]
        assert mine.started == theirs.started
        assert early == [order[number] for number in theirs.early]
        assert mine.jobs == theirs.jobs and mine.wake_s == pytest.approx(theirs.wake_s, rel=1e-4)
        self.saved += len(mine.saved)
        assert mine.saved == theirs.saved
        assert (mine.decisions, mine.refused, mine.stuck) == (theirs.decisions, theirs.refused, theirs.stuck)
        assert list(self.plain.queue()) == self.program.queued(self.packed)
        same_cores(self.plain.core(), self.program.unpacked(self.packed))
        taken = {row for row, job in zip(self.plain.graph, self.plain.job, strict=True) if job >= 0}
        for row in set(self.workload._used) - taken:
            self.workload.remove(row)

    def random_event(self) -> SchedulerEvent | None:
        """None if nothing of the chosen kind can happen."""
        core, draw = self.plain, self.rng.random()
        running = [gang for gang, status in enumerate(core.status) if status in (RUNNING, SAVING)]
        queued = [gang for gang, status in enumerate(core.status) if status == QUEUED]
        devices = len(self.workload.topology.devices)
        if draw < 0.15:
            arrives = self.window if self.rng.random() < 0.4 else self.arrival
            return arrives() if self.workload.free and -1 in core.job else None
        if draw < 0.30:
            return self.enters()
        if draw < 0.70:
            return self._of(happened.FINISHED, running)
        if draw < 0.75:
            return self._of(happened.STOPPED, running)
        if draw < 0.80:
            return self._of(happened.RECALLED, queued)
        if draw < 0.84:
            first = sorted(queued, key=core.sequence.__getitem__)[:2]
            return self._of(happened.FINISHED, first)  # the engine was ahead of the core
        if draw < 0.87:
            return self._of(happened.DROPPED, [slot for slot, job in enumerate(core.job) if job >= 0])
        if draw < 0.90:
            up = [device for device in range(devices) if core.up[device]]
            return self._of(happened.FAILED, up) if len(up) > 1 else None
        if draw < 0.97:
            return self._of(happened.REPAIRED, [device for device in range(devices) if not core.up[device]])
        return SchedulerEvent(happened.ROUND)

    def _of(self, kind: int, whom: list[int]) -> SchedulerEvent | None:
        return SchedulerEvent(kind, int(self.rng.choice(whom))) if whom else None


def _nothing(*_: Any, rank: int = 0, size: int = 1) -> None:
    pass


def same_cores(mine: Core, theirs: Core) -> None:
    alive = mine.status != ABSENT  # what is left of gangs that are gone differs: nothing reads it
    for field in fields(Core):
        a, b = getattr(mine, field.name), getattr(theirs, field.name)
        a, b = (x.total if hasattr(x, "total") else np.asarray(x) for x in (a, b))
        if a.ndim and len(a) == len(alive):
            a, b = a[alive], b[alive]
        if field.name != "release_from":  # read only while children are released
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=field.name)


def random_turns(both: Both, count: int) -> set[int]:
    """Take turns with random events; returns the kinds of events."""
    seen = set()
    for _ in range(count):
        events = [both.random_event() for _ in range(int(both.rng.integers(1, 6)))]
        chosen = {(event.kind, event.who, event.graph): event for event in events if event is not None}
        if len({event.who for event in chosen.values()}) < len(chosen):
            continue  # two events of one gang, of which the second might be impossible
        kinds = [event.kind for event in chosen.values()]
        if happened.ARRIVED in kinds and (kinds.count(happened.ARRIVED) > 1 or happened.DROPPED in kinds):
            continue  # jobs arrive when all other events are known
        if chosen:
            both.turn(list(chosen.values()))
            seen |= {event.kind for event in chosen.values()}
    return seen


@pytest.mark.parametrize("name", ["machine", "fat-tree:16", LARGE])
def test_plain_turns_are_the_compiled_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_turn, "FEW_DEVICES", 2)  # so that both ways to decide are taken
    seen: set[int] = set()
    started = caught_up = 0
    large = name == "fat-tree:500"
    for seed in range(4 if large else 16):
        if seed == 8:
            monkeypatch.setattr(plain_turn, "FEW_DEVICES", 64)
        both = Both(TOPOLOGIES[name], seed)
        seen |= random_turns(both, 60)
        started += both.plain.next_sequence
        caught_up += both.caught_up
    if large:  # nothing is queued there: no engine is ahead, and nothing is recalled
        assert seen >= set(range(happened.WOKEN)) - {happened.RECALLED} and started > 100
    else:
        assert caught_up
        assert seen == set(range(happened.WOKEN)) and started > 500


@needs_native
@pytest.mark.parametrize("name", ["machine", "fat-tree:16"])
def test_the_native_heuristic_is_that_in_python_whatever_is_believed(name: str) -> None:
    compared = 0
    for seed in range(6):
        both = Both.__new__(Both)
        both.start(TOPOLOGIES[name], seed)
        both.plain = core = PlainCore(both.workload, state.empty(both.workload.t, both.workload.w, SHAPES.jobs, np))
        rows = len(both.workload.topology.resources)
        for number in range(60):
            event = both.random_event() if both.workload.free else None
            others = both.rng.choice([0.0, 0.7, 2.0, 1e30, 1e-45, np.nan], (2, rows)).astype(np.float32)
            core.turn([] if event is None else [event], 0.3 * number, (others[0], others[1]))
            for gang in (gang for gang, status in enumerate(core.status) if status == RUNNING):
                able = [d for d, kind in enumerate(core._kind) if core.up[d] and core.runs_on[gang] >> kind & 1]
                able = [device for device in able if device in core._all_devices]
                if able:
                    costs = core._costs(gang, able)
                    assert core.native.best_device(core, gang) == able[costs.index(min(costs))]
                    compared += 1
    assert compared > 300


def test_a_core_can_be_taken_over_at_any_time() -> None:
    """What one has scheduled, the other continues."""
    both = Both(TOPOLOGIES["machine"], 1)
    for number in range(80):
        event = both.random_event()
        if event is not None:
            both.turn([event])
        if number % 10 == 0:
            both.plain = PlainCore(both.workload, both.program.unpacked(both.packed))
        if number % 10 == 5:
            both.packed = both.program.packed(both.plain.core())
    assert both.plain.next_sequence > 20


def test_clusters_that_the_plain_turn_does_not_suit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert suits(topology_arrays(machine(others=2)))
    many = topology_arrays(TOPOLOGIES["fat-tree:500"])
    assert suits(many) == (library() is not None)
    monkeypatch.setattr(plain_turn, "suits_native", lambda t: False)
    assert not suits(many)  # an estimate for each device takes too long
    assert not suits(topology_arrays(topologies.topology("machine")))  # it has an FPGA
