"""Jobs in the hands of the cluster: let in one after the other, recorded as they run, ended when they are over.

Everything here is done by the ledger's thread, but for `record`, `output`, `user` and `heard`, which the loop's thread
calls.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from symphony.engines.engine import LOST as INPUT_LOST
from symphony.engines.engine import Failed, Finished, Output, Stopped, Stored
from symphony.problem.errors import EngineError, JobCancelledError, JobError, ServiceError, SymphonyError
from symphony.runtime.cluster import Cluster
from symphony.runtime.failures import error_of, is_run_again
from symphony.runtime.graph import Submission
from symphony.runtime.jobs import CANCELLED, DONE, FAILED, RUNNING, WAITING, Attempt, JobState, TaskRun
from symphony.service import graphs, tables
from symphony.service.blobs import Blobs, named_in
from symphony.service.journal import checksum, read_events, set_aside, value_of
from symphony.service.ledger import Ledger, Transaction
from symphony.service.outputs import Outputs
from symphony.service.recorder import JournalingEngine, wall
from symphony.service.shares import FairQueue
from symphony.service.state import BEGUN, BROKE, CANCEL, ENDED, FINISHED, LOST, RESTARTED, STOPPED, ServiceJob
from symphony.service.wire import ErrorView, JobView, Submit, TrainingView, Value, optional
from symphony.training_jobs.live.checkpoints import CheckpointFolders
from symphony.training_jobs.live.progress import refresh, saved_before

log = logging.getLogger("symphony.service")
MAX_CACHED_GRAPHS = 256  # jobs that were just accepted, and need not be read again
# Deaths of services, in a row and without any progress of the job, after which it is not run again. One may be a power
# cut and two an operator in a hurry; a service that a job kills would otherwise die for ever.
MAX_DEATHS = 3
AGAIN = "to run it again, submit it again"


@dataclass(frozen=True)
class AdmittedJob:
    """A job in the hands of the cluster."""

    state: JobState
    tasks: tuple[int, ...]  # numbers in the whole graph, by those in what the cluster was given
    held: list[tuple[Stored, int]]  # inputs given to the engine, and who made them: before a restart, or lost since


class JobRunner:
    """Has a cluster run the jobs of a ledger."""

    def __init__(
        self,
        ledger: Ledger,
        database: sa.Engine,
        blobs: Blobs,
        outputs: Outputs,
        checkpoints: CheckpointFolders,
        weights: Mapping[str, float],
        at_once: int,
    ) -> None:
        self._ledger, self._database, self._blobs, self._at_once = ledger, database, blobs, at_once
        self._outputs, self._checkpoints = outputs, checkpoints
        self.line = FairQueue(weights)
        self.handed: dict[int, AdmittedJob] = {}
        self.fresh: dict[int, Submission] = {}
        self.paused = True  # let nothing in: there is no cluster yet
        self.failed: Callable[[], None] = lambda: None  # the cluster has ended by itself
        self.idle = threading.Event()
        self._to_cancel: list[JobState] = []
        self._chosen: list[ServiceJob] = []  # to be handed over once that is written down
        self._large: dict[int, dict[int, set[str]]] = {}  # jobs that need blobs, and those that their tasks have made
        self.before: dict[int, dict[int, int]] = {}  # steps of training jobs from before a restart, by job and task

    def attach(self, cluster: Cluster, engine: JournalingEngine) -> None:
        """Begin to use a cluster, whose engine is this one."""
        self.cluster, self._engine = cluster, engine
        engine.record, engine.output, engine.user = self.record, self.output, self.user
        cluster.when_failed(self.failed)
        self._ledger.before_write = self.choose
        self.paused = False

    # --- jobs come

    def resume(self, entry: Transaction, died: bool) -> None:
        """After a restart, end the jobs that cannot go on, and queue the others.

        `died`: the last service was not stopped by anybody.
        """
        self._set_aside(entry)
        for job in list(self._ledger.state.open.values()):
            self._large[job.id] = {}
            if job.steps:
                self.before[job.id] = self._stepped_before(job)
            if job.begun:
                saved = {"saved": sum(self.before[job.id].values())} if job.steps else {}
                entry.add(RESTARTED, job.id, died=died, **saved)
            damage = next((one for one in self._ledger.damaged if one.job == job.id), None)
            if job.cancelled:
                self.end(entry, job, CANCELLED, ErrorView.of(_cancelled(job)))
            elif job.broke is not None:
                self.end(entry, job, FAILED, ErrorView.model_validate(job.broke))
            elif damage is not None:
                why = f"the journal is damaged, and what became of the job cannot be told: {damage}"
                self.end(entry, job, FAILED, quarantine(job, why))
            elif job.deaths >= MAX_DEATHS:
                why = f"the service died {job.deaths} times in a row while the job was under way"
                self.end(entry, job, FAILED, quarantine(job, why))
            else:
                self._check_made(entry, job)
                self.line.join(job)

    def _set_aside(self, entry: Transaction) -> None:
        """What could not be read is named, and kept where the next start does not read it."""
        for one in self._ledger.damaged:
            known = one.job in self._ledger.state.jobs
            log.error("%s%s", one, "" if known else "; the job is lost")
        for statement in set_aside(self._ledger.damaged):
            entry.do(statement)

    def _stepped_before(self, job: ServiceJob) -> dict[int, int]:
        """Steps that need not be done again: by the journal, of what is done, and by what the last run saved."""
        done = {e.task: e.data.get("step", 0) for e in read_events(self._database, job.id) if e.kind == FINISHED}
        return {
            task: done[task] if task in done else saved_before(self._checkpoints.folder(job.id, name), steps)
            for task, (name, _, _, steps) in enumerate(shape_of(self._database, job.id))
            if steps
        }

    def _check_made(self, entry: Transaction, job: ServiceJob) -> None:
        """A value that a power cut has spoilt, or that is damaged, has not been made."""
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

    def accepted(self, job: ServiceJob, graph: Submission, blobs: bool) -> None:
        """A new job waits; `blobs`: it needs some."""
        if blobs:
            self._large[job.id] = {}
        if len(self.fresh) < MAX_CACHED_GRAPHS:
            self.fresh[job.id] = graph
        self.line.join(job)

    def choose(self, entry: Transaction) -> None:
        """Let in as many as there is room for.

        That is written down before the cluster has them: should one of them kill the service, the next one knows which
        it had.
        """
        while len(self.line.under_way) < self._at_once and not self.paused:
            job = self.line.next(self._ledger.state, time.time(), self.cluster.used_s)
            if job is None:
                break
            self.idle.clear()
            entry.add(BEGUN, job.id)
            self._chosen.append(job)

    def admit_waiting(self) -> None:
        """Hand over those that were chosen."""
        while self._to_cancel:
            self.cluster.cancel(self._to_cancel.pop())
        chosen, self._chosen = self._chosen, []
        for job in chosen:
            self._hand_over(job)
        if not self.line.under_way:
            self.idle.set()

    def _hand_over(self, job: ServiceJob) -> None:
        """Give a job to the cluster, or what is left of it."""
        held: dict[int, Stored] = {}
        done = job.done or set()
        try:
            whole = self.fresh.pop(job.id, None) or self._read(job)
            if done:
                made, wanted = self._values(job), graphs.needed_values(whole, done)
                held = {task: self._engine.put(self._blobs.found(made[task])) for task in wanted}
            rest = graphs.remaining_graph(whole, done, held)
            if not rest.tasks:
                self._ledger.post_required(lambda entry: self.end(entry, job, DONE, None))
                return
            state = self.cluster.start(rest.graph, job.id, job.priority, self.job_ended)
        except (SymphonyError, OSError) as error:
            for value in held.values():
                self._engine.free(value)
            if self.cluster.closed:  # no fault of the job's: the next service with this journal goes on with it
                self.failed()
                return
            known = error if isinstance(error, SymphonyError) else EngineError(f"its data cannot be read: {error}")
            told = ErrorView.of(known)
            self._ledger.post_required(lambda entry: self.end(entry, job, FAILED, told))
            return
        self.handed[job.id] = AdmittedJob(state, rest.tasks, [(value, task) for task, value in held.items()])

    def _read(self, job: ServiceJob) -> Submission:
        rows = tables.payloads.c

        def read() -> sa.Row | None:
            with self._database.connect() as connection:
                return connection.execute(sa.select(rows.body, rows.checksum).where(rows.job == job.id)).first()

        found = self._ledger.retry_until_done(read)
        if found is None or found.body is None:
            raise ServiceError("what was submitted is not in the database", where=f"job {job.id}")
        try:
            if found.checksum not in (None, checksum(found.body)):
                raise ValueError("its checksum is wrong")
            return graphs.submission(Submit.model_validate_json(found.body).graph, job.user, self._blobs)
        except (TypeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ServiceError(f"what was submitted is damaged: {reason}", where=f"job {job.id}", hint=AGAIN) from None

    def _values(self, job: ServiceJob) -> dict[int, Value]:
        """What its tasks have made."""
        rows = tables.outputs.c

        def read() -> dict[int, Value]:
            with self._database.connect() as connection:
                wanted = sa.select(rows.task, rows.body, rows.checksum).where(rows.job == job.id)
                found = {
                    task: value_of(body, known, f"task {task} of job {job.id}")
                    for task, body, known in connection.execute(wanted)
                }
            return {task: value for task, value in found.items() if value is not None}

        return self._ledger.retry_until_done(read)

    # --- jobs run; by the loop's thread

    def output(self, number: int) -> Output | None:
        """Where a run keeps what it writes."""
        run = self.cluster.attempt(number)
        return None if run is None else self._outputs.of(run.job.number, run.name, number)

    def user(self, number: int) -> str:
        """Whose a run is."""
        run = self.cluster.attempt(number)
        return "" if run is None else self._ledger.state.jobs[run.job.number].user

    def record(self, event: Finished | Failed | Stopped) -> Future[Failed | Stopped | None] | None:
        """Have it journalled how a run of a task ended."""
        run = self.cluster.attempt(event.number)
        if run is None or run.job.over.is_set():
            return None
        if isinstance(event, Stopped) and run.kernel.options.training is None:
            return None
        refresh(run)
        data = _run_record(run, event)
        if isinstance(event, Stopped):
            return self._ledger.post_required(lambda entry: self._failed(entry, run, STOPPED, data))
        if isinstance(event, Finished):
            made = event
            return self._ledger.post_required(lambda entry: self._finished(entry, run, made, data))
        again = is_run_again(run, event)
        if not again:
            data["error"] = _dump(ErrorView.of(error_of(run, event), event.exception))
        if event.why == INPUT_LOST and run.lost < run.kernel.options.retries:
            run.lost += 1
            number = event.number
            return self._ledger.post_required(lambda entry: self._given_again(entry, run, number, data))
        return self._ledger.post_required(lambda entry: self._failed(entry, run, LOST if again else BROKE, data))

    def job_ended(self, state: JobState) -> None:
        """A job is over."""
        self._engine.release(self._ledger.state.jobs[state.number].user, state.number)
        status, error = state.status, state.error
        if isinstance(error, EngineError):
            if state.unfinished:  # the cluster is closed, or has failed: the job is not over at all
                self.failed()
                return
            status, error = DONE, None  # a machine took a result along, after it was kept here
        told = None if error is None else ErrorView.of(error, state.cause)
        job = self._ledger.state.jobs[state.number]
        self._ledger.post_required(lambda entry: self.end(entry, job, status, told))

    # --- what is entered

    def _finished(
        self, entry: Transaction, run: TaskRun, event: Finished, data: dict[str, Any]
    ) -> Failed | Stopped | None:
        job, value = self._ledger.state.jobs[run.job.number], event.value
        try:
            found = self._engine.get(value)
        except EngineError as error:  # it went with the machine that it was made on: it has to be made again
            log.warning("job %d: %s: %s", job.id, run.name, error)
            self._engine.free(value)
            if run.lost < run.kernel.options.retries:
                run.lost += 1
                return Stopped(event.number)
            failed = Failed(event.number, INPUT_LOST, error.message, event.began_s, event.seconds)
            self._failed(entry, run, BROKE, {**data, "error": _dump(ErrorView.of(error_of(run, failed)))})
            return failed
        kept, sizes = self._ledger.retry_until_done(lambda: self._blobs.kept(found))
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

    def _given_again(
        self, entry: Transaction, run: TaskRun, number: int, data: dict[str, Any]
    ) -> Failed | Stopped | None:
        """A machine took along what a task reads: it is in the journal, and the task is run again with that."""
        handed, made = self.handed[run.job.number], self._values(self._ledger.state.jobs[run.job.number])
        held = dict(run.call.held)
        try:
            for index in run.call.reads:
                source, task = run.job.runs[index], handed.tasks[index]
                lost, source.value = source.value, self._engine.put(self._blobs.found(made[task]))
                if lost is not None:  # others may have been sent with it: it is forgotten when the job is over
                    handed.held.append((lost, task))
            for place, value in held.items():
                task = next(task for other, task in handed.held if other is value)
                held[place] = self._engine.put(self._blobs.found(made[task]))
                handed.held.append((held[place], task))
        except OSError as error:  # there is no room for it, or it is gone from the disk
            log.warning("job %d: %s: what it reads was lost: %s", run.job.number, run.name, error)
            return self._failed(entry, run, BROKE, data)
        run.call = replace(run.call, held=held)
        log.warning("job %d: %s: what it reads was lost, and is read from the journal", run.job.number, run.name)
        return Stopped(number)

    def _entered(self, entry: Transaction, run: TaskRun, kind: str, data: dict[str, Any]) -> int:
        task = self.handed[run.job.number].tasks[run.index]
        entry.add(kind, run.job.number, task, **data)
        return task

    def status(self, job: ServiceJob) -> str:
        """A job waits until one of its tasks has started, let in or not. Any thread may ask.

        From then on it is running, also while all of it is stopped for others or a service that was restarted has not
        come to it yet.
        """
        if job.over:
            return job.status
        handed = self.handed.get(job.id)
        begun = job.finished or job.seconds or (handed is not None and handed.state.status != WAITING)
        begun = begun or any(self.before.get(job.id, {}).values())
        return RUNNING if begun else WAITING

    def view(self, job: ServiceJob) -> JobView:
        """A job in a line, with how far it is if it trains. Any thread may ask."""
        told = job.view().model_copy(update={"status": self.status(job)})
        if not job.steps or job.over:
            return told
        step, saved, per_s = self.stepped(job)
        handed = self.handed.get(job.id)
        runs = handed is not None and any(run.number >= 0 for run in handed.state.runs)
        trains = TrainingView(steps=job.steps, step=step, saved=saved, per_s=per_s or None, runs=runs)
        return told.model_copy(update={"training": trains})

    def stepped(self, job: ServiceJob) -> tuple[int, int, float]:
        """Steps of its training jobs that are done, those that are saved, and how many a second, lately.

        Any thread may ask.
        """
        told = {task: (step, step) for task, step in self.before.get(job.id, {}).items()}
        per_s = 0.0
        handed = self.handed.get(job.id)
        for task, run in zip(handed.tasks, handed.state.runs, strict=True) if handed is not None else ():
            now = run.progress
            if now is None:
                continue
            told[task] = now.step, now.step if run.value is not None else now.saved  # what is done is not done again
            per_s += now.per_s if run.number >= 0 and math.isfinite(now.per_s) else 0.0
        return sum(step for step, _ in told.values()), sum(saved for _, saved in told.values()), per_s

    def cancel(self, entry: Transaction, job: ServiceJob, by: str) -> None:
        """Somebody gives a job up."""
        if job.over or job.cancelled:
            return
        entry.durable = True
        entry.add(CANCEL, job.id, by=by)
        handed = self.handed.get(job.id)
        if handed is None:
            self.end(entry, job, CANCELLED, ErrorView.of(_cancelled(job)))
        else:
            self._to_cancel.append(handed.state)  # when that is written down; its end follows

    def end(self, entry: Transaction, job: ServiceJob, status: str, error: ErrorView | None) -> None:
        """A job is over: only its result is kept."""
        if job.over:
            return
        if job.steps:
            job.step, job.saved, _ = self.stepped(job)
        self.before.pop(job.id, None)
        handed = self.handed.pop(job.id, None)
        if handed is not None:
            for value, _ in handed.held:
                self._engine.free(value)
        self.line.leave(job)
        self.fresh.pop(job.id, None)
        kept = job.outputs if status == DONE else ()
        stepped = {"step": job.step, "saved": job.saved} if job.steps else {}
        entry.add(ENDED, job.id, status=status, error=None if error is None else _dump(error), **stepped)
        entry.do(sa.update(tables.payloads).where(tables.payloads.c.job == job.id).values(body=None))
        if job.tasks > len(set(kept)):
            rows = tables.outputs.c
            entry.do(sa.delete(tables.outputs).where(rows.job == job.id, rows.task.not_in(kept)))
        large = self._large.pop(job.id, None)
        if large is not None:
            results = {name for task in kept for name in large.get(task, ())}
            uses = tables.uses.c
            entry.do(sa.delete(tables.uses).where(uses.job == job.id, uses.digest.not_in(results)))


def steps_of(attempt: Attempt) -> dict[str, int]:
    """What a run of a training job has said, as a `RunView` has it."""
    told = attempt.progress
    if told is None:
        return {}
    return {"began_step": told.began, "step": told.step, "saved_step": told.saved, "saves": told.saves}


def shape_of(database: sa.Engine, job: int) -> list[tuple[str, str, list[int], int]]:
    """Name, kernel, inputs and steps of each task of a job, 0 of those that do not train."""
    rows = tables.payloads.c
    with database.connect() as connection:
        text = connection.scalar(sa.select(rows.shape).where(rows.job == job)) or "[]"
    try:
        found = json.loads(text)
    except ValueError as error:
        log.error("the names of the tasks of job %d are damaged: %s", job, error)
        return []
    return [(name, kernel, reads, steps[0] if steps else 0) for name, kernel, reads, *steps in found]


def quarantine(job: ServiceJob, why: str) -> ErrorView:
    """How a job ends that is not to be run again by itself. A `JobError`, which clients of any version know."""
    return ErrorView.of(JobError(f"it is quarantined: {why}", where=f"job {job.id} ({job.name!r})", hint=AGAIN))


def _cancelled(job: ServiceJob) -> JobCancelledError:
    return JobCancelledError("it was cancelled", where=f"job {job.id} ({job.name!r})")


def _dump(problem: ErrorView) -> dict[str, Any]:
    return problem.model_dump(mode="json", exclude_defaults=True)


def _run_record(run: TaskRun, event: Finished | Failed | Stopped) -> dict[str, Any]:
    """A run of a task, for explanations; times as seconds since 1970."""
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
        "ended": "done" if isinstance(event, Finished) else event.message or event.why,
    }
