"""Attacks on a real service: `python -m benchmarks.hostile [--quick] [--json FILE] [--kills N] [--only SECTION…]`.

    attacks   each attack runs against a `symphony serve` on loopback; whether the service held, a figure of the
              attack, how much its memory grew, the p99 of the submissions of another user meanwhile, also as
              a ratio to that without an attack, and CPU time, which says more where the cores are busy: seconds that
              the service spent because of the attack (in all, and of each second that it lasted), and milliseconds
              of client and service for each honest submission (the service's: measured without an attack)
    kills     service, workers and PostgreSQL (SQLite where that is not installed) are killed (SIGKILL) at random
              while jobs are submitted; whether an accepted job was lost, had a wrong result, or ran again after its
              end was journalled

Unfair to the service: attackers and users run on the same machine, and take a good part of its cores. The p99 of few
submissions is their maximum: `submits` says how many there were. Bounded in count and time; loopback only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import symphony as sy
from benchmarks.common import keep, parser
from symphony.service import tokens
from symphony.service.client import RemoteCluster, connect
from symphony.service.database import open_database
from symphony.service.journal import read_events
from symphony.service.state import FINISHED
from tests.compiling import share_programs
from tests.engines.daemon import daemon as start_daemon
from tests.service.kernels import add, one, rave
from tests.service.places import postgres_server
from tests.service.serve_process import Serve
from tests.service.test_isolation import breaks, patches
from tests.waiting import has_ended

SECTIONS = ("attacks", "kills")
RESULT_S = 120.0  # timeout for an honest result
TARGET_P99_MS = 50.0
BODY_BYTES = 16 << 20


@sy.kernel(retries=1_000)
def noted(path, text):
    """Append the time of its start to a file, in one write."""
    import os
    import time

    line = f"{text} {time.time()!r}\n".encode()
    file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(file, line)
    os.close(file)
    return text


@sy.kernel
def total(*values):
    return len(values)


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


# --- the place


@dataclass
class Target:
    """A service under attack, and its users."""

    folder: Path
    serving: Serve
    rng: random.Random
    scale: float  # of counts and times: 1, or less with --quick

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.serving.told["url"].removeprefix("http://").partition(":")
        return host, int(port)

    @property
    def pid(self) -> int:
        return self.serving.process.pid

    def count(self, most: int) -> int:
        return max(int(most * self.scale), 3)

    def token(self, user: str, *scopes: str) -> str:
        database = open_database("", self.folder / "state")
        try:
            return tokens.create(database, user, scopes or (tokens.SUBMIT, tokens.READ), days=1.0)
        finally:
            database.dispose()

    def user(self, name: str, *scopes: str) -> RemoteCluster:
        return connect(self.serving.told["url"], token=self.token(name, *scopes))

    def ask(self, method: str, path: str, token: str = "", body: Any = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named |= {"authorization": f"Bearer {token}"} if token else {}
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    @property
    def memory_mb(self) -> float:
        with suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS"):
                    return int(line.split()[1]) / 1024
        return 0.0

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def restart(self, *options: str, descriptors: int = 0) -> float:
        """Kill the service if it runs, and restart it at the same address. Returns the seconds of the start."""
        with suppress(ProcessLookupError):
            self.serving.kill()
        began = time.perf_counter()
        port = ("--port", str(self.address[1]))
        self.serving = started(self.folder, *port, *options, descriptors=descriptors)
        return time.perf_counter() - began


def started(folder: Path, *options: str, descriptors: int = 0) -> Serve:
    return Serve(folder / "state", "--log-level", "error", *options, descriptors=descriptors)


class Honest:
    """Another user in a separate process, who submits ten jobs a second while switched on."""

    def __init__(self, target: Target) -> None:
        url = target.serving.told["url"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hostile", "--honest"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "SYMPHONY_TOKEN": target.token("honest"), "SYMPHONY_URL": url},
            cwd=Path(__file__).parents[1],
        )

    @contextmanager
    def submitting(self) -> Iterator[list[float]]:
        """Submit inside the context; the list then has the seconds of each submission."""
        took: list[float] = []
        commands, answers = self._process.stdin, self._process.stdout
        assert commands is not None and answers is not None
        print("on", file=commands, flush=True)
        answers.readline()  # it has submitted once
        try:
            yield took
        finally:
            print("off", file=commands, flush=True)
            took += [float(line) for line in iter(answers.readline, OVER)]

    @property
    def cpu_s(self) -> float:
        return cpu_s(self._process.pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


OVER = "over\n"


def submit_honestly() -> None:
    """The process of `Honest`; it ends when its standard input is closed."""
    graph, on, changed = one(add, 1), threading.Event(), threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            (on.set if line.strip() == "on" else on.clear)()
            changed.set()
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        changed.wait()
        changed.clear()
        if not on.is_set():
            continue
        with connect() as cluster:
            cluster.submit(graph)
            print("on", flush=True)
            due = time.perf_counter()
            while on.is_set():
                time.sleep(max(due - time.perf_counter(), 0.0))
                began = max(due, time.perf_counter() - 1.0)
                try:
                    cluster.submit(graph)
                    print(time.perf_counter() - began)
                except sy.SymphonyError:
                    print(60.0)  # a refusal counts as the longest
                due = max(due + 0.1, time.perf_counter() - 1.0)
        print(OVER, end="", flush=True)


# --- attacks: each returns whether the service held, and its figures


def nothing(target: Target) -> tuple[bool, dict[str, Any]]:
    """No attack, for comparison."""
    time.sleep(max(8.0 * target.scale, 3.0))
    return True, {}


def bad_answers(target: Target) -> tuple[bool, dict[str, Any]]:
    """Kernels that write garbage where their answers go, or fork and return several times."""
    outcomes: Counter[str] = Counter()
    kinds = ("garbage", "length", "another", "twice", "forks")
    with target.user("mallory") as cluster:
        jobs = [cluster.submit(one(breaks, how)) for how in kinds for _ in range(target.count(5) // 3 or 1)]
        for job in jobs:
            job.wait(RESULT_S)
            outcomes[job.status] += 1
        good = cluster.submit(one(add, 2)).result(RESULT_S) == 2
    seconds = target.restart()
    return good and not outcomes["running"] + outcomes["waiting"], {**outcomes, "restart_s": round(seconds, 1)}


def code_of_others(target: Target) -> tuple[bool, dict[str, Any]]:
    """A job replaces what pickles results; does another user's client run its code?"""
    with target.user("mallory") as mallory, target.user("ann") as ann, target.user("root", tokens.ADMIN) as root:
        job = mallory.submit(one(patches, 1))
        job.wait(RESULT_S)
        right = all(ann.submit(one(add, k)).result(RESULT_S) == k for k in range(target.count(20)))
        refused = False
        try:
            root.job(job.id).result(RESULT_S)
        except (sy.TrustError, sy.JobError):
            refused = True
    return right and refused and not Path("evil").exists(), {"results_right": right, "reader_refused": refused}


