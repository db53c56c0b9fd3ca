"""The service, without HTTP: accepts graphs from users, journals them, runs them, and answers queries.

Every change of state is a command to the ledger, whose thread carries it out once it is journalled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pwd
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from symphony.engines.containment import Containment
from symphony.engines.engine import Engine
from symphony.problem import units
from symphony.problem.defaults import LIVE_POLICY
from symphony.problem.errors import (
    BusyError,
    InfeasibleError,
    InputError,
    JobLostError,
    LimitError,
    ScopeError,
    SymphonyError,
    UnavailableError,
    UnknownJobError,
)
from symphony.runtime.cluster import Cluster
from symphony.runtime.graph import Submission
from symphony.runtime.jobs import DONE
from symphony.runtime.live_workload import Shapes
from symphony.scheduling.policy import Policy
from symphony.service import graphs, tables
from symphony.service.audit import CANCELLED, audit_row
from symphony.service.blobs import Blobs, named_in
from symphony.service.database import database_errors, lock_journal, open_database
from symphony.service.forecast_cache import ForecastCache
from symphony.service.journal import checksum, copy_of
from symphony.service.ledger import Ledger, Transaction
from symphony.service.outputs import Outputs
from symphony.service.recorder import JournalingEngine
from symphony.service.running import AGAIN, JobRunner
from symphony.service.state import ACCEPTED, ServiceJob, State
from symphony.service.tokens import ADMIN, Token, TokenChange, Tokens
from symphony.service.wire import JobView, Submit
from symphony.training_jobs.live.checkpoint_folders import CheckpointFolders, within
from symphony.training_jobs.live.rounds import ROUND_S

log = logging.getLogger("symphony.service")
UNUSED_BLOB_S = 3_600.0  # until a blob that no job uses is removed
CHECK_S = 5.0  # between checks of the lock while there is nothing to write
SWEEP_INTERVAL_S, MAX_FORGOTTEN_JOBS = 60.0, 20_000  # between sweeps, and jobs removed in one


@dataclass(frozen=True)
class Patience:
    """Time limits for clients, in seconds."""

    head_s: float = 10.0  # from the connection, or the last answer, to the end of the next request head
    body_s: float = 30.0  # for a body, in addition to its size divided by `body_rate`
    body_rate: float = 10_000.0  # bytes a second
    write_s: float = 30.0  # during which a client reads nothing of an answer


@dataclass(frozen=True)
class Limits:
    """Limits of what a service accepts."""

    body_bytes: int = 16 << 20  # of a request
    blob_bytes: int = 1 << 30  # of a blob
    blob_quota_bytes: int = 0  # of all blobs of a user, results included, that uploads may fill; 0 = unlimited
    open_jobs: int = 10_000  # of a user
    requests_per_s: float = 500.0  # of a user
    connections: int = 512  # in all; at most half of them from one address, or with requests of one user
    hosts: frozenset[str] = frozenset()  # accepted host names, besides its address and the name of its machine
    patience: Patience = field(default_factory=Patience)
    at_once: int = Shapes.jobs  # admitted jobs: as many as the core has slots for
    output_bytes: int = 1 << 30  # of the standard streams of all jobs
    keep_s: float = 7 * 86_400.0  # until a job that has ended is forgotten
    weights: Mapping[str, float] = field(default_factory=dict)  # fair shares by user; 1 by default
    containment: Containment = field(default_factory=Containment)  # limits of jobs; the engine enforces them


class SteadyClock:
    """The wall clock for deletions: where that jumps forwards, this one goes twice as fast until it has caught up.

    A clock that is wrong for a moment would else delete all results as a week old.
    """

    def __init__(self) -> None:
        self._seen, self._at = time.time(), time.monotonic()

    def now(self) -> float:
        """Seconds since 1970, never later than the wall clock."""
        at = time.monotonic()
        self._seen, self._at = min(time.time(), self._seen + 2.0 * (at - self._at)), at
        return self._seen


class Service:
    def __init__(
        self,
        engine: Callable[[], Engine],
        folder: Path,
        *,
        database: str = "",
        policy: Policy | str = LIVE_POLICY,
        limits: Limits | None = None,
        checkpoints: Path | None = None,
        round_s: float = ROUND_S,
        threads: bool = True,
    ) -> None:
        """`checkpoints`: a folder reachable from all machines, for training jobs; these are replanned every `round_s`.

        Without `threads`, the caller has to call `step` of the ledger and the cluster, as tests in virtual time do."""
        self.limits, self.policy = limits or Limits(), policy if isinstance(policy, str) else policy.name
        self.draining = False
        self.failed = threading.Event()  # it cannot continue; accepted jobs are in the journal
        self.listeners: list[
            Callable[[set[int]], None]
        ] = []  # called by the ledger's thread with the jobs that changed
        self.sweeps: list[Callable[[Transaction], None]] = []  # called by the ledger's thread at every sweep
        self._closing = False
        self._swept = self._checked = time.monotonic()
        self._sweep_clock = SteadyClock()
        self._check: Future[None] | None = None
        self._uploads, self._uploading = threading.Lock(), Counter[str]()  # bytes that users are uploading
        self.database = open_database(database, folder)
        root = None if checkpoints is None else within(checkpoints, folder)
        self.checkpoints = CheckpointFolders(root or folder / "training", keep=True, shared=checkpoints is not None)
        with ExitStack() as stack:
            stack.callback(self.database.dispose)
            hold = stack.enter_context(lock_journal(self.database, folder))
            self.blobs, self.tokens = Blobs(folder / "blobs"), Tokens(self.database)
            self.ledger = Ledger(hold, self._after_commit, self._fail)
            with database_errors(self.database):
                self.ledger.replay()
                died = not _was_stopped(self.database)
                self._remove_unknown_blobs()
            recorder = JournalingEngine(engine())
            stack.callback(recorder.close)
            reachable = root is not None or len(recorder.inventory().machines) == 1
            self.outputs = Outputs((root or folder) / "output" if reachable else None)
            self.running = JobRunner(
                self.ledger,
                self.database,
                self.blobs,
                self.outputs,
                self.checkpoints,
                self.limits.weights,
                self.limits.at_once,
                self.limits.containment,
            )
            self.running.failed = self._fail
            stack.callback(self.ledger.close)  # before the engine: it may have to read values of the last events
            for note in recorder.notes:
                log.warning("%s", note)
            self.contained = tuple(recorder.contained)
            for line in self.contained:
                log.info("limits: %s", line)
            self.cluster = Cluster(
                recorder,
                policy=policy,
                profiles=folder / "profiles.json",
                checkpoints=self.checkpoints,
                round_s=round_s,
                at_once=self.limits.at_once,
                threads=threads,
            )
            stack.callback(self.cluster.stop, wait=False)
            self.forecasts = ForecastCache(self.cluster.forecasts)
            stack.callback(self.forecasts.close)
            self.running.attach(self.cluster, recorder)
            resumed = self.ledger.post_required(lambda entry: self._resume(entry, died))
            self.ledger.step()
            with database_errors(self.database):
                resumed.result()
            self.checkpoints.remove_strays(self.state.open)
            self._trim_outputs()
            if threads:
                self.ledger.start()
            self._stack = stack.pop_all()
        log.info(
            "replayed %d events of %d jobs; %d jobs continue",
            self.state.events,
            len(self.state.jobs),
            len(self.state.open),
        )

    @property
    def state(self) -> State:
        """The replay of the journal. Any thread may read it."""
        return self.ledger.state

    def drain(self, timeout_s: float) -> bool:
        """Accept and admit nothing more; wait up to `timeout_s` for running jobs. Whether none is left."""
        self.draining = self.running.paused = True
        self.cluster.save_training()  # the next service resumes from these checkpoints
        self.ledger.post_required(_mark_stopped)  # its commit also sets `running.idle` if nothing runs
        return self.running.idle.wait(timeout_s)

    def close(self) -> None:
        """Stop. The next service with this journal runs unfinished jobs again."""
        self.draining = self.running.paused = self._closing = True
        if not self.failed.is_set():
            self.ledger.post_required(_mark_stopped)
        self._stack.close()

    def check_lock(self) -> None:
        """Check every `CHECK_S` that this service still has its journal: PostgreSQL's locks end with the server
        process. Also admits jobs whose user's limit for a day has room again.
        """
        if time.monotonic() < self._checked + CHECK_S:
            return
        if self._check is None or self._check.done():
            self._checked = time.monotonic()
            alone = self.database.dialect.name == "sqlite"
            self._check = self.ledger.post_required(_nothing if alone else _check_only)

    def _resume(self, entry: Transaction, died: bool) -> None:
        self.running.resume(entry, died)
        entry.do(sa.update(tables.journal).values(stopped=False))

    def _fail(self) -> None:
        if not self._closing:
            self.failed.set()

    # --- jobs

    def submit(self, token: Token, sent: Submit, body: bytes, key: str) -> Future[tuple[JobView, bool]]:
        """Accept a graph. Returns the job and whether it is new: submissions with the same key make one job."""
        graphs.check(sent)
        if sent.priority > token.priority:
            raise ScopeError(
                f"priority {sent.priority} is above {token.priority}, the highest that this token allows",
                hint="submit with a lower priority, or with a token created with --priority",
            )
        named = named_in(graphs.values(sent.graph))
        self.check_blobs(token, named)
        whole = graphs.submission(sent.graph, token.user, self.blobs)
        check_contained(self.limits.containment, token.user, whole, sent.time_limit_s or 0.0)
        self.cluster.check(whole)
        return self.ledger.post(lambda entry: self._accept(entry, token, sent, whole, body, key, named))

    def _accept(
        self, entry: Transaction, token: Token, sent: Submit, whole: Submission, body: bytes, key: str, named: set[str]
    ) -> tuple[JobView, bool]:
        state, graph, digest = self.state, sent.graph, hashlib.sha256(body).hexdigest()
        previous = state.keys.get((token.user, key)) if key else None
        if previous is not None:
            if previous[1] != digest:
                raise InputError(
                    f"job {previous[0]} was submitted with the same key, but is another job",
                    hint="use a new idempotency-key",
                )
            return self.running.view(state.jobs[previous[0]]), False
        if self.draining:
            raise UnavailableError("the service is stopping and accepts no new jobs", hint="try again later")
        user = state.users.get(token.user)
        if user is not None and user.open >= self.limits.open_jobs:
            raise BusyError(
                f"{token.user} has {user.open} unfinished jobs, and more are not allowed",
                hint="wait until some have finished, or cancel some",
            )
        self._check_after(token, sent.after)
        job = state.last_job + 1
        entry.durable = True
        accepted = entry.add(
            ACCEPTED,
            job,
            user=token.user,
            name=graph.name,
            queue=sent.queue,
            priority=sent.priority,
            tasks=len(graph.tasks),
            outputs=graphs.outputs(graph),
            names=graph.names,
            key=key,
            digest=digest,
            **({"steps": steps} if (steps := graphs.steps(graph)) else {}),
            **({"after": sorted(set(sent.after))} if sent.after else {}),
            **({"time_limit_s": sent.time_limit_s} if sent.time_limit_s else {}),
        )
        payload = {"job": job, "shape": json.dumps(graphs.shape(graph)), "body": body, "checksum": checksum(body)}
        facts = json.dumps(graphs.kernel_facts(whole))
        entry.insert(tables.payloads, payload | {"accepted": copy_of(accepted), "kernels": facts})
        entry.insert(tables.uses, *({"job": job, "digest": name} for name in named))
        self.running.accepted(entry, state.jobs[job], whole, bool(named))
        return state.jobs[job].view(), True

    def _check_after(self, token: Token, after: Sequence[int]) -> None:
        """Refuse to wait for jobs that do not exist, or that will never be done."""
        for number in after:
            before = self.job(token, number)
            if before.over and before.status != DONE:
                raise InputError(
                    f"job {number}, which it is to wait for, is {before.status}", hint="leave it out, or run it again"
                )

    def cancel(self, token: Token, number: int, address: str = "") -> Future[JobView]:
        """`address`: of the client, for the audit log."""
        job = self.job(token, number)

        def command(entry: Transaction) -> JobView:
            if self.running.cancel(entry, job, token.user):
                row = audit_row(token.actor(address), CANCELLED, f"job {job.id}", user=job.user)
                entry.insert(tables.audit, row)
            return self.running.view(job)

        return self.ledger.post(command)

    def job(self, token: Token, number: int) -> ServiceJob:
        """A job of this user, or any job for an administrator. Jobs of others look as if they did not exist."""
        job = self.state.jobs.get(number)
        if job is None and number in self.state.lost:
            lost = f"damage to the journal has destroyed it: {self.state.lost[number]}"
            raise JobLostError(lost, where=f"job {number}", hint=AGAIN)
        if job is None or (job.user != token.user and ADMIN not in token.scopes):
            raise UnknownJobError(f"there is no job {number}", hint="symphony jobs lists yours")
        return job

    def jobs(self, token: Token, *, everybody: bool, status: str, before: int, most: int) -> list[ServiceJob]:
        """The newest jobs of this user, or of all users; only those with numbers below `before`, if that is not 0."""
        if everybody and ADMIN not in token.scopes:
            raise ScopeError("this token may not list the jobs of all users", hint="omit --all")
        user = self.state.users.get(token.user)
        numbers = list(self.state.jobs) if everybody else list(user.jobs) if user is not None else []
        page: list[ServiceJob] = []
        for number in reversed(numbers):
            job = self.state.jobs.get(number)
            if job is None or (before and number >= before) or (status and self.running.status(job) != status):
                continue
            page.append(job)
            if len(page) == most:
                break
        return page

    # --- administration

    def change_tokens(self, change: TokenChange) -> Future[Token]:
        """Create, rotate or revoke a token."""

        def command(entry: Transaction) -> Token:
            entry.durable = True
            for statement in change.statements:
                entry.do(statement)
            return change.token

        done = self.ledger.post(command)
        if change.ended:
            done.add_done_callback(lambda _: self.tokens.forget(change.ended))
        return done

    def note(self, *rows: dict[str, Any]) -> Future[None]:
        """Add rows to the audit log."""
        return self.ledger.post_required(lambda entry: entry.insert(tables.audit, *rows))

    # --- blobs

    def keep_blob(self, token: Token, digest: str, size: int) -> Future[None]:
        """Register an uploaded blob: its user may use it in jobs from now on."""

        def keep(entry: Transaction) -> None:
            rows = tables.blobs.c
            entry.durable = True
            entry.do(sa.delete(tables.blobs).where(rows.user == token.user, rows.digest == digest))
            entry.insert(tables.blobs, {"user": token.user, "digest": digest, "size": size, "at": time.time()})

        return self.ledger.post(keep)

    def blob_size(self, token: Token, digest: str) -> int:
        """Size in bytes of a blob that a user may use; -1 if there is none."""
        rows = tables.blobs.c
        wanted = sa.select(rows.size).where(rows.digest == digest)
        with self.database.connect() as connection:
            size = connection.scalar(wanted if ADMIN in token.scopes else wanted.where(rows.user == token.user))
        return size if size is not None and self.blobs.size(digest) == size else -1

    @contextmanager
    def room(self, token: Token, digest: str, size: int) -> Iterator[int]:
        """Reserve bytes of a user's quota for an upload; the most that it may have. Thread-safe.

        `size`: 0 = unknown. What is uploaded again needs no room.
        """
        most, quota, user = self.limits.blob_bytes, self.limits.blob_quota_bytes, token.user
        if not quota or size > most:  # which `Upload` refuses
            yield most
            return
        blobs = tables.blobs.c
        with self.database.connect() as connection:
            mine = sa.select(sa.func.sum(blobs.size)).where(blobs.user == user, blobs.digest != digest)
            used = int(connection.scalar(mine) or 0)
        with self._uploads:
            left = quota - used - self._uploading[user]
            if size > left or left <= 0:
                shown = [units.show(float(count), "bytes") for count in (quota, max(left, 0))]
                raise LimitError(
                    f"{user} may keep {shown[0]} of blobs, and {shown[1]} are left",
                    hint="wait an hour after the jobs that use them have ended, or ask for a larger --blob-quota",
                )
            most = min(most, left)
            self._uploading[user] += size or most
        try:
            yield most
        finally:
            with self._uploads:
                self._uploading[user] -= size or most

    def check_blobs(self, token: Token, named: set[str]) -> None:
        """Refuse blobs that do not exist, or that the user may not use."""
        for digest in sorted(named):
            if self.blob_size(token, digest) < 0:
                raise InputError(f"there is no blob {digest}", hint="PUT /v1/blobs/… before the job")

    # --- called by the ledger's thread after every transaction

    def _after_commit(self, jobs: set[int]) -> None:
        self.running.admit_waiting()
        for number in jobs:
            job = self.state.jobs.get(number)
            if job is not None and job.steps and job.over:
                self.checkpoints.remove(number)
        if jobs:
            for listener in self.listeners:
                listener(jobs)
        if self.outputs.due:
            self._trim_outputs()
        if time.monotonic() - self._swept > SWEEP_INTERVAL_S:
            self._swept = time.monotonic()
            try:
                self.cluster.save()
                self.checkpoints.remove_strays(self.state.open)
            except OSError as error:  # such as too many open files: the next sweep will do
                log.error("old files could not be removed: %s", error)
            self.ledger.post_required(self._sweep).add_done_callback(self._remove)

    def _trim_outputs(self) -> None:
        known, ended = set(self.state.jobs), self.state.jobs.keys() - self.state.open.keys()
        self.outputs.trim(known, ended, self.state.last_job, self.limits.output_bytes)

    def _sweep(self, entry: Transaction) -> list[str]:
        """Forget jobs that ended long ago and blobs that no job uses; the digests of these."""
        now = self._sweep_clock.now()
        since = now - self.limits.keep_s
        forget_jobs(entry, since)
        for sweep in self.sweeps:
            sweep(entry)
        blobs, used = tables.blobs.c, sa.select(tables.uses.c.digest)
        with self.database.connect() as connection:
            young = sa.select(blobs.digest).where(blobs.at >= now - UNUSED_BLOB_S)
            stale = sa.select(blobs.digest).where(blobs.digest.not_in(young), blobs.digest.not_in(used))
            unused = sorted(set(connection.scalars(stale)))
        for digest in unused:
            entry.do(sa.delete(tables.blobs).where(blobs.digest == digest))
        return unused

    def _remove_unknown_blobs(self) -> None:
        """Remove old files that were written just before a crash, and are not in the database."""
        with self.database.connect() as connection:
            known = set(connection.scalars(sa.select(tables.blobs.c.digest)))
        for digest, age_s in self.blobs.listed():
            if digest not in known and age_s > UNUSED_BLOB_S:
                self.blobs.remove(digest)

    def _remove(self, swept: Future[list[str]]) -> None:
        try:
            for digest in swept.result():
                self.blobs.remove(digest)
        except (OSError, SymphonyError, sa.exc.SQLAlchemyError) as error:  # the next start removes the files
            log.error("unused blobs could not be removed: %s", error)


def check_contained(containment: Containment, user: str, graph: Submission, time_limit_s: float = 0.0) -> None:
    """Refuse a graph that the limits of jobs can never allow. `time_limit_s`: 0 = none."""
    most = min(containment.job.memory, containment.of_user(user).memory)
    cores = min(containment.job.cores, containment.of_user(user).cores)
    slots = containment.of_user(user).slots
    where = f"graph {graph.name!r}"
    if time_limit_s > containment.job.time:
        asked, longest = (units.show(seconds, "seconds") for seconds in (time_limit_s, containment.job.time))
        text = f"its time limit is {asked}, and jobs may run for {longest}"
        raise InfeasibleError(text, where=where, hint=f"write {longest} or less, or ask the administrator")
    for call in graph.calls:
        options, kernel = call.kernel.options, f"{where}: kernel {call.kernel.name!r}"
        if options.memory > most:
            size = units.show(most, "bytes")
            text = f"it asks for {units.show(options.memory, 'bytes')} of memory, and your jobs may use {size}"
            raise InfeasibleError(text, where=kernel, hint=f'write memory="{size}" or less, or ask the administrator')
        if options.cores > cores:
            text = f"it asks for {options.cores} cores, and your jobs may use {cores:g}"
            raise InfeasibleError(text, where=kernel, hint=f"write cores={cores:g} or less, or ask the administrator")
        if options.workers * options.cores > slots:
            text = f"it needs {options.workers * options.cores} slots at once, and your jobs may have {slots:g}"
            raise InfeasibleError(text, where=kernel, hint="use fewer cores or workers, or ask the administrator")
        if containment.own_accounts and options.training is not None:
            raise InfeasibleError(
                "a service with --run-as user runs no training jobs: their checkpoints are in its private folder",
                where=kernel,
                hint="submit it to a service without --run-as user",
            )
    if containment.own_accounts and not has_account(user):
        raise InfeasibleError(
            f"jobs of {user} run as the operating system's user {user!r}, which this machine does not have",
            where=where,
            hint=f"ask the administrator: useradd {user}",
        )


def has_account(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def forget_jobs(entry: Transaction, since: float) -> list[int]:
    """Delete all data of jobs that ended before `since`; their numbers."""
    state = entry.state
    old = [job for job in state.jobs.values() if job.ended_s is not None and job.ended_s < since]
    # The number of the next job follows from the last one, which is therefore kept.
    numbers = [job.id for job in old if job.id != state.last_job][:MAX_FORGOTTEN_JOBS]
    for number in numbers:
        state.forget(state.jobs[number])
    for table in (tables.events, tables.payloads, tables.outputs, tables.uses) if numbers else ():
        entry.do(sa.delete(table).where(table.c.job.in_(numbers)))
    return numbers


def _was_stopped(database: sa.Engine) -> bool:
    with database.connect() as connection:
        return bool(connection.scalar(sa.select(tables.journal.c.stopped)))


def _mark_stopped(entry: Transaction) -> None:
    entry.do(sa.update(tables.journal).values(stopped=True))


def _nothing(entry: Transaction) -> None:
    """Every command is followed by a choice of jobs to admit."""


def _check_only(entry: Transaction) -> None:
    entry.check = True
