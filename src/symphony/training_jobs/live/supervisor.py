"""Running training jobs: polls their progress, and has them save before they are stopped.

stop ──► request in the task's folder ──► saved, or time is up ──► preempt ──► Stopped
                                     └──► the run ends meanwhile: nothing is left to do

A run that does not save in time loses its progress. It is not stopped again, or it might never finish.
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
from symphony.training_jobs.live.checkpoint_folders import CheckpointFolders
from symphony.training_jobs.live.progress import Progress, refresh, saved_before
from symphony.training_jobs.live.runs import LiveJob, LiveRun

log = logging.getLogger("symphony.runtime")
PROGRESS_POLL_S, SAVE_POLL_S = 1.0, 0.1  # polling intervals; the second while a save is awaited
POLLS_PER_ROUND = 8  # at least: with short rounds, progress is polled more often
SAVE_GRACE_S, SAVE_GRACE_FACTOR = 10.0, 3.0  # time to save: at least, and as a multiple of `Training.checkpoint_s`


class TrainingSupervisor:
    """Supervises running training jobs. Called on the loop's thread only."""

    def __init__(
        self,
        engine: Engine,
        checkpoints: CheckpointFolders,
        on_unresponsive: Callable[[LiveRun], None],
        round_s: float = math.inf,
    ) -> None:
        """`on_unresponsive` is called with runs that did not save in time and must not be stopped again."""
        self._engine, self._checkpoints, self._on_unresponsive = engine, checkpoints, on_unresponsive
        self._runs: dict[int, LiveRun] = {}  # by attempt number
        self._stopping: dict[int, tuple[int, float]] = {}  # by attempt number: the save request, and its deadline
        self._requests = itertools.count()
        self._name = os.urandom(6).hex()  # attempt numbers start again with every cluster, but folders may stay
        self._poll_s = math.inf  # time of the next poll
        self._interval_s = min(PROGRESS_POLL_S, max(round_s / POLLS_PER_ROUND, SAVE_POLL_S))

    def begin(self, run: LiveRun, work: Work) -> Work:
        """Prepare a new attempt; a training job gets its folder."""
        training = run.kernel.options.training
        if training is None:
            return work
        folder = self._checkpoints.folder(run.job.number, run.name)
        run.folder, run.token, run.unread = str(folder), f"{self._name}-{work.number}", None
        saved = saved_before(folder, training.steps)
        run.progress = Progress(run.token, saved, saved, saved) if saved else None
        self._checkpoints.prepare(folder, run.token)
        self._runs[work.number] = run
        self._poll_s = min(self._poll_s, time.monotonic() + self._interval_s)
        resumable = Resumable(run.folder, run.token, training.steps, training.servers, training.every_s)
        return replace(work, resumes=resumable)

    def wait_s(self) -> float:
        """Seconds until the next poll."""
        return max(self._poll_s - time.monotonic(), 0.0)

    def poll(self) -> None:
        """If it is due, read the progress of all runs, and stop those that have saved or whose time is up."""
        now = time.monotonic()
        if now < self._poll_s:
            return
        for run in self._runs.values():
            refresh(run)
        for number, (request, deadline_s) in list(self._stopping.items()):
            run = self._runs[number]
            saved = run.progress is not None and run.progress.answered >= request
            if not saved and now >= deadline_s:
                log.warning("%s did not save in time, and will not be stopped again", run.job.where(run))
                self._on_unresponsive(run)
            if saved or now >= deadline_s:
                del self._stopping[number]
                self._engine.preempt(number)
        self._poll_s = now + (SAVE_POLL_S if self._stopping else self._interval_s) if self._runs else math.inf

    def stop(self, run: LiveRun) -> None:
        """Stop a run so that it can resume later."""
        training = run.kernel.options.training
        if training is None or run.number not in self._runs:
            self._engine.preempt(run.number)
        elif run.number not in self._stopping:
            now = time.monotonic()
            deadline_s = now + max(SAVE_GRACE_S, SAVE_GRACE_FACTOR * training.checkpoint_s)
            self._stopping[run.number] = (self._ask(run), deadline_s)
            self._poll_s = min(self._poll_s, now + SAVE_POLL_S)

    def ask_all(self) -> None:
        """Request a checkpoint from all runs: the cluster is about to close."""
        for run in self._runs.values():
            self._ask(run)

    def ended(self, run: LiveRun, number: int) -> None:
        """An attempt has ended."""
        if self._runs.pop(number, None) is not None:
            self._stopping.pop(number, None)
            refresh(run)

    def job_over(self, job: LiveJob) -> None:
        """A job has ended, and none of its tasks runs."""
        if any(run.kernel.options.training is not None for run in job.runs):
            self._checkpoints.job_over(job.number)

    def _ask(self, run: LiveRun) -> int:
        request = next(self._requests)
        self._checkpoints.ask(Path(run.folder), request)
        return request
