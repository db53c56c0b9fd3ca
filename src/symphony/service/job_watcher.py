"""Waits for the ends of any number of jobs of one user with one request at a time (`GET /v1/ended`).

The thread runs while jobs are watched. If the service cannot be reached, all of them are given up: the callbacks are
called with None, and asking for the result of a job then raises the error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from symphony.problem.errors import SymphonyError
from symphony.service.wire import EndedJobs, JobView

log = logging.getLogger("symphony.client")
BATCH_S = 0.02  # pause between requests, so that jobs which end together arrive together
OnEnd = Callable[[JobView | None], object]


class JobWatcher:
    def __init__(self, ended: Callable[[int], EndedJobs]) -> None:
        """`ended`: asks for the jobs that have ended after an event, and waits a while for one."""
        self._ask = ended
        self._lock = threading.Lock()
        self._watched: dict[int, list[OnEnd]] = {}
        self._after = 0  # the event after which jobs are asked for
        self._thread: threading.Thread | None = None

    def watch(self, job: int, change: int, on_end: OnEnd, view: Callable[[], JobView]) -> None:
        """Call `on_end` once the job has ended. It had not at event `change`; `view` asks for its present state."""
        with self._lock:
            self._watched.setdefault(job, []).append(on_end)
            if self._thread is None:
                self._after = change
                self._thread = threading.Thread(target=self._run, name="symphony-watcher", daemon=True)
                self._thread.start()
            missed = change < self._after  # it may have ended before the event after which jobs are asked for
        if missed:
            seen = view()
            if seen.ended_s is not None:
                self._over(job, seen)

    def _over(self, job: int, view: JobView | None) -> None:
        with self._lock:
            callbacks = self._watched.pop(job, [])
        for callback in callbacks:
            try:
                callback(view)
            except Exception:  # of a user: the other jobs are still waited for
                log.exception("a callback of job %d raised", job)

    def _run(self) -> None:
        while True:
            try:
                page = self._ask(self._after)
            except SymphonyError as error:
                log.warning("the ends of jobs cannot be watched: %s", error)
                with self._lock:
                    self._thread, lost = None, list(self._watched)
                for job in lost:
                    self._over(job, None)
                return
            for view in page.jobs:
                self._over(view.id, view)
            with self._lock:
                self._after = page.next
                if not self._watched:
                    self._thread = None
                    return
            time.sleep(BATCH_S)
