"""Around every request: whose it is, before any of its body is read; then how large and how slow that may be.

What is refused here is answered with the connection closed behind it: a body that nobody wants is not waited for.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from symphony.problem.errors import (
    BusyError,
    InputError,
    JobError,
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
from symphony.service.blobs import too_large
from symphony.service.connections import TOKEN
from symphony.service.metrics import Metrics
from symphony.service.service import Patience, Service
from symphony.service.tokens import CREATE_TOKEN_HINT, RateLimiter, Token
from symphony.service.wire import PROTOCOL, VERSION_HEADER, ErrorView, Refusal

log = logging.getLogger("symphony.service.http")
PUBLIC = {"/healthz", "/readyz", "/v1/about", "/v1/openapi.json"}  # what needs no token, and has no body
WRONG_S, WRONG_AT_ONCE = 0.25, 32  # that a wrong token waits for its answer, and how many may
BODIES, BODIES_OF_A_USER = 4, 2  # of the largest size that may be on their way, or being read, at once


class SlowError(ServiceError):
    """A body that does not come."""


class HostError(InputError):
    """A request for somebody else."""


class RequestGuard:
    """Lets requests in, counts them, and says what they came to."""

    def __init__(self, app: ASGIApp, service: Service, metrics: Metrics, hosts: frozenset[str]) -> None:
        """`hosts` are the names that it is asked by, in small letters; "*" is any."""
        limits = service.limits
        self._hosts, self._wrong, self._most_wrong = hosts, 0, min(WRONG_AT_ONCE, limits.connections // 4)
        self._app, self._service, self._metrics = app, service, metrics
        self._rates, self._under_way = (
            RateLimiter(limits.requests_per_s),
            UnderWay(limits.body_bytes, limits.connections),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, headers = time.perf_counter(), 500, dict(scope["headers"])
        limits, is_blob = self._service.limits, scope["path"].startswith("/v1/blobs/")
        most, option = (limits.blob_bytes, "--blob-bytes") if is_blob else (limits.body_bytes, "--body-bytes")
        body = Body(receive, headers, most, option, limits.patience)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                more = [(VERSION_HEADER.encode(), str(PROTOCOL).encode())]
                if not body.over:
                    more.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            try:
                self._check_host(headers)
                if scope["path"] in PUBLIC:
                    await self._app(scope, body, answer)
                    return
                token = scope[TOKEN] = await self._whose(headers)
                self._rates.take(token.user)
                body.check_length()
            except SymphonyError as error:
                await refusal(error)(scope, body, answer)
                return
            try:
                with self._under_way.one(token.user, 0 if is_blob else body.length):
                    await self._app(scope, body, answer)
            except _Full as full:
                await refusal(full.error, full.status)(scope, body, answer)
        finally:
            self._metrics.count(scope, status)
            milliseconds = (time.perf_counter() - began) * 1e3
            method, path = readable(scope["method"], 40), readable(scope["path"], 200)
            fields = {"method": method, "path": path, "status": status, "ms": round(milliseconds, 1)}
            more = {"fields": fields, "always": TOKEN in scope}
            log.info("%s %s %d", method, path, status, extra=more)

    def _check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse names that are not ours: a page in a browser can have its own name lead to this address.

        An address, or no name at all, cannot come from such a page.
        """
        given = headers.get(b"host", b"").decode("latin-1")
        name = given.rpartition("]")[0].lstrip("[") if given.startswith("[") else given.partition(":")[0]
        if not name or name.lower() in self._hosts or "*" in self._hosts:
            return
        try:
            ipaddress.ip_address(name)
        except ValueError:
            hint = "use the address that it serves on, or serve with --allowed-host NAME"
            raise HostError("this service is not known by that name", where=name, hint=hint) from None

    async def _whose(self, headers: Mapping[bytes, bytes]) -> Token:
        """The token of a request."""
        scheme, _, given = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise TokenError("a token is missing", hint="set SYMPHONY_TOKEN, or " + CREATE_TOKEN_HINT)
        token = self._service.tokens.known(given.strip())
        if token is None:
            try:
                token = await run_in_threadpool(self._service.tokens.find, given.strip())
            except SQLAlchemyError as error:
                raise broken_database(error) from None
        if token is None:
            await self._slow_down()
            raise TokenError("invalid token", hint=CREATE_TOKEN_HINT)
        return token

    async def _slow_down(self) -> None:
        """Make whoever tries tokens wait. Whoever has a valid one never does."""
        if self._wrong >= self._most_wrong:
            raise BusyError("too many wrong tokens at once", hint="try again in a moment")
        self._wrong += 1
        try:
            await asyncio.sleep(WRONG_S)
        finally:
            self._wrong -= 1


