"""Events as rows of the journal: written with a checksum each, read back only if that is right.

A row also names the event of the same job before it, so that one which is missing is noticed. (Numbers alone do not
show that: the events of forgotten jobs are deleted.)
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
from symphony.service.state import ACCEPTED, FINISHED, LOST, STOPPED, JournalEvent, State, dumped
from symphony.service.wire import Value

log = logging.getLogger("symphony.service")
UNPARSED = (FINISHED, LOST, STOPPED)  # events whose data the state does not need
MAX_EVENT = 1 << 48  # more than any journal has
COLUMNS = ("id", "at", "job", "kind", "task", "seconds", "data", "follows", "checksum")


class Damage(NamedTuple):
    """An event that cannot be read, or that is missing."""

    id: int
    job: int  # as far as it can be told
    why: str
    missing: bool = False  # there is no row to set aside

    def __str__(self) -> str:
        return f"event {self.id} (job {self.job}): {self.why}"


@dataclass
class JournalReplay:
    """What a journal adds up to."""

    state: State = field(default_factory=State)
    damaged: list[Damage] = field(default_factory=list)


def row_of(event: JournalEvent) -> dict[str, Any]:
    """As it is kept."""
    row = event._asdict() | {"data": dumped(event.data)}
    return row | {"checksum": _checksum(*row.values())}


def checksum(body: bytes) -> int:
    """Of bytes that are kept in a row."""
    return zlib.crc32(body)


def _checksum(number: int, at: float, job: int, kind: str, task: int, seconds: float, data: str, follows: int) -> int:
    text = f"{number} {at!r} {job} {kind} {task} {seconds!r} {follows} {data}"
    return zlib.crc32(text.encode(errors="surrogateescape"))


def read_events(
    database: sa.Engine, job: int | None = None, after: int = 0, damaged: list[Damage] | None = None
) -> Iterator[JournalEvent]:
    """The events of a job, in order, `after` one of them; or those of all, as far as the state needs them.

    Those that are damaged are left out, and added to the list.
    """
    rows = tables.events.c
    wanted = sa.select(*(rows[name] for name in COLUMNS)).order_by(rows.id)
    if job is not None:
        wanted = wanted.where(rows.job == job, rows.id > after)
    with database.connect().execution_options(yield_per=10_000) as connection:
        for row in connection.execute(wanted):
            number, at, of, kind, task, seconds, data, follows, found = row
            if found is not None and found != _checksum(number, at, of, kind, task, seconds, data, follows):
                _note(damaged, Damage(number, of, "its checksum is wrong"))
                continue
            try:
                parsed = {} if job is None and kind in UNPARSED else json.loads(data)
            except (TypeError, ValueError) as error:  # written before there were checksums
                _note(damaged, Damage(number, of, f"its data cannot be read: {error}"))
                continue
            yield JournalEvent(number, at, of, kind, task, seconds, parsed, follows)


def _note(damaged: list[Damage] | None, one: Damage) -> None:
    if damaged is None:
        log.error("%s", one)
    else:
        damaged.append(one)


def replay(database: sa.Engine) -> JournalReplay:
    """The state that all events give, and what is wrong with some."""
    collecting = gc.isenabled()
    gc.disable()  # a million small objects are made, and none of them is garbage
    try:
        return _replayed(database)
    finally:
        if collecting:
            gc.enable()


def _replayed(database: sa.Engine) -> JournalReplay:
    found = JournalReplay()
    state, damaged = found.state, found.damaged
    aside, last_job = _known(database)
    for event in read_events(database, damaged=damaged):
        job = state.jobs.get(event.job)
        before = job.change if job is not None else 0
        if event.follows not in (None, before):
            if job is None:  # a job without its beginning cannot go on
                damaged.append(Damage(event.id, event.job, "its job cannot be read"))
                continue
            missing = Damage(event.follows, event.job, "it is missing", missing=True)
            if event.follows not in aside and all(one.id != event.follows for one in damaged):
                damaged.append(missing)
        elif job is None and event.kind != ACCEPTED and any(one.job == event.job for one in damaged):
            damaged.append(Damage(event.id, event.job, "its job cannot be read"))
            continue
        try:
            state.apply(event)
        except (LookupError, TypeError, ValueError) as error:  # written before there were checksums
            damaged.append(Damage(event.id, event.job, f"its data is wrong: {error!r}"))
    state.last_job = max(state.last_job, last_job)  # the number of a job that cannot be read is not given again
    for one in damaged:  # nor is that of an event whose row is still there, unless the number is what was damaged
        if isinstance(one.id, int) and state.events < one.id < MAX_EVENT:
            state.events = one.id
    damaged += [one for one in aside.values() if one.job in state.open]  # nobody has ended the job for it yet
    return found


def _known(database: sa.Engine) -> tuple[dict[int, Damage], int]:
    """Events that were set aside before, and the highest number of a job."""
    rows = tables.damaged_events.c
    with database.connect() as connection:
        found = connection.execute(sa.select(rows.id, rows.job, rows.why))
        aside = {number: Damage(number, job, why, missing=True) for number, job, why in found}
        return aside, connection.scalar(sa.select(sa.func.max(tables.payloads.c.job))) or 0


def set_aside(damaged: list[Damage]) -> Iterator[sa.Executable]:
    """Statements that move damaged events to where the next start does not read them."""
    rows, columns = tables.events.c, [*COLUMNS, "why", "found"]
    for one in damaged:
        if not one.missing:
            kept = sa.select(*(rows[name] for name in COLUMNS), sa.literal(one.why), sa.literal(time.time()))
            yield sa.insert(tables.damaged_events).from_select(columns, kept.where(rows.id == one.id))
            yield sa.delete(tables.events).where(rows.id == one.id)


def value_of(body: bytes, known: int | None, where: str) -> Value | None:
    """What a task made, as a row keeps it; None = the row is damaged."""
    try:
        if known is None or known == checksum(body):
            return Value.model_validate_json(body)
    except (TypeError, ValueError):  # written before there were checksums, or not even bytes
        pass
    log.error("what %s made is damaged", where)
    return None
