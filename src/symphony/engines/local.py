"""The local engine: the devices of this machine, with one worker process for each slot.

A fork server (`fork_server.py`) forks the workers: forking this process would break the threads of JAX. A worker is
pinned to a CPU and reused; where several users share the engine, only within one job. If it dies, the work that it ran
has failed, and the work queued behind it goes to its replacement.

Workers run users' code, so their messages are validated (`messages.py`). A worker that sends anything but the answer
for the work that it runs is killed, and that work has failed.

Work for several cores is in the queues of as many slots of its device, and starts when it is the first in all of them.
It runs in a worker of the first of these; the others are idle meanwhile. All queues have such work in the same order,
so none waits for another for ever.

A worker ends with all processes that it has started (`processes.py`). Limits: `containment.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
import os
import pwd
import resource
import secrets
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from symphony.engines import messages, processes
from symphony.engines import worker as process
from symphony.engines.cgroups import Cgroup, CgroupTree, open_cgroups
from symphony.engines.containment import Allowance, Breach, Containment, Supervisor, Watched, enforcement, memory_breach
from symphony.engines.engine import (
    DIED,
    FAILURE_BY_STAGE,
    LIMIT,
    TIMEOUT,
    DeviceDown,
    Engine,
    EngineEvent,
    Failed,
    Finished,
    Pickled,
    Stopped,
    Stored,
    Work,
    refuse_reconfigurable,
)
from symphony.engines.fork_server import FORK, UNKNOWN, ForkServer
from symphony.engines.messages import Malformed, Message
from symphony.engines.scratch import scratch
from symphony.problem.discover import discover
from symphony.problem.errors import EngineError, TopologyError
from symphony.problem.topology import Topology

CPU, GPU = "cpu", "gpu"
PROCESS_START_TIMEOUT_S = 120.0  # with a GPU, JAX has to load its driver
MAX_FAILED_STARTS = 3  # consecutive failed starts until a device goes down …
MAX_KILLED_STARTS = 20  # … and starts that were killed from outside, or could not be forked
MAX_SPARE = 8  # workers forked ahead of demand
LATE_S = 10e-3  # work that queues behind other work was expected to wait less; chosen
MAX_SENT = 512  # work sent to a worker that has not ended: their permits are written at once (PIPE_BUF)
MAX_MESSAGE_S = 30.0  # from the first to the last byte of a message, which a worker writes at once
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0  # exponential back-off after a fork that failed


@dataclass(eq=False)
class _Worker:
    server: ForkServer
    slot: _Slot | None  # None = it is a spare
    name: str  # never reused; prefix of the names of the files that it writes
    read: int
    write: int
    permits: tuple[int, int]  # both ends of the pipe with permits to begin work: see `worker.py`
    began_s: float
    pid: int = 0  # 0 = not forked yet
    forked_by: int = 0  # pid of the fork server that has to reap it
    watch: int = -1  # pidfd, readable when the process ends; -1 = watch for the end of its pipe instead
    up: bool = False  # it has sent Ready
    doomed: bool = False  # killed, or to be killed once its pid is known
    malformed: str = ""  # what was wrong with a message that it sent
    tag: tuple[str, int] | None = None  # user and job of the work sent to it
    memory: float = math.inf  # bound for the work sent to it
    cpus: tuple[int, ...] | None = None  # that it was pinned to
    group: Cgroup | None = None
    uid: int | None = None  # user that it has become
    limited: bool = False  # whether the supervisor watches it
    inbox: messages.Inbox = field(default_factory=messages.Inbox)
    incomplete_s: float = math.inf  # when a message that has begun must be complete
    outbox: bytearray = field(default_factory=bytearray)
    blocked: bool = False  # the pipe to it is full
    permitted: int = 0  # the last permit written
    knows: set[str] = field(default_factory=set)  # digests of the functions sent to it
    files: int = 0  # number of the next file that it writes

    @property
    def ready(self) -> bool:
        return self.up and self.pid > 0 and not self.doomed


@dataclass(eq=False)
class _Slot:
    device: int
    cpus: tuple[int, ...]
    accelerator: str
    server: ForkServer
    worker: _Worker | None = None
    failures: int = 0  # consecutive failed starts
    retry_s: float = math.inf  # when to fork again after a fork that failed
    work: deque[Work] = field(default_factory=deque)  # first in, first out; the first one runs
    sent: int = 0  # how many of these were sent to the worker
    since: float = math.inf  # the earliest time at which the first one may have started; inf = it has not
    stopped: tuple[int, str] | None = None  # work because of which the worker was killed, and why
    breach: Breach | None = None  # the limit, if that is why


class LocalEngine(Engine):
    """Runs work on this machine. `topology` must describe it; by default, it is discovered.

    `containment`: limits for the jobs of several users; without it, only the memory of kernels is bounded.
    """

    several_cores = True

    def __init__(self, topology: Topology | None = None, containment: Containment | None = None) -> None:
        if not sys.platform.startswith("linux"):
            raise EngineError(f"the local engine needs Linux; this is {sys.platform}", hint="run it in a container")
        described = discover().topology if topology is None else topology
        _check(described)
        self._containment, self._contained = containment or Containment(), containment is not None
        if self._containment.own_accounts and os.geteuid() != 0:
            raise EngineError("only root can run jobs as other users", hint="serve as root, or without --run-as user")
        self._folder = _folder()
        self._groups: CgroupTree | None = None
        self.contained: list[str] = []  # who enforces what, in sentences
        self._temporary = ""  # folder for the temporary folders of jobs
        if self._contained:
            note = "cgroups are used with --limits only"
            if self._containment.limits:
                self._groups, note = open_cgroups()
            self.contained = enforcement(self._containment, self._groups, note)
            self._temporary = str(scratch(Path(tempfile.gettempdir()), "symphony-jobs"))
            os.chmod(self._temporary, 0o711)
        if self._containment.own_accounts:
            os.chmod(self._folder, 0o1733)  # all may write; none can list, or read what is another's
        self._breaches: deque[Breach] = deque()
        self._supervisor = Supervisor(self._containment, self._groups, self._on_breach)
        self._began: dict[tuple[str, int], float] = {}  # when the first work of each job started
        self._threaded: dict[int, ForkServer] = {}  # for workers with several cores
        self._old_groups: list[Cgroup] = []  # to be removed when their processes have ended
        self._lent: dict[int, list[_Slot]] = {}  # further slots of work for several cores
        self._joined: dict[int, str] = {}  # names of files with the small inputs of work
        self._files = itertools.count()  # numbers of files for values; used by several threads
        self._workers = itertools.count()
        self._spare: list[_Worker] = []
        self._leaving: set[_Worker] = set()  # replaced, but not ended yet
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._where: dict[int, _Slot] = {}  # slots of the work that has not ended
        self._events: list[EngineEvent] = []
        self._down: set[int] = set()
        self._closed = False
        self.notes: list[str] = []
        atexit.register(self.close)
        self._slots = _slots(described, self._folder)
        try:
            for slot in self._slots:
                self._start(slot)
            self._topology = self._wait_for_workers(described)
        except BaseException:
            self.close()
            raise

    def inventory(self) -> Topology:
        """The devices whose workers started."""
        return self._topology

    def processes(self) -> dict[int, list[int]]:
        """Pids of the workers, by the pid of the fork server that forked them. Thread-safe."""
        by_server: dict[int, list[int]] = {slot.server.pid: [] for slot in self._slots}
        workers = [*(slot.worker for slot in self._slots), *self._spare.copy(), *self._leaving.copy()]
        for worker in workers:
            if worker is not None and worker.pid:
                by_server.setdefault(worker.server.pid, []).append(worker.pid)
        return by_server

    def put(self, value: Pickled) -> Stored:
        """Store a value: a small one inline, a large one in a file in shared memory. Thread-safe."""
        name = self._name() if value.buffers or len(value.head) > process.MAX_INLINE_VALUE_BYTES else ""
        stored = process.store(value.head, list(value.buffers), self._folder, name)
        return Stored(stored, stored[3])

    def get(self, value: Stored) -> Pickled:
        """A copy of the value: workers could change its file. Thread-safe."""
        try:
            return Pickled(*process.copied(value.at, self._folder))
        except (OSError, MemoryError) as error:
            raise EngineError(f"a value cannot be read: {error}", hint="submit the job again") from error

    def free(self, value: Stored) -> None:
        """Remove the file of the value; processes that have mapped it can still read it. Thread-safe."""
        self._unlink(value.at[1])

    def dispatch(self, work: Sequence[Work]) -> None:
        """Queue work on the least loaded slot of its device, so that the workers of a gang get different slots.

        Slots whose work has run for `LATE_S` come last: what queues behind it would wait although another slot is free.
        Ties go to a worker that has run this job before, then to an unused one.
        """
        touched, late_s = [], time.monotonic() - LATE_S
        for one in work:
            slots = [slot for slot in self._slots if slot.device == one.device]
            if one.device in self._down or not slots:
                self._events.append(Stopped(one.number))
                continue
            slots.sort(key=lambda slot: (slot.since < late_s, len(slot.work), _reuse_rank(slot, one)))
            slot, *lent = slots[: 1 if slots[0].accelerator else one.cores]
            self._where[one.number] = slot
            if lent:
                self._lent[one.number] = lent
            for each in (slot, *lent):
                each.work.append(one)
            touched.append(slot)
        for slot in touched:
            self._send(slot)

    def cancel(self, number: int) -> None:
        """Kill the worker that runs it, or remove it from its queue."""
        self._stop(number, "")

    def preempt(self, number: int) -> None:
        """As `cancel`: the scheduler has asked for a checkpoint before."""
        self._stop(number, "")

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """Handle messages, exits and timeouts of workers; the events that follow."""
        if self._closed:
            raise EngineError("the local engine is closed", hint="make a new one: with sy.local() as cluster: …")
        self._spread()
        wait = 0.0 if self._events else max(min(timeout_s, self._next_deadline() - time.monotonic()), 0.0)
        for key, _ in self._selector.select(None if wait == math.inf else wait):
            if self._selector.get_map().get(key.fd) is not key:
                continue  # closed meanwhile, because its device went down
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
        while self._breaches:
            self._end_breach(self._breaches.popleft())
        now = time.monotonic()
        for slot in self._slots:
            if slot.sent and slot.stopped is None and now >= slot.since + slot.work[0].timeout_s:
                self._stop(slot.work[0].number, TIMEOUT)
            if now >= slot.retry_s:
                self._start(slot)
            worker = slot.worker
            if worker is not None and now >= worker.incomplete_s and not worker.malformed:
                worker.malformed = f"it is not complete after {MAX_MESSAGE_S:g} s"
                self._kill(worker)
        events, self._events = self._events, []
        return events

    def under_way(self) -> Collection[int]:
        """Numbers of the work in the queue of any slot."""
        return self._where.keys()

    def release(self, user: str, job: int) -> None:
        """Replace the idle workers of a job that has finished, and so end its threads and child processes."""
        for slot in self._slots:
            worker = slot.worker
            if worker is not None and worker.ready and worker.tag == (user, job) and not slot.sent:
                self._renew(slot)
        if self._began.pop((user, job), None) is not None:
            self._supervisor.job_over(user, job)
            if self._groups is not None:
                self._groups.job(user, job).kill()
                self._old_groups.append(self._groups.job(user, job))
            shutil.rmtree(self._job_folder(user, job), ignore_errors=True)

    def wake(self) -> None:
        """Interrupt `poll` through a pipe that it selects on. Thread-safe."""
        with contextlib.suppress(OSError):  # the pipe is full, or closed
            os.write(self._wake_write, b"x")

    def close(self) -> None:
        """Kill all processes and remove all files. Idempotent."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._supervisor.close()
        for worker in [*self._spare, *(slot.worker for slot in self._slots)]:
            if worker is not None:
                self._close_worker(worker)
        servers = {slot.server for slot in self._slots} | set(self._threaded.values())
        for server in servers:
            self._end_server(server)
        if any(server.crashed for server in servers):
            processes.end_marked(self._folder)
        if self._groups is not None:
            self._groups.close()
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- processes

    def _start(self, slot: _Slot) -> None:
        slot.retry_s, slot.sent, slot.since, slot.stopped, slot.breach = math.inf, 0, math.inf, None, None
        server = self._server(slot)
        spare = next((one for one in self._spare if one.server is server and one.ready), None)
        if spare is None:
            self._fork(server, slot)
            return
        self._spare.remove(spare)
        slot.worker, spare.slot = spare, slot
        self._pin(spare, slot.cpus)
        self._flush(spare)
        self._send(slot)

    def _server(self, slot: _Slot) -> ForkServer:
        """The fork server for the next work of a slot: the environment of its workers sets the number of threads."""
        cores = slot.work[0].cores if slot.work and self._where[slot.work[0].number] is slot else 1
        if cores == 1 or slot.accelerator:
            return slot.server
        if cores not in self._threaded:
            self._threaded[cores] = _cpu_server(self._folder, cores)
        return self._threaded[cores]

    def _pin(self, worker: _Worker, cpus: tuple[int, ...]) -> None:
        if worker.cpus != cpus:
            worker.cpus = cpus
            worker.outbox += process.framed(("pin", cpus))

    def _stock(self, server: ForkServer) -> None:
        """Fork spares, as many as there are slots; none for an accelerator, whose memory they would occupy."""
        slots = [slot for slot in self._slots if slot.server is server and not slot.accelerator]
        for _ in range(min(len(slots), MAX_SPARE) - sum(one.server is server for one in self._spare)):
            self._fork(server, None)

    def _fork(self, server: ForkServer, slot: _Slot | None) -> None:
        if server.socket is None:
            self._selector.register(server.start(), selectors.EVENT_READ, server)
        (read_here, write_there), (read_there, write_here), permits = os.pipe(), os.pipe(), os.pipe()
        for descriptor in (read_here, write_here, *permits):
            os.set_blocking(descriptor, False)
        name = f"w{next(self._workers)}"
        if self._containment.own_accounts:  # or another user could create its files first
            name += f"x{secrets.token_hex(8)}"
        worker = _Worker(server, slot, name, read_here, write_here, permits, time.monotonic())
        if slot is None:
            self._spare.append(worker)
        else:
            slot.worker = worker
        self._selector.register(worker.read, selectors.EVENT_READ, worker)
        asked = server.fork((read_there, write_there, permits[0]), worker)
        os.close(read_there)
        os.close(write_there)
        if not asked:
            self._not_forked(worker)
            return
        hello = (tuple(sys.path), os.getcwd(), self._folder, worker.name, slot.accelerator if slot else "")
        self._pin(worker, slot.cpus if slot else ())
        worker.outbox += process.framed(("begin", *hello))
        self._flush(worker)

    def _answered(self, server: ForkServer) -> None:
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
        if server.socket is not None:
            self._selector.unregister(server.socket)
        workers = [worker for worker in self._leaving if worker.server is server]
        for worker in workers:
            self._close_worker(worker)
        server.end(worker.pid for worker in workers)
        self._leaving.difference_update(workers)

    def _forked(self, worker: _Worker, pid: int) -> None:
        worker.pid, worker.watch, worker.forked_by = pid, _watch(pid), worker.server.pid
        if worker.watch >= 0:
            self._selector.register(worker.watch, selectors.EVENT_READ, worker)
        if worker.doomed or worker.read < 0:
            self._kill(worker)
        elif worker.slot is not None and worker.slot.worker is worker:
            self._send(worker.slot)

    def _not_forked(self, worker: _Worker) -> None:
        """The system is out of processes or memory at present, or the fork server has just ended."""
        slot = worker.slot
        self._close_worker(worker)
        if worker in self._spare:
            self._spare.remove(worker)
        if slot is None or slot.worker is not worker:
            return
        slot.worker, slot.failures = None, slot.failures + 1
        if slot.failures >= MAX_KILLED_STARTS:
            self._give_up(slot.device, f"its worker process could not be forked {slot.failures} times in a row")
        else:
            slot.retry_s = time.monotonic() + min(PAUSE_S * 2**slot.failures, LONGEST_PAUSE_S)

    def _renew(self, slot: _Slot) -> None:
        worker = slot.worker
        assert worker is not None and not slot.sent
        self._leaving.add(worker)
        self._close_pipes(worker)
        self._kill(worker)
        self._start(slot)
        self._stock(slot.server)

    def _kill(self, worker: _Worker) -> None:
        """Kill a worker with its process group; the fork server ends the rest of its tree. `_reaped` follows."""
        worker.doomed = True
        if worker.pid:
            self._kill_processes(worker)
            if worker.watch < 0:
                self._worker_ended(worker)

    def _kill_processes(self, worker: _Worker) -> None:
        if worker.group is not None:
            worker.group.kill()
        elif worker.forked_by != worker.server.pid:  # its fork server has died
            processes.end_tree(worker.pid)
        _sigkill(worker.pid)

    def _close_pipes(self, worker: _Worker) -> None:
        if worker.read >= 0:
            self._selector.unregister(worker.read)
            if worker.blocked:
                self._selector.unregister(worker.write)
            for descriptor in (worker.read, worker.write, *worker.permits):
                os.close(descriptor)
            worker.read = worker.write = -1

    def _close_worker(self, worker: _Worker) -> None:
        self._close_pipes(worker)
        if worker.watch >= 0:
            self._selector.unregister(worker.watch)
            os.close(worker.watch)
        worker.watch, worker.doomed = -1, True
        if worker.pid:
            self._kill_processes(worker)
            self._leaving.add(worker)

    def _worker_ended(self, worker: _Worker) -> None:
        """A worker has ended, or is about to: read its last messages, then ask the fork server for its exit status."""
        if not worker.malformed:
            self._receive(worker, to_the_end=True)
        self._close_worker(worker)
        if not worker.server.reap(worker.pid, worker):
            self._reaped(worker, UNKNOWN)

    def _wait_for_workers(self, topology: Topology) -> Topology:
        """Wait until all workers are up; the topology without the devices whose workers did not start."""
        deadline = time.monotonic() + PROCESS_START_TIMEOUT_S
        while any(slot.device not in self._down and not (slot.worker and slot.worker.ready) for slot in self._slots):
            if time.monotonic() > deadline:
                raise EngineError(
                    f"processes did not start within {PROCESS_START_TIMEOUT_S:.0f} s",
                    hint="check the load of this machine (uptime), and try again",
                )
            self._events += self.poll(0.1)
        missing = {event.device: event.why for event in self._events if isinstance(event, DeviceDown)}
        self._events.clear()
        if len(missing) == len(topology.devices):
            raise EngineError(f"no device could be started: {next(iter(missing.values()))}", where=topology.name)
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
        """A worker has ended: its current work has failed, unless we killed it; the rest goes to the next worker."""
        self._leaving.discard(worker)
        self._supervisor.forget(worker.name)
        self._unlink(f"{worker.name}-{worker.files}")  # that it was writing
        slot = worker.slot
        if worker in self._spare:
            self._spare.remove(worker)
        if slot is None or slot.worker is not worker:
            self._remove_group(worker)
            return
        slot.worker = None
        if slot.sent > 0 and worker.up and slot.work:
            self._report_death(slot, code, worker)
        self._remove_group(worker)
        slot.failures = 0 if worker.up else slot.failures + 1
        if slot.failures >= (MAX_KILLED_STARTS if code in (-signal.SIGKILL, -signal.SIGTERM) else MAX_FAILED_STARTS):
            times = f"its worker process ended {slot.failures} times in a row before it was ready"
            self._give_up(slot.device, f"{times}; {_exit_reason(code)[1]}")
        else:
            self._start(slot)

    def _remove_group(self, worker: _Worker) -> None:
        if worker.group is not None:
            worker.group.kill()
            self._old_groups.append(worker.group)
            worker.group = None
            # Those whose processes have not quite ended are removed with the next one.
            self._old_groups = [group for group in self._old_groups if not group.removed()]

    def _report_death(self, slot: _Slot, code: int, worker: _Worker) -> None:
        work, stopped = slot.work[0], slot.stopped
        if stopped is not None and stopped[0] != work.number:
            return  # it was killed because of work that had just ended: this work is sent again
        slot.work.popleft()
        self._leave(work)
        seconds = time.monotonic() - slot.since
        over, hint = memory_breach(self._watched(worker, work), self._containment)
        if stopped is None and over:
            self._events.append(Failed(work.number, LIMIT, over, slot.since, seconds, hint=hint))
        elif stopped is None:
            number, text = (
                (0, f"its process sent a malformed message: {worker.malformed}")
                if worker.malformed
                else _exit_reason(code)
            )
            self._events.append(Failed(work.number, DIED, text, slot.since, seconds, signal=number))
        elif stopped[1] == LIMIT and slot.breach is not None:
            _, _, text, hint = slot.breach
            self._events.append(Failed(work.number, LIMIT, text, slot.since, seconds, hint=hint))
        elif stopped[1] == TIMEOUT:
            text = f"it ran for more than {work.timeout_s:g} s"
            self._events.append(Failed(work.number, TIMEOUT, text, slot.since, seconds))
        else:
            self._events.append(Stopped(work.number))

    def _give_up(self, device: int, why: str) -> None:
        self._down.add(device)
        for slot in self._slots:
            if slot.device == device:
                worker, slot.worker, slot.retry_s, slot.sent = slot.worker, None, math.inf, 0
                if worker is not None:
                    self._leaving.add(worker)
                    self._kill(worker)
                for work in slot.work:
                    if self._where.pop(work.number, None) is not None:  # or it was in several queues
                        self._lent.pop(work.number, None)
                        self._unlink(self._joined.pop(work.number, None))
                        self._events.append(Stopped(work.number))
                slot.work.clear()
        self._events.append(DeviceDown(device, why))

    # --- messages

    def _send(self, slot: _Slot) -> None:
        """Send queued work to a worker that may run it. A worker that has run another job is replaced first."""
        worker = slot.worker
        if worker is None or not worker.ready or len(slot.work) == slot.sent:
            return
        if not slot.sent:
            first = slot.work[0]
            if self._where[first.number] is not slot:
                self._send(self._where[first.number])
                return
            if any(other.sent or other.work[0] is not first for other in self._lent.get(first.number, ())):
                return
            if worker.tag not in (None, _tag(first)) or worker.server is not self._server(slot):
                self._renew(slot)
                return
            if not self._confine(slot, worker, first):
                return
            slot.since = time.monotonic()
        batch: list[Work] = []
        for work in itertools.islice(slot.work, slot.sent, MAX_SENT):
            if slot.sent + len(batch) and (_tag(work) != worker.tag or work.cores > 1 or work.memory != worker.memory):
                break
            batch.append(work)
            if work.cores > 1:
                break
        try:
            os.write(worker.permits[1], _permits(worker.permitted, len(batch)))
        except BlockingIOError:  # the rest is sent when it has begun what it has
            return
        slot.sent, worker.permitted = slot.sent + len(batch), worker.permitted + len(batch)
        for work in batch:
            known = work.function.digest in worker.knows
            worker.knows.add(work.function.digest)
            code = None if known else work.function.code.at
            inputs = tuple(value.at for value in self._joined_if_large(work))
            self._grant(worker, code, work.arguments.at, *inputs)
            rest = (work.function.digest, code, work.arguments.at, inputs, *work.plain_options())
            worker.outbox += process.framed(("run", work.number, -1 if work.user else work.job, *rest))
        self._watch(slot)
        self._flush(worker)

    # --- limits

    def _confine(self, slot: _Slot, worker: _Worker, work: Work) -> bool:
        """Prepare a worker for the next work, and for the job if it is new to it; whether that was possible."""
        new, tag = worker.tag is None, _tag(work)
        worker.tag, worker.memory = tag, work.memory
        lent = self._lent.get(work.number, ())
        self._pin(worker, tuple(cpu for one in (slot, *lent) for cpu in one.cpus))
        self._began.setdefault(tag, time.monotonic())
        if not self._contained or not work.user:
            return True
        try:
            if new:
                worker.limited = bool(self._containment.job or self._containment.of_user(work.user))
                self._confine_job(worker, work)
            if worker.group is not None:
                worker.group.bound(work.memory, math.inf, work.cores)
        except (OSError, KeyError) as error:
            worker.tag = tag
            slot.work.popleft()
            self._leave(work)
            text = f"there is no user {work.user!r} on this machine" if isinstance(error, KeyError) else str(error)
            hint = f"ask the administrator: useradd {work.user}" if isinstance(error, KeyError) else ""
            self._events.append(Failed(work.number, LIMIT, f"it could not be confined: {text}", hint=hint))
            self._send(slot)
            return False
        return True

    def _confine_job(self, worker: _Worker, work: Work) -> None:
        """Put a worker under the limits of a job and, if so configured, make it a process of the job's user."""
        user, policy, account = work.user, self._containment, None
        if policy.own_accounts:
            found = pwd.getpwnam(user)
            worker.uid = found.pw_uid
            account = found.pw_uid, found.pw_gid, tuple(os.getgrouplist(user, found.pw_gid)), found.pw_dir
        if self._groups is not None:
            self._groups.user(user).bound(*_bounds(policy.of_user(user)))
            self._groups.job(user, work.job).bound(*_bounds(policy.job))
            worker.group = self._groups.worker(user, work.job, worker.name)
        temporary = self._job_folder(user, work.job)
        os.makedirs(temporary, 0o700, exist_ok=True)
        environment, limits, folders = {"TMPDIR": temporary}, [(resource.RLIMIT_CORE, 0)], []
        if math.isfinite(policy.job.disk):
            limits.append((resource.RLIMIT_FSIZE, int(policy.job.disk)))
        if account is not None:
            os.chown(temporary, account[0], account[1])
            environment |= {"HOME": account[3], "USER": user, "LOGNAME": user}
            processes_of_user = policy.of_user(user).processes
            if math.isfinite(processes_of_user):  # which the system counts by user
                limits.append((resource.RLIMIT_NPROC, int(processes_of_user)))
            if work.output is not None:
                folders.append(os.path.dirname(work.output.folder))
                os.makedirs(folders[0], 0o700, exist_ok=True)
                os.chown(folders[0], account[0], account[1])
        group = "" if worker.group is None else str(worker.group.path)
        worker.outbox += process.framed(("confine", group, environment, limits, folders, account))

    def _job_folder(self, user: str, job: int) -> str:
        """The temporary folder of a job."""
        return os.path.join(self._temporary, str(job)) if self._temporary and user else ""

    def _grant(self, worker: _Worker, *values: process.Portable | None) -> None:
        """Let the user whom a worker has become read the files of values."""
        if worker.uid is None:
            return
        for value in values:
            if value is not None and value[1] is not None:
                with contextlib.suppress(OSError):  # freed meanwhile: the worker reports it
                    self._give(self._path(value[1]), worker.uid)

    @staticmethod
    def _give(path: str, uid: int) -> None:
        """Make a user the owner of a file of ours. What a job has put in the place of its own file is left alone."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            process.check_spans((), status)
            if status.st_uid == os.geteuid():
                os.fchown(descriptor, uid, -1)
        finally:
            os.close(descriptor)

    def _watched(self, worker: _Worker, work: Work | None) -> Watched:
        user, job = worker.tag or ("", 0)
        return Watched(
            worker.name,
            worker.pid,
            user,
            job,
            self._began.get((user, job), time.monotonic()),
            -1 if work is None else work.number,
            worker.memory if work is not None else math.inf,
            worker.group,
            tuple(folder for folder in (self._folder, self._job_folder(user, job)) if folder),
        )

    def _watch(self, slot: _Slot) -> None:
        worker = slot.worker
        if worker is not None and (worker.limited or math.isfinite(worker.memory)):
            worker.limited = True
            self._supervisor.watch(self._watched(worker, slot.work[0] if slot.sent else None))

    def _on_breach(self, breach: Breach) -> None:
        """Called by the supervisor's thread."""
        self._breaches.append(breach)
        self.wake()

    def _end_breach(self, breach: Breach) -> None:
        """End the work, or what earlier work has left in an idle worker, that uses more than it may."""
        for slot in self._slots:
            worker = slot.worker
            if worker is None or worker.name != breach.worker or slot.stopped is not None:
                continue
            if not slot.sent and breach.attempt < 0:
                self._renew(slot)
            elif slot.sent and slot.work[0].number == breach.attempt:
                slot.breach = breach
                self._stop(breach.attempt, LIMIT)

    def _joined_if_large(self, work: Work) -> Sequence[Stored]:
        """The inputs of work, with the small ones in one file if together they would make a message too long."""
        if sum(len(value.at[0] or b"") for value in work.inputs) <= process.MAX_INLINE_VALUE_BYTES:
            return work.inputs
        self._unlink(self._joined.pop(work.number, None))  # if it was sent to a worker that has ended
        name = self._joined[work.number] = self._name()
        inputs, at = [], 0
        try:
            with open(self._path(name), "xb", opener=process.private) as file:
                for value in work.inputs:
                    head, apart, _, size = value.at
                    if apart is not None:
                        inputs.append(value)
                        continue
                    inputs.append(Stored((None, name, ((at, len(head)),), size), size))
                    at += file.write(head)
        except OSError:  # the memory is full: a long message is slow, but arrives
            self._unlink(self._joined.pop(work.number))
            return work.inputs
        return inputs

    def _name(self) -> str:
        """Of a new file for a value. Where other users may write into the folder, it cannot be guessed."""
        return f"e{next(self._files)}" + (f"x{secrets.token_hex(8)}" if self._containment.own_accounts else "")

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _unlink(self, name: str | None) -> None:
        if name is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(name))

    def _flush(self, worker: _Worker) -> None:
        if worker.write < 0:
            return
        try:
            del worker.outbox[: os.write(worker.write, worker.outbox) if worker.outbox else 0]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # the worker has ended; `_worker_ended` follows
            worker.outbox.clear()
        if worker.outbox and not worker.blocked:
            self._selector.register(worker.write, selectors.EVENT_WRITE, worker)
        elif not worker.outbox and worker.blocked:
            self._selector.unregister(worker.write)
        worker.blocked = bool(worker.outbox)

    def _receive(self, worker: _Worker, to_the_end: bool = False) -> None:
        """Read messages of a worker that are there; with `to_the_end`, all that it has ever sent."""
        more = True
        while more and worker.read >= 0 and not worker.malformed:
            more = to_the_end
            try:
                data = os.read(worker.read, process.READ_BYTES)
            except BlockingIOError:
                return
            if not data:  # closed; the pidfd tells when the process ends
                self._close_pipes(worker)
                if worker.watch < 0 and worker.pid and not to_the_end:
                    self._worker_ended(worker)
                return
            try:
                for message in worker.inbox.feed(data):
                    self._on_message(worker, message)
                worker.incomplete_s = time.monotonic() + MAX_MESSAGE_S if worker.inbox.rest else math.inf
            except Malformed as error:
                worker.malformed = str(error)
                if not to_the_end:
                    self._kill(worker)

    def _on_message(self, worker: _Worker, message: Message) -> None:
        """Handle a message. It is not trusted: raises `Malformed` if it is not the one that must come next."""
        slot, number = worker.slot, message.number
        if isinstance(message, messages.Ready):
            self._ready(worker, message.problem)
            return
        if slot is None or not slot.sent or slot.worker is not worker:
            raise Malformed(f"it answers attempt {number}, but runs none")
        if number != slot.work[0].number:
            raise Malformed(f"it answers attempt {number}, but runs {slot.work[0].number}")
        now_s = time.monotonic()
        self._events.append(self._event(worker, message, now_s))
        slot.sent -= 1
        work = slot.work.popleft()
        slot.since = now_s if slot.sent else math.inf
        self._leave(work)
        self._watch(slot)
        if not slot.sent:
            self._send(slot)

    def _ready(self, worker: _Worker, problem: str) -> None:
        if worker.up:
            raise Malformed("it reported twice that it is ready")
        worker.up, slot = True, worker.slot
        if slot is None:
            return
        if problem:
            self._give_up(slot.device, f"JAX finds no {slot.accelerator}: {problem}")
        elif slot.worker is worker:
            slot.failures = 0
            self._send(slot)

    def _event(self, worker: _Worker, message: messages.Done | messages.Broke, now_s: float) -> EngineEvent:
        """An answer as an event, its times clamped to what is possible."""
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
        why, rest = FAILURE_BY_STAGE[message.step], (message.type, message.traceback, message.exception)
        classes = frozenset(message.classes.split())
        return Failed(number, why, message.message, began_s, seconds, *rest, classes=classes)

    def _check_file(self, worker: _Worker, value: process.Portable) -> None:
        """Refuse a value whose file another worker wrote, or that is too short."""
        _, name, spans, _ = value
        prefix, _, number = (name or "").partition("-")
        if prefix != worker.name or not (number.isascii() and number.isdecimal()):
            raise Malformed(f"its value is in a file {name!r}, which it did not write")
        try:
            status = os.lstat(self._path(f"{prefix}-{number}"))
            process.check_spans(spans, status)
            if worker.uid not in (None, status.st_uid):
                raise Malformed(f"its value is in a file {name!r} of another user")
        except OSError as error:
            raise Malformed(f"its value is in a file that cannot be read: {error.strerror}") from None
        worker.files = int(number) + 1

    def _stop(self, number: int, why: str) -> None:
        slot = self._where.get(number)
        if slot is None or (slot.stopped is not None and slot.stopped[0] == number):
            return
        if slot.sent and slot.work[0].number != number:
            self._take_back(slot)
        elif slot.worker is not None:
            self._receive(slot.worker)  # the work may have ended by now
        if number in self._where:
            if slot.sent and slot.worker is not None and slot.work[0].number == number:
                slot.stopped = number, why
                self._kill(slot.worker)
            else:
                [work] = [work for work in slot.work if work.number == number]
                slot.work.remove(work)
                self._leave(work)
                self._events.append(Stopped(number))
        self._send(slot)

    def _take_back(self, slot: _Slot) -> None:
        """Take back what the worker has not begun: of the work in the queue, at most the first is then sent."""
        worker = slot.worker
        if worker is None or not slot.sent:
            return
        permits = b""
        if worker.read >= 0:
            with contextlib.suppress(BlockingIOError):
                permits = os.read(worker.permits[0], MAX_SENT * process.PERMIT_BYTES)
            self._receive(worker)
        if slot.worker is not worker:
            return  # it has ended: nothing is sent
        count = len(permits) // process.PERMIT_BYTES
        begun = slot.sent - count
        back = itertools.islice(slot.work, max(begun, 0), slot.sent)
        if worker.read >= 0 and (begun not in (0, 1) or permits != _permits(worker.permitted - count, count)):
            worker.malformed = "it has read or written permits of work that it does not run"
            begun = 1
        slot.sent = min(begun, 1)
        slot.since = slot.since if slot.sent else math.inf
        worker.knows.difference_update([work.function.digest for work in back])
        if worker.malformed:
            self._kill(worker)

    def _spread(self) -> None:
        """Queue work again that waits in a slot while another of its device is idle, or waits for work that is late."""
        for slot in [slot for slot in self._slots if len(slot.work) > 1]:
            late_s = time.monotonic() - LATE_S
            others = (other for other in self._slots if other.device == slot.device and _is_ready(other))
            better = (not other.work or slot.since < late_s <= other.since for other in others)
            if slot.worker is None or not any(better) or not any(map(_may_move, itertools.islice(slot.work, 1, None))):
                continue
            self._receive(slot.worker)
            if self._events:
                return  # it has ended some; what is dispatched next may fill the other slot
            self._take_back(slot)
            kept, moved = deque[Work](), deque[Work]()
            for work in slot.work:
                (moved if kept and _may_move(work) else kept).append(work)
            slot.work = kept
            self.dispatch(moved)
            self._send(slot)

    def _leave(self, work: Work) -> None:
        """Work has left the queue of its slot: take it out of the queues of further slots."""
        del self._where[work.number]
        self._unlink(self._joined.pop(work.number, None))
        lent = self._lent.pop(work.number, ())
        for slot in lent:
            slot.work.remove(work)
        for slot in lent:
            self._send(slot)

    def _next_deadline(self) -> float:
        times = [slot.since + slot.work[0].timeout_s for slot in self._slots if slot.sent]
        times += [slot.worker.incomplete_s for slot in self._slots if slot.worker and not slot.worker.malformed]
        late_s = time.monotonic() - LATE_S
        times += [slot.since + LATE_S for slot in self._slots if len(slot.work) > 1 and slot.since >= late_s]
        return min([*times, *(slot.retry_s for slot in self._slots)], default=math.inf)

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass


