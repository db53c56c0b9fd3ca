"""Drawings of a task graph: by levels for a terminal, as SVG, and as Graphviz text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from symphony.problem import units
from symphony.problem.workload import TaskGraph

_COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00",
    "#c9b800", "#6a3d9a", "#b15928", "#888888", "#1b7837", "#fb9a99",
    "#222222", "#17becf", "#bcbd22", "#7f0000",
)  # fmt: skip


def levels(graph: TaskGraph) -> list[list[int]]:
    """Gangs by level: the length of the longest path from a source."""
    depth = [0] * len(graph.all_gangs)
    parents: list[list[int]] = [[] for _ in graph.all_gangs]
    for source, target, _ in graph.gang_edges:
        if source >= 0:
            parents[target].append(source)
    for gang in graph.order:
        depth[gang] = max((depth[parent] + 1 for parent in parents[gang]), default=0)
    by_level: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for gang, level in enumerate(depth):
        by_level[level].append(gang)
    return by_level


def colours(graph: TaskGraph) -> Mapping[str, str]:
    """A colour for each kernel; from the 17th on they repeat."""
    kernels = dict.fromkeys(task.kernel for task in graph.tasks)
    return {kernel: _COLOURS[number % len(_COLOURS)] for number, kernel in enumerate(kernels)}


def text(graph: TaskGraph, *, most_levels: int = 24, most_marks: int = 24) -> str:
    """A line for each level, in Rich markup: ● is a gang of one, [●●●●] a gang of four workers."""
    kernel_of, colour, lines = _kernels(graph), colours(graph), []
    by_level = levels(graph)
    for number, level in enumerate(by_level[:most_levels]):
        groups: dict[str, list[int]] = {}
        for gang in level:
            groups.setdefault(kernel_of[gang], []).append(gang)
        parts = []
        for kernel, gangs in groups.items():
            marks = [_mark(len(graph.all_gangs[gang].tasks)) for gang in gangs[:most_marks]]
            more = f" … {len(gangs)} in all" if len(gangs) > most_marks else ""
            parts.append(f"[{colour[kernel]}]{''.join(marks)}[/] {kernel}{more}")
        lines.append(f"[dim]{number:>3} │[/] " + "   ".join(parts))
    if len(by_level) > most_levels:
        lines.append(f"[dim]  … │ {len(by_level) - most_levels} more levels[/]")
    return "\n".join(lines)


def dot(graph: TaskGraph) -> str:
    """Graphviz text. The workers of a gang are in a box; the home machine is a cylinder."""
    colour = colours(graph)
    lines = [f"digraph {_quoted(graph.name)} {{", "  node [style=filled, fontname=Helvetica];"]
    if any(edge.source is None for edge in graph.edges):
        lines.append('  "" [label=home, shape=cylinder, fillcolor=white];')
    for task in graph.tasks:
        repeats = f" × {task.units:g}" if task.units != 1 else ""
        label = _quoted(f"{task.name}\n{task.kernel} {task.size:.3g}{repeats}")
        lines.append(f'  {_quoted(task.name)} [label={label}, fillcolor="{colour[task.kernel]}66"];')
    for number, gang in enumerate(graph.gangs):
        members = "; ".join(_quoted(task) for task in gang.tasks)
        lines.append(f"  subgraph cluster_{number} {{ label={_quoted(gang.name)}; {members}; }}")
    for edge in graph.edges:
        label = _quoted(units.show(edge.bytes, "bytes"))
        lines.append(f"  {_quoted(edge.source or '')} -> {_quoted(edge.target)} [label={label}];")
    return "\n".join([*lines, "}", ""])


def svg(graph: TaskGraph) -> str:
    """A self-contained SVG: levels from top to bottom; the width of an edge grows with its bytes."""
    gangs, kernel_of, colour = graph.all_gangs, _kernels(graph), colours(graph)
    rows = _ordered_rows(graph, levels(graph))
    box = [10.0 + 16.0 * len(gang.tasks) for gang in gangs]
    widths = [sum(box[gang] for gang in row) + 14.0 * (len(row) - 1) for row in rows]
    legend_rows = math.ceil(len(colour) / 4)
    width, top = max(*widths, 640.0) + 40, 40.0 + 20 * legend_rows
    height = top + 64 * len(rows)
    x, y = [0.0] * len(gangs), [0.0] * len(gangs)
    for level, row in enumerate(rows):
        at = (width - widths[level]) / 2
        for gang in row:
            x[gang], y[gang] = at + box[gang] / 2, top + 64 * level + 32
            at += box[gang] + 14
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
        f' height="{height:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        f'<text x="20" y="24" font-size="15">{escape(graph.name)}</text>',
    ]
    for number, (kernel, tint) in enumerate(colour.items()):
        left, down = 20 + (width - 40) / 4 * (number % 4), 44 + 20 * (number // 4)
        out.append(f'<circle cx="{left + 5:.1f}" cy="{down - 4:.1f}" r="5" fill="{tint}"/>')
        out.append(f'<text x="{left + 15:.1f}" y="{down:.1f}">{escape(kernel)}</text>')
    most = max((size for _, _, size in graph.gang_edges), default=0.0)
    for source, target, size in graph.gang_edges:
        if source >= 0:
            start, end, half = y[source] + 13, y[target] - 13, (y[target] - y[source]) / 2
            # A vertical edge over several levels would be hidden by the gangs between, so it is bent.
            straight = abs(x[source] - x[target]) < 20
            outwards = 1 if x[source] > width / 2 else -1
            bow = outwards * min(30 * (y[target] - y[source] - 64) / 64, 90) if straight else 0.0
            stroke = 0.6 + 2.4 * math.sqrt(size / most) if most else 0.6
            out.append(
                f'<path d="M{x[source]:.1f} {start:.1f} C{x[source] + bow:.1f} {start + half:.1f}'
                f' {x[target] + bow:.1f} {end - half:.1f} {x[target]:.1f} {end:.1f}" fill="none"'
                f' stroke="#555" stroke-opacity="0.45" stroke-width="{stroke:.2f}"/>'
            )
    for index, members in enumerate(gangs):
        workers, tint = len(members.tasks), colour[kernel_of[index]]
        tip = escape(f"{members.name}: {kernel_of[index]}, {workers} worker{'s' if workers > 1 else ''}")
        left = x[index] - box[index] / 2
        out.append(f"<g><title>{tip}</title>")
        out.append(
            f'<rect x="{left:.1f}" y="{y[index] - 13:.1f}" width="{box[index]:.1f}" height="26" rx="13"'
            f' fill="white" stroke="{tint}"/>'
        )
        for worker in range(workers):
            middle = left + 13 + 16 * worker
            out.append(f'<circle cx="{middle:.1f}" cy="{y[index]:.1f}" r="6" fill="{tint}"/>')
        out.append("</g>")
    return "\n".join([*out, "</svg>", ""])


def _ordered_rows(graph: TaskGraph, rows: list[list[int]]) -> list[list[int]]:
    """Rows with each gang near its parents and children (barycentre heuristic), which makes fewer crossings."""
    near: list[list[int]] = [[] for _ in graph.all_gangs]
    for source, target, _ in graph.gang_edges:
        if source >= 0:
            near[target].append(source)
            near[source].append(target)
    place = {gang: (spot + 0.5) / len(row) for row in rows for spot, gang in enumerate(row)}
    rows = [list(row) for row in rows]
    for sweep in range(4):
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            wanted = {gang: sum(place[g] for g in near[gang]) / len(near[gang]) for gang in row if near[gang]}
            row.sort(key=lambda gang, wanted=wanted: wanted.get(gang, place[gang]))  # type: ignore[misc]
            place |= {gang: (spot + 0.5) / len(row) for spot, gang in enumerate(row)}
    return rows


def _kernels(graph: TaskGraph) -> list[str]:
    kernel = {task.name: task.kernel for task in graph.tasks}
    return [kernel[gang.tasks[0]] for gang in graph.all_gangs]


def _mark(workers: int) -> str:
    return "●" if workers == 1 else rf"\[{'●' * workers}]"


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
