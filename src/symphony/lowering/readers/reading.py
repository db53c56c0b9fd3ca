"""What a reader makes of a file, and how it says what it could not make sense of.

A reader never drops anything silently: a bad record is either an error that names file and position (`strict`), or a
`Problem` beside the good records.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symphony.problem.errors import DataError
from symphony.problem.topology import Topology
from symphony.problem.workload import Job, Kernel, TaskGraph

HEAD_BYTES = 4096  # of the (decompressed) file, shown to every format to sniff


@dataclass(frozen=True)
class Problem:
    """A record that was left out."""

    where: str  # file and position: "jobs.csv: line 17", "x.json: tasks[3]"
    what: str  # what is wrong with it

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True)
class Reading:
    """What a file holds. Which fields are filled depends on the format: profiles, graphs, jobs or a cluster."""

    format: str
    source: str  # the path as given
    kernels: tuple[Kernel, ...] = ()
    graphs: tuple[TaskGraph, ...] = ()
    jobs: tuple[Job, ...] = ()  # sorted by arrival; () = it has no arrivals, and they are drawn
    topology: Topology | None = None  # the cluster that the file describes, if it does
    tables: dict[str, Any] = field(default_factory=dict)  # measured tables that are no profiles: pairs, placements, …
    notes: tuple[str, ...] = ()  # what was assumed, in whole sentences
    problems: tuple[Problem, ...] = ()  # what was left out


@dataclass(frozen=True)
class Format:
    """A public file format."""

    name: str
    about: str
    sniff: Callable[[Path, bytes], bool]  # (path, first bytes) -> whether it looks like one
    read: Callable[..., Reading]  # (path, collector, **options) -> Reading


class Collector:
    """Where a reader reports bad records: strict, the first one ends the reading; otherwise they are kept."""

    def __init__(self, *, strict: bool = True) -> None:
        self.strict = strict
        self.problems: list[Problem] = []

    def bad(self, where: str, what: str) -> None:
        """Report one record; raises `DataError` if strict."""
        if self.strict:
            raise DataError(what, where=where, hint="mend it, or keep the good records with --keep-good")
        self.problems.append(Problem(where, what))


def read_bytes(path: Path) -> bytes:
    """The whole file, decompressed by its first bytes, not by its name."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot read it: {error.strerror or error}", where=str(path), hint="name a readable file"
        ) from None
    try:
        if raw[:2] == b"\x1f\x8b":
            return gzip.decompress(raw)
        if raw[:6] == b"\xfd7zXZ\x00":
            return lzma.decompress(raw)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"it is compressed, and damaged: {error}", where=str(path), hint="get it again") from None
    return raw


def read_text(path: Path) -> str:
    """The whole file as UTF-8 text."""
    raw = read_bytes(path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"byte {error.start:,} is no text in UTF-8", where=str(path), hint="name a text file, or say --format"
        ) from None
