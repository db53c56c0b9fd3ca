"""Learning from the reports of a round: the posterior is updated, and the ensemble refitted now and then.

If reports deviate from the predictions for long (a CUSUM of standardised errors), old samples get less weight and the
networks are refitted at once. If the new tables are not finite, the previous ones stay. Each of these is logged with
its reason. Used by the simulated loop (`closed_loop.py`) and the real one (`live/rounds.py`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

import jax
import numpy as np

from symphony.problem.speeds import BeliefArrays
from symphony.training_jobs.beliefs import JOB_LOG_STD, Beliefs
from symphony.training_jobs.speed_samples import SpeedReport

REFIT_EVERY = 40  # rounds; rare, because the posterior uses new samples at once
MIN_NEW_SAMPLES = 16  # since the last refit
MIN_FIRST_SAMPLES = 32  # before the first refit
ALLOWANCE, ALARM = 0.5, 8.0  # of the CUSUM, in deviations of a round's mean
DRIFT_HALF_LIFE_FACTOR = 0.5  # applied to the half-life of samples at an alarm
MIN_HALF_LIFE_S = 7_200.0


class LogEntry(NamedTuple):
    """An action of the learner, and its reason."""

    at_s: float
    what: str  # "refit", "drift", "fallback", "rejected"
    why: str


class DriftDetector:
    """Two-sided CUSUM of standardised errors, with a slack of ALLOWANCE per round."""

    def __init__(self) -> None:
        self.up = self.down = 0.0

    def watch(self, errors: Sequence[float]) -> bool:
        """Add the errors of a round; returns whether the alarm is reached, which resets the sums."""
        if not errors:
            return False
        # Errors of one round are correlated, so their mean is worth little more than one of them.
        z = float(np.clip(np.mean(errors), -3, 3)) * min(2.0, len(errors) ** 0.5)
        self.up, self.down = max(0.0, self.up + z - ALLOWANCE), max(0.0, self.down - z - ALLOWANCE)
        if max(self.up, self.down) < ALARM:
            return False
        self.up = self.down = 0.0
        return True


class BeliefLearner:
    """Keeps beliefs up to date."""

    def __init__(self, beliefs: Beliefs) -> None:
        self.beliefs = beliefs
        self.log: list[LogEntry] = []
        self.errors: list[tuple[float, float]] = []  # time, root mean square of a round's errors
        self._drift = DriftDetector()
        self._rounds = self._new_samples = 0

    def learn(
        self,
        reports: Sequence[SpeedReport],
        *,
        now_s: float,
        placed: Container[int],
        kernels: np.ndarray,
        before: BeliefArrays,
    ) -> BeliefArrays:
        """Add the reports of a round, refit if it is due, and return `before` updated for these kernels.

        `placed`: jobs that held devices in the round. Returns `before` itself if nothing changed.
        """
        self._rounds += 1
        outcomes = self.beliefs.update(reports, now_s=now_s, placed=placed)
        for one in outcomes:
            if one.why:
                why = f"{one.why}: job {one.report.job}, {one.report.units:g} units"
                self.log.append(LogEntry(now_s, "rejected", why))
        good = [one for one in outcomes if not one.why and len(one.report.neighbours) <= 1]
        self._new_samples += len(good)
        if good:
            self.errors.append((now_s, float(np.sqrt(np.mean([one.error**2 for one in good])))))
        drifted = self._drift.watch([one.error / float(np.hypot(one.std, 2**0.5 * JOB_LOG_STD)) for one in good])
        self._refit(now_s, drifted)
        new = self.beliefs.tables(now_s, kernels, before) if len(kernels) else before
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(new)):
            self.log.append(LogEntry(now_s, "fallback", "the new beliefs are not finite; the previous ones stay"))
            return before
        return new

    def _refit(self, now_s: float, drifted: bool) -> None:
        b = self.beliefs
        if drifted:
            b.half_life_s = max(MIN_HALF_LIFE_S, DRIFT_HALF_LIFE_FACTOR * b.half_life_s)
            why = f"reports have deviated for long; the half-life of samples is now {b.half_life_s:.0f} s"
            self.log.append(LogEntry(now_s, "drift", why))
        due = self._rounds % REFIT_EVERY == 0 and self._new_samples >= MIN_NEW_SAMPLES
        enough = len(b.store.samples) >= MIN_FIRST_SAMPLES
        if enough and (due or drifted):
            why = "drift" if drifted else f"{self._new_samples} new samples in {REFIT_EVERY} rounds"
            self.log.append(LogEntry(now_s, "refit", why))
            b.refit(now_s)
            self._new_samples = 0
