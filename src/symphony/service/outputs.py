"""The output of jobs on their standard streams: storage, reading by line, and removal.

<root>/<job>/<task>/RANK.NUMBER        written by the worker processes: `engines/output.py`

A job may put anything into its folder, and this process may have more rights than the job: it follows no links there.

Files are kept until the job is forgotten. Above a limit for all jobs, the task that wrote least recently is removed
first. While a job may still write, an empty file remains, so that file numbers are not reused and cursors stay valid.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from symphony.engines import output
from symphony.engines.engine import Output
from symphony.problem.texts import readable
from symphony.training_jobs.live.checkpoint_folders import safe_folder_name

log = logging.getLogger("symphony.service")
MAX_LINE_BYTES = 16 << 10  # longer lines are split
FIRST_READ_BYTES, READ_BLOCK_BYTES = 1 << 10, 64 << 10  # first block small: a page may need few lines of a task
FOLDER_BYTES = 4_096  # on disk, of a folder
TRIM_S, MOST_TRIM_S, TRIM_SHARE = 2.0, 60.0, 0.02  # between trims: as short as takes this share of a core
TIMESTAMPED_LINE = re.compile(rb"(\d{1,12}\.\d{6}) (.*)", re.DOTALL)
NEW_RUN_MARK, DROPPED_MARK = "a new run begins", "earlier output was dropped"


class OutputPosition(NamedTuple):
    """A file number, and an offset in that file."""

    file: int = 0
    offset: int = 0


class OutputLine(NamedTuple):
    """A line of output, or a mark about the lines that follow."""

    at: float  # seconds since 1970, by the clock of the machine
    text: str
    mark: bool
    next_position: OutputPosition


@dataclass(frozen=True)
class Stream:
    """The output of one worker of a task."""

    task: str
    rank: int
    folder: Path
    files: tuple[tuple[int, int], ...]  # numbers and sizes

    def lines(self, position: OutputPosition, *, ended: bool) -> Iterator[OutputLine]:
        """The lines from a position on. An unfinished line is omitted, unless the worker has `ended`."""
        numbers = [number for number, _ in self.files]
        last = max(numbers, default=-1)
        for number, size in self.files:
            if number < position.file:
                continue
            if number > position.file:
                if position.file not in numbers:
                    yield OutputLine(self._began(number), DROPPED_MARK, True, OutputPosition(number))
                position = OutputPosition(number)
            try:
                yield from self._read(position, size, ended or number < last)
            except FileNotFoundError:  # removed meanwhile
                numbers.remove(number)
                continue
            position = OutputPosition(number + 1)  # the next file, if none was dropped

    def _read(self, position: OutputPosition, size: int, ended: bool) -> Iterator[OutputLine]:
        number, offset = position
        rest, block = b"", FIRST_READ_BYTES
        with self._opened(number) as file:
            at = os.fstat(file.fileno()).st_mtime  # of the last write: the default where a line has no time
            while offset + len(rest) < size:
                file.seek(offset + len(rest))
                data = file.read(min(block, size - offset - len(rest)))
                if not data:
                    break
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:
                    begins, offset = offset, offset + len(line) + 1
                    at, text = _split_time(line, at)
                    if begins:
                        for piece, left in _cut(text):
                            yield OutputLine(
                                at, piece, False, OutputPosition(number, offset - (left + 1 if left else 0))
                            )
                    elif number and text.endswith(b" 0"):  # the first line of the first file of a run
                        yield OutputLine(at, NEW_RUN_MARK, True, OutputPosition(number, offset))
                begun, text = _split_time(rest, at)
                if offset and len(text) > MAX_LINE_BYTES:
                    at, base = begun, offset + len(rest) - len(text)
                    for piece, left in _cut(text):
                        if left:
                            offset = base + len(text) - left
                            yield OutputLine(at, piece, False, OutputPosition(number, offset))
                    rest = text[offset - base :]
                block = READ_BLOCK_BYTES
        if offset and rest and ended:
            at, text = _split_time(rest, at)
            for piece, left in _cut(text):
                yield OutputLine(at, piece, False, OutputPosition(number, offset + len(rest) - left))

    def _began(self, number: int) -> float:
        try:
            with self._opened(number) as file:
                changed = os.fstat(file.fileno()).st_mtime
                return _split_time(file.read(FIRST_READ_BYTES).partition(b"\n")[0], changed)[0]
        except OSError:
            return 0.0

    def _opened(self, number: int) -> BinaryIO:
        """Raises `FileNotFoundError` if it is not a file of this folder alone."""
        name = f"{self.rank}.{number}"
        with _folder(self.folder) as folder:
            try:
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            except OSError as error:
                raise FileNotFoundError(errno.ENOENT, "a link", name) if error.errno == errno.ELOOP else error from None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(descriptor)
            raise FileNotFoundError(errno.ENOENT, "not a file, or one with several names", name)
        return os.fdopen(descriptor, "rb")


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    """The descriptor of the folder of a task. Raises `FileNotFoundError` if a job has put something else there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError as error:  # also for a link
        raise FileNotFoundError(errno.ENOENT, error.strerror, str(path)) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _split_time(line: bytes, default: float) -> tuple[float, bytes]:
    """The time and the text of a line; a line without a time continues the previous one."""
    match = TIMESTAMPED_LINE.fullmatch(line)
    return (float(match[1]), match[2]) if match is not None else (default, line)


