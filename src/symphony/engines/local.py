"""The local engine: the devices of this machine, one process for each slot of each.

A process is started from scratch (never forked: JAX and others have threads that a fork would break), pinned to a CPU,
and kept. If it dies, what it was running has failed, what was waiting for it goes to the one that takes its place.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

from symphony.engines import worker as process
from symphony.engines.engine import (
    DIED,
    STEPS,
    TIMEOUT,
    DeviceDown,
    EngineEvent,
    Failed,
    Finished,
    Pickled,
    Stopped,
    Stored,
    Work,
)
from symphony.engines.scratch import scratch
from symphony.problem.discover import discover
from symphony.problem.errors import EngineError, TopologyError
from symphony.problem.topology import Topology

CPU, GPU = "cpu", "gpu"
START_S = 120.0  # for a process to come up: with a GPU, JAX has to load its driver
TRIES, KILLED = 3, 20  # starts in a row that may fail, or be killed from outside, before a device is down


@dataclass
class _Slot:
    """A slot of a device, and the process that is it at present."""

    device: int
    cpus: tuple[int, ...]
    accelerator: str
    environment: Mapping[str, str]
    child: subprocess.Popen | None = None
    read: int = -1
    write: int = -1
    watch: int = -1  # descriptor that tells when the process ends; -1 = its closed pipe has to
    ready: bool = False
    failures: int = 0  # starts in a row that came to nothing
    inbox: process.Inbox = field(default_factory=process.Inbox)
    outbox: bytearray = field(default_factory=bytearray)
    knows: set[str] = field(default_factory=set)  # functions that were sent to it
    work: deque[Work] = field(default_factory=deque)  # sent or to be sent; the first one runs
    sent: int = 0  # how many of those were
    since: float = math.inf  # when the first one can have begun
    dropped: set[int] = field(default_factory=set)  # work that the process was told not to begin
    stopped: tuple[int, str] | None = None  # work for which the process was killed, and why


class LocalEngine:
    """Runs work on the devices of a topology, which must be this machine's (by default: what is discovered)."""

    def __init__(self, topology: Topology | None = None) -> None:
        if not sys.platform.startswith("linux"):
            raise EngineError(f"the local engine needs Linux; this is {sys.platform}", hint="run it in a container")
        found = discover().topology if topology is None else topology
        _check(found)
        self._folder = _folder()
        self._files = itertools.count()  # of values that were put; any thread may take the next
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._where: dict[int, _Slot] = {}  # work that has not ended
        self._events: list[EngineEvent] = []
        self._down: set[int] = set()
        self._closed = False
        self.notes: list[str] = []  # devices that did not come up, and why
        atexit.register(self.close)
        self._slots = _slots(found)
        for slot in self._slots:
            self._start(slot)
        try:
            self._topology = self._come_up(found)
        except BaseException:
            self.close()
            raise

    # --- what there is

    def inventory(self) -> Topology:
        """The devices that came up."""
        return self._topology

    def processes(self) -> list[int]:
        """Those that run kernels at present: what this machine tells of itself is of them. Any thread may ask."""
        return [slot.child.pid for slot in self._slots if slot.child is not None]

    def put(self, value: Pickled) -> Stored:
        """Small values stay as they are; large ones go into a file in shared memory."""
        return _stored(process.store(value.head, list(value.buffers), self._folder, self._name()))

    def get(self, value: Stored) -> Pickled:
        """The value, its buffers mapped."""
        return Pickled(*process.fetch(value.at, self._folder))

    def free(self, value: Stored) -> None:
        """Remove its file, if it has one; who has mapped it keeps it."""
        if value.at[1] is not None:
            Path(self._folder, value.at[1]).unlink(missing_ok=True)

    # --- what is done

    def dispatch(self, work: Sequence[Work]) -> None:
        """To the slot of its device with the least before it; a gang of several therefore goes to several."""
        touched = []
        for one in work:
            mine = [slot for slot in self._slots if slot.device == one.device]
            if one.device in self._down or not mine:
                self._events.append(Stopped(one.number))
                continue
            slot = min(mine, key=lambda slot: len(slot.work))
            slot.work.append(one)
            self._where[one.number] = slot
            touched.append(slot)
        for slot in touched:
            self._send(slot)

    def cancel(self, number: int) -> None:
        """Kill the process that runs it; what only waits is dropped."""
        self._stop(number, "")

    def preempt(self, number: int) -> None:
        """As `cancel`: whoever writes checkpoints has been asked for one."""
        self._stop(number, "")

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """What has come through the pipes, and who has died or run for too long."""
        if self._closed:
            raise EngineError("the local engine is closed", hint="make a new one: with sy.local() as cluster: …")
        wait = 0.0 if self._events else max(min(timeout_s, self._next_deadline() - time.monotonic()), 0.0)
        for key, _ in self._selector.select(None if wait == math.inf else wait):
            slot = key.data
            if self._selector.get_map().get(key.fd) is not key:
                continue  # closed meanwhile, with a device that was given up
            if slot is None:
                self._drain_wakes()
            elif key.fd == slot.watch:
                self._ended(slot)
            elif key.fd == slot.write:
                self._flush(slot)
            elif not self._receive(slot):
                self._selector.unregister(slot.read)  # closed; who watches the process hears of the rest
                if slot.watch < 0:
                    self._ended(slot)
        now = time.monotonic()
        for slot in self._slots:
            if slot.work and slot.stopped is None and now >= slot.since + slot.work[0].timeout_s:
                self._stop(slot.work[0].number, TIMEOUT)
        events, self._events = self._events, []
        return events

    def under_way(self) -> Collection[int]:
        """What is in the line of some slot."""
        return self._where.keys()

    def wake(self) -> None:
        """Through a pipe that `poll` looks at too."""
        with contextlib.suppress(OSError):  # it is awake already, or closed
            os.write(self._wake_write, b"x")

    def close(self) -> None:
        """Kill every process and remove every file."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        for slot in self._slots:
            self._end(slot)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- processes

    def _start(self, slot: _Slot) -> None:
        read_here, write_there = os.pipe()
        read_there, write_here = os.pipe()
        command = [sys.executable, process.__file__, str(read_there), str(write_there)]
        slot.child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(read_there, write_there),
            env={**os.environ, **slot.environment},
            start_new_session=True,  # an interrupt from the keyboard is ours to handle
        )
        os.close(read_there)
        os.close(write_there)
        os.set_blocking(read_here, False)
        os.set_blocking(write_here, False)
        slot.read, slot.write, slot.watch = read_here, write_here, _watch(slot.child.pid)
        slot.ready, slot.inbox, slot.outbox = False, process.Inbox(), bytearray()
        slot.knows, slot.sent, slot.since, slot.stopped = set(), 0, math.inf, None
        self._selector.register(slot.read, selectors.EVENT_READ, slot)
        if slot.watch >= 0:
            self._selector.register(slot.watch, selectors.EVENT_READ, slot)
        hello = ("begin", tuple(sys.path), os.getcwd(), self._folder, slot.cpus, slot.accelerator)
        slot.outbox += process.framed(hello)
        self._flush(slot)

    def _end(self, slot: _Slot) -> int:
        """Kill a slot's process, if there is one, with those that it has started, and let go of its pipes.

        Its return code.
        """
        if slot.child is None:
            return 0
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(
                slot.child.pid, signal.SIGKILL
            )  # it leads a group, and its number is not given away before `wait`
        slot.child.kill()
        code = slot.child.wait()
        for descriptor in (slot.read, slot.watch, slot.write):
            if descriptor >= 0 and descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
            if descriptor >= 0:
                os.close(descriptor)
        slot.child = None
        return code

    def _come_up(self, topology: Topology) -> Topology:
        """Wait for all processes; the topology of those devices whose processes came up."""
        deadline = time.monotonic() + START_S
        while any(slot.child and not slot.ready for slot in self._slots):
            if time.monotonic() > deadline:
                raise EngineError(f"processes did not start within {START_S:.0f} s", hint="is this machine overloaded?")
            self._events += self.poll(0.1)
        missing = {event.device: event.why for event in self._events if isinstance(event, DeviceDown)}
        self._events.clear()
        if len(missing) == len(topology.devices):
            raise EngineError(f"no device came up: {next(iter(missing.values()))}", where=topology.name)
        self.notes += [f"{topology.devices[device].name} is left out: {why}" for device, why in missing.items()]
        kept = [number for number in range(len(topology.devices)) if number not in missing]
        self._slots = [slot for slot in self._slots if slot.device in kept]
        for slot in self._slots:
            slot.device = kept.index(slot.device)
        self._down.clear()
        names = {topology.devices[number].name for number in kept}
        devices = (topology.devices[number] for number in kept)
        return replace(topology, devices=tuple(replace(d, home=d.home if d.home in names else "") for d in devices))

    def _ended(self, slot: _Slot) -> None:
        """A process has ended: what it ran has failed, unless that was meant; what waited goes to the next one."""
        self._receive(slot)  # what it said before
        came_up, stopped = slot.ready, slot.stopped
        ran = slot.sent > 0 and came_up
        code = self._end(slot)
        if ran and slot.work:
            self._tell_of_death(slot, code, stopped)
        for number in slot.dropped & {work.number for work in slot.work}:
            self._remove(slot, number)
        slot.failures = 0 if came_up else slot.failures + 1
        if slot.failures >= (KILLED if code in (-signal.SIGKILL, -signal.SIGTERM) else TRIES):
            times = f"its process ended {slot.failures} times in a row before it was ready"
            self._give_up(slot.device, f"{times}; {_ending(code)[1]}")
        else:
            self._start(slot)

    def _tell_of_death(self, slot: _Slot, code: int, stopped: tuple[int, str] | None) -> None:
        work = slot.work[0]
        if stopped is not None and stopped[0] != work.number:
            return  # it was killed for another that had just ended: this one is sent again
        slot.work.popleft()
        del self._where[work.number]
        seconds = time.monotonic() - slot.since
        if stopped is None:
            number, text = _ending(code)
            self._events.append(Failed(work.number, DIED, text, slot.since, seconds, signal=number))
        elif stopped[1] == TIMEOUT:
            text = f"it ran for more than {work.timeout_s:g} s"
            self._events.append(Failed(work.number, TIMEOUT, text, slot.since, seconds))
        else:
            self._events.append(Stopped(work.number))

    def _give_up(self, device: int, why: str) -> None:
        """A device is down for good."""
        self._down.add(device)
        for slot in self._slots:
            if slot.device == device:
                self._end(slot)
                for work in slot.work:
                    self._where.pop(work.number)
                    self._events.append(Stopped(work.number))
                slot.work.clear()
        self._events.append(DeviceDown(device, why))

    # --- messages

    def _send(self, slot: _Slot) -> None:
        """Send what a ready process has not been sent."""
        if not slot.ready:
            return
        for work in itertools.islice(slot.work, slot.sent, None):
            known = work.function.digest in slot.knows
            slot.knows.add(work.function.digest)
            code = None if known else work.function.code.at
            inputs = tuple(value.at for value in self._slim(work.inputs))
            resumes = None if work.resumes is None else astuple(work.resumes)
            output = None if work.output is None else (work.output.folder, work.output.run)
            what = (work.function.digest, code, work.arguments.at, inputs, (work.rank, work.size), resumes, output)
            slot.outbox += process.framed(("run", work.number, *what))
        if slot.sent == 0 and slot.work:
            slot.since = time.monotonic()
        slot.sent = len(slot.work)
        self._flush(slot)

    def _slim(self, inputs: Sequence[Stored]) -> Sequence[Stored]:
        """Many small values are one large message: beyond what one may be, they go into files."""
        if sum(len(value.at[0] or b"") for value in inputs) <= process.INLINE:
            return inputs
        return [value if value.at[1] is not None else _spilled(value, self._folder, self._name()) for value in inputs]

    def _name(self) -> str:
        return f"e{next(self._files)}"

    def _flush(self, slot: _Slot) -> None:
        """Write as much as the pipe takes; the rest when it takes more."""
        try:
            del slot.outbox[: os.write(slot.write, slot.outbox) if slot.outbox else 0]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # its process has ended, and we are about to hear of it
            slot.outbox.clear()
        watched = slot.write in self._selector.get_map()
        if slot.outbox and not watched:
            self._selector.register(slot.write, selectors.EVENT_WRITE, slot)
        elif not slot.outbox and watched:
            self._selector.unregister(slot.write)

    def _receive(self, slot: _Slot) -> bool:
        """Hear what a process says; whether it may say more."""
        try:
            data = os.read(slot.read, process.READ)
        except BlockingIOError:
            return True
        for message in slot.inbox.feed(data):
            self._heard(slot, *message)
        return bool(data)

    def _heard(self, slot: _Slot, kind: str, number: int, *rest: object) -> None:
        if kind == "ready":
            if rest[0]:
                self._give_up(slot.device, f"JAX finds no {slot.accelerator}: {rest[0]}")
                return
            slot.ready, slot.failures = True, 0
            self._send(slot)
            return
        slot.sent -= 1
        if kind == "dropped":
            self._remove(slot, number)
            return
        slot.work.popleft()
        slot.dropped.discard(number)
        slot.since = time.monotonic()
        del self._where[number]
        if kind == "done":
            began, seconds, cold, value, busy = rest
            self._events.append(Finished(number, _stored(value), began, seconds, cold, busy))  # type: ignore
        else:
            began, seconds, step, name, message, text, exception = rest
            self._events.append(
                Failed(number, STEPS[step], message, began, seconds, name, text, exception)  # type: ignore
            )

    def _stop(self, number: int, why: str) -> None:
        slot = self._where.get(number)
        if slot is None or (slot.stopped is not None and slot.stopped[0] == number):
            return
        self._receive(slot)  # it may have ended by now
        if number not in self._where:
            return
        place = [work.number for work in slot.work].index(number)
        if place >= slot.sent:
            self._remove(slot, number)
        elif place > 0:
            slot.dropped.add(number)
            slot.outbox += process.framed(("drop", number))
            self._flush(slot)
        else:
            slot.stopped = number, why
            assert slot.child is not None
            slot.child.kill()

    def _remove(self, slot: _Slot, number: int) -> None:
        """Forget work that no process has begun."""
        slot.work = deque(work for work in slot.work if work.number != number)
        slot.dropped.discard(number)
        del self._where[number]
        self._events.append(Stopped(number))

    def _next_deadline(self) -> float:
        return min((slot.since + slot.work[0].timeout_s for slot in self._slots if slot.work), default=math.inf)

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass


def _watch(pid: int) -> int:
    """A descriptor that tells when a process ends, also if others hold its pipes; -1 where the system has none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _stored(value: process.Portable) -> Stored:
    return Stored(value, value[3])


