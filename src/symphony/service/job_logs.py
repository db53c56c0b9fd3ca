"""The log of a job: what happened to it and what it has written, as one sequence that can be read from any point on.

A point is a *cursor*: the last event that was read, and how far the output of each worker was, for tasks that had not
ended by then: `17_3.0.2.4096` is event 17, and of task 3, worker 0, file 2 up to byte 4,096.

A run of a task writes, its end is journalled, and only then the next run of that task begins. So if no event comes
while the sizes of all files are looked at, nothing is told before what it follows upon. Within that, times decide; and
all that a task wrote comes before its end, whatever the clock of its machine says.
"""

from __future__ import annotations

import heapq
import itertools
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from symphony.problem.errors import InputError
from symphony.service import tables
from symphony.service.journal import read_events
from symphony.service.outputs import OutputPosition, Outputs, Stream
from symphony.service.state import BEGUN, BROKE, ENDED, FINISHED, JournalEvent, text_of
from symphony.service.wire import EVENT, MARK, OUTPUT, LogLine, Logs

MAX_PAGE_BYTES, MAX_PAGE_LINES = 256 << 10, 4_096  # of one answer, about
MAX_READ_ATTEMPTS = 4  # that are tried for one without an event in between
CURSOR_PATTERN = re.compile(r"([0-9]{1,18})((?:_[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,18})*)")
FINAL_EVENTS = (FINISHED, BROKE)  # events after which a task writes nothing


@dataclass
class Cursor:
    """Up to where somebody has read."""

    event: int = 0
    spots: dict[tuple[int, int], OutputPosition] = field(default_factory=dict)  # by task and rank

    @staticmethod
    def parse(text: str) -> Cursor:
        """As `str` writes it; "" is the beginning."""
        found = CURSOR_PATTERN.fullmatch(text or "0")
        if found is None:
            raise InputError("after is none of ours", hint="give `next` of an answer, or nothing")
        spots = {}
        for one in filter(None, found[2].split("_")):
            task, rank, file, offset = map(int, one.split("."))
            spots[task, rank] = OutputPosition(file, offset)
        return Cursor(int(found[1]), spots)

    def __str__(self) -> str:
        spots = (f"{task}.{rank}.{file}.{offset}" for (task, rank), (file, offset) in sorted(self.spots.items()))
        return "_".join([str(self.event), *spots])


@dataclass(frozen=True)
class _Item:
    """A line of the sequence, and what was read with it."""

    at: float  # by which it is sorted
    line: LogLine
    event: int = 0
    spot: tuple[tuple[int, int], OutputPosition] | None = None
    task: int = -1  # that has ended


def read(database: sa.Engine, outputs: Outputs, job: int, tasks: Mapping[str, tuple[int, str]], cursor: Cursor) -> Logs:
    """What follows upon a cursor; `tasks` are numbers and names, by their folders."""
    looked_s = time.time()
    # Nobody reads on where a task had ended, and cursors are short though graphs are long.
    gone = _ended(database, job, cursor.event)
    left = {folder: name for folder, (task, name) in tasks.items() if task not in gone}
    for _ in range(MAX_READ_ATTEMPTS):
        events = list(read_events(database, job, cursor.event))
        streams = outputs.streams(job, left)
        seen = events[-1].id if events else cursor.event
        last, end = _last(database, job)
        if last <= seen:
            break
    over = 0 < end <= seen
    told = list(_happened(events))
    ends = {item.task: item.at for item in told if item.task >= 0}
    written = [_written(one, tasks[one.folder.name][0], cursor, ends, over) for one in streams]
    page = _page(heapq.merge(*written, told, key=lambda item: item.at), cursor)
    page.over, page.at_s = over and not page.more, looked_s
    return page


def _page(items: Iterator[_Item], cursor: Cursor) -> Logs:
    """As much as one answer takes."""
    event, spots, lines, size = cursor.event, dict(cursor.spots), list[LogLine](), 0
    for item in items:
        if size >= MAX_PAGE_BYTES or len(lines) >= MAX_PAGE_LINES:
            return Logs(lines=lines, next=str(Cursor(event, spots)), more=True)
        if item.spot is not None:
            spots[item.spot[0]] = item.spot[1]
        event = item.event or event
        if item.task >= 0:
            spots = {key: spot for key, spot in spots.items() if key[0] != item.task}
        lines.append(item.line)
        size += len(item.line.text)
    return Logs(lines=lines, next=str(Cursor(event, spots)), more=False)


def _happened(events: list[JournalEvent]) -> Iterator[_Item]:
    """In the order of their numbers: clocks may be set back."""
    times = itertools.accumulate((event.at for event in events), max)
    for event, at in zip(events, times, strict=True):
        if event.kind == BEGUN:  # for the service, not for people: the job may still wait for a device
            continue
        line = LogLine(number=event.id, at_s=event.at, text=text_of(event), kind=EVENT)
        yield _Item(at, line, event.id, task=event.task if event.kind in FINAL_EVENTS else -1)


def _written(stream: Stream, task: int, cursor: Cursor, ends: Mapping[int, float], over: bool) -> Iterator[_Item]:
    """In the order in which it was written, and before the end of its task."""
    at, key = 0.0, (task, stream.rank)
    for found in stream.lines(cursor.spots.get(key, OutputPosition()), ended=over or task in ends):
        at = max(at, found.at)
        line = LogLine(number=0, at_s=found.at, text=found.text, kind=OUTPUT, task=stream.task, rank=stream.rank)
        if found.mark:
            line.kind = MARK
        yield _Item(min(at, ends.get(task, at)), line, spot=(key, found.then))


def _ended(database: sa.Engine, job: int, until: int) -> set[int]:
    """Tasks that had ended with some event."""
    rows = tables.events.c
    ended = sa.select(rows.task).where(rows.job == job, rows.id <= until, rows.kind.in_(FINAL_EVENTS))
    with database.connect() as connection:
        return set(connection.scalars(ended)) if until else set()


def _last(database: sa.Engine, job: int) -> tuple[int, int]:
    """The last event, and the one that was its end; 0 = there is none."""
    rows = tables.events.c
    wanted = sa.select(sa.func.max(rows.id), sa.func.max(sa.case((rows.kind == ENDED, rows.id))))
    with database.connect() as connection:
        last, end = connection.execute(wanted.where(rows.job == job)).one()
    return last or 0, end or 0
