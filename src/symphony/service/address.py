"""The address of a service: opened, or refused with a reason. Needs no JAX, so that a command can check it first."""

from __future__ import annotations

import ipaddress
import socket
from typing import TypeVar

from symphony.problem.errors import InputError

SocketType = TypeVar("SocketType", bound=socket.socket)


def bind(host: str, port: int, kind: type[SocketType]) -> SocketType:
    """A socket of a class, bound to an address; port 0 is any free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # With its protocol named: asyncio sets TCP_NODELAY only where it is.
        opened = kind(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        return opened
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{host}:{port} cannot be used: {reason}", hint="--port 0 takes a free one") from None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_address(host: str, port: int) -> None:
    """Refuse an address that is unknown or in use."""
    bind(host, port, socket.socket).close()
