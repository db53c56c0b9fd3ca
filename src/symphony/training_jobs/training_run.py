"""The object that a training function is called with: progress, checkpoints, and requests of the scheduler to save.

It is created where the function runs, possibly without Symphony installed, so nothing of Symphony is imported here. A
process of the local engine loads this file by its path; a Ray actor gets it by value. All communication goes through
files in the task's folder, so that it works for processes, for actors on machines that share the folder, and for
commands:

    attempt            the run that the folder belongs to; written by the scheduler before the run starts
    progress           progress of that run: JSON, replaced as a whole; written by rank 0
    save               a checkpoint request of the scheduler; contains the number of the request
    checkpoint-STEP    the last checkpoint, and the one before
    saved              the step of the last checkpoint of a function that writes its own checkpoints
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

CHECKPOINT_INTERVAL_S = 600.0  # between checkpoints that the scheduler did not request
PROGRESS_INTERVAL_S = 0.2  # between writes of the progress file, and between reads of requests
MAX_CHECKPOINT_RETRY_S = 60.0  # until a failed checkpoint is tried again
CHECKPOINT_CHUNK_BYTES = 1 << 20
CHECKPOINT_MAGIC = b"symphony"  # end of a complete checkpoint, after its length and checksum
CHECKPOINT_TRAILER_BYTES = 8 + 4 + len(CHECKPOINT_MAGIC)


class TrainingRun:
    """One run of a training function, on one of its workers."""

    def __init__(
        self,
        folder: str | Path,
        attempt: str = "",
        steps: int = 1,
        servers: int = 0,
        every_s: float = CHECKPOINT_INTERVAL_S,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        self.folder = Path(folder)  # for functions that write their own checkpoints
        self.total = steps
        self.rank, self.size = rank, size
        self.is_server = rank >= size - servers  # parameter servers are the last workers
        self._attempt, self._every_s = attempt, every_s
        self._current = 0  # the step that is being done
        self._step = self._saved = self._saves = 0  # steps done, steps saved, checkpoints written
        self._restored: list[Any] = []  # the checkpoint that was read at the start, until `restore` returns it
        self._answered, self._requested = -1, -1  # numbers of checkpoint requests
        self._written_s = self._polled_s = -PROGRESS_INTERVAL_S
        if not self.folder.is_dir():
            raise RuntimeError(
                f"{self.folder} does not exist on this machine; name a folder that all machines can access: "
                "symphony serve --checkpoints DIR, or sy.ray(…, checkpoints=DIR)"
            )
        self.began = self._begin() if rank == 0 else self._rank_0_first_step()
        self._step = self._saved = self.began
        self._next_s = time.monotonic() + every_s
        self._write_progress(always=True)

    # --- called by the function

    def restore(self) -> Any:
        """The last checkpoint; None if there is none."""
        if self._restored:
            return self._restored.pop()
        path = self._checkpoint(self.began)
        return _read(path) if self.began and path.exists() else None

    def steps(self, begin: int | None = None) -> Iterator[int]:
        """Iterate over the steps from the one after the last checkpoint, and report progress.

        `begin` overrides the first step, if the function cannot read its own checkpoint.
        """
        if begin is not None:
            self.began = self._saved = self._step = self._current = max(begin - 1, 0)
            self._write_progress(always=True)
        for step in range(self.began + 1, self.total + 1):
            self._current = step
            yield step
            self.reached(step)
        self._write_progress(always=True)

    def reached(self, step: int) -> None:
        """Report that so many steps are done, if the function does not use `steps`."""
        self._step = max(self._step, min(int(step), self.total))
        self._write_progress()

    @property
    def save_now(self) -> bool:
        """Whether to save: the scheduler requests it, or the interval has passed. Always False except on rank 0."""
        if self.rank:
            return False
        now = time.monotonic()
        if now - self._polled_s >= PROGRESS_INTERVAL_S:
            self._polled_s, self._requested = now, self._checkpoint_request()
            self._write_progress()  # of steps that ended within the last interval
        return self._requested > self._answered or now >= self._next_s

    def save(self, value: Any) -> bool:
        """Write a checkpoint for the next run; returns whether it was written. Does nothing except on rank 0."""
        if self.rank:
            return False
        request, step = self._checkpoint_request(), max(self._current, self._step)
        new = self.folder / f".checkpoint-{self._attempt}.new"
        try:
            _write(new, value)
            self._check_ownership()
            os.replace(new, self._checkpoint(step))
            _sync(self.folder)
        except OSError as error:  # a full disk, for example; the previous checkpoint is still there
            _warn(f"no checkpoint was written at step {step}: {error}")
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            self._next_s = time.monotonic() + min(self._every_s, MAX_CHECKPOINT_RETRY_S)
            return False
        self._was_saved(step, request)
        self._remove_old()
        return True

    def saved(self, step: int | None = None) -> None:
        """Report that the function has written its own checkpoint after so many steps (default: all that are done)."""
        if self.rank:
            return
        done = max(self._current, self._step) if step is None else min(max(int(step), 0), self.total)
        request = self._checkpoint_request()
        self._check_ownership()
        if _number(self.folder / "saved", -1) != done:  # a command writes the file itself
            write_whole(self.folder / "saved", str(done))
        self._was_saved(done, request)

    # --- called by the engine

    def returned(self) -> None:
        """The function has returned, possibly before its last step; the current step counts as done."""
        self._step = max(self._current, self._step)
        self._write_progress(always=True)

    # --- the first step

    def _begin(self) -> int:
        """The step of the newest readable checkpoint. Rank 0 finds it; all workers begin there."""
        for stray in self.folder.glob(".*.new"):
            stray.unlink(missing_ok=True)
        for step in filter(None, self._checkpoint_steps()):
            path = self._checkpoint(step)
            try:
                self._restored = [_read(path)]
                return min(step, self.total)
            except Exception as error:  # unpickling may raise anything; the previous checkpoint is tried next
                _warn(f"the checkpoint of step {step} cannot be read ({type(error).__name__}: {error})")
                if isinstance(error, TornCheckpointError):
                    path.unlink(missing_ok=True)
        own = self.folder / "saved"
        return min(_number(own, self._last_saved_step()), self.total) if own.exists() else 0

    def _last_saved_step(self) -> int:
        """The saved step in the progress file of the previous run; 0 if there is none."""
        try:
            return max(int(json.loads((self.folder / "progress").read_text())["saved"]), 0)
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _rank_0_first_step(self) -> int:
        """Wait for the first step of rank 0. (If rank 0 ends before it writes it, the engine ends this worker too.)"""
        while True:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                progress = json.loads((self.folder / "progress").read_text())
                if progress["attempt"] == self._attempt:
                    return int(progress["began"])
            self._check_ownership()
            time.sleep(0.01)

    def _checkpoint_steps(self) -> list[int]:
        """Steps of the existing checkpoints, newest first."""
        matches = (re.fullmatch(r"checkpoint-(\d+)", path.name) for path in self.folder.iterdir())
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def _checkpoint(self, step: int) -> Path:
        return self.folder / f"checkpoint-{step}"

    def _remove_old(self) -> None:
        """Keep the last checkpoint, the one before, and the one this run began with: other workers may still read it.

        Checkpoints of later steps are unreadable, or this run would have begun there.
        """
        older = [step for step in self._checkpoint_steps() if step < self._saved]
        for step in self._checkpoint_steps():
            if step not in (self._saved, self.began, *older[:1]):
                with contextlib.suppress(OSError):
                    self._checkpoint(step).unlink(missing_ok=True)

    # --- progress and requests

    def _checkpoint_request(self) -> int:
        return _number(self.folder / "save", -1)

    def _was_saved(self, step: int, request: int) -> None:
        self._step, self._saved, self._saves = max(self._step, step), step, self._saves + 1
        self._answered = max(self._answered, request)
        self._next_s = time.monotonic() + self._every_s
        self._write_progress(always=True)

    def _write_progress(self, always: bool = False) -> None:
        now = time.monotonic()
        if self.rank or not (always or now - self._written_s >= PROGRESS_INTERVAL_S):
            return
        self._written_s = now
        progress = {"attempt": self._attempt, "began": self.began, "step": self._step, "saved": self._saved}
        progress |= {"saves": self._saves, "answered": self._answered, "at": time.time()}
        with contextlib.suppress(OSError):  # the next write may succeed
            write_whole(self.folder / "progress", json.dumps(progress))

    def _check_ownership(self) -> None:
        """Raise if another run owns the folder: an abandoned run must not overwrite its successor's checkpoints."""
        with contextlib.suppress(FileNotFoundError):
            if (self.folder / "attempt").read_text() != self._attempt:
                raise RuntimeError("the scheduler has abandoned this run, and another continues in its place")


