"""`symphony audit`: the audit log of a service, from its database or (with --url) through the service."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.markup import escape

from symphony.cli import options, terminal
from symphony.cli.options import AsJson
from symphony.cli.remote import AdminUrl, Database, Key, State, opened_database, plain_table
from symphony.cli.terminal import print_json
from symphony.problem import units
from symphony.problem.errors import InputError
from symphony.problem.extras import needs_extra
from symphony.service.client import connect


def audit(
    *,
    since: Annotated[str, typer.Option(help="2h, 30d, or a date such as 2026-11-01.")] = "",
    action: Annotated[str, typer.Option(help="Only this action, such as login-failed.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many.", min=1, max=10_000)] = 1_000,
    state: State = None,
    database: Database = "",
    url: AdminUrl = "",
    token: Key = "",
    as_json: AsJson = False,
) -> None:
    """Show the audit log of a service."""
    since_s = _time(since)
    with needs_extra("service", "symphony audit"):
        from symphony.service.audit import ACTIONS, read_audit
    if action:
        options.check_choice("--action", action, ACTIONS)
    if url:
        with connect(url, token=token) as cluster:
            entries = cluster.audit(since_s, action=action, limit=limit)
    else:
        with opened_database(state, database, "symphony audit") as opened:
            entries = read_audit(opened, since_s, action=action, limit=limit)
    if as_json:
        print_json([one.model_dump(mode="json") for one in entries])
        return
    table = plain_table("time", "user", "token", "from", "action", "what", "")
    for one in entries:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.at_s))
        who = (escape(one.user) or "unknown", one.token or "-", escape(one.address) or "this machine")
        table.add_row(at, *who, one.action, escape(one.target), escape(_text(one.detail)))
    terminal.print_table(table)


def _text(detail: dict[str, Any]) -> str:
    """A line with the parts that say something."""
    shown = {name: " ".join(value) if isinstance(value, list) else value for name, value in detail.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items() if value not in (None, 0, ""))


def _time(text: str) -> float:
    """Seconds since 1970 of a date, or of a time that has passed since then."""
    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        pass
    try:
        days = float(text.removesuffix("d")) if text.endswith("d") else None
        return time.time() - (units.parse(text, "seconds") if days is None else days * 86_400)
    except (InputError, ValueError):
        raise InputError(f"--since {text!r} is no time", hint="write 2h, 30d or 2026-11-01") from None
