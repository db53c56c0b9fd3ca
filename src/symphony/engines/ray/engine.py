"""The Ray engine: an actor for each slot of each device, pinned to its machine, and kept.

What it keeps from Ray: order, and the choice of places. Work waits here, in order; an actor gets a call of one kernel,
or of several quick ones, and the next call behind it only if both are quick. So hardly anything is ever with Ray that
would have to be taken back, which Ray cannot do: what runs is stopped by killing its actor.

    waiting ──► call ──► Finished, Failed          an actor died: another takes its place; what was behind goes to it
                  │                                its node is gone: Stopped, DeviceDown, and DeviceUp when it is back
                  └── cancel, preempt, too late: the actor is killed
"""

from __future__ import annotations

import errno
import marshal
import math
import os
import pickle
import queue
import signal
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from ray.exceptions import (
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from symphony.engines import worker
from symphony.engines.engine import (
    DIED,
    LOST,
    STEPS,
    TIMEOUT,
    UNSENDABLE,
    DeviceDown,
    DeviceUp,
    EngineEvent,
    Failed,
    Finished,
    Pickled,
    Stopped,
    Stored,
    Work,
)
from symphony.engines.ray import actor as actors
from symphony.engines.ray import machines as nodes
from symphony.problem.build import CPU
from symphony.problem.errors import EngineError, InfeasibleError, SymphonyError
from symphony.problem.topology import Topology

START_S = 60.0  # for an actor to come up, before its device is taken to be down
TRIES = 3  # starts in a row that may fail before a device is down
WATCH_S = 1.0  # between looks at which nodes are alive
QUICK_S, CALL_S, TOGETHER = 5e-3, 1e-3, 16  # kernels that took less may go ahead; so long and so many go in one call
CALLS = 2  # with an actor at once: one runs, one is ahead
GRACE_S = 0.1  # for quick kernels to end by themselves, before their actor is killed

# An actor's class goes to other machines whole, with what it uses.
for _module in (worker, actors):
    ray.cloudpickle.register_pickle_by_value(_module)


@dataclass
class _Kept:
    """A value: its pickle if it is small, else the object of Ray's store that has it, and where in it."""

    head: bytes | None
    ref: Any = None
    part: int = 0


@dataclass(eq=False)
class _Call:
    """What was sent to an actor, and not answered yet."""

    work: list[Work]
    quick: bool
    sent_s: float
    since: float = math.inf  # when it can have begun: the one before it was answered
    refs: Any = None  # of the answer: if these were forgotten, so would be the answer


@dataclass(eq=False)
class _Slot:
    """A slot of a device, and the actor that is it at present."""

    device: int
    name: str
    machine: str
    actor: Any = None
    generation: int = 0  # of its actor; what is heard of earlier ones means nothing
    ready: bool = False
    asked_s: float = math.inf  # when its actor was asked for
    process: int = 0
    clock: float = 0.0  # seconds from the actor's clock to ours
    failures: int = 0  # starts in a row that came to nothing
    knows: set[str] = field(default_factory=set)  # functions that were sent to it
    waiting: deque[Work] = field(default_factory=deque)
    calls: deque[_Call] = field(default_factory=deque)  # the first one runs
    stopping: dict[int, str] = field(default_factory=dict)  # work that was sent and shall stop, and why
    kill_s: float = math.inf  # when the actor is killed for it
    killed: bool = False
    suspect: tuple[Work, float, float] | None = None  # ran alone when the actor died: work, since when, seconds

    @property
    def load(self) -> int:
        """Pieces of work that it has."""
        return len(self.waiting) + sum(len(call.work) for call in self.calls)


class RayEngine:
    """Runs work on the devices of a topology, whose machines are Ray's nodes (by default: what Ray tells of them).

    `together` is how many quick kernels may go in one call.
    """

    def __init__(
        self, address: str | None = None, topology: Topology | None = None, *, together: int = TOGETHER
    ) -> None:
        self._owns, self.notes = nodes.connect(address)  # `notes`: what the user should know
        self._closed = False
        self._slots: list[_Slot] = []
        try:
            self._machines: dict[str, nodes.Machine] = nodes.machines()
            self._topology = nodes.discovered(self._machines) if topology is None else topology
            nodes.check(self._topology, self._machines)
        except BaseException:
            self._leave()
            raise
        self.namespace = f"symphony-{uuid.uuid4().hex[:8]}"  # of the actors, which are called as their devices are
        self._together = together
        self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # for the engine's thread, from Ray's
        self._events: list[EngineEvent] = []
        self._where: dict[int, _Slot] = {}  # work that has not ended
        self._gangs: dict[int, set[int]] = {}  # workers that have not started, and who starts with them
        self._alone: set[int] = set()  # work that may have ended an actor, and goes in a call of its own
        self._seconds: dict[tuple[str, int], float] = {}  # of a function on a device, last time; inf = not quick
        self._down: set[int] = set()
        self._actor = ray.remote(actors.Slot)
        self._slots = list(_slots(self._topology))
        self._by_device = [[slot for slot in self._slots if slot.device == d] for d in self._devices]
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="symphony-ray-nodes", daemon=True)
        for slot in self._slots:
            self._start(slot)
        try:
            self._come_up()
        except BaseException:
            self.close()
            raise
        self._watcher.start()

    # --- what there is

    def inventory(self) -> Topology:
        """The devices; those that did not come up are down."""
        return self._topology

    def put(self, value: Pickled) -> Stored:
        """Small values stay as they are; large ones go into Ray's store, their buffers as they are."""
        if not value.buffers and len(value.head) <= worker.INLINE:
            return Stored(_Kept(value.head), value.size)
        parts = [(value.head, [pickle.PickleBuffer(buffer) for buffer in value.buffers])]
        try:
            return Stored(_Kept(None, ray.put(parts)), value.size)
        except (ObjectStoreFullError, OutOfDiskError) as error:
            raise OSError(errno.ENOSPC, f"Ray's object store is full: {error}") from error

    def get(self, value: Stored) -> Pickled:
        """The value, copied: it outlives Ray."""
        kept: _Kept = value.at
        if kept.head is not None:
            return Pickled(kept.head)
        try:
            head, buffers = ray.get(kept.ref)[kept.part]
        except RayError as error:
            raise EngineError(f"a value is lost: {_first_line(error)}", hint="submit the job again") from error
        return Pickled(head, [bytearray(buffer) for buffer in buffers])

    def free(self, value: Stored) -> None:
        """Let go of it; Ray forgets what nobody holds."""
        value.at.head = value.at.ref = None

    # --- what is done

    def dispatch(self, work: Sequence[Work]) -> None:
        """To the slot of its device with the least before it; workers of a gang to slots of their own."""
        taken: dict[int, list[tuple[Work, _Slot]]] = {}
        placed: list[tuple[Work, _Slot]] = []
        for one in work:
            gang = taken.setdefault(one.gang, [])
            if one.device in self._down:
                self._events.append(Stopped(one.number))
                continue
            others = [slot for _, slot in gang] if one.gang >= 0 else []
            free = [slot for slot in self._by_device[one.device] if slot not in others]
            if not free:
                name, slots = self._topology.devices[one.device].name, len(self._by_device[one.device])
                raise InfeasibleError(f"a gang has more workers on {name} than its {slots} slots", hint="spread it")
            slot = min(free, key=lambda slot: slot.load + sum(other is slot for _, other in placed))
            gang.append((one, slot))
            placed.append((one, slot))
        for one, slot in placed:
            slot.waiting.append(one)
            self._where[one.number] = slot
        for gang, members in taken.items():
            if gang >= 0 and len(members) > 1:
                numbers = {one.number for one, _ in members}
                self._gangs |= dict.fromkeys(numbers, numbers)
        for slot in dict.fromkeys(slot for _, slot in placed):
            self._send(slot)

    def cancel(self, number: int) -> None:
        """Kill the actor that runs it; what only waits is dropped."""
        self._stop(number, "")

    def preempt(self, number: int) -> None:
        """As `cancel`: what runs here writes no checkpoints."""
        self._stop(number, "")

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """What Ray has answered, and who has run for too long."""
        if self._closed:
            raise EngineError("the Ray engine is closed", hint="make a new one: with sy.ray() as cluster: …")
        wait = 0.0 if self._events else max(min(timeout_s, self._next_deadline() - time.monotonic()), 0.0)
        with suppress(queue.Empty):
            self._news.get(timeout=None if wait == math.inf else wait)()
            while True:
                self._news.get_nowait()()
        self._look_at_deadlines(time.monotonic())
        events, self._events = self._events, []
        return events

    def wake(self) -> None:
        """By news of nothing."""
        self._news.put(_nothing)

    def close(self) -> None:
        """Kill every actor; leave Ray, if it was entered for this."""
        if self._closed:
            return
        self._closed = True
        self._ended.set()
        for slot in self._slots:
            self._end(slot)
        self._leave()

    def _leave(self) -> None:
        if self._owns:
            ray.shutdown()

    @property
    def _devices(self) -> range:
        return range(len(self._topology.devices))

    # --- actors

    def _start(self, slot: _Slot) -> None:
        """Ask for an actor, on its machine if that is there."""
        machine = self._machines.get(slot.machine)
        if machine is None:
            return  # it is asked for when the machine is back
        slot.generation += 1
        slot.ready, slot.killed, slot.kill_s, slot.knows = False, False, math.inf, set()
        slot.asked_s = time.monotonic()
        needs = nodes.needs(self._topology, slot.device, machine)
        slot.actor = self._actor.options(
            name=slot.name if slot.generation == 1 else f"{slot.name} ({slot.generation})",
            namespace=self.namespace,
            num_cpus=needs.pop("CPU", 0.0),
            num_gpus=needs.pop("GPU", 0.0),
            resources=needs,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.node, soft=False),
            max_restarts=0,
        ).remote(tuple(sys.path), os.getcwd(), _environment(self._topology, slot.device))
        self._when_answered(slot.actor.hello.remote(slot.process), partial(self._came, slot, slot.generation))

    def _end(self, slot: _Slot) -> None:
        """Kill a slot's actor, and hear no more of it."""
        if slot.actor is not None:
            with suppress(RayError, ValueError):  # it is dead already, or Ray is
                ray.kill(slot.actor)
        slot.actor, slot.ready = None, False
        slot.generation += 1

    def _when_answered(self, ref: Any, then: Callable[[Any], None]) -> None:
        """Have the engine's thread do something with an answer, or with the error that came instead."""
        ref._on_completed(lambda answer: self._news.put(partial(then, answer)))

    def _come_up(self) -> None:
        """Wait for all actors, or for their devices to be taken for down."""
        while any(not slot.ready and slot.device not in self._down for slot in self._slots):
            self._events += self.poll(0.1)
        down = {event.device: event.why for event in self._events if isinstance(event, DeviceDown)}
        if len(self._down) == len(self._topology.devices):
            raise EngineError(f"no device came up: {next(iter(down.values()))}", where=self._topology.name)
        self.notes += [f"{self._topology.devices[device].name} is down: {why}" for device, why in down.items()]

    def _came(self, slot: _Slot, generation: int, answer: Any) -> None:
        """An actor is there, or will not be."""
        if generation != slot.generation:
            return
        if isinstance(answer, BaseException):
            if self._machine_is_gone(slot):
                return
            slot.failures += 1
            if slot.failures >= TRIES:
                why = f"its actor did not start {slot.failures} times in a row; {_first_line(answer)}"
                self._give_up(slot.device, why)
            else:
                self._start(slot)
            return
        slot.process, there_s, word = answer
        slot.clock = time.monotonic() - there_s
        slot.ready, slot.failures, slot.asked_s = True, 0, math.inf
        self._tell_of_death(slot, word)
        if slot.device in self._down and all(other.ready for other in self._by_device[slot.device]):
            self._down.discard(slot.device)
            self._events.append(DeviceUp(slot.device))
        self._send(slot)

    def _died(self, slot: _Slot, error: BaseException) -> None:
        """An actor has died: what it ran has failed, unless that was meant; what waited goes to the next one."""
        if self._machine_is_gone(slot):
            return
        calls, slot.calls = slot.calls, deque()
        back = [work for call in calls for work in call.work]
        for work in calls[0].work:
            self._seconds.pop((work.function.digest, work.device), None)  # it is not what it was
        if len(calls[0].work) > 1:
            self._alone |= {work.number for work in calls[0].work}  # one of these: each by itself, it will show
        elif not slot.killed:
            since = calls[0].since
            slot.suspect = back.pop(0), since, time.monotonic() - since
        slot.waiting.extendleft(reversed(back))
        for number, why in slot.stopping.items():
            if number in self._where and any(work.number == number for work in slot.waiting):
                self._drop(slot, number, why, calls[0].since)
        slot.stopping.clear()
        if isinstance(error, OutOfMemoryError):
            self._tell_of_death(slot, "", _first_line(error))
        self._start(slot)

    def _tell_of_death(self, slot: _Slot, word: str, text: str = "") -> None:
        """Say what became of the work with which an actor died."""
        if slot.suspect is None:
            return
        (work, since, seconds), slot.suspect = slot.suspect, None
        self._forget(work.number)
        # What leaves no word was killed from outside, as by a system that is short of memory, or has exited.
        number = int(getattr(signal, word, signal.SIGKILL))
        said = f"its process was ended by {word}" if word else text or "its process ended without a word"
        self._events.append(Failed(work.number, DIED, said, since, seconds, signal=number))

    # --- machines

    def _watch(self) -> None:
        """In a thread of its own: say when nodes come and go."""
        before = {name: machine.node for name, machine in self._machines.items()}
        while not self._ended.wait(WATCH_S):
            try:
                found = nodes.machines()
            except (SymphonyError, RayError, OSError, RuntimeError):  # Ray does not answer, or names are unclear
                continue
            now = {name: machine.node for name, machine in found.items()}
            if now != before:
                before = now
                self._news.put(partial(self._machines_are, found))

    def _machine_is_gone(self, slot: _Slot) -> bool:
        """Whether the node of a slot is dead, as far as Ray knows; then all has been told, and it may be back."""
        generation = slot.generation
        try:
            self._machines_are(nodes.machines())
        except (SymphonyError, RayError, OSError, RuntimeError):
            return False
        return slot.generation != generation

    def _machines_are(self, found: Mapping[str, nodes.Machine]) -> None:
        for name in self._topology.machines:
            mine, now = self._machines.get(name), found.get(name)
            if mine is not None and (now is None or now.node != mine.node):
                self._lose(name)
            if now is not None and name not in self._machines:
                self._welcome(now)

    def _lose(self, name: str) -> None:
        """A machine is gone, with all that was on it."""
        del self._machines[name]
        for device in self._devices:
            if self._topology.devices[device].machine == name:
                self._give_up(device, f"machine {name} is gone")

    def _welcome(self, machine: nodes.Machine) -> None:
        """A machine is back. Its devices are up when their actors are."""
        try:
            nodes.check_room(self._topology, machine)
        except InfeasibleError:
            return  # less of it came back than there was
        self._machines[machine.name] = machine
        for slot in self._slots:
            if slot.machine == machine.name:
                slot.failures = slot.process = 0
                self._start(slot)

    def _give_up(self, device: int, why: str) -> None:
        """A device is down: all that was on it is stopped."""
        for slot in self._by_device[device]:
            self._end(slot)
            slot.asked_s = math.inf
            self._tell_stopped(slot)
        if device not in self._down:
            self._down.add(device)
            self._events.append(DeviceDown(device, why))

    def _tell_stopped(self, slot: _Slot) -> None:
        under_way = [work for call in slot.calls for work in call.work]
        suspect = [slot.suspect[0]] if slot.suspect else []
        for work in (*suspect, *under_way, *slot.waiting):
            self._forget(work.number)
            self._events.append(Stopped(work.number))
        slot.suspect = None
        slot.calls.clear()
        slot.waiting.clear()
        slot.stopping.clear()

    # --- work

    def _send(self, slot: _Slot) -> None:
        """Send what an actor may have now."""
        while slot.ready and not slot.killed and slot.waiting and len(slot.calls) < CALLS:
            first = slot.waiting[0]
            if first.number in self._gangs:
                self._start_gang(self._gangs[first.number])
                return
            quick = self._seconds_of(first) < QUICK_S
            if slot.calls and not (quick and slot.calls[-1].quick):
                return
            work = [slot.waiting.popleft()]
            if quick:
                work += self._company(slot, self._seconds_of(first))
            self._call(slot, work, quick)

    def _company(self, slot: _Slot, seconds: float) -> Iterator[Work]:
        """What goes in the same call: further quick kernels, as long as they are quick together."""
        for _ in range(self._together - 1):
            if not slot.waiting or slot.waiting[0].number in self._gangs:
                return
            seconds += self._seconds_of(slot.waiting[0])
            if seconds > CALL_S:
                return
            yield slot.waiting.popleft()

    def _seconds_of(self, work: Work) -> float:
        """That it will take, if it is quick; for ever, if nobody knows."""
        known = self._seconds.get((work.function.digest, work.device), math.inf)
        return math.inf if work.number in self._alone else known

    def _start_gang(self, numbers: set[int]) -> None:
        """Start the workers of a gang together, when all of them could start."""
        slots = {number: self._where[number] for number in numbers}
        if all(s.ready and not s.killed and not s.calls and s.waiting[0].number == n for n, s in slots.items()):
            for number, slot in slots.items():
                del self._gangs[number]
                self._call(slot, [slot.waiting.popleft()], quick=False)

    def _call(self, slot: _Slot, work: list[Work], quick: bool) -> None:
        objects: dict[Any, int] = {}

        def named(value: Stored) -> actors.Named:
            kept: _Kept = value.at
            return kept.head if kept.head is not None else (objects.setdefault(kept.ref, len(objects)), kept.part)

        message = []
        for one in work:
            digest = one.function.digest
            code = None if digest in slot.knows else named(one.function.code)
            slot.knows.add(digest)
            message.append((one.number, digest, code, named(one.arguments), tuple(map(named, one.inputs))))
        now = time.monotonic()
        call = _Call(work, quick, now, math.inf if slot.calls else now)
        data = marshal.dumps(message)
        if quick:
            call.refs = answer = slot.actor.run.remote(data, *objects)
        else:
            call.refs = slot.actor.run_apart.remote(data, *objects)
            answer = call.refs[0]
        slot.calls.append(call)
        self._when_answered(answer, partial(self._answered, slot, slot.generation, call))

    def _answered(self, slot: _Slot, generation: int, call: _Call, answer: Any) -> None:
        if generation != slot.generation:
            return
        if isinstance(answer, RayActorError | OutOfMemoryError):
            self._died(slot, answer)
            return
        slot.calls.remove(call)
        now = time.monotonic()
        if slot.calls:
            slot.calls[0].since = min(slot.calls[0].since, now)
        if isinstance(answer, BaseException):
            self._broke(slot, call, answer)
        else:
            told, made = answer if isinstance(answer, tuple) else (answer, [])
            for work, outcome in zip(call.work, marshal.loads(told), strict=True):
                self._ended_in(slot, call, work, outcome, made, now)
        if not slot.stopping:
            slot.kill_s = math.inf
        self._send(slot)

    def _ended_in(self, slot: _Slot, call: _Call, work: Work, outcome: tuple, made: actors.Parts, now: float) -> None:
        number, kind, began, seconds, *rest = outcome
        self._forget(number)
        slot.stopping.pop(number, None)
        began = min(max(began + slot.clock, call.sent_s), now - seconds)  # on our clock, and between what we know
        if kind == "failed":
            step, name, message, text, exception = rest
            self._events.append(Failed(number, STEPS[step], message, began, seconds, name, text, exception))
            return
        cold, (head, part, size) = rest
        self._seconds[work.function.digest, work.device] = seconds if head is not None else math.inf
        if head is not None:
            value = Stored(_Kept(head), size)
        elif call.quick:  # it used to be small: it came with the answer
            value = self.put(Pickled(made[part][0], [memoryview(buffer) for buffer in made[part][1]]))
        else:
            value = Stored(_Kept(None, call.refs[1], part), size)
        self._events.append(Finished(number, value, began, seconds, cold))

    def _broke(self, slot: _Slot, call: _Call, error: BaseException) -> None:
        """A call came to nothing, though its actor lives: what it was to be given is gone, or its answer was too much."""
        slot.knows.clear()
        if len(call.work) > 1:
            self._alone |= {work.number for work in call.work}
            slot.waiting.extendleft(reversed(call.work))
            return
        [work] = call.work
        cause = error.cause if isinstance(error, RayTaskError) else error
        lost = isinstance(cause, ObjectLostError)
        text = "an input is gone, with the machine that kept it" if lost else _first_line(cause)
        self._forget(work.number)
        slot.stopping.pop(work.number, None)
        self._events.append(
            Failed(work.number, LOST if lost else UNSENDABLE, text, call.since, type=type(cause).__name__)
        )

    def _stop(self, number: int, why: str) -> None:
        slot = self._where.get(number)
        if slot is None or number in slot.stopping or (slot.suspect and slot.suspect[0].number == number):
            return
        if any(work.number == number for work in slot.waiting):
            self._drop(slot, number, why, math.nan)
            return
        slot.stopping[number] = why
        if slot.calls[0].quick:
            slot.kill_s = min(slot.kill_s, time.monotonic() + GRACE_S)
        else:
            self._kill(slot)

    def _drop(self, slot: _Slot, number: int, why: str, since: float) -> None:
        """End work that no actor has, or has any more."""
        [work] = [work for work in slot.waiting if work.number == number]
        slot.waiting.remove(work)
        self._forget(number)
        if why == TIMEOUT:
            text = f"it ran for more than {work.timeout_s:g} s"
            self._events.append(Failed(number, TIMEOUT, text, since, time.monotonic() - since))
        else:
            self._events.append(Stopped(number))

    def _forget(self, number: int) -> None:
        """Work has ended."""
        del self._where[number]
        self._alone.discard(number)
        others = self._gangs.pop(number, set())
        others.discard(number)
        for other in others:
            self._send(self._where[other])  # it need not wait for this one

    def _kill(self, slot: _Slot) -> None:
        if not slot.killed:
            slot.killed = True
            with suppress(RayError, ValueError):  # it has died just now
                ray.kill(slot.actor)

    # --- time

    def _deadline(self, slot: _Slot) -> float:
        """When something is to be done about a slot."""
        if slot.killed:
            return math.inf
        if not slot.ready:
            return slot.asked_s + START_S if slot.device not in self._down else math.inf
        call = slot.calls[0].since + min(work.timeout_s for work in slot.calls[0].work) if slot.calls else math.inf
        return min(slot.kill_s, call)

    def _next_deadline(self) -> float:
        return min(map(self._deadline, self._slots))

    def _look_at_deadlines(self, now: float) -> None:
        for slot in self._slots:
            if now < self._deadline(slot):
                continue
            if not slot.ready:
                why = f"its actor has not come up within {START_S:.0f} s: does other work hold what it needs?"
                self._give_up(slot.device, why)
                for other in self._by_device[slot.device]:
                    self._start(other)  # they stay asked for, and may yet come
                continue
            if len(slot.calls[0].work) == 1 and now < slot.kill_s:
                slot.stopping[slot.calls[0].work[0].number] = TIMEOUT
            self._kill(slot)


def _nothing() -> None:
    """Nothing."""


def _slots(topology: Topology) -> Iterator[_Slot]:
    """A slot for each worker that a device runs at once."""
    for number, device in enumerate(topology.devices):
        for slot in range(topology.kind_of[device.kind].slots):
            yield _Slot(number, f"{device.name}/{slot}", device.machine)


def _environment(topology: Topology, device: int) -> dict[str, str]:
    if topology.kind_of[topology.devices[device].kind].type == CPU:
        return {"JAX_PLATFORMS": "cpu", **worker.ONE_THREAD}
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def _first_line(error: BaseException) -> str:
    """Ray's messages are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
