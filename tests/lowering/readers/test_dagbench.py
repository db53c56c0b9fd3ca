"""DAGBench: against the raw JSON and its metadata, and with records spoilt by hand."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from symphony.lowering import readers
from symphony.lowering.readers import dagbench
from symphony.lowering.readers.reading import FileContents, read_head
from symphony.problem.errors import DataError
from symphony.problem.runnable import check_graphs
from symphony.problem.topology import RACK
from tests.data import data
from tests.lowering.readers.damaged import try_all, write

SMALL: dict[str, Any] = {
    "name": "small",
    "task_graph": {
        "tasks": [
            {"name": "load", "cost": 4.0},
            {"name": "work_00_1", "cost": 6.0},
            {"name": "work_00_2", "cost": 6.0},
        ],
        "dependencies": [
            {"source": "load", "target": "work_00_1", "size": 100.0},
            {"source": "load", "target": "work_00_2", "size": 0.0},
        ],
    },
    "network": {
        "nodes": [{"name": "slow", "speed": 1.0}, {"name": "fast", "speed": 4.0}, {"name": "fast2", "speed": 4.0}],
        "edges": [
            {"source": "slow", "target": "slow", "speed": 1e9},
            {"source": "slow", "target": "fast", "speed": 500.0},
            {"source": "fast", "target": "fast2", "speed": 2000.0},
        ],
    },
}


def read(path: Path, *, strict: bool = True, **options: Any) -> FileContents:
    return readers.read(path, "dagbench", strict=strict, **options)


def spoilt(tmp_path: Path, change: Any = lambda document: None) -> Path:
    document = copy.deepcopy(SMALL)
    change(document)
    return write(tmp_path / "entry" / "graph.json", json.dumps(document))


def test_a_small_one_by_hand(tmp_path: Path) -> None:
    reading = read(spoilt(tmp_path))
    (graph,) = reading.graphs
    assert [(task.name, task.kernel, task.size) for task in graph.tasks] == [
        ("load", "load", 4.0),
        ("work_00_1", "work", 6.0),
        ("work_00_2", "work", 6.0),
    ]
    assert [edge.bytes for edge in graph.edges] == [100.0, 0.0]
    topology = reading.topology
    assert topology is not None
    assert [(device.machine, device.kind) for device in topology.devices] == [
        ("slow", "slow"),
        ("fast", "fast"),
        ("fast2", "fast"),
    ]
    work = reading.kernels[1]
    assert [work.implementations[kind].seconds(6.0) for kind in ("slow", "fast", "cpu")] == [0.006, 0.0015, 0.006]
    nic = {row.name: row.capacity for row in topology.resources if row.kind == "nic"}
    assert nic == {"slow/nic": 500e3, "fast/nic": 2000e3, "fast2/nic": 2000e3}
    assert topology.distance(*topology.devices[:2]) == RACK
    check_graphs(topology, reading.kernels, reading.graphs)


def test_the_unit_of_time(tmp_path: Path) -> None:
    reading = read(spoilt(tmp_path), unit_s="2")
    assert reading.kernels[0].implementations["slow"].seconds(4.0) == 8.0
    for bad in (0, -1, "x", "nan"):
        with pytest.raises(DataError, match="option unit_s: it is"):
            read(spoilt(tmp_path), unit_s=bad)


def test_every_file() -> None:
    root = data("dagbench")
    files = sorted(root.rglob("graph.json"))
    assert len(files) == 12
    for file in files:
        reading = read(file)
        assert dagbench.DAGBENCH_FORMAT.sniff(file, read_head(file))
        assert not reading.problems
        (graph,), raw = reading.graphs, json.loads(file.read_text())
        said = dict(re.findall(r"  (num_\w+): (\d+)", file.with_name("metadata.yaml").read_text()))
        assert (len(graph.tasks), len(graph.edges)) == (int(said["num_tasks"]), int(said["num_edges"]))
        assert sum(task.size for task in graph.tasks) == pytest.approx(
            sum(task["cost"] for task in raw["task_graph"]["tasks"])
        )
        assert reading.topology is not None
        assert len(reading.topology.devices) == len(raw["network"]["nodes"])
        check_graphs(reading.topology, reading.kernels, reading.graphs)
    whole = read(root)
    assert (len(whole.graphs), whole.topology) == (12, None)
    assert dagbench.DAGBENCH_FORMAT.sniff(root, b"")


# Counted on the raw file.
def test_known_numbers() -> None:
    reading = read(data("dagbench", "ml_pipelines", "gpt2_tensor_sh12_prefill", "graph.json"))
    (graph,) = reading.graphs
    assert (len(graph.tasks), len(graph.edges), len(reading.kernels)) == (327, 614, 8)
    assert graph.tasks[0].size == pytest.approx(1.4936999650672078)
    assert graph.edges[2].bytes == 1967355.0


def test_links_that_an_interface_cannot_tell_apart_are_named() -> None:
    reading = read(data("dagbench", "edge_computing", "ml_surveillance_pipeline", "graph.json"))
    # Sensors reach the edge at 5,000 and one another at 200.
    assert any("makes 6 links faster than in the file, up to 25 times" in note for note in reading.notes)


def test_a_folder_with_the_same_machines_has_a_topology() -> None:
    reading = read(data("dagbench", "mec"))
    assert (len(reading.graphs), len(reading.topology.devices)) == (5, 3)  # type: ignore[union-attr]


BAD: dict[str, Any] = {
    "negative cost": (lambda d: d["task_graph"]["tasks"][1].update(cost=-1), "tasks[1]", "cost is -1"),
    "no cost": (lambda d: d["task_graph"]["tasks"][1].update(cost=0), "tasks[1]", "cost is 0"),
    "no name": (lambda d: d["task_graph"]["tasks"][1].pop("name"), "tasks[1]", "name is None"),
    "twice": (lambda d: d["task_graph"]["tasks"][1].update(name="load"), "tasks[1]", "given twice"),
    "no object": (lambda d: d["task_graph"]["tasks"].append(3), "tasks[3]", "not an object"),
    "unknown": (
        lambda d: d["task_graph"]["dependencies"][1].update(target="z"),
        "dependencies[1]",
        "'z' is not a task",
    ),
    "size": (lambda d: d["task_graph"]["dependencies"][1].update(size="1"), "dependencies[1]", "size is '1'"),
    "speed": (lambda d: d["network"]["nodes"][2].update(speed=0), "nodes[2]", "speed is 0"),
    "link": (lambda d: d["network"]["edges"][1].update(speed=None), "edges[1]", "speed is None"),
    "cycle": (
        lambda d: d["task_graph"]["dependencies"].append({"source": "work_00_1", "target": "load", "size": 1}),
        "graph.json",
        "",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_records(name: str, tmp_path: Path) -> None:
    change, where, what = BAD[name]
    path = spoilt(tmp_path, change)
    with pytest.raises(DataError) as error:
        read(path)
    assert where in error.value.where
    assert what in error.value.message
    assert where in read(path, strict=False).problems[0].where


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    reading = read(spoilt(tmp_path, lambda d: d["task_graph"]["tasks"][0].update(cost=-1)), strict=False)
    (graph,) = reading.graphs
    assert (len(graph.tasks), len(graph.edges), len(reading.problems)) == (2, 0, 3)


def test_metadata_that_says_otherwise(tmp_path: Path) -> None:
    path = spoilt(tmp_path)
    write(path.with_name("metadata.yaml"), "id: x\ngraph_stats:\n  num_tasks: 3\n  num_edges: 5\n")
    with pytest.raises(DataError, match=r"metadata\.yaml: num_edges is 5, and the graph has 2"):
        read(path)


def test_without_machines(tmp_path: Path) -> None:
    reading = read(spoilt(tmp_path, lambda document: document.pop("network")))
    assert reading.topology is None
    assert reading.kernels[0].implementations["cpu"].seconds(4.0) == 0.004


def test_damage(tmp_path: Path) -> None:
    entry = tmp_path / "entry"
    shutil.copytree(data("dagbench", "edge_computing", "splitstream_pipeline"), entry)
    assert try_all("dagbench", entry / "graph.json", times=20) > 20
    assert try_all("dagbench", entry / "metadata.yaml", ask=entry, times=5) >= 2
