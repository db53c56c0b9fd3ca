"""Connections: however many come, however slow they are, whoever is honest is served, and the log stays short."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from symphony.service.client import RemoteCluster
from symphony.service.service import Limits, Patience
from symphony.service.wire import Refusal
from tests.service.kernels import add, die_once, one, wait_for
from tests.service.places import SECONDS, Place, place, wait_until
from tests.service.serve_process import Serve

SMALL = Limits(connections=8)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("service"), limits=SMALL) as found:
        yield found


@pytest.fixture
def impatient(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here.server.connections, "patience", Patience(head_s=0.3, write_s=0.3))


def reach(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), SECONDS)


@contextmanager
def many(port: int, count: int, request: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections that send the same, and stay. Who is refused or closed is there, too."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(stack.enter_context(reach(port)))
            with suppress(OSError):  # it was refused
                made[-1].sendall(request)
        yield made


def all_of(there: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = b""
    try:
        while part := there.recv(65_536):
            found += part
    except ConnectionResetError:
        pass
    return found


def poll(token: str, job: int) -> bytes:
    """A request that waits for a job."""
    lines = [f"GET /v1/jobs/{job}?wait_s=60 HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {token}", "", ""]
    return "\r\n".join(lines).encode()


def health(url: str) -> dict:
    with urllib.request.urlopen(f"{url}/healthz", timeout=SECONDS) as answer:
        return json.loads(answer.read())


# -------------------------------------------------------------------- slow ones


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx: "])
def test_a_head_that_does_not_end_is_not_waited_for(here: Place, sent: bytes) -> None:
    with reach(here.server.port) as there:
        there.sendall(sent)
        assert all_of(there) == b""
    with reach(here.server.port) as there, pytest.raises(ConnectionError):  # not even if it comes byte by byte
        for _ in range(1_000):
            there.sendall(b"x")
            there.settimeout(0.05)
            with suppress(TimeoutError):
                if not there.recv(1):
                    raise ConnectionResetError
    assert health(here.server.url)["ready"]


@pytest.mark.usefixtures("impatient")
def test_a_second_request_has_its_time_too(here: Place) -> None:
    with reach(here.server.port) as there:
        there.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\nGET /he")
        found = all_of(there)
    assert found.startswith(b"HTTP/1.1 200") and found.count(b"HTTP/1.1") == 1


@pytest.mark.usefixtures("impatient")
def test_who_does_not_read_the_answer_is_not_waited_for(here: Place) -> None:
    asked = b"GET /v1/openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with reach(here.server.port) as there:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        there.settimeout(0.2)
        try:
            for _ in range(10_000):  # until both sides' buffers are full
                there.sendall(asked)
        except OSError:
            pass
        wait_until(lambda: not here.server.connections.made)
    assert health(here.server.url)["ready"]


# -------------------------------------------------------------------- many


def test_idle_connections_make_room_and_those_with_requests_stay(here: Place, tmp_path: Path) -> None:
    with here.connect("ann") as ann, here.connect("bob") as bob:
        job = ann.submit(one(wait_for, str(tmp_path / "go")))
        other = bob.submit(one(wait_for, str(tmp_path / "go")))
        ann.close(), bob.close()
        mine, his = poll(here.token("ann"), job.id), poll(here.token("bob"), other.id)
        with many(here.server.port, 4, mine) as waiting, many(here.server.port, 50):
            with here.connect("carl") as carl:
                assert carl.submit(one(add, 1)).view().user == "carl"
            with many(here.server.port, 4, his) as others:
                wait_until(lambda: sum(not one.idle for one in here.server.connections.made) == 8)
                with reach(here.server.port) as late:  # all are in use
                    answer = all_of(late)
                head, _, body = answer.partition(b"\r\n\r\n")
                assert b" 503 " in head and b"retry-after: 1" in head
                assert Refusal.model_validate_json(body).error.kind == "BusyError"
                (tmp_path / "go").touch()
                assert {one.recv(12) for one in (*waiting, *others)} == {b"HTTP/1.1 200"}
    assert here.server.connections.refused["connections"] >= 1
    wait_until(lambda: not len(here.server.connections))  # the server has seen that they are closed
    assert "--connections" in health(here.server.url)["trouble"]


def test_a_user_cannot_take_all_connections(here: Place, tmp_path: Path) -> None:
    token = here.token("dan")
    with RemoteCluster(here.server.url, token) as dan:
        job = dan.submit(one(wait_for, str(tmp_path / "go")))
    with many(here.server.port, 4, poll(token, job.id)):
        wait_until(lambda: sum(not one.idle for one in here.server.connections.made) == 4)
        with reach(here.server.port) as there:
            there.sendall(poll(token, job.id))
            assert there.recv(12) == b"HTTP/1.1 429"
        (tmp_path / "go").touch()


# -------------------------------------------------------------------- a real process


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    found = Serve(tmp_path_factory.mktemp("serve") / "state", "--log-format", "json", "--connections", "100")
    yield found
    assert found.stop() == 0


def port_of(served: Serve) -> int:
    return int(served.told["url"].rpartition(":")[2])


def resident(served: Serve) -> int:
    """Bytes of memory."""
    return int(Path(f"/proc/{served.process.pid}/statm").read_text().split()[1]) * 4_096


def test_bodies_without_a_token_are_not_read(served: Serve) -> None:
    size = 16 << 20
    with served.connect() as ann:
        assert ann.submit(one(add, 1)).result(SECONDS) == 1
        before = resident(served)
        head = f"POST /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {size}\r\n\r\n".encode()
        with many(port_of(served), 20, head + b"[" * 200_000) as made:
            assert ann.submit(one(add, 2)).result(SECONDS) == 2
            answers = [all_of(there) for there in made]
            assert all(b" 401 " in answer and b"connection: close" in answer for answer in answers)
        assert resident(served) - before < size


def test_a_thousand_idle_connections_shut_nobody_out(served: Serve) -> None:
    written = served.log.stat().st_size
    with many(port_of(served), 1_000), served.connect() as ann:
        assert ann.submit(one(add, 3)).result(SECONDS) == 3
        with many(port_of(served), 1_000, b"NONSENSE\r\n\r\n"):
            assert ann.submit(one(add, 4)).result(SECONDS) == 4
    assert served.log.stat().st_size - written < 100_000


def test_descriptors_that_run_out_stop_neither_the_service_nor_its_workers(tmp_path: Path) -> None:
    served = Serve(tmp_path / "state", "--connections", "10000", descriptors=256)
    token = Path(served.told["token_file"]).read_text().strip()
    with served.connect() as ann:
        job = ann.submit(one(die_once, str(tmp_path / "died"), str(tmp_path / "go")))
        ann.close()
        with many(port_of(served), 400, poll(token, job.id)) as made:
            for there in made[-100:]:  # they came last
                assert b" 503 " in there.recv(13)
            (tmp_path / "go").touch()  # what is reserved is enough for a new worker in place of the one that dies
            assert b" 200 " in made[0].recv(13)
        assert job.result(SECONDS) == "lives"
        text = served.log.read_text()
        assert text.count("file descriptors run out") == 1 and len(text) < 100_000
        assert "descriptors" in health(served.told["url"])["trouble"]
    assert served.stop() == 0