def bodies_without_token(target: Target) -> tuple[bool, dict[str, Any]]:
    """Twenty bodies of 16 MB at once, without a token."""
    body, statuses = bytes(BODY_BYTES), Counter[int]()
    with ThreadPoolExecutor(5) as threads:
        answers = [threads.submit(target.ask, "POST", "/v1/jobs", body=body) for _ in range(target.count(20))]
        for answer in answers:
            statuses[answer.result()[0]] += 1
    return set(statuses) <= {401, 0}, {str(status or "closed"): count for status, count in statuses.items()}


def large_json(target: Target) -> tuple[bool, dict[str, Any]]:
    """16 MB of JSON that is no graph, with a token."""
    body = b'{"graph":{"name":"g","kernels":[' + b"{}," * (5 << 20) + b"{}]}}"
    token, took, statuses = target.token("mallory"), list[float](), Counter[int]()
    for _ in range(target.count(6)):
        began = time.perf_counter()
        statuses[target.ask("POST", "/v1/jobs", token, body, content_type="application/json")[0]] += 1
        took.append(time.perf_counter() - began)
    return set(statuses) <= {422, 413, 429}, {"statuses": dict(statuses), "longest_s": round(max(took), 2)}


def idle_connections(target: Target) -> tuple[bool, dict[str, Any]]:
    """1,000 idle connections."""
    before, count = target.serving.log.stat().st_size, target.count(1_000)
    with ExitStack() as stack:
        made = 0
        for _ in range(count):
            with suppress(OSError):
                stack.enter_context(socket.create_connection(target.address, 5.0))
                made += 1
        time.sleep(4.0 * target.scale)
        answered = target.ask("GET", "/healthz")[0] == 200
    grown = target.serving.log.stat().st_size - before
    return answered and grown < 1 << 20, {"connections": made, "log_bytes": grown}


