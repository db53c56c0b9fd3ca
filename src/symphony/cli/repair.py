"""`symphony repair`: the journal of a service that does not run. It works on the database, under the service's lock."""

from __future__ import annotations

import getpass
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from symphony.cli import terminal
from symphony.cli.remote import AsJson, Database, State, ago, print_json
from symphony.problem.errors import InputError
from symphony.problem.extras import needs_extra
from symphony.problem.units import show
from symphony.service.client import default_folder

if TYPE_CHECKING:
    from symphony.service.state import ServiceJob

app = typer.Typer(help="Repair the journal of a service that does not run.", no_args_is_help=True)
Numbers = Annotated[list[int], typer.Argument(metavar="ID...", help="Numbers of jobs.")]


def _folder(state: Path | None, database: str) -> Path:
    with needs_extra("service", "symphony repair"):
        import symphony.service.repair  # noqa: F401 (whether it can be)
    folder = state or default_folder()
    if not (database or folder.is_dir()):
        raise InputError(f"there is no service's folder {str(folder)!r}", hint="name that of symphony serve: --state")
    return folder


@app.command("list")
def list_(
    *,
    every: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    state: State = None,
    database: Database = "",
    as_json: AsJson = False,
) -> None:
    """List jobs, and how often the service has died while each was under way."""
    folder = _folder(state, database)
    from symphony.service import repair

    with repair.opened(database, folder) as ledger:
        jobs = list((ledger.state.jobs if every else ledger.state.open).values())
    if as_json:
        print_json([_job_row(job) for job in jobs])
        return
    table = Table(box=None, pad_edge=False)
    for name in ("job", "user", "name", "status", "tasks", "deaths", "accepted"):
        table.add_column(name)
    for job in jobs:
        tasks, name = f"{job.finished}/{job.tasks}", escape(job.name)
        accepted = f"{ago(job.accepted_s)} ago"
        table.add_row(str(job.id), escape(job.user), name, _status(job), tasks, str(job.deaths), accepted)
    terminal.console().print(table)


@app.command("cancel")
def cancel(jobs: Numbers, *, state: State = None, database: Database = "", as_json: AsJson = False) -> None:
    """Cancel jobs: they end as cancelled with the next start of the service."""
    folder = _folder(state, database)
    from symphony.service import repair

    with repair.opened(database, folder) as ledger:
        _print_stopped(repair.cancel(ledger, jobs, getpass.getuser()), as_json)


@app.command("quarantine")
def quarantine(jobs: Numbers, *, state: State = None, database: Database = "", as_json: AsJson = False) -> None:
    """Quarantine jobs: they end as failed, with the reason, with the next start of the service."""
    folder = _folder(state, database)
    from symphony.service import repair

    with repair.opened(database, folder) as ledger:
        _print_stopped(repair.quarantine_jobs(ledger, jobs, getpass.getuser()), as_json)


@app.command("check")
def check(*, state: State = None, database: Database = "", as_json: AsJson = False) -> None:
    """Check checksums, missing events, and that what jobs need is there. Exits with 1 if something is wrong."""
    folder = _folder(state, database)
    from symphony.service import repair

    with repair.opened(database, folder) as ledger:
        found, events, jobs = repair.check(ledger, folder), ledger.state.events, len(ledger.state.jobs)
    if as_json:
        print_json({"events": events, "jobs": jobs, "wrong": found})
    else:
        for line in found:
            typer.echo(line)
        typer.echo(f"{jobs} jobs, the last event is {events}: {len(found) or 'nothing'} wrong")
    sys.exit(1 if found else 0)


@app.command("salvage")
def salvage(*, state: State = None, database: Database = "", as_json: AsJson = False) -> None:
    """Make a new journal of what can be read of this one; the old file is kept beside it. For SQLite."""
    folder = _folder(state, database)
    from symphony.service import repair

    found = repair.salvage(database, folder)
    if as_json:
        print_json(asdict(found) | {"kept": str(found.kept)})
        return
    for name, rows in found.rows.items():
        lost = found.unreadable.get(name, 0)
        typer.echo(f"{name}: {rows} rows" + (f"; {lost} places could not be read" if lost else ""))
    for line in found.damaged:
        typer.echo(f"set aside: {line}")
    typer.echo(f"the old journal is {found.kept}")


@app.command("compact")
def compact(
    *,
    days: Annotated[float, typer.Option(help="Forget jobs that ended longer ago.", min=0.0)] = 7.0,
    state: State = None,
    database: Database = "",
    as_json: AsJson = False,
) -> None:
    """Forget jobs that ended long ago, and give their room back."""
    folder = _folder(state, database)
    from symphony.service import repair

    with repair.opened(database, folder) as ledger:
        found = repair.compact(ledger, days)
    if as_json:
        print_json(asdict(found))
        return
    sizes = [show(float(size), "bytes") for size in (found.bytes_before, found.bytes_after)]
    typer.echo(f"{len(found.jobs)} jobs forgotten" + (f"; {sizes[0]} before, {sizes[1]} now" if sizes[0] else ""))


def _print_stopped(jobs: list[ServiceJob], as_json: bool) -> None:
    if as_json:
        print_json([_job_row(job) for job in jobs])
        return
    for job in jobs:
        typer.echo(f"job {job.id} ({job.name}): {_status(job)} with the next start")


def _status(job: ServiceJob) -> str:
    return job.status if job.over else "cancelled" if job.cancelled else "failed" if job.broke else "open"


def _job_row(job: ServiceJob) -> dict[str, Any]:
    return {
        "id": job.id,
        "user": job.user,
        "name": job.name,
        "status": _status(job),
        "tasks": job.tasks,
        "finished": job.finished,
        "deaths": job.deaths,
        "accepted_s": job.accepted_s,
        "ended_s": job.ended_s,
    }
