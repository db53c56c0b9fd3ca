"""What the commands for a service and its clients have in common."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from symphony.problem.errors import InputError
from symphony.problem.extras import needs_extra
from symphony.service.client import default_folder

if TYPE_CHECKING:
    import sqlalchemy as sa

Url = Annotated[str, typer.Option("--url", help="Address of the service (SYMPHONY_URL).")]
AdminUrl = Annotated[str, typer.Option("--url", help="Use the service at this address instead of its database.")]
Key = Annotated[
    str, typer.Option("--token", help="A token. Other users of this machine can see it; SYMPHONY_TOKEN hides it.")
]
Number = Annotated[int, typer.Argument(metavar="ID", help="The number of the job.", min=1)]
State = Annotated[Path | None, typer.Option("--state", help="Folder for journal, blobs and profiles.")]
Database = Annotated[
    str,
    typer.Option("--database", envvar="SYMPHONY_DATABASE", help="postgresql://…, instead of SQLite in that folder."),
]
MAX_NUMBERS = 10_000  # of a list of ranges
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


def service_folder(state: Path | None, database: str) -> Path:
    """The state folder of a service, which must exist unless a database is named instead."""
    folder = state or default_folder()
    if not (database or folder.is_dir()):
        raise InputError(
            f"there is no state folder {str(folder)!r}", hint="name the folder of symphony serve with --state"
        )
    return folder


@contextmanager
def opened_database(state: Path | None, database: str, command: str, new: bool = False) -> Iterator[sa.Engine]:
    """The database of a service, for a command; `new`: it is created if there is none."""
    with needs_extra("service", command):
        from symphony.service.database import open_database
    opened = open_database(database, (state or default_folder()) if new else service_folder(state, database))
    try:
        yield opened
    finally:
        opened.dispose()


def plain_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """A table without lines, whose columns fold; those in `right` are right-aligned."""
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def ago(seconds: float | None) -> str:
    """The time since an instant, in one unit: "5 min"."""
    if seconds is None:
        return ""
    passed = max(time.time() - seconds, 0.0)
    for size, name in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if passed >= 2 * size:
            return f"{passed / size:.0f} {name}"
    return f"{passed:.0f} s"


def number_list(text: str, option: str) -> list[int]:
    """Numbers of a list of ranges such as 0-9, 1,4,7 or 0-99:10, in order and without repetitions."""
    found: dict[int, None] = {}
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last, step = (int(match[1]), int(match[2] or match[1]), int(match[3] or 1)) if match else (0, -1, 1)
        if last < first or not step or (last - first) // step + len(found) >= MAX_NUMBERS:
            hint = f"write 0-9, 1,4,7 or 0-99:10; at most {MAX_NUMBERS} numbers"
            raise InputError(f"{part!r} is not a range of numbers", where=option, hint=hint)
        found |= dict.fromkeys(range(first, last + 1, step))
    return list(found)


def number_ranges(numbers: Sequence[int]) -> str:
    """Increasing numbers as `number_list` reads them: "3,5-9"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
