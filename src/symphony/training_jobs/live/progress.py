"""How far a training job is: reads what its run writes into the task's folder (`training_jobs/training_run.py`).

A run may be killed while it writes, be on a machine with another clock, or not know that it was given up. So what is
read is a `Progress` of the present run, or the reason why it is none; never an exception.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symphony.problem import units

if TYPE_CHECKING:
    from symphony.training_jobs.live.runs import LiveRun

log = logging.getLogger("symphony.runtime")
SPEED_WINDOW_S, MIN_MARK_GAP_S, MIN_MARKS = (
    30.0,
    2.0,
    3,
)  # what counts for the speed: so long, in such parts; but so many at least
MAX_PROGRESS_BYTES = 1 << 16  # more is no progress file


class Unread(Enum):
    """Why there is nothing new."""

    ABSENT = "it has said nothing yet"
    TORN = "what it said cannot be read"
    NONSENSE = "what it said makes no sense"
    OTHER_RUN = "what is there is of another run"
    SHRANK = "it said less than before"


@dataclass(frozen=True)
class Progress:
    """What a run has said last."""

    attempt: str
    began: int  # the step after which it went on
    step: int  # so many are done
    saved: int  # so many of them need not be done again
    saves: int = 0  # checkpoints that it has written
    answered: int = -1  # the last question for a checkpoint that it has answered
    marks: tuple[tuple[float, int], ...] = ()  # when we heard of which new step, lately; by `time.monotonic`
    heard_s: float = 0.0  # when we looked last

    @property
    def per_s(self) -> float:
        """Steps a second, lately; NaN if it is too early to tell."""
        if len(self.marks) < 2:
            return float("nan")
        (first_s, first), (last_s, last) = self.marks[0], self.marks[-1]
        took_s = (last_s - first_s) / (last - first)
        late = self.heard_s - last_s > 2 * took_s + MIN_MARK_GAP_S  # the next step should have come by now
        return (last - first) / ((self.heard_s if late else last_s) - first_s)


def read(folder: Path, attempt: str, steps: int, before: Progress | None, now_s: float) -> Progress | Unread:
    """What the run of this attempt says, at a time of `time.monotonic`; `before`: what it said last."""
    try:
        with (folder / "progress").open("rb") as file:
            told = json.loads(file.read(MAX_PROGRESS_BYTES))
    except OSError:
        return Unread.ABSENT
    except (ValueError, RecursionError):
        return Unread.TORN
    if not isinstance(told, dict):
        return Unread.NONSENSE
    if told.get("attempt") != attempt:
        return Unread.OTHER_RUN
    values = [told.get(name) for name in ("began", "step", "saved")]
    if not all(units.is_whole(value, 0, steps) for value in values) or not _count(told, "saves", 0):
        return Unread.NONSENSE
    if not _count(told, "answered", -1):
        return Unread.NONSENSE
    if before is not None and (before.attempt, before.began) != (attempt, told["began"]):
        before = None  # it may begin anew, if what it saved itself cannot be read
    if before is not None and (told["step"] < before.step or told["saves"] < before.saves):
        return Unread.SHRANK
    marks = _marks(() if before is None else before.marks, now_s, told["step"])
    numbers = (told["began"], told["step"], told["saved"], told["saves"], told["answered"])
    return Progress(attempt, *numbers, marks, now_s)


def _count(told: dict[str, Any], name: str, least: int) -> bool:
    return units.is_whole(told.get(name), least, 10**15)


def _marks(before: tuple[tuple[float, int], ...], now_s: float, step: int) -> tuple[tuple[float, int], ...]:
    """A mark for every new step, or for several if they are quick; but for the last ones, none that is too old."""
    if before and (step == before[-1][1] or now_s <= before[-1][0]):
        return before
    kept = list(before)
    if len(kept) > 1 and kept[-1][0] - kept[-2][0] < MIN_MARK_GAP_S:
        kept.pop()
    kept.append((now_s, step))
    return tuple(mark for k, mark in enumerate(kept) if mark[0] >= now_s - SPEED_WINDOW_S or k >= len(kept) - MIN_MARKS)


def refresh(run: LiveRun) -> None:
    """Look how far a run is that is under way, or has just ended. For the loop's thread."""
    training = run.kernel.options.training
    if training is None or not run.folder or not run.attempts:
        return
    found = read(Path(run.folder), run.token, training.steps, run.progress, time.monotonic())
    if isinstance(found, Unread):
        if found in (Unread.TORN, Unread.NONSENSE, Unread.SHRANK) and found is not run.unread:
            log.warning("%s: no progress: %s", run.job.where(run), found.value)
        run.unread = found
        return
    run.progress = run.attempts[-1].progress = found
    run.unread = None
    if found.saved > found.began:
        run.lost = 0  # those that were lost before this one were not for nothing


def saved_before(folder: Path, steps: int) -> int:
    """The step that runs before this one have saved, by what they said last; 0 if nobody knows."""
    try:
        with (folder / "progress").open("rb") as file:
            saved = json.loads(file.read(MAX_PROGRESS_BYTES))["saved"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0
    return saved if units.is_whole(saved, 0, steps) else 0
