"""Damaged input for everything that reads what others wrote, for as long as you like.

    python -m tests.fuzz --seconds 3600                   # starts at a seed that nobody has tried
    python -m tests.fuzz --only journal --cases 1 --first 1234   # that one again

    frames    answers of worker processes, as bytes
    toml      topologies, limits of jobs
    perf      logs of `perf stat`
    journal   a file of SQLite, or rows of it, from which a service starts; then salvage
    rest      requests to a real `symphony serve`, and kernels that write into the pipe of their worker

Input is a valid one with random changes. Nothing but a refusal may come of it (an error of `problem/errors.py`, a
status below 500 or 503), no job may disappear without a word, and the service must live. Stops at the first case that
fails, and prints how to repeat it.
"""

from __future__ import annotations

import argparse
import copy
import http.client
import json
import logging
import random
import secrets
import shutil
import socket
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.compiling import compile_quickly, share_programs

compile_quickly()
share_programs()

import symphony as sy  # noqa: E402
from symphony.engines import messages  # noqa: E402
from symphony.engines.containment import read_limits  # noqa: E402
from symphony.problem import topology_file  # noqa: E402
from symphony.problem.errors import SymphonyError  # noqa: E402
from symphony.runtime.jobs import DONE  # noqa: E402
from symphony.service import repair, tables, views  # noqa: E402
from symphony.telemetry.sources.perf_log import read_perf  # noqa: E402
from tests.engines.test_local import _pipe_of, _write  # noqa: E402
from tests.service.handmade import Handmade  # noqa: E402
from tests.service.kernels import add, one  # noqa: E402
from tests.service.serve_process import Serve  # noqa: E402
from tests.telemetry.sources import logs  # noqa: E402
from tests.whole_system.clients import Sender  # noqa: E402

ODD: tuple[Any, ...] = (None, True, -1, 0, 2**31, 2**63, 2**70, 1e308, 1e-308, "", "\ud800", "é", "x" * 5_000, [], {})
ODD += ([[]], {"": ""}, "../../etc", "\x00", "1e999", -0.0)
PIECES = (
    b"\x00",
    b"\xff" * 8,
    b"\n",
    b'"',
    b"nan",
    b"inf",
    b"1e999",
    b"-1",
    b"{}",
    b"[",
    b"\xed\xa0\x80",
    b"2147483648",
)
LIMITS = b"""
[job]
memory = "8 GB"
processes = 200
cpu_time = "10 h"
time = "2 h"
disk = "20 GB"
cores = 4
[user]
memory = "16 GB"
[users.ann]
memory = "64 GB"
"""
REQUEST_S = 60.0


def changed(rng: random.Random, data: bytes, most: int = 8) -> bytes:
    """Bytes with a few random changes."""
    found = bytearray(data)
    for _ in range(rng.randint(1, most)):
        at = rng.randrange(len(found) + 1)
        end = min(at + rng.choice((1, 1, 2, 4, 16, 200)), len(found))
        how = rng.randrange(6)
        if how == 0 and found:
            found[at % len(found)] ^= 1 << rng.randrange(8)
        elif how == 1:
            found[at:end] = rng.randbytes(end - at)
        elif how == 2:
            del found[at:end]
        elif how == 3:
            found[at:at] = found[rng.randrange(len(found) + 1) :][: rng.choice((4, 40, 400))]
        elif how == 4:
            found[at:at] = rng.choice(PIECES)
        else:
            del found[rng.randrange(len(found) + 1) if rng.random() < 0.2 else len(found) :]
    return bytes(found)


def changed_tree(rng: random.Random, tree: Any) -> Any:
    """JSON with a few random changes. Pickles stay as they are: they are code, and would run."""
    tree = copy.deepcopy(tree)
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            if key != "inline":
                places.append((node, key))
                collect(node[key])

    collect(tree)
    for _ in range(rng.randint(1, 3)):
        parent, key = rng.choice(places)
        how = rng.randrange(5)
        with suppress(KeyError, IndexError):  # removed by an earlier change
            if how == 0:
                del parent[key]
            elif how == 1 and isinstance(parent, dict):
                parent[rng.choice(("x", "\ud800", "inline", "blob", "__class__"))] = parent.pop(key)
            elif how == 2 and isinstance(parent[key], list):
                parent[key] = parent[key] * rng.choice((2, 50))
            elif how == 3:
                other = rng.choice(places)
                parent[key] = copy.deepcopy(other[0][other[1]])
            else:
                parent[key] = rng.choice(ODD)
    return tree


@contextmanager
def refused() -> Iterator[None]:
    """An error of ours is an answer."""
    with suppress(SymphonyError):
        yield


# --- what is read