def slow_requests(target: Target) -> tuple[bool, dict[str, Any]]:
    """400 requests whose heads arrive byte by byte."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(target.address, 5.0)) for _ in range(target.count(400))]
        until = time.monotonic() + 6.0 * target.scale
        head = b"GET /v1/jobs HTTP/1.1\r\nhost: localhost\r\nx: "
        for number in range(10_000):
            for one_socket in sockets:
                with suppress(OSError):
                    one_socket.send(head[number : number + 1] or b"y")
            if time.monotonic() > until:
                break
            time.sleep(0.2)
        answered = target.ask("GET", "/healthz")[0] == 200
    return answered, {"connections": len(sockets)}


def few_descriptors(target: Target) -> tuple[bool, dict[str, Any]]:
    """A service with 256 file descriptors, and more connections than that."""
    target.restart(descriptors=256)
    with ExitStack() as stack, target.user("ann") as ann:
        for _ in range(400):
            with suppress(OSError):
                stack.enter_context(socket.create_connection(target.address, 5.0))
        right = ann.submit(one(add, 3)).result(RESULT_S) == 3
        degraded = json.loads(target.ask("GET", "/healthz")[1] or b"{}").get("degraded", [])
    target.restart()
    return right, {"degraded": degraded}


def invented_methods(target: Target) -> tuple[bool, dict[str, Any]]:
    """Methods and paths that do not exist."""
    token = target.token("mallory")
    for number in range(target.count(200)):
        target.ask(f"METHOD{number}", f"/{number}", token)
    text = target.ask("GET", "/metrics", token)[1].decode()
    labels = sum(line.startswith("symphony_requests_total{") for line in text.splitlines())
    return 0 < labels < 60, {"metric_series": labels}


def surrogates(target: Target) -> tuple[bool, dict[str, Any]]:
    """An exception whose text has a lone surrogate."""
    token = target.token("mallory")
    with connect(target.serving.told["url"], token=token) as cluster:
        cluster.submit(one(rave, "\ud800 \udcff")).wait(RESULT_S)
    statuses = [target.ask("GET", path, token)[0] for path in ("/v1/jobs", "/v1/cluster", "/metrics")]
    return set(statuses) == {200}, {"statuses": statuses}


def wrong_tokens(target: Target) -> tuple[bool, dict[str, Any]]:
    """Guesses of tokens from 16 threads."""
    began, statuses, lock = time.perf_counter(), Counter[int](), threading.Lock()

    def guess() -> None:
        while time.perf_counter() - began < 5.0 * target.scale:
            status = target.ask("GET", "/v1/jobs", f"sy_{target.rng.randbytes(4).hex()}_{'x' * 43}")[0]
            with lock:
                statuses[status] += 1

    with ThreadPoolExecutor(16) as threads:
        for guessing in [threads.submit(guess) for _ in range(16)]:
            guessing.result()
    checked = statuses[401] / (time.perf_counter() - began)
    with target.user("root", tokens.ADMIN) as root:
        rows = len(root.audit(action="login-failed"))
    return set(statuses) <= {401, 429, 503} and rows < 50, {"guesses_per_s": round(checked, 1), "audit_rows": rows}


def other_hosts(target: Target) -> tuple[bool, dict[str, Any]]:
    """Requests for the name of another site."""
    token = target.token("mallory")
    statuses = Counter(target.ask("GET", "/v1/jobs", token, host="evil.example.org")[0] for _ in range(20))
    return set(statuses) == {421}, {"statuses": dict(statuses)}


def random_requests(target: Target) -> tuple[bool, dict[str, Any]]:
    """Random bytes, paths and JSON, with a token."""
    token, rng, statuses = target.token("mallory", tokens.SUBMIT, tokens.READ, tokens.ADMIN), target.rng, Counter[int]()
    paths = ["/v1/jobs", "/v1/jobs/1", "/v1/jobs/1/logs", "/v1/tokens", "/v1/audit", "/v1/blobs/x", "/v1/cluster"]
    paths += ["/v1/jobs/99999999999999999999/result", "/v1/tokens/00000000/rotate", "/v1/health", "/v1/forecasts"]
    values: list[Any] = [None, -1, 2**70, "\ud800", "x" * 10_000, [], {}, [[]] * 100, True, 1e308]
    for _ in range(target.count(600)):
        query = "?" + "&".join(
            f"{rng.choice(('limit', 'since', 'after', 'share'))}={rng.choice(values)!s:.50}" for _ in "ab"
        )
        body: Any = rng.randbytes(rng.randrange(200))
        if rng.random() < 0.5:
            body = json.dumps({rng.choice(("graph", "user", "days", "priority")): rng.choice(values)}).encode()
        path = rng.choice(paths) + (
            query.encode("ascii", "replace").decode().replace(" ", "") if rng.random() < 0.5 else ""
        )
        statuses[target.ask(rng.choice(("GET", "POST", "PUT", "HEAD")), path, token, body)[0]] += 1
    wrong = sum(count for status, count in statuses.items() if status >= 500 and status != 503)
    return wrong == 0, {"requests": sum(statuses.values()), "status_5xx": wrong, "closed": statuses[0]}


def forecasts(target: Target) -> tuple[bool, dict[str, Any]]:
    """Forecasts with many probabilities at once."""
    token, took = target.token("mallory"), list[float]()

    def ask(share: float) -> int:
        began = time.perf_counter()
        status = target.ask("GET", f"/v1/forecasts?share={share}", token)[0]
        took.append(time.perf_counter() - began)
        return status

    with ThreadPoolExecutor(8) as threads:
        statuses = Counter(threads.map(ask, [0.5 + k / 1_000 for k in range(target.count(60))]))
    return set(statuses) <= {200, 429}, {"statuses": dict(statuses), "longest_s": round(max(took), 2)}


def many_blobs(target: Target) -> tuple[bool, dict[str, Any]]:
    """Uploads beyond a quota, and of wrong digests."""
    target.restart("--blob-quota", "4000000")
    token, statuses = target.token("mallory"), Counter[int]()
    import hashlib

    for number in range(12):
        data = random.Random(number).randbytes(1_000_000)
        digest = hashlib.sha256(data).hexdigest() if number % 3 else "0" * 64
        statuses[target.ask("PUT", f"/v1/blobs/{digest}", token, data)[0]] += 1
    folder = target.folder / "state" / "blobs"
    kept = sum(path.stat().st_size for path in folder.glob("*/*"))
    target.restart()
    return statuses[204] <= 4 and statuses[413] > 0 and statuses[422] > 0, {"statuses": dict(statuses), "kept": kept}


def second_service(target: Target) -> tuple[bool, dict[str, Any]]:
    """Another service on the same journal."""
    command = [sys.executable, "-c", "from symphony.cli import main; main()", "serve", "--port", "0", "--state"]
    found = subprocess.run(
        [*command, str(target.folder / "state")], capture_output=True, text=True, timeout=120, check=False
    )
    return found.returncode == 2 and "another service" in found.stderr, {"status": found.returncode}


def damaged_event(target: Target) -> tuple[bool, dict[str, Any]]:
    """A changed byte in an event, and in a value."""
    with target.user("ann") as ann:
        numbers = [ann.submit(one(add, k)).id for k in range(6)]
        for number in numbers:
            ann.job(number).result(RESULT_S)
    target.serving.stop()
    journal = target.folder / "state" / "journal.sqlite"
    with sqlite3.connect(journal) as connection:
        connection.execute("UPDATE events SET data = 'x' WHERE job = ? AND kind = 'finished'", (numbers[0],))
        connection.execute("UPDATE outputs SET body = x'00' WHERE job = ?", (numbers[1],))
    connection.close()
    seconds = target.restart()
    right = 0
    with target.user("root", tokens.ADMIN) as root:
        for k, number in enumerate(numbers):
            with suppress(sy.SymphonyError):
                right += root.job(number).result(RESULT_S) == k
    return right >= 4, {"results_of_6": right, "restart_s": round(seconds, 1)}


def daemon(target: Target) -> tuple[bool, dict[str, Any]]:
    """A kernel that leaves a process behind."""
    with target.user("mallory") as cluster:
        pid = cluster.submit(one(sy.kernel(start_daemon), str(target.folder / "daemon"))).result(RESULT_S)
    deadline = time.monotonic() + 10.0
    while not (ended := has_ended(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    return ended, {"outlives_its_job": not ended}


def fan_in(target: Target) -> tuple[bool, dict[str, Any]]:
    """A task that reads 5,000 others."""
    width = target.count(5_000) if target.scale >= 1 else 100
    graph = sy.graph("fan-in")
    graph.task(total, *(graph.task(add, k) for k in range(width)))
    with target.user("mallory") as cluster:
        began = time.perf_counter()
        job = cluster.submit(graph)
        accepted = time.perf_counter() - began
        done = job.wait(150.0)
        took = time.perf_counter() - began
        job.cancel()
    return done, {"tasks": width + 1, "accepted_s": round(accepted, 2), "done_s": round(took, 1) if done else None}


ATTACKS: tuple[Callable[[Target], tuple[bool, dict[str, Any]]], ...] = (
    nothing,
    bad_answers,
    code_of_others,
    bodies_without_token,
    large_json,
    idle_connections,
    slow_requests,
    few_descriptors,
    invented_methods,
    surrogates,
    wrong_tokens,
    other_hosts,
    random_requests,
    forecasts,
    many_blobs,
    second_service,
    damaged_event,
    daemon,
    fan_in,
)
# These attacks end the service, so nobody can submit meanwhile.
RESTARTING = (bad_answers, few_descriptors, many_blobs, damaged_event)


def measure_attacks(folder: Path, quick: bool, seed: int, console: Console) -> list[dict[str, Any]]:
    target = Target(folder, started(folder), random.Random(seed), 0.15 if quick else 1.0)
    with target.user("warm") as cluster:
        cluster.submit(one(add, 1)).result(RESULT_S)
    rows: list[dict[str, Any]] = []
    honest, job_s = Honest(target), 0.0  # CPU time of the service for an honest job
    for attack in ATTACKS:
        with nullcontext([]) if attack in RESTARTING else honest.submitting() as took:
            memory, before_s, client_s = target.memory_mb, target.cpu_s, honest.cpu_s
            began = time.perf_counter()
            try:
                held, figures = attack(target)
            except (sy.SymphonyError, OSError, AssertionError, TimeoutError) as error:
                held, figures = False, {"error": f"{type(error).__name__}: {error}"[:200]}
        if target.serving.process.poll() is not None:
            held, figures = False, {**figures, "service": f"ended with {target.serving.process.returncode}"}
            target.restart()
        row = {"attack": attack.__name__, "held": held, "seconds": round(time.perf_counter() - began, 1)}
        row |= {"p99_ms": _p99_ms(took), "submits": len(took), "grown_mb": round(target.memory_mb - memory)}
        if took:  # the same service as before
            spent_s, count = target.cpu_s - before_s, len(took) + 1
            job_s = spent_s / count if attack is nothing else job_s
            attack_s = max(spent_s - job_s * count, 0.0)
            row |= {"cpu_s": round(attack_s, 2), "cpu_share": round(attack_s / row["seconds"], 3)}
            row |= {"job_ms": round(job_s * 1e3, 1), "client_ms": round((honest.cpu_s - client_s) / count * 1e3, 1)}
        if took and rows:
            row["p99_ratio"] = round(row["p99_ms"] / rows[0]["p99_ms"], 2)  # to that without an attack
        rows.append(row | {"figures": figures})
        console.print(_line(rows[-1]))
    honest.close()
    target.serving.stop()
    return rows


def _p99_ms(took: list[float]) -> float | None:
    return None if not took else round(float(np.quantile(took, 0.99, method="higher")) * 1e3, 1)


def _line(row: dict[str, Any]) -> str:
    p99 = "-" if row["p99_ms"] is None else f"p99 {row['p99_ms']} ms of {row['submits']}"
    verdict, cpu = "held" if row["held"] else "FAILED", ""
    if "cpu_s" in row:
        cpu = f" {row['cpu_s']} CPU-s ({row['cpu_share']:.0%} of a core), client {row['client_ms']} ms,"
    return f"{row['attack']}: {verdict} in {row['seconds']} s, {p99},{cpu} {row['grown_mb']:+} MB, {row['figures']}"


# --- kills


def measure_kills(folder: Path, kills: int, rate: float, seconds: float, seed: int) -> dict[str, Any]:
    """Kill at random while jobs are submitted at a rate; no kill is started after the given seconds."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(postgres_server())
        except BaseException as error:  # pytest's Skipped: not installed
            if type(error).__name__ != "Skipped":
                raise
            server = None
        url = server.url if server is not None else ""
        return Kills(folder, url, server, random.Random(seed), rate).run(kills, seconds)


