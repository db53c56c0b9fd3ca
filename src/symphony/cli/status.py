"""`symphony status`: which parts of a service are degraded."""

from __future__ import annotations

import sys

from rich.markup import escape

from symphony.cli import terminal
from symphony.cli.options import AsJson
from symphony.cli.remote import Key, Url, plain_table
from symphony.cli.terminal import print_json
from symphony.service.client import connect

STATE_COLOURS = {"ok": "green", "degraded": "yellow", "failing": "red"}


def status(*, url: Url = "", token: Key = "", as_json: AsJson = False) -> None:
    """Say which parts of a service are degraded. Exits with 1 if one is."""
    with connect(url, token=token) as cluster:
        health = cluster.health()
        address = cluster.url
    if as_json:
        print_json(health.model_dump(mode="json"))
    else:
        table = plain_table("part", "state", "")
        for part in health.parts:
            table.add_row(part.name, f"[{STATE_COLOURS[part.state]}]{part.state}[/]", escape(part.text))
        console = terminal.console()
        console.print(f"{address}: {health.state}")
        console.print(table)
    sys.exit(0 if health.state == "ok" else 1)