class Frames:
    def __init__(self, folder: Path) -> None:
        value = (b"head", "w1-0", ((0, 4), (64, 100)), 108)
        self._valid = [
            messages.ready(""),
            messages.ready("no GPU"),
            messages.done(7, 1.0, 2.0, True, (b"x" * 100, None, (), 100), 0.1),
            messages.done(8, 1.0, 2.0, False, value, 0.1),
            messages.failed(9, 1.0, 2.0, "call", "KeyError", "KeyError Exception", "text", "Traceback", b"pickle"),
        ]

    def case(self, rng: random.Random) -> None:
        data = changed(rng, b"".join(rng.choices(self._valid, k=rng.randint(1, 5))), most=4)
        inbox = messages.Inbox()
        with suppress(messages.Malformed):
            while data:
                size = rng.choice((1, 7, 16, 100, len(data)))
                for message in inbox.feed(data[:size]):
                    assert 0 <= message.number < 2**64
                assert len(inbox.rest) <= messages.MAX_PAYLOAD + messages.HEADER_BYTES
                data = data[size:]


class Toml:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "file.toml"
        built_in = Path(topology_file.__file__).parent / "topologies"
        self._topologies = [path.read_bytes() for path in sorted(built_in.glob("*.toml"))]
        self._topologies += [topology_file.dumps(sy.topology("machine")).encode()]

    def case(self, rng: random.Random) -> None:
        self._path.write_bytes(changed(rng, rng.choice(self._topologies)))
        with refused():
            topology_file.read(self._path)
        self._path.write_bytes(changed(rng, LIMITS))
        with refused():
            read_limits(self._path)


class Perf:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "perf.log"
        made = logs.recording([("cycles", 0), ("instructions", 0), ("LLC-misses", 1)], [[9.0, 5.0, 2.0]] * 4, 0.05, 0.1)
        places = {"CPU0": made, "CPU1": made}
        self._logs = [logs.as_json({"": made}), logs.as_json(places, decimals=True)]
        self._logs += [logs.as_csv({"": made}, ","), logs.as_csv(places, ";", point=",", decimals=True)]

    def case(self, rng: random.Random) -> None:
        self._path.write_bytes(changed(rng, rng.choice(self._logs).encode()))
        with refused():
            for recording in read_perf(self._path).values():
                assert recording.count.shape == recording.running_s.shape == (len(recording), len(recording.columns))


class Journal:
    def __init__(self, folder: Path) -> None:
        """Of three jobs, the first is done, the second half done and the third waits."""
        here = Handmade(folder / "first")
        for name in ("done", "half", "waits"):
            here.submit(name)
            for _ in range({"done": 2, "half": 1}.get(name, 0)):
                here.finish(1)
        self._result = views.outcome(here.service, here.job(1)).model_dump_json()
        self._valid, self._folder = here.die(folder / "valid"), folder
        with sqlite3.connect(self._valid / "journal.sqlite") as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
        connection.close()
        names = ("events", "payloads", "outputs")
        self._columns = [
            (table.name, column.name) for table in map(tables.metadata.tables.get, names) for column in table.c
        ]

    def case(self, rng: random.Random) -> None:
        state = self._folder / "state"
        shutil.rmtree(state, ignore_errors=True)
        shutil.copytree(self._valid, state)
        journal = state / "journal.sqlite"
        rows = rng.random() < 0.5
        if rows:
            self._change_row(rng, journal)
        else:
            data = bytearray(journal.read_bytes())
            for _ in range(rng.choice((1, 1, 3, 30))):
                at = rng.randrange(len(data))
                length = rng.choice((1, 1, 8, 500))
                data[at : at + length] = rng.randbytes(length)[: len(data) - at]
            journal.write_bytes(data)
        try:
            self._start(state, rows)
        except SymphonyError as error:
            assert not rows, f"a damaged row keeps the service from starting: {error}"
            try:
                repair.salvage("", state)
            except SymphonyError:
                return
            self._start(state, False)

    def _change_row(self, rng: random.Random, journal: Path) -> None:
        table, column = rng.choice(self._columns)
        values = [
            value
            for value in ODD
            if not isinstance(value, list | dict) and not (isinstance(value, int) and value >= 2**63)
        ]
        value = rng.choice([*values, rng.randbytes(5)])
        if value == "\ud800":
            value = b"\xed\xa0\x80"
        with sqlite3.connect(journal) as connection, suppress(sqlite3.IntegrityError):
            (row,) = rng.choice(connection.execute(f"SELECT rowid FROM {table}").fetchall())
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row))
        connection.close()

    def _start(self, state: Path, whole: bool) -> None:
        here = Handmade(state)
        service = here.service
        try:
            if whole:  # no job disappears without a word
                missing = {1, 2, 3} - service.state.jobs.keys() - service.state.lost.keys()
                assert not missing, f"jobs {missing} are gone"
            job = service.state.jobs.get(1)
            if job is not None and job.status == DONE and not service.failed.is_set():
                with suppress(views.JobEnded):
                    assert views.outcome(service, job).model_dump_json() == self._result, "a wrong result"
        finally:
            service.close()


