"""The routes of the pages. All of them need a session (`guard.py`), except login and static files."""

# No `from __future__ import annotations`: FastAPI could not resolve annotations of functions within a function.

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from importlib.metadata import version
from pathlib import Path as File
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException

from symphony.problem.errors import InputError, LimitError, SymphonyError, TokenError, UnknownJobError
from symphony.problem.units import show
from symphony.runtime import report
from symphony.runtime.profiles import Profiles
from symphony.service import views
from symphony.service.connections import TOKEN
from symphony.service.dashboard import timeline
from symphony.service.dashboard.pictures import MAX_DRAWN_TASKS, TopologyPictures, graph_picture
from symphony.service.dashboard.row_use import RowUse
from symphony.service.dashboard.sessions import LOGIN, ROOT, STATIC, Sessions
from symphony.service.guard import Authenticator, address_of, status_of
from symphony.service.job_logs import CURSOR_PATTERN
from symphony.service.service import Service
from symphony.service.threads import run_in_threadpool
from symphony.service.tokens import ADMIN, READ, SUBMIT, Token, check_scope
from symphony.service.wire import Refusal

FOLDER = File(__file__).parent
MACHINES_ON_A_PAGE, JOBS_ON_A_PAGE, TASKS_ON_A_PAGE, KERNELS_ON_A_PAGE = 12, 50, 100, 100
FORECASTS_ON_A_PAGE = 20
MAX_FORM_BYTES = 100_000
TICK_S = 1.0  # between updates of a page
MAX_STREAM_S = 600.0  # the browser then connects again
Number = Annotated[int, Path(ge=1, le=2**62)]
Page = Annotated[int, Query(ge=1, le=10_000)]
Status = Literal["", "waiting", "running", "done", "failed", "cancelled"]


