"""Requests at the door: whose they are comes first, then how large and how slow they may be."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

import symphony as sy
from symphony.service import views
from symphony.service.client import RemoteCluster
from symphony.service.guard import PUBLIC
from symphony.service.service import Limits, Patience, Service
from symphony.service.state import ServiceJob
from symphony.service.threads import THREADS_OF_A_USER
from symphony.service.wire import Refusal
from tests.service.kernels import add, one
from tests.service.places import SECONDS, Place, place

LIMITS = Limits(body_bytes=100_000, hosts=frozenset({"lab.example.org"}))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("service"), limits=LIMITS) as found:
        yield found


@pytest.fixture(scope="module")
def token(here: Place) -> str:
    return here.token("ann")


@pytest.fixture
def impatient(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here.service, "limits", replace(LIMITS, patience=Patience(body_s=0.3, body_rate=1e6)))


@contextmanager
def asked(
    here: Place, line: str, *headers: str, token: str = "", sent: bytes = b"", host: str = "127.0.0.1"
) -> Iterator[socket.socket]:
    """A request, of whose body perhaps only a part is sent."""
    head = [f"{line} HTTP/1.1", f"host: {host}", *headers]
    head += [f"authorization: Bearer {token}"] if token else []
    with socket.create_connection(("127.0.0.1", here.server.port), SECONDS) as there:
        there.sendall("\r\n".join([*head, "", ""]).encode() + sent)
        yield there


def answer(there: socket.socket) -> tuple[int, str, bytes]:
    """Status, head and body of an answer after which the connection is closed."""
    found = b""
    while part := there.recv(65_536):
        found += part
    head, _, body = found.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode().lower(), body


# -------------------------------------------------------------------- whose it is, before a body is read


@pytest.mark.parametrize("size", ["content-length: 90000", "content-length: 99999999999", "transfer-encoding: chunked"])
@pytest.mark.parametrize("given", ["", "nonsense", f"sy_{'0' * 8}_{'x' * 43}"])
def test_without_a_token_no_body_is_waited_for(here: Place, size: str, given: str) -> None:
    with asked(here, "POST /v1/jobs", size, token=given) as there:  # nothing of it is ever sent
        status, head, body = answer(there)
    assert status == 401 and "www-authenticate: bearer" in head
    assert isinstance(Refusal.model_validate_json(body).error.error(), sy.TokenError)


def test_what_needs_no_token_wants_no_body(here: Place) -> None:
    for path in PUBLIC:
        with asked(here, f"GET {path}", "content-length: 99999999999") as there:
            assert answer(there)[0] == 200


def test_an_expired_token_is_refused_before_the_body(here: Place) -> None:
    old = here.token("old", days=1e-9)
    with asked(here, "POST /v1/jobs", "content-length: 1000", token=old) as there:
        status, _, body = answer(there)
    assert status == 401 and b"expired" in body


def test_wrong_tokens_are_slowed_down_and_valid_ones_are_not(here: Place) -> None:
    token = here.token("new")
    with ExitStack() as stack:
        wrong = [stack.enter_context(asked(here, "GET /v1/jobs", "connection: close", token="no")) for _ in range(80)]
        with asked(here, "GET /v1/jobs", "connection: close", token=token) as there:
            assert answer(there)[0] == 200
        assert {answer(there)[0] for there in wrong} == {401, 429}  # so many wait, the others have to come back


@pytest.mark.parametrize(
    "name", ["127.0.0.1", "localhost:7733", "LOCALHOST", "[::1]:80", "10.1.2.3", "lab.example.org"]
)
def test_names_that_are_ours_are_answered(here: Place, name: str) -> None:
    with asked(here, "GET /healthz", "connection: close", host=name) as there:
        assert answer(there)[0] == 200


@pytest.mark.parametrize("name", ["evil.example.org", "localhost.evil.org:7733", "127.0.0.1.evil.org", "[x]"])
def test_other_names_are_refused(here: Place, token: str, name: str) -> None:
    for path in ("/healthz", "/v1/jobs"):
        with asked(here, f"GET {path}", "connection: close", host=name, token=token) as there:
            status, _, body = answer(there)
        assert status == 421 and b"--allowed-host" in body


# -------------------------------------------------------------------- sizes


def test_a_size_that_is_too_large_is_refused_before_the_body(here: Place, token: str) -> None:
    with asked(here, "POST /v1/jobs", "content-length: 100001", token=token) as there:
        status, _, body = answer(there)
    assert status == 413 and b"--body-bytes" in body


def test_large_bodies_under_way_are_bounded_for_a_user_and_for_all(here: Place) -> None:
    """Four of the largest at once, two of one user; then there is room again."""
    large, small = "content-length: 100000", "content-length: 1000"
    eve, ben, flo = (here.token(name) for name in ("eve", "ben", "flo"))
    with ExitStack() as stack:
        for given in (eve, eve, ben, ben):
            slow = stack.enter_context(asked(here, "POST /v1/jobs", large, "expect: 100-continue", token=given))
            assert b" 100 " in slow.recv(65_536)  # it is being read
            slow.sendall(b" " * 99_000)
        for given, status in ((eve, 429), (flo, 503)):
            with asked(here, "POST /v1/jobs", small, token=given) as there:
                found, head, body = answer(there)
            assert found == status and "retry-after: 1" in head
            assert type(Refusal.model_validate_json(body).error.error()) is sy.BusyError  # the client tries again
    with RemoteCluster(here.server.url, flo) as later:
        assert later.submit(one(add, 1)).result(SECONDS) == 1


# -------------------------------------------------------------------- times


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("path", ["POST /v1/jobs", f"PUT /v1/blobs/{'0' * 64}"])
def test_a_body_that_does_not_come_is_not_waited_for(here: Place, token: str, path: str) -> None:
    with asked(here, path, "content-length: 1000", token=token, sent=b"[1") as there:
        status, head, body = answer(there)
    assert status == 408 and "connection: close" in head
    assert "only 2 bytes" in Refusal.model_validate_json(body).error.message
    assert not list(here.service.blobs.folder.glob("part-*"))


@pytest.mark.usefixtures("impatient")
def test_a_body_that_comes_too_slowly_is_not_waited_for(here: Place, token: str) -> None:
    with asked(here, "POST /v1/jobs", "content-length: 1000", token=token) as there:
        there.settimeout(0.05)
        said = b""
        for _ in range(1_000):
            there.sendall(b" ")
            try:
                said = there.recv(13)
                break
            except TimeoutError:
                pass
    assert b" 408 " in said


# -------------------------------------------------------------------- what is counted and logged


def test_slow_requests_of_a_user_leave_threads_to_others(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """More requests that compute for long than there are threads."""
    go, began = threading.Event(), threading.Semaphore(0)

    def slow(service: Service, job: ServiceJob) -> str:
        began.release()
        assert go.wait(SECONDS)
        return "at last"

    monkeypatch.setattr(views, "explanation", slow)
    with here.connect("eve") as eve, here.connect("ann") as ann, ExitStack() as stack:
        job, token = eve.submit(one(add, 1)), here.token("eve")
        line = f"GET /v1/jobs/{job.id}/explain"
        asking = [stack.enter_context(asked(here, line, "connection: close", token=token)) for _ in range(60)]
        for _ in range(THREADS_OF_A_USER):
            assert began.acquire(timeout=SECONDS)
        mine = ann.submit(one(add, 2))  # her token is looked up, and her job is read, in threads
        assert mine.result(SECONDS) == 2 and mine.detail().tasks
        assert not began.acquire(blocking=False)
        go.set()
        assert {answer(one)[0] for one in asking} == {200}


def test_methods_and_paths_that_clients_invent_become_no_labels(here: Place, token: str) -> None:
    for number in range(30):
        for given in ("", token):
            with asked(here, f"M{number} /v1/jobs", "connection: close", token=given) as there:
                assert answer(there)[0] in (401, 405)
            with asked(here, f"GET /p{number}", "connection: close", token=given) as there:
                assert answer(there)[0] in (401, 404)
    with asked(here, "GET /metrics", "connection: close", token=token) as there:
        rows = [line for line in answer(there)[2].decode().splitlines() if line.startswith("symphony_requests_total")]
    assert any('method="other"' in row for row in rows)
    assert not any('"M1"' in row or "/p1" in row for row in rows) and len(rows) < 30


def test_a_client_learns_why_its_body_is_not_wanted(here: Place) -> None:
    """Though the connection is closed while it sends."""
    with (
        RemoteCluster(here.server.url, "sy_00000000_" + "x" * 43) as nobody,
        pytest.raises(sy.TokenError, match="invalid token"),
    ):
        nobody._ask("PUT", f"/v1/blobs/{'0' * 64}", b"x" * (64 << 20))
