"""Our own files: exact round trips, and every kind of damage."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from symphony.lowering import readers
from symphony.lowering.readers import symphony_file
from symphony.lowering.readers.reading import FileContents
from symphony.problem.errors import DataError
from symphony.problem.workload import Edge, Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.simulator.scenarios import Scenario
from tests.simulator.strategies import scenarios


def reading_of(w: Workload) -> FileContents:
    return FileContents("symphony", "x", w.kernels, w.graphs, w.jobs, homes=True, notes=("A note.",))


def content(r: FileContents) -> tuple[Any, ...]:
    return r.kernels, r.graphs, r.jobs, r.homes, r.notes, r.problems


@given(scenarios())
@settings(max_examples=40, deadline=None)
def test_what_is_written_is_read_back_exactly(tmp_path_factory: pytest.TempPathFactory, scenario: Scenario) -> None:
    path = tmp_path_factory.getbasetemp() / "round.json.gz"
    given = reading_of(scenario.workload)
    symphony_file.write(given, path)
    assert content(readers.read(path)) == content(given)


EVERYTHING = FileContents(
    "symphony",
    "x",
    (
        Kernel('k é "quoted"', {"cpu": Profile(0.1, 1 / 3, {"memory": 1e9}, {"cache": 2.0}, 5.0, 7.0)}, 1.5, 12.0),
        Kernel("l", {"gpu": Profile(5e-324), "v100": Profile(0.0, 1e-7)}),
    ),
    (
        TaskGraph(
            "a",
            (Task("t", "l", np.float64(0.1) * 3, 7), Task("u", "l", np.float64(0.1) * 3, 7), Task("v", "l", 3)),
            (Edge(None, "t", 1e15), Edge("t", "v"), Edge("u", "v", 3)),
            (Gang("g", ("t", "u"), True, 1.0, 2.0, 3.0),),
        ),
        TaskGraph("a", (Task("t", 'k é "quoted"'),)),
    ),
    (Job(1, 0.0), Job(np.int64(0), 0.0, -3, 5), Job(0, 1e9)),
    homes=True,
    notes=("One.", "Two."),
)


def test_every_field_survives_and_defaults_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    symphony_file.write(EVERYTHING, path)
    assert content(readers.read(path)) == content(EVERYTHING)
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["format"] == "symphony-workload/1" and document["notes"] == ["One.", "Two."]
    assert document["graphs"][1] == {"name": "a", "tasks": [{"name": "t", "kernel": 'k é "quoted"'}]}
    assert document["jobs"][0] == {"graph": 1, "arrival_s": 0.0}


def test_equal_workloads_make_equal_files(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        symphony_file.write(EVERYTHING, tmp_path / name)
    compressed = (tmp_path / "a.json.gz").read_bytes()
    assert compressed == (tmp_path / "b.json.gz").read_bytes()
    assert gzip.decompress(compressed).decode() == symphony_file.dumps(EVERYTHING)


def test_a_file_that_cannot_be_written_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot write") as caught:
        symphony_file.write(EVERYTHING, tmp_path / "no" / "x.json")
    assert "x.json" in caught.value.where and caught.value.hint


def small() -> dict[str, Any]:
    return {
        "format": "symphony-workload/1",
        "kernels": [{"name": "k", "implementations": {"cpu": {"per_work_s": 1.0}}}],
        "graphs": [
            {"name": "g", "tasks": [{"name": "a", "kernel": "k"}, {"name": "b", "kernel": "k"}]},
            {"name": "h", "tasks": [{"name": "a", "kernel": "k"}], "edges": [{"source": None, "target": "a"}]},
        ],
        "jobs": [{"graph": 0, "arrival_s": 0}, {"graph": 1, "arrival_s": 1.5}, {"graph": 0, "arrival_s": 2}],
    }


Damage = Callable[[dict[str, Any]], Any]
DAMAGES: list[tuple[Damage, str, str, tuple[int, int, int]]] = [
    # what is done, position, what is said, good kernels, graphs and jobs
    (lambda d: d["jobs"][1].update(graph=9), "jobs[1].graph", "there is no graph 9", (1, 2, 2)),
    (lambda d: d["jobs"][1].update(graph=True), "jobs[1].graph", "should be a whole number", (1, 2, 2)),
    (lambda d: d["jobs"][1].update(arrival_s="soon"), "jobs[1].arrival_s", "'soon', and should be a number", (1, 2, 2)),
    (lambda d: d["jobs"][1].update(arrival_s=-1), "jobs[1]", "it arrives at -1 s", (1, 2, 2)),
    (lambda d: d["jobs"][2].update(arrival_s=1), "jobs[2]", "at a finite time from", (1, 2, 2)),
    (lambda d: d["jobs"][1].update(arrival=1), "jobs[1].arrival", "did you mean 'arrival_s'", (1, 2, 2)),
    (lambda d: d["jobs"][1].pop("graph"), "jobs[1]", "the key 'graph' is missing", (1, 2, 2)),
    (lambda d: d["jobs"].__setitem__(1, None), "jobs[1]", "it is null, and should be an object", (1, 2, 2)),
    (lambda d: d["jobs"][1].update(priority=1.5), "jobs[1].priority", "1.5, and should be a whole number", (1, 2, 2)),
    (lambda d: d["graphs"][1].update(tasks=3), "graphs[1].tasks", "should be a list", (1, 1, 2)),
    (lambda d: d["graphs"][1].update(tasks=[]), "graphs[1]", "it has no task", (1, 1, 2)),
    (lambda d: d["graphs"][1]["tasks"][0].update(size=float("nan")), "graphs[1]", "size is nan", (1, 1, 2)),
    (lambda d: d["graphs"][1]["tasks"][0].update(size=10**400), "graphs[1].tasks[0].size", "too large", (1, 1, 2)),
    (lambda d: d["graphs"][1]["tasks"][0].update(size=1e300), "graphs[1]", "time on 'cpu'", (1, 1, 2)),
    (lambda d: d["graphs"][1]["tasks"][0].update(kernel="l"), "graphs[1].tasks[0].kernel", "no kernel 'l'", (1, 1, 2)),
    (lambda d: d["graphs"][1]["edges"][0].update(target="z"), "graphs[1]", "'z', which is not a task", (1, 1, 2)),
    (lambda d: d["kernels"].append(d["kernels"][0]), "kernels[1].name", "defined twice", (1, 2, 3)),
    (lambda d: d["kernels"].append({"name": "m", "implementations": {}}), "kernels[1]", "no implementation", (1, 2, 3)),
    (
        lambda d: d["kernels"].append({"name": "m", "implementations": {"cpu": {"demand": {"memory": "x"}}}}),
        "kernels[1].implementations.cpu.demand.memory",
        "should be a number",
        (1, 2, 3),
    ),
    (lambda d: d.update(kernels={}), "kernels", "an object, and should be a list", (0, 0, 0)),
    (lambda d: d.update(notes="Hm."), "notes", "a list of sentences", (1, 2, 3)),
    (lambda d: d.update(graph=[]), "graph", "did you mean 'graphs'", (1, 2, 3)),
]


@pytest.mark.parametrize(
    ("damage", "position", "what", "good"), DAMAGES, ids=[f"{d[1]}-{i}" for i, d in enumerate(DAMAGES)]
)
def test_a_bad_record_is_named_and_the_good_ones_can_be_kept(
    tmp_path: Path, damage: Damage, position: str, what: str, good: tuple[int, int, int]
) -> None:
    document = small()
    damage(document)
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        readers.read(path)
    assert caught.value.where == f"{path}: {position}" and what in caught.value.message and caught.value.hint
    kept = readers.read(path, strict=False)
    assert kept.problems and kept.problems[0].where == f"{path}: {position}"
    assert (len(kept.kernels), len(kept.graphs), len(kept.jobs)) == good
    if kept.jobs:
        Workload("", kept.kernels, kept.graphs, kept.jobs)  # is checked when made


def test_jobs_still_mean_their_graphs_when_a_graph_before_is_left_out(tmp_path: Path) -> None:
    document = small()
    document["graphs"][0]["tasks"] = []
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    kept = readers.read(path, strict=False)
    assert [graph.name for graph in kept.graphs] == ["h"] and kept.jobs == (Job(0, 1.5),)
    assert [problem.where.rpartition(": ")[2] for problem in kept.problems] == [
        "graphs[0]",
        "jobs[0].graph",
        "jobs[2].graph",
    ]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_a_truncated_file_says_where_it_ends_and_its_good_records_can_be_kept(tmp_path: Path, share: float) -> None:
    graphs = tuple(TaskGraph(f"g{i}", (Task("t", "l"),)) for i in range(20))
    whole = FileContents("symphony", "x", EVERYTHING.kernels, graphs, tuple(Job(i, float(i)) for i in range(20)))
    text = symphony_file.dumps(whole)
    cut = text[: int(share * len(text))]
    path = tmp_path / "cut.json"
    path.write_text(cut, encoding="utf-8")
    with pytest.raises(DataError, match="not JSON") as caught:
        readers.read(path)
    assert f"line {cut.count(chr(10)) + 1}, column" in caught.value.where
    kept = readers.read(path, strict=False)
    lines = cut.splitlines()
    assert len(kept.graphs) == sum('"tasks"' in line and line.rstrip(",").endswith("}") for line in lines)
    assert len(kept.jobs) == sum('"arrival_s"' in line and line.rstrip(",").endswith("}") for line in lines)
    assert kept.graphs == graphs[: len(kept.graphs)] and kept.jobs == whole.jobs[: len(kept.jobs)]
    assert kept.problems[0].what.startswith("this is not JSON")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"format": "symphony-workload/2"}', "'symphony-workload/2'"),
        ("[1, 2]", "it is a list"),
        ("[" * 100_000, "nested too deeply"),
        ('{"format": ' + "1" * 5000 + "}", "not JSON"),
        ("no json at all", "its format is None"),
    ],
)
def test_what_is_no_workload_at_all_is_refused_even_if_good_records_are_kept(
    tmp_path: Path, text: str, what: str
) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        readers.read(path, "symphony", strict=False)
    assert what in str(caught.value) and str(path) in caught.value.where and caught.value.hint


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'{"format": "symphony-workload/1", "kernels": [\xff\xfe]}')
    with pytest.raises(DataError, match="byte 46 is not UTF-8 text"):
        readers.read(path)
