"""What the commands for a service and its clients have in common."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from symphony.service.client import RemoteCluster, connect

Url = Annotated[str, typer.Option("--url", help="Where the service is (SYMPHONY_URL).")]
Key = Annotated[str, typer.Option("--token", help="A token; others on this machine see it, better: SYMPHONY_TOKEN.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Number = Annotated[int, typer.Argument(metavar="ID", help="The number of the job.", min=1)]
State = Annotated[Path | None, typer.Option("--state", help="Folder for journal, blobs and profiles.")]
Database = Annotated[
    str,
    typer.Option("--database", envvar="SYMPHONY_DATABASE", help="postgresql://…, instead of SQLite in that folder."),
]

__all__ = [
    "AsJson",
    "Database",
    "Key",
    "Number",
    "RemoteCluster",
    "State",
    "Url",
    "ago",
    "connect",
    "print_json",
]


def print_json(value: Any) -> None:
    """To standard output, for programs."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def ago(seconds: float | None) -> str:
    """How long ago a time was."""
    if seconds is None:
        return ""
    passed = max(time.time() - seconds, 0.0)
    for size, name in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if passed >= 2 * size:
            return f"{passed / size:.0f} {name}"
    return f"{passed:.0f} s"
