"""Graphs of DAGBench: graph.json with tasks, dependencies and the machines to run them on; a file, or a folder of them.

Costs and speeds are abstract: a task takes cost / speed units of time, a transfer size / speed. A unit of time is
`unit_s` seconds (by default a millisecond, as in the measured graphs), and a unit of size is a byte.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symphony.lowering.readers.parsing import (
    BadRecord,
    file_or_folder,
    files_of_format,
    load_json,
    member_list,
    number,
    record,
    table,
    text,
)
from symphony.lowering.readers.reading import Collector, FileContents, Format, read_text
from symphony.lowering.readers.tables import number as number_cell
from symphony.lowering.readers.tables import option_value
from symphony.problem.topology import RACK, SPANS, Device, DeviceKind, Hop, Resource, Topology
from symphony.problem.workload import Edge, Kernel, Profile, Task, TaskGraph

DEFAULT_UNIT_S = 1e-3
_NUMBER_SUFFIX = re.compile(r"[_-]?\d+$")


@dataclass(frozen=True)
class _Machines:
    """The machines of a file: speed of each, and speed of the link between two."""

    speed: dict[str, float]
    link: dict[tuple[str, str], float]


def read(path: Path, collector: Collector, *, unit_s: float | str = DEFAULT_UNIT_S) -> FileContents:
    """Read a graph and its machines, or every graph in a folder (and the machines, if they are the same for all)."""
    seconds = option_value("unit_s", unit_s, number_cell(1e-9, 1e6))
    files, others = files_of_format(path, _looks_like_dagbench, ".json")
    graphs, machines = [], []
    for file in files:
        with record(collector, str(file)):
            document = load_json(file)
            graphs.append(_graph(document, file, collector))
            machines.append(_machines(document, file, collector))
            _check_metadata(file, graphs[-1], collector)
    notes = [
        *others,
        f"A task of cost 1 takes {seconds:g} s at speed 1; a unit of size is a byte.",
        "A task's kernel is its name without the numbers at the end, and its size is its cost, on every machine.",
    ]
    topology, profiles = None, {"cpu": Profile(per_work_s=seconds, demand={"compute": 1.0})}
    with_machines = [given for given in machines if given]
    if with_machines and all(given == machines[0] for given in machines):
        topology, of_kinds, about = _topology(with_machines[0], _entry(path), seconds)
        profiles = {**of_kinds, **profiles}
        notes += [*about, "On any other CPU, a task takes as long as at speed 1."]
    elif with_machines:
        notes.append("The graphs have different machines; read them one by one for a topology.")
        notes.append("Times are those of a CPU of speed 1.")
    else:
        notes.append("The file has no machines. Times are those of a CPU of speed 1.")
    names = dict.fromkeys(task.kernel for graph in graphs for task in graph.tasks)
    kernels = tuple(Kernel(name, profiles) for name in names)
    return FileContents(kernels=kernels, graphs=tuple(graphs), topology=topology, notes=tuple(notes))


def _entry(path: Path) -> str:
    """The name of the entry, which is that of its folder."""
    return (path if path.is_dir() else path.absolute().parent).name or "machines"


def _graph(document: Any, file: Path, collector: Collector) -> TaskGraph:
    where = str(file)
    tasks: dict[str, Task] = {}
    for index, entry in enumerate(member_list(document, "task_graph", "tasks", where=where)):
        with record(collector, f"{where}: task_graph.tasks[{index}]"):
            name = text(table(entry).get("name"), "name")
            if name in tasks:
                raise BadRecord(f"task {name!r} is given twice")
            tasks[name] = Task(name, _category(name), number(entry.get("cost"), "cost", above_zero=True))
    edges: dict[tuple[str, str], Edge] = {}
    for index, entry in enumerate(member_list(document, "task_graph", "dependencies", where=where)):
        with record(collector, f"{where}: task_graph.dependencies[{index}]"):
            source, target = _ends(entry, tasks, "task")
            if (source, target) in edges:
                raise BadRecord(f"the dependency of {target!r} on {source!r} is given twice")
            edges[source, target] = Edge(source, target, number(entry.get("size"), "size"))
    name = document.get("name")
    named = name if isinstance(name, str) and name else file.absolute().parent.name
    return TaskGraph(named, tuple(tasks.values()), tuple(edges.values()))


def _ends(entry: Any, known: Container[str], what: str) -> tuple[str, str]:
    """Source and target of a dependency or a link."""
    source, target = (text(table(entry).get(end), end) for end in ("source", "target"))
    for end in (source, target):
        if end not in known:
            raise BadRecord(f"{end!r} is not a {what}, or was left out")
    return source, target


def _machines(document: Any, file: Path, collector: Collector) -> _Machines | None:
    """The machines, if the file has any."""
    where = str(file)
    if document.get("network") is None:
        return None
    speed: dict[str, float] = {}
    link: dict[tuple[str, str], float] = {}
    for index, entry in enumerate(member_list(document, "network", "nodes", where=where)):
        with record(collector, f"{where}: network.nodes[{index}]"):
            name = text(table(entry).get("name"), "name")
            if name in speed:
                raise BadRecord(f"{name!r} is given twice")
            speed[name] = number(entry.get("speed"), "speed", above_zero=True)
    for index, entry in enumerate(member_list(document, "network", "edges", where=where)):
        with record(collector, f"{where}: network.edges[{index}]"):
            ends = _ends(entry, speed, "machine")
            link[ends] = number(entry.get("speed"), "speed", above_zero=True)
    return _Machines(speed, link) if speed else None


def _topology(machines: _Machines, name: str, unit_s: float) -> tuple[Topology, dict[str, Profile], list[str]]:
    """A machine with one device and one NIC for each, the profile of each kind of device, and notes."""
    nic: dict[str, float] = {}
    for (source, target), speed in machines.link.items():
        if source != target:
            for end in (source, target):
                nic[end] = max(nic.get(end, 0.0), speed)
    kinds: dict[float, DeviceKind] = {}
    resources, devices = [], []
    for machine, speed in machines.speed.items():
        kind = kinds.setdefault(speed, DeviceKind(machine, "cpu"))
        resources.append(Resource(f"{machine}/compute", "compute", 1.0, machine))
        route = [Hop(f"{machine}/compute")]
        if machine in nic:
            resources.append(Resource(f"{machine}/nic", "nic", nic[machine] / unit_s, machine))
            route.append(Hop(f"{machine}/nic", (RACK,)))
        devices.append(Device(machine, kind.name, machine, name, machine, machine, tuple(route)))
    profiles = {kind.name: Profile(per_work_s=unit_s / speed, demand={"compute": 1.0}) for speed, kind in kinds.items()}
    topology = Topology(name, tuple(kinds.values()), tuple(resources), tuple(devices), (0.0,) * len(SPANS))
    notes = [
        "A machine's NIC has the speed of its fastest link, shared by all its links; a transfer runs at the speed of"
        " the slower of its two ends, without latency.",
    ]
    faster = {
        pair: min(nic[pair[0]], nic[pair[1]]) / speed
        for pair, speed in machines.link.items()
        if pair[0] != pair[1] and min(nic[pair[0]], nic[pair[1]]) > speed
    }
    if faster:
        notes.append(f"This makes {len(faster)} links faster than in the file, up to {max(faster.values()):g} times.")
    return topology, profiles, notes


def _check_metadata(file: Path, graph: TaskGraph, collector: Collector) -> None:
    """Report a graph whose size is not the one that metadata.yaml states."""
    metadata = file.with_name("metadata.yaml")
    if not metadata.is_file():
        return
    written = read_text(metadata)
    for what, count in (("num_tasks", len(graph.tasks)), ("num_edges", len(graph.edges))):
        stated = re.search(rf"^  {what}: (\d{{1,9}})\s*$", written, re.MULTILINE)
        if stated and int(stated[1]) != count:
            collector.bad(str(metadata), f"{what} is {stated[1]}, and the graph has {count}")


def _category(name: str) -> str:
    """The kernel in a task's name: the name without the numbers at the end."""
    shorter = _NUMBER_SUFFIX.sub("", name)
    return _category(shorter) if shorter and shorter != name else shorter or name


def _looks_like_dagbench(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and b'"task_graph"' in head and b'"cost"' in head


DAGBENCH_FORMAT = Format(
    "dagbench", "graphs from papers and measured traces (DAGBench)", file_or_folder(_looks_like_dagbench, ".json"), read
)
