"""Middleware around every request: authentication before the body is read, and limits of the size and speed of the
body.

The connection of a request that is refused here is closed after the answer: its body is not read.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from anyio import CapacityLimiter, to_thread
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from symphony.problem.errors import (
    BusyError,
    InputError,
    JobError,
    JobLostError,
    LimitError,
    ScopeError,
    ServiceError,
    SymphonyError,
    TokenError,
    UnavailableError,
    UnknownJobError,
    VersionError,
)
from symphony.problem.texts import readable
from symphony.service.audit import FailedLogins
from symphony.service.blobs import too_large
from symphony.service.connections import TOKEN
from symphony.service.dashboard.sessions import (
    SECURITY_HEADERS,
    Sessions,
    check_same_origin,
    is_open_page,
    is_page,
    login_needed,
)
from symphony.service.database import DamagedDatabaseError
from symphony.service.metrics import Metrics
from symphony.service.service import Patience, Service
from symphony.service.threads import UserThreads
from symphony.service.tokens import CREATE_TOKEN_HINT, RateLimiter, Token, token_id
from symphony.service.wire import PROTOCOL, VERSION_HEADER, ErrorView, Refusal

log = logging.getLogger("symphony.service.http")
PUBLIC = {"/healthz", "/readyz", "/v1/about", "/v1/openapi.json"}  # paths that need no token
WRONG_S, WRONG_AT_ONCE = 0.25, 32  # delay of the answer to an invalid token, and how many may be delayed at once
LOOKUPS = 4  # threads that look tokens up, beside those that answer requests
BODIES, BODIES_OF_A_USER = 4, 2  # request bodies of the maximal size in memory at once


class SlowError(ServiceError):
    """A request body arrives too slowly."""


class HostError(InputError):
    """A request for an unknown host name."""


class RequestGuard:
    """Authenticates, limits, counts and logs requests."""

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        metrics: Metrics,
        authenticator: Authenticator,
        sessions: Sessions,
        hosts: frozenset[str],
    ) -> None:
        """`hosts`: accepted host names in lower case; "*" accepts any."""
        limits = service.limits
        self._authenticator, self._sessions, self._hosts = authenticator, sessions, hosts
        self._app, self._service, self._metrics = app, service, metrics
        self._rates = RateLimiter(limits.requests_per_s)
        self._under_way = UnderWay(limits.body_bytes, limits.connections)
        self._threads = UserThreads()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, headers = time.perf_counter(), 500, dict(scope["headers"])
        limits, path = self._service.limits, scope["path"]
        is_blob, of_browser = path.startswith("/v1/blobs/"), is_page(path)
        most, option = (limits.blob_bytes, "--blob-bytes") if is_blob else (limits.body_bytes, "--body-bytes")
        body = Body(receive, headers, most, option, limits.patience)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                more = [(VERSION_HEADER.encode(), str(PROTOCOL).encode())]
                if not body.over:
                    more.append((b"connection", b"close"))
                if of_browser:
                    more += [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            try:
                self._check_host(headers)
                if of_browser:
                    check_same_origin(scope["method"], path, headers)
                if path in PUBLIC or (of_browser and is_open_page(path)):
                    await self._app(scope, body, answer)
                    return
                secret = self._sessions.secret(scope, headers) if of_browser else _bearer(headers)
                token = scope[TOKEN] = await self._authenticator.token(secret, address_of(scope))
                self._rates.take(token.user)
                body.check_length()
            except SymphonyError as error:
                lost = of_browser and status_of(error) == 401
                await (login_needed(scope, headers) if lost else refusal(error))(scope, body, answer)
                return
            try:
                size = 0 if is_blob else body.length
                with self._under_way.one(token.user, size), self._threads.of(token.user):
                    await self._app(scope, body, answer)
            except _Full as full:
                await refusal(full.error, full.status)(scope, body, answer)
        finally:
            self._metrics.count(scope, status)
            milliseconds = (time.perf_counter() - began) * 1e3
            method, path = readable(scope["method"], longest=40), readable(path, longest=200)
            fields = {"method": method, "path": path, "status": status, "ms": round(milliseconds, 1)}
            more = {"fields": fields, "always": TOKEN in scope}
            log.info("%s %s %d", method, path, status, extra=more)

    def _check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse unknown host names: a web page could make its own name resolve to this address (DNS rebinding).

        Such a page cannot send an IP address, or no name at all.
        """
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        if not name or name.lower() in self._hosts or "*" in self._hosts:
            return
        try:
            ipaddress.ip_address(name)
        except ValueError:
            hint = "use the address of the service, or serve with --allowed-host NAME"
            raise HostError("unknown host name", where=name, hint=hint) from None


def _bearer(headers: Mapping[bytes, bytes]) -> str:
    scheme, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


