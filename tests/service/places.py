"""Services to test: real ones, on free ports of the loopback address, with real processes and databases."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from symphony.engines.engine import Engine
from symphony.engines.local import LocalEngine
from symphony.service import tokens
from symphony.service.client import RemoteCluster, connect
from symphony.service.service import Limits, Service
from symphony.service.serving import Server
from tests.runtime.machines import machine
from tests.waiting import SECONDS, wait_until

__all__ = ["SECONDS", "Place", "place", "postgres", "service", "wait_until"]
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
    folder: Path, database: str = "", limits: Limits | None = None, engine: Callable[[], Engine] = processes
) -> Iterator[Place]:
    """With HTTP."""
    with service(folder, database, limits, engine) as found:
        server = Server(found, "127.0.0.1", 0)
        try:
            yield Place(found, server)
        finally:
            server.close()


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a private PostgreSQL, which is gone afterwards. Skips where there is none."""
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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet: dict = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder, **as_user}
    data = str(folder / "data")
    subprocess.run([where / "initdb", "-D", data, "-U", "symphony", "-A", "trust", "--no-sync"], check=True, **quiet)
    options = ["-c", f"unix_socket_directories={folder}", "-c", "listen_addresses=127.0.0.1", "-p", str(port)]
    server = subprocess.Popen([where / "postgres", "-D", data, *options], **quiet)
    try:
        ready = [where / "pg_isready", "-h", "127.0.0.1", "-p", str(port)]
        wait_until(lambda: subprocess.run(ready, check=False, **quiet).returncode == 0)
        yield f"postgresql://symphony@127.0.0.1:{port}/postgres"
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)