# --- files


class TornCheckpointError(Exception):
    """An incomplete or altered checkpoint."""


class _ChecksumWriter:
    """Writes to a file and computes length and checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.length, self.sum = file, 0, 0

    def write(self, data: Any) -> int:
        with memoryview(data) as view, view.cast("B") as flat:
            self.length, self.sum = self.length + flat.nbytes, zlib.crc32(flat, self.sum)
            self._file.write(flat)
            return flat.nbytes


def _write(path: Path, value: Any) -> None:
    """Write a pickled value, its length and its checksum, and sync it to disk."""
    with path.open("wb") as file:
        writer = _ChecksumWriter(file)
        try:
            pickle.dump(value, writer, protocol=5)
        except OSError:
            raise
        except Exception:  # cloudpickle takes more (classes of a script), or raises a clearer error
            import cloudpickle

            file.seek(0)
            file.truncate()
            writer = _ChecksumWriter(file)
            try:
                cloudpickle.dump(value, writer, protocol=5)
            except OSError:
                raise
            except Exception as error:
                what = f"job.save: a value of type {type(value).__name__} cannot be pickled: {error}"
                raise TypeError(f"{what}; save arrays, numbers, and lists and dicts of them") from None
        file.write(writer.length.to_bytes(8, "little") + writer.sum.to_bytes(4, "little") + CHECKPOINT_MAGIC)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> Any:
    """Read a value that `_write` wrote; raises TornCheckpointError if it is incomplete or altered."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - CHECKPOINT_TRAILER_BYTES, 0))
        tail = file.read(CHECKPOINT_TRAILER_BYTES)
        length, expected = int.from_bytes(tail[:8], "little"), int.from_bytes(tail[8:12], "little")
        complete = len(tail) == CHECKPOINT_TRAILER_BYTES and tail[12:] == CHECKPOINT_MAGIC
        if not complete or length != size - CHECKPOINT_TRAILER_BYTES:
            raise TornCheckpointError("the file is incomplete")
        file.seek(0)
        checksum, left = 0, length
        while left:
            data = file.read(min(left, CHECKPOINT_CHUNK_BYTES))
            if not data:
                raise TornCheckpointError("the file was truncated while it was read")
            checksum, left = zlib.crc32(data, checksum), left - len(data)
        if checksum != expected:
            raise TornCheckpointError("its checksum is wrong")
        file.seek(0)
        return pickle.load(file)


def write_whole(path: Path, text: str) -> None:
    """Replace a small file atomically."""
    new = path.with_name(f".{path.name}-{os.getpid()}.new")
    new.unlink(missing_ok=True)
    with new.open("x") as file:  # not what else may be there: to open a pipe would wait
        file.write(text)
    os.replace(new, path)


def _sync(folder: Path) -> None:
    """Sync a folder, so that a new name in it is on disk; not all systems support that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _number(path: Path, otherwise: int) -> int:
    """The non-negative integer in a file, or `otherwise`."""
    try:
        number = int(path.read_text()[:20])
    except (OSError, ValueError):
        return otherwise
    return number if number >= 0 else otherwise


def _warn(text: str) -> None:
    print(f"symphony: {text}", file=sys.stderr, flush=True)