class Kills:
    def __init__(self, folder: Path, url: str, server: Any, rng: random.Random, rate: float) -> None:
        self._folder, self._url, self._server, self._rng, self._rate = folder, url, server, rng, rate
        self._options = ("--log-level", "error", *(("--database", url) if url else ()))
        self._ran = folder / "ran"
        self._over, self._lock = threading.Event(), threading.Lock()
        self._jobs: dict[int, int] = {}  # number of the job, by what it was asked for
        self._counts: Counter[str] = Counter()
        self._endings: Counter[str] = Counter()  # of services that were not killed, by the last line of their log
        self._serving = self._start()
        self._cluster = self._serving.connect()

    def _start(self) -> Serve:
        return Serve(self._folder / "killed", *self._options)

    def run(self, kills: int, seconds: float) -> dict[str, Any]:
        deadline, began = time.monotonic() + seconds, time.monotonic()
        submitting = [threading.Thread(target=self._submit, args=(k, 4)) for k in range(4)]
        for thread in submitting:
            thread.start()
        while sum(self._counts[kind] for kind in ("service", "worker", "postgresql")) < kills:
            if time.monotonic() > deadline:
                break
            time.sleep(self._rng.uniform(0.2, 1.5))
            self._kill()
        submitted_s = time.monotonic() - began
        self._over.set()
        for thread in submitting:
            thread.join(120)
        return self._checked() | {"submitted_s": round(submitted_s, 1), "rate_per_s": self._rate}

    def _submit(self, first: int, threads: int) -> None:
        number, due = first, time.monotonic()
        cluster: RemoteCluster | None = None
        while not self._over.is_set():
            due = max(due + threads / self._rate, time.monotonic() - 5.0)
            time.sleep(max(due - time.monotonic(), 0.0))
            graph = one(noted, str(self._ran), number)
            while number not in self._jobs:  # several requests with one key make one job
                try:
                    cluster = cluster or self._serving.connect()
                    job = cluster.submit(graph, key=str(number)).id
                    with self._lock:
                        self._jobs[number] = job
                except (sy.SymphonyError, OSError):
                    cluster = None
                    if self._over.is_set():
                        return
                    time.sleep(0.1)
            number += threads

    def _kill(self) -> None:
        self._revive()
        kind = self._rng.choice(("service", "worker", "worker", *(("postgresql",) if self._server else ())))
        if kind == "service":
            self._serving.kill()
            self._serving = self._start()
        elif kind == "postgresql":
            self._server.kill()
            time.sleep(self._rng.uniform(0.0, 0.5))
            self._server.start()
        else:
            found = descendants(self._serving.process.pid)
            if not found:
                return
            with suppress(ProcessLookupError):
                os.kill(self._rng.choice(found), signal.SIGKILL)
        self._counts[kind] += 1

    def _revive(self) -> None:
        """Restart the service if it has ended by itself, and record the reason."""
        if self._serving.process.poll() is None:
            return
        lines = [line for line in self._serving.log.read_text().splitlines() if line.strip()]
        self._endings[lines[-1][:200] if lines else ""] += 1
        self._serving = self._start()

    def _result(self, job: int) -> Any:
        """The result of a job, from the next service if this one has ended."""
        for _ in range(3):
            try:
                if self._serving.process.poll() is not None or self._cluster.url != self._serving.told["url"]:
                    self._revive()
                    self._cluster = self._serving.connect()
                return self._cluster.job(job).result(RESULT_S)
            except sy.ServiceError:
                time.sleep(0.5)
                if self._serving.process.poll() is None:
                    raise
        raise TimeoutError("the service ends again and again")

    def _checked(self) -> dict[str, Any]:
        failed: Counter[str] = Counter()
        lost = wrong = 0
        for number, job in sorted(self._jobs.items()):
            try:
                wrong += self._result(job) != number
            except sy.UnknownJobError:
                lost += 1
            except (sy.SymphonyError, TimeoutError) as error:
                failed[f"{type(error).__name__}: {error}"[:100]] += 1
        self._cluster.close()
        self._serving.stop()
        return {
            "kills": {kind: self._counts[kind] for kind in ("service", "worker", "postgresql")},
            "ended_by_itself": dict(self._endings),
            "database": "postgresql" if self._url else "sqlite",
            "jobs": len(self._jobs),
            "lost": lost,
            "wrong": wrong,
            "failed": dict(failed),
            **self._runs(),
        }

    def _runs(self) -> dict[str, int]:
        """The numbers of runs of kernels, and of runs that began after a journalled end."""
        began: dict[int, list[float]] = {}
        for line in self._ran.read_text().splitlines():
            number, at = line.split()
            began.setdefault(int(number), []).append(float(at))
        asked = {job: number for number, job in self._jobs.items()}
        database = open_database(self._url, self._folder / "killed")
        ended = {event.job: event.at for event in read_events(database) if event.kind == FINISHED}
        twice = Counter(event.job for event in read_events(database) if event.kind == FINISHED)
        database.dispose()
        again = sum(at > ended[job] for job, number in asked.items() if job in ended for at in began.get(number, ()))
        return {
            "runs": sum(map(len, began.values())),
            "killed_while_running": sum(len(times) > 1 for times in began.values()),
            "run_after_their_end": again,
            "ends_journalled_twice": sum(count > 1 for count in twice.values()),
        }


