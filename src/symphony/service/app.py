"""The HTTP interface of the service: routes, scopes, and error responses.

Every error response has a `wire.Refusal` as its body, and a status that says whose fault it is.
"""

# No `from __future__ import annotations`: FastAPI could not resolve annotations of functions within a function.

import asyncio
import errno
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path as File
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from symphony.problem import topology_file
from symphony.problem.errors import (
    InputError,
    LimitError,
    SymphonyError,
    UnavailableError,
    UnknownJobError,
    VersionError,
)
from symphony.problem.texts import readable
from symphony.problem.validation_texts import text_of_problem
from symphony.runtime import report
from symphony.service import audit, graphs, tokens, views, wire
from symphony.service.audit import DRAINED, FailedLogins, audit_row
from symphony.service.blobs import Upload, named_in
from symphony.service.connections import TOKEN, Connections
from symphony.service.dashboard.pages import add_pages
from symphony.service.dashboard.row_use import RowUse
from symphony.service.dashboard.sessions import Sessions
from symphony.service.futures import Futures
from symphony.service.guard import Authenticator, RequestGuard, address_of, broken_database, refusal
from symphony.service.health import OK, health
from symphony.service.job_logs import CURSOR_PATTERN
from symphony.service.metrics import Metrics
from symphony.service.service import Service
from symphony.service.state import ServiceJob
from symphony.service.threads import run_in_threadpool
from symphony.service.tls import TlsFiles
from symphony.service.tokens import ADMIN, READ, SUBMIT, Token, check_scope

log = logging.getLogger("symphony.service.http")
MAX_WAIT_S = 60.0
ANY_JOB = 0  # not the number of a job
# Resources that may run out, and what to do.
EXHAUSTED = {
    errno.ENOSPC: "free space on its disk, which is full",
    errno.EDQUOT: "free space on its disk, whose quota is used up",
}
EXHAUSTED |= dict.fromkeys((errno.EMFILE, errno.ENFILE), "try again in a moment, or allow more open files (ulimit -n)")
WHAT_IF_POLL_S = 0.1  # between looks at a what-if
OUTPUT_POLL_S = 0.5  # between polls for output of a job, which causes no event
MAX_JSON_VALUES = 500_000  # of a request; the largest graph has fewer
COUNTED_BYTES = 256 << 10  # in which values are counted at once
MIN_THREADED_BODY_BYTES = 64 << 10  # bodies above are processed in a thread
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    code: {"model": wire.Refusal, "description": text}
    for code, text in {
        400: "unsupported protocol version",
        401: "the token is missing, wrong or expired",
        403: "the token does not allow this",
        404: "not found, or owned by another user",
        408: "the body did not arrive in time",
        409: "the job has not finished, or has no result",
        410: "damage to the journal has destroyed the job",
        413: "too large",
        421: "unknown host name",
        422: "invalid request",
        429: "too many requests",
        503: "stopping, failing or overloaded",
    }.items()
}
REFUSAL_CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
# For routes whose successful response is not JSON.
NON_JSON_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    code: {"description": entry["description"], "content": REFUSAL_CONTENT} for code, entry in ERROR_RESPONSES.items()
}
PROTOCOL_TEXT = str(wire.PROTOCOL)
PROTOCOL_SCHEMA: dict[str, Any] = {"enum": [PROTOCOL_TEXT]}
TokenName = Annotated[str, Path(pattern=r"^[0-9a-f]{8}$")]
Number = Annotated[int, Path(ge=1, le=2**62)]
DigestPath = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]


