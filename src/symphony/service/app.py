"""HTTP: who asks, for what, and how it is answered. What is done is the service's.

Every answer that is an error has one form (`wire.Refusal`), and a status that says whose fault it is.
"""

# Without `annotations` from the future: FastAPI reads those of functions within a function, whose names it cannot find.

import asyncio
import errno
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path as File
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from symphony.problem import topology_file
from symphony.problem.errors import (
    InputError,
    SymphonyError,
    UnavailableError,
    UnknownJobError,
    VersionError,
)
from symphony.problem.texts import readable
from symphony.runtime import report
from symphony.service import graphs, views
from symphony.service.blobs import Upload, named_in
from symphony.service.connections import TOKEN, Connections
from symphony.service.guard import RequestGuard, broken_database, refusal
from symphony.service.job_logs import CURSOR_PATTERN
from symphony.service.metrics import Metrics
from symphony.service.service import Service
from symphony.service.state import ServiceJob
from symphony.service.tokens import ADMIN, READ, SUBMIT, Token, check_scope
from symphony.service.wire import (
    KEY_HEADER,
    PROTOCOL,
    VERSION_HEADER,
    About,
    ClusterView,
    ErrorView,
    ExplanationView,
    Forecasts,
    JobDetail,
    JobList,
    JobView,
    Logs,
    Me,
    ProfileFile,
    Refusal,
    ResultView,
    Submit,
    TopologyFile,
)

log = logging.getLogger("symphony.service.http")
MAX_WAIT_S = 60.0
# What there may be too little of, and what to do.
EXHAUSTED = {errno.ENOSPC: "its disk is full: make room", errno.EDQUOT: "its disk quota is used up: make room"}
EXHAUSTED |= dict.fromkeys((errno.EMFILE, errno.ENFILE), "try again in a moment; or allow more files (ulimit -n)")
OUTPUT_POLL_S = 0.5  # between two looks for what a job has written, which no event tells of
MIN_THREADED_BODY_BYTES = 256 << 10  # bytes of a body from which on it is read by another thread
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    code: {"model": Refusal, "description": text}
    for code, text in {
        400: "the protocol is another",
        401: "the token is missing, wrong or expired",
        403: "the token may not do this",
        404: "there is no such thing, or it is somebody else's",
        408: "the body did not come in time",
        409: "not now: the job is not over, or has no result",
        413: "too large",
        421: "for somebody else: the host is not known",
        422: "wrong in itself",
        429: "too much at once",
        503: "about to stop, not able to, or too much to do",
    }.items()
}
REFUSAL_CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
# For routes that answer in another form when all is well.
NON_JSON_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    code: {"description": told["description"], "content": REFUSAL_CONTENT} for code, told in ERROR_RESPONSES.items()
}
PROTOCOL_TEXT = str(PROTOCOL)
PROTOCOL_SCHEMA: dict[str, Any] = {"enum": [PROTOCOL_TEXT]}
Number = Annotated[int, Path(ge=1, le=2**62)]
DigestPath = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]


