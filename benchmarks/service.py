"""Load and kills of the service: `python -m benchmarks.service [--quick] [--json FILE] [--kills N] [--only SECTION…]`.

    submit    jobs of one no-op submitted at a steady rate to a real `symphony serve`, each as soon as its time has
              come (late ones are counted from when they were due); how long each took to be accepted, and whether
              every one of them ended as done
    replay    a journal of many events, of jobs of eight tasks, is written and read back
    kills     a real `symphony serve` is killed (SIGKILL) at random times while graphs run, and started again; whether
              every job that was accepted ended as done, and no kernel whose end was journalled ran again

Unfair to the service: the one who submits runs on the same machine, and takes a good part of one of its cores.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from rich.console import Console

import symphony as sy
from benchmarks.common import keep
from symphony.service import tables
from symphony.service.client import RemoteCluster
from symphony.service.database import lock_journal, open_database
from symphony.service.journal import read_events, row_of
from symphony.service.ledger import Ledger
from symphony.service.state import ACCEPTED, ENDED, FINISHED, JournalEvent
from tests.service.serve_process import Serve

SECTIONS = ("submit", "replay", "kills")


@sy.kernel
def nothing(): ...


@sy.kernel
def step(path, text, seconds, *after):
    """A kernel whose runs can be counted."""
    import time

    time.sleep(seconds)
    with open(path, "a") as file:
        file.write(f"{text}\n")
    return text


def serve(state: Path) -> Serve:
    """A real service, as a process."""
    return Serve(state, "--log-level", "warning")


def measure_submit(folder: Path, rate: float, seconds: float, threads: int = 8) -> dict[str, Any]:
    """Submit jobs at a steady rate, however long the answers take."""
    serving = serve(folder / "submit")
    graph = sy.graph("nothing")
    graph.task(nothing)
    cluster = serving.connect()
    cluster.submit(graph).result()
    count = int(rate * seconds)
    took: list[float] = []
    wrong: Counter[str] = Counter()
    numbers: list[int] = []
    turn = iter(range(count))
    lock = threading.Lock()
    began = time.perf_counter() + 0.5

    def submit() -> None:
        while True:
            with lock:
                number = next(turn, None)
            if number is None:
                return
            due = began + number / rate
            time.sleep(max(due - time.perf_counter(), 0.0))
            try:
                job = cluster.submit(graph)
            except sy.SymphonyError as error:
                wrong[type(error).__name__] += 1
                continue
            took.append(time.perf_counter() - due)
            numbers.append(job.id)

    workers = [threading.Thread(target=submit) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sent_s = time.perf_counter() - began
    deadline = time.monotonic() + 120
    while cluster.state().counts["done"] < len(numbers) + 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    ended_s = time.perf_counter() - began
    state = cluster.state()
    serving.stop()
    took.sort()
    return {
        "rate_per_s": rate,
        "jobs": count,
        "accepted": len(set(numbers)),
        "done": state.counts["done"] - 1,
        "refused": dict(wrong),
        "sent_s": sent_s,
        "all_done_s": ended_s,
        "p50_ms": took[len(took) // 2] * 1e3,
        "p99_ms": took[len(took) * 99 // 100] * 1e3,
        "most_ms": took[-1] * 1e3,
        "decision_p50_ms": (state.decisions.p50_s or 0.0) * 1e3,
        "decision_p99_ms": (state.decisions.p99_s or 0.0) * 1e3,
        "lost": count - state.counts["done"] + 1,
    }


def measure_replay(folder: Path, events: int) -> dict[str, Any]:
    """Seconds to restore the state from a long journal."""
    database = open_database("", folder / "replay")
    jobs, tasks = events // 10, 8
    ran = {"name": "step-0", "device": "here/cpu", "sent_s": 1e9, "began_s": 1e9, "ready_s": 1e9, "seconds": 0.01}
    ran |= {"expected_s": 0.01, "spread": 0.3, "ahead": False, "cold": False, "trial": False, "ended": "done"}
    about = {"user": "ann", "name": "g", "queue": "", "priority": 0, "tasks": tasks, "outputs": [7], "names": []}
    finished, done = ran | {"bytes": 100}, {"status": "done", "error": None}
    number = 0
    with database.begin() as connection:
        for job in range(1, jobs + 1):
            key = about | {"key": f"key-{job}", "digest": "0" * 64}
            kinds = [(ACCEPTED, -1, key), *((FINISHED, k, finished) for k in range(tasks)), (ENDED, -1, done)]
            rows = [
                row_of(JournalEvent(number + k, 1e9 + job, job, kind, task, 0.01, data, number + k - 1 if k > 1 else 0))
                for k, (kind, task, data) in enumerate(kinds, start=1)
            ]
            number += len(rows)
            connection.execute(sa.insert(tables.events), rows)
    began = time.perf_counter()
    with lock_journal(database, folder / "replay") as hold:
        ledger = Ledger(hold, lambda jobs: None, lambda: None)
        ledger.replay()
    seconds = time.perf_counter() - began
    assert ledger.state.counts["done"] == jobs and not ledger.state.open
    database.dispose()
    return {"events": number, "jobs": jobs, "replay_s": seconds}


def measure_kills(folder: Path, kills: int, seed: int, parallel: int, seconds: float) -> dict[str, Any]:
    """Several services side by side, each killed repeatedly; none is started after the given seconds."""
    deadline = time.monotonic() + seconds
    with ThreadPoolExecutor(parallel) as pool:
        shares = [kills // parallel + (number < kills % parallel) for number in range(parallel)]
        begun = [
            pool.submit(kill_one, folder / f"{number}", share, seed + number, deadline)
            for number, share in enumerate(shares)
        ]
        found = [one.result() for one in begun]
    starts = sorted(start for one in found for start in one.pop("starts"))
    return {
        **{name: sum(one[name] for one in found) for name in found[0]},
        "services": parallel,
        "start_s": starts[len(starts) // 2],
        "start_most_s": starts[-1],
    }


def kill_one(folder: Path, kills: int, seed: int, deadline: float) -> dict[str, Any]:
    """Kill one service repeatedly, with jobs submitted in between."""
    folder.mkdir()
    state, ran, rng = folder / "kills", folder / "ran", random.Random(seed)
    accepted: list[int] = []
    once: dict[str, int] = {}  # kernels whose end had been journalled when it was killed, and how often they had run
    starts: list[float] = []

    def submit(cluster: RemoteCluster) -> None:
        graph, before = sy.graph(f"job{len(accepted)}"), ()
        for number in range(8):
            before = (graph.task(step, str(ran), f"{len(accepted)} {number}", 0.01, *before),)
        accepted.append(cluster.submit(graph, key=str(len(accepted))).id)

    for _ in range(kills):
        if time.monotonic() > deadline:
            break
        began = time.perf_counter()
        serving = serve(state)
        starts.append(time.perf_counter() - began)
        with serving.connect() as cluster:
            for _ in range(3):
                submit(cluster)
            time.sleep(rng.uniform(0.0, 0.5))
        serving.kill()
        database = open_database("", state)
        index = {job: number for number, job in enumerate(accepted)}
        counts = Counter(ran.read_text().splitlines() if ran.exists() else ())
        for event in read_events(database):
            if event.kind == FINISHED:
                text = f"{index[event.job]} {event.task}"
                once.setdefault(text, counts[text])
        database.dispose()
    serving = serve(state)
    with serving.connect() as cluster:
        results = [cluster.job(job).result(300.0) for job in accepted]
    serving.stop()
    counts = Counter(ran.read_text().splitlines())
    return {
        "kills": len(starts),
        "jobs": len(accepted),
        "lost": len(accepted) - len(results),
        "kernels": len(counts),
        "finished_before_a_kill": len(once),
        "of_those_run_again": sum(counts[text] > before for text, before in once.items()),
        "killed_while_running": sum(count > 1 for count in counts.values()),
        "starts": starts,
    }


def main() -> None:
    """Run the sections, print, and keep the figures."""
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="measure only these")
    parser.add_argument("--quick", action="store_true", help="20 s, 100,000 events, 3 kills")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures")
    parser.add_argument("--rate", type=float, default=100.0, help="jobs a second")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--parallel", type=int, default=1, help="services that are killed, side by side")
    parser.add_argument("--kill-seconds", type=float, default=float("inf"), help="start no service later than this")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.quick:
        given.seconds, given.events, given.kills = 20.0, 100_000, 3
    found: dict[str, Any] = {"load_before": os.getloadavg()}
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="symphony-service-") as place:
        folder = Path(place)
        if "submit" in given.only:
            found["submit"] = measure_submit(folder, given.rate, given.seconds)
            console.print("submit", found["submit"])
        if "replay" in given.only:
            found["replay"] = measure_replay(folder, given.events)
            console.print("replay", found["replay"])
        if "kills" in given.only:
            found["kills"] = measure_kills(folder, given.kills, given.seed, given.parallel, given.kill_seconds)
            console.print("kills", found["kills"])
    found["load_after"] = os.getloadavg()
    console.print(f"load of the machine: {found['load_before'][0]:.1f} before, {found['load_after'][0]:.1f} after")
    keep(given.json, **found)


if __name__ == "__main__":
    main()
