"""What is believed, by name: parts that add up, totals, and what is not known."""

from __future__ import annotations

import numpy as np
import pytest

from symphony.problem.errors import InputError
from symphony.telemetry.inference import Tracker, infer
from symphony.telemetry.reading import Model
from tests.telemetry import demo
from tests.telemetry.simulated import SimulatedSource
from tests.telemetry.topdown import PARTS, SLOTS, model, reading


def test_parts_add_up_to_a_hundred_per_cent() -> None:
    _, recording = reading()
    found = infer(model(SLOTS), recording)
    shares = found.metrics([f"{part}_bound" for part in PARTS])
    np.testing.assert_allclose(sum(share.mean for share in shares.values()), 100, rtol=1e-9)
    assert all((share.lower >= 0).all() and (share.upper <= 100).all() for share in shares.values())
    assert shares["back_bound"].unit == "%"


def test_a_metric_of_a_ratio_is_surer_than_its_terms() -> None:
    """Instructions and slots of one group rise and fall together, and the ratio knows."""
    source, recording = reading()
    speed = infer(model(SLOTS), recording)["speed"]
    truth = source.totals()[:, 5] / 0.1
    np.testing.assert_allclose(speed.mean, truth, rtol=0.02)


def test_what_is_missing_is_not_a_number() -> None:
    _, recording = reading()
    other = infer(model(), recording)["other"]
    assert np.isnan(other.mean).all() and np.isnan(other.upper).all()
    with pytest.raises(InputError, match="no metric nonsense"):
        infer(model(), recording)["nonsense"]


def test_totals() -> None:
    source, recording = reading()
    found = infer(model(SLOTS), recording)
    whole = found.total("back")
    assert whole.mean.shape == (1,)
    assert whole.mean[0] == pytest.approx(source.totals()[:, 2].sum(), rel=0.03)
    assert whole.std[0] / whole.mean[0] < (found["back"].std / found["back"].mean).mean()
    assert found.total("ipc").mean[0] == pytest.approx(0.9 * 4 * _share(source), rel=0.05)


def test_mistakes_are_named() -> None:
    _, recording = reading()
    for wrong in ((model(), "perf.json"), ("amdzen4", recording)):
        with pytest.raises(InputError, match=r"perf\.json|amdzen4"):
            infer(*wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'x' is not a verdict"):
        infer(model(), recording, trusted=["x"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="nosuch was not counted, and x86/made-up has no metric nosuch") as caught:
        infer(model(), recording)["nosuch"]
    assert "instructions" in caught.value.hint
    with pytest.raises(InputError, match="nosuch was not counted"):
        infer(model(), recording).total("nosuch")
    with pytest.raises(InputError, match="'amdzen4' is not a model"):
        Tracker("amdzen4", recording.columns)  # type: ignore[arg-type]


def test_what_is_printed_is_short() -> None:
    _, recording = reading()
    found = infer(model(), recording)
    assert repr(found) == "<Posterior: 60 windows, 7 events, 7 of them free, x86/made-up>"
    assert len(repr(found.model)) < 1500 and "<Catalogue x86/made-up: 7 events, 7 metrics>" in repr(found.model)


def test_a_share_is_not_shown_as_negative_though_a_difference_is_not_well_known() -> None:
    """Two large counts, each of them known to some per cent, make a small one: with few windows, no bound is tested."""
    found = infer(Model(demo.DEMO, identities=()), demo.recording(4, seed=2))["wasted"]
    at_zero = found.lower == 0
    assert at_zero.tolist() == [False, True, True, True]
    assert (found.lower >= 0).all() and (found.upper > found.mean).all()


def _share(source: SimulatedSource) -> float:
    totals = source.totals().sum(axis=0)
    return float(totals[3] / totals[4])
