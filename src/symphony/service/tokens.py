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
from symphony.service.audit import TOKEN_CREATED, TOKEN_REVOKED, TOKEN_ROTATED, Actor, audit_row, operator
from symphony.service.client import TOKEN_FILE
from symphony.service.wire import TokenView

SUBMIT, READ, ADMIN = "submit", "read", "admin"
SCOPES = {
    SUBMIT: "submit graphs or cancel your jobs",
    READ: "see your jobs and the cluster",
    ADMIN: "administer the service, or see the jobs of all users",
}
TOKEN_PATTERN = re.compile(r"sy_([0-9a-f]{8})_([\w-]{43})")
MAX_GRACE_S = 30 * 86_400.0  # for which a rotated token stays valid
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

    def view(self) -> TokenView:
        return TokenView(
            id=self.id,
            user=self.user,
            scopes=list(self.scopes),
            priority=self.priority,
            created_s=self.created,
            expires_s=self.expires,
        )

    def actor(self, address: str) -> Actor:
        """Its user, for the audit log; `address`: of the client."""
        return Actor(self.user, self.id, address)


@dataclass(frozen=True)
class TokenChange:
    """Statements that change the tokens and say so in the audit log, for one transaction."""

    statements: tuple[sa.Executable, ...]
    token: Token  # the new one, or the one that is revoked
    text: str = ""  # of a new token; shown once and not stored
    ended: str = ""  # ID of the token that ends

    def apply(self, database: sa.Engine) -> None:
        with database.begin() as connection:
            for statement in self.statements:
                connection.execute(statement)


def creation(by: Actor, user: str, scopes: tuple[str, ...], *, days: float | None, priority: int = 0) -> TokenChange:
    """A new token that expires after `days`; None: never."""
    if not re.fullmatch(r"[\w.@-]{1,100}", user):
        raise InputError(f"{user!r} is not a valid user name", hint="use letters, digits and . _ @ -")
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise InputError(f"there is no scope {', '.join(unknown) or repr('')}", hint=f"use {', '.join(SCOPES)}")
    _check_days(days)
    if abs(priority) > limits.PRIORITY:
        raise InputError(f"priority is {priority}", hint=f"write at most {limits.PRIORITY}")
    made, text, insert = _new(user, scopes, days, priority)
    row = audit_row(by, TOKEN_CREATED, made.id, user=user, scopes=list(scopes), days=days, priority=priority)
    return TokenChange((insert, sa.insert(tables.audit).values(row)), made, text)


def rotation(by: Actor, old: Token, *, days: float | None = None, grace_s: float = 0.0) -> TokenChange:
    """A new token with the user, scopes and priority of an old one, which ends after `grace_s`.

    `days`: until the new one expires; None: as long as the old one had.
    """
    _check_days(days)
    if not 0.0 <= grace_s <= MAX_GRACE_S:
        raise InputError(f"the old token cannot stay valid for {grace_s:g} s", hint="use at most 30 days")
    if days is None and old.expires is not None:
        days = (old.expires - old.created) / 86_400
    made, text, insert = _new(old.user, old.scopes, days, old.priority)
    rows, ends = tables.tokens.c, time.time() + grace_s
    if grace_s:
        ends = ends if old.expires is None else min(ends, old.expires)
        end: sa.Executable = sa.update(tables.tokens).where(rows.id == old.id).values(expires=ends)
    else:
        end = sa.delete(tables.tokens).where(rows.id == old.id)
    row = audit_row(by, TOKEN_ROTATED, old.id, user=old.user, new=made.id, days=days, grace_s=grace_s)
    return TokenChange((insert, end, sa.insert(tables.audit).values(row)), made, text, old.id)


def revocation(by: Actor, old: Token) -> TokenChange:
    delete = sa.delete(tables.tokens).where(tables.tokens.c.id == old.id)
    row = audit_row(by, TOKEN_REVOKED, old.id, user=old.user)
    return TokenChange((delete, sa.insert(tables.audit).values(row)), old, ended=old.id)


def _new(user: str, scopes: tuple[str, ...], days: float | None, priority: int) -> tuple[Token, str, sa.Executable]:
    now, name, secret = time.time(), secrets.token_hex(4), secrets.token_urlsafe(32)
    made = Token(name, user, scopes, priority, now, None if days is None else now + days * 86_400)
    row = {"id": name, "secret": _hash(secret), "user": user, "scopes": " ".join(scopes), "priority": priority}
    row |= {"created": made.created, "expires": made.expires}
    return made, f"sy_{name}_{secret}", sa.insert(tables.tokens).values(row)


def _check_days(days: float | None) -> None:
    if days is not None and not 0 < days <= 36_500:
        raise InputError(f"it cannot expire after {days:g} days", hint="write --days 30")


def create(database: sa.Engine, user: str, scopes: tuple[str, ...], *, days: float | None, priority: int = 0) -> str:
    """Create a token, as the user who runs this process. The returned text is shown once and not stored."""
    change = creation(operator(), user, scopes, days=days, priority=priority)
    change.apply(database)
    return change.text


def listed(database: sa.Engine) -> list[Token]:
    with database.connect() as connection:
        return [_token(row) for row in connection.execute(sa.select(tables.tokens).order_by(tables.tokens.c.created))]


def existing(database: sa.Engine, name: str) -> Token:
    """The token with an ID."""
    with database.connect() as connection:
        row = connection.execute(sa.select(tables.tokens).where(tables.tokens.c.id == name)).first()
    if row is None:
        raise InputError(f"there is no token {name!r}", hint="symphony token list shows them")
    return _token(row)


def own_token(database: sa.Engine, folder: Path, user: str, days: float | None = None) -> Path:
    """The file with a token for the user who runs the service.

    It is replaced when it is invalid, or half of its `days` are over; the previous one stays valid until it expires.
    One without an end gets one.
    """
    path = folder / TOKEN_FILE
    try:
        current = Tokens(database).find(path.read_text().strip()) if path.exists() else None
    except TokenError:  # it has expired
        current = None
    if current is not None and days is not None:
        ends = time.time() + days * 86_400
        if current.expires is None or current.expires > ends:
            limit = sa.update(tables.tokens).where(tables.tokens.c.id == current.id).values(expires=ends)
            with database.begin() as connection:
                connection.execute(limit)
        elif current.expires - time.time() < days * 86_400 / 2:
            current = None
    if current is None:
        text = create(database, user, tuple(SCOPES), days=days, priority=limits.PRIORITY)
        part = path.with_name(f"{path.name}.new")
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        part.write_text(text + "\n")
        part.replace(path)
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

    def forget(self, name: str) -> None:
        """Look a token up again: it was changed."""
        with self._lock:
            self._known.pop(name, None)

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


def token_id(text: str) -> str:
    """The ID in the text of a token, valid or not; "" if it has no such form."""
    form = TOKEN_PATTERN.fullmatch(text.strip())
    return form[1] if form else ""


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
