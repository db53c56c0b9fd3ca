"""What is done with the reports of a round: beliefs are conditioned on them, and refitted now and then.

If reports are off from what was believed for long (a sum of standardised errors that forgets slowly), old samples are
made to count less and the networks are refitted at once. If beliefs come out as no numbers, those of the round before
stand. Each is logged with its reason. The simulated loop (`training_jobs/closed_loop.py`) and the real one
(`training_jobs/live/rounds.py`) learn so.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

import jax
import numpy as np

from symphony.problem.speeds import BeliefArrays
from symphony.training_jobs.beliefs import JOB_LOG_STD, Beliefs
from symphony.training_jobs.speed_samples import SpeedReport

REFIT_EVERY = 40  # rounds: what was seen since is known at once, so that refits may be rare
MIN_NEW_SAMPLES = 16  # samples since the last refit, without which there is none
MIN_FIRST_SAMPLES = 32  # samples, before the first
ALLOWANCE, ALARM = 0.5, 8.0  # of the sum of standardised errors, in deviations of a round's mean
DRIFT_HALF_LIFE_FACTOR = 0.5  # what a drift leaves of the half-life
MIN_HALF_LIFE_S = 7_200.0  # half-life


class LogEntry(NamedTuple):
    """Something that was done, and why."""

    at_s: float
    what: str  # "refit", "drift", "fallback", "put aside"
    why: str


class DriftDetector:
    """Watches standardised errors: a sum for each direction, which falls by ALLOWANCE a round (CUSUM)."""

    def __init__(self) -> None:
        self.up = self.down = 0.0

    def watch(self, errors: Sequence[float]) -> bool:
        """Take the errors of a round; whether they have been off for long. An alarm starts anew."""
        if not errors:
            return False
        # Jobs share what is wrong with them, so that a round's mean counts little more than one of them.
        z = float(np.clip(np.mean(errors), -3, 3)) * min(2.0, len(errors) ** 0.5)
        self.up, self.down = max(0.0, self.up + z - ALLOWANCE), max(0.0, self.down - z - ALLOWANCE)
        if max(self.up, self.down) < ALARM:
            return False
        self.up = self.down = 0.0
        return True


class BeliefLearner:
    """Beliefs, and what keeps them up to date."""

    def __init__(self, beliefs: Beliefs) -> None:
        self.beliefs = beliefs
        self.log: list[LogEntry] = []
        self.errors: list[tuple[float, float]] = []  # time, root mean square of a round's errors
        self._drift = DriftDetector()
        self._rounds = self._fresh = 0

    def learn(
        self,
        reports: Sequence[SpeedReport],
        *,
        now_s: float,
        placed: Container[int],
        kernels: np.ndarray,
        told: BeliefArrays,
    ) -> BeliefArrays:
        """Take the reports of a round, refit if it is time, and say what is believed of these kernels now.

        `placed`: jobs that have been; `told`: what was said before, which stands for other kernels.
        """
        self._rounds += 1
        heard = self.beliefs.update(reports, now_s=now_s, placed=placed)
        for h in heard:
            if h.why:
                self.log.append(LogEntry(now_s, "put aside", f"{h.why}: job {h.report.job}, {h.report.units:g} units"))
        good = [h for h in heard if not h.why and len(h.report.neighbours) <= 1]
        self._fresh += len(good)
        if good:
            self.errors.append((now_s, float(np.sqrt(np.mean([h.error**2 for h in good])))))
        self._refit(now_s, self._drift.watch([h.error / float(np.hypot(h.std, 2**0.5 * JOB_LOG_STD)) for h in good]))
        new = self.beliefs.tables(now_s, kernels, told) if len(kernels) else told
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(new)):
            why = "beliefs came out as no numbers: those of the round before stand"
            self.log.append(LogEntry(now_s, "fallback", why))
            return told
        return new

    def _refit(self, now_s: float, drifted: bool) -> None:
        b = self.beliefs
        if drifted:
            b.half_life_s = max(MIN_HALF_LIFE_S, DRIFT_HALF_LIFE_FACTOR * b.half_life_s)
            why = f"reports have been off for long: samples now halve in {b.half_life_s:.0f} s"
            self.log.append(LogEntry(now_s, "drift", why))
        due = self._rounds % REFIT_EVERY == 0 and self._fresh >= MIN_NEW_SAMPLES
        enough = len(b.store.samples) >= MIN_FIRST_SAMPLES
        if enough and (due or drifted):
            why = "drift" if drifted else f"{self._fresh} new samples in {REFIT_EVERY} rounds"
            self.log.append(LogEntry(now_s, "refit", why))
            b.refit(now_s)
            self._fresh = 0
