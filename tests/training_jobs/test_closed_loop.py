"""The closed loop: what is reported, what is learned from it, what drift and bad reports do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from symphony.problem.errors import InputError
from symphony.problem.topologies import topology
from symphony.scheduling.state import FREE, RUNNING
from symphony.simulator.scenarios import CALM, Scenario, draw
from symphony.simulator.windowed_run import JobSnapshot
from symphony.training_jobs.closed_loop import round_reports, run
from symphony.training_jobs.ground_truth import measured
from symphony.training_jobs.measured_jobs import MeasuredJobs, describe_jobs, drawn, sharable
from symphony.training_jobs.planner import Planner
from symphony.training_jobs.speed_samples import SpeedReport
from tests.cli.command import symphony_here
from tests.data import data

CLUSTER = sharable(topology("gpu24"))
ROUNDS = replace(CALM, window_s=360.0, offer_at_windows=True, work_noise=0.06)


@pytest.fixture(scope="module")
def case() -> tuple[Scenario, MeasuredJobs]:
    made = drawn(measured(data("gavel")), CLUSTER, 3, jobs=12, load=1.5, hours=0.5)
    scenario = draw(CLUSTER, made.workload, 3, ROUNDS, job_slots=16)
    return replace(scenario, truth=made.truth, believed=made.believed), made


def look(at_s: float, left: list[float], holds: list[int], since_s: float = 0.0, setup: int = -1) -> JobSnapshot:
    """Gangs 0, 1, … of jobs 10, 11, … of kernels 0, 1, …, on the lanes of the first devices, two to each."""
    lanes = np.full(48, FREE)
    lanes[: len(holds)] = holds
    count = len(left)
    return JobSnapshot(
        now_s=np.asarray(at_s), windows=np.asarray(1), over=np.asarray(False), job=np.arange(10, 10 + count),
        kernel=np.arange(count), status=np.full(count, RUNNING), units_left=np.asarray(left), holds=lanes,
        since_s=np.full(48, since_s), setup=np.arange(48) == setup,
    )  # fmt: skip


LANES = np.repeat(np.arange(24), 2)


def test_who_runs_through_a_round_reports_units_place_and_neighbours() -> None:
    """Jobs 10 and 11 share the first GPU; 12 has the second and third, on machines of their own."""
    holds = [0, 1, 2, FREE, 2]
    before, after = look(0.0, [100.0, 50.0, 9.0], holds), look(360.0, [40.0, 40.0, 8.0], holds)
    a, b, c = round_reports(before, after, CLUSTER, LANES)
    assert a == SpeedReport(10, 0, 0, (1,), False, 0.0, 360.0, 60.0)
    assert (b.neighbours, b.units) == ((0,), 10.0)
    assert (c.neighbours, c.spread, c.units) == ((), True, 1.0)


@pytest.mark.parametrize(
    "after",
    [
        look(360.0, [40.0, 40.0], [0, FREE]),  # its neighbour has gone
        look(360.0, [40.0, 40.0], [FREE, FREE, 0, 1]),  # both have moved
        look(360.0, [40.0, 40.0], [0, 1], since_s=100.0),  # they started within the round
        look(360.0, [40.0, 40.0], [0, 1], setup=1),  # its neighbour is in set-up
    ],
)
def test_what_changed_within_a_round_is_no_sample(after: JobSnapshot) -> None:
    assert round_reports(look(0.0, [100.0, 50.0], [0, 1]), after, CLUSTER, LANES) == []


def test_in_the_loop_beliefs_come_near_the_truth_and_every_job_is_done(case: tuple[Scenario, MeasuredJobs]) -> None:
    scenario, made = case
    out = run(scenario, Planner(rows=16), describe_jobs(made, CLUSTER))
    assert sorted(job.job for job in out.run.jobs) == list(range(12)) and out.run.refused == 0
    assert out.samples > 30 and not out.rejected
    early, late = (np.mean([error for _, error in part]) for part in (out.errors[:3], out.errors[-10:]))
    assert late < 0.6 * early
    assert all(entry.why for entry in out.log)


def test_bad_reports_are_put_aside_and_jobs_are_done_all_the_same(case: tuple[Scenario, MeasuredJobs]) -> None:
    scenario, made = case

    def spoil(r: SpeedReport) -> list[SpeedReport]:
        return [r, r, r._replace(units=0.0, began_s=r.began_s + 1), r._replace(units=float("nan")),
                r._replace(job=999), r._replace(ended_s=r.ended_s + 1e6)]  # fmt: skip

    out = run(scenario, Planner(rows=16), describe_jobs(made, CLUSTER), spoil=spoil)
    assert set(out.rejected) == {"duplicate", "zero", "not a number", "never placed", "clock"}
    assert len(set(out.rejected.values())) == 1 and out.rejected["zero"] == out.samples
    assert len(out.run.jobs) == 12
    assert sum(entry.what == "rejected" for entry in out.log) == sum(out.rejected.values())


def test_a_forecast_may_be_had_on_the_way_and_checked_at_the_end(tmp_path: Path) -> None:
    """The command, on the jobs of `case`: so that the program is there already."""
    where = ("--tables", str(data("gavel")), "--quiet")
    asked = ("forecast", "-w", "measured:12?load=1.5&hours=0.5", "--seed", "3", *where)
    done = symphony_here(*asked, "--check", "--json", "-", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["at_s"] % 360 == 0 and len(said["jobs"]) > 3
    assert sum(job["runs"] for job in said["jobs"]) == sum(bool(job["devices"]) for job in said["jobs"])
    for job in said["jobs"]:
        assert job["speed"]["low"] <= job["speed"]["mid"] <= job["speed"]["high"]
        assert job["happened"]["finish_s"] > said["at_s"] and job["finish_s"]["mid"] > job["start_s"]["low"]
        assert job["samples"]["guess_only"] == (job["samples"]["newest_s"] is None)
    off = [abs(j["finish_s"]["mid"] / j["happened"]["finish_s"] - 1) for j in said["jobs"]]
    assert np.median(off) < 0.25 and said["check"]["finishes_within"] > len(said["jobs"]) / 2
    done = symphony_here(*asked, "--json", "f.json", folder=tmp_path)  # it ends there, and says the same
    assert json.loads((tmp_path / "f.json").read_text())["jobs"] == [
        {name: value for name, value in job.items() if name != "happened"} for job in said["jobs"]
    ]
    for word in ("finish in", "runs", "samples", "bands of 80%"):
        assert word in done.stdout
    late = symphony_here(*asked, "--at", "9e7", folder=tmp_path)
    assert late.returncode == 2 and "all jobs were done" in late.stderr


def test_a_scenario_without_a_truth_is_refused(case: tuple[Scenario, MeasuredJobs]) -> None:
    scenario, made = case
    with pytest.raises(InputError, match="true speeds"):
        run(replace(scenario, truth=None), Planner(), describe_jobs(made, CLUSTER))
