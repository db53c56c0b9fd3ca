"""Which queued tasks are sent to the engine before the core has started them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import symphony as sy
from symphony.runtime.cluster import Cluster
from tests.engines.by_hand import ByHand
from tests.runtime.machines import machine

COUNT = 9  # tasks in the queue of a slot


@sy.kernel
def known():
    """Its run time is learned."""


def sent(folder: Path, seconds: float) -> int:
    """How many of `COUNT` tasks the engine has, after `known` took so many seconds."""
    engine = ByHand(machine(slots=1))
    cluster = Cluster(engine, profiles=folder / "p.json", threads=False)

    def submit(tasks: int) -> None:
        graph = sy.graph("g")
        for _ in range(tasks):
            graph.task(known)
        cluster.submit(graph)
        cluster.step()

    for number in range(3):
        submit(1)
        engine.news.append(replace(engine.finished(number), seconds=seconds))
        cluster.step()
    engine.sent.clear()
    submit(COUNT)
    cluster.close(wait=False)
    return len(engine.sent)


@pytest.mark.parametrize(("seconds", "expected"), [(20e-3, 1), (3e-3, 2), (2.5e-4, 5), (1e-6, COUNT)])
def test_short_tasks_are_sent_ahead_one_or_as_many_as_take_a_millisecond(
    tmp_path: Path, seconds: float, expected: int
) -> None:
    assert sent(tmp_path, seconds) == expected
