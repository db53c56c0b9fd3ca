"""Training jobs under way: how far they are, and that they save before they are stopped.

stop ──► a question in the task's folder ──► answered, or too late ──► preempt ──► Stopped
                                        └──► it ends meanwhile: nothing is left to do

Who was asked and did not save in time has lost what it had. It is not stopped again: it would never get anywhere.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from symphony.engines.engine import Engine, Resumable, Work
from symphony.training_jobs.live.checkpoints import CheckpointFolders
from symphony.training_jobs.live.progress import Progress, refresh, saved_before
from symphony.training_jobs.live.runs import LiveJob, LiveRun

log = logging.getLogger("symphony.runtime")
PROGRESS_POLL_S, SAVE_POLL_S = 1.0, 0.1  # between looks; while an answer is waited for
SAVE_GRACE_S, SAVE_GRACE_FACTOR = 10.0, 3.0  # to save what there is: so long, or so many times what it is said to take


class TrainingSupervisor:
    """What is done for training jobs while they run. All by the loop's thread."""

    def __init__(
        self, engine: Engine, checkpoints: CheckpointFolders, on_unresponsive: Callable[[LiveRun], None]
    ) -> None:
        """`deaf` is told of those who are not to be stopped again."""
        self._engine, self._checkpoints, self._on_unresponsive = engine, checkpoints, on_unresponsive
        self._runs: dict[int, LiveRun] = {}  # by the numbers of their attempts
        self._stopping: dict[int, tuple[int, float]] = {}  # questions that have to be answered first, and until when
        self._questions = itertools.count()
        self._name = os.urandom(6).hex()  # numbers of attempts begin anew with every cluster; folders may stay
        self._look_s = math.inf

    def begin(self, run: LiveRun, work: Work) -> Work:
        """A new attempt, with a folder if it trains."""
        training = run.kernel.options.training
        if training is None:
            return work
        folder = self._checkpoints.folder(run.job.number, run.name)
        run.folder, run.token, run.unread = str(folder), f"{self._name}-{work.number}", None
        saved = saved_before(folder, training.steps)
        run.progress = Progress(run.token, saved, saved, saved) if saved else None
        self._checkpoints.prepare(folder, run.token)
        self._runs[work.number] = run
        self._look_s = min(self._look_s, time.monotonic() + PROGRESS_POLL_S)
        told = Resumable(run.folder, run.token, training.steps, training.servers, training.every_s)
        return replace(work, resumes=told)

    def wait_s(self) -> float:
        """Until somebody has to look."""
        return max(self._look_s - time.monotonic(), 0.0)

    def poll(self) -> None:
        """How far all of them are, if it is time; and stop those that have saved, or will not."""
        now = time.monotonic()
        if now < self._look_s:
            return
        for run in self._runs.values():
            refresh(run)
        for number, (question, until_s) in list(self._stopping.items()):
            run = self._runs[number]
            answered = run.progress is not None and run.progress.answered >= question
            if not answered and now >= until_s:
                log.warning("%s: it has not saved when it was asked, and is not stopped again", run.job.where(run))
                self._on_unresponsive(run)
            if answered or now >= until_s:
                del self._stopping[number]
                self._engine.preempt(number)
        self._look_s = now + (SAVE_POLL_S if self._stopping else PROGRESS_POLL_S) if self._runs else math.inf

    def stop(self, run: LiveRun) -> None:
        """Stop a run, so that it can go on later."""
        training = run.kernel.options.training
        if training is None or run.number not in self._runs:
            self._engine.preempt(run.number)
        elif run.number not in self._stopping:
            now = time.monotonic()
            self._stopping[run.number] = (
                self._ask(run),
                now + max(SAVE_GRACE_S, SAVE_GRACE_FACTOR * training.checkpoint_s),
            )
            self._look_s = min(self._look_s, now + SAVE_POLL_S)

    def ask_all(self) -> None:
        """Have everything saved: the cluster is about to be closed."""
        for run in self._runs.values():
            self._ask(run)

    def ended(self, run: LiveRun, number: int) -> None:
        """An attempt has ended, in whatever way."""
        if self._runs.pop(number, None) is not None:
            self._stopping.pop(number, None)
            refresh(run)

    def job_over(self, job: LiveJob) -> None:
        """A job is over, and nothing of it runs."""
        if any(run.kernel.options.training is not None for run in job.runs):
            self._checkpoints.job_over(job.number)

    def _ask(self, run: LiveRun) -> int:
        question = next(self._questions)
        self._checkpoints.ask(Path(run.folder), question)
        return question
