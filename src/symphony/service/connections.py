"""Connections of a server: how many there may be, how long each may take, and who goes when there are too many.

A connection is refused where it is accepted, before anything is read from it. When all are in use, the one that has
been idle longest is closed for the new one: first those that have never shown a token, then those that wait for their
next request. Connections with a request under way stay. Some file descriptors are never given to connections, so that
processes can be started and files be opened however many knock.

Everything here is done by the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
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
from symphony.service.service import Patience
from symphony.service.wire import ErrorView, Refusal

log = logging.getLogger("symphony.service")
ACCEPTS = 32  # at once, before what has come is read
BACKLOG = 1_024  # connections that the kernel holds until they are accepted
RESERVED = 64  # descriptors that no connection gets
DESCRIPTORS = 1 << 16  # that are asked for: programs that walk through all of theirs get slow with more
REPORT_S = 60.0  # between two lines about the same
TOKEN = "symphony.token"  # in the scope of a request: whose it is
FULL, ADDRESS, DESCRIPTOR = "connections", "address", "descriptors"  # why a connection is refused
CONNECTION_HINTS = {
    FULL: "all are in use; --connections allows more",
    ADDRESS: "one address has half of all; --connections allows more",
    DESCRIPTOR: "file descriptors run out; allow more (ulimit -n), or fewer --connections",
}


def raise_descriptor_limit() -> None:
    """Allow this process as many file descriptors as it may have, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Connections:
    """All connections of a server."""

    def __init__(self, most: int, patience: Patience) -> None:
        self.most, self.patience = most, patience
        self.refused: Counter[str] = Counter()  # by why
        self.made: set[Connection] = set()
        self.leaving: set[Connection] = set()  # closed for others, and gone with the next turn of the loop
        self._open: WeakSet[_Peer] = WeakSet()
        self._reports = {why: _Report() for why in CONNECTION_HINTS}
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # The kernel gives the lowest number that is free: a higher one than this means that only the reserve is left.
        self._highest = (1 << 30) if soft == resource.RLIM_INFINITY else soft - min(RESERVED, soft // 4)
        self._spare = os.open(os.devnull, os.O_RDONLY)  # given up to refuse a connection when there is no other
        self._pause_until_s = 0.0

    def close(self) -> None:
        """Let go of the spare descriptor."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def __len__(self) -> int:
        return len(self._open) - len(self.leaving)

    @property
    def trouble(self) -> str:
        """Why connections were refused within the last minute; "" if none was."""
        now = time.monotonic()
        found = [why for why, one in self._reports.items() if now - one.last_s < REPORT_S]
        return "; ".join(f"connections are refused: {CONNECTION_HINTS[why]}" for why in found)

    # --- at the door

    def accept(self, accept: Callable[[], tuple[socket.socket, Any]]) -> tuple[socket.socket, Any]:
        """The next connection that is let in; raises `BlockingIOError` when there is none, or it is others' turn."""
        for _ in range(ACCEPTS):
            if len(self) >= self.most and self._least_missed() is None and self._has_unread():
                break  # whether those are idle shows with the next turn of the loop
            try:
                new, address = accept()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self._refuse_without_descriptor(accept, error)
                continue
            peer = _Peer(new.family, new.type, new.proto, fileno=new.detach())
            peer.address, peer.forget = str(address[0]), self._open.discard
            why = self._why_not(peer)
            if not why:
                self._open.add(peer)
                return peer, address
            self._refuse(peer, why)
        raise BlockingIOError

    def _why_not(self, peer: _Peer) -> str:
        """Why a connection cannot be let in; "" if it can, after one that was idle was closed where need be."""
        short = peer.fileno() >= self._highest
        if (short or len(self) >= self.most) and not self._close_idle():
            return DESCRIPTOR if short else FULL
        # Through loopback come a proxy, and all users of this machine: they cannot be told apart.
        if not is_loopback(peer.address):
            beside = [one for one in self._open if one.address == peer.address]
            if len(beside) >= max(self.most // 2, 1):
                return ADDRESS
        return ""

    def _refuse(self, peer: socket.socket, why: str) -> None:
        with contextlib.suppress(OSError):  # it need not be there any more
            peer.setblocking(False)
            peer.send(REFUSAL)
        peer.close()
        self._count(why)

    def _refuse_without_descriptor(self, accept: Callable[[], tuple[socket.socket, Any]], error: OSError) -> None:
        """Refuse with the spare descriptor. Who is left to wait keeps the socket ready, and the loop from resting."""
        now = time.monotonic()
        if now < self._pause_until_s:
            raise BlockingIOError
        self._close_idle()
        self.close()
        try:
            self._refuse(accept()[0], DESCRIPTOR)
        except BlockingIOError:
            raise
        except OSError:  # somebody else was faster: asyncio rests for a second
            self._count(DESCRIPTOR)
            self._pause_until_s = now + 0.5
            raise error from None
        finally:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)

    def _count(self, why: str) -> None:
        self.refused[why] += 1
        report, now = self._reports[why], time.monotonic()
        report.count += 1
        report.last_s = now
        self._tell(why, now)

    def _tell(self, why: str, now: float) -> None:
        """One line a minute, however many were refused."""
        report = self._reports[why]
        if report.count and now - report.told_s >= REPORT_S:
            log.error("%d connections were refused: %s", report.count, CONNECTION_HINTS[why])
            report.count, report.told_s = 0, now

    def _least_missed(self) -> Connection | None:
        """The connection that may be closed for another."""
        idle = [one for one in self.made if one.idle and not one.transport.is_closing()]
        idle.sort(key=lambda one: (one.known, one.idle_since_s))
        return next((one for one in idle if not one.is_unread), None)

    def _has_unread(self) -> bool:
        """Whether a connection was accepted, or bytes of one have come, that the loop has not got to yet."""
        return len(self.made) < len(self._open) or any(one.is_unread for one in self.made if one.idle)

    def _close_idle(self) -> bool:
        """Close the connection that will be missed least; whether there was one."""
        found = self._least_missed()
        if found is None:
            return False
        self.leaving.add(found)
        found.transport.abort()
        return True

    # --- every second

    async def sweep(self) -> None:
        """Close what takes too long, and make room where descriptors run out."""
        try:
            now = time.monotonic()
            for one in list(self.made):
                if one.is_late(now, self.patience):
                    one.transport.abort()
            if self._are_descriptors_short():
                for _ in range(ACCEPTS):
                    self._close_idle()
            for why in CONNECTION_HINTS:
                self._tell(why, now)
        except Exception:  # it would end the server
            log.exception("connections could not be looked after")

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
    """A connection that was accepted; it is counted until it is closed."""

    address: str
    forget: Callable[[_Peer], None]

    def close(self) -> None:
        super().close()
        self.forget(self)


class Listener(socket.socket):
    """A socket whose connections are bounded. asyncio takes them by `accept`."""

    connections: Connections

    def accept(self) -> tuple[socket.socket, Any]:
        return self.connections.accept(super().accept)

    def listen(self, backlog: int = BACKLOG, /) -> None:
        """Without regard to `backlog`, which asyncio also takes for how many to accept at once."""
        super().listen(BACKLOG)


class Connection(H11Protocol):
    """One connection, as the server drives it."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._all = connections
        self.known = False  # whether it has shown a token
        self.idle_since_s = time.monotonic()
        self._stuck_since_s: float | None = None  # since when the client has taken nothing of an answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.made.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.made.discard(self)
        self._all.leaving.discard(self)
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether no request is under way; part of the head of one may have come."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_unread(self) -> bool:
        """Whether something has come that was not read yet: a request, most likely."""
        if self.transport.is_closing():
            return False
        looked = select.poll()
        looked.register(self.transport.get_extra_info("socket"), select.POLLIN)
        return bool(looked.poll(0))

    def is_late(self, now_s: float, patience: Patience) -> bool:
        """Whether it has taken longer than it may. Bodies are looked after by whoever reads them."""
        if self.transport.is_closing() and self._stuck_since_s is None:
            self._stuck_since_s = now_s  # what is left of the answer has to go out
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
    """Connections that were refused for one reason."""

    count: int = 0  # since the last line about it
    told_s: float = -REPORT_S
    last_s: float = -REPORT_S


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refusal() -> bytes:
    """An answer in the one form that errors have; the client tries again."""
    error = BusyError("the service has as many connections as it takes", hint="try again in a moment")
    body = Refusal(error=ErrorView.of(error)).model_dump_json().encode()
    head = ["HTTP/1.1 503 Service Unavailable", "content-type: application/json", f"content-length: {len(body)}"]
    head += ["retry-after: 1", "connection: close", "", ""]
    return "\r\n".join(head).encode() + body


REFUSAL = _refusal()
