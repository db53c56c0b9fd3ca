"""HTTP: what is refused, how, and that nothing makes it fail."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import logging
import os
import random
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import TimeoutError as SQLAlchemyTimeout

import symphony as sy
from symphony.service import app, blobs, tokens
from symphony.service.client import RemoteCluster
from symphony.service.journal import read_events
from symphony.service.service import Limits
from symphony.service.serving import Server
from symphony.service.state import BROKE
from symphony.service.wire import PROTOCOL, PYTHON, Refusal
from tests.service.kernels import add, one, rave, wait_for
from tests.service.places import SECONDS, Place, place, wait_until

LIMITS = Limits(body_bytes=200_000, blob_bytes=300_000, open_jobs=30)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("service"), limits=LIMITS) as found:
        yield found


@pytest.fixture(scope="module")
def token(here: Place) -> str:
    return here.token("ann", "submit", "read")


class Answer:
    """Of a raw request."""

    def __init__(self, here: Place, method: str, path: str, body: Any = None, **headers: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", here.server.port, timeout=SECONDS)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, dict | list):
            body = json.dumps(body)
            named.setdefault("content-type", "application/json")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a body that is refused while it is sent
            connection.request(method, path, body, named, encode_chunked=not isinstance(body, str | bytes | None))
        answer = connection.getresponse()
        self.status, self.headers, self.body = answer.status, answer.headers, answer.read()
        connection.close()

    @property
    def error(self) -> sy.SymphonyError:
        """What is wrong, in the one form that errors have."""
        return Refusal.model_validate_json(self.body).error.error()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def content(data: bytes = b"not a pickle") -> dict[str, str]:
    return {"inline": base64.b64encode(data).decode()}


def body(**changes: Any) -> dict[str, Any]:
    """A graph that is well formed, and whose bytes are nonsense."""
    value = {"head": content()}
    kernel = {"name": "k", "key": "k", "implementations": {"cpu": value}}
    tasks = [{"name": f"t{n}", "kernel": 0, "arguments": value, "reads": []} for n in range(3)]
    return {"graph": {"name": "g", "kernels": [kernel], "tasks": tasks} | changes, "python": PYTHON}


def test_the_schema_describes_every_route(here: Place) -> None:
    schema = json.loads(Answer(here, "GET", "/v1/openapi.json").body)
    assert {"/v1/jobs", "/v1/jobs/{number}/result", "/v1/cluster", "/metrics", "/readyz"} <= set(schema["paths"])
    assert "Submit" in schema["components"]["schemas"]


def test_health_needs_no_token_and_everything_else_does(here: Place) -> None:
    for path in ("/healthz", "/readyz", "/v1/about"):
        found = Answer(here, "GET", path)
        assert found.status == 200 and json.loads(found.body)["protocol"] == PROTOCOL
    for path in ("/v1/jobs", "/v1/jobs/1", "/v1/cluster", "/v1/topology", "/v1/profiles", "/metrics"):
        found = Answer(here, "GET", path)
        assert found.status == 401 and isinstance(found.error, sy.TokenError), path
        assert found.headers["www-authenticate"] == "Bearer"


def test_another_protocol_is_refused_in_words(here: Place, token: str) -> None:
    found = Answer(here, "GET", "/v1/jobs", symphony_protocol="99", **bearer(token))
    assert found.status == 400 and isinstance(found.error, sy.VersionError)
    assert "99" in found.error.message and "install" in found.error.hint


def test_functions_of_another_python_are_refused(here: Place, token: str) -> None:
    found = Answer(here, "POST", "/v1/jobs", body() | {"python": "3.1"}, **bearer(token))
    assert found.status == 400 and "Python 3.1," in found.error.message


def test_bytes_that_are_no_pickle_fail_where_they_are_run_and_nowhere_else(here: Place, token: str) -> None:
    found = Answer(here, "POST", "/v1/jobs", body(), **bearer(token))
    assert found.status == 201
    with RemoteCluster(here.server.url, token) as ann:
        with pytest.raises(sy.KernelError, match="could not be read"):
            ann.job(json.loads(found.body)["id"]).result(SECONDS)
        assert ann.submit(one(add, 1)).result(SECONDS) == 1


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        ({"tasks": []}, sy.InputError, "graph.tasks"),
        ({"kernels": []}, sy.InputError, "graph.kernels"),
        ({"more": 1}, sy.InputError, "graph.more"),
        ({"name": ""}, sy.InputError, "graph.name"),
        ({"outputs": [7]}, sy.WorkloadError, "does not exist"),
        ({"outputs": [1], "names": ["a", "b"]}, sy.WorkloadError, "names"),
    ],
)
def test_graphs_that_are_none_are_refused(here: Place, token: str, wrong: dict, kind: type, text: str) -> None:
    found = Answer(here, "POST", "/v1/jobs", body(**wrong), **bearer(token))
    assert found.status == 422 and type(found.error) is kind and text in str(found.error)


def test_a_graph_that_waits_for_itself_is_refused(here: Place, token: str) -> None:
    sent = body()
    sent["graph"]["tasks"][0]["reads"], sent["graph"]["tasks"][1]["reads"] = [1], [0]
    found = Answer(here, "POST", "/v1/jobs", sent, **bearer(token))
    assert found.status == 422 and isinstance(found.error, sy.CycleError) and "t0, t1" in found.error.message


def test_what_is_too_large_is_refused_before_it_is_read(here: Place, token: str) -> None:
    sent = body(name="g" * 300_000)
    found = Answer(here, "POST", "/v1/jobs", sent, **bearer(token))
    assert found.status == 413 and isinstance(found.error, sy.LimitError) and "--body-bytes" in found.error.hint
    parts = iter([b"x" * 100_000] * 4)  # without a length that could be looked at
    found = Answer(here, "POST", "/v1/jobs", parts, transfer_encoding="chunked", **bearer(token))
    assert found.status == 413


def test_blobs_are_what_they_say_and_their_owners_alone(here: Place, token: str) -> None:
    data = b"x" * 100_000
    path = f"/v1/blobs/{hashlib.sha256(data).hexdigest()}"
    assert Answer(here, "HEAD", path, **bearer(token)).status == 404
    assert Answer(here, "PUT", path, data[:-1], **bearer(token)).status == 422
    assert Answer(here, "PUT", path, data, **bearer(token)).status == 204
    assert Answer(here, "HEAD", path, **bearer(token)).status == 200
    assert Answer(here, "GET", path, **bearer(token)).body == data
    refused = Answer(here, "PUT", path, data * 4, **bearer(token))
    assert refused.status == 413 and "--blob-bytes" in refused.error.hint
    eve = bearer(here.token("eve"))
    assert Answer(here, "GET", path, **eve).status == 404
    sent = body()
    sent["graph"]["tasks"][0]["arguments"] = {"head": {"blob": path.rpartition("/")[2]}}
    assert Answer(here, "POST", "/v1/jobs", sent, **eve).status == 422
    assert not list(here.service.blobs.folder.glob("part-*"))


def test_a_full_disk_is_said_at_once_and_leaves_nothing(
    here: Place, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"x" * 200_000
    path = f"/v1/blobs/{hashlib.sha256(data).hexdigest()}"
    part = tmp_path / "part-x"
    monkeypatch.setattr(
        blobs.tempfile, "mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), part.touch() or str(part))
    )
    found = Answer(here, "PUT", path, data, **bearer(token))
    assert found.status == 503 and isinstance(found.error, sy.UnavailableError) and "free space" in found.error.hint
    assert not part.exists() and Answer(here, "HEAD", path, **bearer(token)).status == 404
    none = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(blobs.shutil, "disk_usage", lambda _: none)  # then nothing is read, or written
    assert Answer(here, "PUT", path, data, **bearer(token)).status == 503 and not part.exists()


def test_a_user_who_asks_too_often_is_told_when_to_come_back(here: Place) -> None:
    here.service.limits = replace(LIMITS, requests_per_s=1e-6)
    slow = Place(here.service, Server(here.service, "127.0.0.1", 0))
    here.service.limits = LIMITS
    try:
        mine = bearer(here.token("often"))
        found = [Answer(slow, "GET", "/v1/jobs", **mine) for _ in range(12)]
        assert [one.status for one in found] == [200] * 10 + [429] * 2
        assert int(found[-1].headers["retry-after"]) > 1_000 and isinstance(found[-1].error, sy.BusyError)
        assert Answer(slow, "GET", "/v1/jobs", **bearer(here.token("seldom"))).status == 200
    finally:
        slow.server.close()


def test_wrong_parameters_are_told_in_plain_words(here: Place) -> None:
    found = Answer(here, "GET", "/v1/jobs?status=lost", **bearer(here.token("ann")))
    assert found.status == 422 and found.error.where == "status"
    assert found.error.message.startswith("'lost' should be one of 'waiting', 'running'")


def test_a_body_whose_header_does_not_call_it_json_is_told_what_to_send(here: Place, token: str) -> None:
    """What `curl -d` sends."""
    headers = {**bearer(token), "content-type": "application/x-www-form-urlencoded"}
    answer = Answer(here, "POST", "/v1/jobs", json.dumps(body()), **headers)
    assert answer.status == 422 and "content-type: application/json" in answer.error.hint


def test_a_user_with_too_many_open_jobs_is_refused_and_others_are_not(
    here: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with here.connect("many") as many, here.connect("few") as few:
        jobs = [many.submit(one(wait_for, str(tmp_path / "go"))) for _ in range(LIMITS.open_jobs)]
        found = Answer(here, "POST", "/v1/jobs", body(), **bearer(here.token("many")))
        assert found.status == 429 and "many has 30 unfinished jobs" in found.error.message
        with caplog.at_level("WARNING", "symphony.client"), pytest.raises(sy.BusyError):
            many.submit(one(add, 1))
        assert [line for line in caplog.messages if "waiting: many has 30 unfinished jobs" in line][1:] == []
        assert "waiting: many has 30 unfinished jobs" in caplog.text and "cancel some" in caplog.text
        last = few.submit(one(add, 1))
        (tmp_path / "go").touch()
        assert last.result(SECONDS) == 1 and jobs[-1].result(SECONDS) == "came"


def test_figures_are_there_for_prometheus(here: Place, token: str, tmp_path: Path) -> None:
    with RemoteCluster(here.server.url, token) as ann:
        job = ann.submit(one(wait_for, str(tmp_path / "go")))

        def figures() -> str:
            return Answer(here, "GET", "/metrics", **bearer(token)).body.decode()

        wait_until(lambda: "symphony_others_load{" in figures())  # read while something runs
        text = figures()
        (tmp_path / "go").touch()
        job.result(SECONDS)
    assert 'symphony_others_load_deviation{row="cpu/compute"}' in text
    text = figures()
    found = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in text.splitlines() if line[0] != "#"}
    assert int(found["symphony_jobs_accepted_total"]) > 0
    assert float(found['symphony_decision_seconds{quantile="0.99"}']) > 0
    assert 'symphony_fallbacks_total{reason="late"}' in found
    assert int(found["symphony_submit_seconds_count"]) > 0
    assert 'symphony_requests_total{method="POST",route="/v1/jobs",status="201"}' in found
    named = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(named) == len(set(named))


# -------------------------------------------------------------------- text that cannot be encoded

ABOUT_A_JOB = ("", "/tasks", "/explain", "/trace", "/logs")


def everything_told(here: Place, token: str, job: int) -> str:
    """What every route tells of a job, that lists it or is about it."""
    told = [Answer(here, "GET", "/v1/jobs", **bearer(token))]
    told += [Answer(here, "GET", f"/v1/jobs/{job}{what}", **bearer(token)) for what in ABOUT_A_JOB]
    assert [one.status for one in told] == [200] * len(told), [one.body[:200] for one in told]
    told.append(Answer(here, "GET", f"/v1/jobs/{job}/result", **bearer(token)))
    assert told[-1].status == 409
    return "".join(one.body.decode() for one in told)


def test_lone_surrogates_in_exceptions_and_output_are_escaped(here: Place, token: str) -> None:
    with RemoteCluster(here.server.url, token) as ann:
        job = ann.submit(one(rave, "caf\udce9 \x1b[2J"))
        with pytest.raises(sy.KernelError, match=r"caf\\udce9 \\x1b"):
            job.result(SECONDS)
        assert any(line.text == "wrote caf\\udce9 \\x1b[2J" for line in job.logs().lines)
        text = everything_told(here, token, job.id)
        assert r"caf\\udce9" in text and r"\u001b" not in text


def test_a_journal_that_has_lone_surrogates_is_shown_all_the_same(here: Place, token: str) -> None:
    """As older services wrote it down."""
    wild = "caf\udce9"
    with RemoteCluster(here.server.url, token) as ann:
        job = ann.submit(one(rave, "x"))
        job.wait(SECONDS)
    run = next(e for e in read_events(here.service.database, job.id) if e.kind == BROKE)
    error = run.data["error"] | {"message": wild, "traceback": wild, "where": wild}
    data = run.data | {"error": error, "ended": wild, "name": wild, "printed": wild}
    here.service.ledger.post(lambda entry: entry.add(BROKE, job.id, 0, **data)).result(SECONDS)
    here.service.state.jobs[job.id].error = error
    assert everything_told(here, token, job.id).count(r"caf\\udce9") > 4


@pytest.mark.parametrize("wrong", [{"name": "g\ud800"}, {"g\ud800": 1}, {"tasks": [{"name": "\udfff"}]}])
def test_lone_surrogates_in_what_is_submitted_are_refused_in_words(here: Place, token: str, wrong: dict) -> None:
    found = Answer(here, "POST", "/v1/jobs", body(**wrong), **bearer(token))
    assert found.status == 422 and found.error.message


# -------------------------------------------------------------------- whatever comes


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def mutated(value: Any, rng: random.Random, new: Any) -> Any:
    """A copy with one part replaced, removed or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        if rng.random() < 0.15:
            return {name: one for name, one in value.items() if name != key}
        return value | {key: mutated(value[key], rng, new)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        if rng.random() < 0.2:
            return [*value, value[index]]
        return [*value[:index], mutated(value[index], rng, new), *value[index + 1 :]]
    return new


PATHS = [
    "/v1/jobs",
    "/v1/jobs/{number}",
    "/v1/blobs/{digest}",
    "/v1/cluster",
    "/v1/topology",
    "/v1/profiles",
    "/metrics",
    "/v1/nowhere",
]
PATHS += [f"/v1/jobs/{{number}}/{what}" for what in ("tasks", "result", "explain", "trace", "logs", "cancel")]
FUZZ = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FUZZ
@given(new=JSON, seed=st.integers(0, 2**32), keep=st.integers(0, 3).map(bool))
def test_whatever_is_submitted_is_answered(here: Place, token: str, new: Any, seed: int, keep: bool) -> None:
    sent = mutated(body(), random.Random(seed), new) if keep else new
    found = Answer(
        here, "POST", "/v1/jobs", json.dumps(sent).encode(), content_type="application/json", **bearer(token)
    )
    assert found.status in (200, 201, 400, 413, 422, 429), found.body
    if found.status >= 400:
        assert found.error.message


@FUZZ
@given(data=st.data())
def test_whatever_is_asked_is_answered(here: Place, token: str, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(PATHS))
    method = data.draw(st.sampled_from(["get", "post", "put", "delete", "patch", "head"]))
    part = st.integers(-1, 2**70).map(str) | st.text("0123456789abcdef%/.\x00 é", max_size=70)
    for name in ("number", "digest"):
        path = path.replace(f"{{{name}}}", quote(data.draw(part), safe=""))
    asked = data.draw(st.dictionaries(st.sampled_from(["limit", "before", "status", "all", "since", "after"]), part))
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in asked.items())
    found = Answer(here, method.upper(), f"{path}?{query}", data.draw(st.binary(max_size=50)), **bearer(token))
    assert found.status < 500, (method, path, found.body)
    if found.status >= 400 and method != "head":
        assert found.error.message


