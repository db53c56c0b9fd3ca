"""An engine in virtual time: it calls kernels when their time is over, and does to its news what networks do.

It is strict where a real one is lax: a value that was freed cannot be read, and a device is not flooded.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import signal
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from symphony.engines.engine import (
    DIED,
    LOST,
    RAISED,
    TIMEOUT,
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
from symphony.engines.worker import pickled, unpickled
from symphony.problem.errors import EngineError
from symphony.problem.topology import Topology
from symphony.runtime.sending_ahead import MAX_AHEAD_TASKS
from tests.whole_system.faults import Broken, Faults
from tests.whole_system.virtual_time import Clock

LATENCY_S = 1e-3  # of all news


@dataclass(eq=False)
class _Running:
    """Work that a device has."""

    work: Work
    began_s: float = math.nan  # NaN = it waits


class SimulatedEngine(Engine):
    """Runs work on the devices of a topology, or pretends to."""

    def __init__(
        self,
        topology: Topology,
        clock: Clock,
        rng: random.Random,
        faults: Faults,
        point: Callable[[str], None],
        dispatched: Callable[[str], None],
    ) -> None:
        self._topology, self._clock, self._rng, self._faults = topology, clock, rng, faults
        self._point, self._dispatched = point, dispatched
        self._slots = [topology.kind_of[device.kind].slots for device in topology.devices]
        self._lines: list[list[_Running]] = [[] for _ in topology.devices]  # in order; some of them run
        self._ends: list[tuple[float, int, _Running]] = []
        self._news: list[tuple[float, int, EngineEvent]] = []
        self._order = itertools.count()
        self._names = itertools.count()
        self._down: set[int] = set()
        self._device_news_s = 0.0  # when the last news of devices arrives: those keep their order
        self._polls = 1  # that follow at once: who was told something, or woken, looks again before it waits
        self._until_s = 0.0  # that who polls would wait
        self.values: dict[int, Pickled] = {}
        self.full = False  # there is no room for values
        self.dead = False

    # --- what the protocol asks for

    def inventory(self) -> Topology:
        """All devices."""
        return self._topology

    def put(self, value: Pickled) -> Stored:
        """In a dictionary."""
        self._point("put")
        if self.full:
            raise OSError(28, "No space left on device")
        return self._kept(value)

    def get(self, value: Stored) -> Pickled:
        """Some are gone with their machine."""
        self._point("get")
        if self._luck(self._faults.values_lost):
            raise EngineError("a value was lost with the machine that stored it")
        return self._value(value)

    def free(self, value: Stored) -> None:
        """May be called twice."""
        self.values.pop(value.at, None)

    def dispatch(self, work: Sequence[Work]) -> None:
        """Gangs start when all of their workers can."""
        self._point("dispatch")
        self._run_until_now()
        for one in work:
            for value in (one.function.code, one.arguments, *one.inputs):
                self._value(value)
            self._dispatched(self._label(one))
            if one.device in self._down:
                self._tell(Stopped(one.number))
                continue
            self._lines[one.device].append(_Running(one))
            if len(self._lines[one.device]) > self._slots[one.device] * (1 + MAX_AHEAD_TASKS):
                raise Broken("devices are not flooded", f"{len(self._lines[one.device])} on device {one.device}")
        self._begin()

    def cancel(self, number: int) -> None:
        """At once."""
        self._point("cancel")
        self._run_until_now()
        if self._removed(number):
            self._tell(Stopped(number))
            self._begin()

    preempt = cancel

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """Never waits: who drives the clock lets it be called when there is something to hear, or time is over."""
        self._point("poll")
        if self.dead:
            raise EngineError("the engine has died")
        self._run_until_now()
        heard = []
        while self._news and self._news[0][0] <= self._clock.now:
            heard.append(heapq.heappop(self._news)[2])
        over = self._clock.now >= self._until_s
        self._polls = 1 if heard or over else max(self._polls - 1, 0)
        self._until_s = self._clock.now + timeout_s
        return heard

    def under_way(self) -> Collection[int]:
        """What is on its way counts."""
        running = {one.work.number for line in self._lines for one in line}
        return running | {event.number for _, _, event in self._news if not isinstance(event, DeviceDown | DeviceUp)}

    def wake(self) -> None:
        """Who polls should do so again."""
        self._polls = 2

    def close(self) -> None:
        """Forgets everything."""
        self.values.clear()
        self._ends.clear()
        self._news.clear()
        self.dead = True

    # --- for who drives the clock

    @property
    def next_s(self) -> float:
        """When `poll` would return."""
        if self._polls or self.dead:
            return self._clock.now
        return min([self._until_s, *(line[0][0] for line in (self._ends, self._news) if line)])

    def change_device(self, device: int) -> None:
        """It goes down, or comes up again."""
        self._run_until_now()
        if device in self._down:
            self._down.discard(device)
            self._tell(DeviceUp(device))
            return
        self._down.add(device)
        for one in list(self._lines[device]):
            self._removed(one.work.number)
            self._tell(Stopped(one.work.number))
        self._tell(DeviceDown(device, "somebody pulled it out"))
        self._begin()

    @property
    def down(self) -> list[int]:
        """Devices."""
        return sorted(self._down)

    # --- what happens

    def _run_until_now(self) -> None:
        while self._ends and self._ends[0][0] <= self._clock.now:
            ended_s, _, one = heapq.heappop(self._ends)
            if one in self._lines[one.work.device]:
                self._lines[one.work.device].remove(one)
                self._tell(self._outcome(one, ended_s))
                self._begin()

    def _begin(self) -> None:
        """Start whatever can: the first in its line that waits, where there is a free slot; gangs whole."""
        while True:
            heads = {}
            for device, line in enumerate(self._lines):
                waiting = [one for one in line if math.isnan(one.began_s)]
                if waiting and len(line) - len(waiting) < self._slots[device]:
                    heads[waiting[0].work.number] = waiting[0]
            gangs: dict[int, list[_Running]] = {}
            for one in heads.values():
                gangs.setdefault(one.work.gang if one.work.gang >= 0 else -1 - one.work.number, []).append(one)
            ready = [gang for gang in gangs.values() if len(gang) == gang[0].work.size]
            if not ready:
                return
            for one in ready[0]:
                one.began_s = self._clock.now
                heapq.heappush(self._ends, (self._clock.now + self._seconds(one.work), next(self._order), one))

    def _seconds(self, work: Work) -> float:
        typical = {"short": 1e-3, "either": 0.3, "large": 2.0}.get(work.function.name, 0.8)
        if math.isfinite(work.timeout_s) and self._luck(self._faults.hang):
            return work.timeout_s * 1.1
        return min(typical * self._rng.lognormvariate(0.0, 0.5), 0.9 * work.timeout_s)

    def _outcome(self, one: _Running, ended_s: float) -> EngineEvent:
        work, seconds, faults = one.work, ended_s - one.began_s, self._faults
        when = (one.began_s, seconds)
        if seconds > work.timeout_s:
            return Failed(work.number, TIMEOUT, f"it ran for more than {work.timeout_s:g} s", *when)
        if self._luck(faults.killed):
            return Failed(work.number, DIED, "its process was ended by SIGKILL", *when, signal=signal.SIGKILL)
        if self._luck(faults.crash):
            return Failed(work.number, DIED, "its process was ended by SIGSEGV", *when, signal=signal.SIGSEGV)
        if self._luck(faults.garbage):
            self._tell(Stopped(self._rng.choice((-7, 10**12))))  # of an attempt that never was
            text = "its process sent nonsense: \udcff\x00\u2028" + "x" * self._rng.choice((0, 100_000))
            return Failed(work.number, DIED, text, *when, signal=signal.SIGKILL)
        if work.function.name == "flaky" and self._luck(faults.flaky):
            busy = {"type": "ConnectionError", "classes": frozenset({"ConnectionError"})}
            return Failed(work.number, RAISED, "busy", *when, **busy)
        if work.inputs and self._luck(faults.inputs_lost):
            return Failed(work.number, LOST, "an input was lost with the machine that stored it", *when)
        try:
            args, kwargs = self._arguments(work)
            place = {"rank": work.rank, "size": work.size} if work.size > 1 else {}
            value = unpickled(*self._parts(work.function.code))(*args, **kwargs, **place)
        except LookupError as error:
            text = traceback.format_exc()
            return Failed(work.number, RAISED, str(error), *when, type(error).__name__, text)
        return Finished(work.number, self._kept(Pickled(*pickled(value))), *when, cold=self._luck(0.1), busy_s=seconds)

    def _removed(self, number: int) -> bool:
        for line in self._lines:
            for one in line:
                if one.work.number == number:
                    line.remove(one)
                    return True
        return False

    def _tell(self, event: EngineEvent) -> None:
        """News travels; on the way, it may be lost, be delayed, be overtaken and be doubled."""
        faults, arrives_s = self._faults, self._clock.now + LATENCY_S
        if isinstance(event, DeviceDown | DeviceUp):
            delay = self._rng.uniform(0.0, 0.05) if self._luck(faults.delay) else 0.0
            arrives_s = self._device_news_s = max(self._device_news_s, arrives_s + delay)
        elif self._luck(faults.lose):
            if isinstance(event, Finished):
                self.free(event.value)
            return
        elif self._luck(faults.delay):
            arrives_s += self._rng.expovariate(1.0)
        heapq.heappush(self._news, (arrives_s, next(self._order), event))
        if self._luck(faults.double):
            again_s = arrives_s + (0.0 if self._luck(0.5) else self._rng.expovariate(1.0))
            if isinstance(event, DeviceDown | DeviceUp):
                again_s = arrives_s
            heapq.heappush(self._news, (again_s, next(self._order), event))

    def _luck(self, rate: float) -> bool:
        return self._rng.random() < rate and self._faults.go_on(self._clock.now)

    # --- values

    def _kept(self, value: Pickled) -> Stored:
        name = next(self._names)
        self.values[name] = Pickled(bytes(value.head), [memoryview(bytes(one)) for one in value.buffers])
        return Stored(name, value.size)

    def _value(self, value: Stored) -> Pickled:
        if value.at not in self.values:
            raise Broken("no value is read after it was forgotten", f"value {value.at}")
        return self.values[value.at]

    def _parts(self, value: Stored) -> tuple[bytes, Sequence[memoryview]]:
        found = self._value(value)
        return found.head, found.buffers

    def _arguments(self, work: Work) -> tuple[tuple, dict]:
        return unpickled(*self._parts(work.arguments), [unpickled(*self._parts(value)) for value in work.inputs])

    def _label(self, work: Work) -> str:
        """Kernels of these tests are called with the name of their task, first of all."""
        return unpickled(*self._parts(work.arguments), [None] * len(work.inputs))[0][0]