def _cut(text: bytes) -> Iterator[tuple[str, int]]:
    """Split a line into pieces that are not too long, each with the number of bytes after it."""
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
    """The output folders of a service; without a `root`, no output is stored."""

    def __init__(self, root: Path | None) -> None:
        self._root = None if root is None else root.absolute()
        self._name = os.urandom(6).hex()  # makes run names unique: attempt numbers restart with every service
        self._trimming = threading.Lock()
        self._trim_s = 0.0  # when to trim next
        if self._root is not None:
            try:
                self._root.mkdir(parents=True, exist_ok=True)
            except OSError as error:  # a service also starts on a full disk
                log.warning("the output of jobs cannot be stored in %s: %s", self._root, error)

    def of(self, job: int, task: str, number: int) -> Output | None:
        """Where an attempt of a task stores its output; None: nowhere."""
        if self._root is None:
            return None
        return Output(f"{self._root}/{job}/{safe_folder_name(task)}", f"{self._name}-{number}")

    def streams(self, job: int, tasks: Mapping[str, str]) -> list[Stream]:
        """The output of some tasks of a job; `tasks`: their names, by folder (`safe_folder_name`)."""
        if self._root is None:
            return []
        folder = self._root / str(job)
        try:
            present = sorted(tasks.keys() & set(os.listdir(folder)))
        except OSError:  # it has no output
            return []
        streams = []
        for name in present:
            with contextlib.suppress(FileNotFoundError), _folder(folder / name) as opened:
                found = output.files(opened)
                streams += [Stream(tasks[name], rank, folder / name, tuple(files)) for rank, files in found.items()]
        return streams

    @property
    def due(self) -> bool:
        """Whether to trim: a job can write gigabytes within a minute."""
        return self._root is not None and not self._trimming.locked() and time.monotonic() >= self._trim_s

    def trim(self, known: Collection[int], ended: Collection[int], newest: int, most: int) -> None:
        """Remove the output of forgotten jobs, and the oldest output above `most` bytes, in a background thread.

        `known`: the jobs that are not forgotten, up to number `newest`; some of them have `ended`.
        """
        if self._root is not None and self._trimming.acquire(blocking=False):
            threading.Thread(target=self._trim, args=(self._root, known, ended, newest, most), daemon=True).start()

    def _trim(self, root: Path, known: Collection[int], ended: Collection[int], newest: int, most: int) -> None:
        began_s = time.monotonic()
        try:
            trim(root, known, ended, newest, most)
        except OSError as error:
            log.warning("the output of jobs could not be trimmed: %s", error)
        finally:
            took_s = time.monotonic() - began_s
            self._trim_s = began_s + min(max(took_s / TRIM_SHARE, TRIM_S), MOST_TRIM_S)
            self._trimming.release()


def trim(root: Path, known: Collection[int], ended: Collection[int], newest: int, most: int) -> None:
    """As `Outputs.trim`, in this thread."""
    tasks: list[_Measured] = []
    for job in root.iterdir():
        if not job.name.isdecimal():
            continue
        if int(job.name) <= newest and int(job.name) not in known:
            shutil.rmtree(job, ignore_errors=True)
            continue
        with contextlib.suppress(OSError):  # removed just now, or not a folder
            tasks += [found for task in job.iterdir() if (found := _measured(task)) is not None]
    total = sum(found.disk for found in tasks)
    for found in sorted(tasks):
        if total <= most:
            break
        if int(found.task.parent.name) in ended:
            shutil.rmtree(found.task, ignore_errors=True)
        elif found.size:
            _empty(found.task)
        total -= found.disk


class _Measured(NamedTuple):
    """The folder of a task: when it was written last, and its bytes, also on disk."""

    changed_s: float
    disk: int
    size: int
    task: Path


def _measured(task: Path) -> _Measured | None:
    try:
        with _folder(task) as folder, os.scandir(folder) as entries:
            files = [entry.stat(follow_symlinks=False) for entry in entries]
    except OSError:  # being written: try again next time
        return None
    changed_s = max((one.st_mtime for one in files), default=0.0)
    disk = sum(one.st_blocks * 512 for one in files) + FOLDER_BYTES
    return _Measured(changed_s, disk, sum(one.st_size for one in files), task)


def _empty(task: Path) -> None:
    """Remove the files of a task, and leave an empty one with the next number for each worker."""
    with contextlib.suppress(OSError), _folder(task) as folder:
        for rank, files in output.files(folder).items():
            with contextlib.suppress(OSError):
                name = f"{rank}.{files[-1][0] + 1}"
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder))
            for number, _ in files:
                with contextlib.suppress(OSError):
                    os.unlink(f"{rank}.{number}", dir_fd=folder)
