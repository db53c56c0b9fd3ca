"""The Ray engine: an actor for each slot of each device, pinned to its machine, and kept.

What it keeps from Ray: order, and the choice of places. Work waits here, in order; an actor gets a call of one kernel,
or of several quick ones, and further calls behind it only if all of them are quick. So hardly anything is ever with Ray
that would have to be taken back, which Ray cannot do: what runs is stopped by killing its actor.

    waiting ──► call ──► Finished, Failed          an actor died: another takes its place; what was behind goes to it
                  │                                its node is gone: Stopped, DeviceDown, and DeviceUp when it is back
                  └── cancel, preempt, too late: the actor is killed
"""

from __future__ import annotations

import math
import queue
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any

import ray
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayError, RayTaskError

from symphony.engines.engine import (
    DIED,
    FAILURE_BY_STAGE,
    LOST,
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
from symphony.engines.messages import Broke, Done, Malformed, read_answers
from symphony.engines.ray import machines as nodes
from symphony.engines.ray import values
from symphony.engines.ray.actor import ObjectParts
from symphony.engines.ray.slots import ACTOR_START_TIMEOUT_S, QUICK_POLL_S, ActorCall, DeviceSlot, slots, when_answered
from symphony.engines.ray.values import RayValue, first_line
from symphony.problem.errors import EngineError, InfeasibleError, SymphonyError
from symphony.problem.topology import Topology

MAX_ACTOR_STARTS = 3  # starts in a row that may fail before a device is down
NODE_POLL_S = 1.0  # between looks at which nodes are alive
MAX_QUICK_KERNEL_S, MAX_PENDING_CALLS = (
    5e-3,
    16,
)  # kernels that took less are quick; calls of quick ones go ahead, so long and so many in all
MAX_BATCHED_CALL_S, MAX_KERNELS_PER_CALL = 1e-3, 16  # of quick kernels, what takes so long, and so many, go in one call
MIN_ACTORS_TO_BATCH = 8  # actors with quick calls, from which on answers are taken of several at a time
QUICK_STOP_GRACE_S = 0.1  # for quick kernels to end by themselves, before their actor is killed
BY_LOAD = attrgetter("load")
RAY_ERRORS = (SymphonyError, RayError, OSError, RuntimeError)  # Ray does not answer, or names of nodes are unclear


class RayEngine:
    """Runs work on the devices of a topology, whose machines are Ray's nodes (by default: what Ray tells of them).

    `together` is how many quick kernels may go in one call.
    """

    def __init__(
        self, address: str | None = None, topology: Topology | None = None, *, together: int = MAX_KERNELS_PER_CALL
    ) -> None:
        self._owns, self.notes = nodes.connect(address)  # `notes`: what the user should know
        self._closed = False
        self._slots: list[DeviceSlot] = []
        self._ended = threading.Event()
        try:
            self._machines: dict[str, nodes.Machine] = nodes.machines()
            self._topology = nodes.discovered(self._machines) if topology is None else topology
            nodes.check(self._topology, self._machines)
            self._slots += slots(self._topology, self._machines)
            self._by_device = [[slot for slot in self._slots if slot.device == d] for d in self._devices]
            self.namespace = f"symphony-{uuid.uuid4().hex[:8]}"  # of the actors, which are called as their devices are
            self._together = together
            self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # from Ray's threads to ours
            self._events: list[EngineEvent] = []
            self._where: dict[int, DeviceSlot] = {}  # work that has not ended
            self._gangs: dict[int, set[int]] = {}  # workers that have not started, and who starts with them
            self._alone: set[int] = set()  # work that may have ended an actor, and goes in a call of its own
            self._seconds: dict[tuple[str, int], float] = {}  # of a function on a device, last time; inf = not quick
            self._down: set[int] = set()
            for slot in self._slots:
                self._start(slot)
            self._come_up()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, name="symphony-ray-nodes", daemon=True).start()

    # --- what there is

    def inventory(self) -> Topology:
        """The devices; those that did not come up are down."""
        return self._topology

    def put(self, value: Pickled) -> Stored:
        """Small values stay as they are; large ones go into Ray's store."""
        return values.put(value)

    def get(self, value: Stored) -> Pickled:
        """The value, copied: it outlives Ray."""
        return values.get(value)

    def free(self, value: Stored) -> None:
        """Let go of it; Ray forgets what nobody holds."""
        values.free(value)

    # --- what is done

    def dispatch(self, work: Sequence[Work]) -> None:
        """To the slot of its device with the least before it; workers of a gang to slots of their own."""
        self._check_gangs(work)
        gangs: dict[int, dict[int, DeviceSlot]] = {}
        touched: dict[DeviceSlot, None] = {}
        for one in work:
            if one.device in self._down:
                self._events.append(Stopped(one.number))
                continue
            free = self._by_device[one.device]
            taken = gangs.setdefault(one.gang, {}) if one.gang >= 0 else {}
            slot = min([slot for slot in free if slot not in taken.values()] if taken else free, key=BY_LOAD)
            taken[one.number] = slot
            slot.load += 1
            slot.waiting.append(one)
            self._where[one.number] = slot
            touched[slot] = None
        for members in gangs.values():
            numbers = set(members)
            self._gangs |= {number: numbers for number in members if len(members) > 1}
        for slot in touched:
            self._send(slot)

    def cancel(self, number: int) -> None:
        """Kill the actor that runs it; what only waits is dropped."""
        slot = self._where.get(number)
        if slot is None or number in slot.stopping or (slot.suspect and slot.suspect[0].number == number):
            return
        if slot.remove(number):
            self._forget(number)
            self._events.append(Stopped(number))
            return
        slot.stopping[number] = ""
        if slot.calls[0].quick:
            slot.kill_s = min(slot.kill_s, time.monotonic() + QUICK_STOP_GRACE_S)
        else:
            slot.kill()

    def preempt(self, number: int) -> None:
        """As `cancel`: whoever writes checkpoints has been asked for one."""
        self.cancel(number)

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """What Ray has answered, and who has run for too long."""
        if self._closed:
            raise EngineError("the Ray engine is closed", hint="make a new one: with sy.ray() as cluster: …")
        deadline = min(slot.deadline_s for slot in self._slots)
        wait = 0.0 if self._events else max(min(timeout_s, deadline - time.monotonic()), 0.0)
        near = {slot.awaited.answer: slot for slot in self._slots if slot.near and slot.awaited}
        if near:
            self._wait_for_answers(near, wait if self._news.empty() else 0.0)
            wait = 0.0
        with suppress(queue.Empty):
            self._news.get(timeout=None if wait == math.inf else wait)()
            while True:
                self._news.get_nowait()()
        now = time.monotonic()
        for slot in self._slots:
            if now >= slot.deadline_s:
                self._on_deadline(slot, now)
        events, self._events = self._events, []
        return events

    def under_way(self) -> Collection[int]:
        """What is in the line of some slot."""
        return self._where.keys()

    def wake(self) -> None:
        """By news of nothing."""
        self._news.put(_no_op)

    def close(self) -> None:
        """Kill every actor; leave Ray, if it was entered for this."""
        if self._closed:
            return
        self._closed = True
        self._ended.set()
        for slot in self._slots:
            slot.end()
        if self._owns:
            ray.shutdown()

    @property
    def _devices(self) -> range:
        return range(len(self._topology.devices))

    def _check_gangs(self, work: Sequence[Work]) -> None:
        """Refuse a gang that could never start."""
        wide = Counter((one.gang, one.device) for one in work if one.gang >= 0)
        for (_, device), workers in wide.items():
            if workers > len(self._by_device[device]):
                name, room = self._topology.devices[device].name, len(self._by_device[device])
                raise InfeasibleError(f"a gang has {workers} workers on {name}, which has {room} slots")

    # --- actors

    def _start(self, slot: DeviceSlot) -> None:
        """Ask for an actor, if its machine is there; if not, it is asked for when it is back."""
        machine = self._machines.get(slot.machine)
        if machine is not None:
            self._then(slot.start(machine.node, self.namespace), self._came, slot, slot.generation)

    def _then(self, ref: Any, do: Callable[..., None], *about: Any) -> None:
        """Have our thread do something with an answer of Ray's."""
        when_answered(ref, lambda answer: self._news.put(partial(do, *about, answer)))

    def _come_up(self) -> None:
        """Wait for all actors, or for their devices to be taken for down."""
        heard: list[EngineEvent] = []
        while any(not slot.ready and slot.device not in self._down for slot in self._slots):
            heard += self.poll(0.1)
        down = {event.device: event.why for event in heard if isinstance(event, DeviceDown)}
        if len(self._down) == len(self._topology.devices):
            raise EngineError(f"no device came up: {next(iter(down.values()))}", where=self._topology.name)
        self.notes += [f"{self._topology.devices[device].name} is down: {why}" for device, why in down.items()]
        self._events = heard

    def _came(self, slot: DeviceSlot, generation: int, answer: Any) -> None:
        """An actor is there, or will not be."""
        if generation != slot.generation:
            return
        if isinstance(answer, BaseException):
            if not self._machine_is_gone(slot):
                self._did_not_come(slot, answer)
            return
        slot.process, there_s, word = answer
        slot.clock = time.monotonic() - there_s
        slot.ready, slot.failures, slot.asked_s = True, 0, math.inf
        self._report_death(slot, word)
        if slot.device in self._down and all(other.ready for other in self._by_device[slot.device]):
            self._down.discard(slot.device)
            self._events.append(DeviceUp(slot.device))
        self._send(slot)

    def _did_not_come(self, slot: DeviceSlot, error: BaseException) -> None:
        slot.failures += 1
        if slot.failures < MAX_ACTOR_STARTS:
            self._start(slot)
        else:
            why = f"its actor did not start {slot.failures} times in a row; {first_line(error)}"
            self._give_up(slot.device, why)

    def _on_deadline(self, slot: DeviceSlot, now: float) -> None:
        """An actor has not come up, or a kernel takes longer than it used to, than it may, or though it should stop."""
        if not slot.ready:
            why = f"its actor has not come up within {ACTOR_START_TIMEOUT_S:.0f} s: does other work hold what it needs?"
            self._give_up(slot.device, why)
            for other in self._by_device[slot.device]:
                self._start(other)  # they stay asked for, and may yet come
                other.asked_s = math.inf
            return
        if now >= slot.look_s:
            slot.waited()
            self._take(slot, slot.answers(), careful=True)
            return
        first = slot.calls[0]
        if len(first.work) == 1 and now < slot.kill_s:
            slot.stopping[first.work[0].number] = TIMEOUT
        slot.kill()

    def _died(self, slot: DeviceSlot, error: BaseException) -> None:
        """An actor has died: what it ran has failed, unless that was meant; what waited goes to the next one."""
        if self._machine_is_gone(slot):
            return
        first, work = slot.calls[0], slot.taken_back()
        # Answers are lost with a process that dies by itself: it may have been at any of its calls.
        among = first.work if slot.killed else work
        for one in among:
            self._seconds.pop((one.function.digest, one.device), None)  # it is not as quick as it was
        if len(among) > 1:
            self._alone |= {one.number for one in among}  # one of these: each by itself, it will show
        elif not slot.killed:
            slot.suspect = work.pop(0), first.since, time.monotonic() - first.since
        slot.waiting.extendleft(reversed(work))
        self._end_stopping(slot, first.since)
        if isinstance(error, OutOfMemoryError):
            self._report_death(slot, "", first_line(error))
        slot.end()  # Ray may have lost sight of an actor that lives, and holds what the next one needs
        self._start(slot)

    def _end_stopping(self, slot: DeviceSlot, since: float) -> None:
        """What was to stop, and is back with us, stops here."""
        for number, why in list(slot.stopping.items()):
            work = slot.remove(number)
            if work is not None:
                del slot.stopping[number]
                self._forget(number)
                self._events.append(_too_long(work, since) if why == TIMEOUT else Stopped(number))

    def _report_death(self, slot: DeviceSlot, word: str, text: str = "") -> None:
        """Say what became of the work with which an actor died. `word` is a signal's name, if it left one."""
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
        while not self._ended.wait(NODE_POLL_S):
            with suppress(*RAY_ERRORS):
                found = nodes.machines()
                now = {name: machine.node for name, machine in found.items()}
                if now != before:
                    before = now
                    self._news.put(partial(self._machines_are, found))

    def _machine_is_gone(self, slot: DeviceSlot) -> bool:
        """Whether the node of a slot is dead, as far as Ray knows; then all has been told, and it may be back."""
        generation = slot.generation
        with suppress(*RAY_ERRORS):
            self._machines_are(nodes.machines())
        return slot.generation != generation

    def _machines_are(self, found: Mapping[str, nodes.Machine]) -> None:
        for name in self._topology.machines:
            mine, now = self._machines.get(name), found.get(name)
            if mine is not None and (now is None or now.node != mine.node):
                del self._machines[name]
                for device in self._devices:
                    if self._topology.devices[device].machine == name:
                        self._give_up(device, f"machine {name} is gone")
            if now is not None and name not in self._machines:
                self._machine_returned(now)

    def _machine_returned(self, machine: nodes.Machine) -> None:
        """A machine is back. Its devices are up when their actors are."""
        with suppress(InfeasibleError):  # less of it came back than there was
            nodes.check_room(self._topology, machine)
            self._machines[machine.name] = machine
            for slot in self._slots:
                if slot.machine == machine.name:
                    slot.failures = slot.process = 0
                    self._start(slot)

    def _give_up(self, device: int, why: str) -> None:
        """A device is down: all that was on it is stopped."""
        for slot in self._by_device[device]:
            slot.end()
        for work in [work for slot in self._by_device[device] for work in slot.clear()]:
            self._forget(work.number)
            self._events.append(Stopped(work.number))
        if device not in self._down:
            self._down.add(device)
            self._events.append(DeviceDown(device, why))

    # --- work

    def _send(self, slot: DeviceSlot) -> None:
        """Send what an actor may have now."""
        while slot.open and slot.waiting and len(slot.calls) < MAX_PENDING_CALLS:
            first = slot.waiting[0]
            if first.number in self._gangs:
                self._start_gang(self._gangs[first.number])
                break
            if not self._is_clean(slot, first.user):
                break
            seconds = self._seconds_of(first)
            if slot.calls and seconds + slot.seconds >= MAX_QUICK_KERNEL_S:
                break
            work = [slot.waiting.popleft()]
            while slot.waiting and len(work) < self._together and slot.waiting[0].number not in self._gangs:
                if slot.waiting[0].user != first.user:
                    break
                more = self._seconds_of(slot.waiting[0])
                if seconds + more > MAX_BATCHED_CALL_S:
                    break
                seconds += more
                work.append(slot.waiting.popleft())
            slot.send(work, seconds)
        slot.wait(self._on_answer_in_ray_thread)

    def _is_clean(self, slot: DeviceSlot, user: str) -> bool:
        """Whether an actor has run no other user's work. If it has, another takes its place once nothing runs there."""
        if slot.user in (None, user):
            slot.user = user
            return True
        if not slot.calls:
            slot.end()
            self._start(slot)
        return False

    def _seconds_of(self, work: Work) -> float:
        """That it took last time, if it may have company; else for ever."""
        known = self._seconds.get((work.function.digest, work.device), math.inf)
        return math.inf if work.number in self._alone else known

    def _start_gang(self, numbers: set[int]) -> None:
        """Start the workers of a gang together, when all of them could start."""
        members = {number: self._where[number] for number in numbers}
        if not all(slot.open and not slot.calls and slot.waiting[0].number == n for n, slot in members.items()):
            return
        if all([self._is_clean(slot, slot.waiting[0].user) for slot in members.values()]):  # each is looked at
            for number, slot in members.items():
                del self._gangs[number]
                slot.send([slot.waiting.popleft()], math.inf)
                slot.wait(self._on_answer_in_ray_thread)

    def _wait_for_answers(self, near: Mapping[Any, DeviceSlot], timeout_s: float) -> None:
        """Wait for the first of the answers that will be there in a moment; of many, take all that are there then."""
        there, others = ray.wait([*near], num_returns=1, timeout=min(timeout_s, QUICK_POLL_S))
        if there and len(others) >= MIN_ACTORS_TO_BATCH:
            there += ray.wait(others, num_returns=len(others), timeout=0)[0]
        for answer in there:
            slot = near[answer]
            awaited = slot.waited()
            self._take(slot, slot.answers(awaited))

    def _on_answer_in_ray_thread(self, slot: DeviceSlot, generation: int, call: ActorCall, answer: Any) -> None:
        """In one of Ray's threads: a call was answered."""
        self._news.put(partial(self._on_answer, slot, generation, call, answer))

    def _on_answer(self, slot: DeviceSlot, generation: int, call: ActorCall, answer: Any) -> None:
        """In ours: it was the first one."""
        if generation == slot.generation and call is slot.awaited:
            slot.waited()
            self._take(slot, [answer])

    def _take(self, slot: DeviceSlot, answers: Sequence[Any], careful: bool = False) -> None:
        """Take in the answers of the first calls, and send what may be sent now."""
        for answer in answers:
            if isinstance(answer, RayActorError | OutOfMemoryError):
                self._died(slot, answer)
                return
            call = slot.answered()
            if isinstance(answer, BaseException):
                self._call_failed(slot, call, answer)
                continue
            now = time.monotonic()
            try:
                events = self._events_of(slot, call, answer, now)
            except Malformed as error:
                self._distrust(slot, call, str(error))
                return
            for event in events:
                self._forget(event.number)
                slot.stopping.pop(event.number, None)
            self._events += events
        if not slot.stopping:
            slot.kill_s = math.inf
        if careful:
            slot.wait(self._on_answer_in_ray_thread, careful)
        self._send(slot)

    def _events_of(self, slot: DeviceSlot, call: ActorCall, answer: Any, now: float) -> list[Finished | Failed]:
        """What came of the kernels of a call. Raises `Malformed`: kernels may change what answers for them."""
        told, made = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, [])
        if not isinstance(told, bytes) or not isinstance(made, list):
            raise Malformed(f"it answers with a {type(told).__name__}")
        outcomes = read_answers(told, len(call.work))
        return [self._event(slot, call, *one, made, now) for one in zip(call.work, outcomes, strict=True)]

    def _event(
        self, slot: DeviceSlot, call: ActorCall, work: Work, outcome: Done | Broke, made: ObjectParts, now: float
    ) -> Finished | Failed:
        """What came of a kernel, on our clock, and not outside of what we know."""
        seconds = min(max(outcome.seconds, 0.0), now - call.sent_s)
        began = min(max(outcome.began_s + slot.clock, call.sent_s), now - seconds)
        if isinstance(outcome, Broke):
            why, rest = FAILURE_BY_STAGE[outcome.step], (outcome.type, outcome.traceback, outcome.exception)
            return Failed(work.number, why, outcome.message, began, seconds, *rest)
        head, name, _, size = outcome.value
        quick = head is not None and seconds < MAX_QUICK_KERNEL_S
        if head is not None:
            value = Stored(RayValue(head), size)
        elif not (name or "").isdecimal() or len(name or "") > 4:
            raise Malformed(f"its value is at {name!r}")
        elif call.quick:  # it used to be small, and came with the answer
            value = values.put_part(made, int(name or ""))
        else:
            value = Stored(RayValue(None, call.made, int(name or "")), size)
        self._seconds[work.function.digest, work.device] = seconds if quick else math.inf
        busy = outcome.busy_s if 0.0 <= outcome.busy_s < math.inf else math.nan
        return Finished(work.number, value, began, seconds, outcome.cold, busy)

    def _distrust(self, slot: DeviceSlot, call: ActorCall, wrong: str) -> None:
        """An actor has answered what it never would by itself: it is killed, and what it ran has failed."""
        waiting = slot.taken_back()
        slot.end()
        if len(call.work) > 1:
            self._alone |= {work.number for work in call.work}  # one of these: each by itself, it will show
            waiting = [*call.work, *waiting]
        else:
            number = call.work[0].number
            self._forget(number)
            slot.stopping.pop(number, None)
            seconds = time.monotonic() - call.since
            text = f"its process sent a malformed message: {wrong}"
            self._events.append(Failed(number, DIED, text, call.since, seconds))
        slot.waiting.extendleft(reversed(waiting))
        self._end_stopping(slot, call.since)
        self._start(slot)

    def _call_failed(self, slot: DeviceSlot, call: ActorCall, error: BaseException) -> None:
        """A call came to nothing, though its actor lives: what it was to be given is gone, or its answer too large."""
        slot.knows.clear()
        if len(call.work) > 1:
            self._alone |= {work.number for work in call.work}
            slot.waiting.extendleft(reversed(call.work))
            self._end_stopping(slot, call.since)
            return
        number = call.work[0].number
        cause = error.cause if isinstance(error, RayTaskError) else error
        lost = isinstance(cause, ObjectLostError)
        text = "an input is gone, with the machine that kept it" if lost else first_line(cause)
        self._forget(number)
        slot.stopping.pop(number, None)
        why = LOST if lost else UNSENDABLE
        self._events.append(Failed(number, why, text, call.since, type=type(cause).__name__))

    def _forget(self, number: int) -> None:
        """Work has ended."""
        self._where.pop(number).load -= 1
        self._alone.discard(number)
        if number in self._gangs:
            others = self._gangs.pop(number)
            others.discard(number)
            for other in list(others):
                self._send(self._where[other])  # it need not wait for this one


def _no_op() -> None:
    """News of nothing."""


def _too_long(work: Work, since: float) -> Failed:
    text = f"it ran for more than {work.timeout_s:g} s"
    return Failed(work.number, TIMEOUT, text, since, time.monotonic() - since)
