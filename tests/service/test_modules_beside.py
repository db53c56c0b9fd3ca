"""Modules beside a submitted file: they travel with it, or the submission is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import symphony as sy
from symphony.service.graph_file import load
from symphony.service.modules_beside import send_modules
from tests.service.places import SECONDS, place

SHAPES = """
from dataclasses import dataclass

SIDES = 4

@dataclass
class Square:
    side: float

    def area(self):
        return side_times(self.side, self.side)

def side_times(a, b):
    return a * b * SIDES / 4
"""
GRAPH = """
import symphony as sy
import beside_shapes
from beside_shapes import Square

@sy.kernel
def make(side):
    return Square(side)

@sy.kernel
def measure(square, other):
    assert isinstance(square, beside_shapes.Square)
    return square.area() + other.area()

graph = sy.graph("areas")
graph.task(measure, graph.task(make, 3.0), Square(2.0))
"""
LAZY = """
import symphony as sy

def helper(side):
    from beside_shapes import Square
    return Square(side).area()

@sy.kernel
def measure(side):
    return helper(side)

graph = sy.graph("areas")
graph.task(measure, 3.0)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With a module and a graph file beside it; neither can be imported by anybody else."""
    (tmp_path / "beside_shapes.py").write_text(SHAPES)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("beside_shapes", "areas"):
        sys.modules.pop(name, None)


def test_classes_and_functions_of_a_module_beside_the_file_travel(folder: Path) -> None:
    (folder / "areas.py").write_text(GRAPH)
    with place(folder / "service") as here, here.connect("ann") as ann:
        graph = load(str(folder / "areas.py"), {})
        sys.path.remove(str(folder))  # as for workers of a service, which were started elsewhere
        assert ann.submit(graph).result(SECONDS) == 13.0


def test_what_is_imported_when_it_runs_cannot_travel_and_is_refused_at_once(folder: Path) -> None:
    (folder / "areas.py").write_text(LAZY)
    with pytest.raises(sy.WorkloadError, match="kernel 'measure' imports 'beside_shapes' when it runs") as refused:
        load(str(folder / "areas.py"), {})
    assert "import beside_shapes` at the top" in refused.value.hint
    (folder / "beside_shapes.py").unlink()
    load(str(folder / "areas.py"), {})  # then it is no business of ours: workers may have it


def test_modules_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at every submission: a process that uses JAX has two thousand of them."""
    send_modules(tmp_path)
    resolved, resolve = [], Path.resolve
    monkeypatch.setattr(Path, "resolve", lambda path: resolved.append(path) or resolve(path))
    send_modules(tmp_path)
    assert resolved == [tmp_path]
