"""A slot of a device: its actor, the calls sent to it, and the work queued for it."""

from __future__ import annotations

import marshal
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
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

ACTOR_START_TIMEOUT_S = 60.0  # until the device of an actor that does not start goes down
QUICK_POLL_S = 0.01  # quick calls are polled for so long; then Ray is asked for a callback

# The class of the actors is sent by value, with the modules that it uses.
for _module in (worker, messages, training_run, output, actors):
    ray.cloudpickle.register_pickle_by_value(_module)
ACTOR = ray.remote(actors.SlotActor)


@dataclass(eq=False)
class ActorCall:
    """A call that an actor has not answered yet."""

    work: list[Work]
    seconds: float  # expected; inf = unknown, or its value is large
    sent_s: float
    since: float  # the earliest time at which it may have started
    answer: Any = None  # reference of its answer, which keeps it alive …
    made: Any = None  # … and of its large values, unless it is quick

    @property
    def quick(self) -> bool:
        """Whether it is expected to finish at once, with its values in its answer."""
        return self.seconds < math.inf

    @property
    def late_s(self) -> float:
        """When the first of its kernels exceeds its timeout."""
        return self.since + min([work.timeout_s for work in self.work])


@dataclass(eq=False)
class DeviceSlot:
    device: int
    name: str
    machine: str
    resources: dict[str, float]  # that its actor requests from Ray
    environment: dict[str, str]
    actor: Any = None
    generation: int = 0  # of its actor; answers of earlier generations are ignored
    ready: bool = False
    asked_s: float = math.inf  # when its actor was requested
    process: int = 0  # pid of its actor
    clock: float = 0.0  # offset of our clock to the actor's, seconds
    failures: int = 0  # consecutive failed starts
    knows: set[str] = field(default_factory=set)  # digests of the functions sent to it
    user: str | None = None  # owner of the work that its actor has run; None = it has run none
    load: int = 0  # pieces of work that have not ended
    waiting: deque[Work] = field(default_factory=deque)
    calls: deque[ActorCall] = field(default_factory=deque)  # the first one runs
    seconds: float = 0.0  # expected time of all calls
    awaited: ActorCall | None = None  # the call whose answer is awaited
    near: bool = False  # whether it is polled for, instead of a callback of Ray …
    look_s: float = math.inf  # … and when to fall back to the callback
    stopping: dict[int, str] = field(default_factory=dict)  # work that was sent and is to stop, and why
    kill_s: float = math.inf  # when the actor is killed to stop it
    killed: bool = False
    suspect: tuple[Work, float, float] | None = None  # ran alone when the actor died: work, start, seconds

    @property
    def open(self) -> bool:
        return self.ready and not self.killed

    @property
    def deadline_s(self) -> float:
        """When `RayEngine._on_deadline` has to act."""
        if self.killed:
            return math.inf
        if not self.ready:
            return self.asked_s + ACTOR_START_TIMEOUT_S
        return min(self.kill_s, self.look_s, self.calls[0].late_s if self.calls else math.inf)

    def start(self, node: str, namespace: str) -> Any:
        """Create an actor on a node of Ray; the reference of its first answer."""
        self.generation += 1
        self.ready, self.killed, self.kill_s, self.knows, self.user = False, False, math.inf, set(), None
        self.asked_s = time.monotonic()
        needs = dict(self.resources)
        options = ACTOR.options(
            name=self.name if self.generation == 1 else f"{self.name} ({self.generation})",
            namespace=namespace,
            num_cpus=needs.pop("CPU", 0.0),
            num_gpus=needs.pop("GPU", 0.0),
            resources=needs,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            max_restarts=0,
            enable_task_events=False,  # or Ray's head node would receive a record of every call
        )
        self.actor = options.remote(tuple(sys.path), os.getcwd(), self.environment)
        return self.actor.hello.remote(self.process)

    def send(self, work: list[Work], seconds: float) -> None:
        objects: dict[Any, int] = {}

        def reference(value: Stored) -> actors.ValueReference:
            kept: RayValue = value.at
            return kept.head if kept.head is not None else (objects.setdefault(kept.ref, len(objects)), kept.part)

        message = []
        for one in work:
            digest = one.function.digest
            code = None
            if digest not in self.knows:
                self.knows.add(digest)
                code = reference(one.function.code)
            inputs = tuple(map(reference, one.inputs)) if one.inputs else ()
            message.append((one.job, digest, code, reference(one.arguments), inputs, *one.plain_options()))
        now = time.monotonic()
        call = ActorCall(work, seconds, now, math.inf if self.calls else now)
        self.calls.append(call)
        self.seconds += seconds
        if call.quick:
            call.answer = self.actor.run.remote(marshal.dumps(message), *objects)
        else:
            call.answer, call.made = self.actor.run_apart.remote(marshal.dumps(message), *objects)

    def wait(self, do: Callable[..., None], careful: bool = False) -> None:
        """Choose the call whose answer is awaited: the first one; a thread of Ray calls `do` with its answer.

        Of quick calls, the middle one is polled for instead: a callback for each would cost as much as a no-op kernel.
        With `careful` (polling took too long), the callback is used all the same.
        """
        if self.awaited is None and self.calls:
            self.near = self.calls[0].quick and not careful
            self.awaited = self.calls[(len(self.calls) - 1) // 2 if self.near else 0]
            self.look_s = time.monotonic() + QUICK_POLL_S if self.near else math.inf
            if not self.near:
                when_answered(self.awaited.answer, partial(do, self, self.generation, self.awaited))

    def waited(self) -> ActorCall | None:
        """Stop awaiting an answer; the call that was awaited."""
        call, self.awaited, self.near, self.look_s = self.awaited, None, False, math.inf
        return call

    def answers(self, until: ActorCall | None = None) -> list[Any]:
        """The answers (or errors) that are there, in the order of the calls; with `until`, those up to this call."""
        refs = [call.answer for call in self.calls]
        if until is not None:
            with suppress(RayError):
                return ray.get(refs[: self.calls.index(until) + 1], timeout=QUICK_POLL_S)
        ready = set(ray.wait(refs, num_returns=len(refs), timeout=0)[0])
        return [_answer(ref) for ref in takewhile(ready.__contains__, refs)]

    def answered(self) -> ActorCall:
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
        if not self.killed:
            self.killed = True
            self._kill()

    def end(self) -> None:
        """Kill the actor, and ignore its answers."""
        if self.actor is not None:
            self._kill()
        self.actor, self.ready, self.asked_s = None, False, math.inf
        self.generation += 1

    def clear(self) -> list[Work]:
        suspect = [self.suspect[0]] if self.suspect else []
        work = [*suspect, *self.taken_back(), *self.waiting]
        self.suspect = None
        self.waiting.clear()
        self.stopping.clear()
        return work

    def taken_back(self) -> list[Work]:
        """Remove all calls, which will not be answered; their work."""
        work = [work for call in self.calls for work in call.work]
        self.calls.clear()
        self.seconds = 0.0
        self.waited()
        return work

    def remove(self, number: int) -> Work | None:
        """Remove work from the queue; None if it is not queued."""
        for work in self.waiting:
            if work.number == number:
                self.waiting.remove(work)
                return work
        return None

    def _kill(self) -> None:
        with suppress(RayError, ValueError):  # the actor, or Ray, has ended already
            ray.kill(self.actor)


def slots(topology: Topology, found: dict[str, machines.Machine]) -> Iterator[DeviceSlot]:
    for number, device in enumerate(topology.devices):
        kind = topology.kind_of[device.kind]
        own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        environment = {"JAX_PLATFORMS": "cpu", **worker.ONE_THREAD} if kind.type == CPU else own
        needs = machines.needs(topology, number, found[device.machine])
        for slot in range(kind.slots):
            yield DeviceSlot(number, f"{device.name}/{slot}", device.machine, needs, environment)


def when_answered(ref: Any, then: Callable[[Any], None]) -> None:
    """Have a thread of Ray call `then` with an answer, or with its error."""
    ref._on_completed(then)  # `future()` does the same, for a tenth more time


def _answer(ref: Any) -> Any:
    try:
        return ray.get(ref)
    except RayError as error:
        return error
