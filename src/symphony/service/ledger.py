"""The ledger: one thread that owns the state, and writes every event down before anybody acts on it.

Others post commands. A command looks at the state and enters events, or refuses by raising before it enters any. All
commands that have come meanwhile go into one transaction; when that is through, those who posted them are told, and
what follows is done. If the database does not work (a full disk, a server that is being restarted), the same
transaction is tried again until it does: nothing is lost, and nothing is answered that is not kept.

Transactions are numbered, and each checks that the database has the one before. PostgreSQL loses those that it was
not made to sync when it is killed; the ledger remembers them until it has synced a later one, and writes them again.
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
MAX_COMMANDS_PER_TRANSACTION = 512  # commands in one transaction
RETRY_S = 0.5
MAX_CLOSE_WAIT_S = 10.0  # that a database which does not work may hold up the end
MAX_UNSYNCED = 512  # events and statements that PostgreSQL may still lose: chosen, at most 32 MiB of values
_INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


@dataclass
class Transaction:
    """What one transaction writes. Commands add to it."""

    state: State
    dialect: str
    events: list[JournalEvent] = field(default_factory=list)
    rows: list[tuple[sa.Executable, Any]] = field(default_factory=list)
    durable: bool = False  # whether it has to survive a power cut
    check: bool = False  # also with nothing to write, ask whether this service still has the journal
    turn: int = 0  # its number among the transactions
    _last: str = ""  # what the last of the rows are

    def add(self, kind: str, job: int, task: int = -1, /, **data: Any) -> None:
        """An event: the state has it at once, the world when it is written."""
        seconds = data.get("seconds", 0.0) * data.get("workers", 1)
        known = self.state.jobs.get(job)
        follows = known.change if known is not None else 0
        event = JournalEvent(self.state.events + 1, time.time(), job, kind, task, float(seconds), data, follows)
        self.state.apply(event)
        self.events.append(event)

    def insert(self, table: sa.Table, *rows: dict[str, Any]) -> None:
        """Rows that events refer to."""
        self._many(sa.insert(table), table.name, rows)

    def merge(self, table: sa.Table, *rows: dict[str, Any]) -> None:
        """Rows, but for those that are there."""
        self._many(_INSERTS[self.dialect](table).on_conflict_do_nothing(), f"new {table.name}", rows)

    def do(self, statement: sa.Executable) -> None:
        """Anything else."""
        self.rows.append((statement, None))
        self._last = ""

    @property
    def size(self) -> int:
        """Events and statements."""
        return len(self.events) + sum(len(values or ()) or 1 for _, values in self.rows)

    def _many(self, statement: sa.Executable, what: str, rows: tuple[dict[str, Any], ...]) -> None:
        """Rows that follow upon others of the same kind go with them: a hundred tasks are one statement."""
        if rows and what == self._last:
            self.rows[-1][1].extend(rows)
        elif rows:
            self.rows.append((statement, list(rows)))
            self._last = what


Command = Callable[[Transaction], T]


class Ledger:
    """The state, its journal, and the thread that keeps both in step."""

    def __init__(self, hold: Hold, settled: Callable[[set[int]], None], failed: Callable[[], None]) -> None:
        self.state = State()
        self.damaged: list[Damage] = []  # events that could not be read
        self.stuck = ""  # why the database does not take anything at present
        self.commit_s: deque[float] = deque(maxlen=1_024)  # of the last transactions
        self.before_write: Callable[[Transaction], None] = lambda entry: (
            None
        )  # adds what follows from a batch of commands
        self._hold, self._settled, self._failed = hold, settled, failed
        self._unsynced: list[Transaction] = []  # transactions that PostgreSQL may still lose
        self._commands: queue.SimpleQueue[tuple[Command[Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="symphony-ledger", daemon=True)
        self._batch: list[tuple[Command[Any], Future[Any]] | None] = []  # that is being carried out
        self._stop = self._ended = False

    def replay(self) -> None:
        """What the journal says, from its beginning."""
        found = journal.replay(self.engine)
        self.state, self.damaged = found.state, found.damaged

    @property
    def engine(self) -> sa.Engine:
        """The database of the journal."""
        return self._hold.engine

    def start(self) -> None:
        """Take commands from now on."""
        self._thread.start()

    def post(self, command: Command[T]) -> Future[T]:
        """Have a command carried out. The future is done when what it entered is kept."""
        future: Future[T] = Future()
        if self.stuck:
            future.set_exception(
                UnavailableError(
                    f"the journal cannot be written: {self.stuck}", hint="try again when it can", retry_s=5.0
                )
            )
        else:
            self._put(command, future)
        return future

    def post_required(self, command: Command[T]) -> Future[T]:
        """As `post`, for what has happened and cannot be refused."""
        future: Future[T] = Future()
        self._put(command, future)
        return future

    def _put(self, command: Command[T], future: Future[T]) -> None:
        self._commands.put((command, future))
        if self._ended:  # looked at only now: it may have ended meanwhile, and nobody would take what was put
            self._abandon()

    def close(self) -> None:
        """When all commands are through."""
        self._stop = True
        self._commands.put(None)
        if self._thread.ident is None:
            self._run()
        else:
            self._thread.join(MAX_CLOSE_WAIT_S)

    @property
    def idle(self) -> bool:
        """Whether no command waits."""
        return self._commands.empty()

    def step(self) -> None:
        """Wait for a command; carry it out, and all that have come meanwhile. For whoever has not called `start`."""
        try:
            self._turn()
        except Exception as error:
            if isinstance(error, SymphonyError):
                log.error("%s", error)
            else:
                log.exception("the ledger has ended")
            self._ended = True
            self._failed()
            _tell_stopped(self._batch)
            self._abandon()

    # --- the thread

    def _run(self) -> None:
        while not self._ended and not (self._stop and self.idle):
            self.step()
        self._ended = True
        self._abandon()

    def _abandon(self) -> None:
        """Nobody will carry out what was posted: who waits for it is told. Any thread may find that out."""
        with suppress(queue.Empty):
            while True:
                _tell_stopped([self._commands.get_nowait()])

    def _turn(self) -> None:
        batch = self._batch = [self._commands.get()]
        while len(batch) < MAX_COMMANDS_PER_TRANSACTION and not self._commands.empty():
            batch.append(self._commands.get())
        entry = Transaction(self.state, self.engine.dialect.name)
        answers: list[tuple[Future[Any], Any, bool]] = []
        for command, future in (one for one in batch if one is not None):
            if not future.set_running_or_notify_cancel():
                continue  # who asked is gone
            before = len(entry.events)
            try:
                answers.append((future, command(entry), True))
            except Exception as error:
                if len(entry.events) != before:
                    raise  # half a command is in the state: only a replay helps
                answers.append((future, error, False))
        self.before_write(entry)
        if entry.events or entry.rows or entry.check:
            self._write(entry)
        for future, answer, well in answers:
            (future.set_result if well else future.set_exception)(answer)
        self._settled({event.job for event in entry.events})

    def _write(self, entry: Transaction) -> None:
        """Until it is through."""
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
        """Use the database or its disk, again and again until that works. For the ledger's own thread."""
        while True:
            try:
                answer = use()
                break
            except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.InternalError, OSError) as error:
                reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
                if not self.stuck:
                    log.error("the journal cannot be written: %s; trying again", reason)
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
                return  # it had been through before, and only the answer was lost
            missing = [one for one in self._unsynced if one.turn > at]
            if at + len(missing) + 1 != entry.turn:
                raise ServiceError(
                    f"the database has lost transactions {at + 1} to {entry.turn - 1} of this service, which stops",
                    hint="start it again: it goes on from what is there",
                )
            if missing:
                log.error("the database had lost %d transactions: they are written again", len(missing))
            for one in [*missing, entry]:
                if one.events:
                    connection.execute(sa.insert(tables.events), [row_of(event) for event in one.events])
                for statement, values in one.rows:
                    connection.execute(statement, values)


def _tell_stopped(posted: list[tuple[Command[Any], Future[Any]] | None]) -> None:
    for _, future in filter(None, posted):
        if not future.done():
            future.set_exception(ServiceError("the service has stopped", hint="look at its log"))
