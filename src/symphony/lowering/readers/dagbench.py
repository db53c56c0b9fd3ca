"""Graphs of DAGBench: graph.json with tasks, dependencies and the machines to run them on; a file, or a folder of them.

Costs and speeds are abstract: a task takes cost over speed units of time, a transfer size over speed. A unit of time is
`unit_s` seconds (a millisecond, as in those that were measured), and a unit of size a byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symphony.lowering.readers.parsing import (
    BadRecord,
    any_under,
    listed,
    load_json,
    member,
    number,
    of_format,
    record,
    table,
    text,
)
from symphony.lowering.readers.reading import Collector, FileContents, Format, read_text
from symphony.problem.errors import DataError
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
    seconds = _unit(unit_s)
    files, others = of_format(path, sniff, ".json")
    graphs, machines, metadata = [], [], {}
    for file in files:
        with record(collector, str(file)):
            document = load_json(file)
            graphs.append(_graph(document, file, collector))
            machines.append(_machines(document, file, collector))
            metadata[graphs[-1].name] = _metadata(file, graphs[-1], collector)
    notes = [
        *others,
        f"A task of cost 1 takes {seconds:g} s at speed 1; a unit of size is a byte.",
        "A task's kernel is its name without the numbers at the end; what it costs is its size, on every machine.",
    ]
    topology, profiles = None, {"cpu": Profile(per_work_s=seconds, demand={"compute": 1.0})}
    with_machines = [given for given in machines if given]
    if with_machines and all(given == machines[0] for given in machines):
        topology, of_kinds, about = _topology(with_machines[0], _entry(path), seconds)
        profiles = {**of_kinds, **profiles}
        notes += [*about, "On any other CPU, a task takes as long as at speed 1."]
    else:
        missing = (
            "The graphs have unlike machines; read them one by one for a topology."
            if with_machines
            else ("There are no machines in it.")
        )
        notes.append(f"{missing} Times are those of a CPU of speed 1.")
    names = dict.fromkeys(task.kernel for graph in graphs for task in graph.tasks)
    return FileContents(
        "dagbench",
        str(path),
        tuple(Kernel(name, profiles) for name in names),
        tuple(graphs),
        topology=topology,
        tables={"metadata": metadata, "links": with_machines[0].link if topology else {}},
        notes=tuple(notes),
        problems=tuple(collector.problems),
    )


def _entry(path: Path) -> str:
    """What the machines of a file are called: the folder that it lies in, which has the name of the entry."""
    return (path if path.is_dir() else path.absolute().parent).name or "machines"


def _graph(document: Any, file: Path, collector: Collector) -> TaskGraph:
    where = str(file)
    tasks: dict[str, Task] = {}
    given = listed(member(document, "task_graph", "tasks", where=where), "task_graph.tasks", where=where)
    for index, entry in enumerate(given):
        with record(collector, f"{where}: task_graph.tasks[{index}]"):
            name = text(table(entry).get("name"), "name")
            if name in tasks:
                raise BadRecord(f"task {name!r} is given twice")
            tasks[name] = Task(name, _category(name), number(entry.get("cost"), "cost", above_zero=True))
    edges: dict[tuple[str, str], Edge] = {}
    given = listed(member(document, "task_graph", "dependencies", where=where), "dependencies", where=where)
    for index, entry in enumerate(given):
        with record(collector, f"{where}: task_graph.dependencies[{index}]"):
            source, target = (text(table(entry).get(end), end) for end in ("source", "target"))
            for end in (source, target):
                if end not in tasks:
                    raise BadRecord(f"{end!r} is no task, or was left out")
            if (source, target) in edges:
                raise BadRecord(f"the dependency of {target!r} on {source!r} is given twice")
            edges[source, target] = Edge(source, target, number(entry.get("size"), "size"))
    name = document.get("name")
    named = name if isinstance(name, str) and name else file.absolute().parent.name
    return TaskGraph(named, tuple(tasks.values()), tuple(edges.values()))


def _machines(document: Any, file: Path, collector: Collector) -> _Machines | None:
    """The machines, if the file has any."""
    where = str(file)
    if document.get("network") is None:
        return None
    speed: dict[str, float] = {}
    link: dict[tuple[str, str], float] = {}
    given = member(document, "network", "nodes", where=where)
    for index, entry in enumerate(listed(given, "network.nodes", where=where)):
        with record(collector, f"{where}: network.nodes[{index}]"):
            name = text(table(entry).get("name"), "name")
            if name in speed:
                raise BadRecord(f"{name!r} is given twice")
            speed[name] = number(entry.get("speed"), "speed", above_zero=True)
    given = member(document, "network", "edges", where=where)
    for index, entry in enumerate(listed(given, "network.edges", where=where)):
        with record(collector, f"{where}: network.edges[{index}]"):
            source, target = (text(table(entry).get(end), end) for end in ("source", "target"))
            for end in (source, target):
                if end not in speed:
                    raise BadRecord(f"{end!r} is no machine, or was left out")
            link[source, target] = number(entry.get("speed"), "speed", above_zero=True)
    return _Machines(speed, link) if speed else None


def _topology(machines: _Machines, name: str, unit_s: float) -> tuple[Topology, dict[str, Profile], list[str]]:
    """A machine with one device and one network interface for each, the profile of each kind of device, and notes."""
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
        "A machine's interface has the speed of its fastest link, shared by all; a transfer goes at the slower of both"
        " ends, without latency.",
    ]
    faster = {
        pair: min(nic[pair[0]], nic[pair[1]]) / speed
        for pair, speed in machines.link.items()
        if pair[0] != pair[1] and min(nic[pair[0]], nic[pair[1]]) > speed
    }
    if faster:
        notes.append(
            f"{len(faster)} links are faster so than the file says, up to {max(faster.values()):g} times: the speed of"
            " each is in the table."
        )
    return topology, profiles, notes


def _metadata(file: Path, graph: TaskGraph, collector: Collector) -> dict[str, str]:
    """What metadata.yaml says of the whole; what it says of the graph's size is checked."""
    beside = file.with_name("metadata.yaml")
    if not beside.is_file():
        return {}
    written = read_text(beside)
    for what, found in (("num_tasks", len(graph.tasks)), ("num_edges", len(graph.edges))):
        said = re.search(rf"^  {what}: (\d{{1,9}})\s*$", written, re.MULTILINE)
        if said and int(said[1]) != found:
            collector.bad(str(beside), f"{what} is {said[1]}, and the graph has {found}")
    return dict(re.findall(r"^(id|name|completeness|cost_model): *(\S.*)$", written, re.MULTILINE))


def _category(name: str) -> str:
    """The kind of work that a task's name says: without the numbers at the end."""
    shorter = _NUMBER_SUFFIX.sub("", name)
    return _category(shorter) if shorter and shorter != name else shorter or name


def _unit(unit_s: float | str) -> float:
    try:
        seconds = float(unit_s)
        if 0 < seconds <= 1e6:
            return seconds
    except ValueError:
        pass
    raise DataError(f"unit_s is {unit_s!r}", where="dagbench", hint="write seconds above 0, such as unit_s=0.001")


def sniff(path: Path, head: bytes) -> bool:
    """JSON with a task graph; or a folder with such a file."""
    if path.is_dir():
        return any_under(path, sniff, ".json")
    return head.lstrip()[:1] == b"{" and b'"task_graph"' in head and b'"cost"' in head


DAGBENCH_FORMAT = Format("dagbench", "graphs from papers and measured traces (DAGBench)", sniff, read)
