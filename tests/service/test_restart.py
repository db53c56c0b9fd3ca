"""`kill -9` of a real service in the middle of its work: no job is lost, and nothing that has finished runs again."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

import symphony as sy
from symphony.service.database import open_database
from symphony.service.journal import read_events
from symphony.service.state import FINISHED
from tests.service.kernels import add, count, note, one, sleep
from tests.service.places import SECONDS, wait_until
from tests.service.serve_process import Serve


@sy.kernel
def step(path, text, *after):
    import time

    time.sleep(0.03)
    with open(path, "a") as file:
        file.write(f"{text}\n")
    return text


def ladder(path: Path, name: str, steps: int) -> sy.graph:
    """Two chains side by side, joined at the end."""
    graph = sy.graph(name)
    left = right = ()
    for number in range(steps):
        left = (graph.task(step, str(path), f"{name} left {number}", *left),)
        right = (graph.task(step, str(path), f"{name} right {number}", *right),)
    graph.task(note, str(path), f"{name} end", *left, *right)
    return graph


def test_killing_a_service_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    state, ran, shared, notes = (tmp_path / name for name in ("state", "ran", "shared", "notes"))
    steps, jobs = 12, 3
    notes.mkdir()
    serving = Serve(state, "--checkpoints", str(shared))
    with serving.connect() as ann:
        training = ann.submit(one(count, str(notes))).id
        wait_until(lambda: (told := ann.job(training).view().training) is not None and told.step == 34)
        numbers = [ann.submit(ladder(ran, f"job{k}", steps)).id for k in range(jobs)]
        cancelled = ann.submit(one(sleep))
        cancelled.cancel()
        wait_until(lambda: ran.exists() and len(ran.read_text().splitlines()) >= 10)
        accepted = ann.submit(one(add, 40, 2)).id
    serving.kill()
    [folder] = shared.iterdir()
    (folder / "999" / "train-0").mkdir(parents=True)  # of a job that nobody knows of

    database = open_database("", state)
    finished = {(event.job, event.task) for event in read_events(database) if event.kind == FINISHED}
    database.dispose()
    assert 5 <= len(finished) < jobs * (2 * steps + 1)
    before = Counter(ran.read_text().splitlines())

    serving = Serve(state, "--checkpoints", str(shared))
    with serving.connect() as ann:
        trained = ann.job(training)
        assert trained.result(SECONDS) == (30, True)  # it goes on from what it saved, and with that
        assert "400 of 400 steps; never saved; resumed from step 30" in trained.explain()
        told = trained.view().training
        assert told is not None and (told.step, told.saved, told.per_s) == (400, 400, None)
        wait_until(lambda: not list(folder.glob("[0-9]*")))  # what it wrote stays, in `output`
        assert [ann.job(number).result(SECONDS) for number in numbers] == [f"job{k} end" for k in range(jobs)]
        assert ann.job(accepted).result(SECONDS) == 42
        with pytest.raises(sy.JobCancelledError):
            ann.job(cancelled.id).result(SECONDS)
    assert serving.stop() == 0

    counts = Counter(ran.read_text().splitlines())
    every = {f"job{k} {side} {n}" for k in range(jobs) for side in ("left", "right") for n in range(steps)}
    assert set(counts) == every | {f"job{k} end" for k in range(jobs)}
    for number, task in finished:  # journalled before it was killed: run once, and never again
        if number in numbers and task < 2 * steps:
            assert counts[f"job{numbers.index(number)} {('left', 'right')[task % 2]} {task // 2}"] == 1
    again = {text for text, count in counts.items() if count > 1}
    assert all(counts[text] == 2 and before[text] == 1 for text in again), again
    assert len(again) <= (os.cpu_count() or 1)  # what each process had just done, and nobody had heard of
