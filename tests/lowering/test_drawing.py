from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from rich.text import Text

from symphony.lowering.drawing import dot, levels, svg, text
from symphony.lowering.family import workload
from symphony.problem.topologies import topology
from symphony.problem.workload import Edge, Gang, Task, TaskGraph

SVG = "{http://www.w3.org/2000/svg}"
DIAMOND = TaskGraph(
    'a "<graph>"',
    (
        Task("in", "load"),
        Task("left", "f&g"),
        Task("w0", "train"),
        Task("w1", "train"),
        Task("out", "save", 2.0),
    ),
    (
        Edge(None, "in", 1e6),
        Edge("in", "left", 2e6),
        Edge("in", "w0"),
        Edge("left", "out", 1e3),
        Edge("w1", "out"),
        Edge("in", "out"),
    ),
    (Gang("pair", ("w0", "w1")),),
)


def test_a_level_is_the_longest_way_from_the_start() -> None:
    assert levels(DIAMOND) == [[0], [1, 2], [3]]


def test_the_terminal_drawing_shows_every_gang_and_its_workers() -> None:
    lines = Text.from_markup(text(DIAMOND)).plain.splitlines()
    assert [line.split("│")[1].split() for line in lines] == [
        ["●", "load"],
        ["●", "f&g", "[●●]", "train"],
        ["●", "save"],
    ]


def test_long_drawings_are_cut_and_say_so() -> None:
    graph = workload("cholesky:12", topology("machine"), 0).graphs[0]
    drawing = Text.from_markup(text(graph, most_levels=3, most_marks=5)).plain
    assert "31 more levels" in drawing
    assert "●●●●● gemm … 55 in all" in drawing


def test_the_picture_is_valid_and_complete() -> None:
    root = ElementTree.fromstring(svg(DIAMOND))
    groups = root.findall(f"{SVG}g")
    assert [group.findtext(f"{SVG}title") for group in groups] == [
        "in: load, 1 worker",
        "left: f&g, 1 worker",
        "pair: train, 2 workers",
        "out: save, 1 worker",
    ]
    assert [len(group.findall(f"{SVG}circle")) for group in groups] == [1, 1, 2, 1]
    assert len(root.findall(f"{SVG}path")) == 5  # the input from home is not drawn
    assert {"load", "f&g", "train", "save", 'a "<graph>"'} == {element.text for element in root.iter(f"{SVG}text")}


@pytest.mark.parametrize("spec", ["variant-calling", "qr:5", "training", "series-parallel:40"])
def test_nothing_overlaps_or_leaves_the_picture(spec: str) -> None:
    for graph in workload(spec, topology("machine"), 1).graphs[:4]:
        root = ElementTree.fromstring(svg(graph))
        boxes = [group.find(f"{SVG}rect") for group in root.findall(f"{SVG}g")]
        spots = sorted((float(b.get("y")), float(b.get("x")), float(b.get("width"))) for b in boxes)
        assert len(spots) == len(graph.all_gangs)
        for (y, x, width), (next_y, next_x, _) in pairwise(spots):
            assert y != next_y or x + width < next_x
        right, bottom = float(root.get("width")), float(root.get("height"))
        assert all(x > 0 and x + width < right and 0 < y < bottom - 26 for y, x, width in spots)


def test_graphviz_text_names_every_task_and_edge() -> None:
    lines = dot(DIAMOND).splitlines()
    assert lines[0] == 'digraph "a \\"<graph>\\"" {' and lines[-1] == "}"
    assert sum("->" in line for line in lines) == len(DIAMOND.edges)
    assert '  "" -> "in" [label="1 MB"];' in lines
    assert any(line.startswith("  subgraph") and '"w0"; "w1"' in line for line in lines)
    assert any(line.startswith('  "out" [label="out\\nsave 2"') for line in lines)
