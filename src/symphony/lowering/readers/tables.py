"""CSV files row by row, with the line of everything that is wrong.

A reader names the columns that it needs and how to read a cell of each. A row that cannot be read is reported to the
collector, so that `CsvTable.seen` = rows kept + problems. A cell never holds a line break in these formats: a stray
quote costs its own line and no other.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from symphony.lowering.readers.reading import Collector, read_text
from symphony.problem import limits
from symphony.problem.errors import DataError, WorkloadError

CellParser = Callable[[str], Any]  # makes a value of a cell, or raises ValueError saying what it should be


class CsvRow(dict[str, Any]):
    """The values of one row by column, and the line it stands on."""

    def __init__(self, line: int, values: Iterable[tuple[str, Any]]) -> None:
        super().__init__(values)
        self.line = line


@dataclass(frozen=True)
class CsvTable:
    """The good rows of a file."""

    path: Path
    rows: tuple[CsvRow, ...]
    seen: int  # rows in the file, the bad ones included
    notes: tuple[str, ...] = ()

    def where(self, row: CsvRow) -> str:
        """File and line of a row, for messages."""
        return f"{self.path}: line {row.line}"

    def keep(self, good: Callable[[CsvRow], bool]) -> CsvTable:
        """The table with the rows that pass; `good` has reported the others."""
        return replace(self, rows=tuple(row for row in self.rows if good(row)))


def read_table(
    path: Path,
    collector: Collector,
    columns: Mapping[str, CellParser],
    *,
    extra: Mapping[str, CellParser] | None = None,
) -> CsvTable:
    """Read the named columns of a CSV file. Those in `extra` may be absent: their values are None then."""
    lines = read_text(path).replace("\r\n", "\n").split("\n")
    header = _cells(lines[0], f"{path}: line 1")
    index = {name: position for position, name in enumerate(header)}
    if len(index) != len(header):
        raise DataError("a column is named twice", where=f"{path}: line 1", hint="rename one of them")
    missing = [name for name in columns if name not in index]
    if missing:
        raise DataError(
            f"it has no column {', '.join(missing)}; it has {_short(', '.join(header))}",
            where=f"{path}: line 1",
            hint=f"name a CSV file with the columns {', '.join(columns)}, or say --format",
        )
    extra = extra or {}
    readers = [(name, index[name], cell) for name, cell in {**columns, **extra}.items() if name in index]
    absent = [(name, None) for name in extra if name not in index]
    rows, seen = [], 0
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        seen += 1
        where = f"{path}: line {number}"
        try:
            cells = _cells(line, where)
            if len(cells) != len(header):
                raise ValueError(f"it has {len(cells)} cells; the header has {len(header)}")
            values: list[tuple[str, Any]] = []
            for name, position, cell in readers:
                try:
                    values.append((name, cell(cells[position])))
                except ValueError as error:
                    raise ValueError(f"{name} is {_short(cells[position])!r}, and should be {error}") from None
        except (ValueError, DataError) as error:
            collector.bad(where, error.message if isinstance(error, DataError) else str(error))
            continue
        rows.append(CsvRow(number, values + absent))
    cut = bool(lines[-1].strip())
    note = "The last line has no end: the file may be cut short, and the last cell with it."
    return CsvTable(path, tuple(rows), seen, (note,) if cut else ())


def has_columns(*names: str, without: Iterable[str] = ()) -> Callable[[Path, bytes], bool]:
    """A `Format.sniff`: whether the header line has these columns and none of the others."""
    wanted, unwanted = set(names), set(without)

    def sniff(path: Path, head: bytes) -> bool:
        header = set(header_of(head))
        return wanted <= header and not unwanted & header

    return sniff


def header_of(head: bytes) -> list[str]:
    """The cells of the first line."""
    return head.decode("utf-8-sig", errors="replace").split("\n", 1)[0].rstrip("\r").split(",")


def any_text(cell: str) -> str:
    """Any text, none included."""
    return cell


def text(cell: str) -> str:
    """Text that is not blank."""
    if not cell.strip():
        raise ValueError("a text")
    return cell


def number(low: float = 0.0, high: float = limits.SECONDS) -> CellParser:
    """A number between two others, both included."""

    def read(cell: str) -> float:
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not low <= value <= high or "_" in cell:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return value

    return read


def whole(low: int = 0, high: int = 10**9) -> CellParser:
    """A whole number between two others, both included."""

    def read(cell: str) -> int:
        try:
            value = int(cell)
        except ValueError:
            value = low - 1
        if not low <= value <= high or "_" in cell:
            raise ValueError(f"a whole number from {low:,} to {high:,}")
        return value

    return read


def blank_or(cell: CellParser) -> CellParser:
    """None for a blank cell."""
    return lambda text: None if text == "" else cell(text)


def one_of(*choices: str) -> CellParser:
    """One of a few words."""

    def read(cell: str) -> str:
        if cell not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return cell

    return read


def rate(cell: str) -> float:
    """Steps per second: 0 for what does not run, else a rate that Symphony can express."""
    value = float(number(0.0, 1e9)(cell))
    if 0 < value < 1e-6:
        raise ValueError("0, or at least 1e-6")
    return value


def moment(cell: str) -> str:
    """A date, or date and time, as ISO 8601 writes it; kept as text."""
    try:
        datetime.fromisoformat(cell)
    except ValueError:
        raise ValueError("a date such as 2020-05-01 00:10:00") from None
    return cell


def unique(table: CsvTable, collector: Collector, key: Callable[[CsvRow], object]) -> CsvTable:
    """The table without rows whose key an earlier one has; each of them is reported."""
    first: dict[object, int] = {}

    def good(row: CsvRow) -> bool:
        line = first.setdefault(key(row), row.line)
        if line != row.line:
            collector.bad(table.where(row), f"it repeats line {line}")
        return line == row.line

    return table.keep(good)


def select(table: CsvTable, column: str, wanted: object) -> CsvTable:
    """The rows in which a column has the value that an option asks for; None asks for all."""
    if wanted is None:
        return table
    values = {row[column] for row in table.rows}
    matching = {value for value in values if _same(value, wanted)}
    if not matching:
        raise WorkloadError(
            f"no row has {column} {str(wanted)!r}",
            where=f"option {column}",
            hint=f"write {column}= one of {', '.join(sorted(map(str, values))[:40])}",
        )
    kept = tuple(row for row in table.rows if row[column] in matching)
    note = f"Only the {len(kept):,} of {len(table.rows):,} rows with {column} {wanted} were asked for."
    return replace(table, rows=kept, notes=(*table.notes, note))


def number_option(name: str, value: object, *, low: float = 0.0, high: float = limits.SECONDS) -> float:
    """The number that an option says, given as text or as a number."""
    try:
        return float(number(low, high)(str(value)))
    except ValueError as error:
        raise WorkloadError(
            f"it is {value!r}, and should be {error}", where=f"option {name}", hint=f"write {name}={low:g}, or more"
        ) from None


def word_option(name: str, value: object, choices: Iterable[str]) -> str:
    """The word that an option says, one of a few."""
    allowed = tuple(choices)
    if value not in allowed:
        raise WorkloadError(
            f"it is {value!r}", where=f"option {name}", hint=f"write {name}= one of {', '.join(allowed)}"
        )
    return str(value)


def beside(path: Path, given: object, usual: Path, option: str) -> Path:
    """The other file that a reader needs: the one that an option names, or the usual one if it is there."""
    if given is not None:
        return Path(str(given))
    if not usual.exists():
        raise DataError(
            f"it needs {usual.name}, which is not at {usual}", where=str(path), hint=f"write {option}=PATH of that file"
        )
    return usual


def _cells(line: str, where: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise DataError(f"it is no line of CSV: {error}", where=where, hint="mend its quotes") from None


def _same(value: object, wanted: object) -> bool:
    """Equal as text, or as numbers: an option's 1 asks for "1.0"."""
    if str(value) == str(wanted):
        return True
    try:
        return float(str(value)) == float(str(wanted))
    except ValueError:
        return False


def _short(cell: str) -> str:
    return cell if len(cell) <= 60 else f"{cell[:60]}…"
