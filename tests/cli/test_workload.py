from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from symphony.cli.workload import app
from symphony.lowering.family import names
from symphony.problem.errors import InfeasibleError, InputError, SymphonyError, TopologyError, WorkloadError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120"})


def shown(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_list_names_every_family_and_option() -> None:
    output = shown("list")
    for name in names():
        assert f" {name}:" in output
    for option in ("regions=2", "tiles=10", "heterogeneity=1.0", "load=0.7", "arrivals=poisson"):
        assert option in output
    assert "one of poisson, bursty, diurnal, batch" in output


def test_show_counts_and_draws() -> None:
    output = shown("show", "cholesky:4?jobs=3", "--topology", "machine")
    assert "20 in a job" in output and "potrf" in output and "v100" in output
    assert "graph 0 of 1: cholesky:4, 20 tasks" in output
    assert "0 │ ● potrf" in output and "●●● trsm" in output


def test_show_draws_the_workers_of_a_gang() -> None:
    counts = json.loads(shown("show", "training", "-t", "gpu24", "--json"))
    assert counts["widest_gang"] == 8
    drawings = [shown("show", "training", "-t", "gpu24", "--graph", str(graph)) for graph in range(12)]
    assert any("[●●" in drawing for drawing in drawings)


def test_json_is_all_there_is_and_follows_the_seed_and_jobs() -> None:
    first = json.loads(shown("show", "layered", "-t", "machine", "--json", "--jobs", "30"))
    again = json.loads(shown("show", "layered?jobs=30", "-t", "machine", "--json", "--seed", "0"))
    other = json.loads(shown("show", "layered", "-t", "machine", "--json", "--jobs", "30", "--seed", "1"))
    assert first["jobs"] == 30 and first["tasks"] == 30 * 16
    assert {**first, "workload": ""} == {**again, "workload": ""}
    assert first["last_arrival_s"] != other["last_arrival_s"]
    assert {kernel["name"] for kernel in first["kernels"]} == {f"k{i}" for i in range(12)}


def test_a_batch_has_no_rate() -> None:
    assert "all at once" in shown("show", "eeg?arrivals=batch&jobs=2", "-t", "machine")
    assert json.loads(shown("show", "eeg?arrivals=batch&jobs=2", "-t", "machine", "--json"))["rate"] is None


def test_files_are_written(tmp_path: Path) -> None:
    dot, svg = tmp_path / "g.dot", tmp_path / "g.svg"
    output = shown("show", "qr:3", "-t", "machine", "--dot", str(dot), "--svg", str(svg)).replace("\n", "")
    assert dot.read_text(encoding="utf-8").startswith('digraph "qr:3"')
    assert svg.read_text(encoding="utf-8").startswith("<svg")
    assert "g.dot" in output and "g.svg" in output


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["cholesy"], WorkloadError, "cholesky"),
        (["eeg", "-t", "nowhere"], TopologyError, "nowhere"),
        (["eeg", "--jobs", "0"], WorkloadError, "jobs is 0"),
        (["eeg", "--seed", "-3"], WorkloadError, "seed"),
        (["eeg", "--graph", "99"], InputError, "no graph 99"),
        (["variant-calling", "-t", "gpu24"], InfeasibleError, "IndelRealignment"),
        (["eeg", "--svg", "no/such/folder/x.svg"], InputError, "cannot write"),
    ],
)
def test_bad_input_is_an_error_with_a_hint(arguments: list[str], error: type[SymphonyError], message: str) -> None:
    result = run("show", *arguments)
    assert isinstance(result.exception, error)
    assert message in str(result.exception) and result.exception.hint
