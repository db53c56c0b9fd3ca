"""The client: a cluster somewhere else, with the surface of a local one.

with sy.connect("http://127.0.0.1:7733", token="sy_…") as cluster:
    print(cluster.submit(graph).result())

It needs nothing but Python's own HTTP. Requests that are lost on the way are sent again; a submission has a key, so
that it is accepted once however often it is sent.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import math
import os
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from pydantic import BaseModel, ValidationError

from symphony.engines.engine import Pickled
from symphony.engines.worker import unpickled
from symphony.problem import limits, topology_file, units
from symphony.problem.errors import (
    BusyError,
    InputError,
    ServiceError,
    TrustError,
    UnavailableError,
    UnknownJobError,
    VersionError,
    WorkloadError,
)
from symphony.problem.topology import Topology
from symphony.runtime.graph import Graph, Submission, submission
from symphony.runtime.jobs import exception_of
from symphony.runtime.kernels import RunnableKernel, code_of
from symphony.service.wire import (
    KEY_HEADER,
    MAX_INLINE_BYTES,
    PROTOCOL,
    PYTHON,
    VERSION_HEADER,
    About,
    ClusterView,
    Content,
    DecisionsView,
    ExplanationView,
    Forecasts,
    ForecastView,
    JobDetail,
    JobList,
    JobView,
    LogLine,
    Logs,
    Me,
    ProfileFile,
    Refusal,
    ResultView,
    TopologyFile,
    Value,
)

if TYPE_CHECKING:
    from symphony.runtime.profiles import Profiles

M = TypeVar("M", bound=BaseModel)
URL_VARIABLE, TOKEN_VARIABLE = "SYMPHONY_URL", "SYMPHONY_TOKEN"
ADDRESS_FILE, TOKEN_FILE = "address", "token"  # files of a service, for whoever serves
DEFAULT_PORT = 7733
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
MAX_REQUEST_TRIES = 4  # of a request that is lost on the way
FIRST_RETRY_S = 0.2  # before the second; doubled each time
LONG_POLL_S = 30.0  # that a request waits for a job


def default_folder() -> Path:
    """Where a service of this user keeps everything, unless it is told otherwise."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "symphony" / "service"


