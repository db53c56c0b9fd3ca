"""Progress of a training job, read from the file that its run writes (`training_jobs/training_run.py`).

A run may be killed while it writes, run on a machine with another clock, or not know that it was abandoned. So `read`
returns the `Progress` of the present run or the reason why there is none, and never raises.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symphony.problem import units

if TYPE_CHECKING:
    from symphony.training_jobs.live.runs import LiveRun

log = logging.getLogger("symphony.runtime")
SPEED_WINDOW_S = 30.0  # the speed is measured over the last marks: in this time …
MIN_MARK_GAP_S = 2.0  # … at least so far apart …
MIN_MARKS = 3  # … and at least so many, however old
MAX_PROGRESS_BYTES = 1 << 16
MAX_COUNT = 10**15  # of checkpoints and requests


class Unread(Enum):
    """Why there is no new progress."""

    ABSENT = "there is no progress file yet"
    TORN = "the progress file cannot be parsed"
    NONSENSE = "the progress file has invalid values"
    OTHER_RUN = "the progress file is of another run"
    SHRANK = "the progress file has fewer steps than before"


@dataclass(frozen=True)
class Progress:
    """The last progress of a run."""

    attempt: str
    began: int  # steps done before this run
    step: int  # steps done
    saved: int  # steps in the last checkpoint
    saves: int = 0  # checkpoints written
    answered: int = -1  # number of the last checkpoint request that it has served
    marks: tuple[tuple[float, int], ...] = ()  # recent times (`time.monotonic`) at which a new step was read
    read_s: float = 0.0  # when the file was read last

    @property
    def per_s(self) -> float:
        """Recent steps per second; NaN before the second mark."""
        if len(self.marks) < 2:
            return float("nan")
        (first_s, first), (last_s, last) = self.marks[0], self.marks[-1]
        took_s = (last_s - first_s) / (last - first)
        overdue = self.read_s - last_s > 2 * took_s + MIN_MARK_GAP_S
        return (last - first) / ((self.read_s if overdue else last_s) - first_s)


def read(folder: Path, attempt: str, steps: int, before: Progress | None, now_s: float) -> Progress | Unread:
    """The progress of an attempt, read at `now_s` (`time.monotonic`). `before`: its previous progress."""
    try:
        content = _content(folder)
    except OSError:
        return Unread.ABSENT
    except (ValueError, RecursionError):
        return Unread.TORN
    if not isinstance(content, dict):
        return Unread.NONSENSE
    if content.get("attempt") != attempt:
        return Unread.OTHER_RUN
    fields: list[Any] = [content.get(name) for name in ("began", "step", "saved", "saves", "answered")]
    began, step, saved, saves, answered = fields
    valid = all(units.is_whole(value, 0, steps) for value in (began, step, saved))
    if not valid or not units.is_whole(saves, 0, MAX_COUNT) or not units.is_whole(answered, -1, MAX_COUNT):
        return Unread.NONSENSE
    if before is not None and (before.attempt, before.began) != (attempt, began):
        before = None  # a run may begin again, if it cannot read its own checkpoint
    if before is not None and (step < before.step or saves < before.saves):
        return Unread.SHRANK
    marks = _marks(() if before is None else before.marks, now_s, step)
    return Progress(attempt, began, step, saved, saves, answered, marks, now_s)


def _content(folder: Path) -> Any:
    """The contents of the file in a folder. A run may have made a named pipe instead: the loop must not wait for it."""
    with open(folder / "progress", "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        return json.loads(file.read(MAX_PROGRESS_BYTES))


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _marks(before: tuple[tuple[float, int], ...], now_s: float, step: int) -> tuple[tuple[float, int], ...]:
    """Add a mark for a new step, replace the last one if steps are quick, and drop old marks."""
    if before and (step == before[-1][1] or now_s <= before[-1][0]):
        return before
    kept = list(before)
    if len(kept) > 1 and kept[-1][0] - kept[-2][0] < MIN_MARK_GAP_S:
        kept.pop()
    kept.append((now_s, step))
    return tuple(mark for k, mark in enumerate(kept) if mark[0] >= now_s - SPEED_WINDOW_S or k >= len(kept) - MIN_MARKS)


def refresh(run: LiveRun) -> None:
    """Read the progress of a run that is running or has just ended. Called on the loop's thread."""
    training = run.kernel.options.training
    if training is None or not run.folder or not run.attempts:
        return
    progress = read(Path(run.folder), run.token, training.steps, run.progress, time.monotonic())
    if isinstance(progress, Unread):
        if progress in (Unread.TORN, Unread.NONSENSE, Unread.SHRANK) and progress is not run.unread:
            log.warning("%s: no progress: %s", run.job.where(run), progress.value)
        run.unread = progress
        return
    run.progress = run.attempts[-1].progress = progress
    run.unread = None
    if progress.saved > progress.began:
        run.lost = 0  # only failures without progress count


def saved_before(folder: Path, steps: int) -> int:
    """The saved step in a folder's progress file, of whichever run; 0 if there is none."""
    try:
        saved = _content(folder)["saved"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0
    return saved if units.is_whole(saved, 0, steps) else 0
