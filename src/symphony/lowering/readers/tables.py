"""CSV files row by row, and the values of options.

A reader names the columns that it needs and a parser for the cells of each. A row that cannot be parsed is reported to
the collector with its line. A cell never holds a line break in these formats: a stray quote costs its own line only.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from symphony.lowering.readers.parsing import BadRecord, record
from symphony.lowering.readers.reading import Collector, read_text
from symphony.problem import limits
from symphony.problem.errors import DataError, WorkloadError

MAX_CLOCK_S = 1e11  # beyond it, times since 1970 are in milliseconds
CellParser = Callable[[str], Any]  # returns the value of a cell, or raises ValueError with what the cell should be


class CsvRow(dict[str, Any]):
    """The values of one row by column, and the line of the file."""

    def __init__(self, line: int, values: Iterable[tuple[str, Any]]) -> None:
        super().__init__(values)
        self.line = line


@dataclass(frozen=True)
class CsvTable:
    """The good rows of a file."""

    path: Path
    rows: tuple[CsvRow, ...]
    notes: tuple[str, ...] = ()

    def where(self, row: CsvRow) -> str:
        """File and line of a row, for messages."""
        return f"{self.path}: line {row.line}"

    def checked(self, collector: Collector, problem: Callable[[CsvRow], str]) -> CsvTable:
        """The table without the rows of which `problem` says something is wrong (""): those are reported."""
        good = []
        for row in self.rows:
            if what := problem(row):
                collector.bad(self.where(row), what)
            else:
                good.append(row)
        return replace(self, rows=tuple(good))

    def unique(self, collector: Collector, key: Callable[[CsvRow], object]) -> CsvTable:
        """The table without rows that have the key of an earlier row; each of them is reported."""
        first: dict[object, int] = {}

        def repeated(row: CsvRow) -> str:
            line = first.setdefault(key(row), row.line)
            return f"it repeats line {line}" if line != row.line else ""

        return self.checked(collector, repeated)

    def select(self, column: str, wanted: object) -> CsvTable:
        """The rows in which a column has the value of an option; None selects all."""
        if wanted is None:
            return self
        values = {row[column] for row in self.rows}
        matching = {value for value in values if _same(value, wanted)}
        if not matching:
            raise WorkloadError(
                f"no row has {column} {str(wanted)!r}",
                where=f"option {column}",
                hint=f"write {column}= one of {', '.join(sorted(map(str, values))[:40])}",
            )
        kept = tuple(row for row in self.rows if row[column] in matching)
        note = f"Only the {len(kept):,} of {len(self.rows):,} rows with {column} {wanted} are used."
        return replace(self, rows=kept, notes=(*self.notes, note))


def read_table(
    path: Path,
    collector: Collector,
    columns: Mapping[str, CellParser],
    *,
    optional: Mapping[str, CellParser] | None = None,
) -> CsvTable:
    """Read the named columns of a CSV file. `optional` columns may be absent: their values are None then."""
    lines = read_text(path).replace("\r\n", "\n").split("\n")
    try:
        header = _header(lines[0])
    except BadRecord as error:
        raise DataError(str(error), where=f"{path}: line 1", hint="fix its quotes") from None
    index = {name: position for position, name in enumerate(header)}
    if len(index) != len(header):
        raise DataError("a column is named twice", where=f"{path}: line 1", hint="rename one of them")
    missing = [name for name in columns if name not in index]
    if missing:
        raise DataError(
            f"it has no column {', '.join(missing)}; it has {_short(', '.join(header))}",
            where=f"{path}: line 1",
            hint=f"name a CSV file with the columns {', '.join(columns)}, or write --format NAME",
        )
    parsers = {**columns, **(optional or {})}
    absent = [(name, None) for name in parsers if name not in index]
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        with record(collector, f"{path}: line {number}"):
            cells = _cells(line)
            if len(cells) != len(header):
                raise BadRecord(f"it has {len(cells)} cells; the header has {len(header)}")
            values = [(name, _value(name, cells[index[name]], parsers[name])) for name in parsers if name in index]
            rows.append(CsvRow(number, values + absent))
    cut = "The last line has no line break: the file may be truncated, and the last cell with it."
    return CsvTable(path, tuple(rows), (cut,) if lines[-1].strip() else ())


@dataclass(frozen=True)
class HasColumns:
    """A `Format.sniff`: whether the first line has these columns and none of the others."""

    names: tuple[str, ...]
    without: frozenset[str]

    def __call__(self, path: Path, head: bytes) -> bool:
        header = columns_in(head)
        return header.issuperset(self.names) and not self.without & header


def has_columns(*names: str, without: Iterable[str] = ()) -> HasColumns:
    return HasColumns(names, frozenset(without))


def columns_in(head: bytes) -> frozenset[str]:
    """The columns that the first line of a file names."""
    try:
        return frozenset(_header(head.decode("utf-8-sig", errors="replace").split("\n", 1)[0].rstrip("\r")))
    except BadRecord:
        return frozenset()


# --- Parsers of cells and options ----------------------------------------------------------------------------


def any_text(cell: str) -> str:
    return cell


def text(cell: str) -> str:
    if not cell.strip():
        raise ValueError("a text")
    return cell


def number(low: float = 0.0, high: float = limits.SECONDS) -> CellParser:
    """Parses a number from `low` to `high`, both included."""

    def parse(cell: str) -> float:
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not low <= value <= high or "_" in cell:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return value

    return parse


def clock(cell: str) -> float:
    """A time in seconds since any date, 1970 included."""
    try:
        return float(number(0.0, MAX_CLOCK_S)(cell))
    except ValueError:
        raise ValueError(f"seconds (not milliseconds), from 0 to {MAX_CLOCK_S:g}") from None


def whole(low: int = 0, high: int = 10**9) -> CellParser:
    """Parses a whole number from `low` to `high`, both included."""

    def parse(cell: str) -> int:
        try:
            value = float(cell)  # 4.0 is 4: tables that had blank cells are often written so
        except ValueError:
            value = math.nan
        if not low <= value <= high or value % 1 or "_" in cell:
            raise ValueError(f"a whole number from {low:,} to {high:,}")
        return int(value)

    return parse


def blank_or(parse: CellParser) -> CellParser:
    """None for a blank cell."""
    return lambda cell: None if cell == "" else parse(cell)


def one_of(*choices: str) -> CellParser:
    def parse(cell: str) -> str:
        if cell not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return cell

    return parse


def rate(cell: str) -> float:
    """Steps per second: 0 for a job that does not run, else a rate that Symphony can express."""
    value = float(number(0.0, 1e9)(cell))
    if 0 < value < 1e-6:
        raise ValueError("0, or at least 1e-6")
    return value


def option_value(name: str, value: object, parse: CellParser) -> Any:
    """The value of a reader's option, written as text or given as a number."""
    try:
        return parse(str(value))
    except ValueError as error:
        raise WorkloadError(
            f"it is {value!r}, and should be {error}", where=f"option {name}", hint=f"write {name}= and {error}"
        ) from None


def companion(path: Path, given: object, usual: Path, *, hint: str) -> Path:
    """Another file that a reader needs: the one that an option names (`given`), or the one at the usual place."""
    if given is not None:
        return Path(str(given))
    if not usual.exists():
        raise DataError(f"it needs {usual.name}, and there is no {usual}", where=str(path), hint=hint)
    return usual


def _header(line: str) -> list[str]:
    return [name.strip() for name in _cells(line)]


def _cells(line: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise BadRecord(f"this is not a line of CSV: {error}") from None


def _value(column: str, cell: str, parse: CellParser) -> Any:
    try:
        return parse(cell)
    except ValueError as error:
        raise BadRecord(f"{column} is {_short(cell)!r}, and should be {error}") from None


def _same(value: object, wanted: object) -> bool:
    """Equal as text, or as numbers: an option's 1 selects "1.0"."""
    if str(value) == str(wanted):
        return True
    try:
        return float(str(value)) == float(str(wanted))
    except ValueError:
        return False


def _short(cell: str) -> str:
    return cell if len(cell) <= 60 else f"{cell[:60]}…"
