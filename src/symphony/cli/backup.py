"""`symphony backup` and `symphony restore`: journal and blobs of a service as one file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from symphony.cli.options import AsJson
from symphony.cli.remote import Database, State, service_folder
from symphony.cli.terminal import print_json
from symphony.problem.extras import needs_extra
from symphony.problem.units import show
from symphony.service.client import default_folder


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    *,
    state: State = None,
    database: Database = "",
    as_json: AsJson = False,
) -> None:
    """Write journal and blobs of a service to a file, while it runs."""
    with needs_extra("service", "symphony backup"):
        from symphony.service import backup as backups
    made = backups.backup(database, service_folder(state, database), file)
    if as_json:
        print_json(asdict(made))
    else:
        size = show(float(made.blob_bytes), "bytes")
        typer.echo(f"{file}: {made.jobs} jobs, {made.events} events, {made.blobs} blobs of {size}")


def restore(
    file: Annotated[Path, typer.Argument(help="A backup.")],
    *,
    state: State = None,
    database: Database = "",
    as_json: AsJson = False,
) -> None:
    """Restore a backup into a new state folder."""
    with needs_extra("service", "symphony restore"):
        from symphony.service import backup as backups
    folder = state or default_folder()
    found = backups.restore(database, folder, file)
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo(f"restored {found.jobs} jobs into {folder}; start it: symphony serve --state {folder}")
