"""Readers of public file formats: workflows, kernel timings, GPU-cluster traces. One module for each origin.

The format of a file is recognised by its content (`sniff`), or named by the caller. `read` returns a `FileContents`;
`lowering/trace.py` makes a workload of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from symphony.lowering.readers import (
    dagbench,
    gavel,
    muri,
    openb,
    philly,
    pollux,
    readys,
    shockwave,
    socrates,
    starpu,
    symphony_file,
    tables,
    tpch,
    wfformat,
)
from symphony.lowering.readers.reading import Collector, FileContents, Format, read_head
from symphony.problem.errors import DataError, InputError
from symphony.problem.texts import did_you_mean

FORMATS: tuple[Format, ...] = (
    symphony_file.SYMPHONY_FORMAT,
    # Task graphs and kernel times.
    wfformat.WFCOMMONS_FORMAT,
    tpch.TPCH_FORMAT,
    starpu.STARPU_FORMAT,
    socrates.SOCRATES_FORMAT,
    dagbench.DAGBENCH_FORMAT,
    readys.READYS_FORMAT,
    # GPU clusters.
    *gavel.GAVEL_FORMATS,
    pollux.POLLUX_FORMAT,
    shockwave.SHOCKWAVE_FORMAT,
    muri.MURI_FORMAT,
    philly.PHILLY_FORMAT,
    *openb.OPENB_FORMATS,
)
_FORMAT_HINT = "write --format NAME, or ?format=NAME"


def named(name: str) -> Format:
    by_name = {known.name: known for known in FORMATS}
    if name not in by_name:
        meant = did_you_mean(name, by_name)
        raise InputError(f"unknown format {name!r}", hint=f"{meant}the formats are {', '.join(by_name)}")
    return by_name[name]


def options(known: Format) -> Mapping[str, Any]:
    """The options of a format's reader, with their defaults."""
    parameters = list(inspect.signature(known.read).parameters.values())[2:]
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def sniff(path: str | Path) -> Format:
    """The format of a file or folder, by its content."""
    path = existing(path)
    head = read_head(path)
    if not head and path.is_file():
        raise DataError("the file is empty", where=str(path), hint="download it again, or name another file")
    matching = [known for known in FORMATS if known.sniff(path, head)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(known.name for known in matching)
        raise DataError(
            f"it looks like each of {names}", where=str(path), hint=_FORMAT_HINT.replace("NAME", matching[0].name)
        )
    names = ", ".join(known.name for known in FORMATS)
    what = "binary data" if b"\0" in head else "a folder" if path.is_dir() else "a file"
    raise DataError(
        f"this is {what} in none of the formats {names}",
        where=str(path),
        hint=f"{_nearest(head)}symphony workload formats describes them; {_FORMAT_HINT}",
    )


def _nearest(head: bytes) -> str:
    """The beginning of a hint, for a table that has most columns of a format."""
    header = tables.columns_in(head)
    if any(mark in name for name in header for mark in ";\t"):
        return "separate the columns by commas; "
    wanted = {known.name: known.sniff.names for known in FORMATS if isinstance(known.sniff, tables.HasColumns)}
    missing = {name: [column for column in columns if column not in header] for name, columns in wanted.items()}
    nearest = min(missing, key=lambda name: len(missing[name]) / len(wanted[name]))
    lacks = missing[nearest]
    return f"for {nearest}, it lacks {', '.join(lacks)}; " if 0 < 2 * len(lacks) <= len(wanted[nearest]) else ""


def read(path: str | Path, format: str | None = None, *, strict: bool = True, **options: Any) -> FileContents:
    """What a file holds.

    `format`: name of the format; None: recognised by the content. `strict`: the first bad record is an error;
    otherwise bad records are left out, and listed in `problems`. `options`: those of the format's reader.
    """
    path = existing(path)
    known = named(format) if format else sniff(path)
    _check_options(known, options, path)
    collector = Collector(strict=strict)
    try:
        contents = known.read(path, collector, **options)
    except InputError as error:  # of a kernel, a graph, a topology or an option
        where = f"{path}: {error.where}" if error.where else str(path)
        raise DataError(error.message, where=where, hint=error.hint) from error
    return replace(contents, format=known.name, source=str(path), problems=tuple(collector.problems))


def existing(path: str | Path) -> Path:
    """The path; an error if there is nothing."""
    path = Path(path)
    if not path.exists():
        siblings = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(
            "there is no such file or folder",
            where=str(path),
            hint=f"{did_you_mean(path.name, siblings)}write a path that is absolute or relative to the current folder",
        )
    return path


def _check_options(known: Format, given: Mapping[str, Any], path: Path) -> None:
    allowed = options(known)
    for key in given:
        if key not in allowed:
            hint = f"the options are {', '.join(allowed)}" if allowed else "leave it out: the format has no options"
            raise InputError(f"format {known.name} has no option {key!r}", where=str(path), hint=hint)