class BoundedRequest(Request):
    """Refuses JSON with very many values before it is parsed, and parses a large body in a thread: all other requests
    would wait meanwhile.
    """

    model: type[BaseModel]  # of the body

    async def json(self) -> Any:
        body = await self.body()
        if len(body) <= MIN_THREADED_BODY_BYTES:
            return self._parsed(body)
        return await run_in_threadpool(self._parsed, body)

    def _parsed(self, body: bytes) -> BaseModel:
        """The message. FastAPI takes it as it is, and does not check it again."""
        values = 0
        for at in range(0, len(body) if len(body) > MAX_JSON_VALUES else 0, COUNTED_BYTES):
            values += sum(body.count(mark, at, at + COUNTED_BYTES) for mark in (b",", b"{", b"["))
            if values > MAX_JSON_VALUES:
                raise LimitError(
                    f"it has more than {MAX_JSON_VALUES:,} values",
                    hint="split the graph, or send large arguments as blobs",
                )
        try:
            return self.model.model_validate_json(body)
        except ValidationError as error:
            raise InvalidBody(error.errors(include_url=False)) from None


class InvalidBody(Exception):
    """A body that does not follow its model; `errors` as pydantic lists them."""

    def __init__(self, errors: Sequence[Any]) -> None:
        super().__init__()
        self.errors = errors


class BoundedRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        model: Any = None if self.body_field is None else self.body_field.field_info.annotation

        async def bounded(request: Request) -> Response:
            bounded_request = BoundedRequest(request.scope, request.receive)
            if model is not None:
                bounded_request.model = model
            return await handler(bounded_request)

        return bounded


async def encoded(view: Callable[..., BaseModel], *arguments: Any) -> Response:
    """A view that may be large, as an answer; it is made and encoded in a thread."""

    def made() -> Response:
        return Response(view(*arguments).model_dump_json(), media_type="application/json")

    return await run_in_threadpool(made)


