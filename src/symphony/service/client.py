"""The client of a service, with the interface of a local cluster.

with sy.connect("http://127.0.0.1:7733", token="sy_…") as cluster:
    print(cluster.submit(graph).result())

It uses only the standard library for HTTP. Failed requests are retried; a submission has an idempotency key, so that it
makes one job however often it is sent.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import logging
import math
import os
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from pydantic import BaseModel, ValidationError

from symphony.engines.engine import Pickled
from symphony.engines.worker import unpickled
from symphony.problem import limits, topology_file
from symphony.problem.errors import (
    BusyError,
    InputError,
    ServiceError,
    TrustError,
    UnavailableError,
    UnknownJobError,
    VersionError,
)
from symphony.problem.topology import Topology
from symphony.runtime.function_calls import FunctionCalls, check_options, work_submission
from symphony.runtime.graph import Graph, Submission
from symphony.runtime.job_handle import JobHandle
from symphony.runtime.jobs import exception_of
from symphony.runtime.kernels import RunnableKernel, code_of
from symphony.service import wire
from symphony.service.job_watcher import JobWatcher
from symphony.service.modules_beside import check_imports, script_folder, send_modules
from symphony.service.tls import CA_VARIABLE, CERTIFICATE_FILE, client_context

if TYPE_CHECKING:
    from symphony.runtime.profiles import Profiles

M = TypeVar("M", bound=BaseModel)
URL_VARIABLE, TOKEN_VARIABLE = "SYMPHONY_URL", "SYMPHONY_TOKEN"
ADDRESS_FILE, TOKEN_FILE = "address", "token"  # in the folder of a service, for the user who runs it
DEFAULT_PORT = 7733
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
log = logging.getLogger("symphony.client")
MAX_REQUEST_TRIES = 4
FIRST_RETRY_S = 0.2  # pause before the second try; doubled each time
WHAT_IF_WAIT_S = 1.0  # for which a request waits for the answer of a what-if
MAX_COMPILE_S = 300.0  # for which a first answer may have to be compiled
LONG_POLL_S = 30.0  # for which a request waits for a job


def default_folder() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "symphony" / "service"


class RemoteJob(JobHandle):
    """A graph or function that was submitted to a service."""

    def __init__(self, cluster: RemoteCluster, view: wire.JobView) -> None:
        self._cluster, self._view = cluster, view
        self._value: Any = None
        self._read = False

    def __repr__(self) -> str:
        return f"<job {self.id} of graph {self.name!r}: {self._view.status}>"

    @property
    def id(self) -> int:
        """The number of the job."""
        return self._view.id

    @property
    def name(self) -> str:
        """The name of the graph or function."""
        return self._view.name

    @property
    def status(self) -> str:
        """One of waiting (none of its tasks has started), running, done, failed, cancelled."""
        return self.view().status

    @property
    def completion_s(self) -> float:
        """Seconds from submission to the end; NaN if it has not ended."""
        view = self.view()
        return math.nan if view.ended_s is None else view.ended_s - view.accepted_s

    def view(self) -> wire.JobView:
        """Its current state."""
        if self._view.ended_s is None:
            self._view = self._cluster._get(f"/v1/jobs/{self.id}", wire.JobView)
        return self._view

    def detail(self) -> wire.JobDetail:
        """Its tasks, and every run of each."""
        return self._cluster._get(f"/v1/jobs/{self.id}/tasks", wire.JobDetail)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended, for at most `timeout_s`; whether it has."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._view.ended_s is None:
            left = LONG_POLL_S if deadline is None else min(deadline - time.monotonic(), LONG_POLL_S)
            query = {"wait_s": round(max(left, 0.0), 3)}
            self._view = self._cluster._get(f"/v1/jobs/{self.id}", wire.JobView, query)
            if self._view.ended_s is None and deadline is not None and time.monotonic() >= deadline:
                return False
        return True

    def result(self, timeout_s: float | None = None) -> Any:
        """The value of its last task (a tuple if there are several last tasks, a dict if outputs have names).

        Waits for it. Raises the error of the job, usually a `JobError`; or `TimeoutError` after `timeout_s`, while the
        job continues. The result of another user's job is read only if it is plain data; otherwise it raises
        `TrustError`.
        """
        if not self.wait(timeout_s):
            raise TimeoutError(f"job {self.id} ({self.name!r}) is not done after {timeout_s:g} s; it continues")
        trusted = self._cluster._trusts(self._view.user)
        if self._view.error is not None:
            raise self._view.error.error() from exception_of(self._view.error.cause if trusted else None)
        if not self._read:
            result = self._cluster._get(f"/v1/jobs/{self.id}/result", wire.ResultView)
            values = [self._value_of(value, trusted) for value in result.values]
            if result.names:
                self._value = dict(zip(result.names, values, strict=True))
            else:
                self._value = values[0] if len(values) == 1 else tuple(values)
            self._read = True
        return self._value

    def _value_of(self, value: wire.Value, trusted: bool) -> Any:
        head, buffers = self._cluster._value(value)
        if trusted:
            return unpickled(head, buffers)
        from symphony.engines.data_only import NotData, read_data  # imports NumPy, which nothing else here needs

        try:
            return read_data(head, buffers)
        except NotData as error:
            user = self._view.user
            raise TrustError(
                f"its result is not plain data, and reading it would run code of {user!r} here: {error}",
                where=f"job {self.id} ({self.name!r})",
                hint=f"if you trust {user!r} to run any code here: sy.connect(…, trust={user!r}), "
                f"or symphony result {self.id} --trust {user}",
            ) from None

    def add_done_callback(self, callback: Callable[[RemoteJob], object]) -> None:
        """Call a function with this job in another thread once it has ended, or cannot be watched any more; at once if
        it has ended.
        """
        self._cluster._watch(self, callback)

    def cancel(self) -> None:
        """Cancel it: running tasks are killed. Does nothing if it has ended."""
        self._cluster._send("POST", f"/v1/jobs/{self.id}/cancel", wire.JobView)

    def explain(self) -> str:
        """Where each task ran, how long it waited and took, and what was expected."""
        return self._cluster._get(f"/v1/jobs/{self.id}/explain", wire.ExplanationView).text

    def logs(self, after: str = "") -> wire.Logs:
        """Events and output so far, in order; `after`: the `next` of an earlier answer."""
        pages: list[wire.Logs] = []
        for page in self._pages(after):
            pages.append(page)
            # It may write faster than we read: what it writes after the first page is left to the next call.
            if self._view.ended_s is None and page.lines and page.lines[-1].at_s > pages[0].at_s > 0:
                break
        lines = [line for page in pages for line in page.lines]
        return pages[-1].model_copy(update={"lines": lines})

    def follow(self, after: str = "") -> Iterator[wire.LogLine]:
        """The same, line by line as they arrive, until it has ended."""
        while True:
            for page in self._pages(after, LONG_POLL_S):
                after = page.next
                yield from page.lines
            if page.over:
                return
            time.sleep(FIRST_RETRY_S)  # fetch lines in batches

    def _pages(self, after: str, wait_s: float = 0.0) -> Iterator[wire.Logs]:
        more = True
        while more:
            page = self._cluster._get(f"/v1/jobs/{self.id}/logs", wire.Logs, {"after": after, "wait_s": wait_s})
            after, more = page.next, page.more
            yield page

    def trace_events(self) -> dict[str, Any]:
        """Its runs as a trace for chrome://tracing or ui.perfetto.dev."""
        return json.loads(self._cluster._ask("GET", f"/v1/jobs/{self.id}/trace"))

    def trace(self, path: str | Path) -> None:
        """Write the trace to a file."""
        Path(path).write_text(json.dumps(self.trace_events()))


