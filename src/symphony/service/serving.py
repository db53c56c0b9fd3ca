"""Serves HTTP on a port: the server in one thread, signals in the main thread, and a graceful shutdown."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType

import uvicorn
from starlette.concurrency import run_in_threadpool

from symphony.service.address import bind
from symphony.service.app import make_app
from symphony.service.audit import FailedLogins
from symphony.service.connections import ACCEPTS, Connection, Connections, Listener
from symphony.service.dashboard.row_use import RowUse
from symphony.service.service import Service
from symphony.service.tls import TlsFiles

log = logging.getLogger("symphony.service")
MAINTENANCE_S = 60.0
COLLECT_AFTER = 50_000, 20, 100  # net allocations until a collection, and collections until the next larger one
SWITCH_S = 1e-3  # for which a thread keeps others from running; an answer needs ten turns of a thread


class Server:
    def __init__(self, service: Service, host: str, port: int, tls: TlsFiles | None = None) -> None:
        """With `tls`, HTTPS instead of HTTP."""
        self._tls, self._logins = tls, FailedLogins(lambda rows: service.note(*rows))
        self.connections = Connections(service.limits.connections, service.limits.patience)
        self._socket = bind(host, port, Listener)
        self._socket.connections = self.connections
        self.host, self.port = host, self._socket.getsockname()[1]
        self._rows, hosts = RowUse(service.cluster), names(host) | service.limits.hosts
        self._app = make_app(service, self.connections, self._logins, hosts, tls, self._rows)
        config = uvicorn.Config(
            self._app,
            loop="asyncio",  # which calls `Listener.accept`
            http=partial(Connection, self.connections),  # type: ignore[arg-type]  # called, and nothing else
            ws="none",
            lifespan="on",
            backlog=ACCEPTS,
            callback_notify=self._every_second,
            timeout_notify=0,  # every second
            timeout_graceful_shutdown=5,
            log_config=None,
            access_log=False,
            proxy_headers=False,  # any process of this machine could send them, and the audit log would believe them
            server_header=False,
        )
        config.load()
        config.ssl = None if tls is None else tls.context
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="symphony-http", daemon=True
        )
        self._thread.start()
        pause = threading.Event()
        while not self._server.started and self._thread.is_alive():
            pause.wait(0.01)

    @property
    def url(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self._tls is None else 'https'}://{name}:{self.port}"

    async def _every_second(self) -> None:
        await self.connections.sweep()
        self._logins.flush()
        await run_in_threadpool(self._rows.sample)

    def close(self) -> None:
        self._app.state.closing = True  # streams to browsers end
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        self.connections.close()
        self._logins.flush(now=True)


def names(host: str) -> frozenset[str]:
    return frozenset(one.lower() for one in ("localhost", host, socket.gethostname()))


def serve(
    service: Service,
    host: str,
    port: int,
    *,
    drain_s: float,
    ready: Callable[[str], None],
    tls: TlsFiles | None = None,
    maintain: Callable[[], None] = lambda: None,
) -> int:
    """Serve until a signal arrives or the service fails; the exit status. `maintain` is called every minute.

    The first signal drains: no new jobs, and running ones may finish within `drain_s`. A second one ends that wait.
    """
    server = Server(service, host, port, tls)
    stop = threading.Event()

    def on_signal(number: int, _: FrameType | None) -> None:
        log.warning("%s", signal.Signals(number).name)
        if service.draining:
            service.running.idle.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    _interrupt_little()
    ready(server.url)
    maintained_s = time.monotonic()
    while not stop.wait(0.2) and not service.failed.is_set():
        service.check_lock()
        if time.monotonic() - maintained_s >= MAINTENANCE_S:
            maintained_s = time.monotonic()
            _maintain(tls, maintain)
    if service.failed.is_set():
        log.error("the service has failed; accepted jobs are kept and continue when it is started again")
    else:
        service.drain(drain_s)
        left = len(service.running.queue.under_way)  # not finished in time, or a second signal arrived
        log.warning("%d jobs continue when it is started again" if left else "drained", *([left] if left else []))
    server.close()
    service.close()
    return 1 if service.failed.is_set() else 0


def _interrupt_little() -> None:
    """Keep what holds all threads up short: a full collection of this process takes a tenth of a second."""
    gc.collect()
    gc.freeze()  # what the start has made stays
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_S)


def _maintain(tls: TlsFiles | None, more: Callable[[], None]) -> None:
    try:
        if tls is not None and tls.refresh():
            log.warning("the new certificate is used")
        more()
    except Exception:  # a database that fails must not end the service
        log.exception("maintenance failed; it is tried again")
