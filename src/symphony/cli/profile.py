"""`symphony profile`: running times and resource demands of kernels, learned by running them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from symphony.cli import options, terminal
from symphony.cli.options import AsJson
from symphony.cli.remote import Key, Url, plain_table
from symphony.cli.terminal import print_json
from symphony.problem.units import show
from symphony.runtime.profiles import ProfileRow, Profiles, default_path
from symphony.service.client import URL_VARIABLE, connect


def profile(
    name: Annotated[str, typer.Argument(help="Only kernels whose names contain this text.")] = "",
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read this file instead of asking a service.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Export the profiles to this file.")] = None,
    url: Url = "",
    token: Key = "",
    as_json: AsJson = False,
) -> None:
    """Show how long kernels take: on a service, or in your own runs if no service is named."""
    if file is not None:
        options.check_exists(file, "omit --file to see your own runs")
    options.check_file(output)
    if file is None and (url or os.environ.get(URL_VARIABLE)):
        with connect(url, token=token) as cluster:
            profiles = cluster.profiles
    else:
        profiles = Profiles(default_path()) if file is None else Profiles.read(file)
    rows = [row for row in profiles.rows if name in row.kernel]
    if output is not None:
        content = profiles.content()
        for part in ("timings", "demands", "seen"):
            content[part] = [entry for entry in content[part] if name in entry["kernel"]]
        output.write_text(json.dumps(content, indent=1))
    if as_json:
        print_json([asdict(row) for row in rows])
    elif output is not None:
        typer.echo(f"wrote {len(rows)} profiles to {output}")
    else:
        message = f"no kernel with {name!r} in its name has run" if profiles.rows else "nothing has run yet"
        terminal.print_table(_table(rows)) if rows else typer.echo(message)


def _table(rows: list[ProfileRow]) -> Table:
    numbers = ("runs", "fixed", "per MB", "× or ÷", "of memory")
    table = plain_table("kernel", "device", *numbers, "meanwhile", right=numbers)
    for row in rows:
        table.add_row(
            escape(row.kernel),
            escape(row.device),
            str(row.runs),
            show(float(f"{row.fixed_s:.3g}"), "seconds"),
            show(float(f"{row.per_byte_s * 1e6:.3g}"), "seconds"),
            f"{math.exp(row.spread):.2f}",
            row.memory_shown,
            row.shown,
        )
    return table
