"""Runs the jobs of a ledger on a cluster: admits them, records their task runs, and ends them.

The ledger's thread calls everything here, except `record`, `output`, `user` and `job_ended`, which the loop's thread
calls.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from symphony.engines.containment import Containment
from symphony.engines.engine import LOST as INPUT_LOST
from symphony.engines.engine import Failed, Finished, Output, Pickled, Stopped, Stored
from symphony.problem.errors import EngineError, JobCancelledError, JobError, ServiceError, SymphonyError
from symphony.runtime.cluster import Cluster
from symphony.runtime.failures import ending, error_of, is_run_again, retry_delay_s
from symphony.runtime.graph import Submission
from symphony.runtime.jobs import (
    CANCELLED,
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    Attempt,
    JobLimits,
    JobState,
    Retried,
    TaskRun,
)
from symphony.runtime.report import KILLED_RUN
from symphony.service import graphs, tables
from symphony.service.blobs import Blobs, named_in
from symphony.service.journal import checksum, read_events, read_values, set_aside
from symphony.service.ledger import Ledger, Transaction
from symphony.service.outputs import Outputs
from symphony.service.recorder import JournalingEngine, wall
from symphony.service.shares import FairQueue
from symphony.service.state import (
    BEGUN,
    BROKE,
    CANCEL,
    ENDED,
    FINISHED,
    KILLED,
    LOST,
    RESTARTED,
    STOPPED,
    JournalEvent,
    ServiceJob,
    job_numbers,
)
from symphony.service.wire import ErrorView, JobView, Submit, TrainingView, Value, optional
from symphony.training_jobs.live.checkpoint_folders import CheckpointFolders
from symphony.training_jobs.live.progress import refresh, saved_before

log = logging.getLogger("symphony.service")
T = TypeVar("T")
MAX_CACHED_GRAPHS = 256  # graphs of accepted jobs that are held in memory until the job is admitted
# A job is quarantined when the service has crashed so often in a row without progress of the job: otherwise a job that
# kills the service would do so for ever. One crash may be a power cut, and two an operator in a hurry.
MAX_DEATHS = 3
AGAIN = "to run it again, submit it again"
# Made once: to make a statement takes longer than to execute it.
_FORGET_BODY = sa.update(tables.payloads).where(tables.payloads.c.job == sa.bindparam("of")).values(body=None)
_FORGET_OUTPUTS = sa.delete(tables.outputs).where(
    tables.outputs.c.job == sa.bindparam("of"), tables.outputs.c.task.not_in(sa.bindparam("kept", expanding=True))
)


@dataclass(frozen=True)
class AdmittedJob:
    state: JobState
    tasks: tuple[int, ...]  # indices in the whole graph of the tasks that the cluster was given
    held: list[
        tuple[Stored, int]
    ]  # stored inputs from before a restart, or restored ones, and the tasks that made them


class JobRunner:
    def __init__(
        self,
        ledger: Ledger,
        database: sa.Engine,
        blobs: Blobs,
        outputs: Outputs,
        checkpoints: CheckpointFolders,
        weights: Mapping[str, float],
        at_once: int,
        limits: Containment,
    ) -> None:
        self._ledger, self._database, self._blobs, self._at_once = ledger, database, blobs, at_once
        self._outputs, self._checkpoints = outputs, checkpoints
        self.queue, self._limits = FairQueue(weights, limits), limits
        self.admitted: dict[int, AdmittedJob] = {}
        self.cached_graphs: dict[int, Submission] = {}
        self.paused = True  # admit nothing: there is no cluster yet
        self.failed: Callable[[], None] = lambda: None  # called when the cluster has failed
        self.idle = threading.Event()
        self._to_cancel: list[JobState] = []
        self._chosen: list[ServiceJob] = []  # to be admitted once that is journalled
        self._large: dict[int, dict[int, set[str]]] = {}  # blobs that tasks have made, for jobs with blobs
        self._levels: dict[int, int] = {}  # priorities in the core, while several users have jobs under way
        self.steps_before: dict[int, dict[int, int]] = {}  # saved before a restart, by job and task
        self._retried: dict[int, dict[int, Retried]] = {}  # tasks that failed before a restart, by job
        self._dependents: dict[int, list[ServiceJob]] = {}  # jobs that wait for a job

    def attach(self, cluster: Cluster, engine: JournalingEngine) -> None:
        """Start to use a cluster, which runs on this engine."""
        self.cluster, self._engine = cluster, engine
        engine.record, engine.output, engine.user = self.record, self.output, self.user
        cluster.when_failed(self.failed)
        self._ledger.before_write = self.choose
        self.paused = False

    def resume(self, entry: Transaction, died: bool) -> None:
        """After a restart, end jobs that cannot continue, and queue the others. `died`: the last service crashed."""
        self._set_aside(entry)
        for job in list(self._ledger.state.open.values()):
            if job.over:  # a job that it waited for was ended above
                continue
            self._large[job.id] = {}
            if job.steps:
                self.steps_before[job.id] = self._saved_steps(job)
            if job.begun:
                saved = {"saved": sum(self.steps_before[job.id].values())} if job.steps else {}
                entry.add(RESTARTED, job.id, died=died, **saved)
            damage = next((one for one in self._ledger.damaged if one.job == job.id and one.restored is None), None)
            if job.cancelled:
                self.end(entry, job, CANCELLED, ErrorView.of(_cancelled(job)))
            elif job.broke is not None:
                self.end(entry, job, FAILED, ErrorView.model_validate(job.broke))
            elif damage is not None:
                why = f"the journal is damaged, so that the state of the job is unknown: {damage}"
                self.end(entry, job, FAILED, quarantine(job, why))
            elif job.deaths >= MAX_DEATHS:
                why = f"the service crashed {job.deaths} times in a row while the job ran"
                self.end(entry, job, FAILED, quarantine(job, why))
            else:
                self._discard_damaged_values(entry, job)
                self._retried[job.id] = self._retried_tasks(job) if job.seconds else {}
                self._join(entry, job)

    def _set_aside(self, entry: Transaction) -> None:
        for damage in self._ledger.damaged:
            log.error("%s%s", damage, "; the job is lost" if damage.job in self._ledger.state.lost else "")
        for statement in set_aside(self._ledger.damaged):
            entry.do(statement)

    def _saved_steps(self, job: ServiceJob) -> dict[int, int]:
        """Steps that need not be repeated: those of finished tasks, and those in the last checkpoints."""
        events = read_events(self._database, job.id)
        done = {event.task: event.data.get("step", 0) for event in events if event.kind == FINISHED}
        return {
            task: done[task] if task in done else saved_before(self._checkpoints.folder(job.id, name), steps)
            for task, (name, _, _, steps) in enumerate(shape_of(self._database, job.id))
            if steps
        }

    def _retried_tasks(self, job: ServiceJob) -> dict[int, Retried]:
        """Tasks that failed and are to run again. Retries of training jobs count anew after a restart."""
        trains = {task for task, (*_, steps) in enumerate(shape_of(self._database, job.id)) if steps}
        return {
            event.task: Retried(event.data.get("retry", 0), _delay_left_s(event))
            for event in read_events(self._database, job.id)
            if event.kind == LOST and event.task not in trains
        }

    def _discard_damaged_values(self, entry: Transaction, job: ServiceJob) -> None:
        """Discard values that are damaged, or whose blobs a power cut has destroyed: their tasks run again."""
        rows, blobs = tables.outputs.c, tables.blobs.c
        values = self._values(job) if job.done else {}
        for task in sorted(job.done or ()):
            named = named_in([values[task]]) if task in values else set()
            if task in values and not named:
                continue
            with self._database.connect() as connection:
                mine = sa.select(blobs.digest, blobs.size).where(blobs.user == job.user, blobs.digest.in_(named))
                sizes = {digest: size for digest, size in connection.execute(mine)}
            if task in values and all(self._blobs.size(digest) == sizes.get(digest) for digest in named):
                self._large[job.id][task] = named
            elif job.done is not None:
                job.done.discard(task)
                entry.do(sa.delete(tables.outputs).where(rows.job == job.id, rows.task == task))

    def accepted(self, entry: Transaction, job: ServiceJob, graph: Submission, blobs: bool) -> None:
        """Queue a new job; `blobs`: it uses some."""
        if blobs:  # the graph has files open: it is read again when the job is admitted
            self._large[job.id] = {}
        elif len(self.cached_graphs) < MAX_CACHED_GRAPHS:
            self.cached_graphs[job.id] = graph
        self._join(entry, job)

    def waits_for(self, job: ServiceJob) -> list[int]:
        """The unfinished jobs that must be done before this one. Thread-safe."""
        return [number for number in job.after if number in self._ledger.state.open]

    def _join(self, entry: Transaction, job: ServiceJob) -> None:
        """Queue a job once all jobs that it waits for are done; end it if one of them never will be."""
        why = self._queued(job)
        if why is not None:
            self.end(entry, job, FAILED, why)

    def _queued(self, job: ServiceJob) -> ErrorView | None:
        """As `_join`, but return why the job has to end."""
        state = self._ledger.state
        for number in job.after:
            before = state.jobs.get(number)
            if number in state.lost:
                return _never_started(job, number, "was destroyed by damage to the journal")
            # A job that was forgotten was done: had it failed, this one would have ended with it.
            if before is not None and before.over and before.status != DONE:
                return _never_started(job, number, "was cancelled" if before.status == CANCELLED else "failed")
        waits = self.waits_for(job)
        if waits:
            self._dependents.setdefault(waits[0], []).append(job)
        else:
            self.queue.join(job)
        return None

    def choose(self, entry: Transaction) -> None:
        """Choose jobs to admit, as many as there is room for.

        This is journalled before the cluster has them: if one of them kills the service, the next one knows which ran.
        """
        while len(self.queue.under_way) < self._at_once and not self.paused:
            job = self.queue.next(self._ledger.state, time.time(), self.cluster.used_s, self._at_once)
            if job is None:
                break
            self.idle.clear()
            entry.add(BEGUN, job.id)
            self._chosen.append(job)
        self._rank()

    def _rank(self) -> None:
        """Give the core the priorities of jobs, if those have changed. A user who is alone has the jobs' own ones."""
        alone = len({job.user for job in self.queue.under_way.values()}) < 2
        if self.paused or (alone and self._levels.keys().isdisjoint(self.queue.under_way)):
            self._levels = {}
            return
        levels = self.queue.levels(self._ledger.state, time.time(), self.cluster.used_s())
        if levels != self._levels:
            self._levels = levels
            self.cluster.prioritise(levels)

    def admit_waiting(self) -> None:
        """Carry out what is journalled by now: cancel jobs, and admit those that were chosen."""
        while self._to_cancel:
            self.cluster.cancel(self._to_cancel.pop())
        chosen, self._chosen = self._chosen, []
        for job in chosen:
            self._admit(job)
        if not self.queue.under_way:
            self.idle.set()

    def _admit(self, job: ServiceJob) -> None:
        """Give a job, or its remaining tasks, to the cluster."""
        held: dict[int, Stored] = {}
        done = job.done or set()
        try:
            whole = self.cached_graphs.pop(job.id, None) or self._read(job)
            if done:
                made, wanted = self._values(job), graphs.needed_values(whole, done)
                held = {task: self._engine.put(self._blob(made, task)) for task in wanted}
            rest = graphs.remaining_graph(whole, done, held)
            if not rest.tasks:
                self._ledger.post_required(lambda entry: self.end(entry, job, DONE, None))
                return
            before = self._retried.pop(job.id, {})
            retried = {new: before[task] for new, task in enumerate(rest.tasks) if task in before}
            priority = self._levels.get(job.id, job.priority)
            slots = self._limits.of_user(job.user).slots
            limits = JobLimits(job.time_limit_s or math.inf, job.user if math.isfinite(slots) else "", slots)
            state = self.cluster.start(rest.graph, job.id, priority, self.job_ended, retried, limits)
        except (SymphonyError, OSError) as error:
            for value in held.values():
                self._engine.free(value)
            if self.cluster.closed:  # not the job's fault: the next service with this journal continues it
                self.failed()
                return
            known = error if isinstance(error, SymphonyError) else EngineError(f"its data cannot be read: {error}")
            view = ErrorView.of(known)
            self._ledger.post_required(lambda entry: self.end(entry, job, FAILED, view))
            return
        self.admitted[job.id] = AdmittedJob(state, rest.tasks, [(value, task) for task, value in held.items()])

    def _read(self, job: ServiceJob) -> Submission:
        rows = tables.payloads.c

        def read() -> sa.Row | None:
            with self._database.connect() as connection:
                return connection.execute(sa.select(rows.body, rows.checksum).where(rows.job == job.id)).first()

        row = self._ledger.retry_until_done(read)
        if row is None or row.body is None:
            raise ServiceError("the submitted graph is missing from the database", where=f"job {job.id}", hint=AGAIN)
        try:
            if row.checksum not in (None, checksum(row.body)):
                raise ValueError("its checksum is wrong")
            graph = Submit.model_validate_json(row.body).graph
            return self._when_files_can_be_opened(lambda: graphs.submission(graph, job.user, self._blobs))
        except (TypeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ServiceError(f"the submitted graph is damaged: {reason}", where=f"job {job.id}", hint=AGAIN) from None

    def _blob(self, made: dict[int, Value], task: int) -> Pickled:
        if task not in made:
            raise ServiceError(f"the value of task {task} is missing from the database, or damaged", hint=AGAIN)
        return self._when_files_can_be_opened(lambda: self._blobs.found(made[task]))

    def _when_files_can_be_opened(self, read: Callable[[], T]) -> T:
        """Read files, and retry while too many are open: that is not the job's fault. Raises other errors."""

        def attempt() -> tuple[T | None, OSError | None]:
            try:
                return read(), None
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                return None, error

        found, error = self._ledger.retry_until_done(attempt)
        if error is not None:
            raise error
        return cast(T, found)

    def _values(self, job: ServiceJob) -> dict[int, Value]:
        return self._ledger.retry_until_done(lambda: read_values(self._database, job.id))

    # --- called by the loop's thread

    def output(self, number: int) -> Output | None:
        run = self.cluster.attempt(number)
        return None if run is None else self._outputs.of(run.job.number, run.name, number)

    def user(self, number: int) -> str:
        run = self.cluster.attempt(number)
        return "" if run is None else self._ledger.state.jobs[run.job.number].user

    def record(self, event: Finished | Failed | Stopped) -> Future[Failed | Stopped | None] | None:
        """Journal how a run of a task ended. None: there is nothing to journal."""
        run = self.cluster.attempt(event.number)
        if run is None or run.job.over.is_set():
            return None
        if isinstance(event, Stopped) and run.kernel.options.training is None:
            return None
        refresh(run)
        data = _run_record(run, event)
        run.attempts[-1].journalled = True
        if isinstance(event, Stopped):
            return self._ledger.post_required(lambda entry: self._failed(entry, run, STOPPED, data))
        if isinstance(event, Finished):
            made = event
            return self._ledger.post_required(lambda entry: self._finished(entry, run, made, data))
        again = is_run_again(run.kernel.options, run.lost, event)
        if again:
            delay_s = retry_delay_s(run.kernel.options, event)
            data |= {"retry": run.lost + 1, "retries": run.kernel.options.retries, "retry_at_s": time.time() + delay_s}
            data |= {"retry_delay_s": delay_s} if delay_s else {}
        else:
            data["error"] = _dump(ErrorView.of(error_of(run, event), event.exception))
        if event.why == INPUT_LOST and run.lost < run.kernel.options.retries:
            run.lost += 1
            number = event.number
            return self._ledger.post_required(lambda entry: self._restore_inputs(entry, run, number, data))
        return self._ledger.post_required(lambda entry: self._failed(entry, run, LOST if again else BROKE, data))

    def job_ended(self, state: JobState) -> None:
        self._engine.release(self._ledger.state.jobs[state.number].user, state.number)
        status, error = state.status, state.error
        if isinstance(error, EngineError):
            if state.unfinished:  # the cluster is closed, or has failed: the job has not ended
                self.failed()
                return
            status, error = DONE, None  # a result was lost with its machine, but is stored here
        view = None if error is None else ErrorView.of(error, state.cause)
        job = self._ledger.state.jobs[state.number]
        killed = [
            (run, {**_run_record(run, Stopped(run.number)), "ended": KILLED_RUN})
            for run in state.runs
            if run.number >= 0 and not run.attempts[-1].journalled
        ]
        self._ledger.post_required(lambda entry: self._end_all(entry, job, status, view, killed))

    # --- events for the journal

    def _end_all(
        self,
        entry: Transaction,
        job: ServiceJob,
        status: str,
        view: ErrorView | None,
        killed: list[tuple[TaskRun, dict[str, Any]]],
    ) -> None:
        """End a job and the runs that its end kills."""
        for run, data in killed if job.id in self.admitted else ():
            self._entered(entry, run, KILLED, data)
        self.end(entry, job, status, view)

    def _finished(
        self, entry: Transaction, run: TaskRun, event: Finished, data: dict[str, Any]
    ) -> Failed | Stopped | None:
        job, value = self._ledger.state.jobs[run.job.number], event.value
        try:
            pickled = self._engine.get(value)
        except EngineError as error:  # it was lost with its machine: the task has to run again
            log.warning("job %d: %s: %s", job.id, run.name, error)
            self._engine.free(value)
            if run.lost < run.kernel.options.retries:
                run.lost += 1
                return Stopped(event.number)
            failed = Failed(event.number, INPUT_LOST, error.message, event.began_s, event.seconds)
            self._failed(entry, run, BROKE, {**data, "error": _dump(ErrorView.of(error_of(run, failed)))})
            return failed
        kept, sizes = self._ledger.retry_until_done(lambda: self._blobs.kept(pickled))
        task = self._entered(entry, run, FINISHED, {**data, "bytes": value.size})
        body = kept.model_dump_json().encode()
        entry.insert(tables.outputs, {"job": job.id, "task": task, "body": body, "checksum": checksum(body)})
        if sizes:
            self._large.setdefault(job.id, {})[task] = set(sizes)
        now = time.time()
        entry.merge(tables.uses, *({"job": job.id, "digest": name} for name in sizes))
        entry.merge(
            tables.blobs, *({"user": job.user, "digest": n, "size": size, "at": now} for n, size in sizes.items())
        )
        return None

    def _failed(self, entry: Transaction, run: TaskRun, kind: str, data: dict[str, Any]) -> Failed | Stopped | None:
        self._entered(entry, run, kind, data)
        return None

    def _restore_inputs(
        self, entry: Transaction, run: TaskRun, number: int, data: dict[str, Any]
    ) -> Failed | Stopped | None:
        """Restore the inputs of a task, lost with a machine, from the journal; the task runs again."""
        admitted, held = self.admitted[run.job.number], dict(run.call.held)
        try:
            made = self._values(self._ledger.state.jobs[run.job.number])
            for index in run.call.reads:
                source, task = run.job.runs[index], admitted.tasks[index]
                lost, source.value = source.value, self._engine.put(self._blob(made, task))
                if lost is not None:  # other runs may still refer to it: it is freed when the job ends
                    admitted.held.append((lost, task))
            for place, value in held.items():
                task = next(task for other, task in admitted.held if other is value)
                held[place] = self._engine.put(self._blob(made, task))
                admitted.held.append((held[place], task))
        except (OSError, ServiceError) as error:  # the store is full, or a value is missing or damaged
            log.warning("job %d: %s: lost inputs cannot be restored: %s", run.job.number, run.name, error)
            return self._failed(entry, run, BROKE, data)
        run.call = replace(run.call, held=held)
        log.warning("job %d: %s: lost inputs were restored from the journal", run.job.number, run.name)
        return Stopped(number)

    def _entered(self, entry: Transaction, run: TaskRun, kind: str, data: dict[str, Any]) -> int:
        task = self.admitted[run.job.number].tasks[run.index]
        entry.add(kind, run.job.number, task, **data)
        return task

    def status(self, job: ServiceJob) -> str:
        """Thread-safe. A job is waiting until one of its tasks has started, whether admitted or not.

        From then on it is running, even while it is preempted, or not admitted again yet after a restart.
        """
        if job.over:
            return job.status
        admitted = self.admitted.get(job.id)
        started = job.finished or job.seconds or (admitted is not None and admitted.state.status != WAITING)
        return RUNNING if started or any(self.steps_before.get(job.id, {}).values()) else WAITING

    def view(self, job: ServiceJob) -> JobView:
        """A job with its status and, if it trains, its progress. Thread-safe."""
        view = job.view().model_copy(update={"status": self.status(job), "waits": self._waits(job)})
        if not job.steps or job.over:
            return view
        step, saved, per_s = self.stepped(job)
        admitted = self.admitted.get(job.id)
        runs = admitted is not None and any(run.number >= 0 for run in admitted.state.runs)
        trains = TrainingView(steps=job.steps, step=step, saved=saved, per_s=per_s or None, runs=runs)
        return view.model_copy(update={"training": trains})

    def _waits(self, job: ServiceJob) -> str:
        """Why a job has not started; "" if it has, has ended, or waits for a free device."""
        under_way = self.queue.under_way.copy()
        if job.over:
            return ""
        if job.id in under_way:
            admitted = self.admitted.get(job.id)
            window = None if admitted is None else admitted.state.window
            slots = self._limits.of_user(job.user).slots
            if math.isfinite(slots) and window is not None and window.waiting and window.is_empty:
                return f"{job.user} may hold {slots:g} slots of devices at once, and holds too many"
            return ""
        if self.paused:
            return "the service admits no jobs at present"
        before = self.waits_for(job)
        if before:
            return f"for {job_numbers(before)}"
        held = self.queue.held_back(job.user, self._at_once, self._ledger.state, time.time(), self.cluster.used_s())
        if held:
            return held
        if len(under_way) >= self._at_once:
            return f"{len(under_way)} jobs are under way, and more are not admitted at once"
        return "it is about to be admitted"

    def stepped(self, job: ServiceJob) -> tuple[int, int, float]:
        """Steps of its training jobs: done, saved, and recently per second. Thread-safe."""
        steps = {task: (step, step) for task, step in self.steps_before.get(job.id, {}).items()}
        per_s = 0.0
        admitted = self.admitted.get(job.id)
        for task, run in zip(admitted.tasks, admitted.state.runs, strict=True) if admitted is not None else ():
            now = run.progress
            if now is None:
                continue
            steps[task] = now.step, now.step if run.value is not None else now.saved  # what is done is not done again
            per_s += now.per_s if run.number >= 0 and math.isfinite(now.per_s) else 0.0
        return sum(step for step, _ in steps.values()), sum(saved for _, saved in steps.values()), per_s

    def cancel(self, entry: Transaction, job: ServiceJob, by: str) -> bool:
        """Cancel a job; does nothing if it has ended. Whether it did something."""
        if job.over or job.cancelled:
            return False
        entry.durable = True
        entry.add(CANCEL, job.id, by=by)
        admitted = self.admitted.get(job.id)
        if admitted is None:
            self.end(entry, job, CANCELLED, ErrorView.of(_cancelled(job)))
        else:
            self._to_cancel.append(admitted.state)  # once this is journalled; `job_ended` follows
        return True

    def end(self, entry: Transaction, job: ServiceJob, status: str, error: ErrorView | None) -> None:
        """End a job, and those that waited for it in vain. Only its result is kept."""
        ending = [(job, status, error)]  # not a recursion: thousands of jobs may wait for one another
        while ending:
            one, status, error = ending.pop()
            if one.over:
                continue
            self._end_one(entry, one, status, error)
            for dependent in self._dependents.pop(one.id, []):
                why = None if dependent.over else self._queued(dependent)
                if why is not None:
                    ending.append((dependent, FAILED, why))

    def _end_one(self, entry: Transaction, job: ServiceJob, status: str, error: ErrorView | None) -> None:
        if job.steps:
            job.step, job.saved, _ = self.stepped(job)
        self.steps_before.pop(job.id, None)
        admitted = self.admitted.pop(job.id, None)
        if admitted is not None:
            for value, _ in admitted.held:
                self._engine.free(value)
        self.queue.leave(job)
        self.cached_graphs.pop(job.id, None)
        self._retried.pop(job.id, None)
        kept = job.outputs if status == DONE else ()
        progress = {"step": job.step, "saved": job.saved} if job.steps else {}
        entry.add(ENDED, job.id, status=status, error=None if error is None else _dump(error), **progress)
        entry.do(_FORGET_BODY, of=job.id)
        if job.tasks > len(set(kept)):
            entry.do(_FORGET_OUTPUTS, of=job.id, kept=list(kept))
        large = self._large.pop(job.id, None)
        if large is not None:
            results = {name for task in kept for name in large.get(task, ())}
            uses = tables.uses.c
            entry.do(sa.delete(tables.uses).where(uses.job == job.id, uses.digest.not_in(results)))


def _delay_left_s(event: JournalEvent) -> float:
    """Until a task is tried again; if the clock was set back meanwhile, not more than its whole delay."""
    left_s = event.data.get("retry_at_s", 0.0) - time.time()
    return float(min(max(left_s, 0.0), event.data.get("retry_delay_s", 0.0)))


def steps_of(attempt: Attempt) -> dict[str, int]:
    """The progress of a training run, as fields of a `RunView`."""
    progress = attempt.progress
    if progress is None:
        return {}
    return {"began_step": progress.began, "step": progress.step, "saved_step": progress.saved, "saves": progress.saves}


def shape_of(database: sa.Engine, job: int) -> list[tuple[str, str, list[int], int]]:
    """Name, kernel, inputs and steps (0: it does not train) of each task of a job."""
    rows = tables.payloads.c
    with database.connect() as connection:
        text = connection.scalar(sa.select(rows.shape).where(rows.job == job)) or "[]"
    try:
        tasks = json.loads(text)
        return [(str(name), kernel, reads, steps[0] if steps else 0) for name, kernel, reads, *steps in tasks]
    except (TypeError, ValueError) as error:
        log.error("the names of the tasks of job %d are damaged: %s", job, error)
        return []


def quarantine(job: ServiceJob, why: str) -> ErrorView:
    """The error of a job that must not run again by itself. A `JobError`, which clients of all versions know."""
    return ErrorView.of(JobError(f"it is quarantined: {why}", where=f"job {job.id} ({job.name!r})", hint=AGAIN))


def _never_started(job: ServiceJob, before: int, what: str) -> ErrorView:
    hint = f"see symphony logs {before}; then submit both again"
    text = f"it was not started: job {before}, which it waited for, {what}"
    return ErrorView.of(JobError(text, where=f"job {job.id} ({job.name!r})", hint=hint))


def _cancelled(job: ServiceJob) -> JobCancelledError:
    return JobCancelledError("it was cancelled", where=f"job {job.id} ({job.name!r})")


def _dump(problem: ErrorView) -> dict[str, Any]:
    return problem.model_dump(mode="json", exclude_defaults=True)


def _run_record(run: TaskRun, event: Finished | Failed | Stopped) -> dict[str, Any]:
    """The data of a journal event about a run of a task; times are seconds since 1970."""
    attempt = run.attempts[-1]
    if isinstance(event, Stopped):
        event = Failed(event.number, "stopped", "stopped", attempt.sent_s, time.monotonic() - attempt.sent_s)
    gang = {"workers": len(attempt.devices)} if len(attempt.devices) > 1 else {}
    return {
        **gang,
        **steps_of(attempt),
        "name": run.name,
        "device": attempt.device,
        "sent_s": wall(attempt.sent_s),
        "began_s": optional(wall(event.began_s)),
        "ready_s": optional(wall(run.ready_s)),
        "seconds": event.seconds,
        "expected_s": attempt.expected_s,
        "spread": attempt.spread,
        "ahead": attempt.ahead,
        "cold": event.cold if isinstance(event, Finished) else False,
        "trial": run.trial >= 0,
        "ended": "done" if isinstance(event, Finished) else ending(event),
    }
