"""Rounds of training jobs: what they did since the last one is learned from, and the policy is asked anew.

A round is six minutes, unless somebody says otherwise. At its end, whoever ran through it in one place and beside the
same neighbours has shown how fast it is there. A thread of its own learns from that, because a fit of the networks
takes seconds; when it is done, the loop goes by the new beliefs, and the core hears that a round has ended. While there
are jobs of a kind that nobody has seen, the next few rounds are short: a guess is not to stand for six minutes.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from symphony.problem import limits, units
from symphony.problem.errors import EngineError, InputError
from symphony.training_jobs.forecast import JobNow
from symphony.training_jobs.live.checkpoints import CheckpointFolders
from symphony.training_jobs.live.forecasts import ClusterSnapshot, TrainingJobNow
from symphony.training_jobs.live.progress import saved_before
from symphony.training_jobs.live.runs import LiveJob, LiveRun, LiveScheduler
from symphony.training_jobs.live.speed_beliefs import BeliefTables, JobKind, RoundObservation, SpeedBeliefs

log = logging.getLogger("symphony.runtime")
ROUND_S = 360.0
SHORT_ROUND_S, MAX_SHORT_ROUNDS = (
    30.0,
    4,
)  # of a round, while there is a kind of which nothing has been seen; so often for each at most
MAX_LOG_ENTRIES = 1_000  # entries that are kept
JOB_SCAN_INTERVAL_S = 1.0  # between looks at who is there
MAX_RECENT_ARRIVALS, RECENT_ARRIVALS_S = (
    256,
    86_400.0,
)  # jobs that have come of late say what is yet to come: so many, no longer ago
T = TypeVar("T")


class JobPosition(NamedTuple):
    """Where a training job is at the end of a round."""

    job: int  # as samples have it
    attempt: int
    kind: JobKind
    device: int  # number of the device kind
    spread: bool  # over several machines
    near: frozenset[int]  # attempts on the same devices
    neighbours: tuple[JobKind, ...] | None  # what they are; None = not all of them are training jobs
    since_s: float  # when something came to those devices, or left, for the last time
    step: float
    at_s: float  # when it had come to that step


class RoundLearner:
    """Ends rounds. Used by the loop's thread, but for `ask`."""

    def __init__(self, speeds: SpeedBeliefs, round_s: float, *, threads: bool = True) -> None:
        if not units.is_number(round_s, 0.1, limits.SECONDS):
            raise InputError(f"round_s is {round_s!r}", hint="write seconds, 0.1 or more")
        self.speeds, self.round_s = speeds, round_s
        self.due_s = math.inf  # when the present round ends; inf = there is no training job
        self.done: Callable[[Callable[[], None]], None] = lambda then: then()  # has the loop's thread do something
        self._before: dict[int, JobPosition] = {}  # at the end of the round before, by attempt
        self._thread = ThreadPoolExecutor(1, "symphony-speeds") if threads else None
        self._late: Future | None = None
        self._known: frozenset[JobKind] = frozenset()  # kinds that the newest tables are of
        self._sampled: frozenset[JobKind] = frozenset()  # kinds of which there are samples
        self._short: Counter[JobKind] = Counter()  # rounds that were short for each

    def update(self, kinds: Sequence[JobKind], now_s: float, believe: Callable[[], None]) -> None:
        """Begin and end with the training jobs that there are; look up what is known of those who have just come."""
        if not kinds:
            self.due_s, self._before = math.inf, {}
        if not self._known.issuperset(kinds) and self._learn([], now_s, kinds, believe):
            self.due_s = min(self.due_s, self._next_s(kinds, now_s))
        elif kinds and self.due_s == math.inf:
            self.due_s = self._next_s(kinds, now_s)

    def end(
        self, stands: Sequence[JobPosition], kinds: Sequence[JobKind], now_s: float, then: Callable[[], None]
    ) -> None:
        """A round is over; `then` is done when what it has shown is known."""
        seen, before = [], {}
        for stand in stands:
            old = self._before.get(stand.attempt)
            calm = old is not None and old.near == stand.near and stand.since_s <= old.at_s
            # One that did no step is not slow: nobody knows what it does. When it has done one, that tells.
            idle = calm and old is not None and stand.step <= old.step
            before[stand.attempt] = old if idle and old is not None else stand
            if old is not None and calm and not idle and stand.neighbours is not None:
                seen.append(_round_observation(old, stand))
        self._before, self.due_s = before, self._next_s(kinds, now_s)
        if not self._learn(seen, now_s, kinds, then):
            log.warning("what training jobs reported in this round is not used: the round before is still learned from")
            then()

    def _next_s(self, kinds: Sequence[JobKind], now_s: float) -> float:
        """When the round ends that begins now."""
        new = [kind for kind in kinds if kind not in self._sampled and self._short[kind] < MAX_SHORT_ROUNDS]
        self._short.update(new)
        return now_s + (min(SHORT_ROUND_S, self.round_s) if new else self.round_s)

    def _learn(
        self, seen: Sequence[RoundObservation], now_s: float, kinds: Sequence[JobKind], then: Callable[[], None]
    ) -> bool:
        """Learn, and then have the loop's thread go by it; whether there was time for that."""
        if self._late is not None and not self._late.done():
            return False
        self._known = frozenset(kinds)

        def learn() -> None:
            tables = self._learned(seen, now_s, sorted(self._known))

            def adopt() -> None:
                if tables is not None:
                    self.speeds.adopt(tables)
                then()

            self.done(adopt)

        self._late = self.ask(learn)
        return True

    def _learned(self, seen: Sequence[RoundObservation], now_s: float, kinds: Sequence[JobKind]) -> BeliefTables | None:
        try:
            learner = self.speeds.learner
            told = len(learner.log)
            tables = self.speeds.learn(seen, now_s, kinds)
        except Exception:
            log.exception("speeds of training jobs cannot be learned; what was believed before stands")
            return None
        named = self.speeds.kinds
        self._sampled = frozenset(named[number] for number in {s.kernel for s in learner.beliefs.store.samples})
        for entry in learner.log[told:]:
            log.info("training jobs: %s: %s", entry.what, entry.why)
        del learner.log[:-MAX_LOG_ENTRIES], learner.errors[:-MAX_LOG_ENTRIES]
        return tables

    def ask(self, question: Callable[[], T]) -> Future[T]:
        """Have something done between two learnings, when nobody changes what is believed. Any thread may ask."""
        done: Future[T] = Future()

        def answer() -> T:
            import jax

            with jax.default_device(jax.devices("cpu")[0]):  # accelerators are for kernels
                return question()

        if self._thread is None:
            try:
                done.set_result(answer())
            except Exception as error:
                done.set_exception(error)
            return done
        try:
            return self._thread.submit(answer)
        except RuntimeError:  # it has been let go
            done.set_exception(EngineError("the cluster is closed", hint="ask while it runs"))
            return done

    def close(self) -> None:
        """Keep what was learned, and let the thread go."""
        self.ask(self.speeds.save)
        if self._thread is not None:
            self._thread.shutdown(wait=True)


