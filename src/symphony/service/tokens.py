"""Access tokens. A token is `sy_ID_SECRET`; the database stores only the SHA-256 of the secret.

(The secret has 256 random bits, so that a slow password hash is not needed.)
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
    SUBMIT: "submit graphs, and cancel your own jobs",
    READ: "see your own jobs, and the cluster",
    ADMIN: "see and cancel the jobs of all users, and drain the service",
}
TOKEN_PATTERN = re.compile(r"sy_([0-9a-f]{8})_([\w-]{43})")
TOKEN_CACHE_S = 2.0  # until a cached token is looked up again
CREATE_TOKEN_HINT = "create one: symphony token create NAME"


@dataclass(frozen=True)
class Token:
    """A token, without its secret."""

    id: str
    user: str
    scopes: tuple[str, ...]
    priority: int  # the highest that its jobs may have
    created: float
    expires: float | None

    @property
    def expired(self) -> bool:
        return self.expires is not None and time.time() >= self.expires


def create(database: sa.Engine, user: str, scopes: tuple[str, ...], *, days: float | None, priority: int = 0) -> str:
    """Create a token. The returned text is shown once and not stored."""
    if not re.fullmatch(r"[\w.@-]{1,100}", user):
        raise InputError(f"{user!r} is not a valid user name", hint="use letters, digits and . _ @ -")
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
    with database.connect() as connection:
        return [_token(row) for row in connection.execute(sa.select(tables.tokens).order_by(tables.tokens.c.created))]


def revoke(database: sa.Engine, name: str) -> None:
    with database.begin() as connection:
        gone = connection.execute(sa.delete(tables.tokens).where(tables.tokens.c.id == name)).rowcount
    if not gone:
        raise InputError(f"there is no token {name!r}", hint="symphony token list shows them")


def own_token(database: sa.Engine, folder: Path, user: str) -> Path:
    """The file with a token for the user who runs the service; created if there is no valid one."""
    path = folder / TOKEN_FILE
    if not path.exists() or Tokens(database).find(path.read_text().strip()) is None:
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(create(database, user, tuple(SCOPES), days=None, priority=limits.PRIORITY) + "\n")
    return path


class Tokens:
    """Looks tokens up, with a cache. Thread-safe."""

    def __init__(self, database: sa.Engine) -> None:
        self._database = database
        self._known: dict[str, tuple[float, str, Token]] = {}
        self._lock = threading.Lock()

    def known(self, text: str) -> Token | None:
        """The token, if it is in the cache."""
        form = TOKEN_PATTERN.fullmatch(text)
        cached = self._known.get(form[1]) if form else None
        if form is None or cached is None or cached[0] < time.monotonic() or cached[2].expired:
            return None
        return cached[2] if hmac.compare_digest(cached[1], _hash(form[2])) else None

    def find(self, text: str) -> Token | None:
        """The token, from the database; None if it is unknown. Raises `TokenError` if it has expired."""
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
    if scope not in token.scopes and ADMIN not in token.scopes:
        hint = f"create one that may: symphony token create … --scope {scope}"
        raise ScopeError(f"this token does not allow you to {SCOPES[scope]}", hint=hint)


class RateLimiter:
    """A token bucket for each user: `per_s` requests a second, with a burst of two seconds."""

    def __init__(self, per_s: float) -> None:
        self._per_s, self._most = per_s, max(per_s * 2.0, 10.0)
        self._left: dict[str, tuple[float, float]] = {}  # requests left, and when that was

    def take(self, user: str) -> None:
        """Count a request, or refuse it. Not thread-safe."""
        now = time.monotonic()
        left, at = self._left.get(user, (self._most, now))
        left = min(left + (now - at) * self._per_s, self._most)
        if left < 1.0:
            wait = (1.0 - left) / self._per_s
            raise BusyError(
                f"more than {self._per_s:g} requests a second", hint="wait for jobs instead of polling", retry_s=wait
            )
        self._left[user] = left - 1.0, now


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _token(row: sa.Row) -> Token:
    return Token(row.id, row.user, tuple(row.scopes.split()), row.priority, row.created, row.expires)
