"""Symphony's own workload files: JSON, gzipped if the name ends in `.gz`. What is written is read back exactly.

    {"format": "symphony-workload/1", "source": "…", "notes": ["…"],
     "kernels": [{"name": "gemm", "implementations": {"v100": {"per_work_s": 0.002, "demand": {"compute": 0.9}}}}],
     "graphs": [{"name": "g", "tasks": [{"name": "a", "kernel": "gemm", "size": 2}, …],
                 "edges": [{"source": "a", "target": "b", "bytes": 1e6}], "gangs": [{"name": "g", "tasks": […]}]}],
     "jobs": [{"graph": 0, "arrival_s": 12.5}]}

Keys are those of `symphony.problem.workload`, quantities are in seconds and bytes, and fields with their default value
are left out. `graph` of a job counts from 0. Without `jobs`, arrivals are drawn. Each record is a line, so that files
can be compared line by line, and the good records of a truncated file recovered.
"""

from __future__ import annotations

import gzip
import json
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from symphony.lowering.readers.parsing import DOWNLOAD_HINT
from symphony.lowering.readers.reading import Collector, FileContents, Format, read_text
from symphony.problem.errors import DataError, InputError
from symphony.problem.texts import did_you_mean
from symphony.problem.workload import Edge, Gang, Job, Kernel, Profile, Task, TaskGraph, Workload

SYMPHONY_FORMAT_NAME = "symphony"
WORKLOAD_FILE_VERSION = "symphony-workload/1"
_SECTIONS = ("kernels", "graphs", "jobs")
_T = TypeVar("_T")


class _Misfit(Exception):
    """What is wrong with a record, and where in it, such as ".tasks[0].size"."""

    def __init__(self, what: str, at: str = "") -> None:
        self.what, self.at = what, at


