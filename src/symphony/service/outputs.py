"""What jobs write to their standard streams: where it is kept, read line by line, and how much of it stays.

<root>/<job>/<task>/RANK.NUMBER        written by the runs themselves: `engines/output.py`

It is there while a job runs, and until the job is forgotten. Beyond a bound for all jobs together, what was written to
longest ago is removed first, task by task. Where more may come, an empty file stays: numbers of files go on behind it,
so that nobody takes a new file for one of which he has read a part.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from symphony.engines import output
from symphony.engines.engine import Output
from symphony.problem.texts import readable
from symphony.training_jobs.live.checkpoints import safe_folder_name

log = logging.getLogger("symphony.service")
MAX_LINE_BYTES = 16 << 10  # bytes of a line; what is longer is several
FIRST_READ_BYTES, READ_BLOCK_BYTES = (
    1 << 10,
    64 << 10,
)  # bytes that are read at once: a graph may have many tasks, of which few are read on
TIMESTAMPED_LINE = re.compile(rb"(\d{1,12}\.\d{6}) (.*)", re.DOTALL)
NEW_RUN_MARK, DROPPED_MARK = "a new run begins", "what it wrote before this was dropped"


class OutputPosition(NamedTuple):
    """How far somebody has read: a file, by its number, and an offset in it."""

    file: int = 0
    offset: int = 0


class OutputLine(NamedTuple):
    """A line that a task wrote, or (a mark) what has to be known of those that follow."""

    at: float  # seconds since 1970, by the clock of the machine
    text: str
    mark: bool
    then: OutputPosition  # where to read on


@dataclass(frozen=True)
class Stream:
    """What one worker of a task has written so far."""

    task: str
    rank: int
    folder: Path
    files: tuple[tuple[int, int], ...]  # numbers and sizes

    def lines(self, spot: OutputPosition, *, ended: bool) -> Iterator[OutputLine]:
        """From a spot on. A line that has no end yet is left out, unless nothing more will come (`ended`)."""
        there = [number for number, _ in self.files]
        last = max(there, default=-1)
        for number, size in self.files:
            if number < spot.file:
                continue
            if number > spot.file:
                if spot.file not in there:
                    yield OutputLine(self._began(number), DROPPED_MARK, True, OutputPosition(number))
                spot = OutputPosition(number)
            try:
                yield from self._read(spot, size, ended or number < last)
            except FileNotFoundError:  # just now: others follow
                there.remove(number)
                continue
            spot = OutputPosition(number + 1)  # where the next one is, if nothing was dropped

    def _read(self, spot: OutputPosition, size: int, ended: bool) -> Iterator[OutputLine]:
        """The rest of a file, up to a size."""
        number, offset = spot
        at, rest, block = self._changed(number), b"", FIRST_READ_BYTES
        with open(self.folder / f"{self.rank}.{number}", "rb") as file:
            while offset + len(rest) < size:
                file.seek(offset + len(rest))
                data = file.read(min(block, size - offset - len(rest)))
                if not data:
                    break
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:
                    begins, offset = offset, offset + len(line) + 1
                    at, text = _parted(line, at)
                    if begins:
                        for piece, left in _cut(text):
                            yield OutputLine(
                                at, piece, False, OutputPosition(number, offset - (left + 1 if left else 0))
                            )
                    elif number and text.endswith(b" 0"):  # the first line of the first file of a run
                        yield OutputLine(at, NEW_RUN_MARK, True, OutputPosition(number, offset))
                begun, text = _parted(rest, at)
                if offset and len(text) > MAX_LINE_BYTES:
                    at, base = begun, offset + len(rest) - len(text)
                    for piece, left in _cut(text):
                        if left:
                            offset = base + len(text) - left
                            yield OutputLine(at, piece, False, OutputPosition(number, offset))
                    rest = text[offset - base :]
                block = READ_BLOCK_BYTES
        if offset and rest and ended:
            at, text = _parted(rest, at)
            for piece, left in _cut(text):
                yield OutputLine(at, piece, False, OutputPosition(number, offset + len(rest) - left))

    def _began(self, number: int) -> float:
        """When a file was begun."""
        try:
            with open(self.folder / f"{self.rank}.{number}", "rb") as file:
                return _parted(file.read(FIRST_READ_BYTES).partition(b"\n")[0], self._changed(number))[0]
        except OSError:
            return 0.0

    def _changed(self, number: int) -> float:
        """When a file was last written to, where nothing better is known."""
        try:
            return (self.folder / f"{self.rank}.{number}").stat().st_mtime
        except OSError:
            return 0.0


def _parted(line: bytes, otherwise: float) -> tuple[float, bytes]:
    """The time of a line, and what was written; one that has none is the rest of another."""
    found = TIMESTAMPED_LINE.fullmatch(line)
    return (float(found[1]), found[2]) if found is not None else (otherwise, line)


def _cut(text: bytes) -> Iterator[tuple[str, int]]:
    """A line in pieces that are not too long, and how many bytes are left after each.

    What is no UTF-8 is replaced, control characters are escaped.
    """
    while len(text) > MAX_LINE_BYTES:
        at = MAX_LINE_BYTES
        while at > MAX_LINE_BYTES - 4 and text[at] & 0xC0 == 0x80:  # within a character
            at -= 1
        yield _decoded(text[:at]), len(text) - at
        text = text[at:]
    yield _decoded(text), 0


def _decoded(text: bytes) -> str:
    return readable(text.decode("utf-8", "replace"))


class Outputs:
    """The folders of a service; without a `root`, nothing is kept."""

    def __init__(self, root: Path | None) -> None:
        self._root = None if root is None else root.absolute()
        self._name = os.urandom(6).hex()  # numbers of attempts begin anew with every service
        self._trimming = threading.Lock()
        if self._root is not None:
            try:
                self._root.mkdir(parents=True, exist_ok=True)
            except OSError as error:  # a service comes up on a full disk, too
                log.warning("what jobs write cannot be kept in %s: %s", self._root, error)

    def of(self, job: int, task: str, number: int) -> Output | None:
        """Where an attempt at a task keeps what it writes."""
        if self._root is None:
            return None
        return Output(f"{self._root}/{job}/{safe_folder_name(task)}", f"{self._name}-{number}")

    def streams(self, job: int, tasks: Mapping[str, str]) -> list[Stream]:
        """What some tasks of a job have written; `tasks` are their names, by those of their folders
        (`safe_folder_name`).
        """
        if self._root is None:
            return []
        folder = self._root / str(job)
        try:
            there = sorted(tasks.keys() & set(os.listdir(folder)))
        except OSError:  # it has written nothing
            return []
        return [
            Stream(tasks[name], rank, folder / name, tuple(found))
            for name in there
            for rank, found in output.files(str(folder / name)).items()
        ]

    def trim(self, known: Collection[int], over: Collection[int], newest: int, most: int) -> None:
        """Remove what jobs have written that are forgotten, and what is beyond so many bytes.

        `known` are all others, up to the `newest`, some of them `over`. It is done by and by, in a thread of its own.
        """
        if self._root is not None and self._trimming.acquire(blocking=False):
            threading.Thread(target=self._trim, args=(self._root, known, over, newest, most), daemon=True).start()

    def _trim(self, root: Path, known: Collection[int], over: Collection[int], newest: int, most: int) -> None:
        try:
            trim(root, known, over, newest, most)
        except OSError as error:
            log.warning("what jobs have written could not be looked through: %s", error)
        finally:
            self._trimming.release()


def trim(root: Path, known: Collection[int], over: Collection[int], newest: int, most: int) -> None:
    """As above, at once."""
    found = []
    for job in root.iterdir():
        if not job.name.isdecimal():
            continue
        if int(job.name) <= newest and int(job.name) not in known:
            shutil.rmtree(job, ignore_errors=True)
            continue
        for task in job.iterdir():
            try:
                told = [path.stat() for path in task.iterdir()]
            except OSError:  # it is being written to: the next time, then
                continue
            changed = max((one.st_mtime for one in told), default=0.0)
            found.append((changed, sum(one.st_size for one in told), task))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= most:
            break
        if int(path.parent.name) in over:
            shutil.rmtree(path, ignore_errors=True)
        elif size:
            _empty(path)
        total -= size


def _empty(task: Path) -> None:
    """Remove the files of a task, and leave one with nothing in it behind the last of each worker."""
    for rank, files in output.files(str(task)).items():
        with contextlib.suppress(OSError):
            (task / f"{rank}.{files[-1][0] + 1}").touch()
        for number, _ in files:
            with contextlib.suppress(OSError):
                (task / f"{rank}.{number}").unlink()
