"""The record: bands that are too narrow, too wide or off to one side are corrected by what happened."""

from __future__ import annotations

import math

import numpy as np
import pytest

from symphony.counterfactuals.record import FINISH, START, Forecast, Record, holds, horizon
from symphony.training_jobs.job_forecast import Band


@pytest.mark.parametrize(("sigma", "bias"), [(0.6, 0.0), (0.05, 0.0), (0.3, 0.5), (0.3, -0.5)])
def test_bands_of_a_wrong_model_hold_what_they_should_after_a_while(sigma: float, bias: float) -> None:
    """The model believes in a deviation of 0.2 and no bias; every band is made before its outcome is known."""
    rng, record, held, halves = np.random.default_rng(3), Record(), [], []
    for number in range(900):
        middle = float(np.exp(rng.uniform(1, 7)))
        model = Band(*(middle * math.exp(0.2 * z) for z in (-1.2816, 0.0, 1.2816)))
        shown, half = (record.calibrated(FINISH, model, share) for share in (0.8, 0.5))
        actual = middle * math.exp(bias + sigma * rng.normal())
        if number >= 200:
            held.append(holds(shown, actual))
            halves.append(holds(half, actual))
        record.add(Forecast(number, "ann", FINISH, float(number), model, shown, actual))
    assert 0.75 < np.mean(held) < 0.85 and 0.44 < np.mean(halves) < 0.56
    [row] = [row for row in record.rows() if row.by == "all"]
    assert row.scored == 900 and 0.74 < row.coverage < 0.86
    assert (row.model_coverage < 0.6) == (sigma > 0.4 or bias != 0)  # the model alone is wrong
    assert {row.value for row in record.rows() if row.by == "horizon"} == {
        "under 10 s", "10 s to 2 min", "2 min to 1 h"
    }  # fmt: skip


def test_few_outcomes_change_little_and_unknown_times_nothing() -> None:
    record, model = Record(), Band(8.0, 10.0, 12.5)
    before = record.calibrated(START, model)
    assert tuple(before) == pytest.approx(tuple(model), rel=0.05)
    record.add(Forecast(1, "ann", START, 0.0, model, before, 1_000.0))
    assert record.calibrated(START, model).high < 15.0
    never = Band(3.0, math.inf, math.inf)
    assert record.calibrated(START, never) == never and record.calibrated(START, Band(0.0, 0.0, 0.0)).high == 0
    assert [row.value for row in record.rows("bob")] == [] and horizon(3_600.0) == "over 1 h"
