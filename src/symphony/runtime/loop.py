"""The loop: what an engine says becomes events of the core, what the core answers becomes work for the engine.

One thread runs it and owns everything in it; others leave requests and wake it. The core keeps the queues. To an engine
goes what the core has started, and, where everything on a device is short, the next kernels of its queue: what is long
would wait behind the wrong one. So an engine may be ahead of the core, which hears of a gang that has finished before
it has started it; that news is kept until it has.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from symphony.engines.engine import (
    DeviceDown,
    DeviceUp,
    Engine,
    EngineEvent,
    Failed,
    Finished,
    Function,
    Stopped,
    Work,
)
from symphony.problem.errors import (
    EngineError,
    InfeasibleError,
    SymphonyError,
)
from symphony.runtime import turn as happened
from symphony.runtime.failures import error_of, is_run_again
from symphony.runtime.handling_time import HandlingTime
from symphony.runtime.jobs import (
    CANCELLED,
    DONE,
    FAILED,
    Attempt,
    JobState,
    TaskRun,
    cancelled,
    inputs_of,
    size_of,
    value_of,
)
from symphony.runtime.kernels import RunnableKernel
from symphony.runtime.live_workload import Shapes, problem_arrays
from symphony.runtime.machine_observer import DeviceOccupancy, MachineObserver
from symphony.runtime.scheduler import Scheduler
from symphony.runtime.turn import EVENTS_PER_TURN, SchedulerEvent, TurnCommands
from symphony.training_jobs.live.checkpoints import CheckpointFolders
from symphony.training_jobs.live.rounds import RoundLearner, TrainingJobTracker
from symphony.training_jobs.live.supervisor import TrainingSupervisor

log = logging.getLogger("symphony.runtime")
SHORT_KERNEL_S = 5e-3  # a kernel that is expected to take less may be sent ahead: one for each slot …
MAX_AHEAD_S, MAX_AHEAD_TASKS = 1e-3, 16  # … or as many as take so long, and no more than this


class Loop:
    """A scheduler and an engine at work."""

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        functions: Callable[[RunnableKernel, str], Function],
        checkpoints: CheckpointFolders,
        rounds: RoundLearner,
    ) -> None:
        self.engine, self.scheduler, self._functions = engine, scheduler, functions
        self.topology = engine.inventory()
        self.requests: deque[Callable[[], None]] = deque()  # left by other threads
        self.closing = False
        self.failed: Callable[[], None] = lambda: None  # told when it cannot go on, by its own thread
        self._backlog: deque[JobState] = deque()
        self._admitted: dict[int, JobState] = {}  # by their number in the core
        self._arrivals = 0
        self._attempts: dict[int, TaskRun] = {}  # under way
        self._numbers = itertools.count()
        self._occupancy = DeviceOccupancy(self.topology)
        self._slots = [self.topology.kind_of[device.kind].slots for device in self.topology.devices]
        kinds = [kind.name for kind in self.topology.kinds]
        self._kind = [kinds.index(device.kind) for device in self.topology.devices]
        self.observer = MachineObserver(engine, scheduler, self._occupancy)
        self._down: set[int] = set()
        self._trials: dict[tuple[str, int], TaskRun] = {}  # kernels on device kinds that they have never run on
        self._events: deque[SchedulerEvent] = deque()  # for the core
        self._early: dict[int, SchedulerEvent] = {}  # gangs that have finished, of which the core has not heard
        self._wakes_s = math.inf  # when the policy wants to be asked again
        self._own_time = HandlingTime(len(self.topology.devices))
        self._zero_s = time.monotonic()  # policies are told the time since then: they take theirs to have begun at 0
        self.saving = TrainingSupervisor(
            engine, checkpoints, lambda run: scheduler.books.forbid_preemption(run.job.row, run.index)
        )
        rounds.done = self._post
        self.rounds = TrainingJobTracker(
            rounds,
            checkpoints,
            scheduler,
            self._occupancy.on,
            self._occupancy.left_s,
            lambda: self._events.append(SchedulerEvent(happened.ROUND)),
        )

    # --- what others ask for; each is run by the loop's own thread

    def submit(self, job: JobState) -> None:
        """Let a job in as soon as there is room."""
        job.heard_s = self._own_time.heard_s
        self._backlog.append(job)

    def cancel(self, job: JobState) -> None:
        """Give a job up."""
        self._abandon(job, cancelled(job), CANCELLED)

    def attempt(self, number: int) -> TaskRun | None:
        """The task that an attempt runs; None if it has ended."""
        return self._attempts.get(number)

    def _post(self, request: Callable[[], None]) -> None:
        """Have the loop's thread do something. Any thread may ask."""
        self.requests.append(request)
        self.engine.wake()

    def used_s(self) -> dict[int, float]:
        """Device-seconds of what runs, by the numbers of jobs. Any thread may ask."""
        now_s, found = time.monotonic(), dict[int, float]()
        for run in tuple(self._attempts.values()):
            attempt = run.attempts[-1]
            taken_s = (now_s - attempt.sent_s) * len(attempt.devices)
            found[run.job.number] = found.get(run.job.number, 0.0) + taken_s
        return found

    @property
    def down(self) -> frozenset[int]:
        """Devices that take no work at present. Any thread may ask."""
        return frozenset(self._down)

    @property
    def busy(self) -> bool:
        """Whether a job is not over."""
        return bool(self._backlog or self._admitted or self._attempts)

    def run(self) -> None:
        """Until it is told to close."""
        while not self.closing:
            self.step(3600.0)
        self.observer.close()
        self.rounds.close()
        self._abandon_all(EngineError("the cluster was closed", hint="read results before it is closed"))

    def step(self, timeout_s: float) -> None:
        """A cycle; if that fails, it is the last one, and who waits for a job is told."""
        try:
            self.cycle(timeout_s)
        except Exception as error:
            log.exception("the loop has ended")
            self.closing = True
            self._abandon_all(EngineError(f"the scheduler has ended: {type(error).__name__}: {error}"))
            self.failed()

    def cycle(self, timeout_s: float) -> None:
        """Hear what has happened, have the core decide what follows, and then learn from it."""
        wakes_in_s = max(self._wakes_s - time.monotonic(), 0.0)
        events = self.engine.poll(min(timeout_s, wakes_in_s, self.saving.wait_s(), self.rounds.wait_s()))
        self._own_time.events_received(time.monotonic())
        for event in events:
            self._on_event(event)
        self.saving.poll()
        while self.requests:
            self.requests.popleft()()
        self.rounds.update(time.monotonic())
        if not self._events and time.monotonic() >= self._wakes_s:
            self._events.append(SchedulerEvent(happened.WOKEN))
        while True:
            while self._events:
                batch = [self._events.popleft() for _ in range(min(len(self._events), EVENTS_PER_TURN))]
                began_s = time.monotonic()
                answer = self.scheduler.turn(batch, began_s - self._zero_s, self.observer.loads(began_s))
                self._own_time.turn_taken(answer.decisions, time.monotonic() - began_s)
                self._wakes_s = began_s + answer.wake_s
                self._early |= {batch[k].who: batch[k] for k in answer.early.nonzero()[0]}
                self._carry_out(answer)
            self.observer.set_busy(bool(self._attempts))
            self._admit_waiting()  # only now: gangs may get other numbers, and no event that waits must have an old one
            if not self._events:
                break
            self._own_time.events_received(time.monotonic())  # of jobs: what letting them in took is theirs
        self.observer.learn()

    # --- jobs come

    def _admit_waiting(self) -> None:
        let_in = []
        while self._backlog and self.scheduler.books.free:
            job = self._backlog.popleft()
            try:
                self._admit(job)
                let_in.append(job)
            except SymphonyError as error:
                self._abandon(job, error, FAILED)
        heard_s, now_s = self._own_time.heard_s, time.monotonic()
        for job in let_in:  # all are decided on when the last of them is there
            job.admitting_s = now_s - (job.submitted_s if job.heard_s == heard_s else heard_s)  # or of what made room

    def _admit(self, job: JobState) -> None:
        books = self.scheduler.books
        for run in job.runs:
            self._check_runnable(run)
        sizes = [run.arguments.size for run in job.runs]
        kernels, graph = books.lowered(job.graph, sizes)
        workers = max(len(gang.tasks) for gang in graph.all_gangs)
        room = books.shapes.to_hold(len(graph.all_gangs), max(len(graph.gang_edges), 1), len(kernels), workers)
        if room != books.shapes:
            self._grow(room)
            books = self.scheduler.books
        arrays = problem_arrays(books.topology, kernels, graph)
        for run in job.runs:
            run.trial = self._trial(run)
            if run.trial >= 0:
                arrays.runs_on[0, run.index] = 1 << run.trial
            if not run.missing:
                run.ready_s = time.monotonic()
        job.row = books.add(job.graph, sizes, arrays)
        job.admitted, self._arrivals = self._arrivals, self._arrivals + 1
        self._admitted[job.admitted] = job
        self.rounds.admitted(job)
        self._events.append(SchedulerEvent(happened.ARRIVED, graph=job.row, priority=job.priority))

    def _grow(self, room: Shapes) -> None:
        """Make room in the core; gangs get other numbers there."""
        before = self.scheduler.books.shapes.tasks
        self.scheduler.grow(room)
        moved = {gang // before * room.tasks + gang % before: event for gang, event in self._early.items()}
        self._early = {gang: replace(event, who=gang) for gang, event in moved.items()}

    def _trial(self, run: TaskRun) -> int:
        """A device kind that a kernel has never run on, unless another task tries that already; -1 = none."""
        books, key = self.scheduler.books, run.kernel.key
        kinds = [kind for kind in books.kinds_of(run.kernel) if not self._all_down(kind)]
        options = run.kernel.options
        # A training job is long, and shows its speed while it runs.
        if len(kinds) < 2 or options.workers > 1 or options.training is not None:
            return -1
        for kind in kinds:
            named = books.topology.kinds[kind]
            # A CPU has many processes, each with its first run. An accelerator has one, and compiles in that.
            tried = books.profiles.tried(key, named.name, warm=named.type != "cpu")
            if (key, kind) not in self._trials and not tried:
                self._trials[key, kind] = run
                return kind
        return -1

    def _all_down(self, kind: int) -> bool:
        return all(device in self._down for device, mine in enumerate(self._kind) if mine == kind)

    # --- what the core answers

    def _carry_out(self, answer: TurnCommands) -> None:
        slot_of = {int(number): slot for slot, number in enumerate(answer.jobs) if number >= 0}
        for number, job in list(self._admitted.items()):
            if number in slot_of:
                job.slot = slot_of[number]
            elif job.slot >= 0:  # it has left; one that never had a slot has not arrived yet
                del self._admitted[number]
                self.scheduler.books.remove(job.row)
        to_send = [*self._begun(answer)]
        to_send += self._ahead(answer, to_send)
        if to_send:
            work = [self._work(*one) for one in to_send]
            handled = [run.attempts[-1].handled_s for run, _, ahead in to_send if not ahead]
            self.scheduler.statistics.handling_s.extend(handled)
            self.engine.dispatch(work)
        for gang in answer.saved.tolist():  # only now: it may have started within this turn
            run = self._run_of(gang, answer) if gang >= 0 else None
            if run is not None and run.number >= 0:
                self.saving.stop(run)

    def _begun(self, answer: TurnCommands) -> Iterator[tuple[TaskRun, list[int], bool]]:
        """What the core has started and the engine does not have."""
        # One that a device has failed under may have started twice within this turn: it is where it started last.
        places = dict(zip(answer.started.tolist(), answer.devices.tolist(), strict=True))
        for gang, devices in places.items():
            if gang < 0:
                return
            if not self._down.isdisjoint(devices):
                continue  # the device failed under it within this turn: the core has placed it again, or will
            if gang in self._early:
                self._events.append(self._early.pop(gang))
                continue
            run = self._run_of(gang, answer)
            if run is None or run.value is not None:
                continue  # over, and the core has heard so within this turn
            run.device = devices[0]
            if run.number < 0 and run.job.over.is_set():
                self._report_stopped(run)  # its job was given up in the same turn
            elif run.number < 0:
                yield run, [device for device in devices if device >= 0], False

    def _ahead(
        self, answer: TurnCommands, to_send: list[tuple[TaskRun, list[int], bool]]
    ) -> Iterator[tuple[TaskRun, list[int], bool]]:
        """What may be sent ahead: the next of a queue, while everything on its device is short."""
        sent = [len(runs) for runs in self._occupancy.on]
        new = [(run, device) for run, devices, _ in to_send for device in devices]
        begins = {id(run) for run, _ in new}
        for _, device in new:
            sent[device] += 1
        if not any(sent):
            return
        short = [
            all(self._seconds(run, device) < SHORT_KERNEL_S for run in runs)
            for device, runs in enumerate(self._occupancy.on)
        ]
        for run, device in new:
            short[device] = short[device] and self._seconds(run, device) < SHORT_KERNEL_S
        if not any(short):
            return
        for gang, device in self.scheduler.queued():
            found = self._run_of(gang, answer)
            if not short[device] or found is None or id(found) in begins or found.job.over.is_set():
                continue
            if found.number >= 0 or found.value is not None or found.kernel.options.workers > 1:
                continue
            seconds = self._seconds(found, device)
            room = min(max(MAX_AHEAD_S / seconds, 1.0), MAX_AHEAD_TASKS)
            short[device] = seconds < SHORT_KERNEL_S and sent[device] < self._slots[device] * (1 + room)
            if short[device]:
                sent[device] += 1
                yield found, [device], True

    def _run_of(self, gang: int, answer: TurnCommands) -> TaskRun | None:
        """The task of a gang; None if its job has left the core."""
        tasks = self.scheduler.books.shapes.tasks
        job = self._admitted.get(int(answer.jobs[gang // tasks]))
        return None if job is None else job.runs[gang % tasks]

    def _seconds(self, run: TaskRun, device: int) -> float:
        """That a task is expected to take; for ever, if nobody knows, or it trains."""
        if run.kernel.options.training is not None:
            return math.inf
        timing = self.scheduler.books.profiles.timing(run.kernel.key, self._kind_name(device))
        return timing.seconds(size_of(run)) if timing.runs else math.inf

    def _kind_name(self, device: int) -> str:
        return self.topology.devices[device].kind

    def _work(self, run: TaskRun, devices: list[int], ahead: bool) -> Work:
        """A new attempt at a task."""
        books, size, device = self.scheduler.books, size_of(run), devices[0]
        timing = books.profiles.timing(run.kernel.key, self._kind_name(device))
        run.number = next(self._numbers)
        run.job.began()
        self._attempts[run.number] = run
        self._occupancy.add(run, devices)
        named = tuple(self.topology.devices[each].name for each in devices)
        sent_s = time.monotonic()
        expected = (
            (timing.seconds(size), timing.spread(size))
            if run.kernel.options.training is None
            else (books.expected(run.job.row, run.index, run.kernel, self._kind[device]))
        )
        attempt = Attempt(named, sent_s, *expected, ahead)
        attempt.handled_s = self._own_time.handling_s(sent_s)
        run.attempts.append(attempt)
        implementation = books.function(run.kernel, self._kind[device])
        assert implementation is not None
        work = Work(
            run.number,
            device,
            self._functions(run.kernel, implementation),
            run.arguments,
            tuple(inputs_of(run)),
            timeout_s=run.kernel.options.timeout_s,
            others=tuple(devices[1:]),
            job=run.job.number,
        )
        return self.saving.begin(run, work)

    # --- what the engine says

    def _on_event(self, event: EngineEvent) -> None:
        if isinstance(event, DeviceDown):
            self._device_down(event)
        elif isinstance(event, DeviceUp):
            self._device_up(event.device)
        else:
            run = self._attempts.pop(event.number, None)
            if run is not None:
                self.saving.ended(run, event.number)
                self._ended(run, event)

    def _ended(self, run: TaskRun, event: Finished | Failed | Stopped) -> None:
        attempt = run.attempts[-1]
        devices = self._occupancy.remove(run)
        run.number = -1
        if not isinstance(event, Stopped):
            attempt.began_s, attempt.seconds = event.began_s, event.seconds
        if run.job.over.is_set():
            attempt.ended = attempt.ended or "given up"
            if isinstance(event, Finished):
                self.engine.free(event.value)
            self._report_stopped(run)
            self._forget(run.job)
        elif isinstance(event, Finished):
            attempt.ended, attempt.cold = "done", event.cold
            self.observer.finished(run, devices[0], event, self._own_time.held_s(run, devices[0], event))
            self._end_trial(run)
            run.value = event.value
            self._report_finished(run)
        elif isinstance(event, Stopped):
            attempt.ended = "stopped"
            self._report_stopped(run)
        else:
            attempt.ended = event.message or event.why
            self._failed(run, event)

    def _report_finished(self, run: TaskRun) -> None:
        """Tell the core, and whoever waits for the value."""
        job, books = run.job, self.scheduler.books
        run.device = -1
        self._events.append(SchedulerEvent(happened.FINISHED, self._gang(run)))
        now = time.monotonic()
        for index in job.readers[run.index]:
            reader = job.runs[index]
            reader.missing -= 1
            if not reader.missing:
                reader.ready_s = now
                made = {source: value_of(job.runs[source]).size for source in reader.call.reads}
                books.inputs_known(job.row, index, made, size_of(reader))
        for source in run.call.reads:
            self._read(job.runs[source])
        self.engine.free(run.arguments)
        job.unfinished -= 1
        if not job.unfinished:
            self._complete(job)

    def _read(self, run: TaskRun) -> None:
        """One reader less; a value that nobody will read is forgotten."""
        run.readers -= 1
        if not run.readers and run.index not in run.job.graph.outputs:
            self.engine.free(value_of(run))

    def _report_stopped(self, run: TaskRun) -> None:
        """It has to be placed again, unless its job is given up; if the core has not started it, it still waits."""
        if run.device >= 0:
            run.device = -1
            self.rounds.stopped(run)
            self._events.append(SchedulerEvent(happened.STOPPED, self._gang(run)))

    def _gang(self, run: TaskRun) -> int:
        return run.job.slot * self.scheduler.books.shapes.tasks + run.index

    def _end_trial(self, run: TaskRun) -> None:
        if self._trials.get((run.kernel.key, run.trial)) is run:
            del self._trials[run.kernel.key, run.trial]

    def _failed(self, run: TaskRun, event: Failed) -> None:
        self._end_trial(run)
        self._report_stopped(run)
        if is_run_again(run, event):
            run.lost += 1
            log.warning("%s: %s; it is run again", run.job.where(run), event.message)
        else:
            run.job.cause = event.exception
            self._abandon(run.job, error_of(run, event), FAILED)

    # --- devices

    def _device_down(self, event: DeviceDown) -> None:
        self._down.add(event.device)
        kind = self._kind[event.device]
        log.warning("device %s is down: %s", self.topology.devices[event.device].name, event.why)
        self._events.append(SchedulerEvent(happened.FAILED, event.device))
        all_down = self._all_down(kind)
        for job in list(self._admitted.values()):
            for run in job.runs if all_down else ():
                if run.trial == kind and run.value is None and job.slot >= 0:  # it may run elsewhere, after all
                    bits = sum(1 << k for k in self.scheduler.books.kinds_of(run.kernel))
                    self.scheduler.allow(self._gang(run), bits)
                    self._end_trial(run)
                    run.trial = -1
            try:
                for run in job.runs:
                    self._check_runnable(run)
            except InfeasibleError as error:
                self._abandon(job, error, FAILED)

    def _device_up(self, device: int) -> None:
        """What may run there, and waits in a queue elsewhere, is placed again: it went there while this was away."""
        self._down.discard(device)
        self._events.append(SchedulerEvent(happened.REPAIRED, device))
        books, jobs = self.scheduler.books, {job.slot: job for job in self._admitted.values()}
        for gang, _ in self.scheduler.queued():
            run = jobs[gang // books.shapes.tasks].runs[gang % books.shapes.tasks]
            sent_ahead = run.number >= 0 or run.value is not None  # the engine does not give it back
            if not sent_ahead and self._kind[device] in books.kinds_of(run.kernel):
                self._events.append(SchedulerEvent(happened.RECALLED, gang))

    def _check_runnable(self, run: TaskRun) -> None:
        """Refuse a task for which too few devices are up."""
        kinds = self.scheduler.books.kinds_of(run.kernel)
        up = sum(kind in kinds and device not in self._down for device, kind in enumerate(self._kind))
        if run.value is None and up < run.kernel.options.workers:
            left = f"{up} of the {run.kernel.options.workers} devices that it needs" if up else "no device"
            raise InfeasibleError(
                f"kernel {run.kernel.name!r} has {left} left{'' if up else ' that can run it'}",
                where=run.job.where(run),
                hint="give it another implementation, or repair the device and submit the job again",
            )

    # --- jobs go

    def _complete(self, job: JobState) -> None:
        """Its results are ours from now on: they stay when the engine forgets them."""
        try:
            job.values += [self.engine.get(value_of(job.runs[index])) for index in job.graph.outputs]
        except EngineError as error:  # one was lost with its machine
            job.error = error
        for index in set(job.graph.outputs):
            self.engine.free(value_of(job.runs[index]))
        self.saving.job_over(job)
        self._close(job, FAILED if job.error else DONE)

    def _abandon(self, job: JobState, error: SymphonyError, status: str) -> None:
        if job.over.is_set():
            return
        job.error = error
        if job in self._backlog:
            self._backlog.remove(job)
        if job.admitted in self._admitted:
            tasks = self.scheduler.books.shapes.tasks
            self._early = {gang: event for gang, event in self._early.items() if gang // tasks != job.slot}
            self._events.append(SchedulerEvent(happened.DROPPED, job.slot))
        self._close(job, status)
        for run in job.runs:
            self._end_trial(run)
            if run.number >= 0:
                self.engine.cancel(run.number)
        self._forget(job)

    def _forget(self, job: JobState) -> None:
        """Free what a job that was given up has made, once nothing of it runs any more."""
        if any(run.number >= 0 for run in job.runs):
            return
        self.saving.job_over(job)
        for run in job.runs:
            self.engine.free(run.arguments)
            if run.value is not None:
                self.engine.free(run.value)

    def _close(self, job: JobState, status: str) -> None:
        job.ended_s, job.status = time.monotonic(), status
        job.over.set()
        if job.heard is not None:
            job.heard(job)

    def _abandon_all(self, error: EngineError) -> None:
        while self.requests:
            self.requests.popleft()()
        for job in [*self._backlog, *self._admitted.values()]:
            if not job.over.is_set():
                job.error = error
                self._close(job, FAILED)
