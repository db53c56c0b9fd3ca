"""`symphony profile`: what was learned of kernels by running them."""

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

from symphony.cli import terminal
from symphony.cli.remote import AsJson, Key, Url, connect, print_json
from symphony.problem.errors import InputError
from symphony.problem.units import show
from symphony.runtime.profiles import ProfileRow, Profiles, default_path
from symphony.service.client import URL_VARIABLE


def profile(
    name: Annotated[str, typer.Argument(help="Kernels whose names have this in them.")] = "",
    *,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A file, instead of a service's.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write them to a file, for others.")] = None,
    url: Url = "",
    token: Key = "",
    as_json: AsJson = False,
) -> None:
    """Show how long kernels take: of a service, or of this user's own runs where none is named."""
    if file is not None and not file.is_file():
        raise InputError(f"there is no file {str(file)!r}", hint="leave --file out for those of your own runs")
    if file is None and (url or os.environ.get(URL_VARIABLE)):
        with connect(url, token=token) as cluster:
            found = cluster.profiles
    else:
        found = Profiles(default_path()) if file is None else Profiles.read(file)
    rows = [row for row in found.rows if name in row.kernel]
    if output is not None:
        content = found.content()
        for part in ("timings", "demands", "seen"):
            content[part] = [one for one in content[part] if name in one["kernel"]]
        output.write_text(json.dumps(content, indent=1))
    if as_json:
        print_json([asdict(row) for row in rows])
    elif output is not None:
        typer.echo(f"wrote {len(rows)} profiles to {output}")
    else:
        none = f"no kernel with {name!r} in its name has run" if found.rows else "nothing has run yet"
        terminal.console().print(_table(rows) if rows else escape(none))


def _table(rows: list[ProfileRow]) -> Table:
    made = Table(box=None, pad_edge=False)
    for title in ("kernel", "device", "runs", "fixed", "per MB", "× or ÷", "of memory", "meanwhile"):
        left = title in ("kernel", "device", "meanwhile")
        made.add_column(title, justify="left" if left else "right", overflow="fold")
    for row in rows:
        made.add_row(
            escape(row.kernel),
            escape(row.device),
            str(row.runs),
            show(float(f"{row.fixed_s:.3g}"), "seconds"),
            show(float(f"{row.per_byte_s * 1e6:.3g}"), "seconds"),
            f"{math.exp(row.spread):.2f}",
            row.memory_shown,
            row.shown,
        )
    return made
