"""The ledger: one thread that owns the state and commits every event to the journal before it takes effect.

Other threads post commands. A command reads the state and adds events, or refuses by raising before it adds any. All
pending commands share one transaction (group commit); after the commit their futures are resolved. If the database
fails (a full disk, a server that restarts), the transaction is retried until it succeeds: nothing is lost, and no
command is answered before it is committed.

Transactions are numbered, and each checks that the database has the previous one. If PostgreSQL is killed, it loses
transactions that were committed asynchronously; the ledger buffers these until a later one is synced, and repeats them.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from symphony.problem.errors import ServiceError, SymphonyError, UnavailableError
from symphony.service import journal, tables
from symphony.service.database import Hold
from symphony.service.journal import Damage, row_of
from symphony.service.state import JournalEvent, State

log = logging.getLogger("symphony.service")
T = TypeVar("T")
MAX_COMMANDS_PER_TRANSACTION = 512
RETRY_S = 0.5
MAX_CLOSE_WAIT_S = 10.0  # for pending commands, if the database fails
MAX_UNSYNCED = 512  # events and statements buffered because PostgreSQL may lose them; at most 32 MiB of values
# `TimeoutError`: all connections of the pool are in use.
RETRIED = (
    sa.exc.OperationalError,
    sa.exc.InterfaceError,
    sa.exc.InternalError,
    sa.exc.TimeoutError,
    OSError,
)
_INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


@dataclass
class Transaction:
    """The contents of one transaction, added by commands."""

    state: State
    dialect: str
    events: list[JournalEvent] = field(default_factory=list)
    rows: list[tuple[sa.Executable, Any]] = field(default_factory=list)
    durable: bool = False  # whether it has to survive a power cut
    check: bool = False  # run it even if it is empty, to check that this service still has the journal
    turn: int = 0  # its number among the transactions

    def add(self, kind: str, job: int, task: int = -1, /, **data: Any) -> JournalEvent:
        """Add an event. The state has it at once; its effects follow after the commit."""
        seconds = data.get("seconds", 0.0) * data.get("workers", 1)
        previous = self.state.jobs.get(job)
        follows = previous.change if previous is not None else 0
        event = JournalEvent(self.state.events + 1, time.time(), job, kind, task, float(seconds), data, follows)
        self.state.apply(event)
        self.events.append(event)
        return event

    def insert(self, table: sa.Table, *rows: dict[str, Any]) -> None:
        self._many(_insert(table), rows)

    def merge(self, table: sa.Table, *rows: dict[str, Any]) -> None:
        """Insert rows that do not exist yet."""
        self._many(_merge(table, self.dialect), rows)

    def do(self, statement: sa.Executable, **values: Any) -> None:
        """Execute a statement, with values for its `bindparam`s."""
        self.rows.append((statement, values or None))

    @property
    def size(self) -> int:
        return len(self.events) + sum(len(values) if isinstance(values, list) else 1 for _, values in self.rows)

    def _many(self, statement: sa.Executable, rows: tuple[dict[str, Any], ...]) -> None:
        """Consecutive rows of the same kind share one statement."""
        if rows and self.rows and self.rows[-1][0] is statement:
            self.rows[-1][1].extend(rows)
        elif rows:
            self.rows.append((statement, list(rows)))


@cache  # to make a statement takes longer than to add a row to it
def _insert(table: sa.Table) -> sa.Executable:
    return sa.insert(table)


@cache
def _merge(table: sa.Table, dialect: str) -> sa.Executable:
    made: sa.Executable = _INSERTS[dialect](table).on_conflict_do_nothing()
    return made


Command = Callable[[Transaction], T]


class Ledger:
    """The state, its journal, and the thread that owns both."""

    def __init__(self, hold: Hold, after_commit: Callable[[set[int]], None], failed: Callable[[], None]) -> None:
        self.state = State()
        self.damaged: list[Damage] = []  # events that could not be read
        self.stuck = ""  # why the database cannot be written at present
        self.commit_s: deque[float] = deque(maxlen=1_024)  # durations of the last transactions
        self.before_write: Callable[[Transaction], None] = lambda entry: None  # may add to a batch of commands
        self._hold, self._after_commit, self._failed = hold, after_commit, failed
        self._unsynced: list[Transaction] = []  # committed, but PostgreSQL may still lose them
        self._commands: queue.SimpleQueue[tuple[Command[Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="symphony-ledger", daemon=True)
        self._batch: list[tuple[Command[Any], Future[Any]] | None] = []  # being carried out
        self._stop = self._ended = False

    def replay(self) -> None:
        found = journal.replay(self.engine)
        self.state, self.damaged = found.state, found.damaged

    @property
    def engine(self) -> sa.Engine:
        return self._hold.engine

    def start(self) -> None:
        self._thread.start()

    def post(self, command: Command[T]) -> Future[T]:
        """Run a command. The future is done once its events are committed. Refused while the database fails."""
        future: Future[T] = Future()
        if self.stuck:
            future.set_exception(
                UnavailableError(f"the journal cannot be written: {self.stuck}", hint="try again later", retry_s=5.0)
            )
        else:
            self._put(command, future)
        return future

    def post_required(self, command: Command[T]) -> Future[T]:
        """As `post`, for what has happened already and cannot be refused."""
        future: Future[T] = Future()
        self._put(command, future)
        return future

    def _put(self, command: Command[T], future: Future[T]) -> None:
        self._commands.put((command, future))
        if self._ended:  # checked after the put: the thread may have ended meanwhile
            self._abandon()

    def close(self) -> None:
        """Wait for all commands, then stop."""
        self._stop = True
        self._commands.put(None)
        if self._thread.ident is None:
            self._run()
        else:
            self._thread.join(MAX_CLOSE_WAIT_S)

    @property
    def idle(self) -> bool:
        return self._commands.empty()

    def step(self) -> None:
        """Wait for a command; carry it out together with all that are pending. For a ledger without a thread."""
        try:
            self._turn()
            self._batch = []  # and the blobs that its commands have open
        except Exception as error:
            if isinstance(error, SymphonyError):
                log.error("%s", error)
            else:
                log.exception("the ledger has ended")
            self._ended = True
            self._failed()
            _fail_stopped(self._batch)
            self._abandon()

    # --- the thread

    def _run(self) -> None:
        while not self._ended and not (self._stop and self.idle):
            self.step()
        self._ended = True
        self._abandon()

    def _abandon(self) -> None:
        """Fail all pending commands: they will never run. Thread-safe."""
        with suppress(queue.Empty):
            while True:
                _fail_stopped([self._commands.get_nowait()])

    def _turn(self) -> None:
        batch = self._batch = [self._commands.get()]
        while len(batch) < MAX_COMMANDS_PER_TRANSACTION and not self._commands.empty():
            batch.append(self._commands.get())
        entry = Transaction(self.state, self.engine.dialect.name)
        answers: list[tuple[Future[Any], Any, bool]] = []
        for command, future in (one for one in batch if one is not None):
            if not future.set_running_or_notify_cancel():
                continue  # cancelled
            before = len(entry.events)
            try:
                answers.append((future, command(entry), True))
            except Exception as error:
                if len(entry.events) != before:
                    raise  # the state has half a command: only a replay can fix that
                answers.append((future, error, False))
        self.before_write(entry)
        if entry.events or entry.rows or entry.check:
            self._write(entry)
        for future, answer, succeeded in answers:
            (future.set_result if succeeded else future.set_exception)(answer)
        self._after_commit({event.job for event in entry.events})

    def _write(self, entry: Transaction) -> None:
        began = time.perf_counter()
        entry.turn = self._hold.turn + 1
        unsynced = sum(one.size for one in self._unsynced)
        entry.durable |= unsynced + entry.size > MAX_UNSYNCED or (entry.check and unsynced > 0)
        self.retry_until_done(lambda: self._try(entry))
        self._hold.turn = entry.turn
        if entry.durable:
            self._unsynced = []
        elif entry.dialect == "postgresql":
            self._unsynced.append(entry)
        self.commit_s.append(time.perf_counter() - began)

    def retry_until_done(self, use: Callable[[], T]) -> T:
        """Use the database or its disk, and retry until that succeeds. For the ledger's thread."""
        while True:
            try:
                answer = use()
                break
            except RETRIED as error:
                reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
                if not self.stuck:
                    log.error("the journal cannot be written: %s; retrying", reason)
                self.stuck = reason
                time.sleep(RETRY_S)
        if self.stuck:
            log.warning("the journal can be written again")
            self.stuck = ""
        return answer

    def _try(self, entry: Transaction) -> None:
        with self._hold.transaction(entry.durable) as connection:
            at = self._hold.advance(connection, entry.turn)
            if at >= entry.turn:
                return  # it was committed before, and only the answer was lost
            missing = [one for one in self._unsynced if one.turn > at]
            if at + len(missing) + 1 != entry.turn:
                raise ServiceError(
                    f"the database has lost transactions {at + 1} to {entry.turn - 1}; the service stops",
                    hint="start it again: it continues from what the database has",
                )
            if missing:
                log.error("the database had lost %d transactions; they are repeated", len(missing))
            for one in [*missing, entry]:
                if one.events:
                    connection.execute(_insert(tables.events), [row_of(event) for event in one.events])
                for statement, values in one.rows:
                    connection.execute(statement, values)


def _fail_stopped(posted: list[tuple[Command[Any], Future[Any]] | None]) -> None:
    for _, future in filter(None, posted):
        if not future.done():
            future.set_exception(ServiceError("the service has stopped", hint="see its log"))
