"""Who may do what. A token is `sy_ID_SECRET`; the database has the SHA-256 of the secret, and nobody the secret.

(The secret has 256 random bits: nothing slower than SHA-256 is needed to keep it from being guessed.)
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from symphony.problem import limits
from symphony.problem.errors import BusyError, InputError, ScopeError, TokenError
from symphony.service import tables
from symphony.service.client import TOKEN_FILE

SUBMIT, READ, ADMIN = "submit", "read", "admin"
SCOPES = {
    SUBMIT: "submit graphs, and cancel one's own",
    READ: "see one's own jobs, and the cluster",
    ADMIN: "see and cancel everybody's jobs, drain the service",
}
TOKEN_PATTERN = re.compile(r"sy_([0-9a-f]{8})_([\w-]{43})")
TOKEN_CACHE_S = 2.0  # for which a token that was looked up is believed
CREATE_TOKEN_HINT = "make one: symphony token create NAME"


@dataclass(frozen=True)
class Token:
    """A token, without its secret."""

    id: str
    user: str
    scopes: tuple[str, ...]
    priority: int  # the largest that its jobs may have
    created: float
    expires: float | None

    @property
    def expired(self) -> bool:
        """Whether its time is over."""
        return self.expires is not None and time.time() >= self.expires


def create(database: sa.Engine, user: str, scopes: tuple[str, ...], *, days: float | None, priority: int = 0) -> str:
    """Make a token for a user. What is returned is shown once, and kept nowhere."""
    if not re.fullmatch(r"[\w.@-]{1,100}", user):
        raise InputError(f"{user!r} is no name of a user", hint="use letters, digits and . _ @ -")
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise InputError(f"there is no scope {', '.join(unknown) or repr('')}", hint=f"use {', '.join(SCOPES)}")
    if days is not None and not 0 < days <= 36_500:
        raise InputError(f"it cannot expire after {days:g} days", hint="write --days 30")
    if abs(priority) > limits.PRIORITY:
        raise InputError(f"priority is {priority}", hint=f"write at most {limits.PRIORITY}")
    now, name, secret = time.time(), secrets.token_hex(4), secrets.token_urlsafe(32)
    row = {"id": name, "secret": _hash(secret), "user": user, "scopes": " ".join(scopes), "priority": priority}
    row |= {"created": now, "expires": None if days is None else now + days * 86_400}
    with database.begin() as connection:
        connection.execute(sa.insert(tables.tokens), row)
    return f"sy_{name}_{secret}"


def listed(database: sa.Engine) -> list[Token]:
    """All of them."""
    with database.connect() as connection:
        return [_token(row) for row in connection.execute(sa.select(tables.tokens).order_by(tables.tokens.c.created))]


def revoke(database: sa.Engine, name: str) -> None:
    """Forget one, by its id."""
    with database.begin() as connection:
        gone = connection.execute(sa.delete(tables.tokens).where(tables.tokens.c.id == name)).rowcount
    if not gone:
        raise InputError(f"there is no token {name!r}", hint="symphony token list shows them")


def own_token(database: sa.Engine, folder: Path, user: str) -> Path:
    """The file with the token of whoever serves, so that he can use his service without further ado."""
    path = folder / TOKEN_FILE
    if not path.exists() or Tokens(database).find(path.read_text().strip()) is None:
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(create(database, user, tuple(SCOPES), days=None, priority=limits.PRIORITY) + "\n")
    return path


class Tokens:
    """Looks tokens up, and remembers them for a moment. Any thread may use it."""

    def __init__(self, database: sa.Engine) -> None:
        self._database = database
        self._known: dict[str, tuple[float, str, Token]] = {}
        self._lock = threading.Lock()

    def known(self, text: str) -> Token | None:
        """The token, if it was looked up just now; costs nothing."""
        form = TOKEN_PATTERN.fullmatch(text)
        found = self._known.get(form[1]) if form else None
        if form is None or found is None or found[0] < time.monotonic() or found[2].expired:
            return None
        return found[2] if hmac.compare_digest(found[1], _hash(form[2])) else None

    def find(self, text: str) -> Token | None:
        """The token, if there is one and it has not expired."""
        form = TOKEN_PATTERN.fullmatch(text)
        if form is None:
            return None
        with self._database.connect() as connection:
            row = connection.execute(sa.select(tables.tokens).where(tables.tokens.c.id == form[1])).first()
        if row is None or not hmac.compare_digest(row.secret, _hash(form[2])):
            return None
        token = _token(row)
        if token.expired:
            raise TokenError("the token has expired", hint=CREATE_TOKEN_HINT)
        with self._lock:
            now = time.monotonic()
            self._known = {name: one for name, one in self._known.items() if one[0] >= now}
            self._known[token.id] = now + TOKEN_CACHE_S, row.secret, token
        return token


def check_scope(token: Token, scope: str) -> None:
    """Refuse what a token is not for."""
    if scope not in token.scopes and ADMIN not in token.scopes:
        hint = f"make one that may: symphony token create … --scope {scope}"
        raise ScopeError(f"this token may not {SCOPES[scope]}", hint=hint)


class RateLimiter:
    """How often each user may ask: so many requests a second, and two seconds' worth at once."""

    def __init__(self, per_s: float) -> None:
        self._per_s, self._most = per_s, max(per_s * 2.0, 10.0)
        self._left: dict[str, tuple[float, float]] = {}  # requests, and when that was

    def take(self, user: str) -> None:
        """Count a request, or refuse it. Called by one thread."""
        now = time.monotonic()
        left, at = self._left.get(user, (self._most, now))
        left = min(left + (now - at) * self._per_s, self._most)
        if left < 1.0:
            wait = (1.0 - left) / self._per_s
            raise BusyError(
                f"more than {self._per_s:g} requests a second", hint="wait for jobs instead of asking", retry_s=wait
            )
        self._left[user] = left - 1.0, now


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _token(row: sa.Row) -> Token:
    return Token(row.id, row.user, tuple(row.scopes.split()), row.priority, row.created, row.expires)
