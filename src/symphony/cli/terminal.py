"""Output of the commands: tables, progress bars, JSON and errors."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

MAX_TABLE_COLUMNS = 1_000  # of a table whose names are not broken
SECONDS_BETWEEN_LINES = 10.0  # of progress, where the output is not a terminal

Share = float | Callable[[], float]  # of what is done


def console(*, stderr: bool = False) -> Console:
    """A console that prints names unchanged: no emoji for `:abc:`, no colours for numbers."""
    return Console(stderr=stderr, highlight=False, emoji=False)


def print_table(table: Table) -> None:
    """Print a table with whole names: a narrow terminal breaks the lines, where Rich would break the names."""
    out = console()
    whole = out.measure(table, options=out.options.update(width=MAX_TABLE_COLUMNS)).maximum
    out.width = max(out.width, min(whole, MAX_TABLE_COLUMNS))
    out.print(table)


@contextmanager
def progress_bar(console: Console, *, quiet: bool, width: int) -> Iterator[Callable[[str, Share], None]]:
    """A bar that disappears at the end. The function updates its text, of `width` columns, and the share done.

    If the console is not a terminal: a line on standard error every ten seconds; a share that is a function is computed
    for each line.
    """
    if not quiet and not console.is_terminal:
        with _progress_lines() as update:
            yield update
        return
    text = TextColumn(f"{{task.description:>{width}}}")
    columns = (text, BarColumn(), TextColumn("{task.percentage:3.0f}%"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=quiet, transient=True) as bars:
        bar = bars.add_task("compiling", total=1.0)
        yield lambda description, share: bars.update(bar, description=description, completed=_number(share))


@contextmanager
def _progress_lines() -> Iterator[Callable[[str, Share], None]]:
    """A thread prints a line every `SECONDS_BETWEEN_LINES`, until the block ends."""
    began, ended = time.perf_counter(), threading.Event()
    latest: tuple[str, Share] = ("compiling", 0.0)

    def update(description: str, share: Share) -> None:
        nonlocal latest
        latest = (description, share)

    def print_lines() -> None:
        while not ended.wait(SECONDS_BETWEEN_LINES):
            description, share = latest
            line = f"{time.perf_counter() - began:5.0f} s {_number(share):4.0%}  {description}\n"
            try:
                sys.stderr.write(line)
                sys.stderr.flush()
            except (OSError, ValueError):  # closed: the work goes on without lines
                return

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield update
    finally:
        ended.set()
        thread.join()


def _number(share: Share) -> float:
    return share() if callable(share) else share


def print_json(value: Any) -> None:
    """Print JSON on standard output, and flush it: a program may be waiting for it."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
    sys.stdout.flush()


def print_error(message: str, hint: str = "") -> None:
    out = console(stderr=True)
    out.print("[bold red]error[/]:", escape(message), soft_wrap=True)
    if hint:
        out.print("[bold cyan]hint[/]:", escape(hint), soft_wrap=True)


def print_warning(message: str) -> None:
    console(stderr=True).print("[yellow]warning[/]:", escape(message), soft_wrap=True)