class Rest:
    def __init__(self, folder: Path) -> None:
        self._serving = Serve(folder / "state", "--log-level", "error")
        self.close = self._serving.stop
        host, _, port = self._serving.told["url"].removeprefix("http://").partition(":")
        self._address, self._token = (host, int(port)), Path(self._serving.told["token_file"]).read_text().strip()
        self._submit = json.loads(Sender().bytes_of(_pair(), 0, ""))
        status, body = self._ask("GET", "/v1/openapi.json")
        assert status == 200
        self._routes = [
            (m.upper(), path, one) for path, at in json.loads(body)["paths"].items() for m, one in at.items()
        ]
        self._routes = [route for route in self._routes if route[1] != "/v1/drain"]
        self._cases = 0

    def _ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self._address, timeout=REQUEST_S)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, body, {"authorization": f"Bearer {self._token}", **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def case(self, rng: random.Random) -> None:
        self._cases += 1
        how = rng.randrange(20)
        if how == 0:
            self._raw(rng)
        elif how == 1:
            with self._serving.connect() as cluster:
                answer = messages.done(rng.randrange(30), 1.0, 2.0, False, (b"\x80\x05K\x01.", None, (), 5), 0.1)
                job = cluster.submit(one(sy.kernel(_write), changed(rng, answer, most=4), _pipe_of))
                assert job.wait(REQUEST_S), "a job whose kernel writes garbage does not end"
        elif how < 10:
            text = json.dumps(changed_tree(rng, self._submit)).encode()
            self._check(*self._ask("POST", "/v1/jobs", text, **{"content-type": "application/json"}))
        else:
            self._route(rng)
        if self._cases % 50 == 0:
            with self._serving.connect() as cluster:
                assert cluster.submit(one(add, 1, 2)).result(REQUEST_S) == 3
        assert self._serving.process.poll() is None, "the service has ended"

    def _route(self, rng: random.Random) -> None:
        method, path, about = rng.choice(self._routes)
        query = []
        for parameter in about.get("parameters", ()):
            value = rng.choice(("1", "1", "x", "-1", "0" * 64, "99999999999999999999", "%00", "%ff", "é", "", "1e999"))
            if parameter["in"] == "path":
                path = path.replace("{" + parameter["name"] + "}", value or "1")
            elif parameter["in"] == "query" and rng.random() < 0.5:
                query.append(f"{parameter['name']}={value}")
        if "wait_s=1" in query:
            query.remove("wait_s=1")
        body: bytes | None = None
        if method in ("POST", "PUT"):
            tree = {"user": "eve", "scopes": ["read"], "days": 1, "priority": 0, "grace_s": 0}
            body = json.dumps(changed_tree(rng, tree)).encode() if rng.random() < 0.7 else rng.randbytes(50)
        target = (path + ("?" + "&".join(query) if query else "")).encode("ascii", "replace").decode()
        self._check(*self._ask(method, target, body))

    def _raw(self, rng: random.Random) -> None:
        """Bytes of a request. What comes back, if anything, is the business of the HTTP library."""
        body = json.dumps(self._submit).encode()
        head = f"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {self._token}\r\n"
        data = changed(rng, f"{head}content-length: {len(body)}\r\n\r\n".encode()) + body
        with socket.create_connection(self._address, 5.0) as connection, suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(1 << 16)
            assert not answer or answer.split(b" ")[1][:1] != b"5" or b" 503" in answer[:20], answer[:200]

    def _check(self, status: int, body: bytes) -> None:
        assert status < 500 or status == 503, f"status {status}: {body[:500]!r}"
        if status >= 400 and body:
            assert json.loads(body)["error"]["message"], body[:500]


def _pair() -> sy.Graph:
    graph = sy.graph("pair")
    graph.task(add, graph.task(add, 1), 2)
    return graph


KINDS: dict[str, Callable[[Path], Any]] = {
    "frames": Frames,
    "toml": Toml,
    "perf": Perf,
    "journal": Journal,
    "rest": Rest,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 if all hold, 1 if one does not."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), help="these readers only")
    parser.add_argument("--seconds", type=float, default=60.0, help="as long as this, shared by the readers")
    parser.add_argument("--cases", type=int, default=0, help="as many for each reader, instead of --seconds")
    parser.add_argument("--first", type=int, help="seed of the first; the others follow (default: drawn)")
    parser.add_argument("--log", action="store_true", help="say what the service says")
    options = parser.parse_args(arguments)
    if not options.log:
        logging.disable(logging.CRITICAL)
    first = secrets.randbelow(2**31) if options.first is None else options.first
    counts: Counter[str] = Counter()
    for name in options.only:
        until = time.monotonic() + options.seconds / len(options.only)
        with tempfile.TemporaryDirectory(prefix="symphony-fuzz-") as folder:
            reader = KINDS[name](Path(folder))
            try:
                while counts[name] < options.cases or (not options.cases and time.monotonic() < until):
                    seed = first + counts[name]
                    try:
                        reader.case(random.Random(seed))
                    except Exception:
                        traceback.print_exc()
                        print(f"again: python -m tests.fuzz --only {name} --cases 1 --first {seed}", file=sys.stderr)
                        return 1
                    counts[name] += 1
            finally:
                if hasattr(reader, "close"):
                    reader.close()
        print(f"{name}: {counts[name]:,} cases hold, from seed {first} on", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