def _round_observation(before: JobPosition, now: JobPosition) -> RoundObservation:
    """What a job has done between two ends of rounds, with nothing changed around it."""
    near = now.neighbours or ()
    steps, seconds = now.step - before.step, now.at_s - before.at_s
    return RoundObservation(now.job, now.kind, now.device, near, now.spread, seconds, steps)


class TrainingJobTracker:
    """The training jobs of a loop: where they are, what is left of them, and that their rounds end. For its thread."""

    def __init__(
        self,
        rounds: RoundLearner,
        checkpoints: CheckpointFolders,
        scheduler: LiveScheduler,
        on: Sequence[Collection[LiveRun]],
        left_s: Sequence[float],
        ended: Callable[[], None],
    ) -> None:
        """`on`: what is on each device; `left_s`: when something left it last; `ended`: tells the core of a round."""
        self._rounds, self._checkpoints, self._scheduler = rounds, checkpoints, scheduler
        self._on, self._left_s, self._ended = on, left_s, ended
        self._topology = rounds.speeds.topology
        self._kinds = [kind.name for kind in self._topology.kinds]
        self._runs: set[LiveRun] = set()  # training jobs that are let in and not over
        self._look_s = math.inf  # when somebody has to look who is there
        self._come: deque[tuple[float, TrainingJobNow]] = deque(maxlen=MAX_RECENT_ARRIVALS)
        # Samples are kept. Jobs that outlive a cluster have the same numbers in the next one; others' begin anew there.
        self._name = "" if checkpoints.keep else os.urandom(6).hex()
        self.close = rounds.close

    def wait_s(self) -> float:
        """Until the present round ends. Nobody is woken up to look who is there."""
        return max(self._rounds.due_s - time.monotonic(), 0.0)

    def admitted(self, job: LiveJob) -> None:
        """A job has been let in."""
        for run in job.runs:
            if run.kernel.options.training is not None:
                self._runs.add(run)
                self._look_s = -math.inf
                self._report_left(run)  # it may have been saved before a restart
                self._come.append((time.monotonic(), self._trains(run, (), coming=True)))

    def stopped(self, run: LiveRun) -> None:
        """A run has ended before its job was done: it goes on from what it saved."""
        if run.kernel.options.training is not None:
            self._report_left(run)

    def update(self, now_s: float) -> None:
        """Have a round end when it is time, as long as there are training jobs."""
        if now_s < min(self._look_s, self._rounds.due_s):
            return
        self._runs = {run for run in self._runs if run.value is None and not run.job.over.is_set()}
        kinds = sorted({JobKind.of(run.kernel) for run in self._runs})
        self._rounds.update(kinds, now_s, self._scheduler.refresh_beliefs)
        self._look_s = now_s + JOB_SCAN_INTERVAL_S if kinds else math.inf
        if now_s < self._rounds.due_s:
            return
        for run in self._runs:
            self._report_left(run)
        stands = [stand for run in self._runs if (stand := self._position(run)) is not None]
        self._rounds.end(stands, kinds, now_s, self._end)

    def now(self, down: frozenset[int]) -> ClusterSnapshot:
        """Where all of them are; `down`: devices that take no work."""
        now_s = time.monotonic()
        devices: dict[LiveRun, list[int]] = {run: [] for run in self._runs}
        for device, runs in enumerate(self._on):
            for run in runs:
                if run in devices:
                    devices[run].append(device)
        jobs = []
        for run, where in devices.items():
            if run.value is None and not run.job.over.is_set():
                jobs.append(self._trains(run, tuple(where)))
        jobs.sort(key=lambda one: (one.job, one.task))
        come = [(at_s, one) for at_s, one in self._come if at_s >= now_s - RECENT_ARRIVALS_S]
        for_s, silent_s = (come[-1][0] - come[0][0], now_s - come[-1][0]) if come else (0.0, 0.0)
        return ClusterSnapshot(now_s, jobs, down, [one for _, one in come], for_s, silent_s)

    def _trains(self, run: LiveRun, devices: tuple[int, ...], *, coming: bool = False) -> TrainingJobNow:
        """A job on these devices; `coming`: as an example of what may come."""
        training, workload = run.kernel.options.training, self._scheduler.workload
        assert training is not None
        now = JobNow(
            job=self._sampled(run),
            kernel=-1,
            left=self._left(run, training.steps),
            workers=run.kernel.options.workers,
            priority=run.job.priority,
            devices=devices,
            saving_s=training.checkpoint_s,
            restoring_s=training.restore_s,
            has_run=bool(run.attempts),
            waited_s=0.0 if run.attempts or math.isnan(run.ready_s) else max(time.monotonic() - run.ready_s, 0.0),
            # Nobody knows when there will be what it reads, and until then it can run nowhere.
            runs_on=frozenset() if run.missing and not coming else frozenset(workload.kinds_of(run.kernel)),
        )
        return TrainingJobNow(run.job.number, run.name, JobKind.of(run.kernel), now)

    def _end(self) -> None:
        self._scheduler.refresh_beliefs()
        self._ended()

    def _report_left(self, run: LiveRun) -> None:
        training = run.kernel.options.training
        assert training is not None
        self._scheduler.workload.steps_left(run.job.row, run.index, self._left(run, training.steps))

    def _left(self, run: LiveRun, steps: int) -> float:
        """What a job has to do, from where it is or would go on."""
        done = self._saved(run, steps) if run.progress is None or run.number < 0 else run.progress.step
        return float(max(steps - done, 1))

    def _saved(self, run: LiveRun, steps: int) -> int:
        """Steps that its runs have saved; those before a restart, too."""
        for attempt in reversed(run.attempts):
            if attempt.progress is not None:
                return attempt.progress.saved
        return saved_before(self._checkpoints.folder(run.job.number, run.name), steps)

    def _sampled(self, run: LiveRun) -> int:
        """The number of a job in samples: several of one graph have one each."""
        named = f"{self._name}/{run.job.number}/{run.name}"
        return int.from_bytes(hashlib.sha256(named.encode()).digest()[:6], "big")

    def _position(self, run: LiveRun) -> JobPosition | None:
        """Where a job is; None if it does not run, or is yet to do its first step: how long that takes tells little.

        None, too, of a gang on devices of several kinds: how fast it is tells nothing of either.
        """
        if run.number < 0 or run.progress is None or run.progress.step <= run.progress.began:
            return None
        at_s, step = run.progress.marks[-1]
        devices = [device for device, runs in enumerate(self._on) if run in runs]
        others = {other for device in devices for other in self._on[device]} - {run}
        trains = all(other.kernel.options.training is not None for other in others)
        here = [self._topology.devices[device] for device in devices]
        if len({device.kind for device in here}) > 1:
            return None
        changed_s = [self._left_s[device] for device in devices] + [other.attempts[-1].sent_s for other in others]
        return JobPosition(
            job=self._sampled(run),
            attempt=run.number,
            kind=JobKind.of(run.kernel),
            device=self._kinds.index(here[0].kind),
            spread=len({device.machine for device in here}) > 1,
            near=frozenset(other.number for other in others),
            neighbours=tuple(sorted(JobKind.of(other.kernel) for other in others)) if trains else None,
            since_s=max(changed_s),
            step=step,
            at_s=at_s,
        )