@FUZZ
@given(seed=st.integers(0, 2**32))
def test_whatever_bytes_come_the_service_stays(
    here: Place, token: str, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    """A request of which some bytes are others: its head, its token or its body. It is answered, or hung up on."""
    rng, sent = random.Random(seed), json.dumps(body()).encode()
    lines = ["POST /v1/jobs HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {token}", "idempotency-key: k"]
    lines += ["content-type: application/json", f"content-length: {len(sent)}", "connection: close", "", ""]
    request = bytearray("\r\n".join(lines).encode() + sent)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(request))
        new = rng.choice((b"", bytes([rng.randrange(256)]), b"\r\n", b"\x00", b"9" * 30, bytes(request[at : at + 40])))
        request[at : at + rng.randrange(3)] = new
    with caplog.at_level(logging.ERROR), socket.create_connection(("127.0.0.1", here.server.port), SECONDS) as there:
        there.sendall(request)
        there.shutdown(socket.SHUT_WR)
        head = b""
        while part := there.recv(4096):
            head += part
    assert not head or 200 <= int(head.split()[1]) < 500, head
    assert not caplog.records and Answer(here, "GET", "/healthz").status == 200


# What no schema can say: which bytes have which SHA-256, that names are told apart and indices are of something.
UNSAID = {"POST /v1/jobs", "POST /v1/whatif", "PUT /v1/blobs/{digest}"}


