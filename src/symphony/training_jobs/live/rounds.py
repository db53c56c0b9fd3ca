"""Rounds of training jobs: at the end of each, beliefs are updated from the jobs' progress, and the policy plans again.

A round takes six minutes unless configured otherwise. At its end, each job that ran through it on the same devices
beside the same neighbours yields a speed observation. A separate thread learns from these, because a fit of the
networks takes seconds; then the loop uses the new beliefs, and the core gets the event that a round has ended. While
there are kinds of jobs without samples, the next few rounds are short, so that their initial guesses do not last long.
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
from symphony.training_jobs.lengths import LengthLearner
from symphony.training_jobs.live.checkpoint_folders import CheckpointFolders
from symphony.training_jobs.live.forecasts import ClusterSnapshot, TrainingJobNow
from symphony.training_jobs.live.progress import saved_before
from symphony.training_jobs.live.runs import LiveJob, LiveRun, LiveScheduler
from symphony.training_jobs.live.speed_beliefs import BeliefTables, JobKind, RoundObservation, SpeedBeliefs

log = logging.getLogger("symphony.runtime")
ROUND_S = 360.0
SHORT_ROUND_S, MAX_SHORT_ROUNDS = 30.0, 4  # while there is a kind without samples; at most so many for each kind
MAX_LOG_ENTRIES = 1_000  # kept
JOB_SCAN_INTERVAL_S = 1.0  # between scans for new kinds of jobs
MAX_RECENT_ARRIVALS, RECENT_ARRIVALS_S = 256, 86_400.0  # examples of future arrivals: number, and largest age
T = TypeVar("T")


class JobPosition(NamedTuple):
    """State of a running training job at the end of a round."""

    job: int  # its number in samples
    attempt: int
    kind: JobKind
    device: int  # number of the device kind
    spread: bool  # over several machines
    near: frozenset[int]  # attempts on the same devices, except its own
    neighbours: tuple[JobKind, ...] | None  # their kinds; None = not all are training jobs
    since_s: float  # last time that something started or ended on those devices
    step: float
    at_s: float  # when it reached that step


class RoundLearner:
    """Ends rounds. Called on the loop's thread, except `ask`."""

    def __init__(self, speeds: SpeedBeliefs, round_s: float, *, threads: bool = True) -> None:
        if not units.is_number(round_s, 0.1, limits.SECONDS):
            raise InputError(f"round_s is {round_s!r}", hint="write seconds, 0.1 or more")
        self.speeds, self.round_s = speeds, round_s
        self.due_s = math.inf  # end of the present round; inf = there is no training job
        self.done: Callable[[Callable[[], None]], None] = lambda action: action()  # runs an action on the loop's thread
        self._before: dict[int, JobPosition] = {}  # at the end of the previous round, by attempt
        self._thread = ThreadPoolExecutor(1, "symphony-speeds") if threads else None
        self._learning: Future | None = None
        self._covered: frozenset[JobKind] = frozenset()  # kinds in the newest tables, or being learned
        self._sampled: frozenset[JobKind] = frozenset()  # kinds with samples
        self._short: Counter[JobKind] = Counter()  # short rounds so far, by kind

    def update(self, kinds: Sequence[JobKind], now_s: float, believe: Callable[[], None]) -> None:
        """Start or stop rounds as jobs appear or end; call `believe` when beliefs about new kinds are ready."""
        if not kinds:
            self.due_s, self._before = math.inf, {}
        if not self._covered.issuperset(kinds) and self._learn([], now_s, kinds, believe):
            self.due_s = min(self.due_s, self._next_s(kinds, now_s))
        elif kinds and self.due_s == math.inf:
            self.due_s = self._next_s(kinds, now_s)

    def end(
        self, positions: Sequence[JobPosition], kinds: Sequence[JobKind], now_s: float, learned: Callable[[], None]
    ) -> None:
        """End a round; `learned` is called when its observations have been learned."""
        observations, before = [], {}
        for now in positions:
            old = self._before.get(now.attempt)
            undisturbed = old is not None and old.near == now.near and now.since_s <= old.at_s
            # Without a step in this round the observation goes on until the next step, which then shows the speed.
            idle = undisturbed and old is not None and now.step <= old.step
            before[now.attempt] = old if idle and old is not None else now
            if old is not None and undisturbed and not idle and now.neighbours is not None:
                observations.append(_round_observation(old, now))
        self._before, self.due_s = before, self._next_s(kinds, now_s)
        if not self._learn(observations, now_s, kinds, learned):
            log.warning("the speeds of training jobs in this round are not used: the last round is still being learned")
            learned()

    def _next_s(self, kinds: Sequence[JobKind], now_s: float) -> float:
        """The end of a round that begins now."""
        new = [kind for kind in kinds if kind not in self._sampled and self._short[kind] < MAX_SHORT_ROUNDS]
        self._short.update(new)
        return now_s + (min(SHORT_ROUND_S, self.round_s) if new else self.round_s)

    def _learn(
        self,
        observations: Sequence[RoundObservation],
        now_s: float,
        kinds: Sequence[JobKind],
        learned: Callable[[], None],
    ) -> bool:
        """Learn on the other thread, then call `learned` on the loop's thread; False if it is still learning."""
        if self._learning is not None and not self._learning.done():
            return False
        self._covered = frozenset(kinds)

        def learn() -> None:
            tables = self._new_tables(observations, now_s, sorted(self._covered))

            def adopt() -> None:
                if tables is not None:
                    self.speeds.adopt(tables)
                    self._covered |= frozenset(tables.kinds)
                learned()

            self.done(adopt)

        self._learning = self.ask(learn)
        return True

    def _new_tables(
        self, observations: Sequence[RoundObservation], now_s: float, kinds: Sequence[JobKind]
    ) -> BeliefTables | None:
        try:
            learner = self.speeds.learner
            logged = len(learner.log)
            tables = self.speeds.learn(observations, now_s, self.speeds.with_recent(kinds))
        except Exception:
            log.exception("learning the speeds of training jobs failed; the previous estimates stay")
            return None
        self._sampled = frozenset(self.speeds.kinds[n] for n in {s.kernel for s in learner.beliefs.store.samples})
        for entry in learner.log[logged:]:
            log.info("training jobs: %s: %s", entry.what, entry.why)
        del learner.log[:-MAX_LOG_ENTRIES], learner.errors[:-MAX_LOG_ENTRIES]
        return tables

    def ask(self, action: Callable[[], T]) -> Future[T]:
        """Run an action on the learning thread, where beliefs do not change meanwhile. Any thread may call this."""
        done: Future[T] = Future()

        def on_cpu() -> T:
            import jax

            with jax.default_device(jax.devices("cpu")[0]):  # accelerators are for kernels
                return action()

        if self._thread is None:
            try:
                done.set_result(on_cpu())
            except Exception as error:
                done.set_exception(error)
            return done
        try:
            return self._thread.submit(on_cpu)
        except RuntimeError:  # it has been shut down
            done.set_exception(EngineError("the cluster is closed", hint="call this while the cluster is open"))
            return done

    def close(self) -> None:
        """Save the samples, and end the thread."""
        self.ask(self.speeds.save)
        if self._thread is not None:
            self._thread.shutdown(wait=True)


