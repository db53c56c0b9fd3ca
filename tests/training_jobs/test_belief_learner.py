"""What a round's reports change: drift, refits, and what stands if nothing sensible comes out."""

from __future__ import annotations

import numpy as np
import pytest

from symphony.problem.speeds import BeliefArrays
from symphony.training_jobs.belief_learner import BeliefLearner, DriftDetector
from symphony.training_jobs.beliefs import Beliefs, JobDescriptions
from symphony.training_jobs.speed_samples import SpeedReport

DESCRIBED = JobDescriptions(
    features=np.zeros((2, 3)),
    kinds=np.zeros((1, 2)),
    family=np.asarray([0, 1]),
    unit_s=np.full((2, 1, 2), 2.0),
    kept=np.full((2, 2, 1), 0.5),
)
KERNELS = np.arange(2)


def report(job: int, seconds: float, now_s: float) -> SpeedReport:
    return SpeedReport(job, 0, 0, (), False, now_s - 60, now_s, 60 / seconds)


@pytest.fixture
def begun() -> tuple[BeliefLearner, BeliefArrays]:
    beliefs = Beliefs(DESCRIBED)
    return BeliefLearner(beliefs), beliefs.start()


def test_errors_that_are_off_for_long_are_drift_and_noise_is_not() -> None:
    rng = np.random.default_rng(0)
    drift = DriftDetector()
    assert not any(drift.watch(list(rng.normal(0, 1, 8))) for _ in range(300))
    assert [drift.watch([1.5] * 8) for _ in range(4)] == [False, False, False, True]
    assert not drift.watch([1.5] * 8)  # it starts anew


def test_a_round_moves_beliefs_and_says_what_it_put_aside(begun: tuple[BeliefLearner, BeliefArrays]) -> None:
    learner, told = begun
    reports = [report(7, 6.0, 100.0), report(8, 6.0, 100.0)]
    new = learner.learn(reports, now_s=100.0, placed={7}, kernels=KERNELS, before=told)
    assert new.mean.unit_s[0, 0, 0] == pytest.approx(6.0, rel=0.05)
    assert [(entry.what, entry.why) for entry in learner.log] == [("rejected", "never placed: job 8, 10 units")]
    assert learner.errors[0] == (100.0, pytest.approx(np.log(3.0)))


def test_beliefs_that_are_no_numbers_are_not_told(
    begun: tuple[BeliefLearner, BeliefArrays], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, told = begun
    wrong = BeliefArrays(told.mean, np.full_like(told.unit_std, np.nan), told.beside_std)
    monkeypatch.setattr(learner.beliefs, "tables", lambda *_: wrong)
    assert learner.learn([], now_s=100.0, placed=set(), kernels=KERNELS, before=told) is told
    assert [entry.what for entry in learner.log] == ["fallback"]
