"""Gangs as single pieces of work: a layer between the scheduler and an engine.

The scheduler dispatches one piece of work for several devices, and receives one event for it. The engine receives a
piece for each worker; these start together. If one does not finish, the others are cancelled: a gang ends as a whole.

    Work(number, device, others) ──► a Work for each rank ──► all have finished: Finished, with the value of rank 0
                                                          └─► one has not: the rest is cancelled; Failed or Stopped

A worker may raise because another worker died. So when one raises, the others have `PEER_EXIT_GRACE_S` before they are
cancelled: if one of them loses its process or device meanwhile, that is reported as the cause, not the exception.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from symphony.engines.engine import RAISED, DeviceDown, DeviceUp, Engine, EngineEvent, Failed, Finished, Stopped, Work
from symphony.engines.exactly_once import ExactlyOnceEngine
from symphony.engines.wrapper import EngineWrapper

PEER_EXIT_GRACE_S = 2.0  # from the exception of a worker until the others are cancelled
FIRST_MEMBER_NUMBER = 1 << 40  # numbers of workers other than rank 0; schedulers never count this far


@dataclass(eq=False)
class _Gang:
    number: int
    devices: tuple[int, ...]
    members: dict[int, int]  # ranks of the workers that have not ended, by their numbers
    finished: dict[int, Finished] = field(default_factory=dict)  # by rank
    wrong: Failed | Stopped | None = None  # of the worker that made the gang end
    stop_s: float = math.inf  # when the other workers are cancelled


class GangEngine(EngineWrapper):
    whole_gangs = True

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._numbers = itertools.count(FIRST_MEMBER_NUMBER)
        self._gangs: dict[int, _Gang] = {}
        self._of: dict[int, _Gang] = {}  # by the numbers of workers
        self._held: deque[DeviceDown | DeviceUp] = deque()  # events of devices that gangs have yet to leave

    def dispatch(self, work: Sequence[Work]) -> None:
        self._engine.dispatch([member for one in work for member in (self._workers(one) if one.others else (one,))])

    def cancel(self, number: int) -> None:
        self._stop(number, self._engine.cancel)

    def preempt(self, number: int) -> None:
        self._stop(number, self._engine.preempt)

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """As `Engine.poll`, with one event for each gang. `DeviceDown` follows once all gangs have left the device."""
        passed: list[EngineEvent] = []
        deadline = min((gang.stop_s for gang in self._gangs.values()), default=math.inf)
        for event in self._engine.poll(max(min(timeout_s, deadline - time.monotonic()), 0.0)):
            if isinstance(event, DeviceDown | DeviceUp):
                self._held.append(event)
            elif event.number in self._of:
                passed += self._ended(self._of.pop(event.number), event)
            else:
                passed.append(event)
        for gang in self._gangs.values():
            if time.monotonic() >= gang.stop_s:
                gang.stop_s = math.inf
                for member in tuple(gang.members):
                    self._engine.cancel(member)
        while self._held and not self._device_leaving(self._held[0].device):
            passed.append(self._held.popleft())
        return passed

    def _workers(self, work: Work) -> list[Work]:
        devices = (work.device, *work.others)
        numbers = [work.number, *itertools.islice(self._numbers, len(work.others))]
        gang = _Gang(work.number, devices, {number: rank for rank, number in enumerate(numbers)})
        self._gangs[work.number] = gang
        self._of |= dict.fromkeys(numbers, gang)
        member = replace(work, others=(), gang=work.number, size=len(devices))
        return [replace(member, number=numbers[rank], device=devices[rank], rank=rank) for rank in range(len(devices))]

    def _stop(self, number: int, stop: Callable[[int], None]) -> None:
        gang = self._gangs.get(number)
        for member in (number,) if gang is None else tuple(gang.members):
            stop(member)

    def _ended(self, gang: _Gang, event: Finished | Failed | Stopped) -> list[EngineEvent]:
        rank = gang.members.pop(event.number)
        if isinstance(event, Finished):
            gang.finished[rank] = event
        elif gang.wrong is None or (gang.stop_s < math.inf and not _raised(event)):
            gang.wrong = event
            gang.stop_s = time.monotonic() + (PEER_EXIT_GRACE_S if _raised(event) else 0.0)
        if gang.members:
            return []
        del self._gangs[gang.number]
        for other, made in gang.finished.items():
            if other or gang.wrong is not None:
                self._engine.free(made.value)
        if gang.wrong is not None:
            return [replace(gang.wrong, number=gang.number)]
        return [_finished_gang(gang)]

    def _device_leaving(self, device: int) -> bool:
        return any(gang.wrong is not None and device in gang.devices for gang in self._gangs.values())


def gang_engine(engine: Engine) -> Engine:
    """An engine that takes whole gangs and reports every end exactly once."""
    return engine if engine.whole_gangs else GangEngine(ExactlyOnceEngine(engine))


def _raised(event: EngineEvent) -> bool:
    return isinstance(event, Failed) and event.why == RAISED


def _finished_gang(gang: _Gang) -> Finished:
    """One event for all workers: from the first start to the last end, with the value of rank 0."""
    events = gang.finished.values()
    began_s = min(event.began_s for event in events)
    seconds = max(event.began_s + event.seconds for event in events) - began_s
    return Finished(gang.number, gang.finished[0].value, began_s, seconds, any(event.cold for event in events))
