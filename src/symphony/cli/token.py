"""`symphony token`: the tokens of a service. Works on its database, or (with --url) through the service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from symphony.cli import terminal
from symphony.cli.options import AsJson
from symphony.cli.remote import AdminUrl, Database, Key, State, opened_database, plain_table
from symphony.cli.terminal import print_json
from symphony.problem import limits
from symphony.service.client import connect
from symphony.service.wire import IssuedToken

if TYPE_CHECKING:
    import sqlalchemy as sa

    from symphony.service.tokens import TokenChange

app = typer.Typer(help="Create, list, rotate and revoke the tokens of a service.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="ID", help="The token's ID in `token list`.")]


COMMAND = "symphony token"


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
    url: AdminUrl = "",
    token: Key = "",
    as_json: AsJson = False,
) -> None:
    """Create a token and print it, once: only its hash is stored."""
    scopes = tuple(dict.fromkeys(scope or ["submit", "read"]))
    if url:
        with connect(url, token=token) as cluster:
            _print_issued(cluster.create_token(user, scopes, days=days, priority=priority), as_json)
        return
    with opened_database(state, database, COMMAND, new=True) as opened:
        from symphony.service import audit, tokens

        _apply(opened, tokens.creation(audit.operator(), user, scopes, days=days, priority=priority), as_json)


@app.command("list")
def list_(
    *, state: State = None, database: Database = "", url: AdminUrl = "", token: Key = "", as_json: AsJson = False
) -> None:
    """List the tokens, without their secrets."""
    if url:
        with connect(url, token=token) as cluster:
            listed = cluster.tokens()
    else:
        with opened_database(state, database, COMMAND) as opened:
            from symphony.service import tokens

            listed = [one.view() for one in tokens.listed(opened)]
    if as_json:
        print_json([one.model_dump(mode="json") for one in listed])
        return
    table = plain_table("token", "user", "scopes", "priority", "created", "expires")
    for one in listed:
        expired = one.expires_s is not None and time.time() >= one.expires_s
        expires = "never" if one.expires_s is None else "expired" if expired else _day(one.expires_s)
        priority = "any" if one.priority == limits.PRIORITY else str(one.priority)
        row = (one.id, escape(one.user), " ".join(one.scopes), priority, _day(one.created_s), expires)
        table.add_row(*row)
    terminal.print_table(table)


@app.command("rotate")
def rotate(
    name: Name,
    *,
    days: Annotated[
        float | None, typer.Option(help="Days until the new one expires. [default: as the old one had]")
    ] = None,
    grace_hours: Annotated[float, typer.Option(help="Hours for which the old one stays valid.", min=0.0)] = 0.0,
    state: State = None,
    database: Database = "",
    url: AdminUrl = "",
    token: Key = "",
    as_json: AsJson = False,
) -> None:
    """Replace a token by a new one, and print that."""
    if url:
        with connect(url, token=token) as cluster:
            _print_issued(cluster.rotate_token(name, days=days, grace_s=grace_hours * 3_600), as_json)
        return
    with opened_database(state, database, COMMAND) as opened:
        from symphony.service import audit, tokens

        old = tokens.existing(opened, name)
        _apply(opened, tokens.rotation(audit.operator(), old, days=days, grace_s=grace_hours * 3_600), as_json)


@app.command("revoke")
def revoke(
    name: Name,
    *,
    state: State = None,
    database: Database = "",
    url: AdminUrl = "",
    token: Key = "",
    as_json: AsJson = False,
) -> None:
    """Revoke a token; the service refuses it within seconds."""
    if url:
        with connect(url, token=token) as cluster:
            cluster.revoke_token(name)
    else:
        with opened_database(state, database, COMMAND) as opened:
            from symphony.service import audit, tokens

            tokens.revocation(audit.operator(), tokens.existing(opened, name)).apply(opened)
    if as_json:
        print_json({"revoked": name})
    else:
        typer.echo(f"revoked {name}")


def _apply(opened: sa.Engine, change: TokenChange, as_json: bool) -> None:
    change.apply(opened)
    _print_issued(IssuedToken(token=change.text, about=change.token.view()), as_json)


def _print_issued(issued: IssuedToken, as_json: bool) -> None:
    if as_json:
        about = issued.about
        print_json({"token": issued.token, "id": about.id, "user": about.user, "scopes": about.scopes})
    else:
        typer.echo(issued.token)


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))
