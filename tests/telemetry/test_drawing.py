"""The net as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from symphony.problem.errors import InputError
from symphony.telemetry.drawing import MAX_NODES, net_drawing, svg
from symphony.telemetry.events import Catalogue, Event
from symphony.telemetry.gate import Verdict
from symphony.telemetry.identities import Identity
from symphony.telemetry.reading import Model
from tests.telemetry.demo import DEMO, EVENTS, PARTS, SHARES

MODEL = Model(DEMO)
NAME = "{http://www.w3.org/2000/svg}"


def identity(total: str, *parts: str, relation: str = "=") -> Identity:
    terms = ((total, 1.0), *((part, -1.0) for part in parts))
    return Identity(f"{total} {relation} {' + '.join(parts)}", terms, relation, "curated: test", tolerance=1e-3)  # type: ignore[arg-type]


def test_free_events_identities_derived_events_and_metrics() -> None:
    drawn = net_drawing(MODEL, EVENTS, SHARES)
    kinds = {node.name: (node.kind, node.column) for node in drawn.nodes}
    assert all(kinds[part] == ("free", 0) for part in PARTS)
    assert kinds["top.slots"] == ("derived", 2) and kinds["front"] == ("metric", 3)
    (sums,) = (name for name, (kind, _) in kinds.items() if kind == "sum")
    assert {(part, sums) for part in PARTS} | {(sums, "top.slots")} <= set(drawn.edges)
    assert ("top.front", "front") in drawn.edges and ("top.slots", "front") in drawn.edges


def test_sums_of_sums_lie_further_right() -> None:
    claims = (identity("a", "b", "c"), identity("b", "d", "e"), identity("c", "f", relation=">="))
    drawn = net_drawing(Model(DEMO, identities=claims), ["a", "b", "c", "d", "e", "f"])
    column = {node.name: node.column for node in drawn.nodes}
    assert (column["d"], column["b"], column["a"]) == (0, 2, 4)
    assert column["a = b + c"] == 3 and column["b = d + e"] == 1
    assert next(node.kind for node in drawn.nodes if node.name == "c >= f") == "bound"


def test_what_was_rejected_here_is_marked_and_derives_nothing() -> None:
    claim = identity("a", "b", "c")
    verdict = Verdict(claim, False, 0.3, 0.01, 30.0, "off by 30%")
    drawn = net_drawing(Model(DEMO, identities=(claim,)), ["a", "b", "c"], known=[verdict])
    assert {node.name: node.kind for node in drawn.nodes} == {
        "a": "free",
        "b": "free",
        "c": "free",
        claim.name: "rejected",
    }


def test_the_picture_is_svg_and_nothing_overlaps() -> None:
    drawn = net_drawing(MODEL, EVENTS, (*SHARES, "wasted"))
    root = ET.fromstring(svg(drawn))
    boxes = [group.find(f"{NAME}rect") for group in root.iter(f"{NAME}g")]
    assert len(boxes) == len(drawn.nodes) and len(list(root.iter(f"{NAME}path"))) == len(drawn.edges)
    placed = sorted(
        (float(box.get("y", 0)), float(box.get("x", 0)), float(box.get("width", 0))) for box in boxes if box is not None
    )
    for (y, x, width), (other_y, other_x, _) in pairwise(placed):
        assert y != other_y or x + width < other_x
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert all(x >= 0 and x + own <= width and y < height for y, x, own in placed)
    assert {text.text for text in root.iter(f"{NAME}text")} >= {"top.front", "wasted", "counted", "metric"}


def test_odd_names_are_escaped() -> None:
    odd = Model(Catalogue("x<y>", (Event('a<b>&"'),)))
    assert ET.fromstring(svg(net_drawing(odd, ['a<b>&"']))) is not None


def test_the_use_of_rows_hangs_on_metrics_and_on_what_the_kernel_tells() -> None:
    rows = {
        "host/nic": ("net.receive_bytes", "net.transmit_bytes"),
        "host/memory": ("FRONT",),
        "host/s1": ("top.back",),
    }
    drawn = net_drawing(MODEL, (), ("front",), row_sums=rows)
    kinds = {node.name: (node.kind, node.column) for node in drawn.nodes}
    last = max(column for _, column in kinds.values())
    assert all(kinds[row] == ("row", last) for row in rows)
    assert kinds["net.receive_bytes"] == ("plain", last - 1) and kinds["front"] == ("metric", last - 1)
    assert kinds["top.back"][0] == "free" and "FRONT" not in kinds
    assert {
        ("net.receive_bytes", "host/nic"),
        ("net.transmit_bytes", "host/nic"),
        ("front", "host/memory"),
        ("top.back", "host/s1"),
    } <= set(drawn.edges)
    assert {text.text for text in ET.fromstring(svg(drawn)).iter(f"{NAME}text")} >= {"host/nic", "use of a row"}


def test_too_many_nodes() -> None:
    with pytest.raises(InputError, match="too many for a readable picture"):
        net_drawing(Model(DEMO, identities=()), [f"e{n}" for n in range(MAX_NODES + 1)])