class Authenticator:
    """Finds the token of a secret. Answers to wrong ones are counted and delayed."""

    def __init__(self, service: Service, logins: FailedLogins) -> None:
        self._tokens, self._logins = service.tokens, logins
        self._lookups = CapacityLimiter(LOOKUPS)
        self._wrong, self._most_wrong = 0, min(WRONG_AT_ONCE, service.limits.connections // 4)

    async def token(self, secret: str, address: str) -> Token:
        """Raises `TokenError` if it is missing ("") or invalid. `address`: of the client."""
        if not secret:
            raise TokenError("the token is missing", hint="set SYMPHONY_TOKEN, or " + CREATE_TOKEN_HINT)
        token = self._tokens.known(secret)
        if token is None:
            try:
                token = await to_thread.run_sync(self._tokens.find, secret, limiter=self._lookups)
            except (SQLAlchemyError, DamagedDatabaseError) as error:
                raise broken_database(error) from None
            except TokenError:  # it has expired
                self._logins.note(address, token_id(secret))
                raise
        if token is None:
            self._logins.note(address, token_id(secret))
            await self._slow_down()
            raise TokenError("invalid token", hint=CREATE_TOKEN_HINT)
        return token

    async def _slow_down(self) -> None:
        """Delay the answer to an invalid token. Valid ones are never delayed."""
        if self._wrong >= self._most_wrong:
            raise BusyError("too many requests with invalid tokens", hint="try again in a moment")
        self._wrong += 1
        try:
            await asyncio.sleep(WRONG_S)
        finally:
            self._wrong -= 1


def address_of(scope: Scope) -> str:
    """The address of the client; that of the proxy, if there is one."""
    client = scope.get("client")
    return str(client[0]) if client else ""


class Body:
    """The body of a request, with limits of its size and time."""

    def __init__(
        self, receive: Receive, headers: Mapping[bytes, bytes], most: int, option: str, patience: Patience
    ) -> None:
        self._receive, self._most, self._option, self._patience = receive, most, option, patience
        length = headers.get(b"content-length", b"0")
        declared = int(length) if length.isdigit() else 0
        chunked = b"transfer-encoding" in headers
        self.length = most if chunked else declared  # upper bound, bytes
        self.over = not self.length
        self._seen, self._waited_s = 0, 0.0

    def check_length(self) -> None:
        if self.length > self._most:
            raise too_large(self._most, self._option)

    async def __call__(self) -> Message:
        """The next part, as ASGI's `receive`."""
        if self.over:
            return await self._receive()
        left_s = self._patience.body_s + self._seen / self._patience.body_rate - self._waited_s
        began = time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), max(left_s, 0.0))
        except TimeoutError:
            raise SlowError(
                f"only {self._seen} bytes of the body arrived within {self._waited_s + left_s:.0f} s",
                hint="send it faster, or in smaller parts",
            ) from None
        self._waited_s += time.monotonic() - began
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            self.over = not message.get("more_body", False)
            if self._seen > self._most:
                raise too_large(self._most, self._option)
        return message


class _Full(Exception):
    def __init__(self, message: str, hint: str, status: int) -> None:
        self.error, self.status = BusyError(message, hint=hint), status


class UnderWay:
    """Limits the requests under way and the bytes of their bodies, for each user and in all."""

    def __init__(self, body_bytes: int, connections: int) -> None:
        self._bytes, self._bytes_of_a_user = BODIES * body_bytes, BODIES_OF_A_USER * body_bytes
        self._requests_of_a_user = max(connections // 2, 1)
        self._requests: Counter[str] = Counter()
        self._held: Counter[str] = Counter()

    @contextmanager
    def one(self, user: str, size: int) -> Iterator[None]:
        """Admit one request, for the duration of the context; raises `_Full`."""
        if self._requests[user] >= self._requests_of_a_user:
            text = f"{user} has {self._requests[user]} requests under way, and more are not allowed"
            raise _Full(text, "wait for some of them", 429)
        if self._held[user] + size > self._bytes_of_a_user:
            text = f"{user} has too many large requests under way"
            raise _Full(text, "send large requests one after the other", 429)
        if self._held.total() + size > self._bytes:
            raise _Full("too many large requests are under way", "try again in a moment", 503)
        self._requests[user] += 1
        self._held[user] += size
        try:
            yield
        finally:
            _take(self._requests, user, 1)
            _take(self._held, user, size)


def _take(counts: Counter[str], key: str, amount: int) -> None:
    counts[key] -= amount
    if not counts[key]:
        del counts[key]


def refusal(error: SymphonyError, status: int = 0) -> JSONResponse:
    status = status or status_of(error)
    if isinstance(error, DamagedDatabaseError):
        log.error("%s", error)
    headers = {"retry-after": str(max(round(error.retry_s), 1))} if isinstance(error, BusyError) else {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(Refusal(error=ErrorView.of(error)).model_dump(mode="json"), status, headers)


def broken_database(error: SQLAlchemyError | DamagedDatabaseError) -> UnavailableError:
    log.error("the database failed: %s", error)
    return UnavailableError("the database failed", hint="try again later")


def status_of(error: SymphonyError) -> int:
    kinds: list[tuple[type[SymphonyError], int]] = [
        (DamagedDatabaseError, 503),
        (ScopeError, 403),
        (TokenError, 401),
        (UnavailableError, 503),
        (BusyError, 429),
        (JobLostError, 410),
        (UnknownJobError, 404),
        (VersionError, 400),
        (JobError, 409),
        (LimitError, 413),
        (HostError, 421),
        (InputError, 422),
        (SlowError, 408),
        (ServiceError, 409),
    ]
    return next((status for kind, status in kinds if isinstance(error, kind)), 500)
