"""What readers return, where they report bad records, and how they read files.

No record is dropped silently: a bad one either ends the reading with an error that names file and position (`strict`),
or is listed as a `SkippedRecord` beside the good ones. Single measurements among many are always listed.
"""

from __future__ import annotations

import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symphony.problem.errors import DataError
from symphony.problem.topology import Topology
from symphony.problem.workload import Job, Kernel, TaskGraph

HEAD_BYTES = 4096  # of the (decompressed) file, passed to `Format.sniff`


@dataclass(frozen=True)
class SkippedRecord:
    where: str  # file and position: "jobs.csv: line 17", "x.json: tasks[3]"
    what: str  # what is wrong with it

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True)
class FileContents:
    """What a file holds. Which fields are filled depends on the format.

    Readers leave `format`, `source` and `problems` to `readers.read`, which fills them.
    """

    format: str = ""
    source: str = ""  # the path as the caller wrote it
    kernels: tuple[Kernel, ...] = ()
    graphs: tuple[TaskGraph, ...] = ()
    jobs: tuple[Job, ...] = ()  # sorted by arrival; (): the file has no arrivals, and they are drawn
    homes: bool = False  # whether jobs say where their inputs lie; otherwise the machine is drawn
    topology: Topology | None = None  # the cluster that the file describes, if it does
    tables: dict[str, Any] = field(default_factory=dict)  # rows that are neither kernels nor graphs
    notes: tuple[str, ...] = ()  # what was assumed, in whole sentences
    problems: tuple[SkippedRecord, ...] = ()


@dataclass(frozen=True)
class Format:
    """A public file format."""

    name: str
    about: str
    sniff: Callable[[Path, bytes], bool]  # (path, first bytes) -> whether the file or folder looks like this format
    read: Callable[..., FileContents]  # (path, collector, **options) -> contents


class Collector:
    """Takes reports of bad records. Strict: the first one is raised as an error. Otherwise all are kept."""

    def __init__(self, *, strict: bool = True) -> None:
        self.strict = strict
        self.problems: list[SkippedRecord] = []

    def bad(self, where: str, what: str) -> None:
        """Report one record; raises `DataError` if strict."""
        if self.strict:
            raise DataError(what, where=where, hint="fix it, or keep the good records: --keep-good, or ?keep_good=1")
        self.leave_out(where, what)

    def leave_out(self, where: str, what: str) -> None:
        """List one record that the rest does not depend on: it is left out, also if strict."""
        self.problems.append(SkippedRecord(where, what))


_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)


def read_bytes(path: Path) -> bytes:
    """The whole file. Compression is recognised by the first bytes, not by the name."""
    raw = _raw(path)
    try:
        if raw.startswith(_GZIP):
            return gzip.decompress(raw)
        if raw.startswith(_XZ):
            return lzma.decompress(raw)
    except _DAMAGED as error:
        raise _damaged(path, error) from None
    return raw


def read_head(path: Path) -> bytes:
    """The first `HEAD_BYTES` of a file, decompressed and without a byte order mark, also if it is truncated.

    b"" for a folder.
    """
    if path.is_dir():
        return b""
    raw = _raw(path, 16 * HEAD_BYTES)
    try:
        if raw.startswith(_GZIP):
            raw = zlib.decompressobj(wbits=31).decompress(raw, HEAD_BYTES)
        elif raw.startswith(_XZ):
            raw = lzma.LZMADecompressor().decompress(raw, HEAD_BYTES)
    except _DAMAGED as error:
        raise _damaged(path, error) from None
    return raw[:HEAD_BYTES].removeprefix(codecs.BOM_UTF8)


def read_text(path: Path) -> str:
    """The whole file as UTF-8 text."""
    raw = read_bytes(path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"byte {error.start:,} is not UTF-8 text", where=str(path), hint="name a text file, or write --format NAME"
        ) from None


def _damaged(path: Path, error: BaseException) -> DataError:
    return DataError(
        f"the compressed file is damaged: {error}", where=str(path), hint="download it again, or name another file"
    )


def _raw(path: Path, size: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise DataError(
            f"cannot read it: {error.strerror or error}", where=str(path), hint="name a readable file"
        ) from None
