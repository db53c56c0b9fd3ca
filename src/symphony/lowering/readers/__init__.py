"""Readers of public file formats: workflows, kernel timings, GPU-cluster traces. One module for each origin.

A file's format is told by its content (`sniff`), or said by the caller. `read` gives a `FileContents`;
`lowering/trace.py` makes a workload of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from symphony.lowering.readers import (
    blas,
    dagbench,
    gavel,
    helios,
    muri,
    openb,
    philly,
    pollux,
    readys,
    shockwave,
    socrates,
    starpu,
    symphony_file,
    tpch,
    wfformat,
)
from symphony.lowering.readers.reading import Collector, FileContents, Format, read_head
from symphony.problem.errors import DataError, InputError

FORMATS: tuple[Format, ...] = (
    symphony_file.SYMPHONY_FORMAT,
    # Data-flow graphs and kernel times.
    wfformat.WFCOMMONS_FORMAT,
    tpch.TPCH_FORMAT,
    starpu.STARPU_FORMAT,
    blas.BLAS_FORMAT,
    socrates.SOCRATES_FORMAT,
    dagbench.DAGBENCH_FORMAT,
    readys.READYS_FORMAT,
    # GPU clusters.
    *gavel.GAVEL_FORMATS,
    *pollux.POLLUX_FORMATS,
    *shockwave.SHOCKWAVE_FORMATS,
    *muri.MURI_FORMATS,
    *philly.PHILLY_FORMATS,
    *helios.HELIOS_FORMATS,
    *openb.OPENB_FORMATS,
)


def named(name: str) -> Format:
    """The format of a name."""
    by_name = {known.name: known for known in FORMATS}
    if name not in by_name:
        close = get_close_matches(name, by_name, n=1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"unknown format {name!r}", hint=f"{meant}the formats are {', '.join(by_name)}")
    return by_name[name]


def options(known: Format) -> Mapping[str, Any]:
    """What a format's reader can be told beside the path, with the defaults."""
    parameters = list(inspect.signature(known.read).parameters.values())[2:]
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def sniff(path: str | Path) -> Format:
    """The format of a file or folder, told by its content."""
    path = existing(path)
    head = read_head(path)
    if not head and path.is_file():
        raise DataError("the file is empty", where=str(path), hint="get it again")
    found = [known for known in FORMATS if known.sniff(path, head)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(known.name for known in found)
        raise DataError(
            f"it looks like each of {names}",
            where=str(path),
            hint=f"say --format {found[0].name}, or ?format={found[0].name}",
        )
    names = ", ".join(known.name for known in FORMATS)
    what = "binary data" if b"\0" in head else "a folder" if path.is_dir() else "a file"
    raise DataError(
        f"this is {what} in none of the formats {names}", where=str(path), hint="say --format NAME, or ?format=NAME"
    )


def read(path: str | Path, format: str | None = None, *, strict: bool = True, **options: Any) -> FileContents:
    """What a file holds. `strict`: the first bad record is an error; otherwise it is left out, and listed.

    `format`: name of the format; None: told by the content. `options`: what the format's reader takes.
    """
    path = existing(path)
    known = named(format) if format else sniff(path)
    _check_options(known, options, path)
    collector = Collector(strict=strict)
    try:
        reading = known.read(path, collector, **options)
    except InputError as error:  # of a kernel, a graph or a topology as such
        where = f"{path}: {error.where}" if error.where else str(path)
        raise DataError(error.message, where=where, hint=error.hint) from error
    return replace(reading, problems=tuple(collector.problems))


def existing(path: str | Path) -> Path:
    """The path, if there is something."""
    path = Path(path)
    if not path.exists():
        siblings = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
        close = get_close_matches(path.name, siblings, n=1)
        meant = f"did you mean {path.parent / close[0]}? " if close else ""
        raise DataError(
            "there is no such file or folder",
            where=str(path),
            hint=f"{meant}give the path of a file; a relative one counts from the current folder",
        )
    return path


def _check_options(known: Format, given: Mapping[str, Any], path: Path) -> None:
    allowed = options(known)
    for key in given:
        if key not in allowed:
            hint = f"the options are {', '.join(allowed)}" if allowed else "leave it out: the format has no options"
            raise InputError(f"format {known.name} has no option {key!r}", where=str(path), hint=hint)
