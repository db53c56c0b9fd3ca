"""Comparing policies: the same scenarios for each, and who should win does."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symphony.baselines import Fifo, Random, Srtf
from symphony.evaluation.compare import compare, policy_at
from symphony.evaluation.report import Report
from symphony.problem import limits
from symphony.problem.errors import (
    InfeasibleError,
    InputError,
    LimitError,
    PolicyError,
    SymphonyError,
    SymphonyWarning,
    TopologyError,
)
from symphony.problem.topology import Topology
from symphony.problem.workload import Job, Workload
from symphony.simulator import run as runs
from symphony.simulator.scenarios import CALM, Disturbances
from symphony.training_jobs.lengths import UnknownLengths
from symphony.training_jobs.planner import Planner
from tests.scheduling.by_hand import chain, cluster, dot, work

CONTENDED = Disturbances(background=2.0, counters=None)
EFT = ("heft", "eft-belief", "eft-exact")


@pytest.fixture(scope="module", autouse=True)
def one_core() -> Iterator[None]:
    """Batches are split over the cores at hand; here they have the same shape everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "cores", lambda: 1)
        yield


@pytest.fixture(scope="module")
def report() -> Report:
    """Policies that know nothing, something and everything of the background, where it matters."""
    workload = "layered:6?jobs=40&load=0.8"
    return compare(EFT, topology="paper", workload=workload, seeds=range(6), disturbances=CONTENDED)


# -------------------------------------------------------------------- who wins


def test_the_more_a_policy_knows_the_better_it_does(report: Report) -> None:
    heft, belief, exact = (report.mean(policy, "mean_completion_s") for policy in EFT)
    assert exact < belief < heft
    assert report.verdict("eft-belief", "mean_completion_s") == "better"
    assert report.verdict("eft-exact", "mean_completion_s") == "better"


def test_contention_is_what_it_does_better_about(report: Report) -> None:
    heft, belief, exact = (report.mean(policy, "worse_share") for policy in EFT)
    assert max(belief, exact) < 0.9 * heft


# -------------------------------------------------------------------- paired


def test_every_policy_meets_the_same_jobs(report: Report) -> None:
    for seed in report.seeds:
        jobs = [
            [(job.job, job.graph, job.arrival_s, job.isolated_s, job.priority) for job in report.run_of[p, seed].jobs]
            for p in EFT
        ]
        assert jobs[0] == jobs[1] == jobs[2]
        assert len(jobs[0]) == 40
    first, second = (report.run_of["heft", seed].jobs for seed in (0, 1))
    assert [job.arrival_s for job in first] != [job.arrival_s for job in second]


def test_the_report_says_what_was_compared(report: Report) -> None:
    assert report.policies == EFT
    assert report.seeds == tuple(range(6))
    assert report.cheats == {"eft-exact"}
    assert report.baseline_for(None) == "heft"
    assert all(not run.refused and not run.stalled and run.wall_s > 0 for run in report.runs)
    meta = report.scenarios[0]
    assert meta.topology == "paper" and meta.disturbances["background"] == 2.0 and meta.disturbances["job_slots"] > 0
    for part in ("heft", "'paper'", "layered:6?jobs=40&load=0.8", "seeds=0…5", "'background': 2.0"):
        assert part in report.command
    assert "eft-exact†" in str(report.summary())
    assert "eft-belief" in report.headline() and "eft-exact" not in report.headline()


def test_the_report_comes_back_from_its_file(report: Report, tmp_path: Path) -> None:
    report.to_json(tmp_path / "records.json.gz")
    assert Report.from_json(tmp_path / "records.json.gz") == report


# -------------------------------------------------------------------- what may be given


# Of one shape: one compiled program serves all that is compared below. What is lost in rounding is noise, too.
BOTH = {"first": Fifo(), "second": Random()}
QUIET = replace(CALM, work_noise=1e-12)


def few_jobs(count: int = 4, gap_s: float = 10.0) -> Workload:
    workload = work(chain(), dot("any"))
    return replace(workload, jobs=tuple(Job(n % 2, gap_s * n) for n in range(count)))


def test_policies_by_name_or_by_mapping_on_a_workload_of_ones_own() -> None:
    told: list[tuple[str, float]] = []
    result = compare(
        BOTH,
        topology=cluster(),
        workload=few_jobs(),
        seeds=[3, 1, 3],
        job_slots=2,
        disturbances=replace(CALM, work_noise=0.2),
        baseline="second",
        command="by hand",
        progress=lambda name, share: told.append((name, share)),
    )
    assert result.policies == ("first", "second")
    assert result.seeds == (1, 3)
    assert (result.baseline_for(None), result.command) == ("second", "by hand")
    assert [name for name, share in told if share == 1.0] == ["first", "second"]
    assert all(len(run.jobs) == 4 for run in result.runs)
    # One workload for all seeds: what varies is the disturbances.
    one, three = (result.run_of["first", seed] for seed in (1, 3))
    assert [job.arrival_s for job in one.jobs] == [job.arrival_s for job in three.jobs]
    assert [job.finish_s for job in one.jobs] != [job.finish_s for job in three.jobs]


