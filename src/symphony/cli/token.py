"""`symphony token`: the tokens of a service. Works on the service's database, not through the service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from symphony.cli import terminal
from symphony.cli.options import AsJson
from symphony.cli.remote import Database, State, plain_table, service_folder
from symphony.cli.terminal import print_json
from symphony.problem.extras import needs_extra
from symphony.service.client import default_folder

if TYPE_CHECKING:
    import sqlalchemy as sa

    from symphony.service.tokens import Token

app = typer.Typer(help="Create, list and revoke the tokens of a service.", no_args_is_help=True)


def _open(state: State, database: str, new: bool = False) -> sa.Engine:
    """The service's database; `new`: it is created if there is none."""
    with needs_extra("service", "symphony token"):
        from symphony.service.database import open_database
    return open_database(database, (state or default_folder()) if new else service_folder(state, database))


@app.command("create")
def create(
    user: Annotated[str, typer.Argument(help="The user whose jobs it submits.")],
    *,
    scope: Annotated[
        list[str] | None, typer.Option(help="submit, read or admin. Repeatable. [default: submit, read]")
    ] = None,
    days: Annotated[float | None, typer.Option(help="Days until it expires.")] = None,
    priority: Annotated[int, typer.Option(help="The highest priority that its jobs may have.")] = 0,
    state: State = None,
    database: Database = "",
    as_json: AsJson = False,
) -> None:
    """Create a token and print it, once: only its hash is stored."""
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
    """List the tokens, without their secrets."""
    opened = _open(state, database)
    from symphony.service import tokens

    listed = tokens.listed(opened)
    if as_json:
        print_json([_token_row(entry) for entry in listed])
        return
    table = plain_table("token", "user", "scopes", "priority", "created", "expires")
    for entry in listed:
        expires = "never" if entry.expires is None else "expired" if entry.expired else _day(entry.expires)
        row = (entry.id, escape(entry.user), " ".join(entry.scopes), str(entry.priority), _day(entry.created), expires)
        table.add_row(*row)
    terminal.print_table(table)


@app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="ID", help="The token's ID in `token list`.")],
    *,
    state: State = None,
    database: Database = "",
    as_json: AsJson = False,
) -> None:
    """Revoke a token; the service refuses it within seconds."""
    opened = _open(state, database)
    from symphony.service import tokens

    tokens.revoke(opened, name)
    if as_json:
        print_json({"revoked": name})
    else:
        typer.echo(f"revoked {name}")


def _token_row(entry: Token) -> dict[str, Any]:
    return {
        "id": entry.id,
        "user": entry.user,
        "scopes": entry.scopes,
        "priority": entry.priority,
        "created_s": entry.created,
        "expires_s": entry.expires,
    }


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))
