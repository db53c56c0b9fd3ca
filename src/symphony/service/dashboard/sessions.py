"""Logins of browsers: a session for each, named by a cookie, and the check that a request comes from our own pages.

The cookie does not hold the token: browsers send cookies of a host to all of its ports, so that another service on the
same machine may see it. A session is good for pages only, not for `/v1/…`, and ends with its token.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import quote

from fastapi.responses import RedirectResponse, Response
from starlette.types import Scope

from symphony.problem.errors import ScopeError

ROOT, LOGIN, STATIC = "/ui/", "/ui/login", "/ui/static/"
SESSION_S = 12 * 3_600.0
MAX_SESSIONS = 1_000  # the oldest end
FROM_HTMX = b"hx-request"  # a header that other sites cannot send
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with "no-referrer", browsers would send no `Origin` with forms
    "cross-origin-resource-policy": "same-origin",
}


def is_page(path: str) -> bool:
    return path == "/" or path.startswith(ROOT)


def is_open_page(path: str) -> bool:
    """Whether it needs no session."""
    return path in ("/", LOGIN) or path.startswith(STATIC)


def check_same_origin(method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
    """Refuse requests that change something and were caused by a page of another site."""
    if method in ("GET", "HEAD"):
        return
    origin, host = headers.get(b"origin", b"").lower(), headers.get(b"host", b"").lower()
    same = origin.partition(b"://")[2] == host and host != b""
    if not same or (path != LOGIN and FROM_HTMX not in headers):
        raise ScopeError("this request comes from another site", hint="use the pages of the service, or its API")


class Sessions:
    """Sessions of browsers, in memory. Only the thread of the event loop uses it."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, str]] = {}  # by hash of the cookie: when it ends, and the token's text

    def begin(self, scope: Scope, secret: str, response: Response) -> None:
        """Begin a session for a token, and set its cookie."""
        now, key = time.monotonic(), secrets.token_urlsafe(32)
        self._kept = {name: one for name, one in self._kept.items() if one[0] > now}
        while len(self._kept) >= MAX_SESSIONS:
            del self._kept[next(iter(self._kept))]
        self._kept[_hash(key)] = now + SESSION_S, secret
        response.set_cookie(_name(scope), key, **self._attributes(scope))

    def secret(self, scope: Scope, headers: Mapping[bytes, bytes]) -> str:
        """The token's text; "" if there is no such session."""
        end_s, secret = self._kept.get(_hash(_sent(scope, headers)), (0.0, ""))
        return secret if end_s > time.monotonic() else ""

    def end(self, scope: Scope, headers: Mapping[bytes, bytes], response: Response) -> None:
        self._kept.pop(_hash(_sent(scope, headers)), None)
        response.delete_cookie(_name(scope), **self._attributes(scope))

    @staticmethod
    def _attributes(scope: Scope) -> dict[str, Any]:
        # A browser says how it reached us: behind a TLS proxy, we are asked in plain HTTP.
        origin = dict(scope["headers"]).get(b"origin", b"")
        secure = scope["scheme"] == "https" or origin.startswith(b"https:")
        return {"path": ROOT, "httponly": True, "samesite": "strict", "secure": secure}


def login_needed(scope: Scope, headers: Mapping[bytes, bytes]) -> Response:
    """The answer to a request for a page without a session."""
    address = f"{LOGIN}?next={quote(scope['path'])}"
    if FROM_HTMX in headers:
        return Response(status_code=401, headers={"hx-redirect": LOGIN})
    return RedirectResponse(address, 303)


def _name(scope: Scope) -> str:
    """Of the cookie: with the port, since services on other ports of the host have cookies of their own."""
    return f"symphony-{(scope.get('server') or ('', 0))[1]}"


def _sent(scope: Scope, headers: Mapping[bytes, bytes]) -> str:
    try:
        cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return ""
    return cookies[_name(scope)].value if _name(scope) in cookies else ""


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
