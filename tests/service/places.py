"""Services to test: real ones, on free ports of the loopback address, with real processes and databases."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from symphony.engines.engine import Engine
from symphony.engines.local import LocalEngine
from symphony.service import tokens
from symphony.service.client import RemoteCluster, connect
from symphony.service.service import Limits, Service
from symphony.service.serving import Server
from symphony.service.tls import TlsFiles
from tests.runtime.machines import machine
from tests.waiting import SECONDS, wait_until

__all__ = ["SECONDS", "Place", "Postgres", "place", "postgres", "postgres_server", "service", "wait_until"]
BOTH = (tokens.SUBMIT, tokens.READ)


@dataclass
class Place:
    """A service, and how to reach it."""

    service: Service
    server: Server

    def token(self, user: str, *scopes: str, days: float | None = None, priority: int = 0) -> str:
        """A new one."""
        return tokens.create(self.service.database, user, scopes or BOTH, days=days, priority=priority)

    def connect(self, user: str, *scopes: str) -> RemoteCluster:
        """As a user."""
        return connect(self.server.url, token=self.token(user, *scopes))


def processes() -> Engine:
    """Two, of this machine."""
    return LocalEngine(machine())


@contextmanager
def service(
    folder: Path, database: str = "", limits: Limits | None = None, engine: Callable[[], Engine] = processes
) -> Iterator[Service]:
    """Without HTTP."""
    found = Service(engine, folder, database=database, limits=limits)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def place(
    folder: Path,
    database: str = "",
    limits: Limits | None = None,
    engine: Callable[[], Engine] = processes,
    tls: TlsFiles | None = None,
) -> Iterator[Place]:
    """With HTTP."""
    with service(folder, database, limits, engine) as found:
        server = Server(found, "127.0.0.1", 0, tls)
        try:
            yield Place(found, server)
        finally:
            server.close()


class Postgres:
    """A PostgreSQL of one's own, that can be killed and started again."""

    def __init__(self, programs: Path, folder: Path, as_user: dict, options: tuple[str, ...]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = str(free.getsockname()[1])
        self.url = f"postgresql://symphony@127.0.0.1:{self._port}/postgres"
        self._programs, self._options = programs, options
        self.data, self._folder = folder / "data", folder
        self._quiet: dict = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder, **as_user}
        make = [programs / "initdb", "-D", self.data, "-U", "symphony", "-A", "trust", "--no-sync"]
        subprocess.run(make, check=True, **self._quiet)
        self.start()

    def start(self) -> None:
        """Until it can be used. What is left of one that was killed may be in the way for a moment."""
        where = ["-c", f"unix_socket_directories={self._folder}", "-c", "listen_addresses=127.0.0.1", "-p", self._port]
        command = [self._programs / "postgres", "-D", self.data, *where, *self._options]
        ready = [self._programs / "pg_isready", "-h", "127.0.0.1", "-p", self._port]
        self._server = subprocess.Popen(command, **self._quiet)

        def is_ready() -> bool:
            if self._server.poll() is not None:
                self._server = subprocess.Popen(command, **self._quiet)
            return subprocess.run(ready, check=False, **self._quiet).returncode == 0

        wait_until(is_ready)

    def kill(self) -> None:
        """`kill -9` of all its processes: each of them has a group of its own."""
        children = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children")
        for pid in [self._server.pid, *map(int, children.read_text().split())]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._server.wait()

    def stop(self) -> None:
        """Whatever its clients do."""
        self._server.send_signal(signal.SIGINT)
        self._server.wait()


@contextmanager
def postgres_server(*options: str) -> Iterator[Postgres]:
    """A private PostgreSQL, which is gone afterwards. Skips where there is none."""
    programs = [*Path("/usr/lib/postgresql").glob("*/bin"), Path("/usr/local/bin"), Path("/usr/bin")]
    where = next((path for path in programs if (path / "initdb").exists() and (path / "postgres").exists()), None)
    if where is None:
        pytest.skip("PostgreSQL is not installed")
    as_user: dict = {}
    folder = Path(tempfile.mkdtemp(prefix="symphony-pg-"))
    if os.getuid() == 0:  # which PostgreSQL refuses to run as
        other = next((found for found in pwd.getpwall() if found.pw_name in ("postgres", "nobody")), None)
        if other is None:
            pytest.skip("PostgreSQL does not run as root, and there is no other user")
        os.chown(folder, other.pw_uid, other.pw_gid)
        as_user = {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
    try:
        server = Postgres(where, folder, as_user, options)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of such a server."""
    with postgres_server() as server:
        yield server.url
