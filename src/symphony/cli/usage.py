"""`symphony usage`: who has used how much of a service."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.markup import escape

from symphony.cli import terminal
from symphony.cli.options import AsJson
from symphony.cli.remote import Key, Url, plain_table
from symphony.cli.terminal import print_json
from symphony.problem import units
from symphony.service.client import connect


def usage(
    *,
    since: Annotated[str, typer.Option(help="Jobs that ended in this time, or have not ended: 7d.")] = "7d",
    everybody: Annotated[bool, typer.Option("--all", help="All users; needs scope admin.")] = False,
    url: Url = "",
    token: Key = "",
    as_json: AsJson = False,
) -> None:
    """Show device time and jobs of users."""
    seconds = units.parse(since, "seconds", where="--since")
    with connect(url, token=token) as cluster:
        found = cluster.usage(max(time.time() - seconds, 0.0), everybody=everybody)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    counts = ("jobs", "done", "failed", "cancelled", "unfinished")
    table = plain_table("user", "device time", *counts, right=("device time", *counts))
    for one in found.users:
        shown = units.show(float(f"{one.device_s:.3g}"), "seconds")
        table.add_row(escape(one.user), shown, *(str(getattr(one, name)) for name in counts))
    if found.users:
        terminal.print_table(table)
    else:
        typer.echo("no jobs")
    if seconds > found.kept_s:
        kept = units.show(found.kept_s, "seconds")
        typer.echo(f"jobs that ended more than {kept} ago are not counted: symphony serve --keep-days", err=True)
