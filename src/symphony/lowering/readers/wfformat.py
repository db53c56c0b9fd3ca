"""Workflow executions in WfFormat 1.5 (WfCommons): JSON, one workflow in a file; or a folder of such files.

A task's size is its runtime in seconds, and every kernel takes one second per unit of size on a CPU, so that all tasks
that ran the same program have one kernel.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from symphony.lowering.readers.parsing import (
    BadRecord,
    bare_name,
    file_or_folder,
    files_of_format,
    load_json,
    member_list,
    names,
    number,
    record,
    table,
    text,
)
from symphony.lowering.readers.reading import Collector, FileContents, Format
from symphony.problem import limits
from symphony.problem.errors import DataError
from symphony.problem.workload import Edge, Kernel, Profile, Task, TaskGraph

ZERO_RUNTIME_S = 0.5  # used for a runtime of 0: the clock had whole seconds, and the rounding error is half of one
_ID_SUFFIX = re.compile(r"(_(ID)?\d+)+$")


def read(path: Path, collector: Collector) -> FileContents:
    """Read a workflow execution, or every one in a folder."""
    memory: dict[str, float] = {}  # kernel -> largest number of bytes that a task of it used
    count: Counter[str] = Counter()
    graphs = []
    files, others = files_of_format(path, _looks_like_wfformat, ".json")
    for file in files:
        with record(collector, str(file)):
            graphs.append(_workflow(file, bare_name(file, path), collector, memory, count))
    kernels = tuple(
        Kernel(name, {"cpu": Profile(per_work_s=1.0, demand={"compute": 1.0}, memory=most)})
        for name, most in memory.items()
    )
    notes = [
        *others,
        "A task takes its measured runtime on one core of any CPU, and has no implementation for other devices.",
        "A task's kernel is the program that it ran or, if that is a script, the last part of the task's name.",
        "An edge carries the files that its source writes and its target reads; inputs that no task writes lie on the"
        " home machine.",
        f"A kernel's memory is the largest use of any of its tasks; {count['no memory']:,} tasks have no record of it.",
    ]
    if count["zero"]:
        notes.append(
            f"{count['zero']:,} tasks have a recorded runtime of 0 whole seconds, and take {ZERO_RUNTIME_S} s here."
        )
    if count["undeclared"]:
        notes.append(f"{count['undeclared']:,} edges follow from files only: their source is not a declared parent.")
    return FileContents(kernels=kernels, graphs=tuple(graphs), notes=tuple(notes))


def _workflow(file: Path, name: str, collector: Collector, memory: dict[str, float], count: Counter[str]) -> TaskGraph:
    """One workflow. Adds its kernels to `memory`, and what the notes report to `count`."""
    where = str(file)
    document = load_json(file)
    version = document.get("schemaVersion") if isinstance(document, dict) else None
    if version in ("1.0", "1.1", "1.2", "1.3", "1.4"):
        raise DataError(
            f"it is in WfFormat {version}, and only version 1.5 can be read",
            where=where,
            hint="take the instance from github.com/wfcommons/WfInstances, which has them in version 1.5",
        )
    declared = member_list(document, "workflow", "specification", "tasks", where=where)
    runs = _runs(document, collector, where)
    sizes = _sizes(document, collector, where)

    at = f"{where}: workflow.specification.tasks"
    tasks: dict[str, Task] = {}
    good: dict[str, tuple[str, dict[str, list[str]]]] = {}  # task -> (where it is declared, names in it)
    seen: set[str] = set()
    for index, entry in enumerate(declared):
        here = f"{at}[{index}]"
        with record(collector, here):
            task_id = text(table(entry).get("id"), "id")
            if task_id in seen:
                raise BadRecord(f"task {task_id!r} is given twice")
            seen.add(task_id)
            refers = {key: names(entry.get(key, []), key) for key in _LINKS}
            if task_id not in runs:
                raise BadRecord(f"task {task_id!r} has no good record in workflow.execution.tasks")
            kernel, seconds, used = runs[task_id]
            kernel = kernel or _category(str(entry.get("name", task_id)))
            memory[kernel] = max(memory.get(kernel, 0.0), used)
            count["no memory"] += used == 0
            count["zero"] += seconds == 0
            tasks[task_id] = Task(task_id, kernel, seconds or ZERO_RUNTIME_S)
            good[task_id] = here, refers
    for task_id in runs.keys() - seen:
        collector.bad(f"{where}: workflow.execution.tasks", f"{task_id!r} ran, but is not in the specification")
    edges = _edges(good, sizes, collector, count)
    return TaskGraph(name, tuple(tasks.values()), edges)


_LINKS = ("parents", "children", "inputFiles", "outputFiles")


def _runs(document: Any, collector: Collector, where: str) -> dict[str, tuple[str, float, float]]:
    """Task -> (kernel, or "" if its program is a script; seconds; bytes of memory, 0 = not recorded)."""
    runs: dict[str, tuple[str, float, float]] = {}
    for index, entry in enumerate(member_list(document, "workflow", "execution", "tasks", where=where)):
        with record(collector, f"{where}: workflow.execution.tasks[{index}]"):
            task_id = text(table(entry).get("id"), "id")
            if task_id in runs:
                raise BadRecord(f"task {task_id!r} is given twice")
            seconds = number(entry.get("runtimeInSeconds"), "runtimeInSeconds", most=limits.SECONDS)
            used = number(entry.get("memoryInBytes", 0), "memoryInBytes")
            program = table(entry.get("command", {}), "command").get("program", "")
            word = isinstance(program, str) and len(program.split()) == 1 and any(map(str.isalnum, program))
            runs[task_id] = (program.strip().rpartition("/")[2] if word else "", seconds, used)
    return runs


def _sizes(document: Any, collector: Collector, where: str) -> dict[str, float]:
    """File -> bytes."""
    sizes: dict[str, float] = {}
    if "files" not in document["workflow"]["specification"]:
        return sizes
    for index, entry in enumerate(member_list(document, "workflow", "specification", "files", where=where)):
        with record(collector, f"{where}: workflow.specification.files[{index}]"):
            file_id = text(table(entry).get("id"), "id")
            if file_id in sizes:
                raise BadRecord(f"file {file_id!r} is given twice")
            sizes[file_id] = number(entry.get("sizeInBytes"), "sizeInBytes", most=limits.TRANSFER_BYTES)
    return sizes


def _edges(
    good: dict[str, tuple[str, dict[str, list[str]]]],
    sizes: dict[str, float],
    collector: Collector,
    count: Counter[str],
) -> tuple[Edge, ...]:
    """The declared edges, and edges from the writer of a file to its readers, with the bytes of the files."""
    carried: dict[tuple[str | None, str], float] = {}
    for task_id, (here, refers) in good.items():
        for key in ("parents", "children"):
            for other in refers[key]:
                if other not in good:
                    collector.bad(f"{here}.{key}", f"{other!r} is not a task, or was left out")
                else:
                    carried[(other, task_id) if key == "parents" else (task_id, other)] = 0.0
    writers: dict[str, list[str]] = defaultdict(list)
    for task_id, (_, refers) in good.items():
        for file_id in dict.fromkeys(refers["outputFiles"]):
            writers[file_id].append(task_id)
    for task_id, (here, refers) in good.items():
        for file_id in dict.fromkeys(refers["inputFiles"]):
            if file_id not in sizes:
                collector.bad(f"{here}.inputFiles", f"{file_id!r} is not a file, or was left out")
                continue
            sources: list[str | None] = [source for source in writers.get(file_id, []) if source != task_id]
            if file_id not in writers:
                sources = [None]
            for source in sources:
                if source is not None and (source, task_id) not in carried:
                    count["undeclared"] += 1
                carried[source, task_id] = carried.get((source, task_id), 0.0) + sizes[file_id]
    return tuple(Edge(source, target, amount) for (source, target), amount in carried.items())


def _category(name: str) -> str:
    """The kernel in a task's name: the last part, without numbers at the end."""
    return _ID_SUFFIX.sub("", name.rpartition(".")[2]) or name


def _looks_like_wfformat(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and b'"schemaVersion"' in head and b'"workflow"' in head


WFCOMMONS_FORMAT = Format(
    "wfformat", "workflow executions, WfFormat 1.5 (WfCommons)", file_or_folder(_looks_like_wfformat, ".json"), read
)
