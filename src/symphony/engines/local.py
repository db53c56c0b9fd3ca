"""The local engine: the devices of this machine, one process for each slot of each.

A process is forked by a clean one (`fork_server.py`; never by this one: JAX and others have threads that a fork would
break), pinned to a CPU, and kept; where several users share the engine, until the next job. If it dies, what it was
running has failed, what was waiting for it goes to the one that takes its place.

Processes run what users wrote, so what they say is checked (`messages.py`). One that says anything but the answer to
what it runs is killed, and that work has failed.
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
import sys
import tempfile
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

from symphony.engines import messages
from symphony.engines import worker as process
from symphony.engines.engine import (
    DIED,
    FAILURE_BY_STAGE,
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
from symphony.engines.fork_server import FORK, UNKNOWN, ForkServer
from symphony.engines.messages import Malformed, Message
from symphony.engines.scratch import scratch
from symphony.problem.discover import discover
from symphony.problem.errors import EngineError, TopologyError
from symphony.problem.topology import Topology

CPU, GPU = "cpu", "gpu"
PROCESS_START_TIMEOUT_S = 120.0  # for a process to come up: with a GPU, JAX has to load its driver
MAX_FAILED_STARTS = 3  # in a row, before a device is down …
MAX_KILLED_STARTS = 20  # … or that were killed from outside
MAX_SPARE = 8  # processes that are forked before they are needed
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0  # before a process is asked for again that could not be forked; doubled each time


@dataclass(eq=False)
class _Worker:
    """A process, and our ends of the pipes to it."""

    server: ForkServer
    slot: _Slot | None  # None = it is a spare one
    name: str  # never used twice: names of the files that it makes begin with it
    read: int
    write: int
    began_s: float
    pid: int = 0  # 0 = it is being forked
    watch: int = -1  # descriptor that tells when the process ends; -1 = its closed pipe has to
    up: bool = False  # it has said so
    doomed: bool = False  # it is killed as soon as its number is known
    wrong: str = ""  # what was wrong with what it said
    tag: tuple[str, int] | None = None  # user and job whose work it has been sent
    inbox: messages.Inbox = field(default_factory=messages.Inbox)
    outbox: bytearray = field(default_factory=bytearray)
    blocked: bool = False  # the pipe to it is full
    knows: set[str] = field(default_factory=set)  # functions that were sent to it

    @property
    def ready(self) -> bool:
        """Whether it takes work."""
        return self.up and self.pid > 0 and not self.doomed


@dataclass(eq=False)
class _Slot:
    """A slot of a device, and the process that is it at present."""

    device: int
    cpus: tuple[int, ...]
    accelerator: str
    server: ForkServer
    worker: _Worker | None = None
    failures: int = 0  # starts in a row that came to nothing
    again_s: float = math.inf  # when a process is asked for again that could not be forked
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
        self._workers = itertools.count()
        self._spare: list[_Worker] = []  # forked before they are needed
        self._leaving: set[_Worker] = set()  # those that others have taken the place of, and that have not ended
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
        try:
            for slot in self._slots:
                self._start(slot)
            self._topology = self._come_up(found)
        except BaseException:
            self.close()
            raise

    # --- what there is

    def inventory(self) -> Topology:
        """The devices that came up."""
        return self._topology

    def processes(self) -> dict[int, list[int]]:
        """Those that run kernels at present, by the one that forked them and waits for them. Any thread may ask."""
        found: dict[int, list[int]] = {slot.server.pid: [] for slot in self._slots}
        workers = [*(slot.worker for slot in self._slots), *self._spare.copy(), *self._leaving.copy()]
        for worker in workers:
            if worker is not None and worker.pid:
                found.setdefault(worker.server.pid, []).append(worker.pid)
        return found

    def put(self, value: Pickled) -> Stored:
        """Small values stay as they are; large ones go into a file in shared memory."""
        return _stored(process.store(value.head, list(value.buffers), self._folder, self._name()))

    def get(self, value: Stored) -> Pickled:
        """The value, copied: processes that run kernels can change its file."""
        try:
            return Pickled(*process.copied(value.at, self._folder))
        except (OSError, MemoryError) as error:
            raise EngineError(f"a value cannot be read: {error}", hint="submit the job again") from error

    def free(self, value: Stored) -> None:
        """Remove its file, if it has one; who has mapped it keeps it."""
        if value.at[1] is not None:
            Path(self._folder, value.at[1]).unlink(missing_ok=True)

    # --- what is done

    def dispatch(self, work: Sequence[Work]) -> None:
        """To the slot of its device with the least before it; a gang of several therefore goes to several.

        Among equals, to one whose process has run for this job, or for nobody.
        """
        touched = []
        for one in work:
            mine = [slot for slot in self._slots if slot.device == one.device]
            if one.device in self._down or not mine:
                self._events.append(Stopped(one.number))
                continue
            slot = min(mine, key=lambda slot: (len(slot.work), _strange(slot, one)))
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
            if self._selector.get_map().get(key.fd) is not key:
                continue  # closed meanwhile, with a device that was given up
            if key.data is None:
                self._drain_wakes()
            elif isinstance(key.data, ForkServer):
                self._answered(key.data)
            elif key.fd == key.data.watch:
                self._worker_ended(key.data)
            elif key.fd == key.data.write:
                self._flush(key.data)
            else:
                self._receive(key.data)
        now = time.monotonic()
        for slot in self._slots:
            if slot.work and slot.stopped is None and now >= slot.since + slot.work[0].timeout_s:
                self._stop(slot.work[0].number, TIMEOUT)
            if now >= slot.again_s:
                self._start(slot)
        events, self._events = self._events, []
        return events

    def under_way(self) -> Collection[int]:
        """What is in the line of some slot."""
        return self._where.keys()

    def release(self, user: str, job: int) -> None:
        """A job is over: what it has left in processes, threads and memory included, goes. Optional in an engine."""
        for slot in self._slots:
            worker = slot.worker
            if worker is not None and worker.ready and worker.tag == (user, job) and not slot.sent:
                self._renew(slot)

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
        for worker in [*self._spare, *(slot.worker for slot in self._slots)]:
            if worker is not None:
                self._close_worker(worker)
        for server in {slot.server for slot in self._slots}:
            self._end_server(server)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- processes

    def _start(self, slot: _Slot) -> None:
        """Give a slot a process: a spare one, or one that is forked now."""
        slot.again_s, slot.sent, slot.since, slot.stopped = math.inf, 0, math.inf, None
        spare = next((one for one in self._spare if one.server is slot.server and one.ready), None)
        if spare is None:
            self._fork(slot.server, slot)
            return
        self._spare.remove(spare)
        slot.worker, spare.slot = spare, slot
        spare.outbox += process.framed(("pin", slot.cpus))
        self._flush(spare)
        self._send(slot)

    def _stock(self, server: ForkServer) -> None:
        """Have as many spare processes as there are slots; none of an accelerator, whose memory they would take."""
        slots = [slot for slot in self._slots if slot.server is server and not slot.accelerator]
        for _ in range(min(len(slots), MAX_SPARE) - sum(one.server is server for one in self._spare)):
            self._fork(server, None)

    def _fork(self, server: ForkServer, slot: _Slot | None) -> None:
        """Ask for a process."""
        if server.socket is None:
            self._selector.register(server.start(), selectors.EVENT_READ, server)
        (read_here, write_there), (read_there, write_here) = os.pipe(), os.pipe()
        os.set_blocking(read_here, False)
        os.set_blocking(write_here, False)
        worker = _Worker(server, slot, f"w{next(self._workers)}", read_here, write_here, time.monotonic())
        if slot is None:
            self._spare.append(worker)
        else:
            slot.worker = worker
        self._selector.register(worker.read, selectors.EVENT_READ, worker)
        asked = server.fork(read_there, write_there, worker)
        os.close(read_there)
        os.close(write_there)
        if not asked:
            self._not_forked(worker)
            return
        hello = (tuple(sys.path), os.getcwd(), self._folder, worker.name, slot.accelerator if slot else "")
        worker.outbox += process.framed(("pin", slot.cpus if slot else ())) + process.framed(("begin", *hello))
        self._flush(worker)

    def _answered(self, server: ForkServer) -> None:
        """A fork server has done something, or ended."""
        try:
            for what, worker, number in server.answers():
                if what != FORK:
                    self._reaped(worker, number)
                elif number:
                    self._forked(worker, number)
                else:
                    self._not_forked(worker)
        except EOFError:
            assert server.socket is not None
            self._selector.unregister(server.socket)
            for what, worker in server.end():
                if what == FORK:
                    self._close_worker(worker)
                self._reaped(worker, 1 if what == FORK else UNKNOWN)

    def _end_server(self, server: ForkServer) -> None:
        """End a fork server, with what it has forked and we have no more use for."""
        if server.socket is not None:
            self._selector.unregister(server.socket)
        mine = [worker for worker in self._leaving if worker.server is server]
        for worker in mine:
            self._close_worker(worker)
        server.end(worker.pid for worker in mine)
        self._leaving.difference_update(mine)

    def _forked(self, worker: _Worker, pid: int) -> None:
        worker.pid, worker.watch = pid, _watch(pid)
        if worker.watch >= 0:
            self._selector.register(worker.watch, selectors.EVENT_READ, worker)
        if worker.doomed or worker.read < 0:
            self._kill(worker)
        elif worker.slot is not None and worker.slot.worker is worker:
            self._send(worker.slot)

    def _not_forked(self, worker: _Worker) -> None:
        """The system has no room for a process at present, or the server has ended just now."""
        slot = worker.slot
        self._close_worker(worker)
        if worker in self._spare:
            self._spare.remove(worker)
        if slot is None or slot.worker is not worker:
            return
        slot.worker, slot.failures = None, slot.failures + 1
        if slot.failures >= MAX_KILLED_STARTS:
            self._give_up(slot.device, f"its process could not be forked {slot.failures} times in a row")
        else:
            slot.again_s = time.monotonic() + min(PAUSE_S * 2**slot.failures, LONGEST_PAUSE_S)

    def _renew(self, slot: _Slot) -> None:
        """Have a process that has run nothing yet take the place of one that has."""
        worker = slot.worker
        assert worker is not None and not slot.sent
        self._leaving.add(worker)
        self._unlink(worker)
        self._kill(worker)
        self._start(slot)
        self._stock(slot.server)

    def _kill(self, worker: _Worker) -> None:
        """End a process, with those that it has started. Its end is heard of."""
        worker.doomed = True
        if worker.pid:
            # It leads a group (a moment after it was forked), and its number is not given away before it is reaped.
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(worker.pid, signal.SIGKILL)
            if worker.watch < 0:
                self._worker_ended(worker)

    def _unlink(self, worker: _Worker) -> None:
        """Hear no more of a process."""
        if worker.read >= 0:
            self._selector.unregister(worker.read)
            if worker.blocked:
                self._selector.unregister(worker.write)
            os.close(worker.read)
            os.close(worker.write)
            worker.read = worker.write = -1

    def _close_worker(self, worker: _Worker) -> None:
        """Kill a process, and let go of it."""
        self._unlink(worker)
        if worker.watch >= 0:
            self._selector.unregister(worker.watch)
            os.close(worker.watch)
        worker.watch, worker.doomed = -1, True
        if worker.pid:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(worker.pid, signal.SIGKILL)
            self._leaving.add(worker)

    def _worker_ended(self, worker: _Worker) -> None:
        """A process has ended, or is about to: ask how. What it said before is heard first."""
        if not worker.wrong:
            self._receive(worker, to_the_end=True)
        self._close_worker(worker)
        if not worker.server.reap(worker.pid, worker):
            self._reaped(worker, UNKNOWN)

    def _come_up(self, topology: Topology) -> Topology:
        """Wait for all processes; the topology of those devices whose processes came up."""
        deadline = time.monotonic() + PROCESS_START_TIMEOUT_S
        while any(slot.device not in self._down and not (slot.worker and slot.worker.ready) for slot in self._slots):
            if time.monotonic() > deadline:
                raise EngineError(
                    f"processes did not start within {PROCESS_START_TIMEOUT_S:.0f} s",
                    hint="is this machine overloaded?",
                )
            self._events += self.poll(0.1)
        missing = {event.device: event.why for event in self._events if isinstance(event, DeviceDown)}
        self._events.clear()
        if len(missing) == len(topology.devices):
            raise EngineError(f"no device came up: {next(iter(missing.values()))}", where=topology.name)
        self.notes += [f"{topology.devices[device].name} is left out: {why}" for device, why in missing.items()]
        kept = [number for number in range(len(topology.devices)) if number not in missing]
        left_out = {slot.server for slot in self._slots if slot.device not in kept}
        self._slots = [slot for slot in self._slots if slot.device in kept]
        for server in left_out - {slot.server for slot in self._slots}:
            self._end_server(server)
        for slot in self._slots:
            slot.device = kept.index(slot.device)
        self._down.clear()
        names = {topology.devices[number].name for number in kept}
        devices = (topology.devices[number] for number in kept)
        return replace(topology, devices=tuple(replace(d, home=d.home if d.home in names else "") for d in devices))

    def _reaped(self, worker: _Worker, code: int) -> None:
        """A process has ended: what it ran has failed, unless that was meant; what waited goes to the next one."""
        self._leaving.discard(worker)
        slot = worker.slot
        if worker in self._spare:
            self._spare.remove(worker)
        if slot is None or slot.worker is not worker:
            return
        slot.worker = None
        if slot.sent > 0 and worker.up and slot.work:
            self._report_death(slot, code, worker.wrong)
        for number in slot.dropped & {work.number for work in slot.work}:
            self._remove(slot, number)
        slot.failures = 0 if worker.up else slot.failures + 1
        if slot.failures >= (MAX_KILLED_STARTS if code in (-signal.SIGKILL, -signal.SIGTERM) else MAX_FAILED_STARTS):
            times = f"its process ended {slot.failures} times in a row before it was ready"
            self._give_up(slot.device, f"{times}; {_exit_reason(code)[1]}")
        else:
            self._start(slot)

    def _report_death(self, slot: _Slot, code: int, wrong: str) -> None:
        work, stopped = slot.work[0], slot.stopped
        if stopped is not None and stopped[0] != work.number:
            return  # it was killed for another that had just ended: this one is sent again
        slot.work.popleft()
        del self._where[work.number]
        seconds = time.monotonic() - slot.since
        if stopped is None:
            number, text = (0, f"its process sent a malformed message: {wrong}") if wrong else _exit_reason(code)
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
                worker, slot.worker, slot.again_s, slot.sent = slot.worker, None, math.inf, 0
                if worker is not None:
                    self._leaving.add(worker)
                    self._kill(worker)
                for work in slot.work:
                    self._where.pop(work.number)
                    self._events.append(Stopped(work.number))
                slot.work.clear()
        self._events.append(DeviceDown(device, why))

    # --- messages

    def _send(self, slot: _Slot) -> None:
        """Send what a process may have and was not sent. One that has run another's work is replaced first."""
        worker = slot.worker
        if worker is None or not worker.ready or len(slot.work) == slot.sent:
            return
        if not slot.sent:
            tag = _tag(slot.work[0])
            if worker.tag not in (None, tag):
                self._renew(slot)
                return
            worker.tag = tag
            slot.since = time.monotonic()
        for work in itertools.islice(slot.work, slot.sent, None):
            if _tag(work) != worker.tag:
                break
            slot.sent += 1
            known = work.function.digest in worker.knows
            worker.knows.add(work.function.digest)
            code = None if known else work.function.code.at
            inputs = tuple(value.at for value in self._without_large_inputs(work.inputs))
            resumes = None if work.resumes is None else astuple(work.resumes)
            output = None if work.output is None else (work.output.folder, work.output.run)
            what = (work.function.digest, code, work.arguments.at, inputs, (work.rank, work.size), resumes, output)
            worker.outbox += process.framed(("run", work.number, -1 if work.user else work.job, *what))
        self._flush(worker)

    def _without_large_inputs(self, inputs: Sequence[Stored]) -> Sequence[Stored]:
        """Many small values are one large message: beyond what one may be, they go into files."""
        if sum(len(value.at[0] or b"") for value in inputs) <= process.MAX_INLINE_VALUE_BYTES:
            return inputs
        return [value if value.at[1] is not None else _spilled(value, self._folder, self._name()) for value in inputs]

    def _name(self) -> str:
        return f"e{next(self._files)}"

    def _flush(self, worker: _Worker) -> None:
        """Write as much as the pipe takes; the rest when it takes more."""
        if worker.write < 0:
            return
        try:
            del worker.outbox[: os.write(worker.write, worker.outbox) if worker.outbox else 0]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # its process has ended, and we are about to hear of it
            worker.outbox.clear()
        if worker.outbox and not worker.blocked:
            self._selector.register(worker.write, selectors.EVENT_WRITE, worker)
        elif not worker.outbox and worker.blocked:
            self._selector.unregister(worker.write)
        worker.blocked = bool(worker.outbox)

    def _receive(self, worker: _Worker, to_the_end: bool = False) -> None:
        """Hear what a process says; or all that it has said, if it says no more."""
        more = True
        while more and worker.read >= 0 and not worker.wrong:
            more = to_the_end
            try:
                data = os.read(worker.read, process.READ_BYTES)
            except BlockingIOError:
                return
            if not data:  # whoever watches the process hears of the rest
                self._unlink(worker)
                if worker.watch < 0 and worker.pid and not to_the_end:
                    self._worker_ended(worker)
                return
            try:
                for message in worker.inbox.feed(data):
                    self._on_message(worker, message)
            except Malformed as error:
                worker.wrong = str(error)
                if not to_the_end:
                    self._kill(worker)

    def _on_message(self, worker: _Worker, message: Message) -> None:
        """A message, which may be anything that its process has sent: raises `Malformed` if it is not as it must be."""
        slot, number = worker.slot, message.number
        if isinstance(message, messages.Ready):
            self._ready(worker, message.problem)
            return
        if slot is None or not slot.sent or slot.worker is not worker:
            raise Malformed(f"it answers attempt {number}, and runs none")
        if number != slot.work[0].number:
            raise Malformed(f"it answers attempt {number} instead of {slot.work[0].number}, which it runs")
        if isinstance(message, messages.Dropped):
            if number not in slot.dropped:
                raise Malformed(f"it has not begun attempt {number}, though it was to")
            slot.sent -= 1
            self._remove(slot, number)
        else:
            now_s = time.monotonic()
            self._events.append(self._event(worker, message, now_s))
            slot.sent -= 1
            slot.work.popleft()
            slot.dropped.discard(number)
            slot.since = now_s
            del self._where[number]
        if not slot.sent:
            self._send(slot)

    def _ready(self, worker: _Worker, problem: str) -> None:
        if worker.up:
            raise Malformed("it says for the second time that it is ready")
        worker.up, slot = True, worker.slot
        if slot is None:
            return
        if problem:
            self._give_up(slot.device, f"JAX finds no {slot.accelerator}: {problem}")
        elif slot.worker is worker:
            slot.failures = 0
            self._send(slot)

    def _event(self, worker: _Worker, message: messages.Done | messages.Broke, now_s: float) -> EngineEvent:
        """An answer as an event, its times not outside of what we know."""
        number, began_s, seconds = message[:3]
        if not (worker.began_s <= began_s and 0.0 <= seconds <= now_s - began_s):
            began_s = min(max(began_s, worker.began_s), now_s)
            seconds = min(max(seconds, 0.0), now_s - began_s)
        if isinstance(message, messages.Done):
            value, busy_s = message.value, message.busy_s
            if value[1] is not None:
                self._check_file(worker, value)
            busy_s = busy_s if 0.0 <= busy_s < math.inf else math.nan
            return Finished(number, Stored(value, value[3]), began_s, seconds, message.cold, busy_s)
        why, told = FAILURE_BY_STAGE[message.step], (message.type, message.traceback, message.exception)
        return Failed(number, why, message.message, began_s, seconds, *told)

    def _check_file(self, worker: _Worker, value: process.Portable) -> None:
        """Refuse a value in a file that is not its own, or too short."""
        _, name, spans, _ = value
        prefix, _, number = (name or "").partition("-")
        if prefix != worker.name or not (number.isascii() and number.isdecimal()):
            raise Malformed(f"its value is in a file {name!r}, which is not one of its own")
        try:
            process.check_spans(spans, os.lstat(os.path.join(self._folder, f"{prefix}-{number}")))
        except OSError as error:
            raise Malformed(f"its value is in a file that cannot be read: {error.strerror}") from None

    def _stop(self, number: int, why: str) -> None:
        slot = self._where.get(number)
        if slot is None or (slot.stopped is not None and slot.stopped[0] == number):
            return
        if slot.worker is not None:
            self._receive(slot.worker)  # it may have ended by now
        if number not in self._where:
            return
        place = [work.number for work in slot.work].index(number)
        if place >= slot.sent or slot.worker is None:
            self._remove(slot, number)
        elif place > 0:
            slot.dropped.add(number)
            slot.worker.outbox += process.framed(("drop", number))
            self._flush(slot.worker)
        else:
            slot.stopped = number, why
            self._kill(slot.worker)

    def _remove(self, slot: _Slot, number: int) -> None:
        """Forget work that no process has begun."""
        slot.work = deque(work for work in slot.work if work.number != number)
        slot.dropped.discard(number)
        del self._where[number]
        self._events.append(Stopped(number))

    def _next_deadline(self) -> float:
        times = [slot.since + slot.work[0].timeout_s for slot in self._slots if slot.work]
        return min([*times, *(slot.again_s for slot in self._slots)], default=math.inf)

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass


def _tag(work: Work) -> tuple[str, int]:
    """Work with equal tags may share a process. One's own engine is for one user, whose jobs share them all."""
    return (work.user, work.job) if work.user else ("", 0)


def _strange(slot: _Slot, work: Work) -> int:
    """0 if the process of a slot has run for the same job, 1 if for nobody, else 2."""
    tag = None if slot.worker is None else slot.worker.tag
    return 1 if tag is None else 0 if tag == _tag(work) else 2


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
    cpu = ForkServer({"JAX_PLATFORMS": "cpu", **process.ONE_THREAD})
    for number, device in enumerate(topology.devices):
        kind = topology.kind_of[device.kind]
        if kind.type == GPU:
            environment = {"CUDA_VISIBLE_DEVICES": _visible(next(gpus)), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            gpu = ForkServer(environment)
            slots += [_Slot(number, (), GPU, gpu) for _ in range(kind.slots)]
        else:
            slots += [_Slot(number, (next(turn),), "", cpu) for _ in range(kind.slots)]
    return slots


def _visible(number: int) -> str:
    """The name of a GPU, among those that we may see."""
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return given[number] if number < len(given) else str(number)


def _exit_reason(code: int) -> tuple[int, str]:
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
