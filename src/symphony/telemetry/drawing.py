"""A network of counts as a picture, in columns: free events, identities, derived events, metrics, and rows' use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from symphony.problem.errors import InputError
from symphony.problem.topology import Topology
from symphony.telemetry import bayes_net, reading, rows, verdicts
from symphony.telemetry.event_selection import TIME_EVENTS, default_selection, expand
from symphony.telemetry.events import Catalogue, is_pattern
from symphony.telemetry.expressions import key
from symphony.telemetry.gate import Verdict
from symphony.telemetry.identities import Identity
from symphony.telemetry.naming import kind as who_counts
from symphony.telemetry.reading import Model

Kind = Literal["free", "plain", "derived", "sum", "link", "bound", "rejected", "metric", "row"]

MAX_NODES = 400  # nodes that fit a readable picture
_CHARACTER, _ROW, _HEIGHT, _GAP, _MARGIN = 6.6, 24.0, 17.0, 70.0, 16.0  # pixels
_ORDERING_PASSES = 12  # of the barycentre heuristic that places nodes next to their neighbours
_STYLES: Mapping[Kind, tuple[str, str, str]] = {  # fill, border, legend
    "free": ("#0072B2", "#0072B2", "counted"),
    "plain": ("#D9EEFA", "#56B4E9", "counter of the kernel or a GPU"),
    "derived": ("#FFFFFF", "#0072B2", "derived"),
    "sum": ("#E8E8E8", "#888888", "identity that defines a sum"),
    "link": ("#FFF3D6", "#E69F00", "approximate identity"),
    "bound": ("#FFFFFF", "#999999", "bound"),
    "rejected": ("#FFFFFF", "#C1121F", "rejected on this CPU"),
    "metric": ("#009E73", "#009E73", "metric"),
    "row": ("#6A4C93", "#6A4C93", "use of a row"),
}


@dataclass(frozen=True)
class Node:
    """An event, an identity, a metric, or the use of a row."""

    name: str
    kind: Kind
    column: int
    about: str = ""  # tooltip

    @property
    def label(self) -> str:
        if self.kind in ("sum", "link", "bound", "rejected"):
            return {"bound": "≥", "link": "≈"}.get(self.kind, "=" if " = " in self.name else "≥")
        return self.name


@dataclass(frozen=True)
class NetDrawing:
    """Nodes in columns, and edges between them."""

    title: str
    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]  # names

    def as_json(self) -> dict[str, Any]:
        nodes = [{"name": n.name, "kind": n.kind, "column": n.column, "about": n.about} for n in self.nodes]
        return {"title": self.title, "nodes": nodes, "edges": [{"from": a, "to": b} for a, b in self.edges]}


def draw(
    catalogue: str | None = None,
    events: str | None = None,
    metrics: Sequence[str] | None = None,
    rows_of: tuple[Topology, str] | None = None,
) -> tuple[NetDrawing, list[str]]:
    """The network of a catalogue (default: this CPU's), and the rows whose use no counter shows.

    `events`: a pattern of names; `metrics`: names, groups or patterns; without both, those that `symphony stat` shows
    by default. `rows_of`: a topology and one of its machines, whose resource rows are drawn as well.
    """
    model = reading.model(catalogue)
    chosen: tuple[str, ...] = ()
    if events is not None:
        chosen = tuple(dict.fromkeys(key(event.name) for event in model.catalogue.events_like(events)))
        if not chosen:
            raise InputError(f"{model.catalogue.name} has no event with {events!r} in its name", hint="--events 'l2*'")
    if events is None and metrics is None:
        model, default = default_selection(model)
        computed = default.metrics
    else:
        computed = _expanded(model.catalogue, metrics or ())
    used = rows.metrics_by_row(*rows_of, model.catalogue) if rows_of else {}
    unknown = [row.name for row in rows.rows_of(*rows_of) if row.name not in used] if rows_of else []
    return net_drawing(model, chosen, computed, verdicts.load(model.catalogue.name), used), unknown


def _expanded(catalogue: Catalogue, patterns: Sequence[str]) -> tuple[str, ...]:
    """Metrics by name, group or pattern."""
    names: list[str] = []
    for pattern in patterns:
        fitting = [metric.name for metric in catalogue.metrics_like(pattern)] if is_pattern(pattern) else [pattern]
        if not fitting:
            raise InputError(f"{catalogue.name} has no metric that matches {pattern!r}", hint="--metrics 'tma_*'")
        names += fitting
    return expand(catalogue, names)


def net_drawing(
    model: Model,
    events: Sequence[str],
    metrics: Sequence[str] = (),
    known: Iterable[Verdict] = (),
    row_sums: Mapping[str, Sequence[str]] | None = None,
) -> NetDrawing:
    """The network of some events, and metrics of them. Identities are taken to hold unless a verdict rejects them.

    `row_sums`: rows of a topology, each with the metrics and events whose sum is its use (`rows.metrics_by_row`).
    """
    rejected = {verdict.identity.name for verdict in known if verdict.tested and not verdict.accepted}
    own = {key(metric.name): metric.name for metric in model.catalogue.metrics}
    used_by = {row: [own.get(key(name), name) for name in by] for row, by in (row_sums or {}).items()}
    row_inputs = dict.fromkeys(name for by in used_by.values() for name in by)
    needed = {
        name: _needed(model, name) for name in dict.fromkeys([*metrics, *(n for n in row_inputs if key(n) in own)])
    }
    plain = [name for name in row_inputs if name not in needed and who_counts(name) != "hardware"]
    counted = [name for name in row_inputs if name not in needed and name not in plain]
    everything = dict.fromkeys([*events, *counted, *(event for some in needed.values() for event in some)])
    claims = model.claims(tuple(everything))
    net = bayes_net.build(everything, [claim for claim in claims if claim.name not in rejected])
    depth = _depths(net)
    nodes = [Node(event, "derived" if depth[event] else "free", 2 * depth[event]) for event in net.events]
    edges: list[tuple[str, str]] = []
    made = _made(net, depth)
    kinds: list[tuple[Kind, Sequence[Identity]]] = [
        ("sum", net.exact),
        ("link", net.soft),
        ("bound", net.bounds),
        ("rejected", [claim for claim in claims if claim.name in rejected]),
    ]
    for kind, identities in kinds:
        for one in identities:
            total = made.get(one.name) if kind == "sum" else None
            column = 2 * depth[total] - 1 if total else 1 + 2 * max(depth[event] for event in one.events)
            nodes.append(Node(one.name, kind, column, f"{one.source}: {one.why}" if one.why else one.source))
            edges += [(event, one.name) for event in one.events if event != total]
            edges += [(one.name, total)] if total else []
    last = 1 + max((node.column for node in nodes), default=0)
    for name, some in needed.items():
        listed = model.catalogue.metric(name)
        nodes.append(Node(name, "metric", last, listed.description or listed.expression))
        edges += [(event, name) for event in some]
    nodes += [Node(name, "plain", last) for name in plain]  # only rows depend on them, so they are drawn next to those
    for name, by in used_by.items():
        nodes.append(Node(name, "row", last + 1, f"used by {' + '.join(by)}, as a share of its capacity"))
        edges += [(one, name) for one in by]
    if len(nodes) > MAX_NODES:
        raise InputError(
            f"{len(nodes)} nodes are too many for a readable picture", hint="select fewer: --events 'l2_rqsts.*'"
        )
    return NetDrawing(model.catalogue.name, tuple(nodes), tuple(edges))


def _needed(model: Model, metric: str) -> list[str]:
    return [event for event in model.catalogue.needed([metric], platform=model.platform) if event not in TIME_EVENTS]


def _made(net: bayes_net.BayesNet, depth: Mapping[str, int]) -> dict[str, str]:
    """The event that each exact identity defines: the deepest one that no other identity defines."""
    found: dict[str, str] = {}
    for one in net.exact:
        free = [event for event in one.events if depth[event] and event not in found.values()]
        if free:
            found[one.name] = max(free, key=lambda event: depth[event])
    return found


def _depths(net: bayes_net.BayesNet) -> dict[str, int]:
    """The number of identities between an event and the free events; 0 for free events."""
    depth = dict.fromkeys(net.free, 0)
    waiting = [one for one in net.exact]
    while waiting:
        ready = [one for one in waiting if sum(event not in depth for event in one.events) <= 1] or waiting[:1]
        for one in ready:
            unknown = [event for event in one.events if event not in depth]
            level = 1 + max((depth[event] for event in one.events if event in depth), default=0)
            depth.update(dict.fromkeys(unknown, level))
        waiting = [one for one in waiting if one not in ready]
    return {event: depth.get(event, 1) for event in net.events}


# --- The picture -------------------------------------------------------------------------------------------


def svg(drawn: NetDrawing) -> str:
    """The picture; tooltips state identities and metrics."""
    columns = _columns(drawn)
    widths = [max(_width(node) for node in column) for column in columns]
    tallest = max(len(column) for column in columns)
    gap = max(_GAP, 6.0 * tallest)  # room for many edges
    lefts = [_MARGIN + sum(widths[:at]) + gap * at for at in range(len(columns))]
    top = 2 * _MARGIN + 14
    boxes: dict[str, tuple[float, float, float]] = {}  # left, middle, width
    for left, width, column in zip(lefts, widths, columns, strict=True):
        first = top + (tallest - len(column)) * _ROW / 2
        for row, node in enumerate(column):
            own = _width(node)
            boxes[node.name] = (left + (width - own) / 2, first + row * _ROW + _ROW / 2, own)
    width = max(lefts[-1] + widths[-1] + _MARGIN, 900.0)
    height = top + tallest * _ROW + 3 * _MARGIN
    kinds = {node.name: node.kind for node in drawn.nodes}
    shapes = [_edge(boxes[a], boxes[b], kinds[a], kinds[b]) for a, b in drawn.edges]
    shapes += [_box(node, *boxes[node.name]) for node in drawn.nodes]
    title = f'<text x="{_MARGIN}" y="{_MARGIN + 8}" font-size="13" font-weight="bold">{escape(drawn.title)}</text>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="11">',
            '<rect width="100%" height="100%" fill="#FFFFFF"/>',
            title,
            *shapes,
            *_legend(drawn, height - _MARGIN),
            "</svg>",
            "",
        ]
    )


def _columns(drawn: NetDrawing) -> list[list[Node]]:
    """Nodes by column, each near its neighbours."""
    numbers = sorted({node.column for node in drawn.nodes})
    columns = [[node for node in drawn.nodes if node.column == number] for number in numbers]
    near: dict[str, list[str]] = {node.name: [] for node in drawn.nodes}
    for a, b in drawn.edges:
        near[a].append(b)
        near[b].append(a)
    for step in range(_ORDERING_PASSES):
        height = {node.name: (row + 0.5) / len(column) for column in columns for row, node in enumerate(column)}
        for column in columns if step % 2 else columns[::-1]:
            column.sort(key=lambda node: _mean([height[other] for other in near[node.name]], height[node.name]))
            height |= {node.name: (row + 0.5) / len(column) for row, node in enumerate(column)}
    return columns


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _width(node: Node) -> float:
    return 14 + _CHARACTER * len(node.label)


def _box(node: Node, left: float, middle: float, width: float) -> str:
    fill, border, _ = _STYLES[node.kind]
    ink = "#FFFFFF" if fill == border else "#222222"
    dash = ' stroke-dasharray="3 2"' if node.kind in ("bound", "rejected", "link") else ""
    about = f"{node.name}\n{node.about}" if node.about else node.name
    return (
        f"<g><title>{escape(about)}</title>"
        f'<rect x="{left:.1f}" y="{middle - _HEIGHT / 2:.1f}" width="{width:.1f}" height="{_HEIGHT}" rx="4" '
        f'fill="{fill}" stroke="{border}"{dash}/>'
        f'<text x="{left + width / 2:.1f}" y="{middle + 4:.1f}" fill="{ink}" text-anchor="middle">'
        f"{escape(node.label)}</text></g>"
    )


def _edge(start: tuple[float, float, float], end: tuple[float, float, float], a: Kind, b: Kind) -> str:
    (x0, y0, width), (x1, y1, _) = start, end
    if x0 < x1:
        x0 += width
    else:
        x1 += end[2]
    bend = (x1 - x0) / 2
    colour = {"row": "#B7A5CC", "metric": "#7FCFB9", "rejected": "#E5A0A6", "bound": "#CCCCCC", "link": "#F0CF8A"}.get(
        b, "#8DB9D6"
    )
    dash = ' stroke-dasharray="3 2"' if b in ("bound", "rejected", "link") else ""
    path = f"M{x0:.1f},{y0:.1f} C{x0 + bend:.1f},{y0:.1f} {x1 - bend:.1f},{y1:.1f} {x1:.1f},{y1:.1f}"
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.1"{dash}/>'


def _legend(drawn: NetDrawing, y: float) -> list[str]:
    found, x = [], _MARGIN
    for kind, (fill, border, text) in _STYLES.items():
        if any(node.kind == kind for node in drawn.nodes):
            found.append(
                f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="14" height="11" rx="3" fill="{fill}" stroke="{border}"/>'
                f'<text x="{x + 20:.1f}" y="{y:.1f}" fill="#444444">{text}</text>'
            )
            x += 42 + _CHARACTER * len(text)
    return found
