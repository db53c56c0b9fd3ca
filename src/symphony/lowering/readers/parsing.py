"""What readers of text have in common: finding files, checked fields, and bad records that do not end a reading."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from symphony.lowering.readers.reading import Collector, read_head, read_text
from symphony.problem import units
from symphony.problem.errors import DataError, InputError


class BadRecord(Exception):
    """What is wrong with the record at hand; `record` reports it."""


@contextmanager
def record(collector: Collector, where: str) -> Iterator[None]:
    """Report what goes wrong inside as one bad record at `where`, and go on without it if the collector lets us."""
    try:
        yield
    except BadRecord as error:
        collector.bad(where, str(error))
    except InputError as error:
        collector.bad(where, f"{error.where}: {error.message}" if error.where else error.message)
    except DataError as error:
        if collector.strict:
            raise
        collector.bad(error.where or where, error.message)


def files_under(path: Path, *endings: str) -> Iterator[Path]:
    """The file itself, or every file of a folder (at any depth, in order) whose name ends so, perhaps with ".gz"."""
    if not path.is_dir():
        yield path
        return
    wanted = tuple(ending + packed for ending in endings for packed in ("", ".gz"))
    yield from sorted(file for file in path.rglob("*") if file.name.endswith(wanted) and file.is_file())


def any_under(path: Path, sniff: Callable[[Path, bytes], bool], *endings: str) -> bool:
    """Whether a folder holds a file that looks like it."""
    return any(_looks(file, sniff, if_damaged=False) for file in files_under(path, *endings))


def of_format(path: Path, sniff: Callable[[Path, bytes], bool], *endings: str) -> tuple[list[Path], tuple[str, ...]]:
    """The file itself, or those of a folder that look like it or are too damaged to tell; and a note about the rest."""
    if not path.is_dir():
        return [path], ()
    found = list(files_under(path, *endings))
    wanted = [file for file in found if _looks(file, sniff, if_damaged=True)]
    if not wanted:
        raise DataError("no file in it is of this format", where=str(path), hint="name another folder, or a file")
    others = len(found) - len(wanted)
    return wanted, (f"{others:,} other files in the folder are of another format, and were left alone.",) * (others > 0)


def _looks(file: Path, sniff: Callable[[Path, bytes], bool], *, if_damaged: bool) -> bool:
    try:
        return sniff(file, read_head(file))
    except DataError:
        return if_damaged


def bare_name(file: Path, folder: Path) -> str:
    """How a graph is called that a file holds: the name without its endings, from the folder on that was asked for."""
    inner = file.relative_to(folder) if file != folder and file.is_relative_to(folder) else Path(file.name)
    return str(inner.with_name(inner.name.partition(".")[0]).as_posix())


def load_json(path: Path) -> Any:
    """The file as JSON; what is no JSON is refused with its position."""
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"it is no JSON, or cut off: {error.msg}",
            where=f"{path}: line {error.lineno}, column {error.colno}",
            hint="get the whole file again, or say --format",
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"it is no sane JSON: {error}", where=str(path), hint="get the file again") from None


def member(value: Any, *keys: str, where: str) -> Any:
    """What lies at a path of keys; a file without it is not of its format, and refused."""
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            raise DataError(
                f"it has no {'.'.join(keys)}", where=where, hint="name a file of this format, or say --format"
            )
        value = value[key]
    return value


def listed(value: Any, what: str, *, where: str) -> list[Any]:
    """A list of records; a file that has something else in its place is refused."""
    if not isinstance(value, list):
        raise DataError(f"{what} is no list", where=where, hint="name a file of this format, or say --format")
    return value


def table(value: Any, what: str = "the record") -> dict[str, Any]:
    """A record with named fields."""
    if not isinstance(value, dict):
        raise BadRecord(f"{what} is {_short(value)}, not an object")
    return value


def names(value: Any, what: str) -> list[str]:
    """A field that lists names."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise BadRecord(f"{what} is {_short(value)}, not a list of names")
    return value


def text(value: Any, what: str) -> str:
    """A field that is a name."""
    if not isinstance(value, str) or not value.strip():
        raise BadRecord(f"{what} is {_short(value)}, not a name")
    return value


def number(value: Any, what: str, *, most: float = math.inf, above_zero: bool = False) -> float:
    """A field that is a finite number, 0 or more."""
    try:
        good = units.is_number(value, 0.0, most) and math.isfinite(value)
    except OverflowError:
        good = False
    if not good or (above_zero and value == 0):
        least = "above 0" if above_zero else "0 or more"
        bound = f" and at most {most:g}" if most < math.inf else ""
        raise BadRecord(f"{what} is {_short(value)}, not a number {least}{bound}")
    return float(value)


def parsed(value: str, what: str, *, above_zero: bool = False) -> float:
    """A number that is written in a line of text."""
    try:
        found = float(value)
    except ValueError:
        raise BadRecord(f"{what} is {_short(value)}, not a number") from None
    return number(found, what, above_zero=above_zero)


def whole(value: str, what: str) -> int:
    """A whole number, 0 or more, that is written in a line of text."""
    if not (value.isascii() and value.isdigit() and len(value) < 16):
        raise BadRecord(f"{what} is {_short(value)}, not a whole number")
    return int(value)


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
