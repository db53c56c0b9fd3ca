"""A slot of a device: the actor that is it at present, what that was sent, and what waits for it."""

from __future__ import annotations

import marshal
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from symphony.engines import messages, output, worker
from symphony.engines.engine import Stored, Work
from symphony.engines.ray import actor as actors
from symphony.engines.ray import machines
from symphony.engines.ray.values import RayValue
from symphony.problem.build import CPU
from symphony.problem.topology import Topology
from symphony.training_jobs import training_run

ACTOR_START_TIMEOUT_S = 60.0  # for an actor to come up, before its device is taken to be down
QUICK_POLL_S = 0.01  # quick kernels take less; if they do not, Ray is asked to say when they are done

# An actor's class goes to other machines whole, with what it uses.
for _module in (worker, messages, training_run, output, actors):
    ray.cloudpickle.register_pickle_by_value(_module)
ACTOR = ray.remote(actors.SlotActor)


@dataclass(eq=False)
class ActorCall:
    """What was sent to an actor, and not answered yet."""

    work: list[Work]
    seconds: float  # that it is expected to take; inf = nobody knows, or it makes something large
    sent_s: float
    since: float  # when it can have begun: the one before it was answered
    answer: Any = None  # the references of its answer: if they were forgotten, so would be the answer …
    made: Any = None  # … and of the large values that it makes, if it may make any

    @property
    def quick(self) -> bool:
        """Whether it will be over in a moment, and its values are in its answer."""
        return self.seconds < math.inf

    @property
    def late_s(self) -> float:
        """When one of its kernels has run for too long."""
        return self.since + min([work.timeout_s for work in self.work])


