"""Limits of the connections of a server: their number, the time each may take, and which one is closed for another.

A connection is refused right after accept(), before anything is read from it. When all are in use, the one that has
been idle longest is closed for the new one: first connections that have never sent a valid token, then authenticated
ones. Connections with a request under way are never closed for others. Some file descriptors are reserved, so that the
service can start processes and open files however many clients connect.

Only the thread of the event loop uses this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import select
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from uvicorn.protocols.http.h11_impl import H11Protocol

from symphony.problem.errors import BusyError
from symphony.service.address import is_loopback
from symphony.service.service import Patience
from symphony.service.wire import ErrorView, Refusal

log = logging.getLogger("symphony.service")
ACCEPTS = 32  # connections accepted in a row, before the event loop reads from them
BACKLOG = 1_024  # connections that the kernel queues
RESERVED = 64  # descriptors that are not used for connections
DESCRIPTORS = 1 << 16  # limit to set: with more, programs that iterate over all descriptors become slow
HANDSHAKE_S = 0.25  # after which a TLS handshake without bytes to read may be ended for another connection
REPORT_S = 60.0  # between log lines about the same reason
TOKEN = "symphony.token"  # key of the token in the ASGI scope of a request
FULL, ADDRESS, DESCRIPTOR = "connections", "address", "descriptors"  # reasons of refusals
CONNECTION_HINTS = {
    FULL: "all are in use; allow more with --connections",
    ADDRESS: "one address uses half of them; allow more with --connections",
    DESCRIPTOR: "file descriptors run out; allow more (ulimit -n), or fewer --connections",
}


def raise_descriptor_limit() -> None:
    """Raise the soft limit of file descriptors of this process to the hard limit, up to `DESCRIPTORS`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Connections:
    def __init__(self, most: int, patience: Patience) -> None:
        self.most, self.patience = most, patience
        self.refused: Counter[str] = Counter()  # by reason
        self.made: set[Connection] = set()
        self.leaving: set[Connection] = set()  # closed for others; removed in the next iteration of the event loop
        self._open: WeakSet[_Peer] = WeakSet()
        self._reports = {why: _Report() for why in CONNECTION_HINTS}
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # The kernel assigns the lowest free descriptor: one above this means that only the reserve is left.
        self._highest = (1 << 30) if soft == resource.RLIM_INFINITY else soft - min(RESERVED, soft // 4)
        # Closed to accept and refuse a connection when no other descriptor is free.
        self._spare = os.open(os.devnull, os.O_RDONLY)
        self._pause_until_s = 0.0

    def close(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def __len__(self) -> int:
        return len(self._open) - len(self.leaving)

    @property
    def trouble(self) -> str:
        """Why connections were refused within the last minute; "" if none was."""
        now = time.monotonic()
        reasons = [reason for reason, report in self._reports.items() if now - report.last_s < REPORT_S]
        return "; ".join(f"connections are refused: {CONNECTION_HINTS[reason]}" for reason in reasons)

    # --- accepting

    def accept(self, accept: Callable[[], tuple[socket.socket, Any]]) -> tuple[socket.socket, Any]:
        """The next connection that is not refused. Raises `BlockingIOError` if there is none, or the loop must read
        first.
        """
        for _ in range(ACCEPTS):
            if len(self) >= self.most and not self._has_closable() and self._has_unread_connection():
                break  # the next iteration of the event loop shows which are idle
            try:
                new, address = accept()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self._refuse_without_descriptor(accept, error)
                continue
            peer = _Peer(new.family, new.type, new.proto, fileno=new.detach())
            peer.address, peer.forget, peer.since_s = str(address[0]), self._open.discard, time.monotonic()
            reason = self._refusal_reason(peer)
            if not reason:
                self._open.add(peer)
                return peer, address
            self._refuse(peer, reason)
        raise BlockingIOError

    def _refusal_reason(self, peer: _Peer) -> str:
        """Why a connection must be refused; "" if not. May close an idle connection for it."""
        short = peer.fileno() >= self._highest
        if (short or len(self) >= self.most) and not self._close_idle():
            return DESCRIPTOR if short else FULL
        # All users of this machine, and those behind a proxy on it, share the loopback address.
        if not is_loopback(peer.address):
            same_address = [one for one in self._open if one.address == peer.address]
            if len(same_address) >= max(self.most // 2, 1):
                return ADDRESS
        return ""

    def _refuse(self, peer: socket.socket, reason: str) -> None:
        with contextlib.suppress(OSError):  # the client may have disconnected
            peer.setblocking(False)
            peer.send(REFUSAL)
        peer.close()
        self._count(reason)

    def _refuse_without_descriptor(self, accept: Callable[[], tuple[socket.socket, Any]], error: OSError) -> None:
        """Refuse with the spare descriptor: a connection that stays pending would keep the event loop busy."""
        now = time.monotonic()
        if now < self._pause_until_s:
            raise BlockingIOError
        self._close_idle()
        self.close()
        try:
            self._refuse(accept()[0], DESCRIPTOR)
        except BlockingIOError:
            raise
        except OSError:  # another thread took the descriptor: asyncio then pauses for a second
            self._count(DESCRIPTOR)
            self._pause_until_s = now + 0.5
            raise error from None
        finally:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)

    def _count(self, reason: str) -> None:
        self.refused[reason] += 1
        report, now = self._reports[reason], time.monotonic()
        report.count += 1
        report.last_s = now
        self._log_refusals(reason, now)

    def _log_refusals(self, reason: str, now: float) -> None:
        report = self._reports[reason]
        if report.count and now - report.logged_s >= REPORT_S:
            log.error("%d connections were refused: %s", report.count, CONNECTION_HINTS[reason])
            report.count, report.logged_s = 0, now

    def _closable(self) -> Connection | None:
        """The idle connection that is closed first: unauthenticated before authenticated, longest idle first."""
        idle = [one for one in self.made if one.idle and not one.transport.is_closing()]
        idle.sort(key=lambda one: (one.known, one.idle_since_s))
        return next((one for one in idle if not one.is_unread), None)

    def _has_closable(self) -> bool:
        return bool(self._stalled(HANDSHAKE_S)) or self._closable() is not None

    def _has_unread_connection(self) -> bool:
        """Whether the event loop has yet to read from a new or idle connection."""
        new = len(self._open) - len(self.made) > len(self._stalled(HANDSHAKE_S))
        return new or any(one.is_unread for one in self.made if one.idle)

    def _stalled(self, seconds: float) -> list[_Peer]:
        """Connections without a finished TLS handshake after so long, oldest first. (Others have none.)"""
        since = time.monotonic() - seconds
        old = [peer for peer in self._open if peer.since_s < since]
        if not old:
            return []
        made = {one.transport.get_extra_info("socket").fileno() for one in self.made}
        stalled = [peer for peer in old if peer.fileno() not in made and not has_unread(peer)]
        return sorted(stalled, key=lambda peer: peer.since_s)

    def _close_idle(self) -> bool:
        stalled = self._stalled(HANDSHAKE_S)
        if stalled:
            self._hang_up(stalled[0])
            return True
        connection = self._closable()
        if connection is None:
            return False
        self.leaving.add(connection)
        connection.transport.abort()
        return True

    def _hang_up(self, peer: _Peer) -> None:
        """End a connection during its TLS handshake: asyncio reads the end, and closes it."""
        with contextlib.suppress(OSError):
            peer.shutdown(socket.SHUT_RDWR)
        self._open.discard(peer)

    # --- called every second

    async def sweep(self) -> None:
        """Close connections that take too long, and idle ones if descriptors run out."""
        try:
            now = time.monotonic()
            for one in list(self.made):
                if one.is_late(now, self.patience):
                    one.transport.abort()
            for peer in self._stalled(self.patience.head_s):
                self._hang_up(peer)
            if self._are_descriptors_short():
                for _ in range(ACCEPTS):
                    self._close_idle()
            for reason in CONNECTION_HINTS:
                self._log_refusals(reason, now)
        except Exception:  # would end the server
            log.exception("connections could not be checked")

    def _are_descriptors_short(self) -> bool:
        try:
            if self._spare < 0:
                self._spare = os.open(os.devnull, os.O_RDONLY)
            probe = os.dup(self._spare)
        except OSError:
            return True
        os.close(probe)
        return probe >= self._highest


class _Peer(socket.socket):
    """An accepted socket, counted until it is closed."""

    address: str
    forget: Callable[[_Peer], None]
    since_s: float

    def close(self) -> None:
        super().close()
        self.forget(self)


class Listener(socket.socket):
    """A socket whose connections are limited. asyncio calls `accept`."""

    connections: Connections

    def accept(self) -> tuple[socket.socket, Any]:
        return self.connections.accept(super().accept)

    def listen(self, backlog: int = BACKLOG, /) -> None:
        """Ignores `backlog`, which asyncio also uses as the number of accepts in a row."""
        super().listen(BACKLOG)


class Connection(H11Protocol):
    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._all = connections
        self.known = False  # whether it has sent a valid token
        self.idle_since_s = time.monotonic()
        self._stuck_since_s: float | None = None  # since when the client has not read from an answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.made.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.made.discard(self)
        self._all.leaving.discard(self)
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether no request is under way; a part of a request head may have arrived."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_unread(self) -> bool:
        """Whether bytes have arrived that were not read yet."""
        return not self.transport.is_closing() and has_unread(self.transport.get_extra_info("socket"))

    def is_late(self, now_s: float, patience: Patience) -> bool:
        """Whether it exceeds a time limit. `guard.Body` limits the time of request bodies."""
        if self.transport.is_closing() and self._stuck_since_s is None:
            self._stuck_since_s = now_s  # the rest of the answer is still being sent
        if self._stuck_since_s is not None:
            return now_s - self._stuck_since_s > patience.write_s
        return self.idle and now_s - self.idle_since_s > patience.head_s and not self.is_unread

    def on_response_complete(self) -> None:
        self.known = self.known or TOKEN in self.scope
        self.idle_since_s = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._stuck_since_s = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stuck_since_s = None
        super().resume_writing()


@dataclass
class _Report:
    count: int = 0  # since the last log line
    logged_s: float = -REPORT_S
    last_s: float = -REPORT_S


def has_unread(peer: Any) -> bool:
    """Whether a socket has bytes that were not read yet."""
    readable = select.poll()
    readable.register(peer, select.POLLIN)
    return bool(readable.poll(0))


def _refusal() -> bytes:
    """An HTTP response with a `Refusal`; clients retry it."""
    error = BusyError("the service has too many connections", hint="try again in a moment")
    body = Refusal(error=ErrorView.of(error)).model_dump_json().encode()
    head = ["HTTP/1.1 503 Service Unavailable", "content-type: application/json", f"content-length: {len(body)}"]
    head += ["retry-after: 1", "connection: close", "", ""]
    return "\r\n".join(head).encode() + body


REFUSAL = _refusal()