class RemoteJob:
    """A graph that was submitted to a service."""

    def __init__(self, cluster: RemoteCluster, view: JobView) -> None:
        self._cluster, self._view = cluster, view
        self._value: Any = None
        self._read = False

    def __repr__(self) -> str:
        return f"<job {self.id} of graph {self.name!r}: {self._view.status}>"

    @property
    def id(self) -> int:
        """Its number in its service."""
        return self._view.id

    @property
    def name(self) -> str:
        """Of its graph."""
        return self._view.name

    @property
    def status(self) -> str:
        """One of waiting (none of its tasks has started), running, done, failed, cancelled."""
        return self.view().status

    @property
    def completion_s(self) -> float:
        """Seconds from its submission until it was over; NaN if it is not."""
        view = self.view()
        return math.nan if view.ended_s is None else view.ended_s - view.accepted_s

    def view(self) -> JobView:
        """All that a line tells of it."""
        if self._view.ended_s is None:
            self._view = self._cluster._get(f"/v1/jobs/{self.id}", JobView)
        return self._view

    def detail(self) -> JobDetail:
        """Its tasks, and every run of each."""
        return self._cluster._get(f"/v1/jobs/{self.id}/tasks", JobDetail)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over, at most so long; whether it is."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._view.ended_s is None:
            left = LONG_POLL_S if deadline is None else min(deadline - time.monotonic(), LONG_POLL_S)
            asked = {"wait_s": round(max(left, 0.0), 3)}
            self._view = self._cluster._get(f"/v1/jobs/{self.id}", JobView, asked)
            if self._view.ended_s is None and deadline is not None and time.monotonic() >= deadline:
                return False
        return True

    def result(self, timeout_s: float | None = None) -> Any:
        """What its last task returned (a tuple if there are several such tasks, a dict if outputs have names).

        Waits for it. Raises what went wrong, a `JobError` as a rule; or `TimeoutError` if it takes longer than
        `timeout_s`, and the job goes on. Of another user's job, what is data is read, and the rest is a `TrustError`.
        """
        if not self.wait(timeout_s):
            raise TimeoutError(f"job {self.id} ({self.name!r}) is not done after {timeout_s:g} s; it goes on")
        trusted = self._cluster._trusts(self._view.user)
        if self._view.error is not None:
            raise self._view.error.error() from exception_of(self._view.error.cause if trusted else None)
        if not self._read:
            found = self._cluster._get(f"/v1/jobs/{self.id}/result", ResultView)
            values = [self._value_of(value, trusted) for value in found.values]
            self._value = (
                dict(zip(found.names, values, strict=True))
                if found.names
                else values[0]
                if len(values) == 1
                else tuple(values)
            )
            self._read = True
        return self._value

    def _value_of(self, value: Value, trusted: bool) -> Any:
        head, buffers = self._cluster._value(value)
        if trusted:
            return unpickled(head, buffers)
        from symphony.engines.data_only import NotData, read_data  # with NumPy, which nothing else here needs

        try:
            return read_data(head, buffers)
        except NotData as error:
            user = self._view.user
            raise TrustError(
                f"its result is more than data, and reading it would run code of {user!r} here: {error}",
                where=f"job {self.id} ({self.name!r})",
                hint=f"if you would run any program of {user!r}: sy.connect(…, trust={user!r}), "
                f"or symphony result {self.id} --trust {user}",
            ) from None

    def cancel(self) -> None:
        """Stop it: what runs is killed, what waits never starts. Does nothing if it is over."""
        self._cluster._send("POST", f"/v1/jobs/{self.id}/cancel", JobView)

    def explain(self) -> str:
        """What ran where, how long it waited and took, and what had been expected."""
        return self._cluster._get(f"/v1/jobs/{self.id}/explain", ExplanationView).text

    def logs(self, after: str = "") -> Logs:
        """What happened to it and what it wrote, in order; `after`: since an answer of which this was `next`."""
        pages: list[Logs] = []
        for page in self._pages(after):
            pages.append(page)
            # It may write faster than anybody reads: what it has written since this began is for the next call.
            if self._view.ended_s is None and page.lines and page.lines[-1].at_s > pages[0].at_s > 0:
                break
        lines = [line for page in pages for line in page.lines]
        return pages[-1].model_copy(update={"lines": lines})

    def follow(self, after: str = "") -> Iterator[LogLine]:
        """The same, line by line as they come, until it is over."""
        while True:
            for page in self._pages(after, LONG_POLL_S):
                after = page.next
                yield from page.lines
            if page.over:
                return
            time.sleep(FIRST_RETRY_S)  # lines that come one by one are asked for together

    def _pages(self, after: str, wait_s: float = 0.0) -> Iterator[Logs]:
        more = True
        while more:
            page = self._cluster._get(f"/v1/jobs/{self.id}/logs", Logs, {"after": after, "wait_s": wait_s})
            after, more = page.next, page.more
            yield page

    def wait_for_change(self, timeout_s: float = LONG_POLL_S) -> None:
        """Wait until something happens to it, at most so long."""
        if self._view.ended_s is None:
            asked = {"wait_s": timeout_s, "since": self._view.change}
            self._view = self._cluster._get(f"/v1/jobs/{self.id}", JobView, asked)

    def trace_events(self) -> dict[str, Any]:
        """What ran where and when, as chrome://tracing and ui.perfetto.dev read it."""
        return json.loads(self._cluster._ask("GET", f"/v1/jobs/{self.id}/trace"))

    def trace(self, path: str | Path) -> None:
        """Write that to a file."""
        Path(path).write_text(json.dumps(self.trace_events()))


