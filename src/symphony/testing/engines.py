"""The public conformance check of engines."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from symphony.engines.engine import (
    DIED,
    RAISED,
    TIMEOUT,
    UNSENDABLE,
    Engine,
    EngineEvent,
    Failed,
    Finished,
    Function,
    Pickled,
    Resumable,
    Stopped,
    Work,
)
from symphony.engines.worker import pickled, unpickled
from symphony.problem.errors import InputError
from symphony.problem.topology import Topology

ENGINE_TIMEOUT_S = 60.0  # for any single check
BURST_SIZE = 200  # pieces of work dispatched at once


def check_engine(engine: Engine, device: int = 0) -> None:
    """Raise `InputError`, saying what to change, unless an engine keeps its contract. Runs small work on a device.

    Every piece of work ends in exactly one event. Values are returned as they were put, also large ones. A kernel that
    raises, returns what cannot be pickled, dies or exceeds its timeout fails alone, with the reason; the device
    continues. Cancelled and preempted work stops, whether it runs or queues. The workers of a gang run at the same
    time, if the device has slots for them, and receive rank and size. Training work receives its `TrainingRun`.
    `under_way` is the work that has not ended. `wake` ends a `poll`. The engine is left open and idle.
    """
    where = f"engine {type(engine).__name__}"
    with _as_input_error(where):
        # Not isinstance: from Python 3.12 on, that ignores what a wrapper delegates by `__getattr__`.
        members = [name for name, member in vars(Engine).items() if callable(member) and not name.startswith("_")]
        missing = [name for name in (*members, "notes", "whole_gangs") if not hasattr(engine, name)]
        if missing:
            hint = "subclass sy.Engine, which has defaults for optional members: see docs/guides/engines.md"
            raise _Wrong(f"it lacks {', '.join(missing)} of sy.Engine", hint)
        check = _Check(engine, device)
        for one in (
            check.inventory,
            check.values,
            check.order,
            check.failures,
            check.stops,
            check.gangs,
            check.training,
            check.wakes,
        ):
            one()


class _Wrong(Exception):
    """A violation of the contract, and what to change."""


@contextmanager
def _as_input_error(where: str) -> Iterator[None]:
    try:
        yield
    except _Wrong as wrong:
        what, hint = wrong.args
        raise InputError(what, where=where, hint=hint) from None


def _expect(holds: object, what: str, hint: str) -> None:
    if not holds:
        raise _Wrong(what, hint)


# The kernels import what they use: an engine may run them anywhere.


def _same(value: Any) -> Any:
    return value


def _sum(*values: Any) -> Any:
    return sum(values[1:], values[0])


def _raise(text: str) -> None:
    raise ValueError(text)


def _unsendable() -> Any:
    return (number for number in range(3))


def _die() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def _sleep(path: str = "", seconds: float = 3600.0) -> None:
    import pathlib
    import time

    if path:
        pathlib.Path(path).touch()
    time.sleep(seconds)


def _whole_gang_met(folder: str, rank: int, size: int) -> bool:
    """Whether all workers of a gang ran at the same time."""
    import pathlib
    import time

    (pathlib.Path(folder) / str(rank)).touch()
    for _ in range(3000):
        if len(list(pathlib.Path(folder).iterdir())) == size:
            return True
        time.sleep(0.01)
    return False


def _train(job: Any) -> tuple[int, Any]:
    """Saves after three steps and returns after a fourth: the step that it resumed from, and the checkpoint."""
    found = job.restore()
    job.reached(job.began + 3)
    job.save("saved")
    job.reached(job.began + 4)
    return job.began, found


class _Check:
    """An engine under test, and the events that it has reported."""

    def __init__(self, engine: Engine, device: int) -> None:
        self.engine, self.device = engine, device
        self.numbers = itertools.count(1)
        self.under_way: set[int] = set()
        self.ended: dict[int, EngineEvent] = {}

    def work(self, function: Callable[..., Any], *args: Any, inputs: tuple = (), **options: Any) -> Work:
        import cloudpickle

        # By value: this module need not be installed where the kernel runs.
        code = cloudpickle.dumps(_by_value(function))
        sent = Function(function.__name__, hashlib.sha256(code).hexdigest(), self.engine.put(Pickled(code)))
        arguments = self.engine.put(Pickled(*pickled((args, {}), _reference)))
        return Work(next(self.numbers), self.device, sent, arguments, inputs, **options)

    def send(self, *work: Work) -> None:
        self.engine.dispatch(work)
        self.under_way |= {one.number for one in work}

    def wait(self, *work: Work) -> list[Any]:
        deadline = time.monotonic() + ENGINE_TIMEOUT_S
        while not all(one.number in self.ended for one in work):
            names = sorted({one.function.name for one in work if one.number not in self.ended})
            _expect(
                time.monotonic() < deadline,
                f"no event arrived for {', '.join(names)} within {ENGINE_TIMEOUT_S:.0f} s",
                "end every piece of work in one of Finished, Failed, Stopped",
            )
            self.poll(0.1)
        return [self.ended[one.number] for one in work]

    def poll(self, timeout_s: float) -> None:
        for event in self.engine.poll(timeout_s):
            if not isinstance(event, Finished | Failed | Stopped):
                continue
            _expect(
                event.number in self.under_way,
                f"work {event.number} ended twice, or was never dispatched",
                "end every piece of work in exactly one event",
            )
            self.under_way.discard(event.number)
            self.ended[event.number] = event

    def value(self, event: Any) -> Any:
        _expect(isinstance(event, Finished), f"work ended in {event}, not in Finished", "run it")
        found = self.engine.get(event.value)
        return unpickled(found.head, list(found.buffers))

    def inventory(self) -> None:
        found = self.engine.inventory()
        _expect(isinstance(found, Topology), f"inventory() returns {type(found).__name__}", "return a sy.Topology")
        _expect(
            0 <= self.device < len(found.devices), f"there is no device {self.device}", "choose one of the inventory"
        )
        _expect(
            self.engine.inventory() == found, "inventory() changes", "report devices that go down or come up as events"
        )

    def values(self) -> None:
        import numpy as np

        large = np.arange(300_000, dtype=np.int64).reshape(300, 1000)
        values: tuple[Any, ...] = ([1, 2.5, -3], large)
        for given in values:
            stored = self.engine.put(Pickled(*pickled(given)))
            back = self.engine.get(stored)
            _expect(
                np.array_equal(unpickled(back.head, list(back.buffers)), given),
                "get returns another value than was put",
                "store the pickle and its buffers byte by byte",
            )
            _expect(stored.size >= len(back.head), "the size of a stored value is too small", "count all its bytes")
        first = self.work(_same, large)
        self.send(first)
        [event] = self.wait(first)
        _expect(np.array_equal(self.value(event), large), "a large argument came back changed", "send every buffer")
        sane = event.seconds >= 0 and event.began_s <= time.monotonic() + 1
        _expect(sane, f"it began at {event.began_s:.6g} and took {event.seconds:.6g} s", "use time.monotonic()")
        reader = self.work(_sum, _Reference(0), _Reference(1), inputs=(event.value, event.value))
        self.send(reader)
        [after] = self.wait(reader)
        _expect(
            np.array_equal(self.value(after), large * 2),
            "work received another input than the value that it reads",
            "pass inputs in the order of their persistent ids",
        )
        again = self.value(event)
        _expect(
            np.array_equal(again, large),
            "a value has changed since it was returned",
            "map it copy-on-write, or copy it",
        )
        for value in (event.value, after.value):
            self.engine.free(value)

    def order(self) -> None:
        work = [self.work(_same, number) for number in range(BURST_SIZE)]
        self.send(*work)
        known = {one.number for one in work} <= set(self.engine.under_way())
        _expect(
            known, "work that was just dispatched is not under way", "keep it in under_way until poll returns its event"
        )
        found = [self.value(event) for event in self.wait(*work)]
        _expect(found == list(range(BURST_SIZE)), "values were mixed up", "keep each value with its number")

    def failures(self) -> None:
        raises, sends, dies = self.work(_raise, "of course"), self.work(_unsendable), self.work(_die)
        late, well = self.work(_sleep, timeout_s=0.2), self.work(_same, 7)
        self.send(raises, sends, dies, late, well)
        events = self.wait(raises, sends, dies, late, well)
        for event, why in zip(events, (RAISED, UNSENDABLE, DIED, TIMEOUT), strict=False):
            _expect(
                isinstance(event, Failed) and event.why == why,
                f"work that should have failed as {why!r} ended in {event}",
                "report the reason in a Failed event",
            )
        raised = events[0]
        _expect(
            raised.type == "ValueError" and "of course" in raised.message and "_raise" in raised.traceback,
            "the exception of a kernel is not reported",
            "report its type, message and traceback",
        )
        _expect(
            self.value(events[4]) == 7,
            "work after a failure did not finish",
            "replace the process that a kernel has ended",
        )

    def stops(self) -> None:
        slots = self._slots()
        with tempfile.TemporaryDirectory() as folder:
            running = [self.work(_sleep, os.path.join(folder, str(number))) for number in range(slots)]
            waiting = self.work(_same, 1)
            self.send(*running, waiting)
            deadline = time.monotonic() + ENGINE_TIMEOUT_S
            while len(os.listdir(folder)) < slots and time.monotonic() < deadline:
                self.poll(0.01)
            _expect(
                len(os.listdir(folder)) == slots,
                f"{slots} slots do not run {slots} pieces of work at once",
                "start them all",
            )
            _expect(waiting.number in self.under_way, "more work ran than there are slots", "queue the rest")
            self.engine.cancel(waiting.number)
            self.engine.preempt(running[0].number)
            for one in running[1:]:
                self.engine.cancel(one.number)
            for event in self.wait(waiting, *running):
                _expect(isinstance(event, Stopped), f"cancelled work ended in {event}", "report Stopped")
        self.engine.cancel(running[0].number)  # it has ended: this does nothing
        again = self.work(_same, 2)
        self.send(again)
        _expect(
            self.value(self.wait(again)[0]) == 2, "nothing runs after a cancel", "replace the process that was stopped"
        )

    def gangs(self) -> None:
        slots = self._slots()
        if slots < 2:
            return
        with tempfile.TemporaryDirectory() as folder:
            gang = [self.work(_whole_gang_met, folder, gang=1, rank=rank, size=2) for rank in range(2)]
            self.send(*gang)
            events = self.wait(*gang)
        untold = [event for event in events if isinstance(event, Failed) and event.type == "TypeError"]
        _expect(not untold, "workers of a gang do not receive rank and size", "pass both as keyword arguments")
        met = [self.value(event) for event in events]
        _expect(all(met), "the workers of a gang did not run at the same time", "start each in its own slot")

    def training(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for attempt, began in (("first", 0), ("second", 3)):
                work = self.work(_train, resumes=Resumable(folder, attempt, 5))
                self.send(work)
                [event] = self.wait(work)
                _expect(
                    isinstance(event, Finished) and self.value(event) == (began, "saved" if began else None),
                    f"training work did not resume from step {began}",
                    "pass TrainingRun(*astuple(work.resumes), work.rank, work.size) as its first argument",
                )
                step = json.loads((Path(folder) / "progress").read_text())["step"]
                _expect(
                    step >= 4,
                    f"of four steps, {step} were reported",
                    "call returned() of its TrainingRun when it has returned",
                )

    def wakes(self) -> None:
        self.engine.wake()
        began = time.monotonic()
        _expect(
            self.engine.poll(ENGINE_TIMEOUT_S) == [],
            "poll returned an event although the engine is idle",
            "report each event once",
        )
        _expect(time.monotonic() - began < ENGINE_TIMEOUT_S / 2, "poll did not return after wake", "let wake end it")
        _expect(
            not self.engine.under_way(),
            "work that has ended is still under way",
            "remove it from under_way when it ends",
        )

    def _slots(self) -> int:
        found = self.engine.inventory()
        return found.kind_of[found.devices[self.device].kind].slots


class _Reference:
    """Placeholder for an input, by its index."""

    def __init__(self, number: int) -> None:
        self.number = number


def _reference(value: Any) -> int | None:
    return value.number if isinstance(value, _Reference) else None


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function that belongs to no module, so that it is pickled by value."""
    import types

    copy = types.FunctionType(
        function.__code__, {"__builtins__": __builtins__}, function.__name__, function.__defaults__
    )
    copy.__module__ = "__main__"
    return copy
