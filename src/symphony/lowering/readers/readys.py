"""Graphs of READYS: tiled Cholesky and LU in Graphviz text, a kernel for each vertex; a file, or a folder of them.

The files hold structure only. Times are the fixed ones that READYS uses, in milliseconds, on a CPU and on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from symphony.lowering.readers.parsing import BadRecord, any_under, bare_name, of_format, record
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
    files, others = of_format(path, sniff, ".txt", ".dot")
    for file in files:
        with record(collector, str(file)):
            graphs.append(_graph(file, bare_name(file, path), collector))
    used = dict.fromkeys(task.kernel for graph in graphs for task in graph.tasks)
    kernels = tuple(
        Kernel(
            name,
            {
                device: Profile(fixed_s=cost * 1e-3, demand={"compute": 1.0})
                for device, cost in zip(("cpu", "gpu"), COSTS_MS[name], strict=True)
            },
        )
        for name in used
    )
    notes = (
        *others,
        "Times are the fixed ones of READYS, taken as milliseconds on one core of a CPU and on a GPU.",
        "LU's lu, fwd, bdiv and bmod take as long as Cholesky's potrf, trsm, trsm and gemm.",
        "Edges carry no bytes: READYS has no transfer costs.",
    )
    return FileContents("readys", str(path), kernels, tuple(graphs), notes=notes, problems=tuple(collector.problems))


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
                raise BadRecord(
                    f"it is neither a vertex with a kernel nor an edge: {' '.join(statement.split())[:60]!r}"
                )
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
        raise DataError("it is no digraph", where=f"{file}: line 1", hint="name a Graphviz file, or say --format")
    if not closing.endswith("}"):
        line = closing.count("\n") + 1
        raise DataError(
            "it is cut off: no closing brace", where=f"{file}: line {line}", hint="get the whole file again"
        )
    position, end = opening.end(), len(closing) - 1
    for statement in text[position:end].split(";"):
        begin = position + len(statement) - len(statement.lstrip())
        position += len(statement) + 1
        if statement.strip():
            yield text.count("\n", 0, begin) + 1, statement.strip()


def sniff(path: Path, head: bytes) -> bool:
    """A digraph whose vertices have a kernel; or a folder with such a file."""
    if path.is_dir():
        return any_under(path, sniff, ".txt", ".dot")
    return bool(re.match(rb"\s*digraph\s*\w*\s*\{", head)) and b"kernel=" in head


READYS_FORMAT = Format("readys", "tiled factorisations with the fixed times of READYS", sniff, read)