class JobChanges:
    """Lets requests wait until something happens to a job."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """From now on, in this event loop."""
        self._loop = asyncio.get_running_loop()

    def tell(self, jobs: set[int]) -> None:
        """Something has happened; any thread may say so. (Who begins to wait just now looks before he does.)"""
        awaited = any(job in self._waiting for job in jobs)
        if awaited and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, jobs)

    def _wake(self, jobs: set[int]) -> None:
        for job in jobs:
            for event in self._waiting.get(job, ()):
                event.set()

    async def until(self, job: int, done: Callable[[], bool], seconds: float) -> None:
        """Until something is so, at most so long."""
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


def make_app(service: Service, connections: Connections, hosts: frozenset[str]) -> FastAPI:
    """The application of a service, reached by some connections and under some names."""
    changes, metrics = JobChanges(), Metrics(connections)
    service.listeners.append(changes.tell)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        changes.begin()
        yield

    app = FastAPI(
        title="Symphony",
        version=version("symphony-scheduler"),
        description="Schedules graphs of kernels on a cluster. Tokens: `Authorization: Bearer sy_…`.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
    )
    bearer = HTTPBearer(auto_error=False, description="made by `symphony token create`")
    app.add_middleware(RequestGuard, service=service, metrics=metrics, hosts=hosts)

    # --- who asks

    async def user(
        request: Request,
        given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
        spoken: Annotated[
            str, Header(alias=VERSION_HEADER, description="of the client", json_schema_extra=PROTOCOL_SCHEMA)
        ] = PROTOCOL_TEXT,
    ) -> Token:
        del given  # for the schema: `RequestGuard` has looked at it
        if spoken != PROTOCOL_TEXT:
            raise VersionError(
                f"the client speaks protocol {spoken[:20]}, this service {PROTOCOL}",
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

    # --- what is answered when something is wrong

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
        log.error("%s %s: %s", request.method, readable(request.url.path, 200), error.strerror)
        return refusal(UnavailableError(f"the service cannot go on: {error.strerror}", hint=EXHAUSTED[error.errno]))

    @app.exception_handler(views.JobEnded)
    async def ended(_: Request, found: views.JobEnded) -> JSONResponse:
        return JSONResponse(Refusal(error=found.problem).model_dump(mode="json"), 409)

    @app.exception_handler(RequestValidationError)
    async def wrong(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse(Refusal(error=first_validation_error(error.errors())).model_dump(mode="json"), 422)

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, SymphonyError):  # raised while a body was read
            return refusal(error.__cause__)
        problem = ErrorView(kind="ServiceError", message=str(error.detail).lower(), hint="see /v1/openapi.json")
        body = Refusal(error=problem).model_dump(mode="json")
        return JSONResponse(body, error.status_code, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> JSONResponse:
        problem = ErrorView(kind="ServiceError", message="the service failed to answer", hint="its log says why")
        return JSONResponse(Refusal(error=problem).model_dump(mode="json"), 500)

    # --- jobs

    @app.post(
        "/v1/jobs",
        status_code=201,
        responses=ERROR_RESPONSES | {200: {"model": JobView, "description": "it was there"}},
    )
    async def submit(
        sent: Submit,
        request: Request,
        response: Response,
        token: Submitter,
        key: Annotated[str, Header(alias=KEY_HEADER, max_length=200, description="one key, one job")] = "",
    ) -> JobView:
        """Submit a graph; it is accepted when this is answered."""
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
        before: Annotated[int, Query(ge=0, le=2**62, description="only older ones than this")] = 0,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 50,
        everybody: Annotated[bool, Query(alias="all", description="needs scope admin")] = False,
    ) -> JobList:
        """The newest jobs."""
        found = service.jobs(token, everybody=everybody, status=status, before=before, most=limit)
        return JobList(jobs=[service.running.view(job) for job in found])

    @app.get("/v1/jobs/{number}", responses=ERROR_RESPONSES)
    async def job(
        number: Number,
        token: Reader,
        wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="wait so long for a change")] = 0.0,
        since: Annotated[int, Query(ge=0, le=2**62, description="a `change`; 0: wait until it is over")] = 0,
    ) -> JobView:
        """A job; with `wait_s`, when it is over, or has changed since `since`."""
        found = service.job(token, number)
        if wait_s:
            await changes.until(number, lambda: found.over or (since > 0 and found.change > since), wait_s)
        return service.running.view(found)

    @app.get("/v1/jobs/{number}/tasks", responses=ERROR_RESPONSES)
    async def tasks(number: Number, token: Reader) -> JobDetail:
        """A job with its tasks, and every run of each."""
        return await run_in_threadpool(views.detail, service, service.job(token, number))

    @app.get("/v1/jobs/{number}/result", responses=ERROR_RESPONSES)
    async def result(number: Number, token: Reader) -> ResultView:
        """What a job results in: pickled values. Who did not submit it must not unpickle them: that runs its code."""
        return await run_in_threadpool(views.outcome, service, service.job(token, number))

    @app.get("/v1/jobs/{number}/explain", responses=ERROR_RESPONSES)
    async def explain(number: Number, token: Reader) -> ExplanationView:
        """What ran where, how long it waited and took, and what had been expected."""
        return ExplanationView(text=await run_in_threadpool(views.explanation, service, service.job(token, number)))

    @app.get("/v1/jobs/{number}/trace", responses=ERROR_RESPONSES)
    async def trace(number: Number, token: Reader) -> dict[str, Any]:
        """The same for chrome://tracing or ui.perfetto.dev."""
        return report.trace(
            views.job_history(await run_in_threadpool(views.detail, service, service.job(token, number)))
        )

    @app.get("/v1/jobs/{number}/logs", responses=ERROR_RESPONSES)
    async def logs(
        number: Number,
        token: Reader,
        after: Annotated[
            str, Query(max_length=20_000, pattern=f"^({CURSOR_PATTERN.pattern})?$", description="`next` of an answer")
        ] = "",
        wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="wait so long for a line")] = 0.0,
    ) -> Logs:
        """What happened to a job and what it has written so far, in order; `more`: ask again, there is more."""
        found, deadline = service.job(token, number), time.monotonic() + wait_s
        while True:
            seen = found.change
            page = await run_in_threadpool(views.logs, service, found, after)
            left = deadline - time.monotonic()
            if page.lines or page.over or left <= 0:
                return page
            await changes.until(number, partial(_changed, found, seen), min(left, OUTPUT_POLL_S))

    @app.post("/v1/jobs/{number}/cancel", responses=ERROR_RESPONSES)
    async def cancel(number: Number, token: Submitter) -> JobView:
        """Stop a job: what runs is killed, what waits never starts. Does nothing if it is over."""
        return await asyncio.wrap_future(service.cancel(token, number))

    # --- blobs

    @app.head("/v1/blobs/{digest}", responses=ERROR_RESPONSES)
    async def has_blob(digest: DigestPath, token: Submitter) -> Response:
        """Whether a blob is there, to be named in a job within the hour."""
        size = await run_in_threadpool(service.blob_size, token, digest)
        if size < 0:
            raise UnknownJobError("there is no such blob")
        await asyncio.wrap_future(service.keep_blob(token, digest, size))
        return Response()

    @app.put("/v1/blobs/{digest}", responses=ERROR_RESPONSES, openapi_extra=RAW_BODY)
    async def put_blob(digest: DigestPath, request: Request, token: Submitter) -> Response:
        """Send bytes that have this SHA-256; they are kept for an hour, or as long as a job names them."""
        upload = Upload(service.blobs, digest, service.limits.blob_bytes, int(request.headers.get("content-length", 0)))
        try:
            async for part in request.stream():
                upload.add(part)
            await run_in_threadpool(upload.end)
        finally:
            upload.close()
        await asyncio.wrap_future(service.keep_blob(token, digest, upload.size))
        return Response(status_code=204)

    @app.get("/v1/blobs/{digest}", responses=NON_JSON_ERROR_RESPONSES, response_class=FileResponse)
    async def get_blob(digest: DigestPath, token: Reader) -> FileResponse:
        """Bytes of a result."""
        if await run_in_threadpool(service.blob_size, token, digest) < 0:
            raise UnknownJobError("there is no such blob")
        return FileResponse(File(service.blobs.path(digest)), media_type="application/octet-stream")

    # --- the cluster

    @app.get("/v1/cluster", responses=ERROR_RESPONSES)
    async def cluster(token: Reader) -> ClusterView:
        """Devices, what runs there, who waits, and how deciding goes."""
        return views.cluster(service, everybody=ADMIN in token.scopes, user=token.user)

    @app.get("/v1/forecasts", responses=ERROR_RESPONSES)
    async def forecasts(
        token: Reader,
        share: Annotated[float, Query(gt=0, lt=1, description="of what happens, to be within the bands")] = 0.8,
    ) -> Forecasts:
        """What training jobs that run or wait may expect: speed, start and end, what they lose to whom."""
        everybody = ADMIN in token.scopes
        return await run_in_threadpool(views.forecasts, service, everybody=everybody, user=token.user, share=share)

    @app.get("/v1/topology", responses=ERROR_RESPONSES)
    async def topology(token: Reader) -> TopologyFile:
        """The devices of the cluster, and what they share."""
        return TopologyFile(toml=topology_file.dumps(service.cluster.topology))

    @app.get("/v1/profiles", responses=ERROR_RESPONSES)
    async def profiles(token: Reader) -> ProfileFile:
        """How long one's own kernels take, learned by running them."""
        content = service.cluster.profiles.content()
        mine = f"{token.user}:"
        if ADMIN not in token.scopes:
            for part in ("timings", "demands", "seen"):
                content[part] = [one for one in content[part] if one["kernel"].startswith(mine)]
        return ProfileFile.model_validate(content)

    @app.post("/v1/drain", responses=ERROR_RESPONSES)
    async def drain(token: Admin) -> About:
        """Accept nothing new and let nothing in; what runs goes on. A restart ends it."""
        service.drain(0.0)
        return about()

    @app.get("/v1/about")
    async def about_() -> About:
        """What this is. Needs no token."""
        return about()

    def about() -> About:
        ready = not service.draining and not service.ledger.stuck and not service.failed.is_set()
        return About(
            version=version("symphony-scheduler"), ready=ready, draining=service.draining, trouble=connections.trouble
        )

    @app.get("/v1/me", responses=ERROR_RESPONSES)
    async def me(token: Annotated[Token, Depends(user)]) -> Me:
        """Whose token this is: a client runs no code of others."""
        return Me(user=token.user, scopes=sorted(token.scopes))

    @app.get("/healthz")
    async def health() -> About:
        """Whether it is alive."""
        return about()

    @app.get("/readyz", responses={503: {"model": About, "description": "it takes no jobs at present"}})
    async def ready(response: Response) -> About:
        """Whether it takes jobs."""
        found = about()
        response.status_code = 200 if found.ready else 503
        return found

    @app.get("/metrics", response_class=PlainTextResponse, responses=NON_JSON_ERROR_RESPONSES)
    async def figures(token: Reader) -> PlainTextResponse:
        """Figures for Prometheus."""
        text = await run_in_threadpool(metrics.text, service)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    return app


RAW_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def _changed(job: ServiceJob, since: int) -> bool:
    return job.change > since


def first_validation_error(errors: Any) -> ErrorView:
    """The first thing that is wrong with a message, and where."""
    first = errors[0] if errors else {"loc": (), "msg": "it is wrong"}
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return ErrorView.of(InputError(f"{first['msg']}{more}", where=place, hint="see /v1/openapi.json"))
