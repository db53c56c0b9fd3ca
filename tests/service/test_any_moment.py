"""What a service has written at any moment is enough to go on from: snapshots of a running one, each started anew.

A snapshot is what `kill -9` would have left just then. For each of them: every job that was accepted ends, with its
result; and no kernel whose end was written down runs again.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import time
from collections import Counter
from pathlib import Path

import numpy as np

import symphony as sy
from symphony.service.database import open_database
from symphony.service.journal import read_events
from symphony.service.state import ACCEPTED, FINISHED
from tests.service.places import SECONDS, place, service, wait_until

SEED, SNAPSHOTS, JOBS, WIDTH, DEPTH = 7, 5, 3, 2, 4


@sy.kernel
def work(path, text, array, *after):
    import time

    time.sleep(0.005)
    with open(path, "a") as file:
        file.write(f"{text}\n")
    return array + 1


def layers(path: Path, job: int) -> sy.graph:
    """Layers in which every task reads from all above; values are large enough to go into files."""
    graph = sy.graph(f"job{job}")
    above: list = []
    for depth in range(DEPTH):
        above = [
            graph.task(work, str(path), f"{job} {depth * WIDTH + k}", np.full(9_000, float(k)), *above)
            for k in range(WIDTH)
        ]
    return graph


def snapshot(state: Path, to: Path) -> None:
    """What is committed at this moment, and the files that it refers to."""
    to.mkdir()
    with sqlite3.connect(state / "journal.sqlite") as source, sqlite3.connect(to / "journal.sqlite") as copy:
        source.backup(copy)
    shutil.copytree(state / "blobs", to / "blobs", ignore=shutil.ignore_patterns("part-*"))


def test_every_moment_is_one_to_go_on_from(tmp_path: Path) -> None:
    rng, ran = random.Random(SEED), tmp_path / "ran"
    with place(tmp_path / "state") as here, here.connect("ann") as ann:
        ann.submit(layers(tmp_path / "first", 0)).result(SECONDS)  # processes are up, imports are done
        for job in range(1, JOBS + 1):
            ann.submit(layers(ran, job))
        for number in range(SNAPSHOTS):
            snapshot(tmp_path / "state", tmp_path / f"snapshot-{number}")
            time.sleep(rng.uniform(0.0, 0.03))
    seen = [check(tmp_path / f"snapshot-{number}", ran) for number in range(SNAPSHOTS)]
    assert seen == sorted(seen)


def check(state: Path, ran: Path) -> int:
    """Go on from a snapshot; how many kernels had finished there."""
    database = open_database("", state)
    events = list(read_events(database))
    database.dispose()
    accepted = [event.job for event in events if event.kind == ACCEPTED and event.job > 1]
    finished = {f"{event.job - 1} {event.task}" for event in events if event.kind == FINISHED and event.job > 1}
    before = Counter(ran.read_text().splitlines() if ran.exists() else ())
    with service(state) as found:
        wait_until(lambda: not found.state.open)
        assert [found.state.jobs[job].status for job in accepted] == ["done"] * len(accepted)
        assert accepted == list(range(2, JOBS + 2))
    after = Counter(ran.read_text().splitlines())
    assert {text for text in finished if after[text] > before[text]} == set()
    left = {f"{job} {task}" for job in range(1, JOBS + 1) for task in range(WIDTH * DEPTH)} - finished
    assert {text for text in left if after[text] != before[text] + 1} == set()
    return len(finished)
