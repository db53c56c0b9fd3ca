"""A whole system in one thread: service, core and a simulated engine, their users, and what goes wrong.

Whose turn it is, is drawn; the clock moves when nobody has anything to do. So a run follows from its seed alone.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import os
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import sqlalchemy as sa

from symphony.engines.containment import Allowance, Containment
from symphony.problem.errors import BusyError, InputError, ServiceError, UnavailableError
from symphony.runtime import cluster as cluster_module
from symphony.runtime.jobs import DONE, slots_of
from symphony.runtime.live_workload import Shapes
from symphony.runtime.scheduler import Scheduler
from symphony.service import database as database_module
from symphony.service import service as service_module
from symphony.service.blobs import Blobs
from symphony.service.database import Hold, LockHeldError, open_database
from symphony.service.service import Limits, Service
from symphony.service.state import ServiceJob
from symphony.service.wire import Submit
from tests.runtime.machines import machine
from tests.simulator.chaos import Chaos
from tests.whole_system.clients import Sender, Wanted, wanted
from tests.whole_system.faults import Broken, Faults, Killed, drawn
from tests.whole_system.simulated_engine import SimulatedEngine
from tests.whole_system.virtual_time import Clock, keeping_time

TOPOLOGY = machine(slots=2, others=3)
POLICIES = ("eft-belief", "chaos")  # sensible, and anything but
EVE = Allowance(running_jobs=2, slots=2)  # her tasks enter the core one by one
LIMITS = Limits(open_jobs=3, at_once=4, weights={"ann": 2.0}, containment=Containment(users={"eve": EVE}))
SHAPES = Shapes(4, 6, 12, 8, 2)  # what fits all that is drawn: nothing compiles twice …
SMALL, GROWS = Shapes(4, 4, 12, 8, 1), 8  # … but in every so many runs, in which the core has to grow
SUBMITTED_S = 30.0  # within which all have submitted
PATIENCE_S = 3_600.0  # virtual, after which nothing will ever happen
MOST_STEPS, MOST_STARTS = 20_000, 40
KILLS = 4


class World:
    """One run."""

    def __init__(self, seed: int, folder: Path, faults: Faults | None = None, policy: str = "") -> None:
        self.seed, self.folder = seed, folder
        self.rng, self.clock = random.Random(seed), Clock()
        self.faults = drawn(self.rng, self.clock.now) if faults is None else faults
        drawn_policy = self.rng.choice(POLICIES)
        self.policy = policy or drawn_policy
        self.shapes = SMALL if seed % GROWS == GROWS - 1 else SHAPES
        self.began_s = self.clock.now
        sender = Sender()
        self.wanted: list[Wanted] = []
        for number in range(self.rng.randrange(2, 9)):
            self.wanted.append(wanted(self.rng, f"job{number}", sender, self.wanted))
        self.service: Service | None = None
        self.engine: SimulatedEngine | None = None
        self.kills = self.starts = self.damaged = 0
        self._gone = False  # the process is, and what still runs of it must not leave a trace
        self._asleep = False
        self._disk_full_s = self._away_s = self._held_s = self._no_files_s = 0.0  # until then
        self._lock_lost = False
        self._plan: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for one in self.wanted:
            self._later(self.rng.uniform(0.0, SUBMITTED_S), partial(self._submit, one))
            if self.rng.random() < 0.2:
                self._later(self.rng.uniform(0.0, 2 * SUBMITTED_S), partial(self._cancel, one))
        for kind in ("device", "death", "disk_full", "store_full", "clock", "taken", "database", "files", "stop"):
            for second in range(60):
                if self.rng.random() < getattr(self.faults, kind):
                    self._later(second + self.rng.random(), getattr(self, f"_{kind}"))

    # --- the run

    def run(self) -> None:
        """Until all is over, and nothing is left to do."""
        self._start()
        for _ in range(MOST_STEPS):
            if self.starts > MOST_STARTS:
                break
            try:
                if not self._step():
                    self._away_s = self._no_files_s = 0.0  # whoever checks can read everything
                    return
            except Killed:
                self._bury()
            if self.service is not None and self.service.failed.is_set():
                self._end()
        raise Broken("the system comes to rest", f"it does not, after {self.starts} starts")

    def _step(self) -> bool:
        """Whoever has something to do; whether there was somebody, or will be."""
        service, ready = self.service, self._ready()
        if service is not None and not service.ledger.idle:
            ready.append(service.ledger.step)
        if ready:
            self.rng.choice(ready)()
            self._check_limits()
            return True
        next_s = self._next_s()
        if self.over and not self._plan and service is not None and not service.cluster._loop.busy:
            return False
        if next_s > self.began_s + PATIENCE_S:
            left = [one.name for one in self.wanted if not self._is_over(one)]
            raise Broken("every job ends", f"{', '.join(left) or 'what is left of some'} will not")
        self.clock.now = max(self.clock.now, next_s)
        return True

    def _ready(self) -> list[Callable[[], None]]:
        """Who may go on, but for the ledger."""
        found: list[Callable[[], None]] = []
        if self._plan and self._plan[0][0] <= self.clock.now:
            found.append(self._do_next)
        if self.service is None:
            found += [] if self._asleep else [self._start]
        elif self.engine is not None and self.engine.next_s <= self.clock.now and not self.service.failed.is_set():
            found.append(self.service.cluster.step)
        return found

    def _do_next(self) -> None:
        heapq.heappop(self._plan)[2]()

    def _next_s(self) -> float:
        plan = self._plan[0][0] if self._plan else float("inf")
        return min(plan, self.engine.next_s if self.engine is not None else plan)

    def _while_asleep(self, until_s: float) -> None:
        """What others do while the ledger waits for its disk."""
        if self._asleep or self.service is None:
            return
        self._asleep = True
        try:
            while self._next_s() <= until_s and not self.service.failed.is_set():
                self.clock.now = max(self.clock.now, self._next_s())
                ready = self._ready()
                if not ready:
                    return
                self.rng.choice(ready)()
        finally:
            self._asleep = False

    @property
    def over(self) -> bool:
        """Whether all that was wanted has come to an end."""
        return all(self._is_over(one) for one in self.wanted)

    def _is_over(self, one: Wanted) -> bool:
        if one.refused:
            return True
        found = self.record(one)
        return found is not None and found.over

    def record(self, one: Wanted) -> ServiceJob | None:
        """What the service says of it."""
        return None if self.service is None else self.service.state.jobs.get(one.number)

    # --- the service begins and ends

    def _start(self) -> None:
        self._gone = False
        self.starts += 1
        if self._lucky(self.faults.damage):
            self._damage()
        try:
            policy = Chaos() if self.policy == "chaos" else self.policy
            self.service = Service(self._make_engine, self.folder, policy=policy, limits=LIMITS, threads=False)
        except Killed:
            self._bury()
        except ServiceError:  # the disk is full
            self.clock.now += 1.0
        else:
            scheduler = self.service.cluster._scheduler
            scheduler._thread = Answers(self)  # type: ignore[assignment]
            scheduler._own = False  # also the heuristic may fail, as a policy
            self._check_accepted()

    def _make_engine(self) -> SimulatedEngine:
        self.engine = SimulatedEngine(TOPOLOGY, self.clock, self.rng, self.faults, self.point, self._check_new)
        return self.engine

    def _bury(self) -> None:
        """What `kill -9` leaves: the disk."""
        self.close()
        self.service = self.engine = None
        self.clock.now += self.rng.uniform(0.0, 2.0)

    def _end(self) -> None:
        """It cannot go on: it ends by itself, and is started again."""
        assert self.service is not None
        self.engine = None  # closed first: nobody polls it while the ledger waits for its database
        with suppress(Killed):
            self.service.close()
        self._bury()

    def close(self) -> None:
        """Give back the files of its database; SQLAlchemy keeps a connection in use, and with it all of this."""
        if self.service is not None:
            self.service.ledger._hold.close()
            self.service.database.dispose()

    def point(self, where: str) -> None:
        """One at which the process may be killed."""
        if not self._gone and self._lucky(self.faults.kill) and self.kills < KILLS:
            self.kills += 1
            self._gone = True
        if self._gone:
            raise Killed(where)

    def _lucky(self, rate: float) -> bool:
        return self.rng.random() < rate and self.faults.go_on(self.clock.now)

    # --- users

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._plan, (self.clock.now + seconds, next(self._order), what))

    def _submit(self, one: Wanted) -> None:
        """Again and again, until there is an answer: one key makes one job."""
        if one.number or one.refused:
            return
        if any(before.refused for before in one.after):
            one.refused = True
            return
        self._later(self.rng.uniform(2.0, 5.0), partial(self._submit, one))
        if self.service is not None and not self._gone and all(before.number for before in one.after):
            body = one.body()
            answer = self.service.submit(one.token, Submit.model_validate_json(body), body, one.name)
            answer.add_done_callback(partial(self._answered, one))

    def _answered(self, one: Wanted, answer: Future[Any]) -> None:
        error = answer.exception()
        if error is None:
            job, _ = answer.result()
            if one.number not in (0, job.id):
                raise Broken("one key makes one job", f"{one.name} is {one.number} and {job.id}")
            one.number = job.id
        elif isinstance(error, InputError) and any(self._is_vain(before) for before in one.after):
            one.refused = True
        elif not isinstance(error, BusyError | UnavailableError | ServiceError):
            raise Broken("refusals are typed, and meant", repr(error))

    def _is_vain(self, one: Wanted) -> bool:
        """Whether it will never be done."""
        found = self.record(one)
        return found is not None and found.over and found.status != DONE

    def _cancel(self, one: Wanted) -> None:
        if one.number and self.service is not None and not self._gone:
            one.cancelled = True
            self.service.cancel(one.token, one.number)
        elif not one.number and not one.refused:
            self._later(1.0, partial(self._cancel, one))

    # --- what goes wrong

    def _device(self) -> None:
        if self.engine is not None:
            device = self.rng.randrange(len(TOPOLOGY.devices))
            self.engine.change_device(device)
            if device in self.engine.down:
                engine = self.engine
                self._later(self.rng.uniform(0.1, 20.0), lambda: device in engine.down and engine.change_device(device))

    def _death(self) -> None:
        if self.engine is not None:
            self.engine.dead = True

    def _disk_full(self) -> None:
        self._disk_full_s = self.clock.now + self.rng.uniform(0.1, 5.0)

    def _store_full(self) -> None:
        if self.engine is not None:
            engine = self.engine
            engine.full = True
            self._later(self.rng.uniform(0.1, 5.0), lambda: setattr(engine, "full", False))

    def _clock(self) -> None:
        self.clock.ahead += self.rng.choice((-1, 1)) * self.rng.choice((1.0, 60.0, 7_200.0, 100_000.0))

    def _stop(self) -> None:
        """An operator drains the service, and ends it after a while, whatever runs then."""
        service = self.service
        if service is not None and not self._gone and not service.failed.is_set():
            service.drain(0.0)
            self._later(self.rng.uniform(0.0, 3.0), partial(self._end_stopped, service))

    def _end_stopped(self, service: Service) -> None:
        if self._asleep:  # its ledger is in the middle of a transaction, in this thread
            self._later(0.1, partial(self._end_stopped, service))
        elif self.service is service:
            self._end()

    def _taken(self) -> None:
        """Another process has had the lock, and has let go of it again."""
        if self.starts and not self._changed_by_others("UPDATE journal SET epoch = epoch + 1"):
            self._later(0.5, self._taken)

    def _database(self) -> None:
        """It dies and comes back; the connection with the lock is gone, and the lock is held on for a while."""
        self._away_s = self.clock.now + self.rng.uniform(0.1, 5.0)
        self._held_s = self._away_s + self.rng.choice((0.0, 2.0))
        self._lock_lost = True

    def _files(self) -> None:
        self._no_files_s = self.clock.now + self.rng.uniform(0.1, 5.0)

    def _open_file(self) -> None:
        if self.clock.now < self._no_files_s:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def _damage(self) -> None:
        """A digit of an event changes while no service runs."""
        path = self.folder / "journal.sqlite"
        kind = self.rng.choice(("accepted", "begun", "restarted", "finished", "ended"))
        if not path.exists():
            return
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT id FROM events WHERE kind = ? ORDER BY id", (kind,)).fetchall()
        if rows:
            self.damaged += 1
            self._changed_by_others(f"UPDATE events SET at = at + 1 WHERE id = {self.rng.choice(rows)[0]}")

    def _changed_by_others(self, statement: str) -> bool:
        """Whether it could be: not while the service is in the middle of a transaction."""
        with closing(sqlite3.connect(self.folder / "journal.sqlite", timeout=0.0)) as connection, connection:
            try:
                connection.execute(statement)
            except sqlite3.OperationalError:
                return False
        return True

    @contextmanager
    def disk(self) -> Iterator[None]:
        """Between the service and its database."""

        def opened(url: str, folder: Path) -> sa.Engine:
            engine = open_database(url, folder)
            commit, execute, many = engine.dialect.do_commit, engine.dialect.do_execute, engine.dialect.do_executemany

            def written(do: Callable[..., None]) -> Callable[..., None]:
                def use(cursor: Any, statement: str, *rest: Any) -> None:
                    if self.clock.now < self._away_s:
                        raise sqlite3.OperationalError("server closed the connection unexpectedly")
                    if not statement.startswith("SELECT"):
                        self._write()
                    do(cursor, statement, *rest)

                return use

            def through(connection: Any) -> None:
                self._write()
                commit(connection)
                self.point("after a commit")
                if self._lucky(self.faults.answer_lost):
                    raise sqlite3.OperationalError("disk I/O error")

            engine.dialect.do_commit = through  # type: ignore[method-assign]
            engine.dialect.do_execute = written(execute)  # type: ignore[method-assign]
            engine.dialect.do_executemany = written(many)  # type: ignore[method-assign]
            return engine

        take, connect, put, read = Hold.transaction, Hold._connect, Blobs.put, Blobs.read

        def transaction(hold: Hold, durable: bool = True) -> Any:
            if self._lock_lost and hold._connection is not None:
                hold._connection.close()
                hold._connection = None
            self._lock_lost = False
            return take(hold, durable)

        def connected(hold: Hold) -> sa.Connection:
            if hold.epoch >= 0 and self.clock.now < self._held_s:
                raise LockHeldError("the database still holds the lock of a connection that is gone")
            return connect(hold)

        def checked(use: Callable[..., Any]) -> Callable[..., Any]:
            def opened_file(*arguments: Any) -> Any:
                self._open_file()
                return use(*arguments)

            return opened_file

        with (
            mock.patch.object(service_module, "open_database", opened),
            mock.patch.object(Hold, "transaction", transaction),
            mock.patch.object(Hold, "_connect", connected),
            mock.patch.object(Blobs, "put", checked(put)),
            mock.patch.object(Blobs, "read", checked(read)),
        ):
            yield

    def _write(self) -> None:
        self.point("before a write")
        if self._lucky(self.faults.slow_disk):
            self.clock.sleep(self.rng.expovariate(2.0))
        if self.clock.now < self._disk_full_s:
            raise sqlite3.OperationalError("database or disk is full")

    # --- what holds all the time

    def _check_accepted(self) -> None:
        for one in self.wanted:
            found = self.record(one)
            if one.number and (found is None or found.name != one.name):
                raise Broken("no accepted job is lost", f"{one.name}, which is job {one.number}")

    def _check_limits(self) -> None:
        if self.service is None:
            return
        if len(self.service.running.queue.under_way) > LIMITS.at_once:
            raise Broken("the core is not overfilled", f"{len(self.service.running.queue.under_way)} jobs")
        for name, user in self.service.state.users.items():
            if user.open > LIMITS.open_jobs:
                raise Broken("quotas hold", f"{name} has {user.open} jobs")
        running, loop = self.service.running, self.service.cluster._loop
        under_way = sum(job.user == "eve" for job in running.queue.under_way.values())
        held = [run for run in loop._attempts.values() if run.job.limits.user == "eve" and not run.job.over.is_set()]
        if under_way > EVE.running_jobs or sum(slots_of(run) for run in held) > EVE.slots:
            raise Broken("limits of users hold", f"{under_way} jobs and {len(held)} tasks of eve are under way")

    def _check_new(self, label: str) -> None:
        """Of a task that is dispatched."""
        assert self.service is not None
        name, task = label.split("/")
        job = next(job for job in self.service.state.jobs.values() if job.name == name)
        if job.over:
            raise Broken("nothing runs for a job that is over", label)
        if any(self.service.state.jobs[number].status != DONE for number in job.after):
            raise Broken("a job waits for those before it", label)
        if job.done is not None and int(task) in job.done:
            raise Broken("no finished kernel runs twice", label)


class Answers:
    """Stands for the thread of a policy: it answers, raises or is late."""

    def __init__(self, world: World) -> None:
        self._world = world

    def submit(self, take: Callable[..., Any], *about: Any) -> Future[Any]:
        """At once, or not at all."""
        world, answer = self._world, Future()
        if world._lucky(world.faults.policy / 2):
            return Late(world.clock, world.clock.now + world.rng.uniform(1.0, 5.0))
        if world._lucky(world.faults.policy / 2):
            answer.set_exception(FloatingPointError("a policy of one's own"))
        else:
            answer.set_result(take(*about))
        return answer

    def shutdown(self, **_: Any) -> None:
        """Nothing runs."""


class Late(Future):
    """An answer that does not come in time."""

    def __init__(self, clock: Clock, until_s: float) -> None:
        super().__init__()
        self._clock, self._until_s = clock, until_s

    def done(self) -> bool:
        """One day."""
        return self._clock.now >= self._until_s

    def result(self, timeout: float | None = None) -> Any:
        """Not now."""
        raise TimeoutError


@cache
def new_journal() -> bytes:
    """Of a service that was never started: to make its tables takes a fifth of a run."""
    with tempfile.TemporaryDirectory() as folder:
        open_database("", Path(folder)).dispose()
        with closing(sqlite3.connect(Path(folder) / "journal.sqlite")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return (Path(folder) / "journal.sqlite").read_bytes()


@contextmanager
def prepared(world: World) -> Iterator[World]:
    """Clock, disk and locks are replaced. (Locks end with a process; here, nobody's process ends.)"""
    world.folder.mkdir(parents=True, exist_ok=True)
    (world.folder / "journal.sqlite").write_bytes(new_journal())
    world.clock.asleep = world._while_asleep
    with ExitStack() as stack:
        stack.enter_context(keeping_time(world.clock))
        stack.enter_context(world.disk())
        stack.enter_context(mock.patch.object(database_module, "_lock", lambda *_: None))
        stack.enter_context(mock.patch.object(cluster_module, "Scheduler", partial(Scheduler, shapes=world.shapes)))
        try:
            yield world
        finally:
            world._gone = True
            world.close()
