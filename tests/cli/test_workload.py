from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from symphony.cli.workload import app
from symphony.lowering import readers
from symphony.lowering.family import drawn, names, workload
from symphony.lowering.readers import symphony_file
from symphony.lowering.readers.reading import FileContents, Format
from symphony.problem import topologies
from symphony.problem.errors import (
    DataError,
    InfeasibleError,
    InputError,
    SymphonyError,
    TopologyError,
    WorkloadError,
)
from symphony.problem.workload import Job, Kernel, Profile, Task, TaskGraph
from tests.data import data


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
        (["eeg", "--svg", "no/such/folder/x.svg"], InputError, "cannot be written"),
    ],
)
def test_bad_input_is_an_error_with_a_hint(arguments: list[str], error: type[SymphonyError], message: str) -> None:
    result = run("show", *arguments)
    assert isinstance(result.exception, error)
    assert message in str(result.exception) and result.exception.hint


# -------------------------------------------------------------------- files


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Thirty jobs, 2 s apart, on CPUs."""
    kernels = (Kernel("k", {"cpu": Profile(per_work_s=1.0)}), Kernel("unused", {"cpu": Profile(1.0)}))
    graphs = tuple(TaskGraph(f"g{i}", (Task("t", "k", 1.0 + i),)) for i in range(30))
    jobs = tuple(Job(i, 2.0 * i) for i in range(30))
    symphony_file.write(
        FileContents("x", "x.csv", kernels, graphs, jobs, notes=("It is made up.",)), tmp_path / "t.json"
    )
    return tmp_path / "t.json"


@pytest.fixture
def damaged(trace: Path) -> Path:
    text = trace.read_text(encoding="utf-8").replace('"graph": 2', '"graph": 99')  # of eleven jobs: 2, 20 … 29
    trace.write_text(text, encoding="utf-8")
    return trace


def test_list_and_formats_as_json() -> None:
    listed = json.loads(shown("list", "--json"))
    assert [one["name"] for one in listed["families"]] == list(names())
    cholesky = next(one for one in listed["families"] if one["name"] == "cholesky")
    assert cholesky["size"] == "tiles" and cholesky["options"]["tiles"]["default"] == 10
    known = json.loads(shown("formats", "--json"))
    assert [one["name"] for one in known["formats"]] == [one.name for one in readers.FORMATS]
    assert known["options"].keys() == listed["files"]["options"].keys() >= {"first", "time_scale", "keep_good"}


def test_formats_are_listed_with_their_options() -> None:
    output = shown("formats")
    for known in readers.FORMATS:
        assert f" {known.name} " in output
    assert "time_scale" in output and "query=" in output


def test_show_of_a_file_has_notes(trace: Path) -> None:
    output = shown("show", f"{trace}?jobs=5&first=3", "-t", "machine")
    assert "note: It is made up." in output and "note: These are 5 of 30 jobs, from number 3 on" in output
    assert "Times on v100, p100, fpga are modelled" in output and "graph 0 of 5: g3, 1 task" in output
    counts = json.loads(shown("show", str(trace), "-t", "machine", "--json", "--jobs", "4"))
    assert counts["jobs"] == 4 and counts["problems"] == [] and counts["notes"][0] == "It is made up."


def test_problems_are_listed_ten_and_then_counted(damaged: Path) -> None:
    result = run("show", str(damaged))
    assert isinstance(result.exception, DataError) and "jobs[2].graph" in result.exception.where
    output = shown("show", str(damaged), "--keep-good")
    assert output.count("left out: ") == 11 and "jobs[28].graph: there is no graph 998" in output
    assert "left out: 1 more; all are listed with --json" in output
    found = json.loads(shown("show", f"{damaged}?keep_good=1", "--json"))
    assert found["jobs"] == 19 and len(found["problems"]) == 11
    assert found["problems"][0] == {
        "where": f"{damaged}: jobs[2].graph",
        "what": "there is no graph 99, or it was left out",
    }


def test_show_of_a_file_without_graphs() -> None:
    output = shown("show", str(data("gavel", "isolated_throughput.csv")))
    assert (
        "no graphs and no jobs" in output and "v100" in output and "ResNet-18" in output and "table rates: " in output
    )
    found = json.loads(shown("show", str(data("gavel", "colocated_pairs.csv")), "--json"))
    assert found["format"] == "gavel-pairs" and found["tables"]["pairs"] > 800


def test_convert_writes_all_of_it(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json.gz"
    output = shown("convert", str(trace), "-o", str(out))
    assert (
        f"wrote {out} (2 kernels, 30 graphs, 30 jobs)" in output.replace("\n", "") and "note: It is made up." in output
    )
    before, after = readers.read(trace), readers.read(out)
    assert (before.kernels, before.graphs, before.jobs, before.notes) == (
        after.kernels,
        after.graphs,
        after.jobs,
        after.notes,
    )


def test_convert_keeps_what_is_good_and_says_what_is_not(damaged: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert isinstance(run("convert", str(damaged), "-o", str(out)).exception, DataError) and not out.exists()
    found = json.loads(shown("convert", str(damaged), "-o", str(out), "--keep-good", "--format", "symphony", "--json"))
    assert found["written"] == [str(out)] and found["jobs"] == 19 and len(found["problems"]) == 11
    assert len(readers.read(out).jobs) == 19


def test_convert_writes_the_cluster_that_a_file_describes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = topologies.topology("machine")
    described = Format(
        "x", "a cluster", lambda path, head: head == b"x", lambda p, c: FileContents("x", "x", topology=cluster)
    )
    monkeypatch.setattr(readers, "FORMATS", (*readers.FORMATS, described))
    source, out = tmp_path / "x.txt", tmp_path / "x.toml"
    source.write_text("x", encoding="utf-8")
    shown("convert", str(source), "--topology-out", str(out))
    assert topologies.topology(out) == cluster


def test_sample_writes_a_window(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "part.json.gz"
    found = json.loads(shown("sample", str(trace), "-o", str(out), "--jobs", "7", "--seed", "3", "--json"))
    assert found["jobs"] == 7 and found["kernels"] == 1 and "7 of 30 jobs" in found["notes"][-1]
    part = readers.read(out)
    assert [job.arrival_s for job in part.jobs] == [2.0 * i for i in range(7)]
    cluster = topologies.topology("machine")
    # It holds what a draw with that seed takes.
    assert part.graphs == drawn(f"{trace}?jobs=7", cluster, 3).workload.graphs
    again = drawn(str(out), cluster, 0).workload
    assert again.graphs == part.graphs and again.jobs == part.jobs


def test_sample_freezes_one_draw_of_a_family(tmp_path: Path) -> None:
    out = tmp_path / "draw.json"
    shown("sample", "eeg:2?load=0.5", "-t", "machine", "-o", str(out), "--jobs", "6", "--seed", "4")
    cluster = topologies.topology("machine")
    frozen = workload("eeg:2?load=0.5", cluster, 4, jobs=6)
    for seed in (0, 1):  # all of the file, whatever the seed
        replayed = workload(str(out), cluster, seed)
        assert (replayed.kernels, replayed.graphs, replayed.jobs) == (frozen.kernels, frozen.graphs, frozen.jobs)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["show", "no/such.csv"], DataError, "no such file"),
        (["show", "{}?jobs=31", "-t", "machine"], WorkloadError, "there are 30 jobs"),
        (["show", "{}", "--format", "wformat"], InputError, "unknown format 'wformat'"),
        (["show", "{}", "--format", "readys"], DataError, "t.json"),
        (["convert", "{}"], InputError, "no file is named"),
        (["convert", "{}", "--topology-out", "x.toml"], InputError, "describes no cluster"),
        (["convert", "{}?jobs=3", "-o", "x.json"], InputError, "convert has no option jobs"),
        (["convert", "eeg", "-o", "x.json"], WorkloadError, "is a family"),
        (["convert", "{}", "-o", "no/such/x.json"], InputError, "cannot be written"),
        (["sample", "eeg", "-o", "x.json", "--jobs", "3"], InputError, "there is no file"),
        (["sample", "{}", "-o", "x.json", "--jobs", "31"], WorkloadError, "there are 30 jobs"),
    ],
)
def test_bad_files_and_options_are_errors_with_a_hint(
    trace: Path, arguments: list[str], error: type[SymphonyError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trace.parent)
    result = run(*(argument.replace("{}", str(trace)) for argument in arguments))
    assert isinstance(result.exception, error), result.exception
    assert message in str(result.exception) and result.exception.hint
    assert not list(trace.parent.glob("x.*"))


def test_a_socrates_job_without_its_soc_says_what_to_write(tmp_path: Path) -> None:
    job = tmp_path / "job.txt"
    job.write_text("add_new_tasks 1\nfft 0\n", encoding="utf-8")
    for arguments in ((), ("--keep-good",)):
        with pytest.raises(DataError, match="no SoC file beside the job") as caught:
            CliRunner().invoke(app, ["show", str(job), *arguments], catch_exceptions=False)
        assert str(job) in caught.value.where and "soc=PATH" in caught.value.hint
    soc = tmp_path / "chips" / "ds3.txt"
    soc.parent.mkdir()
    soc.write_text("add_new_resource CPU P1 0 1 1 performance\npower_profile 1000 0.1\nfft 12\n", encoding="utf-8")
    assert "fft" in shown("show", f"{job}?soc={soc}", "--keep-good")


def test_a_malformed_entry_of_starpu_is_left_out_with_its_file_and_line(tmp_path: Path) -> None:
    source, folder = data("starpu-perfmodels"), tmp_path / "sampling"
    for part, pattern in (("bus", "mirage.*"), ("codelets/45", "chol_model_*.mirage")):
        (folder / part).mkdir(parents=True)
        for file in (source / part).glob(pattern):
            shutil.copy(file, folder / part)
    path = folder / "codelets" / "45" / "chol_model_gemm.mirage"
    path.write_text(path.read_text().replace("8.778020e+04", "", 1))
    content = json.loads(shown("show", str(folder), "--json"))
    assert [problem["where"] for problem in content["problems"]] == [f"{path}: line 41"]
    whole = json.loads(shown("show", f"{source}?machine=mirage", "--json"))
    names = {kernel["name"] for kernel in content["kernels"]}
    assert names == {kernel["name"] for kernel in whole["kernels"] if kernel["name"].startswith("chol_model_")}