def _spilled(value: Stored, folder: str, name: str) -> Stored:
    """The same value, all of it in a file."""
    head = value.at[0]
    Path(folder, name).write_bytes(head)
    return Stored((None, name, ((0, len(head)),), value.size), value.size)


def _check(topology: Topology) -> None:
    """Refuse what no process of ours can be."""
    if len(topology.machines) > 1:
        raise TopologyError(
            f"it has {len(topology.machines)} machines", where=topology.name, hint="run locally on one: sy.discover()"
        )
    for kind in topology.kinds:
        if kind.reconfigurable:
            raise TopologyError(
                f"{kind.name!r} must be configured for a kernel, which the local engine cannot do",
                where=topology.name,
                hint="leave such devices out of the topology",
            )


def _slots(topology: Topology) -> list[_Slot]:
    """A slot for each worker that a device runs at once; those of CPUs are pinned, one after the other."""
    allowed = sorted(os.sched_getaffinity(0))
    turn = itertools.cycle(allowed)
    gpus = itertools.count()
    slots = []
    for number, device in enumerate(topology.devices):
        kind = topology.kind_of[device.kind]
        if kind.type == GPU:
            environment = {"CUDA_VISIBLE_DEVICES": _visible(next(gpus)), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            slots += [_Slot(number, (), GPU, environment) for _ in range(kind.slots)]
        else:
            environment = {"JAX_PLATFORMS": "cpu", **process.ONE_THREAD}
            slots += [_Slot(number, (next(turn),), "", environment) for _ in range(kind.slots)]
    return slots


def _visible(number: int) -> str:
    """The name of a GPU, among those that we may see."""
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return given[number] if number < len(given) else str(number)


def _ending(code: int) -> tuple[int, str]:
    """The signal that ended a process (0 = none), and what to say of it."""
    if code >= 0:
        return 0, f"its process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return -code, f"its process was ended by {name}"


def _folder() -> str:
    """A folder for values, in memory where the system has such a place; those of engines that are gone are removed."""
    shared = Path("/dev/shm")
    place = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    return str(scratch(place, "symphony"))
