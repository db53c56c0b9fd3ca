"""The loop between the core and an engine: engine events become events of the core, commands of the core become work.

One thread runs the loop and owns its state. Other threads queue requests and wake it. The core keeps the queues. The
engine receives the gangs that the core has started, and short ones ahead of time (`sending_ahead.py`). So a gang may
finish before the core has started it; its event is kept until then.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from symphony.engines.engine import DeviceDown, DeviceUp, Engine, EngineEvent, Failed, Finished, Function, Stopped, Work
from symphony.problem import units
from symphony.problem.errors import (
    EngineError,
    InfeasibleError,
    JobCancelledError,
    KernelTimeoutError,
    SymphonyError,
)
from symphony.runtime import turn as happened
from symphony.runtime.failures import ending, error_of, is_run_again, retry_delay_s
from symphony.runtime.handling_time import HandlingTime
from symphony.runtime.jobs import (
    CANCELLED,
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    Attempt,
    JobState,
    TaskRun,
    inputs_of,
    size_of,
    slots_of,
    value_of,
)
from symphony.runtime.kernels import RunnableKernel
from symphony.runtime.live_workload import Shapes
from symphony.runtime.machine_observer import DeviceOccupancy, MachineObserver
from symphony.runtime.report import KILLED_RUN
from symphony.runtime.scheduler import Scheduler
from symphony.runtime.sending_ahead import SendingAhead
from symphony.runtime.snapshots import TaskSketch, sketches
from symphony.runtime.task_window import MAX_WHOLE_TASKS, TaskWindow, places
from symphony.runtime.turn import SchedulerEvent, TurnCommands
from symphony.training_jobs.live.checkpoint_folders import CheckpointFolders
from symphony.training_jobs.live.rounds import RoundLearner, TrainingJobTracker
from symphony.training_jobs.live.supervisor import TrainingSupervisor

log = logging.getLogger("symphony.runtime")


class Loop:
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
        self.requests: deque[Callable[[], None]] = deque()  # from other threads
        self.closing = False
        self.failed: Callable[[], None] = lambda: None  # called by the loop's thread if the loop fails
        self._backlog: deque[JobState] = deque()
        self._admitted: dict[int, JobState] = {}  # by number in the core
        self._arrivals = itertools.count()
        self._attempts: dict[int, TaskRun] = {}  # that run
        self._numbers = itertools.count()
        self.occupancy = DeviceOccupancy(self.topology)
        self._slots = sum(self.topology.kind_of[device.kind].slots for device in self.topology.devices)
        kinds = [kind.name for kind in self.topology.kinds]
        self._kind = [kinds.index(device.kind) for device in self.topology.devices]
        self.observer = MachineObserver(engine, scheduler, self.occupancy)
        self._down: set[int] = set()
        self._trials: dict[tuple[str, int], TaskRun] = {}  # first runs of kernels on device kinds
        self._events: deque[SchedulerEvent] = deque()  # for the core
        self._early: dict[int, SchedulerEvent] = {}  # by gang: finished before the core has started it
        self._wakes_s = math.inf  # until when the policy asked to wait
        self._slot_jobs: list[int] = []  # number of the job in each slot of the core, as of the last turn …
        self._in_slot: dict[int, JobState] = {}  # … and the job
        self._ahead = SendingAhead(self.topology, scheduler.workload.profiles)
        self._names = [(device.name,) for device in self.topology.devices]
        self._delayed: list[TaskRun] = []  # admitted tasks that may not be tried again yet
        self._limited: list[JobState] = []  # running jobs with a time limit
        self._own_time = HandlingTime(len(self.topology.devices))
        self._zero_s = time.monotonic()  # time 0 of the core
        self.saving = TrainingSupervisor(
            engine,
            checkpoints,
            lambda run: scheduler.workload.forbid_preemption(run.job.row, run.index),
            rounds.round_s,
        )
        rounds.done = self.post
        self.rounds = TrainingJobTracker(
            rounds,
            checkpoints,
            scheduler,
            self.occupancy.on,
            self.occupancy.left_s,
            lambda: self._events.append(SchedulerEvent(happened.ROUND)),
        )

    # --- from any thread

    def post(self, request: Callable[[], None]) -> None:
        """Have the loop's thread call a function."""
        self.requests.append(request)
        self.engine.wake()

    def running(self) -> list[TaskRun]:
        """Tasks with an attempt that runs."""
        return list(self._attempts.copy().values())

    def used_s(self) -> dict[int, float]:
        """Device-seconds of running attempts, by job number."""
        now_s, used_s = time.monotonic(), defaultdict[int, float](float)
        for run in self.running():
            attempt = run.attempts[-1]
            used_s[run.job.number] += (now_s - attempt.sent_s) * len(attempt.devices)
        return used_s

    @property
    def down(self) -> frozenset[int]:
        """Devices that are unavailable now."""
        return frozenset(self._down)

    # --- from the loop's own thread

    def submit(self, job: JobState) -> None:
        """Admit a job as soon as a row of the workload is free."""
        job.received_s = self._own_time.received_s
        self._backlog.append(job)

    def cancel(self, job: JobState) -> None:
        error = JobCancelledError("it was cancelled", where=f"job {job.number} ({job.graph.name!r})")
        self._abandon(job, error, CANCELLED)

    def prioritise(self, priorities: Mapping[int, int]) -> None:
        """Change the priorities of jobs, by their numbers, and place queued work again where the order has changed."""
        changed = {}
        for job in [*self._backlog, *self._admitted.values()]:
            if priorities.get(job.number, job.priority) != job.priority:
                job.priority = priorities[job.number]
                if job.slot >= 0:
                    changed[job.slot] = job.priority
        if changed:
            self.scheduler.prioritise(changed)
            self._recall_below(max((job.priority for job in self._admitted.values()), default=0))

    def _recall_below(self, priority: int) -> None:
        """Place queued gangs of lower priority again: they would keep others waiting."""
        workload, jobs = self.scheduler.workload, {job.slot: job for job in self._admitted.values() if job.slot >= 0}
        if all(job.priority >= priority for job in jobs.values()):
            return
        for gang, _ in self.scheduler.queued():
            job = jobs.get(gang // workload.shapes.tasks)
            run = None if job is None else self._task(job, gang % workload.shapes.tasks)
            if run is not None and run.job.priority < priority and not _is_sent(run):
                self._events.append(SchedulerEvent(happened.RECALLED, gang))

    def attempt(self, number: int) -> TaskRun | None:
        """The task that an attempt runs; None if it has ended."""
        return self._attempts.get(number)

    def jobs_now(self) -> list[tuple[JobState, list[TaskSketch]]]:
        """Jobs that have not ended with their unfinished tasks, those that the core has first."""
        now_s, index = time.monotonic(), {device.name: n for n, device in enumerate(self.topology.devices)}
        return [
            (job, sketches(job, index, now_s)) for job in [*self._admitted.values(), *self._backlog] if job.unfinished
        ]

    @property
    def busy(self) -> bool:
        """True while a job has not ended."""
        return bool(self._backlog or self._admitted or self._attempts)

    def run(self) -> None:
        """Run cycles until `closing` is set."""
        while not self.closing:
            self.step(3600.0)
        try:
            self.observer.learn(last=True)
        except Exception:
            log.exception("the last runs are not learned from")
        self.observer.close()
        self.rounds.close()
        self._abandon_all(EngineError("the cluster was closed", hint="read results before it is closed"))

    def step(self, timeout_s: float) -> None:
        """One cycle. If it raises an exception, the loop closes, and all jobs fail with that error."""
        try:
            self.cycle(timeout_s)
        except Exception as error:
            log.exception("the scheduler failed; all of its jobs fail")
            self.closing = True
            self._abandon_all(EngineError(f"the scheduler failed: {type(error).__name__}: {error}"))
            self.failed()

    def cycle(self, timeout_s: float) -> None:
        """Receive events, take turns until none are left, then learn from finished runs."""
        wakes_in_s = max(self._wakes_s - time.monotonic(), 0.0)
        waits = (wakes_in_s, self.saving.wait_s(), self.rounds.wait_s(), self._retry_wait_s(), self._limit_wait_s())
        events = self.engine.poll(min(timeout_s, *waits))
        self._own_time.events_received(time.monotonic())
        for event in events:
            self._on_event(event)
        self.saving.poll()
        while self.requests:
            self.requests.popleft()()
        self._end_overdue(time.monotonic())
        self.rounds.update(time.monotonic())
        self._release_delayed(time.monotonic())
        if not self._events and time.monotonic() >= self._wakes_s:
            self._events.append(SchedulerEvent(happened.WOKEN))
        while True:
            while self._events:
                count = min(len(self._events), self.scheduler.events_per_turn)
                self._take_turn([self._events.popleft() for _ in range(count)])
            self.observer.set_busy(bool(self._attempts))
            self._admit_waiting()  # after all events: admission may renumber the gangs that events refer to
            if not self._events:
                break
            self._own_time.events_received(time.monotonic())  # of arrivals: admission counts for the jobs themselves
        self.observer.learn()

    def _take_turn(self, events: list[SchedulerEvent]) -> None:
        if self._early and self.scheduler.is_plain:  # else they are sent again when the core has started their gangs
            events = [*self._early.values(), *events]
            self._early.clear()
        began_s = time.monotonic()
        commands = self.scheduler.turn(events, began_s - self._zero_s, self.observer.loads(began_s))
        self._own_time.turn_taken(commands.decisions, time.monotonic() - began_s)
        self._wakes_s = began_s + commands.wake_s
        early = set(commands.early)
        self._early |= {events[number].who: events[number] for number in early}
        self._carry_out(commands)
        if any(job.window is not None for job in self._admitted.values()):
            for number, event in enumerate(events):
                if event.kind == happened.FINISHED and number not in early:
                    self._left(event.who)

    # --- admission

    def _admit_waiting(self) -> None:
        admitted = []
        while self._backlog and self.scheduler.workload.free:
            job = self._backlog.popleft()
            try:
                self._admit(job)
                admitted.append(job)
            except SymphonyError as error:
                self._abandon(job, error, FAILED)
        if admitted:  # after all of them: admission may renumber gangs
            self._recall_below(max(job.priority for job in admitted))
        received_s, now_s = self._own_time.received_s, time.monotonic()
        for job in admitted:  # the next turn begins when all of them are admitted
            # A job that had to wait is admitted after the event that freed a row.
            job.admitting_s = now_s - (job.submitted_s if job.received_s == received_s else received_s)

    def _admit(self, job: JobState) -> None:
        workload = self.scheduler.workload
        for run in {run.kernel: run for run in job.runs}.values():
            self._check_runnable(run)
        trains = any(kernel.options.training is not None for kernel in {run.kernel for run in job.runs})
        if (len(job.runs) > MAX_WHOLE_TASKS or math.isfinite(job.limits.slots)) and not trains:
            self._admit_window(job)
            return
        sizes = [run.arguments.size for run in job.runs]
        kernels, workers = workload.kernels_with(job.graph), max(run.kernel.options.workers for run in job.runs)
        edges = sum(len(run.call.reads) for run in job.runs)
        shapes = workload.shapes.to_hold(len(job.runs), max(edges, 1), kernels, workers)
        if shapes != workload.shapes:
            self._grow(shapes)
            workload = self.scheduler.workload
        job.row = workload.add(job.graph, sizes)
        for run in job.runs:
            run.place, run.trial = run.index, self._trial(run)
            if run.trial >= 0:
                workload.w.runs_on[job.row, run.index] = 1 << run.trial
            if run.retry_s > time.monotonic():
                workload.w.runs_on[job.row, run.index] = 0
                self._delayed.append(run)
            if not run.missing:
                run.ready_s = time.monotonic()
        self._arrives(job)
        self.rounds.admitted(job)

    def _arrives(self, job: JobState) -> None:
        job.admitted = next(self._arrivals)
        self._admitted[job.admitted] = job
        self._events.append(SchedulerEvent(happened.ARRIVED, graph=job.row, priority=job.priority))

    def _admit_window(self, job: JobState) -> None:
        """Admit a graph that is large, or whose user has a limit: its tasks enter the core when they are ready and
        there is room.
        """
        room = min(
            places(self._slots),
            job.limits.slots + 1,
            len(job.runs) + 1,
        )
        workload, job.window = self.scheduler.workload, TaskWindow(int(room))
        workers = max(run.kernel.options.workers for run in job.runs)
        shapes = workload.shapes.to_hold(len(job.window.tasks), 1, workload.kernels_with(job.graph), workers)
        if shapes != workload.shapes:
            self._grow(shapes)
            workload = self.scheduler.workload
        job.row = workload.add_window(job.graph)
        now_s = time.monotonic()
        for run in job.runs:
            if not run.missing:
                run.ready_s = now_s
                job.window.waiting.append(run)
        self._arrives(job)

    def _enter(self, job: JobState) -> None:
        """Tell the core of ready tasks of a large graph, as many as have a place and its user may run."""
        window, workload = job.window, self.scheduler.workload
        assert window is not None
        while window.free and window.waiting and not job.over.is_set():
            most = job.limits.slots
            if math.isfinite(most) and self._held_slots(job.limits.user) + slots_of(window.waiting[0]) > most:
                return
            run = window.waiting.popleft()
            run.trial = self._trial(run)
            kinds = 1 << run.trial if run.trial >= 0 else workload.kind_bits(run.kernel)
            if run.retry_s > time.monotonic():
                kinds = 0
                self._delayed.append(run)
            place = window.enter(run, (run.kernel, kinds))
            workload.enter(job.row, place, run.kernel, size_of(run), kinds)
            self._events.append(SchedulerEvent(happened.ENTERED, self._gang(run)))

    def _held_slots(self, user: str) -> int:
        """Slots of the tasks of a user that the core knows; 0 for no user."""
        mine = [job.window for job in self._admitted.values() if user and job.limits.user == user and job.window]
        return sum(slots_of(run) for window in mine for run in window.tasks if run is not None)

    def _enter_all(self, user: str) -> None:
        """A task of a user has left the core: others of that user may enter. Urgent and early jobs are first."""
        mine = [one for one in self._admitted.values() if one.limits.user == user and one.window and one.slot >= 0]
        for job in sorted(mine, key=lambda job: -job.priority):
            self._enter(job)

    def _left(self, gang: int) -> None:
        """The core has taken a finished task off its devices: its place in a window is free."""
        slot, place = divmod(gang, self.scheduler.workload.shapes.tasks)
        job = self._in_slot.get(slot)
        run = None if job is None or job.window is None else job.window.tasks[place]
        if job is None or job.window is None or run is None:
            return
        job.window.leave(place, (run.kernel, self.scheduler.workload.tables.runs_on.item(job.row, place)))
        if job.limits.user:
            self._enter_all(job.limits.user)
        else:
            self._enter(job)
        if not job.unfinished and job.window.is_empty and not job.over_in_core:
            job.over_in_core = True
            self._events.append(SchedulerEvent(happened.DROPPED, job.slot))

    def _grow(self, shapes: Shapes) -> None:
        """Enlarge the arrays, and renumber the gangs of early events."""
        before = self.scheduler.workload.shapes.tasks
        self.scheduler.grow(shapes)
        moved = {gang // before * shapes.tasks + gang % before: event for gang, event in self._early.items()}
        self._early = {gang: replace(event, who=gang) for gang, event in moved.items()}

    def _trial(self, run: TaskRun) -> int:
        """A device kind on which a kernel has never run and no other task tries it; -1 = none."""
        workload, key = self.scheduler.workload, run.kernel.key
        kinds = [kind for kind in workload.kinds_of(run.kernel) if not self._all_down(kind)]
        options = run.kernel.options
        # Training jobs are too long for trials; their speed is learned while they run.
        if len(kinds) < 2 or options.workers > 1 or options.training is not None:
            return -1
        for kind in kinds:
            device = workload.topology.kinds[kind]
            # First runs are representative on CPUs, which have many processes. An accelerator's process compiles in it.
            tried = workload.profiles.tried(key, device.name, warm=device.type != "cpu")
            if (key, kind) not in self._trials and not tried:
                self._trials[key, kind] = run
                return kind
        return -1

    def _all_down(self, kind: int) -> bool:
        return all(device in self._down for device, mine in enumerate(self._kind) if mine == kind)

    # --- commands of the core

    def _carry_out(self, commands: TurnCommands) -> None:
        if commands.jobs != self._slot_jobs:
            self._jobs_changed(commands.jobs)
        started = list(self._started(commands))
        work = [self._work(run, devices) for run, devices in started]
        self.scheduler.statistics.handling_s.extend([run.attempts[-1].handled_s for run, _ in started])
        ahead = self._ahead.choose([len(runs) for runs in self.occupancy.on], self._queued())
        work += [self._work(run, [device], ahead=True) for run, device in ahead]
        if work:
            self.engine.dispatch(work)
        for gang in commands.saved:  # after the dispatch: the gang may have started within this turn
            run = self._run_of(gang)
            if run is not None and run.number >= 0:
                self.saving.stop(run)

    def _jobs_changed(self, jobs: list[int]) -> None:
        """Jobs have arrived in the core, or have left it. `jobs`: the number of the job in each slot."""
        slot_of = {number: slot for slot, number in enumerate(jobs) if number >= 0}
        left = set[str]()  # users with limits
        for number, job in list(self._admitted.items()):
            if number in slot_of:
                arrives, job.slot = job.slot < 0, slot_of[number]
                if arrives and job.window is not None:
                    self._enter(job)
            elif job.slot >= 0:  # it has left the core; without a slot, it has not arrived there yet
                del self._admitted[number]
                left |= {job.limits.user} - {""}
                self.scheduler.workload.remove(job.row)
                tasks = self.scheduler.workload.shapes.tasks  # of an abandoned job: gangs that will never start
                self._early = {gang: event for gang, event in self._early.items() if gang // tasks != job.slot}
        self._slot_jobs = jobs
        self._in_slot = {slot: self._admitted[number] for number, slot in slot_of.items()}
        for user in left:
            self._enter_all(user)

    def _started(self, commands: TurnCommands) -> Iterator[tuple[TaskRun, list[int]]]:
        """Tasks that the core has started and the engine has not received, with the devices of their workers."""
        # A gang whose device failed may have started twice within this turn: the last start counts.
        for gang, devices in dict(commands.started).items():
            if not self._down.isdisjoint(devices):
                continue  # the device failed within this turn: the core has placed the gang again, or will
            if gang in self._early:
                self._events.append(self._early.pop(gang))
                continue
            run = self._run_of(gang)
            if run is None or run.value is not None:
                continue  # it has finished within this turn
            run.device = devices[0]
            if run.number < 0 and (run.job.over.is_set() or run in self._delayed):
                self._report_stopped(run)  # its job was abandoned within this turn, or it was sent ahead and failed
            elif run.number < 0:
                yield run, devices

    def _queued(self) -> Iterator[tuple[TaskRun, int]]:
        """Tasks in the queues of devices that may be sent ahead, in queue order."""
        for gang, device in self.scheduler.queued():
            run = self._run_of(gang)
            if run is not None and not (_is_sent(run) or run.job.over.is_set() or run in self._delayed):
                yield run, device

    def _run_of(self, gang: int) -> TaskRun | None:
        """The task of a gang; None if its job has left the core."""
        slot, place = divmod(gang, self.scheduler.workload.shapes.tasks)
        job = self._in_slot.get(slot)
        return None if job is None else self._task(job, place)

    def _task(self, job: JobState, place: int) -> TaskRun | None:
        """The task of a gang, by its number among those of its job in the core."""
        return job.runs[place] if job.window is None else job.window.tasks[place]

    def _work(self, run: TaskRun, devices: list[int], ahead: bool = False) -> Work:
        """Begin a new attempt. `ahead`: before the core has started the task."""
        workload, device = self.scheduler.workload, devices[0]
        run.number = next(self._numbers)
        if run.job.status == WAITING:
            run.job.status = RUNNING
            if math.isfinite(run.job.limits.time_s):
                run.job.deadline_s = time.monotonic() + run.job.limits.time_s
                self._limited.append(run.job)
        self._ahead.sent(run, devices)
        names = self._names[device] if len(devices) == 1 else tuple(self._names[each][0] for each in devices)
        sent_s = time.monotonic()
        if run.kernel.options.training is None:
            expected = self._ahead.expectation(run, device)[1:]
        else:
            expected = workload.expected(run.job.row, run.index, run.kernel, self._kind[device])
        attempt = Attempt(names, sent_s, *expected, ahead)
        attempt.handled_s = self._own_time.handling_s(sent_s)
        attempt.decided = self.scheduler.decided(self._gang(run))
        run.attempts.append(attempt)
        self._attempts[run.number] = run  # after the attempt was added: other threads read it at once
        self.occupancy.add(run, devices)
        implementation = workload.function(run.kernel, self._kind[device])
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
            cores=run.kernel.options.cores,
            memory=run.kernel.options.memory or math.inf,
        )
        return self.saving.begin(run, work)

    # --- events of the engine

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
        devices = self.occupancy.remove(run)
        self._ahead.ended(run, devices)
        run.number = -1
        if isinstance(event, Stopped):
            attempt.began_s, attempt.seconds = attempt.sent_s, time.monotonic() - attempt.sent_s
        else:
            attempt.began_s, attempt.seconds = event.began_s, event.seconds
        if run.job.over.is_set():
            attempt.ended = attempt.ended or KILLED_RUN
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
            attempt.ended = ending(event)
            self._failed(run, event)

    def _report_finished(self, run: TaskRun) -> None:
        """Report a finished task to the core and to the tasks that read its value."""
        job, workload = run.job, self.scheduler.workload
        run.device = -1
        self._events.append(SchedulerEvent(happened.FINISHED, self._gang(run)))
        now_s = time.monotonic()
        for index in job.readers[run.index]:
            reader = job.runs[index]
            reader.missing -= 1
            if not reader.missing:
                reader.ready_s = now_s
                if job.window is not None:
                    job.window.waiting.append(reader)
                    continue
                sizes = {source: value_of(job.runs[source]).size for source in reader.call.reads}
                workload.inputs_known(job.row, index, sizes, size_of(reader))
        for source in run.call.reads:
            self._read(job.runs[source])
        self.engine.free(run.arguments)
        job.unfinished -= 1
        if not job.unfinished:
            self._complete(job)

    def _read(self, run: TaskRun) -> None:
        """One reader has finished. Frees a value that has no reader left and is no output."""
        run.readers -= 1
        if not run.readers and run.index not in run.job.graph.outputs:
            self.engine.free(value_of(run))

    def _report_stopped(self, run: TaskRun) -> None:
        """Have the core place a task again, unless the core has not started it, or its job was abandoned."""
        if run.device >= 0:
            run.device = -1
            self.rounds.stopped(run)
            self._events.append(SchedulerEvent(happened.STOPPED, self._gang(run)))

    def _gang(self, run: TaskRun) -> int:
        return run.job.slot * self.scheduler.workload.shapes.tasks + run.place

    def _end_trial(self, run: TaskRun) -> None:
        if self._trials.get((run.kernel.key, run.trial)) is run:
            del self._trials[run.kernel.key, run.trial]

    def _failed(self, run: TaskRun, event: Failed) -> None:
        self._end_trial(run)
        self._report_stopped(run)
        if is_run_again(run.kernel.options, run.lost, event):
            run.lost += 1
            delay_s = retry_delay_s(run.kernel.options, event)
            if delay_s:
                run.retry_s = time.monotonic() + delay_s
                self.scheduler.allow(self._gang(run), 0)
                self._delayed.append(run)
            log.warning("%s: %s; it runs again", run.job.where(run), ending(event))
        else:
            run.job.cause = event.exception
            self._abandon(run.job, error_of(run, event), FAILED)

    def _retry_wait_s(self) -> float:
        """Seconds until a task may be tried again."""
        return max(min((run.retry_s for run in self._delayed), default=math.inf) - time.monotonic(), 0.0)

    def _release_delayed(self, now_s: float) -> None:
        """Let tasks whose delay is over be placed."""
        due = [run for run in self._delayed if run.retry_s <= now_s or run.job.over.is_set()]
        for run in due:
            self._delayed.remove(run)
            if not run.job.over.is_set():
                if run.trial >= 0 and self._all_down(run.trial):  # they went down meanwhile
                    run.trial = -1
                kinds = [run.trial] if run.trial >= 0 else self.scheduler.workload.kinds_of(run.kernel)
                self.scheduler.allow(self._gang(run), sum(1 << kind for kind in kinds))
                self._events.append(SchedulerEvent(happened.WOKEN))

    def _limit_wait_s(self) -> float:
        """Seconds until a job reaches its time limit."""
        return max(min((job.deadline_s for job in self._limited), default=math.inf) - time.monotonic(), 0.0)

    def _end_overdue(self, now_s: float) -> None:
        """Fail jobs that have reached their time limit."""
        for job in [job for job in self._limited if job.deadline_s <= now_s]:
            limit = units.show(job.limits.time_s, "seconds")
            error = KernelTimeoutError(
                f"it was still running after {limit}, its time limit",
                where=f"job {job.number} ({job.graph.name!r})",
                hint="give it more time: --time, or submit(…, time_limit_s=…)",
            )
            self._abandon(job, error, FAILED)
        self._limited = [job for job in self._limited if not job.over.is_set()]

    # --- devices

    def _device_down(self, event: DeviceDown) -> None:
        self._down.add(event.device)
        kind = self._kind[event.device]
        log.warning("device %s is down: %s", self.topology.devices[event.device].name, event.why)
        self._events.append(SchedulerEvent(happened.FAILED, event.device))
        all_down = self._all_down(kind)
        for job in list(self._admitted.values()):
            for run in job.runs if all_down else ():
                delayed = run in self._delayed  # its kinds are set when its delay is over
                if run.trial == kind and run.value is None and job.slot >= 0 and not delayed:  # let it run elsewhere
                    self.scheduler.allow(self._gang(run), self.scheduler.workload.kind_bits(run.kernel))
                    self._end_trial(run)
                    run.trial = -1
            try:
                for run in {run.kernel: run for run in job.runs if run.value is None}.values():
                    self._check_runnable(run)
            except InfeasibleError as error:
                self._abandon(job, error, FAILED)

    def _device_up(self, device: int) -> None:
        """Recall queued gangs that could run on this device: they were queued elsewhere while it was down."""
        self._down.discard(device)
        self._events.append(SchedulerEvent(happened.REPAIRED, device))
        workload, jobs = self.scheduler.workload, {job.slot: job for job in self._admitted.values()}
        for gang, _ in self.scheduler.queued():
            run = self._task(jobs[gang // workload.shapes.tasks], gang % workload.shapes.tasks)
            assert run is not None
            if not _is_sent(run) and self._kind[device] in workload.kinds_of(run.kernel):
                self._events.append(SchedulerEvent(happened.RECALLED, gang))

    def _check_runnable(self, run: TaskRun) -> None:
        """Raise `InfeasibleError` if too few devices are up for a task."""
        kinds = self.scheduler.workload.kinds_of(run.kernel)
        up = sum(kind in kinds and device not in self._down for device, kind in enumerate(self._kind))
        if run.value is None and up < run.kernel.options.workers:
            left = f"{up} of the {run.kernel.options.workers} devices that it needs" if up else "no device"
            raise InfeasibleError(
                f"kernel {run.kernel.name!r} has {left} left{'' if up else ' that can run it'}",
                where=run.job.where(run),
                hint="give it another implementation, or repair the device and submit the job again",
            )

    # --- ends of jobs

    def _complete(self, job: JobState) -> None:
        """Copy the results out of the engine, and free them there."""
        try:
            job.values += [self.engine.get(value_of(job.runs[index])) for index in job.graph.outputs]
        except EngineError as error:  # a value was lost with its machine
            job.error = error
        for index in set(job.graph.outputs):
            self.engine.free(value_of(job.runs[index]))
        self.saving.job_over(job)
        job.end(FAILED if job.error else DONE)

    def _abandon(self, job: JobState, error: SymphonyError, status: str) -> None:
        if job.over.is_set():
            return
        job.error = error
        if job in self._backlog:
            self._backlog.remove(job)
        if job.admitted in self._admitted:
            self._events.append(SchedulerEvent(happened.DROPPED, job.slot))
        job.end(status)
        for run in job.runs:
            self._end_trial(run)
            if run.number >= 0:
                self.engine.cancel(run.number)
        self._forget(job)

    def _forget(self, job: JobState) -> None:
        """Free the values of an abandoned job once none of its tasks runs."""
        if any(run.number >= 0 for run in job.runs):
            return
        self.saving.job_over(job)
        for run in job.runs:
            self.engine.free(run.arguments)
            if run.value is not None:
                self.engine.free(run.value)

    def _abandon_all(self, error: EngineError) -> None:
        while self.requests:
            self.requests.popleft()()
        for job in [*self._backlog, *self._admitted.values()]:
            if not job.over.is_set():
                job.error = error
                job.end(FAILED)


def _is_sent(run: TaskRun) -> bool:
    """True if the engine has it, or had it: engines cannot hand work back."""
    return run.number >= 0 or run.value is not None
