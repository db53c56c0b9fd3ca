"""A service with jobs in it, and requests as a browser sends them."""

from __future__ import annotations

import http.client
from dataclasses import dataclass, field
from urllib.parse import urlencode

from tests.service.places import SECONDS, Place


@dataclass
class Visitor:
    """Sends requests with the cookie of its session, without a browser."""

    here: Place
    cookie: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def ask(
        self, method: str, path: str, form: dict[str, str] | None = None, **headers: str
    ) -> tuple[int, http.client.HTTPMessage, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.here.server.port, timeout=SECONDS)
        sent = {"cookie": self.cookie} | {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, None if form is None else urlencode(form), sent)
        answer = connection.getresponse()
        found = answer.status, answer.headers, answer.read().decode()
        connection.close()
        return found

    def get(self, path: str) -> str:
        status, _, text = self.ask("GET", path)
        assert status == 200, (path, status, text)
        return text

    def log_in(self, token: str) -> int:
        """The status of the answer; the cookie is kept."""
        status, headers, _ = self.ask("POST", "/ui/login", {"token": token}, origin=self.here.server.url)
        self.cookie = headers.get("set-cookie", "").partition(";")[0]
        return status

    def change(self, path: str, **headers: str) -> int:
        """The status of a request that changes something, as our own pages send it."""
        return self.ask("POST", path, origin=self.here.server.url, hx_request="true", **headers)[0]


def visitor(here: Place, user: str, *scopes: str) -> Visitor:
    """Logged in."""
    found = Visitor(here)
    assert found.log_in(here.token(user, *scopes)) == 303
    return found