def descendants(pid: int) -> list[int]:
    """All processes below a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def main() -> None:
    """Run the sections, print, and keep the figures. The exit status is 1 if something did not hold."""
    options = parser(__doc__ or "", SECTIONS)
    options.formatter_class = argparse.RawDescriptionHelpFormatter
    options.add_argument("--kills", type=int, default=500, help="how many")
    options.add_argument("--rate", type=float, default=50.0, help="jobs a second while killing")
    options.add_argument("--kill-seconds", type=float, default=3_600.0, help="start no kill later than this")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--honest", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.honest:
        submit_honestly()
        return
    share_programs()  # of the services that are started
    if given.quick:
        given.kills, given.rate, given.kill_seconds = min(given.kills, 4), min(given.rate, 10.0), 30.0
    found: dict[str, Any] = {"load_before": os.getloadavg(), "seed": given.seed}
    console, held = Console(highlight=False, soft_wrap=True), True
    with tempfile.TemporaryDirectory(prefix="symphony-hostile-") as place:
        if "attacks" in given.only:
            found["attacks"] = measure_attacks(Path(place), given.quick, given.seed, console)
            held &= all(row["held"] for row in found["attacks"])
            console.print(_table(found["attacks"]))
        if "kills" in given.only:
            folder = Path(place) / "kills"
            folder.mkdir()
            kills = measure_kills(folder, given.kills, given.rate, given.kill_seconds, given.seed)
            found["kills"] = kills
            names = ("lost", "wrong", "run_after_their_end", "ends_journalled_twice")
            held &= not any(kills[name] for name in names)
            console.print("kills", kills)
    found["load_after"] = os.getloadavg()
    console.print(f"load of the machine: {found['load_before'][0]:.1f} before, {found['load_after'][0]:.1f} after")
    keep(given.json, **found)
    sys.exit(0 if held else 1)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("attack", "verdict", "p99, ms", "of none", "submits", "CPU, s", "of a core", "grown, MB"):
        table.add_column(name, justify="left" if name in ("attack", "verdict") else "right")
    for row in rows:
        p99 = "" if row["p99_ms"] is None else f"{row['p99_ms']}{'' if row['p99_ms'] <= TARGET_P99_MS else ' !'}"
        verdict = "held" if row["held"] else "failed"
        ratio = str(row.get("p99_ratio", ""))
        cpu = str(row.get("cpu_s", "")), f"{row['cpu_share']:.0%}" if "cpu_share" in row else ""
        table.add_row(row["attack"], verdict, p99, ratio, str(row["submits"]), *cpu, f"{row['grown_mb']:+}")
    return table


if __name__ == "__main__":
    main()
