"""TPC-H stage profiles: against the raw files, and with records spoilt by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from symphony.lowering import readers
from symphony.lowering.readers import tpch
from symphony.lowering.readers.reading import FileContents, read_bytes, read_head
from symphony.problem.errors import DataError
from symphony.problem.workload import Job, Workload
from tests.data import data
from tests.lowering.readers.damaged import try_all, write

QUERIES = """# a comment
graphs:
  - name: Q1
    graph:
      - name: 0
        children: [1, 2]
      - name: 1
        children: [2]
      - name: 2
"""
STAGES: list[Any] = [
    {"stage_id": 0, "stage_name": "s", "num_tasks": 10, "average_runtime_ms": 1000.0},
    {"stage_id": 1, "stage_name": "s", "num_tasks": 2, "average_runtime_ms": 500.0},
    {"stage_id": 2, "stage_name": "s", "num_tasks": 1, "average_runtime_ms": 250.0},
]


def folder(tmp_path: Path, stages: Any = STAGES, queries: str = QUERIES, key: str = "tpch_q1_50g_maxCores_50") -> Path:
    write(tmp_path / "queries.yaml", queries)
    write(tmp_path / "profiles.json", json.dumps({key: stages, "tpch_q1_100g_maxCores_50": STAGES}))
    return tmp_path


def read(path: Path, *, strict: bool = True, **options: Any) -> FileContents:
    return readers.read(path, "tpch", strict=strict, **options)


def test_a_small_one_by_hand(tmp_path: Path) -> None:
    reading = read(folder(tmp_path), width=4, size="50g")
    (graph,) = reading.graphs
    assert graph.name == "tpch_q1_50g_maxCores_50"
    assert [(task.name, task.kernel, task.size) for task in graph.tasks] == [
        *((f"0.{part}", "q1-stage0", 2.5) for part in range(4)),
        ("1.0", "q1-stage1", 0.5),
        ("1.1", "q1-stage1", 0.5),
        ("2.0", "q1-stage2", 0.25),
    ]
    assert len(graph.edges) == 4 * 2 + 4 * 1 + 2 * 1
    assert any("1 entries were not selected" in note for note in reading.notes)


def test_the_real_files() -> None:
    path = data("tpch-cloudlab")
    reading = read(path)
    raw = json.loads(read_bytes(path / "profiles.json.gz"))
    assert not reading.problems
    assert [graph.name for graph in reading.graphs] == list(raw)
    assert len(raw) == 288
    for graph in reading.graphs:
        stages = raw[graph.name]
        assert len(graph.tasks) == sum(min(stage["num_tasks"], tpch.MAX_TASKS_PER_STAGE) for stage in stages)
        total = sum(stage["num_tasks"] * stage["average_runtime_ms"] for stage in stages) / 1e3
        assert sum(task.size for task in graph.tasks) == pytest.approx(total)
    Workload("tpch", reading.kernels, reading.graphs, (Job(0, 0.0),))


def test_known_numbers() -> None:
    (graph,) = read(data("tpch-cloudlab", "profiles.json.gz"), query=3, size="100g", cores="75", width=1).graphs
    assert len(graph.tasks) == 5
    assert sum(task.size for task in graph.tasks) == pytest.approx(10485.293)
    assert {(edge.source, edge.target) for edge in graph.edges} == {
        ("0.0", "2.0"),
        ("1.0", "2.0"),
        ("2.0", "4.0"),
        ("3.0", "4.0"),
    }


def test_sniffing(tmp_path: Path) -> None:
    path = data("tpch-cloudlab")
    for file in (path / "profiles.json.gz", path / "queries.yaml"):
        assert tpch.TPCH_FORMAT.sniff(file, read_head(file))
    assert tpch.TPCH_FORMAT.sniff(path, b"")
    assert not tpch.TPCH_FORMAT.sniff(tmp_path, b"")
    assert not tpch.TPCH_FORMAT.sniff(tmp_path / "x", b'{"tpch": 1}')


BAD_STAGES: dict[str, tuple[dict[str, Any], str]] = {
    "no tasks": ({"num_tasks": 0}, "[1].num_tasks is 0"),
    "half a task": ({"num_tasks": 1.5}, "[1].num_tasks is 1.5"),
    "negative runtime": ({"average_runtime_ms": -1}, "[1].average_runtime_ms is -1"),
    "unknown stage": ({"stage_id": 9}, "[1].stage_id is 9"),
    "given twice": ({"stage_id": 0}, "[1].stage_id is 0"),
    "no number": ({"stage_id": [1]}, "[1].stage_id is [1]"),
}


@pytest.mark.parametrize("name", BAD_STAGES)
def test_a_bad_stage_leaves_its_entry_out(name: str, tmp_path: Path) -> None:
    change, what = BAD_STAGES[name]
    path = folder(tmp_path, [STAGES[0], {**STAGES[1], **change}, STAGES[2]])
    with pytest.raises(DataError) as error:
        read(path)
    assert what in error.value.message
    assert error.value.where.endswith("profiles.json: tpch_q1_50g_maxCores_50")
    reading = read(path, strict=False)
    assert (len(reading.graphs), len(reading.problems)) == (1, 1)


@pytest.mark.parametrize(
    ("key", "stages", "what"),
    [
        ("tpch_q1_50g", STAGES, "its name is not like"),
        ("tpch_q9_50g_maxCores_50", STAGES, "no good graph Q9"),
        ("tpch_q1_50g_maxCores_50", STAGES[:2], "it has no stage 2"),
        ("tpch_q1_50g_maxCores_50", 7, "it is not a list"),
        ("tpch_q1_50g_maxCores_50", [3], "not an object"),
    ],
)
def test_bad_entries(key: str, stages: Any, what: str, tmp_path: Path) -> None:
    path = folder(tmp_path, stages, key=key)
    with pytest.raises(DataError, match=what):
        read(path)
    reading = read(path, strict=False)
    assert (len(reading.graphs), len(reading.problems)) == (1, 1)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("        children: [1, 7]", "child 7"),
        ("        parents: [1]", "line 6"),
        ("        children: [1, 2", "line 6"),
        ("      - name: 0", "given twice"),
    ],
)
def test_queries_that_cannot_be_used(line: str, what: str, tmp_path: Path) -> None:
    path = folder(tmp_path, queries=QUERIES.replace("        children: [1, 2]", line))
    with pytest.raises(DataError, match=what):
        read(path)
    assert read(path, strict=False).problems


def test_half_of_the_pair_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "queries.yaml", QUERIES)
    with pytest.raises(DataError, match=r"no profiles\.json or profiles\.json\.gz"):
        read(tmp_path)


@pytest.mark.parametrize("width", [0, "x", 1000, -1])
def test_widths_that_make_no_sense(width: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="option width: it is"):
        read(folder(tmp_path), width=width)


def test_damage(tmp_path: Path) -> None:
    shutil.copy(data("tpch-cloudlab", "queries.yaml"), tmp_path)
    profiles = json.loads(read_bytes(data("tpch-cloudlab", "profiles.json.gz")))
    write(tmp_path / "profiles.json", json.dumps(dict(list(profiles.items())[:20])))
    assert try_all("tpch", tmp_path / "profiles.json") > 10
    assert try_all("tpch", tmp_path / "queries.yaml", times=15) > 10
