"""`symphony plan`, with the long work replaced by a plan that was made by hand: what it prints, writes and checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from symphony.oracle import planning
from symphony.oracle.bounds import lower_bounds
from symphony.oracle.instance import instance
from symphony.oracle.planning import Planned
from symphony.oracle.replay import linear_order, shared_plan
from symphony.oracle.runs import Runs
from symphony.simulator.scenarios import Scenario
from tests.cli.command import symphony_here

WORK = ("plan", "-w", "layered:4?jobs=2", "--quiet")


def by_hand(scenario: Scenario, **asked: Any) -> Planned:
    """Every gang on the device that is fastest for it."""
    i = instance(scenario)
    plan = shared_plan(i.seconds.argmin(axis=1)[:, None], linear_order(i, np.arange(len(i), dtype=float)))
    with jax.enable_x64(True):
        found = Runs(i, "makespan", None).replay(plan, "plan")
    return Planned(
        scenario=i.scenario,
        objective="makespan",
        value_s=found.value_s,
        bounds=lower_bounds(i, "makespan"),
        policy_name=asked["policy"],
        greedy_s=1.5 * found.value_s,
        heuristics={"heft": 2 * found.value_s},
        samples_s=tuple(found.value_s * (1 + n) for n in range(asked["samples"])),
        rebuilt=256,
        candidates=128,
        sampling_s=1.0,
        rebuilding_s=1.5,
        search_s=2.0,
        wall_s=5.0,
        plan=plan,
        run=found.run,
        policy=found.policy,
    )


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Everything that was asked for."""
    seen: list[dict[str, Any]] = []

    def make(scenario: Scenario, **arguments: Any) -> Planned:
        seen.append({"scenario": scenario, **arguments})
        return by_hand(scenario, **arguments)

    monkeypatch.setattr(planning, "plan", make)
    return seen


def test_a_plan_is_printed_drawn_and_written_and_its_file_can_be_followed(
    tmp_path: Path, asked: list[dict[str, Any]]
) -> None:
    done = symphony_here(*WORK, "--samples", "4", "-o", "plan.json", "--plot", "plots", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("the plan, in the simulator", "best of 4 samples", "heft", "bound: critical path", "+"):
        assert word in done.stdout
    assert (tmp_path / "plots" / "schedule.png").stat().st_size and (tmp_path / "plots" / "curve.png").stat().st_size
    assert {job.arrival_s for job in asked[0]["scenario"].workload.jobs} == {0.0}  # all known, all there
    said = json.loads((tmp_path / "plan.json").read_text())
    assert [point["samples"] for point in said["curve"]] == [1, 2, 4]
    checked = symphony_here("plan", "--check", "plan.json", folder=tmp_path)
    assert checked.returncode == 0 and "as it claims" in checked.stdout
    (tmp_path / "plan.json").write_text(json.dumps(said | {"value_s": 0.5 * said["value_s"]}))
    checked = symphony_here("plan", "--check", "plan.json", folder=tmp_path)
    assert checked.returncode == 2 and "hint" in checked.stderr


def test_json_goes_to_stdout_alone_and_arrivals_can_be_kept(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    done = symphony_here(*WORK, "--json", "--arrivals", "--samples", "0", folder=tmp_path)
    said = json.loads(done.stdout)
    assert said["format"] == "symphony.plan/1" and said["arrivals"] and said["best_sample_s"] is None
    assert max(job.arrival_s for job in asked[0]["scenario"].workload.jobs) > 0


def test_mistakes_are_found_before_the_work(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    for *wrong, message in (
        ("--objective", "p99", "unknown objective 'p99'"),
        ("-o", "no/plan.json", "there is no directory no"),
        ("--check", "none.json", "there is no such file"),
        ("-p", "heft", "'heft' is not a learned policy"),
        ("--seconds", "0", "--seconds is 0"),
        ("-t", "machin", "did you mean 'machine'"),
    ):
        done = symphony_here(*WORK, *wrong, folder=tmp_path)
        assert done.returncode == 2 and message in done.stderr and "hint" in done.stderr
    assert asked == []
