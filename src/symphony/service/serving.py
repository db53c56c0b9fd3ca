"""Serves HTTP on a port: the server in one thread, signals in the main thread, and a graceful shutdown."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

import uvicorn

from symphony.service.address import bind
from symphony.service.app import make_app
from symphony.service.connections import ACCEPTS, Connection, Connections, Listener
from symphony.service.service import Service

log = logging.getLogger("symphony.service")


class Server:
    def __init__(self, service: Service, host: str, port: int) -> None:
        self.connections = Connections(service.limits.connections, service.limits.patience)
        self._socket = bind(host, port, Listener)
        self._socket.connections = self.connections
        self.host, self.port = host, self._socket.getsockname()[1]
        config = uvicorn.Config(
            make_app(service, self.connections, names(host) | service.limits.hosts),
            loop="asyncio",  # which calls `Listener.accept`
            http=partial(Connection, self.connections),  # type: ignore[arg-type]  # called, and nothing else
            ws="none",
            lifespan="on",
            backlog=ACCEPTS,
            callback_notify=self.connections.sweep,
            timeout_notify=0,  # every second
            timeout_graceful_shutdown=5,
            log_config=None,
            access_log=False,
            server_header=False,
        )
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
        return f"http://{name}:{self.port}"

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        self.connections.close()


def names(host: str) -> frozenset[str]:
    return frozenset(one.lower() for one in ("localhost", host, socket.gethostname()))


def serve(service: Service, host: str, port: int, *, drain_s: float, ready: Callable[[str], None]) -> int:
    """Serve until a signal arrives or the service fails; the exit status.

    The first signal drains: no new jobs, and running ones may finish within `drain_s`. A second one ends that wait.
    """
    server = Server(service, host, port)
    stop = threading.Event()

    def on_signal(number: int, _: FrameType | None) -> None:
        log.warning("%s", signal.Signals(number).name)
        if service.draining:
            service.running.idle.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    ready(server.url)
    while not stop.wait(0.2) and not service.failed.is_set():
        service.check_lock()
    if service.failed.is_set():
        log.error("the service has failed; accepted jobs are kept and continue when it is started again")
    else:
        service.drain(drain_s)
        left = len(service.running.queue.under_way)  # not finished in time, or a second signal arrived
        log.warning("%d jobs continue when it is started again" if left else "drained", *([left] if left else []))
    server.close()
    service.close()
    return 1 if service.failed.is_set() else 0