def test_a_workload_may_be_a_function_of_topology_and_seed() -> None:
    asked: list[tuple[Topology, int]] = []

    def drawn(where: Topology, seed: int) -> Workload:
        asked.append((where, seed))
        workload = few_jobs()
        return replace(workload, jobs=tuple(replace(job, arrival_s=job.arrival_s + seed) for job in workload.jobs))

    here = cluster()
    result = compare(BOTH, topology=here, workload=drawn, seeds=(0, 5), disturbances=QUIET, job_slots=2)
    assert asked == [(here, 0), (here, 5)]
    early, late = (result.run_of["first", seed] for seed in (0, 5))
    assert np.subtract([j.finish_s for j in late.jobs], [j.finish_s for j in early.jobs]).tolist() == [5.0] * 4


def test_full_job_slots_are_warned_of_and_counted() -> None:
    options = {"topology": cluster(), "seeds": (0, 1), "disturbances": QUIET, "job_slots": 2}
    with pytest.warns(SymphonyWarning, match=r"under first, second all 2 job slots were taken.*--job-slots"):
        result = compare(BOTH, workload=few_jobs(gap_s=0.1), **options)
    assert all(run.jobs_outside > 0 and len(run.jobs) == 4 for run in result.runs)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SymphonyWarning)
        result = compare(BOTH, workload=few_jobs(gap_s=100.0), **options)
    assert all(run.jobs_outside == 0 for run in result.runs)


# -------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "error", "message", "hint"),
    [
        ({"policies": []}, InputError, "no policy to compare", "heft"),
        ({"policies": {}}, InputError, "no policy to compare", "heft"),
        ({"policies": "fifo"}, InputError, "policies are 'fifo'", "a list of names"),
        ({"policies": {"f": Fifo}}, PolicyError, "policy 'f' is the class Fifo", "Fifo()"),
        ({"policies": {"mine": "fifoo"}}, InputError, "unknown policy 'fifoo'", "did you mean 'fifo'"),
        ({"topology": 5}, InputError, "the topology is 5", "a sy.Topology"),
        ({"policies": {"f": None}}, PolicyError, "policy 'f' is None, not a sy.Policy", "subclass"),
        ({"seeds": 3}, InputError, "seeds are 3", "range(3)"),
        ({"seeds": range(10**9)}, LimitError, "number of seeds is 1,000,000,000", "bound"),
        ({"workload": None}, InputError, "the workload is NoneType", "a spec"),
        ({"workload": lambda topology, seed: None}, InputError, "the workload is NoneType", "returns one"),
        ({"policies": ["hft"]}, InputError, "unknown policy 'hft'", "did you mean 'heft'"),
        ({"seeds": []}, InputError, "seeds are []", "at least one seed"),
        ({"seeds": [-1]}, InputError, "seeds are [-1]", "0 or more"),
        ({"seeds": [2**40]}, InputError, "seed is 1099511627776", "whole number"),
        ({"seeds": range(limits.SEEDS + 1)}, LimitError, "number of seeds is 100,001", "bound"),
        ({"topology": "nowhere"}, TopologyError, "unknown topology 'nowhere'", "machine"),
        ({"workload": "eg"}, InputError, "'eg'", "eeg"),
        ({"topology": "gpu24", "workload": "variant-calling"}, InfeasibleError, "IndelRealignment", "cpu"),
        ({"job_slots": -3}, InputError, "job_slots is -3", "write 1"),
        ({"disturbances": Disturbances(background=-1.0)}, InputError, "background is -1.0", "0 or more"),
        ({"baseline": "sjf"}, InputError, "the baseline 'sjf' is not compared", "fifo"),
    ],
)
def test_bad_input(options: dict[str, Any], error: type[SymphonyError], message: str, hint: str) -> None:
    given = {"policies": ["fifo"], "topology": "machine", "workload": "eeg?jobs=2", "seeds": [0]} | options
    with pytest.raises(error) as caught:
        compare(given.pop("policies"), **given)
    assert message in caught.value.message
    assert hint in caught.value.hint


# -------------------------------------------------------------------- lengths that no policy knows


def test_unknown_lengths_are_estimated_the_planner_is_shown_index_times() -> None:
    policies = (Srtf(), Planner())
    for index, by_index in enumerate((False, True)):
        shown = policy_at(index, policies, "unknown")
        assert isinstance(shown, UnknownLengths) and bool(shown.by_index) is by_index
        assert shown.policy == policy_at(index, policies, "told")


@pytest.mark.parametrize(
    ("policies", "workload", "message"),
    [
        (["srtf", "heft"], "training?jobs=4", "cannot be hidden from heft"),
        (["fifo"], "layered:2?jobs=2", "gangs in a job"),
    ],
)
def test_lengths_that_cannot_be_hidden(policies: list[str], workload: str, message: str) -> None:
    with pytest.raises(SymphonyError, match=message):
        compare(policies, topology="machine", workload=workload, seeds=range(1), lengths="unknown")


def test_lengths_are_told_or_unknown() -> None:
    with pytest.raises(InputError, match="secret"):
        compare(["fifo"], topology="machine", workload="training?jobs=4", seeds=range(1), lengths="secret")
