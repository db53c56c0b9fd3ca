"""The Ray engine: one long-lived actor for each slot of each device, pinned to its machine.

Order and placement are not left to Ray. Work queues here, first in, first out. An actor receives a call of one kernel,
or of several quick ones; further calls are pipelined only if all of them are quick. So Ray rarely holds work that may
have to be revoked, which Ray does not support: running work is stopped by killing its actor.

    waiting ──► call ──► Finished, Failed          actor died: it is replaced; the new one gets the queued work
                  │                                node lost: Stopped, DeviceDown; DeviceUp when it returns
                  └── cancel, preempt, timeout: the actor is killed
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
    Engine,
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

MAX_ACTOR_STARTS = 3  # consecutive failed starts until a device goes down
NODE_POLL_S = 1.0  # between polls of the nodes that are alive
# A kernel whose last run took less is quick. Calls of quick kernels are pipelined, up to this time and number in all.
MAX_QUICK_KERNEL_S, MAX_PENDING_CALLS = 5e-3, 16
MAX_BATCHED_CALL_S, MAX_KERNELS_PER_CALL = 1e-3, 16  # quick kernels batched in one call: expected time and number
MIN_ACTORS_TO_BATCH = 8  # with so many other actors awaited, answers of several are read at a time
QUICK_STOP_GRACE_S = 0.1  # for quick kernels to finish before their actor is killed
BY_LOAD = attrgetter("load")
RAY_ERRORS = (SymphonyError, RayError, OSError, RuntimeError)  # Ray is unreachable, or two nodes have one name


class RayEngine(Engine):
    """Runs work on the nodes of a Ray cluster, the machines of `topology` (by default, as Ray reports them).

    `together`: how many quick kernels may be batched in one call.
    """

    def __init__(
        self, address: str | None = None, topology: Topology | None = None, *, together: int = MAX_KERNELS_PER_CALL
    ) -> None:
        self.notes: list[str]
        self._owns, self.notes = nodes.connect(address)
        self._closed = False
        self._slots: list[DeviceSlot] = []
        self._ended = threading.Event()
        try:
            self._machines: dict[str, nodes.Machine] = nodes.machines()
            self._topology = nodes.discovered(self._machines) if topology is None else topology
            nodes.check(self._topology, self._machines)
            self._slots += slots(self._topology, self._machines)
            self._by_device = [[slot for slot in self._slots if slot.device == d] for d in self._devices]
            self.namespace = f"symphony-{uuid.uuid4().hex[:8]}"  # of the actors, which are named after their devices
            self._together = together
            self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # from Ray's threads to `poll`
            self._events: list[EngineEvent] = []
            self._where: dict[int, DeviceSlot] = {}  # slots of the work that has not ended
            self._gangs: dict[int, set[int]] = {}  # by worker that has not started: all numbers of its gang
            self._alone: set[int] = set()  # work that may have killed an actor: it runs in a call of its own
            self._seconds: dict[tuple[str, int], float] = {}  # last time of a function on a device; inf = not quick
            self._down: set[int] = set()
            for slot in self._slots:
                self._start(slot)
            self._wait_for_actors()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, name="symphony-ray-nodes", daemon=True).start()

    def inventory(self) -> Topology:
        return self._topology

    def put(self, value: Pickled) -> Stored:
        return values.put(value)

    def get(self, value: Stored) -> Pickled:
        return values.get(value)

    def free(self, value: Stored) -> None:
        values.free(value)

    def dispatch(self, work: Sequence[Work]) -> None:
        """Queue work on the least loaded slot of its device; workers of a gang get different slots."""
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
        self.cancel(number)  # the scheduler has asked for a checkpoint before

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        if self._closed:
            raise EngineError("the Ray engine is closed", hint="make a new one: with sy.ray() as cluster: …")
        deadline = min(slot.deadline_s for slot in self._slots)
        wait = 0.0 if self._events else max(min(timeout_s, deadline - time.monotonic()), 0.0)
        near = {slot.awaited.answer: slot for slot in self._slots if slot.near and slot.awaited}
        if near:
            self._wait_for_answers(near, wait if self._inbox.empty() else 0.0)
            wait = 0.0
        with suppress(queue.Empty):
            self._inbox.get(timeout=None if wait == math.inf else wait)()
            while True:
                self._inbox.get_nowait()()
        now = time.monotonic()
        for slot in self._slots:
            if now >= slot.deadline_s:
                self._on_deadline(slot, now)
        events, self._events = self._events, []
        return events

    def under_way(self) -> Collection[int]:
        return self._where.keys()

    def wake(self) -> None:
        self._inbox.put(_no_op)

    def close(self) -> None:
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
        wide = Counter((one.gang, one.device) for one in work if one.gang >= 0)
        for (_, device), workers in wide.items():
            if workers > len(self._by_device[device]):
                name, room = self._topology.devices[device].name, len(self._by_device[device])
                raise InfeasibleError(f"a gang has {workers} workers on {name}, which has {room} slots")

    # --- actors

    def _start(self, slot: DeviceSlot) -> None:
        """Create the actor of a slot, if its machine is there; else `_machine_returned` does."""
        machine = self._machines.get(slot.machine)
        if machine is not None:
            self._then(slot.start(machine.node, self.namespace), self._on_actor_started, slot, slot.generation)

    def _then(self, ref: Any, do: Callable[..., None], *about: Any) -> None:
        """Have the polling thread call `do` with an answer of Ray."""
        when_answered(ref, lambda answer: self._inbox.put(partial(do, *about, answer)))

    def _wait_for_actors(self) -> None:
        events: list[EngineEvent] = []
        while any(not slot.ready and slot.device not in self._down for slot in self._slots):
            events += self.poll(0.1)
        down = {event.device: event.why for event in events if isinstance(event, DeviceDown)}
        if len(self._down) == len(self._topology.devices):
            raise EngineError(f"no device could be started:  {next(iter(down.values()))}", where=self._topology.name)
        self.notes += [f"{self._topology.devices[device].name} is down: {why}" for device, why in down.items()]
        self._events = events

    def _on_actor_started(self, slot: DeviceSlot, generation: int, answer: Any) -> None:
        if generation != slot.generation:
            return
        if isinstance(answer, BaseException):
            if not self._machine_is_gone(slot):
                self._on_actor_failed(slot, answer)
            return
        slot.process, actor_clock_s, signal_name = answer
        slot.clock = time.monotonic() - actor_clock_s
        slot.ready, slot.failures, slot.asked_s = True, 0, math.inf
        self._report_death(slot, signal_name)
        if slot.device in self._down and all(other.ready for other in self._by_device[slot.device]):
            self._down.discard(slot.device)
            self._events.append(DeviceUp(slot.device))
        self._send(slot)

    def _on_actor_failed(self, slot: DeviceSlot, error: BaseException) -> None:
        slot.failures += 1
        if slot.failures < MAX_ACTOR_STARTS:
            self._start(slot)
        else:
            why = f"its actor failed to start {slot.failures} times in a row; {first_line(error)}"
            self._give_up(slot.device, why)

    def _on_deadline(self, slot: DeviceSlot, now: float) -> None:
        """An actor did not start in time, or a kernel exceeds its expected time, its timeout or the grace of a stop."""
        if not slot.ready:
            why = f"its actor did not start within {ACTOR_START_TIMEOUT_S:.0f} s; other work may hold its resources"
            self._give_up(slot.device, why)
            for other in self._by_device[slot.device]:
                self._start(other)  # they may still start later
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
        """An actor died: the work that it ran has failed, unless we killed it; the rest goes to the next actor."""
        if self._machine_is_gone(slot):
            return
        first, work = slot.calls[0], slot.taken_back()
        # If the process died by itself, answers are lost: it may have died in any of its calls.
        among = first.work if slot.killed else work
        for one in among:
            self._seconds.pop((one.function.digest, one.device), None)  # no longer taken to be quick
        if len(among) > 1:
            self._alone |= {one.number for one in among}  # one of these: run each in its own call to find out which
        elif not slot.killed:
            slot.suspect = work.pop(0), first.since, time.monotonic() - first.since
        slot.waiting.extendleft(reversed(work))
        self._end_stopping(slot, first.since)
        if isinstance(error, OutOfMemoryError):
            self._report_death(slot, "", first_line(error))
        slot.end()  # Ray may have lost contact to an actor that still holds resources
        self._start(slot)

    def _end_stopping(self, slot: DeviceSlot, since: float) -> None:
        """Report work that was to stop and is back in our queue."""
        for number, why in list(slot.stopping.items()):
            work = slot.remove(number)
            if work is not None:
                del slot.stopping[number]
                self._forget(number)
                self._events.append(_too_long(work, since) if why == TIMEOUT else Stopped(number))

    def _report_death(self, slot: DeviceSlot, signal_name: str, text: str = "") -> None:
        """Report the work with which an actor died. `signal_name` is "" if the actor's log has none."""
        if slot.suspect is None:
            return
        (work, since, seconds), slot.suspect = slot.suspect, None
        self._forget(work.number)
        # Without a signal in its log, the process was killed from outside (out of memory, say), or has exited.
        number = int(getattr(signal, signal_name, signal.SIGKILL))
        said = f"its process was ended by {signal_name}" if signal_name else text or "its process ended unexpectedly"
        self._events.append(Failed(work.number, DIED, said, since, seconds, signal=number))

    # --- machines

    def _watch(self) -> None:
        """In a thread of its own: detect nodes that leave and join."""
        before = {name: machine.node for name, machine in self._machines.items()}
        while not self._ended.wait(NODE_POLL_S):
            with suppress(*RAY_ERRORS):
                found = nodes.machines()
                now = {name: machine.node for name, machine in found.items()}
                if now != before:
                    before = now
                    self._inbox.put(partial(self._machines_are, found))

    def _machine_is_gone(self, slot: DeviceSlot) -> bool:
        """Whether the node of a slot is dead, according to Ray. If so, its work was reported, and it may be back
        already.
        """
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
        """Restart the actors of a machine that is back. Its devices are up when their actors are."""
        with suppress(InfeasibleError):  # it came back with fewer resources
            nodes.check_room(self._topology, machine)
            self._machines[machine.name] = machine
            for slot in self._slots:
                if slot.machine == machine.name:
                    slot.failures = slot.process = 0
                    self._start(slot)

    def _give_up(self, device: int, why: str) -> None:
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
        """Send queued work to an actor, as far as it may have it now."""
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
        """Whether an actor has run no other user's work. If it has, it is replaced once it is idle."""
        if slot.user in (None, user):
            slot.user = user
            return True
        if not slot.calls:
            slot.end()
            self._start(slot)
        return False

    def _seconds_of(self, work: Work) -> float:
        """The time of the last run, if the work may be batched; else inf."""
        known = self._seconds.get((work.function.digest, work.device), math.inf)
        return math.inf if work.number in self._alone else known

    def _start_gang(self, numbers: set[int]) -> None:
        members = {number: self._where[number] for number in numbers}
        if not all(slot.open and not slot.calls and slot.waiting[0].number == n for n, slot in members.items()):
            return
        if all(
            [self._is_clean(slot, slot.waiting[0].user) for slot in members.values()]
        ):  # a list: every slot must be checked
            for number, slot in members.items():
                del self._gangs[number]
                slot.send([slot.waiting.popleft()], math.inf)
                slot.wait(self._on_answer_in_ray_thread)

    def _wait_for_answers(self, near: Mapping[Any, DeviceSlot], timeout_s: float) -> None:
        """Wait for the first answer of the `near` slots; with many slots, read all answers that are there then."""
        ready, others = ray.wait([*near], num_returns=1, timeout=min(timeout_s, QUICK_POLL_S))
        if ready and len(others) >= MIN_ACTORS_TO_BATCH:
            ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
        for answer in ready:
            slot = near[answer]
            awaited = slot.waited()
            self._take(slot, slot.answers(awaited))

    def _on_answer_in_ray_thread(self, slot: DeviceSlot, generation: int, call: ActorCall, answer: Any) -> None:
        """Called by a thread of Ray: a call was answered."""
        self._inbox.put(partial(self._on_answer, slot, generation, call, answer))

    def _on_answer(self, slot: DeviceSlot, generation: int, call: ActorCall, answer: Any) -> None:
        if generation == slot.generation and call is slot.awaited:
            slot.waited()
            self._take(slot, [answer])

    def _take(self, slot: DeviceSlot, answers: Sequence[Any], careful: bool = False) -> None:
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
        """The events of the kernels of a call. Raises `Malformed`: kernels can change what their actor answers."""
        frames, made = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, [])
        if not isinstance(frames, bytes) or not isinstance(made, list):
            raise Malformed(f"it answers with a {type(frames).__name__}")
        outcomes = read_answers(frames, len(call.work))
        return [self._event(slot, call, *one, made, now) for one in zip(call.work, outcomes, strict=True)]

    def _event(
        self, slot: DeviceSlot, call: ActorCall, work: Work, outcome: Done | Broke, made: ObjectParts, now: float
    ) -> Finished | Failed:
        """The outcome of a kernel as an event, its times on our clock and clamped to what is possible."""
        seconds = min(max(outcome.seconds, 0.0), now - call.sent_s)
        began = min(max(outcome.began_s + slot.clock, call.sent_s), now - seconds)
        if isinstance(outcome, Broke):
            why, rest = FAILURE_BY_STAGE[outcome.step], (outcome.type, outcome.traceback, outcome.exception)
            classes = frozenset(outcome.classes.split())
            return Failed(work.number, why, outcome.message, began, seconds, *rest, classes=classes)
        head, name, _, size = outcome.value
        quick = head is not None and seconds < MAX_QUICK_KERNEL_S
        if head is not None:
            value = Stored(RayValue(head), size)
        elif not (name or "").isdecimal() or len(name or "") > 4:
            raise Malformed(f"its value has an invalid index {name!r}")
        elif call.quick:  # its values used to be small, so that this one came with the answer
            value = values.put_part(made, int(name or ""))
        else:
            value = Stored(RayValue(None, call.made, int(name or "")), size)
        self._seconds[work.function.digest, work.device] = seconds if quick else math.inf
        busy = outcome.busy_s if 0.0 <= outcome.busy_s < math.inf else math.nan
        return Finished(work.number, value, began, seconds, outcome.cold, busy)

    def _distrust(self, slot: DeviceSlot, call: ActorCall, wrong: str) -> None:
        """Kill an actor that sent a malformed answer; its call has failed."""
        waiting = slot.taken_back()
        slot.end()
        if len(call.work) > 1:
            self._alone |= {
                work.number for work in call.work
            }  # one of these: run each in its own call to find out which
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
        """A call failed although its actor lives: an input is lost, or the answer cannot be sent."""
        slot.knows.clear()
        if len(call.work) > 1:
            self._alone |= {work.number for work in call.work}
            slot.waiting.extendleft(reversed(call.work))
            self._end_stopping(slot, call.since)
            return
        number = call.work[0].number
        cause = error.cause if isinstance(error, RayTaskError) else error
        lost = isinstance(cause, ObjectLostError)
        text = "an input was lost with the machine that stored it" if lost else first_line(cause)
        self._forget(number)
        slot.stopping.pop(number, None)
        why = LOST if lost else UNSENDABLE
        self._events.append(Failed(number, why, text, call.since, type=type(cause).__name__))

    def _forget(self, number: int) -> None:
        self._where.pop(number).load -= 1
        self._alone.discard(number)
        if number in self._gangs:
            others = self._gangs.pop(number)
            others.discard(number)
            for other in list(others):
                self._send(self._where[other])  # it no longer waits for this one


def _no_op() -> None:
    """Wakes `poll`."""


def _too_long(work: Work, since: float) -> Failed:
    text = f"it ran for more than {work.timeout_s:g} s"
    return Failed(work.number, TIMEOUT, text, since, time.monotonic() - since)