def _permits(after: int, count: int) -> bytes:
    """The permits that follow one of this number."""
    return b"".join(number.to_bytes(process.PERMIT_BYTES, "little") for number in range(after + 1, after + count + 1))


def _is_ready(slot: _Slot) -> bool:
    return slot.worker is not None and slot.worker.ready


def _may_move(work: Work) -> bool:
    """Whether work may change its slot: gangs, and work for several cores, are in several queues in the same order."""
    return work.cores == 1 and work.gang < 0


def _tag(work: Work) -> tuple[str, int]:
    """Work with equal tags may share a worker. If the engine has a single user (""), all jobs share workers."""
    return (work.user, work.job) if work.user else ("", 0)


def _reuse_rank(slot: _Slot, work: Work) -> int:
    """0 if the worker of a slot has run this job, 1 if it is unused, 2 if it has run another job."""
    tag = None if slot.worker is None else slot.worker.tag
    return 1 if tag is None else 0 if tag == _tag(work) else 2


def _sigkill(pid: int) -> None:
    """Kill a worker and its process group. Its pid stays valid until the fork server has reaped it."""
    for kill in (os.killpg, os.kill):  # the group exists only a moment after the fork
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _watch(pid: int) -> int:
    """A pidfd, readable when the process ends, even if others hold its pipes; -1 where the system has none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _check(topology: Topology) -> None:
    if len(topology.machines) > 1:
        raise TopologyError(
            f"it has {len(topology.machines)} machines", where=topology.name, hint="run locally on one: sy.discover()"
        )
    refuse_reconfigurable(topology, "local")


def _bounds(limit: Allowance) -> tuple[float, float, float]:
    return limit.memory, limit.processes, limit.cores


def _cpu_server(folder: str, cores: int = 1) -> ForkServer:
    threads = dict.fromkeys(process.THREAD_VARIABLES, str(cores))
    return ForkServer({"JAX_PLATFORMS": "cpu", **threads, processes.ENGINE_VARIABLE: folder}, cores)


def _slots(topology: Topology, folder: str) -> list[_Slot]:
    """The slots of all devices. CPU slots are pinned to the allowed CPUs, round-robin."""
    allowed = sorted(os.sched_getaffinity(0))
    next_cpu = itertools.cycle(allowed)
    gpus = itertools.count()
    slots = []
    cpu = _cpu_server(folder)
    for number, device in enumerate(topology.devices):
        kind = topology.kind_of[device.kind]
        if kind.type == GPU:
            environment = {"CUDA_VISIBLE_DEVICES": _visible(next(gpus)), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            gpu = ForkServer({**environment, processes.ENGINE_VARIABLE: folder})
            slots += [_Slot(number, (), GPU, gpu) for _ in range(kind.slots)]
        else:
            slots += [_Slot(number, (next(next_cpu),), "", cpu) for _ in range(kind.slots)]
    return slots


def _visible(number: int) -> str:
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return names[number] if number < len(names) else str(number)


def _exit_reason(code: int) -> tuple[int, str]:
    """The signal that ended a process (0 = none), and a message."""
    if code >= 0:
        return 0, f"its process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return -code, f"its process was ended by {name}"


def _folder() -> str:
    shared = Path("/dev/shm")
    root = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    return str(scratch(root, "symphony", lambda old: processes.end_marked(str(old))))