class JobChanges:
    """Lets requests wait for changes of a job."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()

    def notify(self, jobs: set[int]) -> None:
        """Wake the requests that wait for these jobs. Thread-safe: a request that starts to wait checks its condition
        first.
        """
        waited_for = ANY_JOB in self._waiting or any(job in self._waiting for job in jobs)
        if waited_for and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, jobs)

    def _wake(self, jobs: set[int]) -> None:
        for job in (ANY_JOB, *jobs):
            for event in self._waiting.get(job, ()):
                event.set()

    async def until(self, job: int, done: Callable[[], bool], seconds: float) -> None:
        """Wait until `done()`, which is checked at every change of the job (or `ANY_JOB`), for at most `seconds`."""
        deadline = time.monotonic() + min(seconds, MAX_WAIT_S)
        event = asyncio.Event()
        self._waiting.setdefault(job, set()).add(event)
        try:
            while not done() and (left := deadline - time.monotonic()) > 0:
                event.clear()
                try:
                    await asyncio.wait_for(event.wait(), left)
                except TimeoutError:
                    return
        finally:
            self._waiting[job].discard(event)
            if not self._waiting[job]:
                del self._waiting[job]


def make_app(
    service: Service,
    connections: Connections,
    logins: FailedLogins,
    hosts: frozenset[str],
    tls: TlsFiles | None = None,
    rows: RowUse | None = None,
) -> FastAPI:
    """The FastAPI application of a service; `hosts` are its accepted host names. `rows`: sampled by the caller."""
    changes, metrics, futures = JobChanges(), Metrics(connections), Futures(service)
    service.listeners += changes.notify, futures.ended
    service.sweeps.append(futures.sweep)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        changes.begin()
        yield
        futures.close()

    app = FastAPI(
        title="Symphony",
        version=version("symphony-scheduler"),
        description="Schedules graphs of kernels on a cluster. Tokens: `Authorization: Bearer sy_…`.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
    )
    app.router.route_class = BoundedRoute
    bearer = HTTPBearer(auto_error=False, description="made by `symphony token create`")
    authenticator, sessions = Authenticator(service, logins), Sessions()
    app.add_middleware(
        RequestGuard, service=service, metrics=metrics, authenticator=authenticator, sessions=sessions, hosts=hosts
    )

    async def user(
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
        protocol: Annotated[
            str, Header(alias=wire.VERSION_HEADER, description="of the client", json_schema_extra=PROTOCOL_SCHEMA)
        ] = PROTOCOL_TEXT,
    ) -> Token:
        del credentials  # for the schema: `RequestGuard` has checked them
        if protocol != PROTOCOL_TEXT:
            raise VersionError(
                f"the client uses protocol {protocol[:20]}, this service {wire.PROTOCOL}",
                hint=f"install Symphony {version('symphony-scheduler')} on both sides",
            )
        token: Token = request.scope[TOKEN]
        return token

    def having(scope: str) -> Callable[[Token], Awaitable[Token]]:
        async def check(token: Annotated[Token, Depends(user)]) -> Token:
            check_scope(token, scope)
            return token

        return check

    Submitter = Annotated[Token, Depends(having(SUBMIT))]
    Reader = Annotated[Token, Depends(having(READ))]
    Admin = Annotated[Token, Depends(having(ADMIN))]

    # --- error responses

    @app.exception_handler(SymphonyError)
    async def refused(_: Request, error: SymphonyError) -> JSONResponse:
        return refusal(error)

    @app.exception_handler(SQLAlchemyError)
    async def stuck(_: Request, error: SQLAlchemyError) -> JSONResponse:
        return refusal(broken_database(error))

    @app.exception_handler(OSError)
    async def exhausted(request: Request, error: OSError) -> JSONResponse:
        if error.errno not in EXHAUSTED:
            raise error
        log.error("%s %s: %s", request.method, readable(request.url.path, longest=200), error.strerror)
        return refusal(
            UnavailableError(f"the service is out of resources: {error.strerror}", hint=EXHAUSTED[error.errno])
        )

    @app.exception_handler(views.JobEnded)
    async def ended(_: Request, error: views.JobEnded) -> JSONResponse:
        return JSONResponse(wire.Refusal(error=error.problem).model_dump(mode="json"), 409)

    @app.exception_handler(RequestValidationError)
    async def wrong(_: Request, error: RequestValidationError) -> JSONResponse:
        if isinstance(error.body, bytes):  # FastAPI has not parsed it
            hint = "send it with the header content-type: application/json"
            return refusal(InputError("the body is not called JSON", hint=hint))
        return JSONResponse(wire.Refusal(error=first_validation_error(error.errors())).model_dump(mode="json"), 422)

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> JSONResponse:
        cause = error.__cause__  # raised while the body was read
        if isinstance(cause, SymphonyError):
            return refusal(cause)
        if isinstance(cause, InvalidBody):
            return JSONResponse(wire.Refusal(error=first_validation_error(cause.errors)).model_dump(mode="json"), 422)
        problem = wire.ErrorView(kind="ServiceError", message=str(error.detail).lower(), hint="see /v1/openapi.json")
        body = wire.Refusal(error=problem).model_dump(mode="json")
        return JSONResponse(body, error.status_code, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> JSONResponse:
        problem = wire.ErrorView(kind="ServiceError", message="internal error", hint="see the log of the service")
        return JSONResponse(wire.Refusal(error=problem).model_dump(mode="json"), 500)

    # --- jobs

    @app.post(
        "/v1/jobs",
        status_code=201,
        responses=ERROR_RESPONSES | {200: {"model": wire.JobView, "description": "it existed already"}},
    )
    async def submit(
        sent: wire.Submit,
        request: Request,
        response: Response,
        token: Submitter,
        key: Annotated[
            str, Header(alias=wire.KEY_HEADER, max_length=200, description="requests with the same key make one job")
        ] = "",
    ) -> wire.JobView:
        """Submit a graph. It is accepted and journalled when this returns."""
        began = time.perf_counter()
        body = await request.body()
        if len(body) > MIN_THREADED_BODY_BYTES or named_in(graphs.values(sent.graph)):
            future = await run_in_threadpool(service.submit, token, sent, body, key)
        else:
            future = service.submit(token, sent, body, key)
        view, new = await asyncio.wrap_future(future)
        response.status_code = 201 if new else 200
        metrics.submit_s.add(time.perf_counter() - began)
        return view

    @app.get("/v1/jobs", responses=ERROR_RESPONSES)
    async def jobs(
        token: Reader,
        status: Literal["", "waiting", "running", "done", "failed", "cancelled"] = "",
        before: Annotated[int, Query(ge=0, le=2**62, description="only jobs with smaller numbers")] = 0,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 50,
        everybody: Annotated[bool, Query(alias="all", description="needs scope admin")] = False,
    ) -> wire.JobList:
        """The newest jobs."""
        found = service.jobs(token, everybody=everybody, status=status, before=before, most=limit)
        return wire.JobList(jobs=[service.running.view(job) for job in found])

    @app.get("/v1/ended", responses=ERROR_RESPONSES)
    async def ended_jobs(
        token: Reader,
        after: Annotated[int, Query(ge=0, le=2**62, description="`next` of the previous answer, or a `change`")],
        wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="seconds to wait for one")] = 0.0,
    ) -> wire.EndedJobs:
        """The user's jobs that have ended since; with `wait_s`, once there is one, or no job is left."""

        def some_or_all() -> bool:
            record = service.state.users.get(token.user)
            return record is None or not record.open or bool(record.ended and record.ended[-1][0] > after)

        if wait_s:
            await changes.until(ANY_JOB, some_or_all, wait_s)
        last, record = service.state.events, service.state.users.get(token.user)
        found = record.ended_between(after, last) if record is not None else []
        jobs = [job for number in found if (job := service.state.jobs.get(number)) is not None]
        return wire.EndedJobs(jobs=[service.running.view(job) for job in jobs], next=max(last, after))

    @app.get("/v1/jobs/{number}", responses=ERROR_RESPONSES)
    async def job(
        number: Number,
        token: Reader,
        wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="seconds to wait for a change")] = 0.0,
        since: Annotated[int, Query(ge=0, le=2**62, description="a `change`; 0: wait until the job has ended")] = 0,
    ) -> wire.JobView:
        """A job; with `wait_s`, once it has ended, or has changed since `since`."""
        current = service.job(token, number)
        if wait_s:
            await changes.until(number, lambda: current.over or (since > 0 and current.change > since), wait_s)
        return service.running.view(current)

    @app.get("/v1/jobs/{number}/tasks", response_model=wire.JobDetail, responses=ERROR_RESPONSES)
    async def tasks(number: Number, token: Reader) -> Response:
        """A job with its tasks, and every run of each."""
        return await encoded(views.detail, service, service.job(token, number))

    @app.get("/v1/jobs/{number}/result", response_model=wire.ResultView, responses=ERROR_RESPONSES)
    async def result(number: Number, token: Reader) -> Response:
        """The result of a job: pickled values. Unpickle only your own jobs': a pickle can run any code."""
        return await encoded(views.outcome, service, service.job(token, number))

    @app.get("/v1/jobs/{number}/explain", responses=ERROR_RESPONSES)
    async def explain(number: Number, token: Reader) -> wire.ExplanationView:
        """Where each task ran, how long it waited and took, and what was expected."""
        return wire.ExplanationView(
            text=await run_in_threadpool(views.explanation, service, service.job(token, number))
        )

    @app.get("/v1/jobs/{number}/trace", response_model=dict[str, Any], responses=ERROR_RESPONSES)
    async def trace(number: Number, token: Reader) -> JSONResponse:
        """The runs of a job as a trace for chrome://tracing or ui.perfetto.dev."""
        job = service.job(token, number)
        return await run_in_threadpool(
            lambda: JSONResponse(report.trace(views.job_history(views.detail(service, job))))
        )

    @app.get("/v1/jobs/{number}/logs", responses=ERROR_RESPONSES)
    async def logs(
        number: Number,
        token: Reader,
        after: Annotated[
            str,
            Query(
                max_length=20_000, pattern=f"^({CURSOR_PATTERN.pattern})?$", description="`next` of the previous page"
            ),
        ] = "",
        wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="seconds to wait for a line")] = 0.0,
    ) -> wire.Logs:
        """Events and output of a job so far, in order; `more`: there is another page already."""
        job, deadline = service.job(token, number), time.monotonic() + wait_s
        while True:
            seen = job.change
            page = await run_in_threadpool(views.logs, service, job, after)
            left = deadline - time.monotonic()
            if page.lines or page.over or left <= 0:
                return page
            await changes.until(number, partial(_changed, job, seen), min(left, OUTPUT_POLL_S))

    @app.post("/v1/jobs/{number}/cancel", responses=ERROR_RESPONSES)
    async def cancel(number: Number, request: Request, token: Submitter) -> wire.JobView:
        """Cancel a job: running tasks are killed. Does nothing if it has ended."""
        return await asyncio.wrap_future(service.cancel(token, number, address_of(request.scope)))

    # --- blobs

    @app.head("/v1/blobs/{digest}", responses=ERROR_RESPONSES)
    async def has_blob(digest: DigestPath, token: Submitter) -> Response:
        """Whether a blob exists; if so, it is kept for another hour."""
        size = await run_in_threadpool(service.blob_size, token, digest)
        if size < 0:
            raise UnknownJobError("there is no such blob")
        await asyncio.wrap_future(service.keep_blob(token, digest, size))
        return Response()

    @app.put("/v1/blobs/{digest}", responses=ERROR_RESPONSES, openapi_extra=RAW_BODY)
    async def put_blob(digest: DigestPath, request: Request, token: Submitter) -> Response:
        """Upload bytes with this SHA-256; they are kept for an hour, and as long as a job uses them."""
        size = int(request.headers.get("content-length", 0))
        reserved = service.room(token, digest, size)
        most = await run_in_threadpool(reserved.__enter__)
        try:
            upload = Upload(service.blobs, digest, most, size)
            try:
                async for part in request.stream():
                    upload.add(part)
                await run_in_threadpool(upload.end)
            finally:
                upload.close()
            await asyncio.wrap_future(service.keep_blob(token, digest, upload.size))
        finally:
            reserved.__exit__(None, None, None)
        return Response(status_code=204)

    @app.get("/v1/blobs/{digest}", responses=NON_JSON_ERROR_RESPONSES, response_class=FileResponse)
    async def get_blob(digest: DigestPath, token: Reader) -> FileResponse:
        if await run_in_threadpool(service.blob_size, token, digest) < 0:
            raise UnknownJobError("there is no such blob")
        return FileResponse(File(service.blobs.path(digest)), media_type="application/octet-stream")

    # --- administration

    async def existing(name: str) -> Token:
        try:
            return await run_in_threadpool(tokens.existing, service.database, name)
        except InputError as error:
            raise UnknownJobError(error.message, hint=error.hint) from None

    @app.get("/v1/tokens", responses=ERROR_RESPONSES)
    async def list_tokens(token: Admin) -> wire.TokenList:
        """All tokens, without their secrets."""
        found = await run_in_threadpool(tokens.listed, service.database)
        return wire.TokenList(tokens=[one.view() for one in found])

    @app.post("/v1/tokens", status_code=201, responses=ERROR_RESPONSES)
    async def create_token(sent: wire.NewToken, request: Request, token: Admin) -> wire.IssuedToken:
        """Create a token. Its text is in this answer only: the service stores a hash."""
        by = token.actor(address_of(request.scope))
        change = tokens.creation(by, sent.user, tuple(sent.scopes), days=sent.days, priority=sent.priority)
        await asyncio.wrap_future(service.change_tokens(change))
        return wire.IssuedToken(token=change.text, about=change.token.view())

    @app.post("/v1/tokens/{name}/rotate", status_code=201, responses=ERROR_RESPONSES)
    async def rotate_token(name: TokenName, sent: wire.RotateToken, request: Request, token: Admin) -> wire.IssuedToken:
        """Replace a token by a new one of the same user and scopes; the old one ends after `grace_s`."""
        old = await existing(name)
        by = token.actor(address_of(request.scope))
        change = tokens.rotation(by, old, days=sent.days, grace_s=sent.grace_s)
        await asyncio.wrap_future(service.change_tokens(change))
        return wire.IssuedToken(token=change.text, about=change.token.view())

    @app.post("/v1/tokens/{name}/revoke", responses=ERROR_RESPONSES)
    async def revoke_token(name: TokenName, request: Request, token: Admin) -> wire.TokenView:
        """Revoke a token."""
        old = await existing(name)
        change = tokens.revocation(token.actor(address_of(request.scope)), old)
        return (await asyncio.wrap_future(service.change_tokens(change))).view()

    @app.get("/v1/audit", responses=ERROR_RESPONSES)
    async def read_audit(
        token: Admin,
        since: Annotated[float, Query(ge=0, le=2**62, description="seconds since 1970")] = 0.0,
        after: Annotated[int, Query(ge=0, le=2**31 - 1, description="only entries with larger IDs")] = 0,
        action: Annotated[str, Query(max_length=32, pattern="^[a-z-]*$")] = "",
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
    ) -> wire.AuditLog:
        """The audit log, oldest first: the newest entries, or with `after` those that follow an ID."""
        found = await run_in_threadpool(
            audit.read_audit, service.database, since, after=after, action=action, limit=limit
        )
        return wire.AuditLog(entries=found)

    # --- the cluster

    @app.get("/v1/cluster", responses=ERROR_RESPONSES)
    async def cluster(token: Reader) -> wire.ClusterView:
        """Devices, what runs there, users, and statistics of the scheduler."""
        return views.cluster(service, everybody=ADMIN in token.scopes, user=token.user)

    @app.get("/v1/usage", responses=ERROR_RESPONSES)
    async def usage(
        token: Reader,
        since_s: Annotated[float, Query(ge=0, le=1e12, description="seconds since 1970")] = 0.0,
        everybody: Annotated[bool, Query(alias="all", description="needs scope admin")] = False,
    ) -> wire.Usage:
        """Device time and jobs of the user, or of all users, since a time."""
        if everybody:
            check_scope(token, ADMIN)
        return views.usage(service, everybody=everybody, user=token.user, since_s=since_s)

    @app.get("/v1/forecasts", responses=ERROR_RESPONSES)
    async def forecasts(
        token: Reader,
        share: Annotated[float, Query(gt=0, lt=1, description="probability that the bands should cover")] = 0.8,
    ) -> wire.Forecasts:
        """Forecasts for training jobs that run or wait: speed, start, end, and slow-down by neighbours."""
        everybody = ADMIN in token.scopes
        return await run_in_threadpool(views.forecasts, service, everybody=everybody, user=token.user, share=share)

    @app.get("/v1/jobs/{number}/when", responses=ERROR_RESPONSES)
    async def when(
        number: Number,
        token: Reader,
        share: Annotated[float, Query(gt=0, lt=1, description="probability that the bands should cover")] = 0.8,
    ) -> wire.When:
        """When a job starts and ends, with bands calibrated from the record of forecasts."""
        return await run_in_threadpool(futures.when, service.job(token, number), share)

    @app.get("/v1/jobs/{number}/why", responses=ERROR_RESPONSES)
    async def why(number: Number, token: Reader) -> wire.Why:
        """Why a job waits, what is ahead of it, and the smallest change that would help."""
        return await run_in_threadpool(futures.why, token, service.job(token, number))

    @app.post("/v1/whatif", status_code=202, responses=ERROR_RESPONSES)
    async def ask_what_if(sent: wire.AskWhatIf, token: Reader) -> wire.WhatIfView:
        """Play a change: on the open jobs, or on journalled ones again. Nothing is changed in the service."""
        return await run_in_threadpool(futures.ask, token, sent)

    @app.get("/v1/whatif/{number}", responses=ERROR_RESPONSES)
    async def what_if(
        number: Number,
        token: Reader,
        wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="seconds to wait for the answer")] = 0.0,
    ) -> wire.WhatIfView:
        """A change that is being played, or its answer. Own ones only; the last few are kept."""
        deadline = time.monotonic() + wait_s
        while (found := futures.what_if(token, number)).state == "running" and time.monotonic() < deadline:
            await asyncio.sleep(WHAT_IF_POLL_S)
        return found

    @app.get("/v1/record", responses=ERROR_RESPONSES)
    async def record(
        token: Reader, everybody: Annotated[bool, Query(alias="all", description="needs scope admin")] = False
    ) -> wire.RecordView:
        """How often forecasts were right: of the user's jobs, or of all."""
        if everybody:
            check_scope(token, ADMIN)
        return await run_in_threadpool(partial(futures.view, token, everybody=everybody))

    @app.get("/v1/topology", responses=ERROR_RESPONSES)
    async def topology(token: Reader) -> wire.TopologyFile:
        """The devices of the cluster and what they share."""
        return wire.TopologyFile(toml=topology_file.dumps(service.cluster.topology))

    @app.get("/v1/profiles", responses=ERROR_RESPONSES)
    async def profiles(token: Reader) -> wire.ProfileFile:
        """Learned profiles of the user's own kernels."""
        content = service.cluster.profiles.content()
        prefix = f"{token.user}:"
        if ADMIN not in token.scopes:
            for part in ("timings", "demands", "seen"):
                content[part] = [one for one in content[part] if one["kernel"].startswith(prefix)]
        return wire.ProfileFile.model_validate(content)

    @app.post("/v1/drain", responses=ERROR_RESPONSES)
    async def drain(request: Request, token: Admin) -> wire.About:
        """Accept and admit no more jobs; running ones continue. A restart ends this."""
        service.drain(0.0)
        service.note(audit_row(token.actor(address_of(request.scope)), DRAINED))
        return await about()

    @app.get("/v1/about")
    @app.get("/healthz")
    async def about() -> wire.About:
        """Version and status of the service. Needs no token."""
        ready = not service.draining and not service.ledger.stuck and not service.failed.is_set()
        return wire.About(
            version=version("symphony-scheduler"),
            ready=ready,
            draining=service.draining,
            trouble=connections.trouble,
            containment=list(service.contained),
            degraded=[part.name for part in health(service, connections, tls).parts if part.state != OK],
        )

    @app.get("/v1/health", responses=ERROR_RESPONSES)
    async def parts(token: Reader) -> wire.Health:
        """Which parts of the service are degraded, and what to do about them."""
        return health(service, connections, tls)

    @app.get("/v1/me", responses=ERROR_RESPONSES)
    async def me(token: Annotated[Token, Depends(user)]) -> wire.Me:
        """The user and the scopes of the token."""
        return wire.Me(user=token.user, scopes=sorted(token.scopes))

    @app.get("/readyz", responses={503: {"model": wire.About, "description": "it accepts no jobs at present"}})
    async def ready(response: Response) -> wire.About:
        """Whether it accepts jobs."""
        status = await about()
        response.status_code = 200 if status.ready else 503
        return status

    @app.get("/metrics", response_class=PlainTextResponse, responses=NON_JSON_ERROR_RESPONSES)
    async def figures(token: Reader) -> PlainTextResponse:
        """Metrics for Prometheus."""
        text = await run_in_threadpool(metrics.text, service, futures)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    add_pages(app, service, authenticator, sessions, rows or RowUse(service.cluster))
    return app


RAW_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def _changed(job: ServiceJob, since: int) -> bool:
    return job.change > since


def first_validation_error(errors: Any) -> wire.ErrorView:
    """The first error in a request, and where it is."""
    first = errors[0] if errors else {"loc": (), "msg": "the request is invalid"}
    place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path", "header"))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    text = text_of_problem(first) if "type" in first else first["msg"]
    return wire.ErrorView.of(InputError(f"{text}{more}", where=place, hint="see /v1/openapi.json"))
