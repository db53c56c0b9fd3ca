"""What all commands print to: the terminal, without surprises in what users named."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


def console(*, stderr: bool = False) -> Console:
    """A console that takes names as they are: `:abc:` is no emoji, and numbers get no colour."""
    return Console(stderr=stderr, highlight=False, emoji=False)


def progress_bar(console: Console, *, quiet: bool, width: int) -> Progress:
    """A bar for long work, gone when it is done; what is being done takes so many columns."""
    what = TextColumn(f"{{task.description:>{width}}}")
    columns = (what, BarColumn(), TextColumn("{task.percentage:3.0f}%"), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=quiet, transient=True)


def print_error(message: str, hint: str = "") -> None:
    """An error in two lines."""
    out = console(stderr=True)
    out.print("[bold red]error[/]:", escape(message), soft_wrap=True)
    if hint:
        out.print("[bold cyan]hint[/]:", escape(hint), soft_wrap=True)
