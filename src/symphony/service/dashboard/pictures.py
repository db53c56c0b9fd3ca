"""Geometry of the pictures: a machine with its sockets, switches, accelerators and rows; the graph of a job.

Only positions are computed here; the templates draw them as SVG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import NamedTuple

from symphony.problem.topology import Device, Topology

LINE, INDENT, LABEL, BAR, PAD = 20, 12, 128, 66, 10  # pixels
# kind of a row -> where it is drawn, and what is written beside its bar
LEVELS: Mapping[str, tuple[str, str]] = {
    "compute": ("device", "use"),
    "device_memory": ("device", "mem"),
    "link": ("device", "link"),
    "switch": ("switch", "up"),
    "cache": ("socket", "llc"),
    "memory": ("socket", "mem"),
    "interconnect": ("machine", "sock"),
    "peer": ("machine", "peer"),
    "nic": ("machine", "nic"),
    "uplink": ("machine", "rack"),
}
NODE_W, NODE_H, GAP_X, GAP_Y = 132, 24, 36, 8
MAX_DRAWN_TASKS = 300  # of a graph; larger ones are summarised by kernel


class RowBar(NamedTuple):
    x: int
    y: int
    row: int
    name: str
    label: str


class Title(NamedTuple):
    x: int
    y: int
    text: str
    device: int  # -1: it is not a device


@dataclass
class MachinePicture:
    name: str
    width: int = 0
    height: int = 0
    bars: list[RowBar] = field(default_factory=list)
    titles: list[Title] = field(default_factory=list)
    branches: list[tuple[int, int, int]] = field(default_factory=list)  # of the tree: x, from y, to y

    def line(self, x: int, y: int, text: str, rows: Sequence[tuple[int, str, str]], device: int = -1) -> None:
        """A title with bars to its right; `rows`: index, name and label of each."""
        self.titles.append(Title(x, y, text, device))
        first = (x // COLUMN) * COLUMN + PAD + LABEL
        self.bars += [RowBar(first + k * BAR, y, row, name, label) for k, (row, name, label) in enumerate(rows)]
        self.width = max(self.width, first + len(rows) * BAR + PAD)


COLUMN = LABEL + 3 * BAR + 2 * PAD  # width of a socket


class TopologyPictures:
    """The pictures of all machines, each made when it is first shown."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        index = {row.name: number for number, row in enumerate(topology.resources)}
        kinds = {row.name: row.kind for row in topology.resources}
        # By level and place: the rows that are drawn there. Each row is drawn once, where it is first met; an uplink,
        # which several machines share, with each of them.
        self._rows: dict[tuple[str, str], dict[str, tuple[int, str, str]]] = {}
        self.devices: dict[str, list[int]] = {}  # of each machine
        for number, device in enumerate(topology.devices):
            self.devices.setdefault(device.machine, []).append(number)
            for hop in device.route:
                level, label = LEVELS[kinds[hop.resource]]
                self._rows.setdefault((level, _place(device, level)), {})[hop.resource] = (
                    index[hop.resource],
                    hop.resource,
                    label,
                )
        self._made: dict[str, MachinePicture] = {}

    def rows_of(self, machine: str) -> list[int]:
        return sorted({bar.row for bar in self.machine(machine).bars})

    def machine(self, name: str) -> MachinePicture:
        if name not in self._made:
            self._made[name] = self._draw(name)
        return self._made[name]

    def _draw(self, name: str) -> MachinePicture:
        picture = MachinePicture(name)
        picture.line(PAD, LINE, name, self._at("machine", name))
        sockets: dict[str, dict[str, list[int]]] = {}  # devices by socket and switch
        for number in self.devices[name]:
            device = self._topology.devices[number]
            sockets.setdefault(device.socket, {}).setdefault(device.switch, []).append(number)
        bottom = LINE
        for column, (socket, switches) in enumerate(sockets.items()):
            x, y = column * COLUMN + PAD, 2 * LINE
            picture.line(x, y, _short(socket, name), self._at("socket", socket))
            for switch, devices in switches.items():
                own, inset = self._at("switch", switch), 0
                top = y
                if own:
                    y += LINE
                    top, inset = y, INDENT
                    picture.line(x + INDENT, y, _short(switch, name), own)
                for number in devices:
                    y += LINE
                    device = self._topology.devices[number]
                    here = x + INDENT + inset
                    picture.line(here, y, _short(device.name, name), self._at("device", device.name), number)
                picture.branches.append((x + inset + 4, top + 6, y - 4))
            bottom = max(bottom, y)
        picture.height = bottom + LINE
        return picture

    def _at(self, level: str, place: str) -> list[tuple[int, str, str]]:
        return list(self._rows.get((level, place), {}).values())


def _place(device: Device, level: str) -> str:
    return device.name if level == "device" else str(getattr(device, level))


def _short(name: str, machine: str) -> str:
    """A name within a machine, without the machine's."""
    return name.removeprefix(machine).lstrip("/.:-") or name


class DrawnTask(NamedTuple):
    x: int
    y: int
    task: int


class DrawnEdge(NamedTuple):
    x1: int
    y1: int
    x2: int
    y2: int


class GraphPicture(NamedTuple):
    width: int
    height: int
    nodes: list[DrawnTask]
    edges: list[DrawnEdge]


def graph_picture(reads: Sequence[Sequence[int]]) -> GraphPicture:
    """A graph in columns: each task is right of all tasks that it reads. `reads[k]`: those of task k."""
    column = [0] * len(reads)
    for task in TopologicalSorter(dict(enumerate(reads))).static_order():
        column[task] = 1 + max((column[source] for source in reads[task]), default=-1)
    filled = [0] * (max(column, default=0) + 1)
    nodes = []
    for task, at in enumerate(column):
        nodes.append(DrawnTask(PAD + at * (NODE_W + GAP_X), PAD + filled[at] * (NODE_H + GAP_Y), task))
        filled[at] += 1
    edges = [
        DrawnEdge(nodes[source].x + NODE_W, nodes[source].y + NODE_H // 2, nodes[task].x, nodes[task].y + NODE_H // 2)
        for task, sources in enumerate(reads)
        for source in sources
    ]
    width = 2 * PAD + len(filled) * (NODE_W + GAP_X) - GAP_X
    return GraphPicture(width, 2 * PAD + max(filled) * (NODE_H + GAP_Y) - GAP_Y, nodes, edges)