@dataclass(eq=False)
class DeviceSlot:
    """One of the workers that a device runs at once."""

    device: int
    name: str
    machine: str
    resources: dict[str, float]  # that its actor takes
    environment: dict[str, str]
    actor: Any = None
    generation: int = 0  # of its actor; what is heard of earlier ones means nothing
    ready: bool = False
    asked_s: float = math.inf  # when its actor was asked for
    process: int = 0
    clock: float = 0.0  # seconds from the actor's clock to ours
    failures: int = 0  # starts in a row that came to nothing
    knows: set[str] = field(default_factory=set)  # functions that were sent to it
    user: str | None = None  # whose work its actor has run; None = nobody's
    load: int = 0  # pieces of work that have not ended
    waiting: deque[Work] = field(default_factory=deque)
    calls: deque[ActorCall] = field(default_factory=deque)  # the first one runs
    seconds: float = 0.0  # that they are expected to take
    awaited: ActorCall | None = None  # the one whose answer is waited for
    near: bool = False  # it will be there in a moment, and no thread of Ray's says so …
    look_s: float = math.inf  # … and if it is not there by then, one shall
    stopping: dict[int, str] = field(default_factory=dict)  # work that was sent and shall stop, and why
    kill_s: float = math.inf  # when the actor is killed for it
    killed: bool = False
    suspect: tuple[Work, float, float] | None = None  # ran alone when the actor died: work, since when, seconds

    @property
    def open(self) -> bool:
        """Whether its actor takes work."""
        return self.ready and not self.killed

    @property
    def deadline_s(self) -> float:
        """When its actor is given up: it did not come up, or what it runs takes too long, or shall stop."""
        if self.killed:
            return math.inf
        if not self.ready:
            return self.asked_s + ACTOR_START_TIMEOUT_S
        return min(self.kill_s, self.look_s, self.calls[0].late_s if self.calls else math.inf)

    def start(self, node: str, namespace: str) -> Any:
        """Ask for an actor on a node of Ray; the reference of its first word."""
        self.generation += 1
        self.ready, self.killed, self.kill_s, self.knows, self.user = False, False, math.inf, set(), None
        self.asked_s = time.monotonic()
        needs = dict(self.resources)
        asked = ACTOR.options(
            name=self.name if self.generation == 1 else f"{self.name} ({self.generation})",
            namespace=namespace,
            num_cpus=needs.pop("CPU", 0.0),
            num_gpus=needs.pop("GPU", 0.0),
            resources=needs,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            max_restarts=0,
            enable_task_events=False,  # a record of every call would be sent to Ray's head
        )
        self.actor = asked.remote(tuple(sys.path), os.getcwd(), self.environment)
        return self.actor.hello.remote(self.process)

    def send(self, work: list[Work], seconds: float) -> None:
        """Send work."""
        objects: dict[Any, int] = {}

        def named(value: Stored) -> actors.ValueReference:
            kept: RayValue = value.at
            return kept.head if kept.head is not None else (objects.setdefault(kept.ref, len(objects)), kept.part)

        message = []
        for one in work:
            digest = one.function.digest
            code = None
            if digest not in self.knows:
                self.knows.add(digest)
                code = named(one.function.code)
            inputs = tuple(map(named, one.inputs)) if one.inputs else ()
            resumes = None if one.resumes is None else astuple(one.resumes)
            kept = None if one.output is None else (one.output.folder, one.output.run)
            message.append((one.job, digest, code, named(one.arguments), inputs, (one.rank, one.size), resumes, kept))
        now = time.monotonic()
        call = ActorCall(work, seconds, now, math.inf if self.calls else now)
        self.calls.append(call)
        self.seconds += seconds
        if call.quick:
            call.answer = self.actor.run.remote(marshal.dumps(message), *objects)
        else:
            call.answer, call.made = self.actor.run_apart.remote(marshal.dumps(message), *objects)

    def wait(self, do: Callable[..., None], careful: bool = False) -> None:
        """Choose the call whose answer is waited for: the first one, and a thread of Ray's calls `do` with its answer.

        Of quick ones, the one after half of them, without a word of Ray's: whoever polls looks for it. A word for each
        would cost as much as a no-op does. If it is not there in time, one is `careful`.
        """
        if self.awaited is None and self.calls:
            self.near = self.calls[0].quick and not careful
            self.awaited = self.calls[(len(self.calls) - 1) // 2 if self.near else 0]
            self.look_s = time.monotonic() + QUICK_POLL_S if self.near else math.inf
            if not self.near:
                when_answered(self.awaited.answer, partial(do, self, self.generation, self.awaited))

    def waited(self) -> ActorCall | None:
        """Nothing is waited for any more; what was."""
        call, self.awaited, self.near, self.look_s = self.awaited, None, False, math.inf
        return call

    def answers(self, until: ActorCall | None = None) -> list[Any]:
        """Those that are there, in the order of the calls; errors among them. Those until one of them are, or nearly:
        an actor answers in order."""
        refs = [call.answer for call in self.calls]
        if until is not None:
            with suppress(RayError):
                return ray.get(refs[: self.calls.index(until) + 1], timeout=QUICK_POLL_S)
        there = set(ray.wait(refs, num_returns=len(refs), timeout=0)[0])
        return [_answer(ref) for ref in takewhile(there.__contains__, refs)]

    def answered(self) -> ActorCall:
        """The first call is over."""
        call = self.calls.popleft()
        if call is self.awaited:
            self.waited()
        if self.calls:
            self.seconds -= call.seconds
            self.calls[0].since = min(self.calls[0].since, time.monotonic())
        else:
            self.seconds = 0.0
        return call

    def kill(self) -> None:
        """Kill the actor; its call will say so."""
        if not self.killed:
            self.killed = True
            self._kill()

    def end(self) -> None:
        """Kill the actor, and hear no more of it."""
        if self.actor is not None:
            self._kill()
        self.actor, self.ready, self.asked_s = None, False, math.inf
        self.generation += 1

    def clear(self) -> list[Work]:
        """Let go of everything; what it was."""
        suspect = [self.suspect[0]] if self.suspect else []
        work = [*suspect, *self.taken_back(), *self.waiting]
        self.suspect = None
        self.waiting.clear()
        self.stopping.clear()
        return work

    def taken_back(self) -> list[Work]:
        """The work of all calls, which will not be answered."""
        work = [work for call in self.calls for work in call.work]
        self.calls.clear()
        self.seconds = 0.0
        self.waited()
        return work

    def remove(self, number: int) -> Work | None:
        """Take out work that waits."""
        for work in self.waiting:
            if work.number == number:
                self.waiting.remove(work)
                return work
        return None

    def _kill(self) -> None:
        with suppress(RayError, ValueError):  # it is dead already, or Ray is
            ray.kill(self.actor)


def slots(topology: Topology, found: dict[str, machines.Machine]) -> Iterator[DeviceSlot]:
    """The slots of all devices."""
    for number, device in enumerate(topology.devices):
        kind = topology.kind_of[device.kind]
        own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        environment = {"JAX_PLATFORMS": "cpu", **worker.ONE_THREAD} if kind.type == CPU else own
        needs = machines.needs(topology, number, found[device.machine])
        for slot in range(kind.slots):
            yield DeviceSlot(number, f"{device.name}/{slot}", device.machine, needs, environment)


def when_answered(ref: Any, then: Callable[[Any], None]) -> None:
    """Have a thread of Ray's call something with an answer, or with the error that came instead."""
    ref._on_completed(then)  # `future()` does the same, for a tenth more time


def _answer(ref: Any) -> Any:
    try:
        return ray.get(ref)
    except RayError as error:
        return error
