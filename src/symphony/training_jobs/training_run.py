"""What a training function is called with: how far it is, what was saved, and whether it is to save now.

Made where the function runs, where there may be no Symphony: nothing of it is imported here. A process of the local
engine loads this file by its path, an actor of Ray's has it sent by value. All that is said goes through files in the
task's folder, so that it works for processes, for actors on machines that share the folder, and for commands alike:

    attempt            which run the folder belongs to; by the scheduler, before it begins
    progress           how far that run is: JSON, replaced as a whole; by rank 0
    save               the scheduler asks for a checkpoint; what is in it is the number of the question
    checkpoint-STEP    what was saved last, and the one before
    saved              the step of what was saved by somebody who writes checkpoints of his own
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

CHECKPOINT_INTERVAL_S = 600.0  # between two checkpoints that nobody asked for
PROGRESS_INTERVAL_S = 0.2  # between two words on progress, and two looks at what is asked
MAX_CHECKPOINT_RETRY_S = 60.0  # until a checkpoint that could not be written is tried again, at most
CHECKPOINT_CHUNK_BYTES = 1 << 20
CHECKPOINT_MAGIC = b"symphony"  # of a checkpoint that is whole; its length and its checksum are before that
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
        self.folder = Path(folder)  # for whoever writes checkpoints of his own
        self.total = steps
        self.rank, self.size = rank, size
        self.is_server = rank >= size - servers  # a parameter server: the last workers are
        self._attempt, self._every_s = attempt, every_s
        self._at = self._step = self._saved = self._saves = 0  # the step it is at, those that are done, and saved
        self._held: list[Any] = []  # what was saved, once it is read and until it is asked for
        self._answered, self._asked = -1, -1  # questions
        self._told_s = self._looked_s = -PROGRESS_INTERVAL_S
        if not self.folder.is_dir():
            raise RuntimeError(
                f"{self.folder} cannot be reached from here; name a folder that all machines reach: "
                "symphony serve --checkpoints DIR, or sy.ray(…, checkpoints=DIR)"
            )
        self.began = self._begin() if rank == 0 else self._rank_0_first_step()
        self._step = self._saved = self.began
        self._next_s = time.monotonic() + every_s
        self._write_progress(always=True)

    # --- for the function

    def restore(self) -> Any:
        """What was saved last; None at the beginning."""
        if self._held:
            return self._held.pop()
        path = self._checkpoint(self.began)
        return _read(path) if self.began and path.exists() else None

    def steps(self, begin: int | None = None) -> Iterator[int]:
        """From the step after the last saved one up to the last, and says how far it is.

        `begin` is another first one, for whoever finds that a checkpoint of his own cannot be read.
        """
        if begin is not None:
            self.began = self._saved = self._step = self._at = max(begin - 1, 0)
            self._write_progress(always=True)
        for step in range(self.began + 1, self.total + 1):
            self._at = step
            yield step
            self.reached(step)
        self._write_progress(always=True)

    def reached(self, step: int) -> None:
        """So many steps are done. For a function that does not go by `steps`."""
        self._step = max(self._step, min(int(step), self.total))
        self._write_progress()

    @property
    def save_now(self) -> bool:
        """Whether the scheduler asks for a checkpoint, or it is time for one. Rank 0 is asked, nobody else."""
        if self.rank:
            return False
        now = time.monotonic()
        if now - self._looked_s >= PROGRESS_INTERVAL_S:
            self._looked_s, self._asked = now, self._checkpoint_request()
            self._write_progress()  # what was too early to be told
        return self._asked > self._answered or now >= self._next_s

    def save(self, value: Any) -> bool:
        """Keep what the next run shall go on from; whether that was done. What others than rank 0 give is not kept."""
        if self.rank:
            return False
        question, step = self._checkpoint_request(), max(self._at, self._step)
        new = self.folder / f".checkpoint-{self._attempt}.new"
        try:
            _write(new, value)
            self._check_ownership()
            os.replace(new, self._checkpoint(step))
            _sync(self.folder)
        except OSError as error:  # the disk is full, say: what was saved before is still there
            _warn(f"no checkpoint was written at step {step}: {error}")
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            self._next_s = time.monotonic() + min(self._every_s, MAX_CHECKPOINT_RETRY_S)
            return False
        self._was_saved(step, question)
        self._forget_old()
        return True

    def saved(self, step: int | None = None) -> None:
        """A checkpoint of your own is written, after so many steps (as many as were reached)."""
        if self.rank:
            return
        done = max(self._at, self._step) if step is None else min(max(int(step), 0), self.total)
        question = self._checkpoint_request()
        self._check_ownership()
        if _number(self.folder / "saved", -1) != done:  # a command has written it itself
            write_whole(self.folder / "saved", str(done))
        self._was_saved(done, question)

    # --- for the engine

    def returned(self) -> None:
        """The function has returned, maybe before its last step: that in which it did so is done."""
        self._step = max(self._at, self._step)
        self._write_progress(always=True)

    # --- where it begins

    def _begin(self) -> int:
        """The step of the newest checkpoint that can be read: rank 0 says so, and all begin there."""
        for stray in self.folder.glob(".*.new"):
            stray.unlink(missing_ok=True)
        for step in filter(None, self._checkpoint_steps()):
            path = self._checkpoint(step)
            try:
                self._held = [_read(path)]
                return min(step, self.total)
            except Exception as error:  # whatever is wrong with it: the one before has to do
                _warn(f"the checkpoint of step {step} cannot be read ({type(error).__name__}: {error})")
                if isinstance(error, TornCheckpointError):
                    path.unlink(missing_ok=True)
        own = self.folder / "saved"
        return min(_number(own, self._last_saved_step()), self.total) if own.exists() else 0

    def _last_saved_step(self) -> int:
        """The step that the run before this one had saved, by its own words; 0 if there are none."""
        try:
            return max(int(json.loads((self.folder / "progress").read_text())["saved"]), 0)
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _rank_0_first_step(self) -> int:
        """Where rank 0 has begun. (If that one ends before it says so, this one is ended, too.)"""
        while True:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                told = json.loads((self.folder / "progress").read_text())
                if told["attempt"] == self._attempt:
                    return int(told["began"])
            self._check_ownership()
            time.sleep(0.01)

    def _checkpoint_steps(self) -> list[int]:
        """Steps of the checkpoints there are, the newest first."""
        found = (re.fullmatch(r"checkpoint-(\d+)", path.name) for path in self.folder.iterdir())
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def _checkpoint(self, step: int) -> Path:
        return self.folder / f"checkpoint-{step}"

    def _forget_old(self) -> None:
        """Keep the last one, the one before it, and what this run began with: another worker may yet read that.

        Those of later steps could not be read, or this run would have begun there.
        """
        older = [step for step in self._checkpoint_steps() if step < self._saved]
        for step in self._checkpoint_steps():
            if step not in (self._saved, self.began, *older[:1]):
                with contextlib.suppress(OSError):
                    self._checkpoint(step).unlink(missing_ok=True)

    # --- what is said and heard

    def _checkpoint_request(self) -> int:
        return _number(self.folder / "save", -1)

    def _was_saved(self, step: int, question: int) -> None:
        self._step, self._saved, self._saves = max(self._step, step), step, self._saves + 1
        self._answered = max(self._answered, question)
        self._next_s = time.monotonic() + self._every_s
        self._write_progress(always=True)

    def _write_progress(self, always: bool = False) -> None:
        now = time.monotonic()
        if self.rank or not (always or now - self._told_s >= PROGRESS_INTERVAL_S):
            return
        self._told_s = now
        told = {"attempt": self._attempt, "began": self.began, "step": self._step, "saved": self._saved}
        told |= {"saves": self._saves, "answered": self._answered, "at": time.time()}
        with contextlib.suppress(OSError):  # the next word may get through
            write_whole(self.folder / "progress", json.dumps(told))

    def _check_ownership(self) -> None:
        """A run that was given up, and has not heard so, must not write over what its successor saves."""
        with contextlib.suppress(FileNotFoundError):
            if (self.folder / "attempt").read_text() != self._attempt:
                raise RuntimeError("this run was given up, and another goes on in its place")


# --- files


class TornCheckpointError(Exception):
    """A checkpoint that was not written to its end, or was changed since."""


class _ChecksumWriter:
    """Writes to a file, and keeps length and checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.length, self.sum = file, 0, 0

    def write(self, data: Any) -> int:
        with memoryview(data) as view, view.cast("B") as flat:
            self.length, self.sum = self.length + flat.nbytes, zlib.crc32(flat, self.sum)
            self._file.write(flat)
            return flat.nbytes


