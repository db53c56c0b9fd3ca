"""The audit log: who created, rotated and revoked tokens, cancelled jobs of others, drained, failed to log in.

Rows are only ever added; triggers of the database refuse anything else. A row about a change is committed in the same
transaction as the change. Failed logins are counted, so that they cannot fill the disk: one row a minute for each of
the first addresses.
"""

from __future__ import annotations

import getpass
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from symphony.problem.texts import readable
from symphony.service import tables
from symphony.service.wire import AuditView

TOKEN_CREATED, TOKEN_REVOKED, TOKEN_ROTATED = "token-created", "token-revoked", "token-rotated"
CANCELLED, QUARANTINED, DRAINED, LOGIN_FAILED = "cancelled", "quarantined", "drained", "login-failed"
BACKED_UP, RESTORED = "backed-up", "restored"
ACTIONS = (
    TOKEN_CREATED,
    TOKEN_REVOKED,
    TOKEN_ROTATED,
    CANCELLED,
    QUARANTINED,
    DRAINED,
    LOGIN_FAILED,
    BACKED_UP,
    RESTORED,
)
LOGIN_WINDOW_S = 60.0  # failed logins of this time share rows
MAX_ADDRESSES = 20  # with a row of their own in each window; the others share one


@dataclass(frozen=True)
class Actor:
    """Who does something."""

    user: str
    token: str = ""  # ID; "" = none, but access to the database
    address: str = ""  # of the client; "" = the command line of this machine


def operator() -> Actor:
    """The user who runs this process."""
    return Actor(getpass.getuser())


def audit_row(by: Actor, action: str, target: str = "", **detail: Any) -> dict[str, Any]:
    """A row of the table, for the transaction that makes the change."""
    return {
        "at": time.time(),
        "user": readable(by.user, longest=100),
        "token": by.token,
        "address": readable(by.address, longest=100),
        "action": action,
        "target": readable(target, longest=200),
        "detail": json.dumps(detail),
    }


def read_audit(
    database: sa.Engine, since: float = 0.0, *, after: int = 0, action: str = "", limit: int = 1_000
) -> list[AuditView]:
    """Entries since a time and with IDs above `after`, oldest first; the newest `limit` of them if `after` is 0."""
    rows = tables.audit.c
    wanted = sa.select(tables.audit).where(rows.at >= since, rows.id > after).limit(limit)
    wanted = wanted.order_by(rows.id if after else rows.id.desc())
    if action:
        wanted = wanted.where(rows.action == action)
    with database.connect() as connection:
        found = connection.execute(wanted).all()
    return sorted((_entry(row) for row in found), key=lambda entry: entry.id)


def _entry(row: sa.Row) -> AuditView:
    who = {"user": row.user, "token": row.token, "address": row.address}
    return AuditView(id=row.id, at_s=row.at, action=row.action, target=row.target, detail=_detail(row.detail), **who)


def _detail(text: str) -> dict[str, Any]:
    try:
        detail = json.loads(text)
    except ValueError:  # damaged
        return {"unreadable": readable(text, longest=200)}
    return detail if isinstance(detail, dict) else {"unreadable": readable(text, longest=200)}


class FailedLogins:
    """Counts failed logins by address and kind. The first is written at once, further ones once a window."""

    def __init__(self, write: Callable[[list[dict[str, Any]]], object]) -> None:
        """`write` adds rows to the audit log."""
        self._write = write
        self._counts: Counter[tuple[str, str]] = Counter()  # by address and token ID, since the last row
        self._written_s = -LOGIN_WINDOW_S

    def note(self, address: str, token: str) -> None:
        """Count a failed login. `token`: the ID in the text that was sent, "" if it is not of that form."""
        key = (address, token)
        if key not in self._counts and len(self._counts) >= MAX_ADDRESSES:
            key = ("others", "")
        self._counts[key] += 1
        self.flush()

    def flush(self, *, now: bool = False) -> None:
        """Write what was counted, if the window is over or `now`."""
        at = time.monotonic()
        if not self._counts or (at - self._written_s < LOGIN_WINDOW_S and not now):
            return
        self._written_s = at
        counts, self._counts = self._counts, Counter()
        self._write(
            [
                audit_row(Actor("", token, address), LOGIN_FAILED, count=count)
                for (address, token), count in counts.items()
            ]
        )
