"""The oracle as users meet it: labels, checks, and a place in comparisons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symphony.baselines import Heft
from symphony.evaluation.compare import compare
from symphony.oracle import oracle as module
from symphony.oracle.exact import ExactModel, SolverResult
from symphony.oracle.instance import ONE_AT_A_TIME, instance
from symphony.oracle.oracle import Oracle, ScenarioPlanner, Solution
from symphony.problem.errors import InputError, SymphonyWarning
from symphony.simulator.scenarios import CALM, Phase
from tests.oracle.small import by_trying_everything, scenario, unlike, work

pytest.importorskip("ortools")
QUICK = Oracle(600.0, workers=1, starts=("heft",), rounds=4, batch=8, deterministic_s=20.0)


@pytest.fixture(scope="module")
def solved() -> dict[bool, Solution]:
    """One scenario without transfers and one with."""
    return {bus: QUICK.solve(scenario(0, bus=bus)) for bus in (False, True)}


@pytest.mark.parametrize("bus", [False, True])
def test_a_small_calm_scenario_is_solved(solved: dict[bool, Solution], bus: bool) -> None:
    found = solved[bus]
    assert found.label == "optimal"
    assert found.value_s == pytest.approx(by_trying_everything(instance(scenario(0, bus=bus)))[0], rel=1e-6)
    assert all(check.passed for check in found.checks)
    said = " ".join(check.what for check in found.checks)
    for word in ("two configurations", "simulator", "without d"):
        assert word in said
    assert found.bound_s <= found.value_s * (1 + 1e-6)
    assert found.value_s <= found.baselines["heft"] * 1.00001 and found.best_baseline == "heft"


def test_the_scope_says_what_a_proof_leaves_out(solved: dict[bool, Solution]) -> None:
    assert solved[False].scope == ""
    # Unless the bound that holds for all policies is met.
    met = solved[True].bound_s >= solved[True].value_s * (1 - 1e-6)
    assert solved[True].scope == ("" if met else ONE_AT_A_TIME)
    assert "relaxed model" in solved[True].bounds and "exact model" not in solved[True].bounds


def test_outside_the_subset_nothing_is_called_optimal() -> None:
    disturbed = replace(scenario(0), phases=(Phase(1.0, "m", {"compute": 0.5}),))
    found = QUICK.solve(disturbed)
    assert found.label == "best known" and found.scope == "" and not found.checks
    assert found.outside == ("hidden tenants load resources",)
    assert found.candidates == 4 * 8
    assert found.bound_s < found.value_s <= found.baselines["heft"] * 1.00001


def test_a_proof_that_does_not_end_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    solve = ExactModel.solve

    def tired(self: ExactModel, *args, **kwargs) -> SolverResult:
        answer = solve(self, *args, **kwargs)
        return replace(answer, status="feasible", bound_s=0.8 * answer.value_s)

    monkeypatch.setattr(ExactModel, "solve", tired)
    found = QUICK.solve(scenario(0))
    assert found.label == "gap 20.0%" and found.checks == ()


def test_configurations_that_disagree_are_told_of_and_nothing_is_called_optimal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solve = ExactModel.solve

    def wrong(self: ExactModel, setting, **kwargs) -> SolverResult:
        answer = solve(self, setting, **kwargs)
        return replace(answer, value_s=answer.value_s * 1.1) if setting.seed else answer

    monkeypatch.setattr(ExactModel, "solve", wrong)
    with pytest.warns(SymphonyWarning, match="two configurations agree"):
        found = QUICK.solve(scenario(0))
    assert found.label != "optimal" and "exact model" not in found.bounds


def test_a_plan_that_the_simulator_does_not_follow_is_not_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    solve = ExactModel.solve

    def hopeful(self: ExactModel, *args, **kwargs) -> SolverResult:
        answer = solve(self, *args, **kwargs)
        return replace(answer, value_s=answer.value_s * 0.9, bound_s=answer.bound_s * 0.9)

    monkeypatch.setattr(ExactModel, "solve", hopeful)
    with pytest.warns(SymphonyWarning, match="the simulator agrees"):
        assert QUICK.solve(scenario(0)).label != "optimal"


def test_it_stands_beside_policies_in_a_comparison(solved: dict[bool, Solution]) -> None:
    """Each seed has a plan of its own, and what is planned is what happens, also in the 32 bits of comparisons."""
    report = compare(
        {"heft": Heft(), "oracle": QUICK},
        topology=unlike(),
        workload=lambda topology, seed: work(seed),
        seeds=(0, 1),
        disturbances=CALM,
        job_slots=1,
    )
    assert report.cheats == {"oracle"}
    assert report.run_of["oracle", 0].makespan_s == pytest.approx(solved[False].value_s, rel=1e-5)
    assert all(report.run_of["oracle", n].makespan_s <= report.run_of["heft", n].makespan_s * 1.00001 for n in (0, 1))


def test_it_is_a_planner_that_cheats() -> None:
    assert isinstance(QUICK, ScenarioPlanner) and QUICK.cheats
    assert module.BASELINES and Oracle().starts is None  # all of them


@pytest.mark.parametrize(("field", "value"), [("objective", "p99"), ("time_limit_s", 0.0)])
def test_wrong_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(InputError):
        replace(QUICK, **{field: value})