@pytest.mark.parametrize("examples", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_answers_are_as_the_schema_says(here: Place, examples: int) -> None:
    """What fits the schema and what does not, for every route; every status and body is one that it names."""
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis.specs.openapi.checks import ignored_auth, negative_data_rejection, positive_data_acceptance

    headers, seen = bearer(here.token("sam", "submit", "read", "admin")), set()
    trying = settings(FUZZ, max_examples=examples, suppress_health_check=list(HealthCheck), database=None)

    def check(case: Any) -> None:
        seen.add(case.operation.label)
        # A token is added to each, and what is not known in a query or a head is passed over, as is usual with HTTP.
        left_out = [ignored_auth, negative_data_rejection]
        left_out += [positive_data_acceptance] if case.operation.label in UNSAID else []
        case.call_and_validate(headers=headers, excluded_checks=left_out)

    for found in schemathesis.openapi.from_url(f"{here.server.url}/v1/openapi.json").get_all_operations():
        operation = found.ok()
        if operation.path == "/v1/drain":
            continue  # after which nothing is accepted
        modes = list(schemathesis.GenerationMode)
        if not operation.path_parameters and not operation.query and not operation.headers and not operation.body:
            modes = [schemathesis.GenerationMode.POSITIVE]  # nothing can be wrong with it
        for mode in modes:
            trying(given(case=operation.as_strategy(generation_mode=mode))(check))()
    assert len(seen) > 15, "routes were not tried"


def test_json_of_very_many_values_is_refused_before_it_is_parsed(
    here: Place, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_JSON_VALUES", 50_000)
    for value in ("{},", "1,", "[],"):
        sent = f'{{"graph":{{"name":"g","kernels":[{value * 50_001}1]'  # which is no JSON: nothing has parsed it
        found = Answer(here, "POST", "/v1/jobs", sent[:199_000], content_type="application/json", **bearer(token))
        assert found.status == 413 and "50,000 values" in found.error.message, value
    large = Answer(here, "POST", "/v1/jobs", body(name="g" * 190_000), **bearer(token))
    assert large.status == 422  # few values are parsed, whatever their size


# -------------------------------------------------------------------- quotas of blobs


def put(here: Place, token: str, size: int, seed: int, **headers: str) -> Answer:
    data = random.Random(seed).randbytes(size)
    return Answer(here, "PUT", f"/v1/blobs/{hashlib.sha256(data).hexdigest()}", data, **headers, **bearer(token))


def test_uploads_of_a_user_stay_within_a_quota(here: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(here.service, "limits", replace(LIMITS, blob_quota_bytes=500_000))
    ann, bob = here.token("quota-ann"), here.token("quota-bob")
    assert put(here, ann, 200_000, 1).status == put(here, ann, 250_000, 2).status == 204
    full = put(here, ann, 60_000, 3)
    assert full.status == 413 and "50" in full.error.message and "--blob-quota" in full.error.hint
    assert put(here, ann, 250_000, 2).status == 204  # the same again takes no room
    assert put(here, bob, 200_000, 1).status == 204  # whose quota is his own
    data = b"x" * 60_000
    parts = iter([data[:30_000], data[30_000:]])  # without a length
    found = Answer(here, "PUT", f"/v1/blobs/{hashlib.sha256(data).hexdigest()}", parts, **bearer(ann))
    assert found.status == 413 and not here.service.blobs.path(hashlib.sha256(data).hexdigest()).exists()
    assert put(here, ann, 50_000, 4).status == 204
    assert not +here.service._uploading


def test_uploads_at_the_same_time_share_the_quota(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here.service, "limits", replace(LIMITS, blob_quota_bytes=100_000))
    token = here.service.tokens.find(here.token("quota-eve"))
    assert token is not None
    with (
        here.service.room(token, "0" * 64, 60_000) as most,
        pytest.raises(sy.LimitError, match="40 kB"),
        here.service.room(token, "1" * 64, 60_000),
    ):
        assert most == 100_000
    with here.service.room(token, "1" * 64, 60_000):
        pass


# -------------------------------------------------------------------- connections to the database


def test_a_service_outlives_the_exhaustion_of_its_database_connections(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "TOKEN_CACHE_S", SECONDS)
    token = here.token("ann", "submit", "read")
    assert Answer(here, "GET", "/v1/jobs", **bearer(token)).status == 200  # from now on, it is cached
    pool = here.service.database.pool
    monkeypatch.setattr(pool, "_timeout", 0.05)
    with RemoteCluster(here.server.url, token) as ann, contextlib.ExitStack() as held:
        with contextlib.suppress(SQLAlchemyTimeout):
            while True:
                held.enter_context(here.service.database.connect())
        monkeypatch.setattr(here.service.running, "cached_graphs", Dropped())  # graphs are read from the database
        job = ann.submit(one(add, 4))
        wait_until(lambda: here.service.ledger.stuck)
        refused = Answer(here, "GET", f"/v1/jobs/{job.id}/result", **bearer(token))
        assert refused.status in (409, 503) and not here.service.failed.is_set()
        held.close()
        assert job.result(SECONDS) == 4 and not here.service.ledger.stuck


class Dropped(dict):
    """Keeps nothing."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass
