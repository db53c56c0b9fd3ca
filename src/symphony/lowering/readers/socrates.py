"""Systems on chip and their jobs, as SoCRATES (and DS3) write them: a SoC file, a job file, or a folder with both.

A SoC file lists processing elements with the functions that they support, in microseconds, and communication
bandwidths; it becomes a topology and kernels. A job file lists tasks, predecessors and communication volumes; it
becomes a graph.

A volume over a bandwidth is microseconds; the files give neither a unit. We call them bytes and bytes per microsecond.
Elements without a bandwidth of their own between them exchange data through the memory: a write, then a read. Both are
one transfer here, at half the bandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from symphony.lowering.readers.parsing import BadRecord, any_under, bare_name, of_format, parsed, record, whole
from symphony.lowering.readers.reading import Collector, FileContents, Format, read_head, read_text
from symphony.problem.errors import DataError
from symphony.problem.topology import SPANS, SWITCH, Device, DeviceKind, Hop, Resource, Topology
from symphony.problem.workload import Edge, Kernel, Profile, Task, TaskGraph

_MEMORY_TYPE = "mem"


@dataclass(frozen=True)
class Element:
    """A processing element, or the memory."""

    name: str
    type: str  # "cpu", "acc", "mem", …
    id: int
    capacity: int  # tasks at once
    functions: dict[str, tuple[float, float]] = field(default_factory=dict)  # name -> (seconds, power as given)
    points: tuple[tuple[float, float], ...] = ()  # operating points: (Hz, V)


def read(path: Path, collector: Collector, *, soc: str = "") -> FileContents:
    """Read a SoC, a job or a folder of them. A job comes with the SoC of its folder; `soc` names one of several."""
    files, others = of_format(path, sniff, ".txt")
    jobs = [file for file in files if not _is_soc(file)]
    chip = _chip(path, files, soc)
    graphs, times = [], {}
    for file in jobs:
        with record(collector, str(file)):
            graph, limits_of = _job(file, bare_name(file, path), collector)
            graphs.append(graph)
            times[graph.name] = limits_of
    notes = list(others)
    kernels: tuple[Kernel, ...] = ()
    topology = None
    elements: tuple[Element, ...] = ()
    if chip:
        elements, bands = _soc(chip, collector)
        topology, kernels = _lower(chip, elements, bands)
        notes += [
            f"Elements and times are those of {chip.name}, at its highest operating point; power is in the table only.",
            "Volumes are taken as bytes, bandwidths as bytes per microsecond; transfers have no latency.",
            "What goes through the memory is written and read: an element's link has half its bandwidth to the memory."
            " Between elements of unlike bandwidth that is slower than one after the other would be.",
        ]
    else:
        notes.append("There is no SoC file: the kernels of the graphs have no times.")
    if graphs:
        notes.append("Earliest starts and deadlines are in the table only; jobs arrive as the user says.")
    lacking = sorted({task.kernel for graph in graphs for task in graph.tasks} - {kernel.name for kernel in kernels})
    if chip and lacking:
        notes.append(f"No element of {chip.name} supports {', '.join(lacking)}.")
    return FileContents(
        "socrates",
        str(path),
        kernels,
        tuple(graphs),
        topology=topology,
        tables={"elements": elements, "start_and_deadline": times},
        notes=tuple(notes),
        problems=tuple(collector.problems),
    )


def _chip(path: Path, files: list[Path], wanted: str) -> Path | None:
    """The SoC file to use: the one given, or the only one in the folder, or the one that is asked for."""
    chips = [file for file in files if _is_soc(file)]
    if not path.is_dir() and not chips:
        beside = (file for file in sorted(path.absolute().parent.glob("*.txt")) if file.name != path.name)
        chips = [file for file in beside if _is_soc(file)]
    if wanted:
        chips = [file for file in chips if wanted in (file.name, file.stem)]
        if not chips:
            raise DataError(
                f"there is no SoC file {wanted!r}", where=str(path), hint="write soc=NAME of one in the folder"
            )
    if len(chips) > 1:
        names = ", ".join(file.stem for file in chips)
        raise DataError(f"it has several SoCs: {names}", where=str(path), hint=f"say soc={chips[0].stem}")
    return chips[0] if chips else None


def _lines(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Every line that says something, in words, with where it is."""
    for number, line in enumerate(read_text(file).splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            yield f"{file}: line {number}", words


# --- SoC files -----------------------------------------------------------------------------------------------


def _soc(file: Path, collector: Collector) -> tuple[tuple[Element, ...], dict[tuple[int, int], float]]:
    """Elements, and bandwidths between them in bytes/s."""
    elements: dict[int, Element] = {}
    promised: dict[int, tuple[str, int]] = {}
    bands: dict[tuple[int, int], float] = {}
    at = -1  # the element that functions and operating points belong to; -1: to none
    for where, words in _lines(file):
        with record(collector, where):
            if words[0] == "add_new_resource":
                at = -1
                if len(words) not in (6, 7):
                    raise BadRecord("a resource has a type, a name, an id, a capacity and a number of functions")
                number, capacity = whole(words[3], "id"), whole(words[4], "capacity")
                if number in elements or any(words[2] == element.name for element in elements.values()):
                    raise BadRecord(f"resource {words[2]} (id {number}) is given twice")
                if capacity == 0:
                    raise BadRecord("its capacity is 0")
                elements[number] = Element(words[2], words[1].lower(), number, capacity)
                promised[number] = where, whole(words[5], "number of functions")
                at = number
            elif words[0] == "comm_band":
                if len(words) != 4:
                    raise BadRecord("comm_band has a source, a destination and a bandwidth")
                pair = whole(words[1], "source"), whole(words[2], "destination")
                for end in pair:
                    if end not in elements:
                        raise BadRecord(f"resource {end} is not there, or was left out")
                bands[pair] = parsed(words[3], "bandwidth") * 1e6
            elif at < 0:
                raise BadRecord(f"{words[0]!r} belongs to no resource, or to one that was left out")
            else:
                elements[at] = _more(elements[at], words)
    for number, (where, count) in promised.items():
        if len(elements[number].functions) != count:
            found = len(elements[number].functions)
            collector.bad(where, f"{elements[number].name} has {found} good functions, not the {count} that it says")
    if not any(element.type != _MEMORY_TYPE for element in elements.values()):
        raise DataError("it has no processing element", where=str(file), hint="get the whole file again")
    return tuple(elements.values()), bands


def _more(element: Element, words: list[str]) -> Element:
    """The element with a line more: an operating point, or a function."""
    if len(words) != 3:
        raise BadRecord("a function has a name, a time and a power; an operating point is opp, MHz and mV")
    if words[0] == "opp":
        return replace(
            element, points=(*element.points, (parsed(words[1], "MHz") * 1e6, parsed(words[2], "mV") * 1e-3))
        )
    if words[0] in element.functions:
        raise BadRecord(f"function {words[0]} of {element.name} is given twice")
    seconds = parsed(words[1], "execution time", above_zero=element.type != _MEMORY_TYPE) * 1e-6
    return replace(element, functions={**element.functions, words[0]: (seconds, parsed(words[2], "power"))})


def _lower(
    file: Path, elements: Iterable[Element], bands: dict[tuple[int, int], float]
) -> tuple[Topology, tuple[Kernel, ...]]:
    """Topology and kernels. Elements with the same functions and times are of one kind, called after the first."""
    memories = {element.id for element in elements if element.type == _MEMORY_TYPE}
    working = [element for element in elements if element.type != _MEMORY_TYPE]
    kinds: dict[tuple[object, ...], DeviceKind] = {}
    implementations: dict[str, dict[str, Profile]] = {}
    resources, devices = [], []
    for element in working:
        likeness = (element.type, element.capacity, *sorted((name, of[0]) for name, of in element.functions.items()))
        if likeness not in kinds:
            kinds[likeness] = DeviceKind(element.name, element.type, element.capacity)
            for function, (seconds, _) in element.functions.items():
                profile = Profile(seconds, demand={"compute": 1.0})
                implementations.setdefault(function, {})[element.name] = profile
        resources.append(Resource(f"{element.name}/compute", "compute", element.capacity, file.stem))
        route = [Hop(f"{element.name}/compute")]
        bandwidth = _link(element, memories, bands)
        if bandwidth:
            resources.append(Resource(f"{element.name}/link", "link", bandwidth, file.stem))
            route.append(Hop(f"{element.name}/link", (SWITCH,)))
        chip = file.stem
        devices.append(Device(element.name, kinds[likeness].name, chip, chip, chip, chip, tuple(route)))
    topology = Topology(file.stem, tuple(kinds.values()), tuple(resources), tuple(devices), (0.0,) * len(SPANS))
    return topology, tuple(Kernel(name, profiles) for name, profiles in implementations.items())


def _link(element: Element, memories: set[int], bands: dict[tuple[int, int], float]) -> float:
    """Bytes/s to the other elements: what is measured between them, or half of that to the memory; 0: not given."""
    to: dict[bool, list[float]] = {True: [], False: []}
    for (source, target), bandwidth in bands.items():
        if element.id in (source, target) and source != target:
            to[(target if source == element.id else source) in memories].append(bandwidth)
    return max(to[False], default=0.0) or max(to[True], default=0.0) / 2


# --- Job files -----------------------------------------------------------------------------------------------


def _job(file: Path, name: str, collector: Collector) -> tuple[TaskGraph, dict[str, tuple[float, float]]]:
    """The graph of a job, and for each task its earliest start and deadline in seconds."""
    tasks: dict[int, Task] = {}
    named: dict[str, Task] = {}
    edges: dict[tuple[int, int], tuple[str, float]] = {}  # -> (where it is given, bytes)
    times: dict[str, tuple[float, float]] = {}
    volumes = []
    promised: tuple[str, int] | None = None
    for where, words in _lines(file):
        with record(collector, where):
            if words[0] == "job_name":
                if len(words) != 2:
                    raise BadRecord("job_name has one name")
            elif words[0] == "add_new_tasks":
                if promised:
                    raise BadRecord("tasks are added twice")
                promised = where, whole(" ".join(words[1:]), "number of tasks")
            elif words[0] == "comm_vol":
                if len(words) != 4:
                    raise BadRecord("comm_vol has a source, a destination and a volume")
                volumes.append((where, whole(words[1], "source"), whole(words[2], "destination"), words[3]))
            elif words[1:] in (["HEAD"], ["TAIL"]):
                continue  # follows from the edges
            elif len(words) == 5 and words[1::2] == ["earliest_start", "deadline"]:
                if words[0] not in named:
                    raise BadRecord(f"task {words[0]!r} is not there, or was left out")
                start, end = parsed(words[2], "earliest_start"), parsed(words[4], "deadline")
                times[named[words[0]].name] = start * 1e-6, end * 1e-6
            else:
                numbers = [whole(word, "id of a task") for word in words[1:]]
                if not numbers:
                    raise BadRecord(f"{words[0]!r} has no id")
                if numbers[0] in tasks:
                    raise BadRecord(f"task {numbers[0]} is given twice")
                tasks[numbers[0]] = named[words[0]] = Task(f"{words[0]}:{numbers[0]}", words[0])
                edges |= {(parent, numbers[0]): (where, 0.0) for parent in numbers[1:]}
    if promised is None:
        raise DataError("it adds no tasks", where=str(file), hint="name a job file, or say --format")
    if len(tasks) != promised[1]:
        collector.bad(promised[0], f"{len(tasks)} good tasks follow, not the {promised[1]} that it says")
    for where, source, target, written in volumes:
        with record(collector, where):
            if (source, target) not in edges:
                raise BadRecord(f"task {target} has no predecessor {source}, or was left out")
            edges[source, target] = where, parsed(written, "volume")
    kept = []
    for (source, target), (where, volume) in edges.items():
        with record(collector, where):
            if source not in tasks:
                raise BadRecord(f"predecessor {source} of task {target} is not there, or was left out")
            kept.append(Edge(tasks[source].name, tasks[target].name, volume))
    return TaskGraph(name, tuple(tasks.values()), tuple(kept)), times


def _is_soc(file: Path) -> bool:
    try:
        return _says(read_head(file), rb"add_new_resource\s+\S+\s+\S+\s+\d")
    except DataError:
        return False


def _says(head: bytes, pattern: bytes) -> bool:
    return bool(re.search(rb"^\s*" + pattern, head, re.MULTILINE))


def sniff(path: Path, head: bytes) -> bool:
    """Text that adds resources or tasks; or a folder with such a file."""
    if path.is_dir():
        return any_under(path, sniff, ".txt")
    return _says(head, rb"add_new_resource\s+\S+\s+\S+\s+\d") or _says(head, rb"add_new_tasks\s+\d")


SOCRATES_FORMAT = Format("socrates", "systems on chip and their jobs (SoCRATES, DS3)", sniff, read)
