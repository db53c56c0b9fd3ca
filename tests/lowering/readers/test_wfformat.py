"""Workflow executions: against the raw JSON, and with records spoilt by hand."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from symphony.lowering import readers
from symphony.lowering.readers import wfformat
from symphony.lowering.readers.reading import FileContents, read_bytes, read_head
from symphony.problem.errors import DataError
from symphony.problem.workload import Job, Workload
from tests.data import data
from tests.lowering.readers.damaged import try_all

GENOME = ("wfinstances", "pegasus", "1000genome", "1000genome-chameleon-2ch-250k-001.json.gz")
BACASS = ("wfinstances", "nextflow", "bacass-dirt02-001.json.gz")
BLAST = ("wfinstances", "makeflow", "blast", "blast-chameleon-medium-002.json.gz")

# A makes f1 (10 B) and f2 (20 B), B reads both and an input of 5 B; C reads nothing and waits for B.
SMALL: dict[str, Any] = {
    "name": "small",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {"id": "A_1", "name": "A_1", "parents": [], "children": ["B_1"], "outputFiles": ["f1", "f2"]},
                {"id": "B_1", "name": "x.B_ID7", "parents": ["A_1"], "inputFiles": ["f1", "f2", "in"]},
                {"id": "C_1", "name": "C_1", "parents": ["B_1"], "children": []},
            ],
            "files": [
                {"id": "f1", "sizeInBytes": 10},
                {"id": "f2", "sizeInBytes": 20},
                {"id": "in", "sizeInBytes": 5},
            ],
        },
        "execution": {
            "tasks": [
                {"id": "A_1", "runtimeInSeconds": 2.5, "command": {"program": "/bin/a"}, "memoryInBytes": 100},
                {"id": "B_1", "runtimeInSeconds": 0, "command": {"program": "b -x\n c"}, "memoryInBytes": 300},
                {"id": "C_1", "runtimeInSeconds": 4, "command": {"program": "a"}, "memoryInBytes": 200},
            ]
        },
    },
}


def read(path: Path, *, strict: bool = True) -> FileContents:
    return readers.read(path, "wfformat", strict=strict)


def spoilt(tmp_path: Path, change: Any) -> Path:
    document = copy.deepcopy(SMALL)
    change(document["workflow"]["specification"], document["workflow"]["execution"])
    path = tmp_path / "spoilt.json"
    path.write_text(json.dumps(document))
    return path


def test_a_small_one_by_hand(tmp_path: Path) -> None:
    reading = read(spoilt(tmp_path, lambda spec, run: None))
    (graph,) = reading.graphs
    assert graph.name == "spoilt"
    assert [(task.name, task.kernel, task.size) for task in graph.tasks] == [
        ("A_1", "a", 2.5),
        ("B_1", "B", 0.5),
        ("C_1", "a", 4.0),
    ]
    assert {(edge.source, edge.target): edge.bytes for edge in graph.edges} == {
        ("A_1", "B_1"): 30.0,
        (None, "B_1"): 5.0,
        ("B_1", "C_1"): 0.0,
    }
    kernels = {kernel.name: kernel.implementations["cpu"] for kernel in reading.kernels}
    assert {name: profile.memory for name, profile in kernels.items()} == {"a": 200, "B": 300}
    assert kernels["a"].seconds(2.5) == 2.5
    assert any("1 tasks have a recorded runtime of 0" in note for note in reading.notes)


# Every number is counted on the raw file: tasks, edges, their bytes, tasks with inputs, their bytes, seconds, zeros.
@pytest.mark.parametrize(
    ("parts", "tasks", "edges", "moved", "inputs", "from_home", "seconds", "zeros", "kernels"),
    [
        (GENOME, 82, 106, 12067777, 80, 127550298708, 4436.465, 0, 5),
        (BACASS, 11, 14, 233593583, 5, 454191619, 3961.87, 1, None),
        (BLAST, 303, 900, 236696, 302, 2366811, 31545.07, 0, 4),
    ],
)
def test_known_numbers(
    parts: tuple[str, ...],
    tasks: int,
    edges: int,
    moved: float,
    inputs: int,
    from_home: float,
    seconds: float,
    zeros: int,
    kernels: int | None,
) -> None:
    reading = read(data(*parts))
    (graph,) = reading.graphs
    between = [edge for edge in graph.edges if edge.source is not None]
    home = [edge for edge in graph.edges if edge.source is None]
    assert (len(graph.tasks), len(between), len(home)) == (tasks, edges, inputs)
    assert (sum(edge.bytes for edge in between), sum(edge.bytes for edge in home)) == (moved, from_home)
    assert sum(task.size for task in graph.tasks) == pytest.approx(seconds + 0.5 * zeros, abs=1e-3)
    assert kernels is None or len(reading.kernels) == kernels


def test_every_file_is_read_whole() -> None:
    root = data("wfinstances")
    files = sorted(root.rglob("*.json.gz"))
    reading = read(root)
    assert not reading.problems
    assert len(reading.graphs) == len(files) == 134
    assert sum(len(graph.tasks) for graph in reading.graphs) == 54_972
    assert any("345 tasks have a recorded runtime of 0" in note for note in reading.notes)
    assert all(wfformat.WFCOMMONS_FORMAT.sniff(file, read_head(file)) for file in files)
    for graph, file in list(zip(reading.graphs, files, strict=True))[::9]:
        raw = json.loads(gzip.decompress(file.read_bytes()))["workflow"]
        runs = {run["id"]: run["runtimeInSeconds"] for run in raw["execution"]["tasks"]}
        assert {task.name: task.size for task in graph.tasks} == {key: s or 0.5 for key, s in runs.items()}
        parents = {(p, task["id"]) for task in raw["specification"]["tasks"] for p in task["parents"]}
        assert {(e.source, e.target) for e in graph.edges if e.source is not None} == parents
    assert wfformat.WFCOMMONS_FORMAT.sniff(root, b"")


def test_it_makes_a_workload() -> None:
    reading = read(data(*BACASS))
    Workload("bacass", reading.kernels, reading.graphs, (Job(0, 0.0),))


BAD = {
    "negative runtime": (lambda s, r: r["tasks"][0].update(runtimeInSeconds=-1), "execution.tasks[0]", "runtimeInSec"),
    "no runtime": (
        lambda s, r: r["tasks"][2].pop("runtimeInSeconds"),
        "execution.tasks[2]",
        "runtimeInSeconds is None",
    ),
    "runs twice": (lambda s, r: r["tasks"].append(r["tasks"][0]), "execution.tasks[3]", "given twice"),
    "never ran": (lambda s, r: r["tasks"].pop(2), "specification.tasks[2]", "no good record"),
    "unknown run": (lambda s, r: r["tasks"].append({"id": "Z", "runtimeInSeconds": 1}), "execution.tasks", "'Z' ran"),
    "given twice": (lambda s, r: s["tasks"].append(s["tasks"][0]), "specification.tasks[3]", "given twice"),
    "no record": (lambda s, r: s["tasks"].append(3), "specification.tasks[3]", "not an object"),
    "parents": (lambda s, r: s["tasks"][2].update(parents=7), "specification.tasks[2]", "parents is 7"),
    "unknown parent": (lambda s, r: s["tasks"][2]["parents"].append("Z"), "tasks[2].parents", "'Z' is not a task"),
    "unknown file": (lambda s, r: s["tasks"][1]["inputFiles"].append("z"), "tasks[1].inputFiles", "'z' is not a file"),
    "negative file": (lambda s, r: s["files"][2].update(sizeInBytes=-5), "files[2]", "sizeInBytes is -5"),
    "cycle": (lambda s, r: s["tasks"][0]["parents"].append("C_1"), "spoilt.json", "waits for itself"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_records(name: str, tmp_path: Path) -> None:
    change, where, what = BAD[name]
    path = spoilt(tmp_path, change)
    with pytest.raises(DataError) as error:
        read(path)
    assert where in error.value.where
    assert what in error.value.message or name == "cycle"
    reading = read(path, strict=False)
    assert reading.problems
    assert where in reading.problems[0].where


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    def change(spec: Any, run: Any) -> None:
        run["tasks"][1]["runtimeInSeconds"] = -3

    reading = read(spoilt(tmp_path, change), strict=False)
    (graph,) = reading.graphs
    # 3 runs and 3 tasks in; B's run and so B itself are out, and so are three mentions of it.
    assert [task.name for task in graph.tasks] == ["A_1", "C_1"]
    assert [problem.where.partition("workflow.")[2] for problem in reading.problems] == [
        "execution.tasks[1]",
        "specification.tasks[1]",
        "specification.tasks[0].children",
        "specification.tasks[2].parents",
    ]


def test_what_is_no_workflow(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content in ("[]", "{}", '{"workflow": 3}', '{"workflow": {"specification": {"tasks": 3}}}', "\0\0", ""):
        path.write_text(content)
        with pytest.raises(DataError, match=r"x\.json"):
            read(path)


def test_older_versions_are_named(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"name": "old", "schemaVersion": "1.4", "workflow": {"tasks": []}}))
    with pytest.raises(DataError, match=r"it is in WfFormat 1\.4, and only version 1\.5 can be read"):
        readers.read(path)


def test_one_damaged_file_of_a_folder(tmp_path: Path) -> None:
    good = spoilt(tmp_path, lambda spec, run: None)
    (tmp_path / "cut.json").write_text(good.read_text()[:-40])
    with pytest.raises(DataError, match=r"cut\.json"):
        read(tmp_path)
    reading = read(tmp_path, strict=False)
    assert len(reading.graphs) == len(reading.problems) == 1


def test_damage(tmp_path: Path) -> None:
    file = tmp_path / "bacass.json"
    file.write_bytes(read_bytes(data(*BACASS)))
    assert try_all("wfformat", file, times=15) > 20


def test_damage_of_the_compressed_file(tmp_path: Path) -> None:
    whole = data(*BACASS).read_bytes()
    for length in (3, 50, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        (tmp_path / "x.json.gz").write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"x\.json\.gz"):
            read(tmp_path / "x.json.gz")