class PageRoute(APIRoute):
    """Errors are pages too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                response = await handler(request)
            except SymphonyError as error:
                return _error_page(request, status_of(error), error.message, error.hint)
            except RequestValidationError:
                return _error_page(request, 422, "there is no such page", "check the address")
            response.headers.setdefault("cache-control", "no-store")
            return response

        return handled


def _error_page(request: Request, status: int, message: str, hint: str) -> Response:
    page = PAGES.get_template("error.html").render(_common(request), message=message, hint=hint, title="Error")
    return HTMLResponse(page, status)


def _seconds(value: float | None) -> str:
    return "?" if value is None or not math.isfinite(value) else show(value, "seconds", 2)


def _band(band: dict[str, float | None] | None) -> str:
    """An interval in words: "12 s (8 to 20 s)"."""
    if not band or band["mid"] is None:
        return "unknown"
    return f"{_seconds(band['mid'])} ({_seconds(band['low'])} to {_seconds(band['high'])})"


def _clock(at_s: float | None) -> str:
    return "" if at_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at_s))


PAGES = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
PAGES.filters |= {"seconds": _seconds, "clock": _clock, "band": _band, "query": urlencode}


def _common(request: Request) -> dict[str, Any]:
    token: Token | None = request.scope.get(TOKEN)
    return {
        "token": token,
        "is_admin": token is not None and ADMIN in token.scopes,
        "may_cancel": token is not None and not {SUBMIT, ADMIN}.isdisjoint(token.scopes),
        "path": request.url.path,
        "version": version("symphony-scheduler"),
        "partial": "hx-request" in request.headers and "hx-boosted" not in request.headers,
    }


def add_pages(app: FastAPI, service: Service, authenticator: Authenticator, sessions: Sessions, rows: RowUse) -> None:
    """Add the pages to the application."""
    topology = service.cluster.topology
    pictures = TopologyPictures(topology)
    router = APIRouter(route_class=PageRoute, include_in_schema=False)

    def page(request: Request, template: str, code: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(PAGES.get_template(template).render(_common(request), **values), code)

    def reader(request: Request) -> Token:
        token: Token = request.scope[TOKEN]
        check_scope(token, READ)
        return token

    async def api(request: Request, method: str, address: str, body: bytes = b"") -> Any:
        """The answer of the REST interface to the user of this page; None if this service has no such route."""
        path, _, query = address.partition("?")
        scope = {**request.scope, "method": method, "path": path, "raw_path": path.encode()}
        scope |= {"query_string": query.encode(), "headers": [(b"content-type", b"application/json")]}
        answered: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            answered.append(message)

        try:
            await app.router(scope, receive, send)
        except HTTPException as error:
            if error.status_code in (404, 405):
                return None
            raise
        text = b"".join(part.get("body", b"") for part in answered[1:])
        if answered[0]["status"] >= 400:
            raise Refusal.model_validate_json(text).error.error()
        return json.loads(text)

    # --- login

    @router.get("/")
    async def root() -> Response:
        return RedirectResponse(ROOT, 303)

    @router.get(LOGIN)
    async def login_form(request: Request) -> Response:
        return page(request, "login.html", title="Log in", problem="")

    @router.post(LOGIN)
    async def login(request: Request) -> Response:
        sent = await _form(request)
        secret, onward = sent.get("token", "").strip(), request.query_params.get("next", ROOT)
        try:
            token = await authenticator.token(secret, address_of(request.scope))
        except TokenError as error:
            return page(request, "login.html", 401, title="Log in", problem=error.message)
        check_scope(token, READ)
        response = RedirectResponse(onward if onward.startswith(ROOT) else ROOT, 303)
        sessions.begin(request.scope, secret, response)
        return response

    @router.post("/ui/logout")
    async def logout(request: Request) -> Response:
        response = Response(headers={"hx-redirect": LOGIN})
        sessions.end(request.scope, dict(request.scope["headers"]), response)
        return response

    # --- the cluster

    @router.get(ROOT)
    async def cluster(request: Request, at: Page = 1, find: Annotated[str, Query(max_length=100)] = "") -> Response:
        token = reader(request)
        machines = [name for name in topology.machines if find.lower() in name.lower()]
        is_update = _common(request)["partial"]  # of the text above the picture; the stream updates the picture
        shown = [] if is_update else machines[(at - 1) * MACHINES_ON_A_PAGE : at * MACHINES_ON_A_PAGE]
        return page(
            request,
            "cluster.html",
            title="Cluster",
            state=views.cluster(service, everybody=ADMIN in token.scopes, user=token.user),
            pictures=[pictures.machine(name) for name in shown],
            shown=rows.shown,
            slots=[topology.kind_of[device.kind].slots for device in topology.devices],
            busy=rows.busy,
            down=set(service.cluster.down),
            devices=topology.devices,
            machines=machines,
            overview=[] if is_update else _overview(pictures, rows, machines),
            at=at,
            pages=math.ceil(len(machines) / MACHINES_ON_A_PAGE) or 1,
            find=find,
        )

    @router.get("/ui/row")
    async def row(request: Request, name: Annotated[str, Query(max_length=300)]) -> Response:
        token = reader(request)
        if name not in rows.index:
            raise UnknownJobError("there is no such row", hint="click on one in the picture")
        causes = []
        for run, device, share in await run_in_threadpool(rows.causes, name):
            mine = ADMIN in token.scopes or service.state.jobs[run.job.number].user == token.user
            causes.append((run.job.number if mine else 0, run.name if mine else "another user's", device, share))
        resource = topology.resources[rows.index[name]]
        found = rows.shown[rows.index[name]]
        return page(request, "row.html", title=name, row=resource, shown=found, causes=causes)

    @router.get("/ui/row/history")
    async def history(request: Request, name: Annotated[str, Query(max_length=300)]) -> Response:
        reader(request)
        if name not in rows.index:
            raise UnknownJobError("there is no such row")
        return JSONResponse(await run_in_threadpool(rows.history, name))

    @router.get("/ui/events")
    async def events(
        request: Request,
        machines: Annotated[str, Query(max_length=10_000)] = "",
        job: Annotated[int, Query(ge=0, le=2**62)] = 0,
    ) -> Response:
        """A stream for one page: `change` when jobs have changed, `rows` with the rows of these machines."""
        reader(request)
        wanted = [name for name in machines.split("\n") if name in pictures.devices]
        watched = service.job(reader(request), job) if job else None
        stream = _events(service, rows, pictures, app, wanted, watched)
        return StreamingResponse(stream, media_type="text/event-stream")

    # --- jobs

    @router.get("/ui/jobs")
    async def jobs(
        request: Request,
        status: Status = "",
        before: Annotated[int, Query(ge=0, le=2**62)] = 0,
        of_all: Annotated[bool, Query(alias="all")] = False,
    ) -> Response:
        token = reader(request)
        most = JOBS_ON_A_PAGE + 1
        found = service.jobs(token, everybody=of_all, status=status, before=before, most=most)
        listed = [service.running.view(job) for job in found[:JOBS_ON_A_PAGE]]
        more = found[JOBS_ON_A_PAGE - 1].id if len(found) > JOBS_ON_A_PAGE else 0
        values: dict[str, Any] = {
            "jobs": listed,
            "more": more,
            "now_s": time.time(),
            "of_all": of_all,
        }
        return page(request, "jobs.html", title="Jobs", status=status, before=before, **values)

    @router.get("/ui/forecasts")
    async def forecasts(request: Request, of_all: Annotated[bool, Query(alias="all")] = False) -> Response:
        """When the jobs that have not ended start and end, the oldest first."""
        token = reader(request)
        of_all = of_all and ADMIN in token.scopes
        mine = [job.id for job in list(service.state.open.values()) if of_all or job.user == token.user]
        found, problem = [], ""
        try:
            for number in mine[:FORECASTS_ON_A_PAGE]:
                found.append(await api(request, "GET", f"/v1/jobs/{number}/when"))
        except SymphonyError as error:
            problem = f"{error.message}; {error.hint}"
        return page(request, "forecasts.html", jobs=found, problem=problem, left=len(mine) - len(found), of_all=of_all)

    @router.get("/ui/jobs/{number}")
    async def job_page(request: Request, number: Number, at: Page = 1) -> Response:
        job = service.job(reader(request), number)
        detail = await run_in_threadpool(views.detail, service, job)
        tasks = detail.tasks
        counts = Counter((task.kernel, task.status) for task in tasks)
        values: dict[str, Any] = {"job": detail.job, "at": at, "now_s": time.time(), "counts": counts}
        values["pages"] = math.ceil(len(tasks) / TASKS_ON_A_PAGE) or 1
        values["first"] = (at - 1) * TASKS_ON_A_PAGE
        values["tasks"] = tasks[values["first"] : at * TASKS_ON_A_PAGE]
        drawn = len(tasks) <= MAX_DRAWN_TASKS
        values["graph"] = graph_picture([task.reads for task in tasks]) if drawn else None
        values["all_tasks"] = tasks if drawn else []
        values["explanation"] = await run_in_threadpool(views.explanation, service, job) if drawn else ""
        values["profiles"] = _profiles_of(service, job.user, {task.kernel for task in tasks})
        return page(request, "job.html", title=f"Job {number}: {detail.job.name}", **values)

    @router.get("/ui/jobs/{number}/when")
    async def job_when(request: Request, number: Number) -> Response:
        job = service.job(reader(request), number)
        found = {}
        for question in ("when", "why"):
            try:
                found[question] = await api(request, "GET", f"/v1/jobs/{number}/{question}")
            except SymphonyError as error:
                found[question] = {"text": f"{error.message}; {error.hint}"}
        return page(request, "when.html", number=number, over=job.over, **found)

    @router.get("/ui/jobs/{number}/log")
    async def job_log(
        request: Request,
        number: Number,
        after: Annotated[str, Query(max_length=20_000, pattern=f"^({CURSOR_PATTERN.pattern})?$")] = "",
    ) -> Response:
        job = service.job(reader(request), number)
        lines = await run_in_threadpool(views.logs, service, job, after)
        return page(request, "log.html", number=number, log=lines)

    @router.get("/ui/jobs/{number}/trace.json")
    async def job_trace(request: Request, number: Number) -> Response:
        job = service.job(reader(request), number)
        found = report.trace(views.job_history(await run_in_threadpool(views.detail, service, job)))
        return JSONResponse(found, headers={"content-disposition": f'attachment; filename="job-{number}.json"'})

    @router.post("/ui/jobs/{number}/cancel")
    async def cancel(request: Request, number: Number) -> Response:
        token: Token = request.scope[TOKEN]
        check_scope(token, SUBMIT)
        await asyncio.wrap_future(service.cancel(token, number, address_of(request.scope)))
        return Response(status_code=204, headers={"hx-trigger": "refresh"})

    # --- the timeline

    @router.get("/ui/timeline")
    async def timeline_page(request: Request) -> Response:
        reader(request)
        devices = [{"name": device.name, "machine": device.machine} for device in topology.devices]
        return page(request, "timeline.html", title="Timeline", devices=devices)

    @router.get("/ui/timeline/runs")
    async def runs(request: Request, after: Annotated[int, Query(ge=0, le=2**62)] = 0) -> Response:
        token = reader(request)
        ended = await run_in_threadpool(timeline.ended_runs, service, token, after)
        under_way = timeline.runs_under_way(service, token)
        return JSONResponse({"now_s": time.time(), "ended": ended[::-1], "under_way": under_way})

    @router.get("/ui/trace.json")
    async def trace(request: Request) -> Response:
        found = await run_in_threadpool(timeline.trace, service, reader(request))
        return JSONResponse(found, headers={"content-disposition": 'attachment; filename="symphony-trace.json"'})

    # --- learning and what if

    @router.get("/ui/learning")
    async def learning(request: Request, at: Page = 1, find: Annotated[str, Query(max_length=100)] = "") -> Response:
        token = reader(request)
        known = _rows_of(service, token)
        known = [one for one in known if find.lower() in one.kernel.lower()]
        ended = await run_in_threadpool(timeline.ended_runs, service, token)
        try:
            record = await api(request, "GET", f"/v1/record?all={str(ADMIN in token.scopes).lower()}")
        except SymphonyError:
            record = None
        return page(
            request,
            "learning.html",
            title="Learning",
            profiles=known[(at - 1) * KERNELS_ON_A_PAGE : at * KERNELS_ON_A_PAGE],
            pages=math.ceil(len(known) / KERNELS_ON_A_PAGE) or 1,
            at=at,
            find=find,
            policy=service.policy,
            decisions=views.decisions(service),
            latencies=_histogram(list(service.cluster.statistics.latency_s)),
            coverage=timeline.coverage(ended),
            drift=timeline.drift(ended),
            record=record,
        )

    @router.get("/ui/whatif")
    async def whatif_form(request: Request) -> Response:
        reader(request)
        known = any(getattr(route, "path", "") == "/v1/whatif" for route in app.routes)
        return page(request, "whatif.html", title="What if", known=known, machines=topology.machines,
                    kinds=[kind.name for kind in topology.kinds])  # fmt: skip

    @router.post("/ui/whatif")
    async def whatif(request: Request) -> Response:
        reader(request)
        answer = await api(request, "POST", "/v1/whatif", json.dumps(_question(await _form(request))).encode())
        return page(request, "answer.html", what=answer)

    @router.get("/ui/whatif/{number}")
    async def whatif_answer(request: Request, number: Number) -> Response:
        reader(request)
        return page(request, "answer.html", what=await api(request, "GET", f"/v1/whatif/{number}?wait_s=1"))

    app.include_router(router)
    app.mount(STATIC.rstrip("/"), StaticFiles(directory=FOLDER / "static"), name="static")


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            raise LimitError("the form is too large")
    try:
        return {name: values[-1] for name, values in parse_qs(body.decode(), max_num_fields=50).items()}
    except ValueError:
        raise InputError("this is not a form") from None


def _question(sent: dict[str, str]) -> dict[str, Any]:
    """The body of a question for `/v1/whatif`."""
    asked: dict[str, Any] = {name: sent[name] for name in ("policy",) if sent.get(name, "").strip()}
    for name in ("without", "fail", "more"):
        if words := [word.strip() for word in sent.get(name, "").split(",") if word.strip()]:
            asked[name] = words
    try:
        asked |= {name: float(sent[name]) for name in ("since_s", "fail_s") if sent.get(name, "").strip()}
        if sent.get("job", "").strip():
            asked["priority"] = {str(int(sent["job"])): int(sent.get("priority") or 0)}
    except ValueError:
        raise InputError("a number is not one", hint="write digits") from None
    return asked


async def _events(
    service: Service,
    rows: RowUse,
    pictures: TopologyPictures,
    app: FastAPI,
    machines: Sequence[str],
    job: Any,
) -> AsyncIterator[str]:
    indices = sorted({row for name in machines for row in pictures.rows_of(name)})
    devices = [number for name in machines for number in pictures.devices[name]]
    sent: dict[str, Any] = {}
    seen, until_s = service.state.events, time.monotonic() + MAX_STREAM_S
    yield "retry: 2000\n\n"
    while time.monotonic() < until_s and not getattr(app.state, "closing", False):
        if machines:
            shown, busy, down = rows.shown, rows.busy, set(service.cluster.down)
            now: dict[str, Any] = {f"r{row}": shown[row] for row in indices}
            for number in devices:
                name = service.cluster.topology.devices[number].name
                now[f"d{number}"] = [busy[name], name not in down]
            new = {key: value for key, value in now.items() if sent.get(key) != value}
            if new:
                sent |= new
                yield f"event: rows\ndata: {json.dumps(new)}\n\n"
        if service.state.events != seen or (job is not None and not job.over):
            seen = service.state.events
            yield f"event: change\ndata: {seen}\n\n"
        else:
            yield ": still here\n\n"  # so that a browser that has gone is noticed
        await asyncio.sleep(TICK_S)


def _overview(pictures: TopologyPictures, rows: RowUse, machines: Sequence[str]) -> list[tuple[str, int]]:
    """The busiest row of each machine, in percent, if there are several pages of machines."""
    if len(machines) <= MACHINES_ON_A_PAGE:
        return []
    shown = rows.shown
    return [(name, max((shown[row].percent for row in pictures.rows_of(name)), default=0)) for name in machines]


def _rows_of(service: Service, token: Token) -> list[Any]:
    """Profiles that a user may see."""
    own = f"{token.user}:"
    return [one for one in service.cluster.profiles.rows if ADMIN in token.scopes or one.kernel.startswith(own)]


def _profiles_of(service: Service, user: str, kernels: set[str]) -> list[Any]:
    """What is known of the kernels of a job on each kind of device: what a placement is chosen from."""
    profiles: Profiles = service.cluster.profiles
    own = [one for one in profiles.rows if one.kernel.startswith(f"{user}:")]
    return [one for one in own if one.kernel.partition("@")[0].rpartition(".")[2] in kernels][:TASKS_ON_A_PAGE]


def _histogram(latencies_s: Sequence[float]) -> list[tuple[str, int]]:
    """Decision latencies in powers of two, from the smallest to the largest."""
    counts = Counter(math.floor(math.log2(max(x, 1e-6))) for x in latencies_s)
    span = range(min(counts, default=0), max(counts, default=-1) + 1)
    return [(_seconds(2.0**power), counts[power]) for power in span]