def _round_observation(before: JobPosition, now: JobPosition) -> RoundObservation:
    """Progress of a job between two ends of rounds."""
    near = now.neighbours or ()
    steps, seconds = now.step - before.step, now.at_s - before.at_s
    return RoundObservation(now.job, now.kind, now.device, near, now.spread, seconds, steps)


class TrainingJobTracker:
    """The training jobs of a loop: positions, remaining steps, ends of rounds. Called on the loop's thread."""

    def __init__(
        self,
        rounds: RoundLearner,
        checkpoints: CheckpointFolders,
        scheduler: LiveScheduler,
        on: Sequence[Collection[LiveRun]],
        left_s: Sequence[float],
        ended: Callable[[], None],
    ) -> None:
        """`on`: runs on each device; `left_s`: when a run last left it; `ended` is called at the end of a round."""
        self._rounds, self._checkpoints, self._scheduler = rounds, checkpoints, scheduler
        self._on, self._left_s, self._ended = on, left_s, ended
        self._topology = rounds.speeds.topology
        self._kinds = [kind.name for kind in self._topology.kinds]
        self._runs: set[LiveRun] = set()  # training jobs that are admitted and have not finished
        self._lengths = LengthLearner()  # of jobs whose steps are an upper bound
        self._expected: dict[LiveRun, float] = {}  # steps that these are expected to need
        self._scan_s = math.inf  # time of the next scan
        self._arrived: deque[tuple[float, TrainingJobNow]] = deque(maxlen=MAX_RECENT_ARRIVALS)
        # Samples outlive the cluster. Job numbers do so only with kept folders; otherwise a random prefix is needed.
        self._name = "" if checkpoints.keep else os.urandom(6).hex()
        self.close = rounds.close

    def wait_s(self) -> float:
        """Seconds until the present round ends. (The loop is not woken up for scans.)"""
        return max(self._rounds.due_s - time.monotonic(), 0.0)

    def admitted(self, job: LiveJob) -> None:
        """A job has been admitted."""
        for run in job.runs:
            if run.kernel.options.training is not None:
                self._runs.add(run)
                self._scan_s = -math.inf
                if not run.kernel.options.training.exact:
                    self._estimate_lengths()
                self._report_left(run)  # it may have been saved before a restart
                self._arrived.append((time.monotonic(), self._trains(run, (), coming=True)))

    def stopped(self, run: LiveRun) -> None:
        """A run has stopped before it was done; it will resume from its last checkpoint."""
        if run.kernel.options.training is not None:
            self._report_left(run)

    def update(self, now_s: float) -> None:
        """Scan for training jobs, and end the round, if either is due."""
        if now_s < min(self._scan_s, self._rounds.due_s):
            return
        gone = {run for run in self._runs if run.value is not None or run.job.over.is_set()}
        self._runs -= gone
        for run in self._open(gone):
            if run.value is not None:
                self._lengths.ended(*self._length(run, self._done(run) if run.progress is None else run.progress.step))
        kinds = sorted({JobKind.of(run.kernel) for run in self._runs})
        self._rounds.update(kinds, now_s, self._scheduler.refresh_beliefs)
        self._scan_s = now_s + JOB_SCAN_INTERVAL_S if kinds else math.inf
        if now_s < self._rounds.due_s:
            return
        self._estimate_lengths()
        for run in self._runs:
            self._report_left(run)
        positions = [position for run in self._runs if (position := self._position(run)) is not None]
        self._rounds.end(positions, kinds, now_s, self._end)

    def now(self, down: frozenset[int]) -> ClusterSnapshot:
        """The present state of all training jobs. `down`: devices."""
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
        jobs.sort(key=lambda one: (one.job, one.now.task))
        recent = [(at_s, one) for at_s, one in self._arrived if at_s >= now_s - RECENT_ARRIVALS_S]
        for_s, silent_s = (recent[-1][0] - recent[0][0], now_s - recent[-1][0]) if recent else (0.0, 0.0)
        return ClusterSnapshot(now_s, jobs, down, [one for _, one in recent], for_s, silent_s)

    def _trains(self, run: LiveRun, devices: tuple[int, ...], *, coming: bool = False) -> TrainingJobNow:
        """A job on these devices; `coming`: as an example of future arrivals."""
        training, workload = run.kernel.options.training, self._scheduler.workload
        assert training is not None
        now = JobNow(
            job=self._sample_number(run),
            kernel=-1,
            left=self._left(run),
            workers=run.kernel.options.workers,
            priority=run.job.priority,
            devices=devices,
            saving_s=training.checkpoint_s,
            restoring_s=training.restore_s,
            has_run=bool(run.attempts),
            waited_s=0.0 if run.attempts or math.isnan(run.ready_s) else max(time.monotonic() - run.ready_s, 0.0),
            # While its inputs are missing it can run nowhere, and it is unknown when they will exist.
            runs_on=frozenset() if run.missing and not coming else frozenset(workload.kinds_of(run.kernel)),
            task=run.name,
        )
        return TrainingJobNow(run.job.number, JobKind.of(run.kernel), now)

    def _end(self) -> None:
        self._scheduler.refresh_beliefs()
        self._ended()

    def _report_left(self, run: LiveRun) -> None:
        self._scheduler.workload.steps_left(run.job.row, run.index, self._left(run))

    def _left(self, run: LiveRun) -> float:
        """Steps left, from the present step or from the last checkpoint; an estimate if `steps` is an upper bound."""
        training = run.kernel.options.training
        assert training is not None
        return max(min(float(training.steps - self._done(run)), self._expected.get(run, math.inf)), 1.0)

    def _done(self, run: LiveRun) -> int:
        training = run.kernel.options.training
        assert training is not None
        return self._saved(run, training.steps) if run.progress is None or run.number < 0 else run.progress.step

    @staticmethod
    def _open(runs: Collection[LiveRun]) -> list[LiveRun]:
        """Those that may end before they have done all steps."""
        return [run for run in runs if not run.kernel.options.training.exact]  # type: ignore[union-attr]

    def _length(self, run: LiveRun, steps: int) -> tuple[str, int, float]:
        """Kind and width of a job, and the seconds that so many steps take on its fastest kind of device."""
        return JobKind.of(run.kernel).name, run.kernel.options.workers, steps * self._step_s(run)

    def _step_s(self, run: LiveRun) -> float:
        kinds = self._scheduler.workload.kinds_of(run.kernel)
        return min(self._rounds.speeds.step_s(run.kernel, kind) for kind in kinds)

    def _estimate_lengths(self) -> None:
        some = self._open(self._runs)
        left_s = self._lengths.index_s([self._length(run, self._done(run)) for run in some]) if some else ()
        self._expected = {run: float(s) / self._step_s(run) for run, s in zip(some, left_s, strict=True)}

    def _saved(self, run: LiveRun, steps: int) -> int:
        """Steps in the last checkpoint, also of runs before a restart."""
        for attempt in reversed(run.attempts):
            if attempt.progress is not None:
                return attempt.progress.saved
        return saved_before(self._checkpoints.folder(run.job.number, run.name), steps)

    def _sample_number(self, run: LiveRun) -> int:
        """The number of a task in samples."""
        named = f"{self._name}/{run.job.number}/{run.name}"
        return int.from_bytes(hashlib.sha256(named.encode()).digest()[:6], "big")

    def _position(self, run: LiveRun) -> JobPosition | None:
        """The position of a job; None if it does not run or has not done its first step, which may include set-up.

        Also None for a gang on devices of several kinds, whose speed says nothing about either.
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
            job=self._sample_number(run),
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
