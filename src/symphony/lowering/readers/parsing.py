"""Parts that readers share: files of a folder, checked fields of JSON and text, and bad records that can be skipped."""

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

OTHER_FORMAT_HINT = "name a file of this format, or write --format NAME"
DOWNLOAD_HINT = "download the file again, or fix it"
HeadTest = Callable[[bytes], bool]  # whether the first bytes of a file look like a format


class BadRecord(Exception):
    """What is wrong with the current record; `record` reports it."""


@contextmanager
def record(collector: Collector, where: str) -> Iterator[None]:
    """Report an error raised inside as one bad record at `where`; continue without that record unless strict."""
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


def file_or_folder(test: HeadTest, *endings: str) -> Callable[[Path, bytes], bool]:
    """A `Format.sniff` for a file whose first bytes pass `test`, or a folder with such a file."""

    def sniff(path: Path, head: bytes) -> bool:
        if not path.is_dir():
            return test(head)
        return any(_passes(file, test, if_damaged=False) for file in _files_under(path, *endings))

    return sniff


def files_of_format(path: Path, test: HeadTest, *endings: str) -> tuple[list[Path], tuple[str, ...]]:
    """The file itself, or the files of a folder that pass `test` or are too damaged to tell; and a note on the rest."""
    if not path.is_dir():
        return [path], ()
    candidates = list(_files_under(path, *endings))
    chosen = [file for file in candidates if _passes(file, test, if_damaged=True)]
    if not chosen:
        raise DataError("no file in it is of this format", where=str(path), hint="name another folder, or a file")
    others = len(candidates) - len(chosen)
    return chosen, (f"{others:,} files in the folder are of another format, and were ignored.",) * (others > 0)


def _files_under(folder: Path, *endings: str) -> Iterator[Path]:
    """Files at any depth, in order, with one of these endings, or one of them and ".gz"."""
    accepted = tuple(ending + packed for ending in endings for packed in ("", ".gz"))
    yield from sorted(file for file in folder.rglob("*") if file.name.endswith(accepted) and file.is_file())


def _passes(file: Path, test: HeadTest, *, if_damaged: bool) -> bool:
    try:
        return test(read_head(file))
    except DataError:
        return if_damaged


def bare_name(file: Path, folder: Path) -> str:
    """The name of a graph that a file holds: the path below `folder`, without the endings."""
    inner = file.relative_to(folder) if file != folder and file.is_relative_to(folder) else Path(file.name)
    return str(inner.with_name(inner.name.partition(".")[0]).as_posix())


def load_json(path: Path) -> Any:
    """The parsed file; a syntax error names its line and column."""
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"this is not JSON, or cut off: {error.msg}",
            where=f"{path}: line {error.lineno}, column {error.colno}",
            hint="download the whole file again, or write --format NAME",
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"this is not JSON: {error}", where=str(path), hint=DOWNLOAD_HINT) from None


def member(value: Any, *keys: str, where: str) -> Any:
    """The value at a path of keys; a file without it is not of its format, and refused."""
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            raise DataError(f"it has no {'.'.join(keys)}", where=where, hint=OTHER_FORMAT_HINT)
        value = value[key]
    return value


def member_list(value: Any, *keys: str, where: str) -> list[Any]:
    """The list at a path of keys; a file without it is refused."""
    records = member(value, *keys, where=where)
    if not isinstance(records, list):
        raise DataError(f"{'.'.join(keys)} is not a list", where=where, hint=OTHER_FORMAT_HINT)
    return records


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


def number_from(word: str, what: str, *, above_zero: bool = False) -> float:
    """A finite number, 0 or more, in a line of text."""
    try:
        value = float(word)
    except ValueError:
        raise BadRecord(f"{what} is {_short(word)}, not a number") from None
    return number(value, what, above_zero=above_zero)


def whole_from(word: str, what: str) -> int:
    """A whole number, 0 or more, in a line of text."""
    if not (word.isascii() and word.isdigit() and len(word) < 16):
        raise BadRecord(f"{what} is {_short(word)}, not a whole number")
    return int(word)


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
