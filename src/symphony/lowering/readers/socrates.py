"""Systems on chip and their jobs, in the format of SoCRATES and DS3: a SoC file, a job file, or a folder with both.

A SoC file lists processing elements with the functions that they support, in microseconds, and communication
bandwidths; it becomes a topology and kernels. A job file lists tasks, predecessors and communication volumes; it
becomes a graph.

A volume divided by a bandwidth is microseconds; the files give neither a unit. Here volumes are bytes and bandwidths
bytes per microsecond. Elements without a bandwidth of their own between them exchange data through the memory: a write,
then a read. Here both are one transfer, at half the bandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from symphony.lowering.readers.parsing import (
    DOWNLOAD_HINT,
    OTHER_FORMAT_HINT,
    BadRecord,
    bare_name,
    file_or_folder,
    files_of_format,
    number_from,
    record,
    whole_from,
)
from symphony.lowering.readers.reading import Collector, FileContents, Format, read_head, read_text
from symphony.problem.errors import DataError
from symphony.problem.topology import SPANS, SWITCH, Device, DeviceKind, Hop, Resource, Topology
from symphony.problem.workload import Edge, Kernel, Profile, Task, TaskGraph

_MEMORY_TYPE = "mem"
_POWER_LINES = ("trip_freq", "power_profile", "PG_profile")  # of DS3; power and throttling are not modelled
Bandwidths = dict[tuple[int, int], float]  # (id of an element, id of another) -> bytes/s


@dataclass
class Element:
    """A processing element, or the memory."""

    name: str
    type: str  # "cpu", "acc", "mem", …
    id: int
    capacity: int  # tasks at once
    functions: dict[str, float] = field(default_factory=dict)  # name -> seconds


def read(path: Path, collector: Collector, *, soc: str = "") -> FileContents:
    """Read a SoC, a job or a folder of them.

    `soc`: the SoC file of the jobs: its path, or its name in the folder. "": the only one in the folder.
    """
    files, others = files_of_format(path, _looks_like_socrates, ".txt")
    job_files = [file for file in files if not _is_soc(file)]
    soc_file = _soc_file(path, files, soc)
    elements, bandwidths = _soc(soc_file, collector)
    topology, kernels = _lower(soc_file, elements, bandwidths)
    supported = {kernel.name for kernel in kernels}
    graphs, missing = [], ""
    for file in job_files:
        with record(collector, str(file)):
            graph = _job(file, bare_name(file, path), collector)
            lacking = sorted({task.kernel for task in graph.tasks} - supported)
            if lacking:
                missing = f"no element of {soc_file.name} supports {', '.join(lacking)}"
                raise BadRecord(missing)
            graphs.append(graph)
    if missing and not graphs:
        hint = "write soc=PATH of a SoC file with these functions"
        raise DataError(f"none of its jobs can run: {missing}", where=str(path), hint=hint)
    notes = [
        *others,
        f"Elements and times are those of {soc_file.name}, at its highest operating point; power is not modelled.",
        "Volumes are taken as bytes, bandwidths as bytes per microsecond; transfers have no latency.",
        "What goes through the memory is written and read: an element's link has half its bandwidth to the memory."
        " Between elements of different bandwidths that is slower than a write followed by a read.",
    ]
    if graphs:
        notes.append("Earliest starts and deadlines are not modelled.")
    return FileContents(kernels=kernels, graphs=tuple(graphs), topology=topology, notes=tuple(notes))


def _soc_file(path: Path, files: list[Path], wanted: str) -> Path:
    """The SoC file to use: the one that `wanted` names, or the only one among the files or beside the job."""
    candidates = [file for file in files if _is_soc(file)]
    folder = path if path.is_dir() else path.absolute().parent
    if not path.is_dir() and not candidates:
        siblings = (file for file in sorted(folder.glob("*.txt")) if file.name != path.name)
        candidates = [file for file in siblings if _is_soc(file)]
    if wanted:
        by_path = [file for file in (Path(wanted), folder / wanted) if file.is_file() and _is_soc(file)]
        candidates = [file for file in candidates if wanted in (file.name, file.stem)] or by_path[:1]
        if not candidates:
            hint = "write soc=PATH of a SoC file, or soc=NAME of one in the folder"
            raise DataError(f"there is no SoC file {wanted!r}", where=str(path), hint=hint)
    if not candidates:
        raise DataError(
            "there is no SoC file beside the job, so its tasks have no times",
            where=str(path),
            hint="write soc=PATH of a SoC file, or put one into the folder",
        )
    if len(candidates) > 1:
        names = ", ".join(file.stem for file in candidates)
        raise DataError(f"it has several SoCs: {names}", where=str(path), hint=f"write soc={candidates[0].stem}")
    return candidates[0]


def _lines(file: Path) -> Iterator[tuple[str, list[str]]]:
    """The words of every line with content, and where it is."""
    for number, line in enumerate(read_text(file).splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            yield f"{file}: line {number}", words


# --- SoC files -----------------------------------------------------------------------------------------------


def _soc(file: Path, collector: Collector) -> tuple[tuple[Element, ...], Bandwidths]:
    elements: dict[int, Element] = {}
    declared: dict[int, tuple[str, int]] = {}  # id -> (where, number of functions)
    bandwidths: Bandwidths = {}
    current: Element | None = None  # the element that functions and operating points belong to
    for where, words in _lines(file):
        with record(collector, where):
            if words[0] == "add_new_resource":
                current = None
                element, functions = _element(words, elements)
                elements[element.id] = current = element
                declared[element.id] = where, functions
            elif words[0] == "comm_band":
                if len(words) != 4:
                    raise BadRecord("comm_band has a source, a destination and a bandwidth")
                pair = whole_from(words[1], "source"), whole_from(words[2], "destination")
                for end in pair:
                    if end not in elements:
                        raise BadRecord(f"resource {end} does not exist, or was left out")
                bandwidths[pair] = number_from(words[3], "bandwidth") * 1e6
            elif current is None:
                raise BadRecord(f"{words[0]!r} belongs to no resource, or to one that was left out")
            elif words[0] not in _POWER_LINES:
                _add_function(current, words)
    for number, (where, count) in declared.items():
        functions = len(elements[number].functions)
        if functions != count:
            collector.bad(where, f"{elements[number].name} has {functions} good functions, not the declared {count}")
    if not any(element.type != _MEMORY_TYPE for element in elements.values()):
        raise DataError("it has no processing element", where=str(file), hint=DOWNLOAD_HINT)
    return tuple(elements.values()), bandwidths


def _element(words: list[str], elements: dict[int, Element]) -> tuple[Element, int]:
    """An element without functions, and the number of functions that it declares."""
    if len(words) not in (6, 7):
        raise BadRecord("a resource has a type, a name, an id, a capacity and a number of functions")
    number, capacity = whole_from(words[3], "id"), whole_from(words[4], "capacity")
    if number in elements or any(words[2] == element.name for element in elements.values()):
        raise BadRecord(f"resource {words[2]} (id {number}) is given twice")
    if capacity == 0:
        raise BadRecord("its capacity is 0")
    return Element(words[2], words[1].lower(), number, capacity), whole_from(words[5], "number of functions")


def _add_function(element: Element, words: list[str]) -> None:
    """Add the function of a line; an operating point is checked only. DS3 leaves the power of a function out."""
    if len(words) != 3 and (len(words) != 2 or words[0] == "opp"):
        raise BadRecord("a function has a name, a time and, maybe, a power; an operating point is opp, MHz and mV")
    if words[0] == "opp":
        number_from(words[1], "MHz")
        number_from(words[2], "mV")
        return
    if words[0] in element.functions:
        raise BadRecord(f"function {words[0]} of {element.name} is given twice")
    seconds = number_from(words[1], "execution time", above_zero=element.type != _MEMORY_TYPE) * 1e-6
    if len(words) == 3:
        number_from(words[2], "power")
    element.functions[words[0]] = seconds


def _lower(file: Path, elements: Iterable[Element], bandwidths: Bandwidths) -> tuple[Topology, tuple[Kernel, ...]]:
    """Topology and kernels. Elements with the same functions and times are of one kind, named after the first."""
    memories = {element.id for element in elements if element.type == _MEMORY_TYPE}
    kinds: dict[tuple[object, ...], DeviceKind] = {}
    implementations: dict[str, dict[str, Profile]] = {}
    resources, devices = [], []
    chip = file.stem
    for element in elements:
        if element.type == _MEMORY_TYPE:
            continue
        likeness = (element.type, element.capacity, *sorted(element.functions.items()))
        if likeness not in kinds:
            kinds[likeness] = DeviceKind(element.name, element.type, element.capacity)
            for function, seconds in element.functions.items():
                profile = Profile(seconds, demand={"compute": 1.0})
                implementations.setdefault(function, {})[element.name] = profile
        resources.append(Resource(f"{element.name}/compute", "compute", element.capacity, chip))
        route = [Hop(f"{element.name}/compute")]
        bandwidth = _link(element, memories, bandwidths)
        if bandwidth:
            resources.append(Resource(f"{element.name}/link", "link", bandwidth, chip))
            route.append(Hop(f"{element.name}/link", (SWITCH,)))
        devices.append(Device(element.name, kinds[likeness].name, chip, chip, chip, chip, tuple(route)))
    topology = Topology(chip, tuple(kinds.values()), tuple(resources), tuple(devices), (0.0,) * len(SPANS))
    return topology, tuple(Kernel(name, profiles) for name, profiles in implementations.items())


def _link(element: Element, memories: set[int], bandwidths: Bandwidths) -> float:
    """Bytes/s to the other elements: what is given between them, or half of that to the memory; 0: not given."""
    to_memory, to_element = [0.0], [0.0]
    for (source, target), bandwidth in bandwidths.items():
        if element.id in (source, target) and source != target:
            other = target if source == element.id else source
            (to_memory if other in memories else to_element).append(bandwidth)
    return max(to_element) or max(to_memory) / 2


# --- Job files -----------------------------------------------------------------------------------------------


def _job(file: Path, name: str, collector: Collector) -> TaskGraph:
    tasks: dict[int, Task] = {}
    edges: dict[tuple[int, int], tuple[str, float]] = {}  # -> (where it is given, bytes)
    volumes = []
    declared: tuple[str, int] | None = None  # (where, number of tasks)
    for where, words in _lines(file):
        with record(collector, where):
            if words[0] == "job_name":
                if len(words) != 2:
                    raise BadRecord("job_name has one name")
            elif words[0] == "add_new_tasks":
                if declared:
                    raise BadRecord("tasks are added twice")
                declared = where, whole_from(" ".join(words[1:]), "number of tasks")
            elif words[0] == "comm_vol":
                if len(words) != 4:
                    raise BadRecord("comm_vol has a source, a destination and a volume")
                volumes.append((where, whole_from(words[1], "source"), whole_from(words[2], "destination"), words[3]))
            elif words[1:] in (["HEAD"], ["TAIL"]):
                continue  # follows from the edges
            elif len(words) == 5 and words[1::2] == ["earliest_start", "deadline"]:
                if all(words[0] != task.kernel for task in tasks.values()):
                    raise BadRecord(f"task {words[0]!r} does not exist, or was left out")
                number_from(words[2], "earliest_start")
                number_from(words[4], "deadline")
            else:
                numbers = [whole_from(word, "id of a task") for word in words[1:]]
                if not numbers:
                    raise BadRecord(f"{words[0]!r} has no id")
                if numbers[0] in tasks:
                    raise BadRecord(f"task {numbers[0]} is given twice")
                tasks[numbers[0]] = Task(f"{words[0]}:{numbers[0]}", words[0])
                edges |= {(parent, numbers[0]): (where, 0.0) for parent in numbers[1:]}
    if declared is None:
        raise DataError("it adds no tasks", where=str(file), hint=OTHER_FORMAT_HINT)
    if len(tasks) != declared[1]:
        collector.bad(declared[0], f"{len(tasks)} good tasks follow, not the declared {declared[1]}")
    for where, source, target, volume in volumes:
        with record(collector, where):
            if (source, target) not in edges:
                raise BadRecord(f"task {target} has no predecessor {source}, or was left out")
            edges[source, target] = where, number_from(volume, "volume")
    kept = []
    for (source, target), (where, size) in edges.items():
        with record(collector, where):
            if source not in tasks:
                raise BadRecord(f"predecessor {source} of task {target} does not exist, or was left out")
            kept.append(Edge(tasks[source].name, tasks[target].name, size))
    return TaskGraph(name, tuple(tasks.values()), tuple(kept))


def _is_soc(file: Path) -> bool:
    try:
        return _has_line(read_head(file), rb"add_new_resource\s+\S+\s+\S+\s+\d")
    except DataError:
        return False


def _has_line(head: bytes, pattern: bytes) -> bool:
    return bool(re.search(rb"^\s*" + pattern, head, re.MULTILINE))


def _looks_like_socrates(head: bytes) -> bool:
    return _has_line(head, rb"add_new_resource\s+\S+\s+\S+\s+\d") or _has_line(head, rb"add_new_tasks\s+\d")


SOCRATES_FORMAT = Format(
    "socrates", "systems on chip and their jobs (SoCRATES, DS3)", file_or_folder(_looks_like_socrates, ".txt"), read
)
