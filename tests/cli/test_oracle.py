"""`symphony oracle`, with the long work replaced: what it prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from symphony.cli import oracle as command
from symphony.oracle.oracle import Check, Oracle, Solution
from symphony.problem.errors import InputError
from symphony.simulator.records import GangRecord, RunRecord

RUN = RunRecord("oracle", 0, (), (GangRecord(0, 0, (1,), 0, 0, 0.0, 2.0, 2.0, 0.0),), 2.0, {}, 1, 2, 0, 0.1)
FOUND = Solution(
    objective="makespan",
    value_s=2.0,
    label="optimal",
    scope="among plans that move one input at a time",
    bounds={"critical path": 1.0, "area": 1.5},
    outside=(),
    baselines={"heft": 2.5},
    checks=(Check("two configurations agree", True, "2 s and 2 s"),),
    candidates=0,
    solve_s=1.0,
    wall_s=1.0,
    run=RUN,
    policy=None,  # type: ignore[arg-type]
)
app = typer.Typer()
app.command()(command.oracle)


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Oracle]:
    """Every oracle that was asked, none of which had to think."""
    seen: list[Oracle] = []

    def solve(self: Oracle, scenario: object, *, progress: object) -> Solution:
        seen.append(self)
        return FOUND

    monkeypatch.setattr(Oracle, "solve", solve)
    monkeypatch.setenv("COLUMNS", "160")
    return seen


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["-w", "cholesky:2?jobs=1", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_value_label_checks_bounds_and_baselines_are_printed(asked: list[Oracle]) -> None:
    said = run("--time-limit", "5", "--seed", "3", "--quiet")
    for word in ("optimal among plans that move one input", "two configurations agree", "critical path", "-50.0%"):
        assert word in said
    assert "heft" in said and "+25.0%" in said
    assert asked == [Oracle(5.0, "makespan", seed=3)]


def test_what_was_found_is_written(tmp_path: Path) -> None:
    run("-o", str(tmp_path / "found.json"), "--quiet")
    found = json.loads((tmp_path / "found.json").read_text())
    assert json.loads(run("--json", "--quiet")) == found
    assert found["label"] == "optimal" and found["bounds_s"]["area"] == 1.5
    assert found["plan"] == [{"job": 0, "gang": 0, "devices": [1], "start_s": 0.0, "finish_s": 2.0}]


def test_mistakes_are_found_before_the_work(asked: list[Oracle], tmp_path: Path) -> None:
    for arguments in (("--objective", "p99"), ("-o", str(tmp_path / "no" / "f.json")), ("--time-limit", "0")):
        with pytest.raises(InputError):
            run(*arguments)
    assert asked == []
