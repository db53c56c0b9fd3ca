"""The log of a job: its events and its output as one sequence, which can be read from any cursor on.

A cursor is the last event that was read, and the position in the output of each worker of unfinished tasks:
`17_3.0.2.4096` is event 17, and of task 3, rank 0, file 2 up to byte 4,096.

A run of a task writes, its end is journalled, and only then does the next run of the task begin. So if no event is
added while the sizes of all files are read, no line comes before one that it depends on. Within that, lines are ordered
by time; and the output of a task precedes its end, whatever the clock of its machine says.
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

MAX_PAGE_BYTES, MAX_PAGE_LINES = 256 << 10, 4_096  # approximate
MAX_READ_ATTEMPTS = 4  # to read without an event being added meanwhile
CURSOR_PATTERN = re.compile(r"([0-9]{1,18})((?:_[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,18})*)")
FINAL_EVENTS = (FINISHED, BROKE)  # events after which a task writes nothing


@dataclass
class Cursor:
    event: int = 0
    positions: dict[tuple[int, int], OutputPosition] = field(default_factory=dict)  # by task and rank

    @staticmethod
    def parse(text: str) -> Cursor:
        """The inverse of `str`; "" is the beginning."""
        found = CURSOR_PATTERN.fullmatch(text or "0")
        if found is None:
            raise InputError("`after` is not a cursor", hint="pass `next` of an answer, or nothing")
        positions = {}
        for one in filter(None, found[2].split("_")):
            task, rank, file, offset = map(int, one.split("."))
            positions[task, rank] = OutputPosition(file, offset)
        return Cursor(int(found[1]), positions)

    def __str__(self) -> str:
        positions = (
            f"{task}.{rank}.{file}.{offset}" for (task, rank), (file, offset) in sorted(self.positions.items())
        )
        return "_".join([str(self.event), *positions])


@dataclass(frozen=True)
class _Item:
    """A line, and the position after it."""

    at: float  # sort key, seconds since 1970
    line: LogLine
    event: int = 0
    position: tuple[tuple[int, int], OutputPosition] | None = None
    task: int = -1  # that ended with this line


def read(database: sa.Engine, outputs: Outputs, job: int, tasks: Mapping[str, tuple[int, str]], cursor: Cursor) -> Logs:
    """The lines after a cursor; `tasks`: index and name of each task, by output folder."""
    read_s = time.time()
    # The cursor has no positions of tasks that had ended: so it stays short in large graphs.
    ended_before = _ended(database, job, cursor.event)
    left = {folder: name for folder, (task, name) in tasks.items() if task not in ended_before}
    for _ in range(MAX_READ_ATTEMPTS):
        events = list(read_events(database, job, cursor.event))
        streams = outputs.streams(job, left)
        seen = events[-1].id if events else cursor.event
        last, end = _last(database, job)
        if last <= seen:
            break
    over = 0 < end <= seen
    happened = list(_happened(events))
    ends = {item.task: item.at for item in happened if item.task >= 0}
    written = [_written(one, tasks[one.folder.name][0], cursor, ends, over) for one in streams]
    page = _page(heapq.merge(*written, happened, key=lambda item: item.at), cursor)
    page.over, page.at_s = over and not page.more, read_s
    return page


def _page(items: Iterator[_Item], cursor: Cursor) -> Logs:
    event, positions, lines, size = cursor.event, dict(cursor.positions), list[LogLine](), 0
    for item in items:
        if size >= MAX_PAGE_BYTES or len(lines) >= MAX_PAGE_LINES:
            return Logs(lines=lines, next=str(Cursor(event, positions)), more=True)
        if item.position is not None:
            positions[item.position[0]] = item.position[1]
        event = item.event or event
        if item.task >= 0:
            positions = {key: position for key, position in positions.items() if key[0] != item.task}
        lines.append(item.line)
        size += len(item.line.text)
    return Logs(lines=lines, next=str(Cursor(event, positions)), more=False)


def _happened(events: list[JournalEvent]) -> Iterator[_Item]:
    """Lines of events, in the order of their ids: clocks may be set back."""
    times = itertools.accumulate((event.at for event in events), max)
    for event, at in zip(events, times, strict=True):
        if event.kind == BEGUN:  # internal: the job may still wait for a device
            continue
        line = LogLine(number=event.id, at_s=event.at, text=text_of(event), kind=EVENT)
        yield _Item(at, line, event.id, task=event.task if event.kind in FINAL_EVENTS else -1)


def _written(stream: Stream, task: int, cursor: Cursor, ends: Mapping[int, float], over: bool) -> Iterator[_Item]:
    """Lines of output, in order, and before the end of their task."""
    at, key = 0.0, (task, stream.rank)
    for output in stream.lines(cursor.positions.get(key, OutputPosition()), ended=over or task in ends):
        at = max(at, output.at)
        line = LogLine(number=0, at_s=output.at, text=output.text, kind=OUTPUT, task=stream.task, rank=stream.rank)
        if output.mark:
            line.kind = MARK
        yield _Item(min(at, ends.get(task, at)), line, position=(key, output.next_position))


def _ended(database: sa.Engine, job: int, until: int) -> set[int]:
    rows = tables.events.c
    ended = sa.select(rows.task).where(rows.job == job, rows.id <= until, rows.kind.in_(FINAL_EVENTS))
    with database.connect() as connection:
        return set(connection.scalars(ended)) if until else set()


def _last(database: sa.Engine, job: int) -> tuple[int, int]:
    """The ids of the last event, and of the event that ended the job; 0 = none."""
    rows = tables.events.c
    wanted = sa.select(sa.func.max(rows.id), sa.func.max(sa.case((rows.kind == ENDED, rows.id))))
    with database.connect() as connection:
        last, end = connection.execute(wanted.where(rows.job == job)).one()
    return last or 0, end or 0
