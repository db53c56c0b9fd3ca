"""`symphony repair`: the journal of a service that is not running. Works on its database, under the service's lock."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from symphony.cli import terminal
from symphony.cli.options import AsJson
from symphony.cli.remote import Database, State, ago, plain_table, service_folder
from symphony.cli.terminal import print_json
from symphony.problem.extras import needs_extra
from symphony.problem.units import show

if TYPE_CHECKING:
    from symphony.service.ledger import Ledger
    from symphony.service.state import ServiceJob

app = typer.Typer(help="Repair the journal of a service that is not running.", no_args_is_help=True)
Numbers = Annotated[list[int], typer.Argument(metavar="ID...", help="Numbers of jobs.")]


def _folder(state: Path | None, database: str) -> Path:
    with needs_extra("service", "symphony repair"):
        import symphony.service.repair  # noqa: F401 (only to see whether it can be imported)
    return service_folder(state, database)


@contextmanager
def _opened(state: Path | None, database: str) -> Iterator[Ledger]:
    folder = _folder(state, database)
    from symphony.service import repair

    with repair.opened(database, folder) as ledger:
        yield ledger


@app.command("list")
def list_(
    *,
    every: Annotated[bool, typer.Option("--all", help="Also jobs that have finished.")] = False,
    state: State = None,
    database: Database = "",
    as_json: AsJson = False,
) -> None:
    """List jobs, and how often the service has died while each was running."""
    with _opened(state, database) as ledger:
        jobs = list((ledger.state.jobs if every else ledger.state.open).values())
    if as_json:
        print_json([_job_row(job) for job in jobs])
        return
    table = plain_table("job", "user", "name", "status", "tasks", "deaths", "accepted")
    for job in jobs:
        tasks, accepted = f"{job.finished}/{job.tasks}", f"{ago(job.accepted_s)} ago"
        table.add_row(str(job.id), escape(job.user), escape(job.name), _status(job), tasks, str(job.deaths), accepted)
    terminal.print_table(table)


@app.command("cancel")
def cancel(jobs: Numbers, *, state: State = None, database: Database = "", as_json: AsJson = False) -> None:
    """Cancel jobs: they end as cancelled when the service starts again."""
    with _opened(state, database) as ledger:
        from symphony.service import repair

        _print_stopped(repair.cancel(ledger, jobs, getpass.getuser()), as_json)


@app.command("quarantine")
def quarantine(jobs: Numbers, *, state: State = None, database: Database = "", as_json: AsJson = False) -> None:
    """Quarantine jobs: they end as failed, with the reason, when the service starts again."""
    with _opened(state, database) as ledger:
        from symphony.service import repair

        _print_stopped(repair.quarantine_jobs(ledger, jobs, getpass.getuser()), as_json)


@app.command("check")
def check(*, state: State = None, database: Database = "", as_json: AsJson = False) -> None:
    """Check checksums, missing events, and the files that jobs need. Exits with 1 if something is wrong."""
    with _opened(state, database) as ledger:
        from symphony.service import repair

        problems = repair.check(ledger, service_folder(state, database))
        events, jobs = ledger.state.events, len(ledger.state.jobs)
    if as_json:
        print_json({"events": events, "jobs": jobs, "wrong": problems})
    else:
        for line in problems:
            typer.echo(line)
        typer.echo(f"{jobs} jobs, the last event is {events}: {len(problems) or 'nothing'} wrong")
    sys.exit(1 if problems else 0)


@app.command("salvage")
def salvage(*, state: State = None, database: Database = "", as_json: AsJson = False) -> None:
    """Write a new journal from what can be read of this one; the old one is kept beside it."""
    folder = _folder(state, database)
    from symphony.service import repair

    salvaged = repair.salvage(database, folder)
    if as_json:
        print_json(asdict(salvaged))
        return
    for name, rows in salvaged.rows.items():
        lost = salvaged.unreadable.get(name, 0)
        typer.echo(f"{name}: {rows} rows" + (f"; {lost} places could not be read" if lost else ""))
    for line in salvaged.damaged:
        typer.echo(f"set aside: {line}")
    typer.echo(f"the old journal is {salvaged.kept}")


@app.command("compact")
def compact(
    *,
    days: Annotated[float, typer.Option(help="Delete jobs that ended longer ago than this.", min=0.0)] = 7.0,
    state: State = None,
    database: Database = "",
    as_json: AsJson = False,
) -> None:
    """Delete jobs that ended long ago, and free their disk space."""
    with _opened(state, database) as ledger:
        from symphony.service import repair

        deleted = repair.compact(ledger, days)
    if as_json:
        print_json(asdict(deleted))
        return
    sizes = [show(float(size), "bytes") for size in (deleted.bytes_before, deleted.bytes_after)]
    typer.echo(f"{len(deleted.jobs)} jobs deleted" + (f"; {sizes[0]} before, {sizes[1]} now" if sizes[0] else ""))


def _print_stopped(jobs: list[ServiceJob], as_json: bool) -> None:
    if as_json:
        print_json([_job_row(job) for job in jobs])
        return
    for job in jobs:
        typer.echo(f"job {job.id} ({job.name}): {_status(job)} when the service starts again")


def _status(job: ServiceJob) -> str:
    return job.status if job.over else "cancelled" if job.cancelled else "failed" if job.broke else "open"


def _job_row(job: ServiceJob) -> dict[str, Any]:
    names = ("id", "user", "name", "tasks", "finished", "deaths", "accepted_s", "ended_s")
    return {name: getattr(job, name) for name in names} | {"status": _status(job)}
