"""The table of aims: a small one, run for real, and its arithmetic."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from symphony.evaluation import scorecard as scorecards
from symphony.evaluation.scorecard import AIMS, FIRST_HELD_OUT_SEED, Aim, Score, Scorecard, _against, evaluate
from symphony.evaluation.statistics import IntervalEstimate
from symphony.evaluation.survey import Cell, Survey, SurveyWorkload
from symphony.oracle.oracle import Oracle

pytest.importorskip("ortools", reason="the oracle needs OR-Tools")
TINY = SurveyWorkload("layered?tasks=3&graphs=2", "machine")


@pytest.fixture(scope="module")
def card(tmp_path_factory) -> tuple[Scorecard, Path]:
    """A policy that is easily beaten. The oracle counts its work, not its time, and begins with one plan, not three."""
    folder = tmp_path_factory.mktemp("card")
    with pytest.MonkeyPatch.context() as patch:
        counted = {"workers": 1, "rounds": 4, "batch": 8, "deterministic_s": 20.0}
        patch.setattr(scorecards, "Oracle", lambda time_limit_s, starts: Oracle(600.0, starts=starts[:1], **counted))
        return evaluate("fifo", folder, seeds=2, jobs=4, places=[TINY], instances=1), folder


def test_every_aim_has_a_line_for_all_workloads_and_one_for_each(card) -> None:
    scores = card[0].scores
    for aim in AIMS:
        assert next(x.where for x in scores if x.against == aim.rival) == "all workloads"
        assert len([x for x in scores if x.against == aim.rival]) == 2
    assert {x.against for x in scores} == {*(aim.rival for aim in AIMS), "no contention", "oracle"}


def test_no_policy_is_ahead_of_a_proven_oracle(card) -> None:
    ((name, ratio),) = card[0].oracle.items()
    assert "optimal" in name and ratio >= 1 - 1e-5
    assert [x.reached.value for x in card[0].scores if x.against == "oracle"] == [ratio, ratio]


def test_seeds_are_those_that_training_leaves_alone(card) -> None:
    assert all(cell.seeds == (FIRST_HELD_OUT_SEED, FIRST_HELD_OUT_SEED + 1) for cell in card[0].survey.cells)


def test_it_is_written_with_what_was_met(card) -> None:
    scorecard, _ = card
    lines = json.loads(json.dumps(scorecard.as_json()))["scores"]
    assert [line["met"] for line in lines] == [score.met for score in scorecard.scores]
    assert "missed" in str(scorecard.table()) and "all workloads" in str(scorecard.table())


def made() -> Survey:
    """Ours takes 0.5 and 2 times as long as the rival on two workloads."""
    seeds, rival = (0, 1, 2), np.array([1.0, 2.0, 4.0])
    places = [SurveyWorkload("a", "m"), SurveyWorkload("b", "m")]
    cells = []
    for place, factor in zip(places, (0.5, 2.0), strict=True):
        cells.append(Cell(place, "ours", False, seeds, {"mean_completion_s": tuple(factor * rival)}))
        cells.append(Cell(place, "theirs", False, seeds, {"mean_completion_s": tuple(rival)}))
    return Survey(cells, [], "")


def test_ratios_are_averaged_over_workloads_as_logarithms_and_paired_by_seed() -> None:
    run, aim = made(), Aim("theirs", "mean_completion_s", 0.92)
    assert _against(run, "ours", aim, run.places, "all").reached.value == pytest.approx(1.0)
    assert _against(run, "ours", aim, run.places[:1], "a").reached.value == pytest.approx(0.5)
    assert _against(run, "ours", aim, run.places[:1], "a").met
    assert not _against(run, "ours", aim, run.places, "all").met


def test_what_could_not_be_run_is_not_reached() -> None:
    run = made()
    score = _against(run, "ours", Aim("nobody", "mean_completion_s", 2.0), run.places, "all")
    assert math.isnan(score.reached.value) and not score.met


def test_an_aim_may_be_a_least_value() -> None:
    assert Score("", "", "", IntervalEstimate(0.7), 0.63, False).met
    assert not Score("", "", "", IntervalEstimate(0.6), 0.63, False).met