def sniff(path: Path, head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") and b'"symphony-workload/' in head


# --- Writing -----------------------------------------------------------------------------------------------


def write(contents: FileContents, path: Path) -> None:
    """Write kernels, graphs, jobs and notes. Tables and topologies are not written."""
    data = dumps(contents).encode()
    try:
        # No time stamp: equal workloads make equal files.
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    except OSError as error:
        raise DataError(
            f"cannot write it: {error.strerror or error}", where=str(path), hint="name a file that can be written"
        ) from None


def dumps(contents: FileContents) -> str:
    head = {"format": WORKLOAD_FILE_VERSION, "source": contents.source, "notes": list(contents.notes)}
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for section in _SECTIONS:
        records = (json.dumps(_plain(record), default=_number) for record in getattr(contents, section))
        parts.append(f"{json.dumps(section)}: [\n" + ",\n".join(records) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _plain(record: Any) -> Any:
    """A record as plain JSON values, without the fields that have their default value."""
    if isinstance(record, Kernel | Profile | Task | Edge | Gang | TaskGraph | Job):
        values = ((field, getattr(record, field.name)) for field in fields(record))
        return {field.name: _plain(value) for field, value in values if value != _default(field)}
    if isinstance(record, Mapping):
        return {key: _plain(value) for key, value in record.items()}
    if isinstance(record, tuple):
        return [_plain(value) for value in record]
    return record


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _number(value: Any) -> Any:
    return value.item()  # of NumPy: the only other type that the checks of a workload accept


# --- Reading -----------------------------------------------------------------------------------------------


def read(path: Path, collector: Collector) -> FileContents:
    """Read a workload file; a bad record is named by its position, such as `graphs[3].tasks[0].size`."""
    document = _document(path, collector)
    for key in document.keys() - {"format", "source", "notes", *_SECTIONS}:
        collector.bad(f"{path}: {key}", f"unknown key{_meant(key, _SECTIONS)}")
    notes = document.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        collector.bad(f"{path}: notes", "it should be a list of sentences")
        notes = []
    kernels: dict[str, Kernel] = {}
    for _, kernel in _records(document, "kernels", lambda record: _kernel(record, kernels), path, collector):
        kernels[kernel.name] = kernel
    graphs = dict(_records(document, "graphs", lambda record: _graph(record, kernels), path, collector))
    index_of = {number: index for index, number in enumerate(graphs)}  # bad graphs were left out
    jobs: list[Job] = []
    for _, job in _records(document, "jobs", lambda record: _job(record, jobs[-1:], index_of), path, collector):
        jobs.append(job)
    return FileContents(
        kernels=tuple(kernels.values()),
        graphs=tuple(graphs.values()),
        jobs=tuple(jobs),
        homes=True,
        notes=tuple(notes),
    )


SYMPHONY_FORMAT = Format(SYMPHONY_FORMAT_NAME, f"Symphony's own workload files ({WORKLOAD_FILE_VERSION})", sniff, read)


def _kernel(record: Any, kernels: Mapping[str, Kernel]) -> Kernel:
    kernel: Kernel = _build(Kernel, record)
    if kernel.name in kernels:
        raise _Misfit(f"kernel {kernel.name!r} is defined twice", ".name")
    return kernel


def _graph(record: Any, kernels: Mapping[str, Kernel]) -> TaskGraph:
    graph: TaskGraph = _build(TaskGraph, record)
    for number, task in enumerate(graph.tasks):
        if task.kernel not in kernels:
            raise _Misfit(
                f"there is no kernel {task.kernel!r}, or it was left out{_meant(task.kernel, kernels)}",
                f".tasks[{number}].kernel",
            )
    used = dict.fromkeys(task.kernel for task in graph.tasks)
    Workload("", tuple(kernels[name] for name in used), (graph,), (_FIRST,))  # checks times
    return graph


def _job(record: Any, previous: list[Job], index_of: Mapping[int, int]) -> Job:
    job: Job = _build(Job, record)
    if job.graph not in index_of:
        raise _Misfit(f"there is no graph {job.graph}, or it was left out", ".graph")
    # Checks arrivals, priorities and homes.
    Workload("", (_ANY_KERNEL,), (_ANY_GRAPH,), tuple(replace(each, graph=0) for each in (*previous, job)))
    return replace(job, graph=index_of[job.graph])


_FIRST = Job(0, 0.0)
_ANY_KERNEL = Kernel("any", {"any": Profile(1.0)})
_ANY_GRAPH = TaskGraph("any", (Task("any", "any"),))


def _records(
    document: Mapping[str, Any], section: str, make: Callable[[Any], _T], path: Path, collector: Collector
) -> Iterator[tuple[int, _T]]:
    """The good records of a section, each with its position."""
    records = document.get(section, [])
    if not isinstance(records, list):
        collector.bad(f"{path}: {section}", f"it is {_shown(records)}, and should be a list")
        return
    for number, record in enumerate(records):
        at = f"{path}: {section}[{number}]"
        try:
            made = make(record)
        except _Misfit as misfit:
            collector.bad(f"{at}{misfit.at}", misfit.what)
        except InputError as error:
            collector.bad(at, f"{error.where}: {error.message}".removeprefix("workload '': "))
        else:
            yield number, made


def _document(path: Path, collector: Collector) -> Mapping[str, Any]:
    text = read_text(path)
    try:
        document = json.loads(text)
    except RecursionError:
        raise DataError("it is nested too deeply", where=str(path), hint="a workload is five levels deep") from None
    except json.JSONDecodeError as error:
        collector.bad(f"{path}: line {error.lineno}, column {error.colno}", f"this is not JSON: {error.msg}")
        document = _good_part(text)
    except ValueError as error:  # a number with too many digits
        raise DataError(f"this is not JSON: {error}", where=str(path), hint=DOWNLOAD_HINT) from None
    if not isinstance(document, dict):
        raise DataError(f"it is {_shown(document)}", where=str(path), hint='a workload begins with {"format": …')
    version = document.get("format")
    if version != WORKLOAD_FILE_VERSION:
        raise DataError(f"its format is {version!r}", where=f"{path}: format", hint=f"write {WORKLOAD_FILE_VERSION!r}")
    return document


def _good_part(text: str) -> dict[str, Any]:
    """The records of a damaged file, of each section up to the first that cannot be read."""
    decoder = json.JSONDecoder()
    document: dict[str, Any] = {"format": WORKLOAD_FILE_VERSION} if f'"{WORKLOAD_FILE_VERSION}"' in text else {}
    for section in _SECTIONS:
        records: list[Any] = []
        separator = re.search(rf'"{section}"\s*:\s*\[\s*', text)
        while separator:
            try:
                record, end = decoder.raw_decode(text, separator.end())
            except (ValueError, RecursionError):
                break
            records.append(record)
            separator = re.compile(r"\s*,\s*").match(text, end)
        document[section] = records
    return document


def _build(kind: Any, value: Any, at: str = "") -> Any:
    """A value of a type, dataclasses included, from plain JSON."""
    if is_dataclass(kind):
        return _record(kind, value, at)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise _Misfit(f"it is {_shown(value)}, and should be a list", at)
        return tuple(_build(get_args(kind)[0], item, f"{at}[{number}]") for number, item in enumerate(value))
    if get_origin(kind) is Mapping:
        if not isinstance(value, dict):
            raise _Misfit(f"it is {_shown(value)}, and should be an object", at)
        return {key: _build(get_args(kind)[1], item, f"{at}.{key}") for key, item in value.items()}
    accepted, wanted = _LEAVES[kind]
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise _Misfit(f"it is {_shown(value)}, and should be {wanted}", at)
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise _Misfit("the number is too large", at)
    return value


def _record(kind: Any, value: Any, at: str) -> Any:
    if not isinstance(value, dict):
        raise _Misfit(f"it is {_shown(value)}, and should be an object", at)
    known = {field.name: field for field in fields(kind)}
    for key in value:
        if key not in known:
            raise _Misfit(f"unknown key{_meant(key, known)}", f"{at}.{key}")
    for name, field in known.items():
        if name not in value and _default(field) is MISSING:
            raise _Misfit(f"the key {name!r} is missing", at)
    types = _types(kind)
    return kind(**{key: _build(types[key], item, f"{at}.{key}") for key, item in value.items()})


_types = cache(get_type_hints)
_LEAVES: Mapping[Any, tuple[Any, str]] = {
    float: ((int, float), "a number"),
    int: (int, "a whole number"),
    str: (str, "text"),
    bool: (bool, "true or false"),
    str | None: ((str, NoneType), "text or null"),
}


def _shown(value: Any) -> str:
    return {list: "a list", dict: "an object", NoneType: "null"}.get(type(value)) or reprlib.repr(value)


def _meant(key: str, known: Iterable[str]) -> str:
    suggestion = did_you_mean(key, known).rstrip()
    return f"; {suggestion}" if suggestion else ""
