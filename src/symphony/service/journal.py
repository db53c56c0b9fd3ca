"""Events as rows of the journal, with a checksum that is verified when they are read.

A row also has the id of the previous event of the same job, so that a missing event is detected. (Gaps in the ids do
not show that: the events of forgotten jobs are deleted.)

Without the event with which it began, a job cannot continue. Its payload has a copy of that event, from which it is
restored. A job with neither is lost; the state has its number.
"""

from __future__ import annotations

import gc
import json
import logging
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from symphony.service import tables
from symphony.service.state import ACCEPTED, FINISHED, LOST, STOPPED, JournalEvent, State
from symphony.service.wire import Value

log = logging.getLogger("symphony.service")
UNPARSED = (FINISHED, LOST, STOPPED)  # events whose data the state does not need
MAX_EVENT = 1 << 48  # ids, and numbers of jobs, above are taken to be damaged
COLUMNS = ("id", "at", "job", "kind", "task", "seconds", "data", "follows", "checksum")


class Damage(NamedTuple):
    """An event that is damaged or missing."""

    id: int
    job: int  # as far as it is known
    why: str
    missing: bool = False  # no row to set aside
    restored: JournalEvent | None = None  # the event, from its copy

    def __str__(self) -> str:
        return f"event {self.id!s:.20} (job {self.job}): {self.why}{'; it was restored' if self.restored else ''}"


@dataclass
class JournalReplay:
    state: State = field(default_factory=State)
    damaged: list[Damage] = field(default_factory=list)


def row_of(event: JournalEvent) -> dict[str, Any]:
    row = event._asdict() | {"data": json.dumps(event.data, separators=(",", ":"))}
    return row | {"checksum": _checksum(*row.values())}


def copy_of(event: JournalEvent) -> str:
    """A copy of an event, for another table."""
    return json.dumps(row_of(event), separators=(",", ":"))


def checksum(body: bytes) -> int:
    return zlib.crc32(body)


def _checksum(number: int, at: float, job: int, kind: str, task: int, seconds: float, data: str, follows: int) -> int:
    text = f"{number} {at!r} {job} {kind} {task} {seconds!r} {follows} {data}"
    return zlib.crc32(text.encode(errors="surrogateescape"))


def read_events(
    database: sa.Engine, job: int | None = None, after: int = 0, damaged: list[Damage] | None = None
) -> Iterator[JournalEvent]:
    """The events of a job with ids above `after`; or those of all jobs, without the data that the state does not need.

    Damaged events are skipped and added to `damaged`, or logged if that is None.
    """
    rows = tables.events.c
    wanted = sa.select(*(rows[name] for name in COLUMNS)).order_by(rows.id)
    if job is not None:
        wanted = wanted.where(rows.job == job, rows.id > after)
    with database.connect().execution_options(yield_per=10_000) as connection:
        for row in connection.execute(wanted):
            number, at, owner, kind, task, seconds, data, follows, stored = row
            if stored is not None and stored != _checksum(number, at, owner, kind, task, seconds, data, follows):
                known = owner if isinstance(owner, int) else 0
                _note(damaged, Damage(number, known, "its checksum is wrong"))
                continue
            try:
                parsed = {} if job is None and kind in UNPARSED else json.loads(data)
            except (TypeError, ValueError) as error:  # written before there were checksums
                _note(damaged, Damage(number, owner, f"its data cannot be read: {error}"))
                continue
            yield JournalEvent(number, at, owner, kind, task, seconds, parsed, follows)


def _note(damaged: list[Damage] | None, one: Damage) -> None:
    if damaged is None:
        log.error("%s", one)
    else:
        damaged.append(one)


def replay(database: sa.Engine) -> JournalReplay:
    """The state after all events, and the events that are damaged."""
    collecting = gc.isenabled()
    gc.disable()  # creates a million small objects, none of which is garbage
    try:
        return _replayed(database)
    finally:
        if collecting:
            gc.enable()


