"""What the tests of the CSV readers share: files read without the readers, spoilt files and files cut short."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path

from symphony.lowering import readers
from symphony.lowering.readers.reading import HEAD_BYTES, FileContents
from symphony.problem.errors import SymphonyError


def content(path: Path) -> bytes:
    """The bytes of a file, unpacked."""
    raw = path.read_bytes()
    return gzip.decompress(raw) if path.suffix == ".gz" else raw


def records(path: Path) -> list[dict[str, str]]:
    """The rows of a file, by Python's own reader and as text."""
    return list(csv.DictReader(content(path).decode().splitlines()))


def sniffed(path: Path) -> list[str]:
    """Names of the formats that a file looks like."""
    return [known.name for known in readers.FORMATS if known.sniff(path, content(path)[:HEAD_BYTES])]


def write(folder: Path, *lines: str, name: str = "made.csv") -> Path:
    """A file of these lines."""
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def check_cut(name: str, path: Path, folder: Path, table: str, **options: object) -> None:
    """Cut a file at many places: every record is kept or reported, and no error is one that we did not raise."""
    whole = content(path)
    for cut in _cuts(whole):
        short = folder / "cut.csv"
        short.write_bytes(whole[:cut])
        for strict in (False, True):
            reading = _attempt(name, short, strict, options)
            if isinstance(reading, FileContents):
                lines = [line for line in whole[:cut].decode().split("\n")[1:] if line]
                left_out = [problem for problem in reading.problems if str(short) in problem.where]
                assert len(reading.tables[table]) + len(left_out) == len(lines), (cut, strict)
                assert not (strict and left_out)
    if path.suffix == ".gz":
        packed = path.read_bytes()
        for cut in (1, 5, 30, len(packed) // 2, len(packed) - 1):
            short = folder / "cut.csv.gz"
            short.write_bytes(packed[:cut])
            assert isinstance(_attempt(name, short, False, options), SymphonyError), cut
        spoilt = bytearray(packed)
        spoilt[len(packed) // 2] ^= 0xFF
        short.write_bytes(spoilt)
        assert isinstance(_attempt(name, short, False, options), SymphonyError)


def _cuts(whole: bytes) -> Iterator[int]:
    header = whole.index(b"\n")
    yield from (0, 1, header // 2, header, header + 1, header + 8)
    # Cuts far into a large file cost time and show nothing that cuts near its start do not.
    end = min(len(whole), 3000)
    yield from (end // 3, end // 2, end - 40, end - 3, end - 1)


def _attempt(name: str, path: Path, strict: bool, options: dict[str, object]) -> FileContents | SymphonyError:
    try:
        return readers.read(path, name, strict=strict, **options)
    except SymphonyError as error:
        return error
