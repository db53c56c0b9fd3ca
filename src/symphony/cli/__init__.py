"""The command line. Each command group is a file; errors raised on purpose end as two lines, never as a traceback."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

from symphony.problem.errors import SymphonyError

app = typer.Typer(
    name="symphony",
    help="Schedule work on clusters of unlike processors whose shared parts are contended.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of the `symphony` command."""
    # Imported here: the command files import this package.
    from symphony.cli import compare, topology, workload

    app.add_typer(topology.app, name="topology")
    app.add_typer(workload.app, name="workload")
    app.command("compare")(compare.compare)
    try:
        app()
    except SymphonyError as error:
        console = Console(stderr=True, highlight=False)
        where = f"{error.where}: " if error.where else ""
        console.print("[bold red]error[/]:", escape(where + error.message), soft_wrap=True)
        if error.hint:
            console.print("[bold cyan]hint[/]:", escape(error.hint), soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
