"""From draws to bands: unbiased, of what can still happen, and not of what has happened."""

from __future__ import annotations

import numpy as np
import pytest

from symphony.counterfactuals.futures import PlayedTimes
from symphony.counterfactuals.outlook import NOW, band, outlook_of
from symphony.counterfactuals.record import FINISH, START, Record, holds
from symphony.counterfactuals.snapshot import SnapshotJob, SnapshotTask


def test_a_band_of_few_draws_holds_as_many_outcomes_as_it_says() -> None:
    rng = np.random.default_rng(5)
    held = [holds(band(rng.exponential(size=32)), rng.exponential()) for _ in range(4_000)]
    assert np.mean(held) == pytest.approx(0.8, abs=0.02)  # three deviations


def played(start_s: list[float], finish_s: list[float]) -> PlayedTimes:
    return PlayedTimes(np.asarray(start_s)[:, None], np.asarray(finish_s)[:, None], np.zeros(len(start_s)), 1)


def test_futures_that_have_not_come_true_are_left_out() -> None:
    draws = played([1.0, 2.0] * 16, [5.0] * 16 + [50.0] * 16)
    job = SnapshotJob(1, (SnapshotTask(0, devices=(0,)),))
    before, _ = outlook_of(Record(), draws, 0, job, 0.0)
    after, _ = outlook_of(Record(), draws, 0, job, 10.0, age_s=10.0)
    assert before.finish_s.low < 6.0 and after.finish_s.low > 35.0  # it did not end after 5 s
    late, _ = outlook_of(Record(), draws, 0, job, 60.0, age_s=60.0)
    assert late.finish_s.high == 0.0  # nothing is known: at any time


def test_the_start_of_a_job_that_has_started_is_not_forecast_between_two_of_its_tasks() -> None:
    draws = played([1.0] * 32, [5.0] * 32)
    waits = SnapshotJob(1, (SnapshotTask(0),))
    found, made = outlook_of(Record(), draws, 0, waits, 0.0)
    assert [one.what for one in made] == [START, FINISH] and found.start_s.mid > 0.5
    found, made = outlook_of(Record(), draws, 0, waits._replace(started=True), 0.0)
    assert [one.what for one in made] == [FINISH] and found.start_s == NOW and "runs, and" in found.text
