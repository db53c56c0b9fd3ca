"""Output of the commands: tables, progress bars, JSON and errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


def console(*, stderr: bool = False) -> Console:
    """A console that prints names unchanged: no emoji for `:abc:`, no colours for numbers."""
    return Console(stderr=stderr, highlight=False, emoji=False)


@contextmanager
def progress_bar(console: Console, *, quiet: bool, width: int) -> Iterator[Callable[[str, float], None]]:
    """A bar that disappears at the end. The function updates its text, of `width` columns, and the share done."""
    text = TextColumn(f"{{task.description:>{width}}}")
    columns = (text, BarColumn(), TextColumn("{task.percentage:3.0f}%"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=quiet, transient=True) as bars:
        bar = bars.add_task("compiling", total=1.0)
        yield lambda description, share: bars.update(bar, description=description, completed=share)


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