class RemoteCluster:
    """A service that runs graphs. Any thread may use it."""

    def __init__(self, url: str, token: str, *, timeout_s: float = 60.0, trust: str | Collection[str] = ()) -> None:
        """`trust`: other users whose results may be unpickled here, which runs any code that is in them."""
        self._trust = {trust} if isinstance(trust, str) else set(trust)
        self._user: str | None = None
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"{url!r} is no address of a service", hint=f"write {DEFAULT_URL}")
        self._parts, self._timeout_s = parts, timeout_s
        self._headers = {VERSION_HEADER: str(PROTOCOL), "authorization": f"Bearer {token}"}
        self._local = threading.local()
        self._code: dict[tuple[RunnableKernel, str], Pickled] = {}
        about = self._get("/v1/about", About)
        if about.protocol != PROTOCOL:
            raise VersionError(
                f"the service (Symphony {about.version}) speaks protocol {about.protocol}, this client {PROTOCOL}",
                where=self.url,
                hint=f"install Symphony {about.version} here, from the clone or wheel that the service has",
            )
        if about.python != PYTHON:
            raise VersionError(
                f"the service runs Python {about.python}, this is {PYTHON}: functions cannot be sent between them",
                where=self.url,
                hint=f"use Python {about.python} here",
            )

    def __enter__(self) -> RemoteCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<cluster at {self.url}>"

    def close(self) -> None:
        """Let go of the connection. Jobs go on: they are the service's."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def submit(self, graph: Graph, *, priority: int = 0, queue: str = "", key: str = "") -> RemoteJob:
        """Have a graph run. When this returns, the service has it, and will not forget it.

        `queue` is one of the user's own, which share what he gets. Submissions with one `key` are one job.
        """
        if not units.is_whole(priority, -limits.PRIORITY, limits.PRIORITY):
            raise WorkloadError(f"priority is {priority!r}", hint="write a whole number; larger is more urgent")
        body = self._body(submission(graph), priority, queue)
        headers = {KEY_HEADER: quote(key) or uuid.uuid4().hex, "content-type": "application/json"}
        answer = self._ask("POST", "/v1/jobs", body, headers)
        return RemoteJob(self, JobView.model_validate_json(answer))

    def job(self, number: int) -> RemoteJob:
        """One that was submitted before."""
        return RemoteJob(self, self._get(f"/v1/jobs/{int(number)}", JobView))

    def forecasts(self, share: float = 0.8) -> list[ForecastView]:
        """What training jobs that run or wait may expect, with bands that hold such a share of what happens."""
        return self._get("/v1/forecasts", Forecasts, {"share": share}).forecasts

    def jobs(self, *, status: str = "", limit: int = 50, before: int = 0, everybody: bool = False) -> list[JobView]:
        """The newest ones."""
        asked = {"status": status, "limit": limit, "before": before, "all": str(everybody).lower()}
        return self._get("/v1/jobs", JobList, asked).jobs

    def state(self) -> ClusterView:
        """Devices, what runs there, who waits, and how deciding goes."""
        return self._get("/v1/cluster", ClusterView)

    @property
    def topology(self) -> Topology:
        """The devices, and what they share. They stay the same for as long as a service runs."""
        return topology_file.loads(self._get("/v1/topology", TopologyFile).toml, where=self.url)

    @property
    def statistics(self) -> DecisionsView:
        """Turns, decisions, how long they took, and how often the heuristic stood in for the policy."""
        return self.state().decisions

    @property
    def profiles(self) -> Profiles:
        """What has been learned of kernels by running them."""
        from symphony.runtime.profiles import Profiles  # it computes with NumPy, which nothing else here needs

        return Profiles.of(self._get("/v1/profiles", ProfileFile).model_dump())

    # --- bytes

    def _body(self, sent: Submission, priority: int, queue: str) -> bytes:
        kernels = list(dict.fromkeys(call.kernel for call in sent.calls))
        numbers = {kernel: number for number, kernel in enumerate(kernels)}
        tasks = [
            {"name": c.name, "kernel": numbers[c.kernel], "arguments": self._kept(c.arguments), "reads": c.reads}
            for c in sent.calls
        ]
        graph: dict[str, Any] = {
            "name": sent.name,
            "kernels": [self._kernel(kernel) for kernel in kernels],
            "tasks": tasks,
        }
        graph |= {"outputs": sent.outputs, "names": sent.names}
        return json.dumps({"graph": graph, "priority": priority, "queue": queue, "python": PYTHON}).encode()

    def _kernel(self, kernel: RunnableKernel) -> dict[str, Any]:
        options = kernel.options
        code = {}
        for device in kernel.implementations:
            if (kernel, device) not in self._code:
                self._code[kernel, device] = code_of(kernel, device)
            code[device] = self._kept(self._code[kernel, device])
        told = {"name": kernel.name, "key": kernel.key, "retries": options.retries, "implementations": code}
        bound = options.timeout_s if options.timeout_s <= limits.SECONDS else None
        gang: dict[str, Any] = (
            {"workers": options.workers} if options.workers > 1 else {}
        )  # of which older services do not know
        if options.training is not None:
            gang["training"] = asdict(options.training)
        return told | gang | {"preemptible": options.preemptible, "timeout_s": bound}

    def _kept(self, value: Pickled) -> dict[str, Any]:
        """A value to be sent, its large parts already there."""
        return {"head": self._content(value.head), "buffers": [self._content(one) for one in value.buffers]}

    def _content(self, data: Any) -> dict[str, str]:
        view = memoryview(data).cast("B")
        if view.nbytes <= MAX_INLINE_BYTES:
            return {"inline": base64.b64encode(view).decode()}
        digest = hashlib.sha256(view).hexdigest()
        path = f"/v1/blobs/{digest}"
        if not self._has(path):
            self._ask("PUT", path, view, {"content-type": "application/octet-stream"})
        return {"blob": digest}

    def _has(self, path: str) -> bool:
        try:
            self._ask("HEAD", path)
        except UnknownJobError:
            return False
        return True

    @property
    def user(self) -> str:
        """Whose the token is."""
        if self._user is None:
            self._user = self._get("/v1/me", Me).user
        return self._user

    def _trusts(self, user: str) -> bool:
        """Whether to unpickle what jobs of a user have made."""
        return user in self._trust or user == self.user

    def _value(self, value: Value) -> tuple[bytes, list[Any]]:
        """Its pickle and its buffers."""

        def data(content: Content) -> Any:
            if content.blob is None:
                return content.inline
            return bytearray(self._ask("GET", f"/v1/blobs/{content.blob}"))

        return bytes(data(value.head)), [data(one) for one in value.buffers]

    # --- requests

    def _get(self, path: str, model: type[M], asked: Mapping[str, Any] | None = None) -> M:
        return self._send("GET", f"{path}?{urlencode(asked)}" if asked else path, model)

    def _send(self, method: str, path: str, model: type[M]) -> M:
        answer = self._ask(method, path)
        try:
            return model.model_validate_json(answer)
        except ValidationError:
            raise ServiceError("the answer is none of Symphony's", where=self.url, hint="is that it?") from None

    def _ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> bytes:
        """One request; again, after a pause, if it was lost on the way or the service is busy for a moment."""
        for pause in (*_pauses(), None):
            try:
                return self._once(method, path, body, {**self._headers, **(headers or {})})
            except UnavailableError:
                raise
            except BusyError as error:
                if pause is None:
                    raise
                time.sleep(max(pause, min(error.retry_s, 5.0)))
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if pause is None:
                    reason = getattr(error, "strerror", None) or error or type(error).__name__
                    raise ServiceError(
                        f"the service cannot be reached: {reason}",
                        where=self.url,
                        hint="start it: symphony serve; or set SYMPHONY_URL to where it is",
                    ) from None
                time.sleep(pause)
        raise AssertionError

    def _once(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> bytes:
        connection = self._connection()
        try:
            connection.request(method, self._parts.path + path, body, dict(headers))
        except (BrokenPipeError, ConnectionResetError):
            if body is None:
                raise
            # A service that does not want a body says why, and closes the connection while it is being sent.
        answer = connection.getresponse()
        data = answer.read()
        if answer.status < 400:
            return data
        if method == "HEAD" and answer.status == 404:  # whose answers have no body that could say so
            raise UnknownJobError("it is not there", where=path)
        try:
            error = Refusal.model_validate_json(data).error.error()
        except ValidationError:
            raise ServiceError(f"the service answers {answer.status} to {method} {path}", where=self.url) from None
        if isinstance(error, BusyError):
            error.retry_s = float(answer.headers.get("retry-after") or 1.0)
        raise error

    def _connection(self) -> http.client.HTTPConnection:
        found = getattr(self._local, "connection", None)
        if found is None:
            kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            found = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout_s)
            self._local.connection = found
        return found


def _pauses() -> Iterator[float]:
    return (FIRST_RETRY_S * 2**attempt for attempt in range(MAX_REQUEST_TRIES - 1))


def connect(
    url: str = "", *, token: str = "", timeout_s: float = 60.0, trust: str | Collection[str] = ()
) -> RemoteCluster:
    """A service that runs graphs, with the surface of `sy.local()`.

    By default the one that `SYMPHONY_URL` and `SYMPHONY_TOKEN` name, else the one that this user serves here. Results
    of other users' jobs are read as data only, but for users whom you `trust`: their code runs here, then.
    """
    folder = default_folder()
    mine = (folder / ADDRESS_FILE).read_text().strip() if (folder / ADDRESS_FILE).is_file() else ""
    url = url or os.environ.get(URL_VARIABLE, "") or mine or DEFAULT_URL
    token = token or os.environ.get(TOKEN_VARIABLE, "")
    if not token and url.rstrip("/") == mine:  # nobody else's service is shown it
        token = (folder / TOKEN_FILE).read_text().strip()
    return RemoteCluster(url, token, timeout_s=timeout_s, trust=trust)
