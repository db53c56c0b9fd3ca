"""`symphony compare`, as a user runs it: its output, its files and its exit code."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from symphony.evaluation.report import Report
from tests.cli.command import symphony, symphony_here

TINY = (
    "--topology",
    "machine",
    "--workload",
    "layered:2?jobs=3&graphs=2",
    "--policies",
    "fifo,eft-exact",
    "--seeds",
    "2",
)


def test_a_comparison_prints_a_table_and_keeps_every_record(tmp_path: Path) -> None:
    done = symphony_here("compare", *TINY, "--metric", "p99_slowdown", "-o", "runs.json.gz", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for part in ("Unfair: eft-exact† sees the true state", "machine, layered:2?jobs=3&graphs=2: 2 seeds", "decisions"):
        assert part in done.stdout
    assert "99th percentile of slow-down" in done.stdout
    report = Report.from_json(tmp_path / "runs.json.gz")
    assert report.policies == ("fifo", "eft-exact") and report.seeds == (0, 1)
    assert all(len(run.jobs) == 3 and len(run.gangs) >= 6 for run in report.runs)
    # The command is kept with the records, as it was typed.
    assert report.command.startswith("symphony compare --topology machine --workload 'layered:2?jobs=3&graphs=2'")


def test_json_on_stdout_is_json_only_and_the_report_is_files(tmp_path: Path) -> None:
    done = symphony_here("compare", *TINY, "--first-seed", "5", "--json", "--report", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["format"] == "symphony.report"
    assert [(run["policy"], run["seed"]) for run in document["runs"]] == [
        ("fifo", 5),
        ("fifo", 6),
        ("eft-exact", 5),
        ("eft-exact", 6),
    ]
    assert "report: " in done.stderr
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>") and "eft-exact" in page
    assert list((tmp_path / "out").glob("*.png"))
    with gzip.open(tmp_path / "out" / "records.json.gz", "rt", encoding="utf-8") as file:
        assert json.load(file)["runs"] == document["runs"]


@pytest.mark.slow
def test_optimised_programs_in_a_process_of_its_own_compute_what_those_of_tests_do(tmp_path: Path) -> None:
    asked = ("compare", *TINY, "--policies", "fifo,shortest-queue", "-o")
    theirs = symphony(*asked, "theirs.json.gz", folder=tmp_path, quickly=False)
    ours = symphony_here(*asked, "ours.json.gz", folder=tmp_path)
    assert (theirs.returncode, ours.returncode) == (0, 0), theirs.stderr + ours.stderr
    reports = [Report.from_json(tmp_path / f"{name}.json.gz") for name in ("theirs", "ours")]
    one, other = ([job.finish_s for run in report.runs for job in run.jobs] for report in reports)
    assert len(one) == 12 and one == pytest.approx(other, rel=1e-5)


def test_several_workloads_make_a_page_and_are_taken_up_again(tmp_path: Path) -> None:
    arguments = (
        "compare",
        "-w",
        "layered:2?jobs=3&graphs=2@machine",
        "-w",
        "layered:2?jobs=3&graphs=2&load=0.5@machine",
        "-w",
        "variant-calling@gpu24",
    )
    arguments += ("-p", "fifo,eft-exact", "-n", "2", "--report", "out", "-o", "out/all.json")
    done = symphony_here(*arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        "2 seeds are too few to tell 2 policies apart" in done.stdout
        and "left out: variant-calling@gpu24" in done.stdout
    )
    page = (tmp_path / "out" / "survey.html").read_text()
    assert "over all 2 workloads" in page and "layered:2?jobs=3&amp;graphs=2&amp;load=0.5" in page
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").iterdir()}
    assert len(before) == 4
    assert symphony_here(*arguments, folder=tmp_path).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    cells = json.loads((tmp_path / "out" / "all.json").read_text())["cells"]
    assert [(cell["workload"], cell["policy"]) for cell in cells[:2]] == [
        ("layered:2?jobs=3&graphs=2", "fifo"),
        ("layered:2?jobs=3&graphs=2", "eft-exact"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--policies", "fifo,hefft"], "unknown policy 'hefft'", "did you mean 'heft'"),
        (["--policies", ","], "no policy to compare", "heft"),
        (["--topology", "gpu42"], "unknown topology 'gpu42'", "gpu24"),
        (["--topology", "missing.toml"], "error: missing.toml", "hint: "),
        (["--workload", "cholesy"], "cholesy", "cholesky"),
        (["--workload", "eeg?jobs=-3"], "jobs is '-3'", "a whole number"),
        (["--topology", "gpu24", "--workload", "variant-calling"], "IndelRealignment", "cpu"),
        (["--seeds", "0"], "'--seeds'", "for help"),
        (["--seeds", "many"], "'--seeds'", "for help"),
        (["--seeds", "1000001"], "number of seeds is 1,000,001", "bound"),
        (["--first-seed", "4294967296", "--seeds", "1"], "seed is 4294967296", "whole number"),
        (["--background", "nan"], "background is nan", "0 or more"),
        (["--latency-s", "-1"], "latency_s is -1.0", "0 or more"),
        (["--job-slots", "100000"], "job_slots is 100000", "4,096"),
        (["--workload", "eeg", "--workload", "lu"], "several workloads need a folder", "--report"),
        (["--policies", "none.policy"], "none.policy: there is no such file", "symphony train"),
        (["--metric", "mean_slow_down"], "unknown metric 'mean_slow_down'", "did you mean 'mean_slowdown'"),
        (["--output", "no/such/folder/x.json"], "there is no directory no/such/folder", "a folder that exists"),
        (["--report", "/dev/null/x"], "/dev/null is a file", "name a folder"),
        (["--workload", "@gpu24"], "'@gpu24' names no workload", "WORKLOAD@TOPOLOGY"),
        (["--colour"], "--colour", "compare"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_ends_in_a_sentence(arguments: list[str], message: str, hint: str, tmp_path: Path) -> None:
    """What is given here comes after, and so instead of, what is fine. Nothing is simulated."""
    fine = [*TINY[:2], *TINY[4:]] if "--workload" in arguments else TINY
    done = symphony_here("compare", *fine, "--quiet", *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    text = " ".join(done.stderr.replace("│", " ").split())
    assert message in text
    assert hint in text
    assert list(tmp_path.iterdir()) == []
