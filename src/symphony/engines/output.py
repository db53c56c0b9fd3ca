"""Log files with what work writes to its standard streams.

Used in worker processes, where Symphony may be missing: it must not import Symphony. (As `training_run.py`, it is
loaded by its path, or sent by value.) Every worker of a task has its own files in the folder of the task, and appends
to the newest:

    RANK.NUMBER     a first line `SECONDS RUN PART`, then `SECONDS text` for every line that was written

A run begins a new file, and another one (the next part) when a file is full. If the files of a worker exceed a bound,
the oldest are removed. Nothing is buffered, so that the output of a killed process is complete. No function here raises
or blocks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

OUTPUT_FILE_BYTES = 512 << 10  # size of a file, which may end with the rest of a line
MAX_OUTPUT_BYTES = 4 << 20  # of all files of a worker
MAX_OUTPUT_FILES = 64  # of a worker
OUTPUT_CHUNK_BYTES = 64 << 10  # written at once


class OutputLog:
    def __init__(self, folder: str, run: str, rank: int = 0) -> None:
        """`run` names the run, in a word. No file is created before the first write."""
        self._folder, self._run, self._rank = folder, run, rank
        self._file, self._number, self._part = -1, -1, 0
        # Whether the last line is unfinished, the last write failed, the last byte was "\r".
        self._within = self._torn = self._returned = False
        self._lock, self._process = threading.RLock(), os.getpid()
        self._closed = False

    def write(self, data: bytes) -> bool:
        """Append output; whether that succeeded. A carriage return ends a line, too, for progress bars."""
        if os.getpid() != self._process:  # forked, perhaps while another thread held the lock
            self._lock, self._process = threading.RLock(), os.getpid()
        with self._lock:
            if self._closed:
                return False
            try:
                for at in range(max(len(data) - MAX_OUTPUT_BYTES, 0), len(data), OUTPUT_CHUNK_BYTES):
                    self._add(data[at : at + OUTPUT_CHUNK_BYTES])
            except OSError:  # the disk is full, or the folder is not reachable from this machine
                self._torn = True
        return not self._torn

    def close(self) -> None:
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
        # Each line is stamped when it begins; an empty one after the last newline has not begun.
        stamp = b"%.6f " % time.time()
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        begun = lines.pop()
        begins = b"\n" if self._torn else b""
        stamped = [stamp + line for line in lines] + ([stamp + begun] if begun else [b""])
        if self._within and not self._torn:
            stamped[0] = stamped[0][len(stamp) :]
        self._write(begins + b"\n".join(stamped))
        self._within, self._torn = bool(begun), False

    def _is_full(self, status: os.stat_result) -> bool:
        """Whether a file is full, or was removed to keep the bound of all jobs."""
        most = 2 * OUTPUT_FILE_BYTES if self._within else OUTPUT_FILE_BYTES  # finish the line, unless it is too long
        return status.st_size >= most or not status.st_nlink

    def _open(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        for folder in (
            os.path.dirname(self._folder),
            self._folder,
        ):  # only these: above, the folder must exist if it is reachable
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
        existing = files(self._folder).get(self._rank, [])
        self._number = max([self._number, *(number for number, _ in existing)]) + 1
        while self._file < 0:
            with contextlib.suppress(
                FileExistsError
            ):  # taken by another process of this run, or by one that was given up
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
                self._file = os.open(self._path(self._number), flags, 0o666)
                break
            self._number += 1
        self._write(b"%.6f %s %d\n" % (time.time(), self._run.encode(), self._part))
        self._part, self._within, self._torn = self._part + 1, False, False
        kept = sum(size for _, size in existing)
        while existing and (kept > MAX_OUTPUT_BYTES - OUTPUT_FILE_BYTES or len(existing) >= MAX_OUTPUT_FILES):
            number, size = existing.pop(0)
            kept -= size
            with contextlib.suppress(OSError):
                os.unlink(self._path(number))

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{self._rank}.{number}")

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]


def files(folder: str | int) -> dict[int, list[tuple[int, int]]]:
    """Numbers and sizes of the files in a folder (its path, or a descriptor), oldest first, by rank."""
    by_rank: dict[int, list[tuple[int, int]]] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            rank, _, number = entry.name.partition(".")
            if rank.isdecimal() and number.isdecimal():
                with contextlib.suppress(OSError):  # removed just now
                    if not entry.is_file(follow_symlinks=False):  # a job may have made a pipe: reading would block
                        continue
                    size = entry.stat(follow_symlinks=False).st_size
                    by_rank.setdefault(int(rank), []).append((int(number), size))
    return {rank: sorted(numbers) for rank, numbers in sorted(by_rank.items())}