def _write(path: Path, value: Any) -> None:
    """A value and, behind it, how long it is and its checksum; on the disk when this returns."""
    with path.open("wb") as file:
        into = _ChecksumWriter(file)
        try:
            pickle.dump(value, into, protocol=5)
        except OSError:
            raise
        except Exception:  # what pickle cannot take (classes of a script) cloudpickle may; or it says what is wrong
            import cloudpickle

            file.seek(0)
            file.truncate()
            into = _ChecksumWriter(file)
            try:
                cloudpickle.dump(value, into, protocol=5)
            except OSError:
                raise
            except Exception as error:
                what = f"job.save: a value of type {type(value).__name__} cannot be pickled: {error}"
                raise TypeError(f"{what}; save arrays, numbers, and lists and dicts of them") from None
        file.write(into.length.to_bytes(8, "little") + into.sum.to_bytes(4, "little") + CHECKPOINT_MAGIC)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> Any:
    """A value that was written so."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - CHECKPOINT_TRAILER_BYTES, 0))
        tail = file.read(CHECKPOINT_TRAILER_BYTES)
        length, wanted = int.from_bytes(tail[:8], "little"), int.from_bytes(tail[8:12], "little")
        if (
            len(tail) != CHECKPOINT_TRAILER_BYTES
            or tail[12:] != CHECKPOINT_MAGIC
            or length != size - CHECKPOINT_TRAILER_BYTES
        ):
            raise TornCheckpointError("it was not written to its end")
        file.seek(0)
        found, left = 0, length
        while left:
            data = file.read(min(left, CHECKPOINT_CHUNK_BYTES))
            if not data:
                raise TornCheckpointError("it became shorter")
            found, left = zlib.crc32(data, found), left - len(data)
        if found != wanted:
            raise TornCheckpointError("its checksum is another")
        file.seek(0)
        return pickle.load(file)


def write_whole(path: Path, text: str) -> None:
    """All of a small file, or nothing."""
    new = path.with_name(f".{path.name}-{os.getpid()}.new")
    new.write_text(text)
    os.replace(new, path)


def _sync(folder: Path) -> None:
    """A file's new name is on the disk, too, where folders can be asked for that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _number(path: Path, otherwise: int) -> int:
    """The whole number in a file, 0 or more."""
    try:
        found = int(path.read_text()[:20])
    except (OSError, ValueError):
        return otherwise
    return found if found >= 0 else otherwise


def _warn(text: str) -> None:
    print(f"symphony: {text}", file=sys.stderr, flush=True)
