"""`symphony token`: who may use a service. It works on the service's database, not through the service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from symphony.cli import terminal
from symphony.cli.remote import AsJson, Database, State, print_json
from symphony.problem.errors import InputError
from symphony.problem.extras import needs_extra
from symphony.service.client import default_folder

if TYPE_CHECKING:
    import sqlalchemy as sa

    from symphony.service.tokens import Token

app = typer.Typer(help="Tokens of a service: make, list, revoke.", no_args_is_help=True)


def _open(state: State, database: str, new: bool = False) -> sa.Engine:
    """The service's database; `new`: it may be made."""
    with needs_extra("service", "symphony token"):
        from symphony.service.database import open_database
    folder = state or default_folder()
    if not (new or database or folder.is_dir()):
        raise InputError(f"there is no service's folder {str(folder)!r}", hint="name that of symphony serve: --state")
    return open_database(database, folder)


@app.command("create")
def create(
    user: Annotated[str, typer.Argument(help="Whose it is; jobs belong to users.")],
    *,
    scope: Annotated[list[str] | None, typer.Option(help="submit, read, admin; several times for several.")] = None,
    days: Annotated[float | None, typer.Option(help="After which it expires.")] = None,
    priority: Annotated[int, typer.Option(help="The largest that its jobs may have.")] = 0,
    state: State = None,
    database: Database = "",
    as_json: AsJson = False,
) -> None:
    """Make a token, and print it: once, it is kept nowhere."""
    opened = _open(state, database, new=True)
    from symphony.service import tokens

    scopes = tuple(dict.fromkeys(scope or [tokens.SUBMIT, tokens.READ]))
    made = tokens.create(opened, user, scopes, days=days, priority=priority)
    if as_json:
        print_json({"token": made, "user": user, "scopes": scopes})
    else:
        typer.echo(made)


@app.command("list")
def list_(*, state: State = None, database: Database = "", as_json: AsJson = False) -> None:
    """List them, without their secrets."""
    opened = _open(state, database)
    from symphony.service import tokens

    found = tokens.listed(opened)
    if as_json:
        print_json([_token_row(one) for one in found])
        return
    table = Table(box=None, pad_edge=False)
    for name in ("token", "user", "scopes", "priority", "created", "expires"):
        table.add_column(name)
    for one in found:
        expires = "never" if one.expires is None else "expired" if one.expired else _day(one.expires)
        row = (one.id, escape(one.user), " ".join(one.scopes), str(one.priority), _day(one.created), expires)
        table.add_row(*row)
    terminal.console().print(table)


@app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")],
    *,
    state: State = None,
    database: Database = "",
    as_json: AsJson = False,
) -> None:
    """Forget a token; the service refuses it within seconds."""
    opened = _open(state, database)
    from symphony.service import tokens

    tokens.revoke(opened, name)
    if as_json:
        print_json({"revoked": name})
    else:
        typer.echo(f"revoked {name}")


def _token_row(one: Token) -> dict[str, Any]:
    return {
        "id": one.id,
        "user": one.user,
        "scopes": one.scopes,
        "priority": one.priority,
        "created_s": one.created,
        "expires_s": one.expires,
    }


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))
