"""Graphs of READYS: against our own factorisations, and with statements spoilt by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from symphony.lowering import readers
from symphony.lowering.factorisations import cholesky_calls, lu_calls
from symphony.lowering.readers import readys
from symphony.lowering.readers.reading import FileContents, read_bytes, read_head
from symphony.problem.errors import DataError
from symphony.problem.workload import Job, Workload
from tests.data import data
from tests.lowering.readers.damaged import try_all, write

SMALL = """digraph dag {
\t0\t [kernel=potrf];
\t1\t [color=red, kernel="trsm"];
\t0 -> 1\t [x=0,
\t\ty=0];
}
"""


def read(path: Path, *, strict: bool = True) -> FileContents:
    return readers.read(path, "readys", strict=strict)


def test_a_small_one_by_hand(tmp_path: Path) -> None:
    reading = read(write(tmp_path / "two.txt", SMALL))
    (graph,) = reading.graphs
    assert (graph.name, [task.kernel for task in graph.tasks]) == ("two", ["potrf", "trsm"])
    assert [(edge.source, edge.target, edge.bytes) for edge in graph.edges] == [("0", "1", 0.0)]
    potrf = reading.kernels[0].implementations
    assert [potrf[device].seconds(1.0) for device in ("cpu", "gpu")] == pytest.approx([0.018, 0.011])


def test_every_file() -> None:
    folder = data("readys-graphs")
    reading = read(folder)
    assert not reading.problems
    assert len(reading.graphs) == len(list(folder.glob("*.txt.gz"))) == 11
    Workload("readys", reading.kernels, reading.graphs, (Job(0, 0.0),))
    counterpart = {"lu": "getrf", "fwd": "trsm", "bdiv": "trsm", "bmod": "gemm"}
    for graph in reading.graphs:
        algorithm, _, tiles = graph.name.partition("_")
        calls = cholesky_calls if algorithm == "cholesky" else lu_calls
        kernels = Counter(counterpart.get(task.kernel, task.kernel) for task in graph.tasks)
        assert kernels == Counter(call.kernel for call in calls(int(tiles))), graph.name
        raw = read_bytes(folder / f"{graph.name}.txt.gz").decode()
        assert (len(graph.tasks), len(graph.edges)) == (raw.count("kernel="), raw.count("->"))
    assert readys.READYS_FORMAT.sniff(folder, b"")


def test_known_numbers() -> None:
    (graph,) = read(data("readys-graphs", "cholesky_4.txt.gz")).graphs
    assert (len(graph.tasks), len(graph.edges)) == (20, 30)
    assert readys.READYS_FORMAT.sniff(
        data("readys-graphs", "cholesky_4.txt.gz"), read_head(data("readys-graphs", "cholesky_4.txt.gz"))
    )
    assert not readys.READYS_FORMAT.sniff(Path("x.dot"), b"digraph other { 1 -> 2; }")


@pytest.mark.parametrize(
    ("old", "new", "line", "what", "left"),
    [
        ("kernel=potrf", "kernel=fft", 2, "no time for a kernel 'fft'", (1, 0)),
        ("kernel=potrf", "label=potrf", 2, "neither a vertex", (1, 0)),
        ("\t1\t", "\t0\t", 3, "given twice", (1, 0)),
        ("0 -> 1", "0 -> 7", 4, "vertex 7 has no kernel", (2, 0)),
        ("0 -> 1", "0 - 1", 4, "neither a vertex", (2, 0)),
    ],
)
def test_bad_statements(old: str, new: str, line: int, what: str, left: tuple[int, int], tmp_path: Path) -> None:
    path = write(tmp_path / "x.txt", SMALL.replace(old, new))
    with pytest.raises(DataError) as error:
        read(path)
    assert error.value.where == f"{path}: line {line}"
    assert what in error.value.message
    reading = read(path, strict=False)
    (graph,) = reading.graphs
    assert (len(graph.tasks), len(graph.edges)) == left
    assert len(graph.tasks) + len(graph.edges) + len(reading.problems) == 3


@pytest.mark.parametrize("text", ["", "graph {}", SMALL[:-3], "digraph dag {\n}"])
def test_what_is_no_graph(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.txt"):
        read(write(tmp_path / "x.txt", text))


def test_a_cycle(tmp_path: Path) -> None:
    path = write(tmp_path / "x.txt", SMALL.replace("}", "1 -> 0; }"))
    with pytest.raises(DataError, match=r"x\.txt: graph 'x'"):
        read(path)
    reading = read(path, strict=False)
    assert (len(reading.graphs), len(reading.problems)) == (0, 1)


def test_damage(tmp_path: Path) -> None:
    file = tmp_path / "chol.txt"
    file.write_bytes(read_bytes(data("readys-graphs", "cholesky_6.txt.gz")))
    assert try_all("readys", file, times=20) > 20
