"""What work writes to its standard streams, in files, while it runs.

Made where a kernel runs, where there may be no Symphony: nothing of it is imported here. (As `training_run.py`, it is
loaded by its path, or sent by value.) Every worker of a task has files of its own in the task's folder, and adds to the
newest of them:

    RANK.NUMBER     a first line `SECONDS RUN OUTPUT_FILE_BYTES`, then `SECONDS text` for every line that was written

A new run begins a new file; so does one whose file has become long, as its next part. When all files of a worker are
too much together, the oldest are removed: what is kept is the newest. Nothing waits in the process: what is killed has
left all that it wrote. Nothing here ever fails, or waits for anybody.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

OUTPUT_FILE_BYTES = 512 << 10  # bytes of a file, and the rest of a line
MAX_OUTPUT_BYTES = 4 << 20  # bytes of all files of a worker …
MAX_OUTPUT_FILES = 64  # … and how many there are, at most
OUTPUT_CHUNK_BYTES = 64 << 10  # bytes that are written at once


class OutputLog:
    """The files of one worker, for one run."""

    def __init__(self, folder: str, run: str, rank: int = 0) -> None:
        """`run` names it, in a word. Nothing is made before something is written."""
        self._folder, self._run, self._rank = folder, run, rank
        self._file, self._number, self._part = -1, -1, 0
        self._within = self._torn = self._returned = False  # a line, one that was not written to its end, a "\r" last
        self._lock, self._process = threading.RLock(), os.getpid()
        self._closed = False

    def write(self, data: bytes) -> bool:
        """Add what was written; whether that could be done. Carriage returns end lines, too, for progress bars."""
        if os.getpid() != self._process:  # forked, perhaps while another thread was writing
            self._lock, self._process = threading.RLock(), os.getpid()
        with self._lock:
            if self._closed:
                return False
            try:
                for at in range(max(len(data) - MAX_OUTPUT_BYTES, 0), len(data), OUTPUT_CHUNK_BYTES):
                    self._add(data[at : at + OUTPUT_CHUNK_BYTES])
            except OSError:  # the disk is full, or the folder is not reached from here
                self._torn = True
        return not self._torn

    def close(self) -> None:
        """The run is over."""
        if self._within:
            self.write(b"\n")
        with self._lock, contextlib.suppress(OSError):
            if self._file >= 0:
                os.close(self._file)
            self._file, self._closed = -1, True

    def _add(self, data: bytes) -> None:
        if self._returned and data:
            data = data.removeprefix(b"\n")
            self._returned = False
        if not self._within:
            data = data.lstrip(b"\r")
        if not data:
            return
        self._returned = data.endswith(b"\r")
        if self._file < 0 or self._is_full(os.fstat(self._file)):
            self._open()
        # Each line is stamped when it begins; the one behind the last newline has not begun.
        stamp = b"%.6f " % time.time()
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        begun = lines.pop()
        begins = b"\n" if self._torn else b""
        stamped = [stamp + line for line in lines] + ([stamp + begun] if begun else [b""])
        if self._within and not self._torn:
            stamped[0] = stamped[0][len(stamp) :]
        self._write(begins + b"\n".join(stamped))
        self._within, self._torn = bool(begun), False

    def _is_full(self, told: os.stat_result) -> bool:
        """Whether a file takes no more, or whoever keeps the bound for all jobs has removed it."""
        most = (
            2 * OUTPUT_FILE_BYTES if self._within else OUTPUT_FILE_BYTES
        )  # a line without an end has to be cut at last
        return told.st_size >= most or not told.st_nlink

    def _open(self) -> None:
        """Begin a new file, and remove the oldest where there is too much."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        for folder in (os.path.dirname(self._folder), self._folder):  # not more: a machine may not reach the rest
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
        there = files(self._folder).get(self._rank, [])
        self._number = max([self._number, *(number for number, _ in there)]) + 1
        while self._file < 0:
            with contextlib.suppress(FileExistsError):  # another process of this run, or one that was given up
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
                self._file = os.open(self._path(self._number), flags, 0o666)
                break
            self._number += 1
        self._write(b"%.6f %s %d\n" % (time.time(), self._run.encode(), self._part))
        self._part, self._within, self._torn = self._part + 1, False, False
        kept = sum(size for _, size in there)
        while there and (kept > MAX_OUTPUT_BYTES - OUTPUT_FILE_BYTES or len(there) >= MAX_OUTPUT_FILES):
            number, size = there.pop(0)
            kept -= size
            with contextlib.suppress(OSError):
                os.unlink(self._path(number))

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{self._rank}.{number}")

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]


def files(folder: str) -> dict[int, list[tuple[int, int]]]:
    """Numbers and sizes of the files in a folder, the oldest first, by rank."""
    found: dict[int, list[tuple[int, int]]] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            rank, _, number = entry.name.partition(".")
            if rank.isdecimal() and number.isdecimal():
                with contextlib.suppress(OSError):  # removed just now
                    if not entry.is_file(follow_symlinks=False):  # made by a job: whoever reads a pipe waits for ever
                        continue
                    found.setdefault(int(rank), []).append((int(number), entry.stat().st_size))
    return {rank: sorted(one) for rank, one in sorted(found.items())}
