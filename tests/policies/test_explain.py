"""Explanations of decisions: they agree with what the policy does, and with the estimates it is shown."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from symphony.cli import explain as command
from symphony.cli import explain_decision
from symphony.policies import Learned, Network, Sizes, explain, load, named, save
from symphony.policies.explain import Candidate, DecisionExplanation, PlacementEstimate
from symphony.problem.errors import InputError
from symphony.problem.program_cache import CACHE_VARIABLE
from symphony.simulator.run import run_traces
from symphony.simulator.scenarios import stack
from tests.baselines.cheap import cheap_scenario
from tests.compiling import environment_of_commands

SIZES = Sizes(gangs=4, devices=3, preempts=2, configures=2, width=8, memory=8)


@pytest.fixture(autouse=True, scope="module")
def _kept_programs() -> Iterator[None]:
    """Explanations after the first find its programs, as they do outside tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, environment_of_commands()[CACHE_VARIABLE])
        yield


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a policy whose network has a say: where the heuristic hardly cares, it decides."""
    network = Network(jax.random.key(1), SIZES)
    loud = eqx.tree_at(lambda n: n.score.layers[-1].weight, network, replace_fn=lambda x: 300 * x)
    path = tmp_path_factory.mktemp("policy") / "mine.policy"
    save(path, loud)
    return path


@pytest.fixture(scope="module")
def policy(written: Path) -> Learned:
    """Read, as the command does: one program serves both."""
    return load(written)[0]


@pytest.fixture(scope="module")
def told(policy):
    """Every third of the first decisions of a run."""
    scenario = cheap_scenario()
    return scenario, [explain(policy, scenario, number) for number in range(0, 24, 3)]


def test_what_is_explained_is_what_the_policy_does(policy, told) -> None:
    scenario, explanations = told
    (trace,), _ = run_traces(stack([scenario]), [scenario], policy)
    core = trace.carry.world.core
    assert not core.refused and core.jobs_done == len(scenario.workload.jobs)  # whatever a network says
    kind, job, gang, device = (np.asarray(x) for x in trace.log.decision[:4])
    made = np.flatnonzero(kind >= 0)
    for number, explanation in zip(range(0, 24, 3), explanations, strict=True):
        at, chosen = made[number], explanation.chosen
        assert explanation.number == number
        assert explanation.time_s == pytest.approx(trace.before_s[at], rel=1e-6)
        if chosen.action == "place":
            graph = scenario.workload.graphs[scenario.workload.jobs[job[at]].graph]
            assert (chosen.job, chosen.gang) == (f"{graph.name} #{job[at]}", graph.all_gangs[gang[at]].name)
            assert chosen.device == scenario.topology.devices[device[at]].name
        else:
            assert kind[at] != 0


def test_estimates_add_up_and_lie_within_their_bands(told) -> None:
    for explanation in told[1]:
        for candidate in explanation.candidates:
            if candidate.estimate is None:
                continue
            e = candidate.estimate
            alone = max(e.queue_s, e.fetch_s) + e.setup_s + e.run_s * e.slowdown
            assert e.finish_s >= alone * (1 - 1e-5)  # and what a gang exchanges
            assert e.low_s <= e.finish_s * (1 + 1e-6) and e.finish_s <= e.high_s * (1 + 1e-6)


def test_candidates_come_by_score_and_their_chances_sum_to_one(told) -> None:
    for explanation in told[1]:
        scores = [x.score for x in explanation.candidates]  # waiting has one as well
        assert scores == sorted(scores, reverse=True) and explanation.chosen.score == max(scores)
        for x in explanation.candidates:
            assert x.estimate is None or x.score == pytest.approx(x.estimate.heuristic + x.estimate.network)
        assert sum(x.chance for x in explanation.candidates) == pytest.approx(1, abs=1e-4)


def test_the_marked_action_has_the_highest_number_in_its_row(told) -> None:
    """Not a chance: in training, actions are drawn in steps, and waiting may be likelier than any one placement."""
    for explanation in told[1]:
        console = Console(width=160, record=True, file=io.StringIO())
        explain_decision.show(console, explanation)
        rows = [line for line in console.export_text().splitlines() if re.search(r" [+-]\d+\.\d\d$", line)]
        numbers = [float(line.split()[-1]) for line in rows if "without" not in line]
        assert rows[0].startswith("▶") and numbers[0] == max(numbers[: len(explanation.candidates)])


def test_it_says_whether_it_may_wait_for_how_long_and_why(told) -> None:
    scenario, explanations = told
    devices = {device.name for device in scenario.topology.devices}
    kinds = set()
    for explanation in explanations:
        waits = any(x.action == "wait" for x in explanation.candidates)
        assert explanation.waiting.startswith("may wait" if waits else "may not wait")
        if "could start on" in explanation.waiting or "earlier on" in explanation.waiting:
            assert any(f" {name}" in explanation.waiting for name in devices)
        kinds.add(explanation.waiting.partition(":")[0].partition(" at most")[0])
    assert {"may wait", "may not wait"} <= kinds, kinds


def test_where_it_leaves_the_heuristic_it_says_what_moved_it(told) -> None:
    moved = [x for x in told[1] if x.heuristic is not None and x.chosen != x.heuristic]
    assert moved  # otherwise this shows nothing
    for explanation in moved:
        assert set(explanation.moved) == {
            "load by others",
            "uncertainty of that load",
            "task graph",
            "earlier decisions",
        }
        assert any(abs(share) > 1e-4 for share in explanation.moved.values())
        best = max(x.estimate.heuristic for x in explanation.candidates if x.estimate)
        assert explanation.heuristic.estimate.heuristic == best
    for explanation in told[1]:
        if explanation.chosen == explanation.heuristic:
            assert explanation.moved == {}


def test_beliefs_are_those_about_the_route_of_the_device(told) -> None:
    scenario, explanations = told
    routes = {device.name: {hop.resource for hop in device.route} for device in scenario.topology.devices}
    for explanation in explanations:
        for device, rows in explanation.beliefs.items():
            assert {row.resource for row in rows} == routes[device]
            assert all(row.deviation >= 0 and row.others >= 0 for row in rows)


def test_a_decision_that_is_never_made_is_named(policy) -> None:
    with pytest.raises(InputError, match="ends before decision 100000"):
        explain(policy, cheap_scenario(), 100_000)
    with pytest.raises(InputError, match="decision is -1"):
        explain(policy, cheap_scenario(), -1)
    with pytest.raises(InputError, match="not a learned policy"):
        explain(named("heft"), cheap_scenario())


def test_the_command_shows_candidates_beliefs_and_the_heuristic(written: Path, monkeypatch) -> None:
    app = typer.Typer()
    app.command()(command.explain)
    monkeypatch.setattr(explain_decision, "scenario", lambda *_: cheap_scenario())
    monkeypatch.setenv("COLUMNS", "160")
    options = ["-t", "machine", "-p", str(written), "-d", "3"]
    shown = CliRunner().invoke(app, options)
    assert shown.exit_code == 0, shown.output
    assert "decision 3" in shown.output and "▶" in shown.output and "by others" in shown.output
    told = CliRunner().invoke(app, [*options, "--json"])
    assert json.loads(told.stdout)["number"] == 3
    refused = CliRunner().invoke(app, ["-p", "heft"])
    assert isinstance(refused.exception, InputError)


def test_names_are_whole_in_a_narrow_terminal() -> None:
    estimate = PlacementEstimate(0.147, 0.147, 0.147, 0.00161, 0.0, 0.0, 0.146, 1.0, -0.24, 9.2)
    placed = Candidate("place", "job-3", "call-variants-0", "power8-k80-4/k80-0", 8.96, 0.07, estimate)
    out = io.StringIO()
    console = Console(file=out, width=80)
    explain_decision.show(console, DecisionExplanation(0, 0.5, (placed,), None, {}, {}))
    shown = out.getvalue()
    assert "call-variants-0 of job-3" in shown and "power8-k80-4/k80-0" in shown and "+8.96" in shown