def _replayed(database: sa.Engine) -> JournalReplay:
    result = JournalReplay()
    state, damaged = result.state, result.damaged
    aside, begun = _known(database)
    untried = begun.copy()  # jobs that were not restored
    copies: dict[int, JournalEvent] = {}  # of events that were restored, by id
    for event in read_events(database, damaged=damaged):
        aside.pop(event.id, None)  # it was restored at an earlier start
        if event.kind != ACCEPTED and event.job not in state.jobs and event.job in untried:
            untried.discard(event.job)
            _restore(database, state, event.job, copies)
        job = state.jobs.get(event.job)
        before = job.change if job is not None else 0
        if event.follows not in (None, before):
            if job is None:
                damaged.append(Damage(event.id, event.job, "the first event of its job cannot be read"))
                continue
            missing = Damage(event.follows, event.job, "it is missing", missing=True)
            if event.follows not in aside and all(one.id != event.follows for one in damaged):
                damaged.append(missing)
        elif job is None and event.kind != ACCEPTED and any(one.job == event.job for one in damaged):
            damaged.append(Damage(event.id, event.job, "the first event of its job cannot be read"))
            continue
        try:
            state.apply(event)
        except (LookupError, TypeError, ValueError) as error:  # written before there were checksums
            damaged.append(Damage(event.id, event.job, f"its data is wrong: {error!r}"))
    for number in sorted(untried - state.jobs.keys()):  # jobs without a later event
        _restore(database, state, number, copies)
    state.last_job = max(state.last_job, *begun, 0)  # never reuse the number of a job that cannot be read
    for one in damaged:  # nor the id of an event whose row still exists, unless the id itself is damaged
        if isinstance(one.id, int) and state.events < one.id < MAX_EVENT:
            state.events = one.id
    result.damaged = [one._replace(restored=copies.pop(one.id, None)) for one in damaged]
    result.damaged += [Damage(one.id, one.job, "it was missing", True, one) for one in copies.values()]
    reasons = {one.job: str(one) for one in reversed([*damaged, *aside.values()])}
    state.lost = {
        job: reasons.get(job, "the event with which it began is missing") for job in sorted(begun - state.jobs.keys())
    }
    result.damaged += [one for one in aside.values() if one.job in state.open]  # not handled yet: the job is open
    return result


def _known(database: sa.Engine) -> tuple[dict[int, Damage], set[int]]:
    """Events that were set aside before, and the numbers of the jobs that are not forgotten."""
    rows = tables.damaged_events.c
    with database.connect() as connection:
        found = connection.execute(sa.select(rows.id, rows.job, rows.why))
        aside = {number: Damage(number, job, why, missing=True) for number, job, why in found}
        numbers = connection.scalars(sa.select(tables.payloads.c.job))
        return aside, {number for number in numbers if isinstance(number, int) and 0 < number < MAX_EVENT}


def _restore(database: sa.Engine, state: State, job: int, copies: dict[int, JournalEvent]) -> None:
    """Apply the copy of the first event of a job, if that is readable."""
    with database.connect() as connection:
        text = connection.scalar(sa.select(tables.payloads.c.accepted).where(tables.payloads.c.job == job))
    try:
        row = json.loads(text or "null")
        stored = row.pop("checksum")
        if stored != _checksum(*row.values()) or (row["job"], row["kind"]) != (job, ACCEPTED):
            return
        event, last = JournalEvent(**row | {"data": json.loads(row["data"])}), state.events
        state.apply(event)
    except (LookupError, TypeError, ValueError, AttributeError):  # there is none, or it is damaged too
        return
    state.events = max(event.id, last)
    copies[event.id] = event


def set_aside(damaged: list[Damage]) -> Iterator[sa.Executable]:
    """Statements that move damaged events to the table `damaged_events`, and add those that were restored."""
    rows, columns = tables.events.c, [*COLUMNS, "why", "found"]
    for one in damaged:
        if not one.missing:
            kept = sa.select(*(rows[name] for name in COLUMNS), sa.literal(one.why), sa.literal(time.time()))
            yield sa.insert(tables.damaged_events).from_select(columns, kept.where(rows.id == one.id))
            yield sa.delete(tables.events).where(rows.id == one.id)
        if one.restored is not None:
            yield sa.insert(tables.events).values(row_of(one.restored))


def read_values(database: sa.Engine, job: int) -> dict[int, Value]:
    """The undamaged values of the tasks of a job, by task."""
    rows = tables.outputs.c
    with database.connect() as connection:
        stored = connection.execute(sa.select(rows.task, rows.body, rows.checksum).where(rows.job == job))
        values = {task: value_of(body, known, f"task {task} of job {job}") for task, body, known in stored}
    return {task: value for task, value in values.items() if value is not None}


def value_of(body: bytes, stored: int | None, where: str) -> Value | None:
    """The value of a task, as stored in a row; None if the row is damaged."""
    try:
        if stored is None or stored == checksum(body):
            return Value.model_validate_json(body)
    except (TypeError, ValueError):  # written before there were checksums, or not even bytes
        pass
    log.error("the value of %s is damaged", where)
    return None
