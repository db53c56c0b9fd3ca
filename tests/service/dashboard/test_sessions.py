"""Logins: without a session no page shows anything, and no other site can use one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from symphony.service import tokens
from symphony.service.dashboard import sessions
from symphony.service.dashboard.sessions import SECURITY_HEADERS
from tests.service.dashboard.places import Visitor, visitor
from tests.service.kernels import one, wait_for
from tests.service.places import Place, place, wait_until

PAGES = ("/ui/", "/ui/jobs", "/ui/jobs/1", "/ui/jobs/1/log", "/ui/jobs/1/when", "/ui/jobs/1/trace.json", "/ui/timeline")
PAGES += ("/ui/timeline/runs", "/ui/trace.json", "/ui/learning", "/ui/whatif", "/ui/events", "/ui/row?name=x", "/ui/no")
PAGES += ("/ui/row/history?name=x",)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("sessions")) as found:
        yield found


@pytest.mark.parametrize("path", PAGES)
def test_without_a_session_there_is_only_the_way_to_the_login(here: Place, path: str) -> None:
    bearer = {"authorization": f"Bearer {here.token('ann', 'read')}"}  # is for the API, not for pages
    for headers in ({}, {"cookie": f"symphony-{here.server.port}=wrong"}, {"cookie": "a=b; =;"}, bearer):
        status, answered, text = Visitor(here).ask("GET", path, **headers)
        assert (status, text) == (303, "") and answered["location"].startswith("/ui/login?next=/ui/")
    status, answered, text = Visitor(here).ask("GET", path, hx_request="true")
    assert (status, text, answered["hx-redirect"]) == (401, "", "/ui/login")


def test_only_a_valid_token_that_may_read_begins_a_session(here: Place) -> None:
    for wrong in ("", "sy_", "sy_00000000_" + "x" * 43, here.token("ann", "submit")):
        one_more = Visitor(here)
        assert one_more.log_in(wrong) in (401, 403) and not one_more.cookie
    ann = visitor(here, "ann")
    assert "ann" in ann.get("/ui/") and ann.ask("GET", "/v1/jobs")[0] == 401  # the API takes no cookies


def test_the_cookie_is_not_the_token_and_scripts_and_other_sites_do_not_get_it(here: Place) -> None:
    token = here.token("ann")
    _, headers, _ = Visitor(here).ask("POST", "/ui/login?next=//evil.test", {"token": token}, origin=here.server.url)
    cookie = headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/ui/" in cookie
    assert token.lower()[12:] not in cookie and headers["location"] == "/ui/" and "secure" not in cookie
    behind = here.server.url.replace("http:", "https:")  # a proxy, which the browser reaches over HTTPS
    _, headers, _ = Visitor(here).ask("POST", "/ui/login", {"token": token}, origin=behind)
    assert "secure" in headers["set-cookie"].lower()


def test_a_session_ends_with_logout_with_its_token_and_with_time(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = visitor(here, "ann")
    assert ann.change("/ui/logout") == 200 and ann.ask("GET", "/ui/")[0] == 303
    secret = here.token("bob")
    bob = Visitor(here)
    assert bob.log_in(secret) == 303 and bob.ask("GET", "/ui/")[0] == 200
    change = tokens.revocation(tokens.operator(), tokens.existing(here.service.database, tokens.token_id(secret)))
    here.service.change_tokens(change).result()
    assert bob.ask("GET", "/ui/")[0] == 303
    monkeypatch.setattr(sessions, "SESSION_S", -1.0)
    late = Visitor(here)
    assert late.log_in(here.token("ann")) == 303 and late.ask("GET", "/ui/")[0] == 303


def test_pages_of_other_sites_change_nothing(here: Place, tmp_path: Path) -> None:
    ann, cluster = visitor(here, "ann"), here.connect("ann")
    job = cluster.submit(one(wait_for, str(tmp_path / "go")))
    cancel = f"/ui/jobs/{job.id}/cancel"
    for origin in ("http://evil.test", "null", f"http://127.0.0.1:{here.server.port + 1}", ""):
        foreign = {"origin": origin, "hx_request": "true"} if origin else {"hx_request": "true"}
        for path in (cancel, "/ui/logout", "/ui/login"):
            assert ann.ask("POST", path, {}, **foreign)[0] == 403, (origin, path)
    assert ann.ask("POST", cancel, {}, origin=here.server.url)[0] == 403  # a form, which other sites can send
    assert ann.get("/ui/jobs") and job.status in ("waiting", "running")
    assert visitor(here, "eve").change(cancel) == 404 and visitor(here, "ann", "read").change(cancel) == 403
    assert ann.change(cancel) == 204
    wait_until(lambda: job.status == "cancelled")


def test_a_foreign_host_is_refused_before_anything_else(here: Place) -> None:
    ann = visitor(here, "ann")
    for path in ("/", "/ui/", "/ui/login", "/ui/static/style.css"):
        status, _, text = ann.ask("GET", path, host="evil.test")
        assert status == 421 and "unknown host name" in text


def test_every_page_forbids_what_it_does_not_need(here: Place) -> None:
    ann = visitor(here, "ann")
    for path in ("/", "/ui/", "/ui/login", "/ui/jobs/99", "/ui/static/style.css"):
        _, headers, _ = ann.ask("GET", path)
        assert {name: headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    assert "unsafe" not in SECURITY_HEADERS["content-security-policy"]
    assert ann.ask("GET", "/ui/")[1]["cache-control"] == "no-store"
