"""Graphs of READYS: tiled Cholesky and LU in Graphviz text, a kernel for each vertex; a file, or a folder of them.

The files hold structure only. Times are the constants of READYS, in milliseconds, on a CPU and on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from symphony.lowering.readers.parsing import (
    DOWNLOAD_HINT,
    OTHER_FORMAT_HINT,
    BadRecord,
    bare_name,
    file_or_folder,
    files_of_format,
    record,
)
from symphony.lowering.readers.reading import Collector, FileContents, Format, read_text
from symphony.problem.errors import DataError
from symphony.problem.workload import Edge, Kernel, Profile, Task, TaskGraph

# kernel -> ms on a CPU, on a GPU. The LU kernels have the times of their Cholesky counterparts.
COSTS_MS: Mapping[str, tuple[float, float]] = {
    "potrf": (18, 11),
    "syrk": (57, 2),
    "trsm": (52, 8),
    "gemm": (95, 3),
    "lu": (18, 11),
    "fwd": (52, 8),
    "bdiv": (52, 8),
    "bmod": (95, 3),
}
_VERTEX = re.compile(r"(\w+)\s*\[([^\]]*)\]")
_EDGE = re.compile(r"(\w+)\s*->\s*(\w+)\s*(?:\[[^\]]*\])?")
_KERNEL_ATTRIBUTE = re.compile(r'(?:^|,)\s*kernel\s*=\s*"?(\w+)"?\s*(?:,|$)')


def read(path: Path, collector: Collector) -> FileContents:
    """Read a graph, or every one in a folder."""
    graphs = []
    files, others = files_of_format(path, _looks_like_readys, ".txt", ".dot")
    for file in files:
        with record(collector, str(file)):
            graphs.append(_graph(file, bare_name(file, path), collector))
    used = dict.fromkeys(task.kernel for graph in graphs for task in graph.tasks)
    notes = (
        *others,
        "Times are the constants of READYS, taken as milliseconds on one core of a CPU and on a GPU.",
        "LU's lu, fwd, bdiv and bmod take as long as Cholesky's potrf, trsm, trsm and gemm.",
        "Edges carry no bytes: READYS has no transfer costs.",
    )
    return FileContents(kernels=tuple(map(_kernel, used)), graphs=tuple(graphs), notes=notes)


def _kernel(name: str) -> Kernel:
    times_ms = zip(("cpu", "gpu"), COSTS_MS[name], strict=True)
    return Kernel(name, {device: Profile(ms * 1e-3, demand={"compute": 1.0}) for device, ms in times_ms})


def _graph(file: Path, name: str, collector: Collector) -> TaskGraph:
    tasks: dict[str, Task] = {}
    arrows: list[tuple[str, str, str]] = []  # (where, source, target)
    for line, statement in _statements(file):
        where = f"{file}: line {line}"
        with record(collector, where):
            if arrow := _EDGE.fullmatch(statement):
                arrows.append((where, arrow[1], arrow[2]))
                continue
            vertex = _VERTEX.fullmatch(statement)
            kernel = vertex and _KERNEL_ATTRIBUTE.search(vertex[2])
            if not vertex or not kernel:
                shown = " ".join(statement.split())[:60]
                raise BadRecord(f"it is neither a vertex with a kernel nor an edge: {shown!r}")
            if kernel[1] not in COSTS_MS:
                raise BadRecord(f"READYS has no time for a kernel {kernel[1]!r}; it has {', '.join(COSTS_MS)}")
            if vertex[1] in tasks:
                raise BadRecord(f"vertex {vertex[1]} is given twice")
            tasks[vertex[1]] = Task(vertex[1], kernel[1])
    edges = []
    for where, source, target in arrows:
        with record(collector, where):
            for end in (source, target):
                if end not in tasks:
                    raise BadRecord(f"vertex {end} has no kernel, or was left out")
            edges.append(Edge(source, target))
    return TaskGraph(name, tuple(tasks.values()), tuple(edges))


def _statements(file: Path) -> Iterator[tuple[int, str]]:
    """The statements between the braces, each with the line that it begins on."""
    text = read_text(file)
    opening = re.match(r"\s*digraph\s*\w*\s*\{", text)
    closing = text.rstrip()
    if not opening:
        raise DataError("it is not a digraph", where=f"{file}: line 1", hint=OTHER_FORMAT_HINT)
    if not closing.endswith("}"):
        line = closing.count("\n") + 1
        raise DataError("it is cut off: no closing brace", where=f"{file}: line {line}", hint=DOWNLOAD_HINT)
    position, end = opening.end(), len(closing) - 1
    for statement in text[position:end].split(";"):
        begin = position + len(statement) - len(statement.lstrip())
        position += len(statement) + 1
        if statement.strip():
            yield text.count("\n", 0, begin) + 1, statement.strip()


def _looks_like_readys(head: bytes) -> bool:
    return bool(re.match(rb"\s*digraph\s*\w*\s*\{", head)) and b"kernel=" in head


READYS_FORMAT = Format(
    "readys",
    "tiled factorisations with the constant times of READYS",
    file_or_folder(_looks_like_readys, ".txt", ".dot"),
    read,
)
