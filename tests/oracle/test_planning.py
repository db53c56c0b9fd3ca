"""Plans: between the bound and everything they were made from, repeatable, and what their file says is so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from symphony.oracle import plan_file, planning
from symphony.oracle.instance import instance
from symphony.oracle.planning import Planned, plan
from symphony.oracle.rebuild import rebuild
from symphony.problem.errors import InputError
from tests.oracle.small import by_trying_everything, scenario
from tests.oracle.test_schedule_samples import TINY
from tests.policies.small_networks import small_policy

SEED = 13  # of a graph for which neither greedy decisions nor HEFT are the best


def made(seed: int = 0) -> Planned:
    return plan(
        scenario(0),
        policy=small_policy(**TINY),
        heuristics=("heft",),
        samples=12,
        seconds=600.0,
        rounds=30,
        batch=8,
        seed=seed,
    )


@pytest.fixture(scope="module")
def planned() -> Planned:
    return made()


def test_it_is_no_worse_than_what_it_was_made_from_and_finds_the_optimum_of_a_small_graph(planned: Planned) -> None:
    rivals = [planned.greedy_s, planned.best_sample_s, *planned.heuristics.values()]
    assert planned.bound_s <= planned.value_s <= min(rivals) * (1 + 1e-5)
    assert planned.value_s == pytest.approx(by_trying_everything(instance(planned.scenario))[0], rel=1e-9)
    assert planned.distance == pytest.approx(planned.value_s / planned.bound_s - 1)
    assert set(planned.heuristics) == {"heft"} and len(planned.samples_s) == 12


def test_the_search_begins_with_what_was_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """One round of search alone does not find it."""

    def found(*given: Any, rounds: int | None, **more: Any) -> Any:
        return rebuild(*given, **more, rounds=30)

    def value_s() -> float:
        short: Any = {"heuristics": ("heft",), "samples": 0, "rounds": 1, "batch": 8, "seconds": 600.0}
        return plan(scenario(SEED), policy=small_policy(**TINY), **short).value_s

    best_s = by_trying_everything(instance(scenario(SEED)))[0]
    monkeypatch.setattr(planning, "rebuild", lambda i, objective, starts, **_: (list(starts), 0, 0.0))
    assert value_s() > 1.01 * best_s
    monkeypatch.setattr(planning, "rebuild", found)
    assert value_s() == pytest.approx(best_s, rel=1e-5)


def test_more_samples_are_never_worse_and_all_of_them_are_the_best(planned: Planned) -> None:
    counts, values = zip(*planned.curve, strict=True)
    assert counts == (1, 2, 4, 8, 12)
    assert list(values) == sorted(values, reverse=True)
    assert values[-1] == planned.best_sample_s


def test_equal_seeds_give_equal_plans(planned: Planned) -> None:
    again = made()
    assert again.samples_s == planned.samples_s and again.value_s == planned.value_s
    assert (again.plan.devices == planned.plan.devices).all() and (again.plan.rank == planned.plan.rank).all()
    assert made(seed=1).samples_s != planned.samples_s


@pytest.fixture
def said(planned: Planned) -> dict[str, Any]:
    return json.loads(json.dumps(plan_file.as_json(planned, {"seed": 0})))


def test_a_plan_that_was_written_does_in_the_simulator_what_it_says(said: dict[str, Any], planned: Planned) -> None:
    followed = plan_file.follow(said, planned.scenario)
    assert followed.agrees and followed.off_s == 0 and followed.value_s == planned.value_s
    assert {row["tasks"][0] for row in said["gangs"]} == {f"t{n}" for n in range(6)}


def test_a_claim_that_is_not_so_is_found(said: dict[str, Any], planned: Planned) -> None:
    wrong = said | {"value_s": 0.9 * said["value_s"]}
    assert not plan_file.follow(wrong, planned.scenario).agrees
    said["gangs"][3]["start_s"] += 0.1
    assert not plan_file.follow(said, planned.scenario).agrees


def test_a_plan_for_something_else_is_refused(said: dict[str, Any], planned: Planned) -> None:
    rows = said["gangs"]
    other = {"job": 7, "gang": 0, "devices": ["d0"]}
    for gangs, words in (
        (rows[:-1], "does not name it"),
        ([*rows, rows[0]], "twice"),
        ([*rows, other], "no such gang"),
        ([rows[0] | {"devices": ["gpu9"]}, *rows[1:]], "no device"),
        ([rows[0] | {"devices": ["d0", "d1"]}, *rows[1:]], "cannot run"),
        ([{"job": 0}], "is missing"),
    ):
        with pytest.raises(InputError, match=words):
            plan_file.follow(said | {"gangs": gangs}, planned.scenario)


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for text in ("{", "[]", '{"format": "else"}'):
        path.write_text(text)
        with pytest.raises(InputError):
            plan_file.read(path)
    with pytest.raises(InputError, match="cannot be read"):
        plan_file.read(tmp_path / "none.json")


def test_mistakes_are_found_before_the_work() -> None:
    drawn = scenario(0)
    with pytest.raises(InputError, match="is not a learned policy"):
        plan(drawn, policy="heft")
    with pytest.raises(InputError, match="objective"):
        plan(drawn, policy=small_policy(**TINY), objective="p99")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="time"):
        plan(drawn, policy=small_policy(**TINY), seconds=0.0)
    with pytest.raises(InputError, match="samples"):
        plan(drawn, policy=small_policy(**TINY), samples=-1)
