"""What the service does for a task does not depend on how many others its graph has: counted, not timed."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import symphony as sy
from symphony.service import service as module
from symphony.service import views
from symphony.service.wire import Submit
from tests.service.handmade import ANN, Handmade
from tests.service.kernels import add
from tests.whole_system.clients import Sender

FOLDER = str(Path(module.__file__).parent)
SMALL, LARGE = 50, 200


def graph(shape: str, tasks: int) -> sy.Graph:
    made = sy.graph(shape)
    if shape == "chain":
        last = made.task(add, 1)
        for _ in range(tasks - 1):
            last = made.task(add, last)
        return made
    side_by_side = [made.task(add, number) for number in range(tasks)]
    if shape == "fan-in":
        made.task(add, *side_by_side)
    return made


class Lines:
    """Counts the lines of the service's code that run in this thread."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Lines:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, _: str, __: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(FOLDER) else None

    def _line(self, _: FrameType, what: str, __: Any) -> Any:
        self.count += what == "line"
        return self._line


def run(here: Handmade, sent: sy.Graph) -> int:
    """Submit a graph, run it and read everything about it; lines of the service's code."""
    body, done, service = Sender().bytes_of(sent, 0, ""), len(here.engine.sent), here.service
    with Lines() as lines:
        answer = service.submit(ANN, Submit.model_validate_json(body), body, "")
        service.ledger.step()
        while service.state.open:
            while not service.ledger.idle:
                service.ledger.step()
            service.cluster.step()
            now_s, new, done = time.monotonic(), here.engine.sent[done:], len(here.engine.sent)
            here.engine.news += [
                replace(here.engine.finished(work.number, 1), began_s=now_s, seconds=1e-4) for work in new
            ]
        job = service.state.jobs[answer.result(0.0)[0].id]
        assert len(views.detail(service, job).tasks) == len(sent.tasks) and views.outcome(service, job).values
        assert len(views.logs(service, job, "").lines) > len(sent.tasks) / 2
        views.cluster(service, everybody=True, user="ann")
    return lines.count


@pytest.mark.parametrize("shape", ["side by side", "chain", "fan-in"])
def test_lines_of_code_for_a_task_are_the_same_in_large_graphs(shape: str, tmp_path: Path) -> None:
    here = Handmade(tmp_path)
    run(here, graph(shape, 3))  # what is done once
    small, large = (run(here, graph(shape, tasks)) / tasks for tasks in (SMALL, LARGE))
    assert large < 1.1 * small
    here.service.close()
