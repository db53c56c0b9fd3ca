"""Many policies on many workloads: who wins, what is kept, and what is run again."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from symphony.baselines import Dmda, Fifo
from symphony.evaluation import survey as surveys
from symphony.evaluation import survey_page
from symphony.evaluation.survey import Cell, Survey, SurveyWorkload, survey
from symphony.problem.errors import InputError
from symphony.problem.topologies import topology
from symphony.scheduling.one_of import OneOf
from symphony.simulator.scenario_source import scenario

SPEC = "layered?jobs=3&tasks=3&graphs=2"
PLACES = [
    SurveyWorkload(SPEC, "machine"),
    SurveyWorkload(f"{SPEC}&load=0.5", "machine"),
]  # of one size: one program for each group
SEEDS = (0, 1, 2, 3, 4, 5, 6, 7)


def cell(place: SurveyWorkload, policy: str, values: list[float], *, cheats: bool = False) -> Cell:
    return Cell(place, policy, cheats, SEEDS, {"mean_completion_s": tuple(values)})


def made() -> Survey:
    """On `a` fast wins clearly; on `b` fast and slow are alike; the cheat is ahead on both."""
    rng = np.random.default_rng(0)
    a, b = SurveyWorkload("a", "machine"), SurveyWorkload("b", "machine")
    noise = 1 + 0.3 * rng.random(len(SEEDS))
    jitter = 1 + 0.02 * np.array([1, -1, 1, -1, -1, 1, -1, 1])
    return Survey(
        [
            cell(a, "fast", list(noise)),
            cell(a, "slow", list(2 * noise * (1 + 0.01 * rng.random(len(SEEDS))))),
            cell(a, "cheat", list(0.5 * noise), cheats=True),
            cell(b, "fast", list(noise)),
            cell(b, "slow", list(noise * jitter)),
            cell(b, "cheat", list(0.9 * noise), cheats=True),
        ],
        ["c@machine: it cannot run"],
        "symphony compare <all>",
    )


def test_a_cheat_is_ranked_but_cannot_win() -> None:
    s = made()
    standings = s.standings(s.places[0])
    assert [x.policy for x in standings] == ["cheat", "fast", "slow"]
    assert [x.policy for x in standings if x.against is None] == ["fast"]


def test_only_what_the_test_cannot_tell_apart_is_tied() -> None:
    s = made()
    tied = {place.workload: {x.policy for x in s.standings(place) if x.tied} for place in s.places}
    assert tied == {"a": {"fast"}, "b": {"fast", "slow"}}


def test_overall_is_the_geometric_mean_of_the_ratios_to_the_winners() -> None:
    ratio, won, count = made().overall()["slow"]
    assert (won, count) == (1, 2)
    assert ratio == pytest.approx(math.sqrt(2.01 * 1.0), rel=0.01)
    assert made().overall()["cheat"][0] < 1


def test_a_run_that_never_ended_is_last_and_not_tied_with_a_number() -> None:
    a = SurveyWorkload("a", "machine")
    s = Survey([cell(a, "stuck", [math.inf] * 8), cell(a, "fine", [1.0] * 8)], [], "")
    standings = s.standings(a)
    assert [x.policy for x in standings] == ["fine", "stuck"]
    assert standings[1].against is not None and standings[1].against.ratio is None
    assert math.isnan(s.overall()["stuck"][0])
    assert "–" in str(s.table())


def test_the_table_says_when_seeds_are_too_few() -> None:
    assert "at least 7" not in str(made().table())
    few = Survey(
        [Cell(c.place, c.policy, c.cheats, (0, 1), {"mean_completion_s": (1.0, 2.0)}) for c in made().cells], [], ""
    )
    assert "2 seeds are too few to tell 3 policies apart: run at least 7" in str(few.table())


def test_what_is_done_is_not_run_again_and_what_is_not_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float]] = []
    first = survey(["sjf", "heft"], PLACES[:1], tmp_path, seeds=range(2), progress=lambda *x: told.append(x))
    assert [share for _, share in told] == sorted(share for _, share in told) and told[-1][1] == 1.0
    ran: list[str] = []
    real = surveys.simulate

    def counted(*args: Any, name: str, **more: Any) -> Any:
        ran.append(name)
        return real(*args, name=name, **more)

    monkeypatch.setattr(surveys, "simulate", counted)
    again = survey(["sjf", "heft"], PLACES[:1], tmp_path, seeds=range(2))
    assert ran == [] and list(again.cells) == list(first.cells)
    assert again.cells[0].jobs == first.cells[0].jobs and len(again.cells[0].jobs[0]["finish_s"]) == 3
    more = survey(["sjf", "fifo", "heft"], PLACES[:1], tmp_path, seeds=range(2))
    assert ran == ["fifo"]  # by itself, as in the tests below: one program serves them
    assert [(c.place, c.policy) for c in more.cells] == [(PLACES[0], p) for p in ("sjf", "fifo", "heft")]
    more = survey(["sjf", "heft"], [*PLACES, SurveyWorkload("variant-calling", "gpu24")], tmp_path, seeds=range(2))
    assert ran[1:] == ["sjf", "heft"]
    assert [(c.place, c.policy) for c in more.cells] == [(place, p) for place in PLACES for p in ("sjf", "heft")]
    assert len(more.skipped) == 1 and "IndelRealignment" in more.skipped[0]
    survey(["sjf", "heft"], PLACES[:1], tmp_path, seeds=(0, 4))  # of the same shapes
    assert ran[3:] == ["sjf", "heft"], "other seeds are other cells"


def test_a_policy_with_other_numbers_is_another_cell(tmp_path: Path) -> None:
    one = scenario(topology("machine"), PLACES[0].workload, 0)
    files = {
        surveys._file(tmp_path, PLACES[0], "mine", policy, [one])
        for policy in (Dmda(), Dmda(beta=2.0), Dmda(), Fifo(), OneOf((Fifo(),), jnp.asarray(0)))
    }
    assert len(files) == 4


def test_cells_of_weights_in_other_folders_are_kept_with_the_rest(tmp_path: Path) -> None:
    """`symphony evaluate trained/best.policy` names a policy by its path."""
    one = scenario(topology("machine"), PLACES[0].workload, 0)
    paths = [surveys._file(tmp_path, PLACES[0], name, Fifo(), [one]) for name in ("fifo", "trained/best.policy")]
    assert [path.parent for path in paths] == [tmp_path, tmp_path] and paths[0] != paths[1]


def test_another_simulator_is_another_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = scenario(topology("machine"), PLACES[0].workload, 0)

    def file() -> Path:
        return surveys._file(tmp_path, PLACES[0], "fifo", Fifo(), [one])

    before = file()
    assert file() == before
    monkeypatch.setattr(surveys, "_code_digest", lambda: "changed")
    assert file() != before


def test_a_damaged_cell_is_named(tmp_path: Path) -> None:
    survey(["fifo"], PLACES[:1], tmp_path, seeds=range(2))
    (path,) = (tmp_path / "cells").iterdir()
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match=path.name):
        survey(["fifo"], PLACES[:1], tmp_path, seeds=range(2))


def test_policies_that_do_not_suit_are_left_out(tmp_path: Path) -> None:
    got = survey(["fifo", "heft"], PLACES[:1], tmp_path, seeds=range(2), suits=lambda name, one: name == "fifo")
    assert got.policies == ("fifo",)


def test_nothing_to_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no policy to compare"):
        survey([], PLACES, tmp_path)
    with pytest.raises(InputError, match="no workload"):
        survey(["fifo"], [], tmp_path)
    with pytest.raises(InputError, match="no workload could be run"):
        survey(["fifo"], [SurveyWorkload("variant-calling", "gpu24")], tmp_path)
    with pytest.raises(InputError, match="no-such"):
        survey(["fifo"], [SurveyWorkload("eeg", "no-such")], tmp_path)


def test_json_holds_every_cell(tmp_path: Path) -> None:
    made().to_json(tmp_path / "s.json.gz")
    document = json.loads(gzip.decompress((tmp_path / "s.json.gz").read_bytes()))
    assert [(c["workload"], c["policy"]) for c in document["cells"]][:2] == [("a", "fast"), ("a", "slow")]


def test_the_page_escapes_and_holds_what_the_script_needs() -> None:
    text = survey_page.html(made())
    assert "symphony compare &lt;all&gt;" in text and "{{" not in text
    assert "fast has the least mean completion time over all 2 workloads: best or tied on 2, it wins every one." in text
    view = survey_page.payload(made())["views"]["mean_completion_s"]
    assert view["order"] == ["cheat", "fast", "slow"]
    assert view["places"][0]["winner"] == "fast" and not view["places"][0]["standings"]["slow"]["tied"]
    assert view["places"][0]["standings"]["slow"]["low"] < 2.01 < view["places"][0]["standings"]["slow"]["high"] * 1.01