class RemoteCluster(FunctionCalls[RemoteJob]):
    """A service that runs graphs. Thread-safe."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float = 60.0,
        trust: str | Collection[str] = (),
        ca: str | Path = "",
        pinned: Path | None = None,
    ) -> None:
        """`trust`: other users whose results may be unpickled here, which can run any code.

        `ca`: a PEM file with the certificates that an https service may have; `pinned`: its only one, for any name.
        """
        self._trust = {trust} if isinstance(trust, str) else set(trust)
        self._user: str | None = None
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"{url!r} is not the URL of a service", hint=f"write {DEFAULT_URL}")
        self._parts, self._timeout_s = parts, timeout_s
        self._headers = {wire.VERSION_HEADER: str(wire.PROTOCOL), "authorization": f"Bearer {token}"}
        self._tls = client_context(str(ca), pinned) if parts.scheme == "https" else None
        self._local = threading.local()
        self._code: dict[tuple[RunnableKernel, str], Pickled] = {}
        self._watcher = JobWatcher(self._ended)
        about = self._get("/v1/about", wire.About)
        if about.protocol != wire.PROTOCOL:
            raise VersionError(
                f"the service (Symphony {about.version}) uses protocol {about.protocol}, this client {wire.PROTOCOL}",
                where=self.url,
                hint=f"install Symphony {about.version} here, from the clone or wheel of the service",
            )
        if about.python != wire.PYTHON:
            raise VersionError(
                f"the service runs Python {about.python}, this is {wire.PYTHON}: functions cannot be sent between them",
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
        """Close the connection of this thread. Jobs continue."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def submit(
        self,
        work: Graph | Callable[..., Any],
        /,
        *args: Any,
        priority: int = 0,
        queue: str = "",
        key: str = "",
        after: Iterable[RemoteJob | int] = (),
        time_limit_s: float = math.inf,
        **kwargs: Any,
    ) -> RemoteJob:
        """Submit a graph, or a function with these arguments. When this returns, the service has journalled it.

        `queue`: one of the user's queues, which share equally. Submissions with the same `key` make one job. It starts
        when all jobs in `after` are done; if one of them fails, it fails. It also fails if it still runs `time_limit_s`
        after the start of its first task; a restart of the service begins this time anew.
        """
        check_options(priority, time_limit_s)
        before = [job.id if isinstance(job, RemoteJob) else job for job in after]
        # Old services do not know these fields.
        newer: dict[str, Any] = {"after": before} if before else {}
        newer |= {"time_limit_s": time_limit_s} if time_limit_s <= limits.SECONDS else {}
        body = self._body(self._checked(work, args, kwargs), {"priority": priority, "queue": queue, **newer})
        headers = {wire.KEY_HEADER: quote(key) or uuid.uuid4().hex, "content-type": "application/json"}
        answer = self._ask("POST", "/v1/jobs", body, headers)
        return RemoteJob(self, wire.JobView.model_validate_json(answer))

    def _checked(self, work: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Submission:
        """A graph or call as it is sent, with the modules beside the script, which the service does not have."""
        folder = script_folder()
        if folder is not None:
            send_modules(folder)
            if isinstance(work, Graph):
                check_imports(work, folder)
        return work_submission(work, args, kwargs)

    def job(self, number: int) -> RemoteJob:
        """A job that was submitted before."""
        return RemoteJob(self, self._get(f"/v1/jobs/{int(number)}", wire.JobView))

    def forecasts(self, share: float = 0.8) -> list[wire.ForecastView]:
        """Forecasts for training jobs that run or wait, with bands that should cover this `share` of outcomes."""
        return self._get("/v1/forecasts", wire.Forecasts, {"share": share}).forecasts

    def when(self, number: int, share: float = 0.8) -> wire.When:
        """When a job starts and ends, with bands that should cover this `share` of outcomes."""
        return self._patiently(f"/v1/jobs/{int(number)}/when", wire.When, {"share": share})

    def why(self, number: int) -> wire.Why:
        """Why a job waits, and what would help."""
        return self._patiently(f"/v1/jobs/{int(number)}/why", wire.Why)

    def what_if(
        self,
        changes: wire.AskWhatIf,
        submit: Graph | None = None,
        progress: Callable[[float], None] = lambda share: None,
    ) -> wire.WhatIfAnswer:
        """Compare the future, or the past, with one in which something is changed; `submit`: a job more."""
        sent = changes.model_dump(mode="json", exclude={"submit"})
        if submit is not None:
            sent["submit"] = json.loads(self._body(self._checked(submit, (), {}), {}))
        answer = self._ask("POST", "/v1/whatif", json.dumps(sent).encode(), {"content-type": "application/json"})
        found = wire.WhatIfView.model_validate_json(answer)
        while found.state == "running":
            progress(found.progress)
            found = self._get(f"/v1/whatif/{found.id}", wire.WhatIfView, {"wait_s": WHAT_IF_WAIT_S})
        if found.answer is None:
            raise found.error.error() if found.error is not None else ServiceError("the what-if has no answer")
        return found.answer

    def record(self, *, everybody: bool = False) -> wire.RecordView:
        """How often forecasts were right: of the user's jobs, or of all."""
        return self._get("/v1/record", wire.RecordView, {"all": str(everybody).lower()})

    def _patiently(self, path: str, model: type[M], query: Mapping[str, Any] | None = None) -> M:
        """Ask until the service has compiled what it needs for its first answer."""
        deadline = time.monotonic() + MAX_COMPILE_S
        while True:
            try:
                return self._get(path, model, query)
            except BusyError:
                if time.monotonic() > deadline:
                    raise

    def jobs(
        self, *, status: str = "", limit: int = 50, before: int = 0, everybody: bool = False
    ) -> list[wire.JobView]:
        """The newest jobs; only those with numbers below `before`, if that is not 0."""
        query = {"status": status, "limit": limit, "before": before, "all": str(everybody).lower()}
        return self._get("/v1/jobs", wire.JobList, query).jobs

    def usage(self, since_s: float = 0.0, *, everybody: bool = False) -> wire.Usage:
        """Device time and jobs of the user, or of all users, since a time (seconds since 1970)."""
        return self._get("/v1/usage", wire.Usage, {"since_s": since_s, "all": str(everybody).lower()})

    def state(self) -> wire.ClusterView:
        """Devices, what runs there, users, and statistics of the scheduler."""
        return self._get("/v1/cluster", wire.ClusterView)

    def health(self) -> wire.Health:
        """Which parts of the service are degraded, and what to do about them."""
        return self._get("/v1/health", wire.Health)

    # --- administration: needs scope admin

    def tokens(self) -> list[wire.TokenView]:
        """All tokens, without their secrets."""
        return self._get("/v1/tokens", wire.TokenList).tokens

    def create_token(
        self, user: str, scopes: Collection[str] = ("submit", "read"), *, days: float | None = None, priority: int = 0
    ) -> wire.IssuedToken:
        """Create a token. Not retried: after a lost answer, see `tokens`."""
        sent = {"user": user, "scopes": list(scopes), "days": days, "priority": priority}
        return self._change("/v1/tokens", sent, wire.IssuedToken)

    def rotate_token(self, name: str, *, days: float | None = None, grace_s: float = 0.0) -> wire.IssuedToken:
        """Replace a token, by its ID; the old one stays valid for `grace_s`."""
        sent = {"days": days, "grace_s": grace_s}
        return self._change(f"/v1/tokens/{quote(name, safe='')}/rotate", sent, wire.IssuedToken)

    def revoke_token(self, name: str) -> None:
        """Revoke a token, by its ID."""
        self._change(f"/v1/tokens/{quote(name, safe='')}/revoke", {}, wire.TokenView)

    def audit(
        self, since_s: float = 0.0, *, after: int = 0, action: str = "", limit: int = 1_000
    ) -> list[wire.AuditView]:
        """The audit log since a time (seconds since 1970): its newest entries, or those that follow the ID `after`."""
        query = {"since": since_s, "after": after, "action": action, "limit": limit}
        return self._get("/v1/audit", wire.AuditLog, query).entries

    @property
    def topology(self) -> Topology:
        """The devices and what they share. Constant while the service runs."""
        return topology_file.loads(self._get("/v1/topology", wire.TopologyFile).toml, where=self.url)

    @property
    def statistics(self) -> wire.DecisionsView:
        """Turns, decisions, their latency, and how often the heuristic replaced the policy."""
        return self.state().decisions

    @property
    def profiles(self) -> Profiles:
        """Learned profiles of kernels."""
        from symphony.runtime.profiles import Profiles  # imports NumPy, which nothing else here needs

        return Profiles.of(self._get("/v1/profiles", wire.ProfileFile).model_dump())

    # --- encoding

    def _body(self, sent: Submission, options: Mapping[str, Any]) -> bytes:
        """A request to run a graph; `options`: fields of `wire.Submit`."""
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
        return json.dumps({"graph": graph, "python": wire.PYTHON, **options}).encode()

    def _kernel(self, kernel: RunnableKernel) -> dict[str, Any]:
        options = kernel.options
        code = {}
        for device in kernel.implementations:
            if (kernel, device) not in self._code:
                self._code[kernel, device] = code_of(kernel, device)
            code[device] = self._kept(self._code[kernel, device])
        spec: dict[str, Any] = {"name": kernel.name, "key": kernel.key, "retries": options.retries}
        spec["implementations"] = code
        if options.workers > 1:  # old services do not know these fields
            spec["workers"] = options.workers
        if options.cores > 1:
            spec["cores"] = options.cores
        if options.memory:
            spec["memory"] = options.memory
        if options.training is not None:
            spec["training"] = asdict(options.training)
        if options.retry_on:
            spec |= {"retry_on": options.retry_on, "retry_delay_s": options.retry_delay_s}
        spec["preemptible"] = options.preemptible
        spec["timeout_s"] = options.timeout_s if options.timeout_s <= limits.SECONDS else None
        return spec

    def _kept(self, value: Pickled) -> dict[str, Any]:
        return {"head": self._content(value.head), "buffers": [self._content(one) for one in value.buffers]}

    def _content(self, data: Any) -> dict[str, str]:
        view = memoryview(data).cast("B")
        if view.nbytes <= wire.MAX_INLINE_BYTES:
            return {"inline": base64.b64encode(view).decode()}
        digest = hashlib.sha256(view).hexdigest()
        path = f"/v1/blobs/{digest}"
        try:
            self._ask("HEAD", path)
        except UnknownJobError:
            self._ask("PUT", path, view, {"content-type": "application/octet-stream"})
        return {"blob": digest}

    # --- the ends of jobs

    def _watch(self, job: RemoteJob, callback: Callable[[RemoteJob], object]) -> None:
        def ended(view: wire.JobView | None) -> None:
            job._view = view or job._view
            callback(job)

        view = job._view
        if view.ended_s is not None:
            callback(job)
        elif view.user == self.user:
            self._watcher.watch(view.id, view.change, ended, job.view)
        else:  # only an administrator can see it
            threading.Thread(target=lambda: ended(job.view() if job.wait() else None), daemon=True).start()

    def _ended(self, after: int) -> wire.EndedJobs:
        return self._get("/v1/ended", wire.EndedJobs, {"after": after, "wait_s": LONG_POLL_S})

    @property
    def user(self) -> str:
        """The owner of the token."""
        if self._user is None:
            self._user = self._get("/v1/me", wire.Me).user
        return self._user

    def _trusts(self, user: str) -> bool:
        return user in self._trust or user == self.user

    def _value(self, value: wire.Value) -> tuple[bytes, list[Any]]:
        def data(content: wire.Content) -> Any:
            if content.blob is None:
                return content.inline
            return bytearray(self._ask("GET", f"/v1/blobs/{content.blob}"))

        return bytes(data(value.head)), [data(one) for one in value.buffers]

    # --- requests

    def _get(self, path: str, model: type[M], query: Mapping[str, Any] | None = None) -> M:
        return self._send("GET", f"{path}?{urlencode(query)}" if query else path, model)

    def _send(self, method: str, path: str, model: type[M]) -> M:
        answer = self._ask(method, path)
        try:
            return model.model_validate_json(answer)
        except ValidationError:
            raise ServiceError(
                "the answer is not from a Symphony service", where=self.url, hint="check the URL"
            ) from None

    def _ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> bytes:
        """A request, retried with growing pauses if the connection fails or the service is busy."""
        pauses = [FIRST_RETRY_S * 2**attempt for attempt in range(MAX_REQUEST_TRIES - 1)]
        said = False
        for pause in (*pauses, None):
            try:
                return self._once(method, path, body, {**self._headers, **(headers or {})})
            except UnavailableError:
                raise
            except BusyError as error:
                if pause is None:
                    raise
                if not said:
                    log.warning("waiting: %s; %s", error.message, error.hint or "it is tried again")
                said = True
                self.close()  # services close connections that are idle for long
                time.sleep(max(pause, min(error.retry_s, 5.0)))
            except ssl.SSLCertVerificationError as error:
                self.close()
                raise ServiceError(
                    f"its certificate is not trusted: {error.verify_message}",
                    where=self.url,
                    hint=f"name the file of its authority: {CA_VARIABLE}=ca.pem",
                ) from None
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

    def _change(self, path: str, sent: Mapping[str, Any], model: type[M]) -> M:
        """Send a request once, on a new connection."""
        self.close()
        try:
            headers = {**self._headers, "content-type": "application/json"}
            return model.model_validate_json(self._once("POST", path, json.dumps(sent).encode(), headers))
        except (OSError, http.client.HTTPException) as error:
            raise ServiceError(
                f"the answer was lost: {error or type(error).__name__}",
                where=self.url,
                hint="see whether it was done: symphony token list",
            ) from None

    def _once(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> bytes:
        connection = self._connection()
        try:
            connection.request(method, self._parts.path + path, body, dict(headers))
        except (BrokenPipeError, ConnectionResetError):
            if body is None:
                raise
            # A service that refuses a body answers and closes the connection while it is still being sent.
        answer = connection.getresponse()
        data = answer.read()
        if answer.status < 400:
            return data
        if method == "HEAD" and answer.status == 404:  # HEAD responses have no body
            raise UnknownJobError("it does not exist", where=path)
        try:
            error = wire.Refusal.model_validate_json(data).error.error()
        except ValidationError:
            raise ServiceError(
                f"the service answered {method} {path} with status {answer.status}", where=self.url
            ) from None
        if isinstance(error, BusyError):
            error.retry_s = float(answer.headers.get("retry-after") or 1.0)
        raise error

    def _connection(self) -> http.client.HTTPConnection:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            host, port = self._parts.hostname or "", self._parts.port
            if self._tls is not None:
                connection = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)
            else:
                connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
            self._local.connection = connection
        return connection


def connect(
    url: str = "",
    *,
    token: str = "",
    timeout_s: float = 60.0,
    trust: str | Collection[str] = (),
    ca: str | Path = "",
) -> RemoteCluster:
    """Connect to a service, which has the interface of `sy.local()`.

    By default, the one in `SYMPHONY_URL` and `SYMPHONY_TOKEN`, else the one that this user serves on this machine.
    Results of other users' jobs are read only if they are plain data, except those of users whom you `trust`: their
    results may run any code here. `ca`: a PEM file with the authorities of an https service, instead of the system's
    (`SYMPHONY_CA_FILE`).
    """
    folder = default_folder()
    own_url = (folder / ADDRESS_FILE).read_text().strip() if (folder / ADDRESS_FILE).is_file() else ""
    url = url or os.environ.get(URL_VARIABLE, "") or own_url or DEFAULT_URL
    token = token or os.environ.get(TOKEN_VARIABLE, "")
    if not token and url.rstrip("/") == own_url:  # never send this token to another service
        token = (folder / TOKEN_FILE).read_text().strip()
    ca = ca or os.environ.get(CA_VARIABLE, "")
    pinned = folder / CERTIFICATE_FILE if url.rstrip("/") == own_url and url.startswith("https:") else None
    return RemoteCluster(url, token, timeout_s=timeout_s, trust=trust, ca=ca, pinned=pinned)