class Body:
    """The body of a request as it comes: its size and the time that it takes are bounded."""

    def __init__(
        self, receive: Receive, headers: Mapping[bytes, bytes], most: int, option: str, patience: Patience
    ) -> None:
        self._receive, self._most, self._option, self._patience = receive, most, option, patience
        length = headers.get(b"content-length", b"0")
        declared = int(length) if length.isdigit() else 0
        chunked = b"transfer-encoding" in headers
        self.length = most if chunked else declared  # bytes at most
        self.over = not self.length
        self._seen, self._waited_s = 0, 0.0

    def check_length(self) -> None:
        """Refuse what says that it is too large."""
        if self.length > self._most:
            raise too_large(self._most, self._option)

    async def __call__(self) -> Message:
        """The next part."""
        if self.over:
            return await self._receive()
        left_s = self._patience.body_s + self._seen / self._patience.body_rate - self._waited_s
        began = time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), max(left_s, 0.0))
        except TimeoutError:
            raise SlowError(
                f"after {self._waited_s + left_s:.0f} s only {self._seen} bytes of the body have come",
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
    """There is no room for one more request at present."""

    def __init__(self, message: str, hint: str, status: int) -> None:
        self.error, self.status = BusyError(message, hint=hint), status


class UnderWay:
    """Requests that are under way, and the bytes of their bodies: of each user, and of all together."""

    def __init__(self, body_bytes: int, connections: int) -> None:
        self._bytes, self._bytes_of_a_user = BODIES * body_bytes, BODIES_OF_A_USER * body_bytes
        self._requests_of_a_user = max(connections // 2, 1)
        self._requests: Counter[str] = Counter()
        self._held: Counter[str] = Counter()

    @contextmanager
    def one(self, user: str, size: int) -> Iterator[None]:
        """One more, for as long as it takes."""
        if self._requests[user] >= self._requests_of_a_user:
            text = f"{self._requests[user]} requests of {user} are under way, and no more are allowed"
            raise _Full(text, "wait for some of them", 429)
        if self._held[user] + size > self._bytes_of_a_user:
            text = f"{BODIES_OF_A_USER} requests of the largest size of {user} are under way, and no more are allowed"
            raise _Full(text, "send large ones one after the other", 429)
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
    """The answer to what cannot be done: one form for all."""
    status = status or status_of(error)
    headers = {"retry-after": str(max(round(error.retry_s), 1))} if isinstance(error, BusyError) else {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(Refusal(error=ErrorView.of(error)).model_dump(mode="json"), status, headers)


def broken_database(error: SQLAlchemyError) -> UnavailableError:
    """What is said when the database cannot be asked; the log says more."""
    log.error("the database does not work: %s", error)
    return UnavailableError("the database does not work", hint="try again when it does")


def status_of(error: SymphonyError) -> int:
    """The status that says whose fault it is."""
    kinds: list[tuple[type[SymphonyError], int]] = [
        (ScopeError, 403),
        (TokenError, 401),
        (UnavailableError, 503),
        (BusyError, 429),
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
