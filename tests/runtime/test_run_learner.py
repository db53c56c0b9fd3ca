"""What runs teach is learned: at once if it is news, else when what follows from it is under way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import symphony as sy
from symphony.engines.engine import Work
from symphony.runtime.cluster import Cluster
from symphony.runtime.run_learner import RUNS_BEFORE_REFRESH
from tests.engines.by_hand import ByHand
from tests.runtime.machines import machine


@sy.kernel
def alone(*_):
    return None


class Noting(ByHand):
    """Notes how much was known of a kernel when the next was sent."""

    def __init__(self) -> None:
        super().__init__(machine(slots=1))
        self.cluster: Any = None
        self.known: list[int] = []

    def dispatch(self, work: Sequence[Work]) -> None:
        self.known.append(self.cluster.profiles.timing(alone.key, "small").runs)
        super().dispatch(work)


def chain(count: int) -> sy.Graph:
    graph, last = sy.graph("chain"), None
    for _ in range(count):
        last = graph.task(alone, last)
    return graph


def test_first_runs_are_known_before_the_next_is_decided_on_and_others_afterwards(tmp_path: Path) -> None:
    engine = Noting()
    engine.cluster = cluster = Cluster(engine, profiles=tmp_path / "p.json", threads=False)
    cluster.submit(chain(RUNS_BEFORE_REFRESH + 3))
    cluster.step()
    for number in range(RUNS_BEFORE_REFRESH + 2):
        engine.news = [engine.finished(number)]
        cluster.step()
        assert cluster.profiles.timing(alone.key, "small").runs == number + 1  # by the end, all is learned
    assert engine.known == [*range(RUNS_BEFORE_REFRESH + 1), RUNS_BEFORE_REFRESH, RUNS_BEFORE_REFRESH + 1]
    cluster.close(wait=False)


def test_runs_that_end_at_once_were_beside_one_another(tmp_path: Path) -> None:
    """Whoever is learned from first has met the other, too; and nobody has met himself."""
    engine = ByHand(machine(slots=2))
    cluster = Cluster(engine, profiles=tmp_path / "p.json", threads=False)
    timing = cluster.profiles.timing(alone.key, "small")
    for _ in range(RUNS_BEFORE_REFRESH):
        timing.learn(0.0, 1.0)
    for count in (1, 2):
        graph = sy.graph("wide")
        for _ in range(count):
            graph.task(alone)
        cluster.submit(graph)
        cluster.step()
        began_s = 10.0 * count
        sent = [work.number for work in engine.sent[-count:]]
        engine.news = [replace(engine.finished(number), began_s=began_s) for number in sent]
        cluster.step()
        assert cluster.profiles.demand(alone.key, "small").runs == (0 if count == 1 else 2)  # beside others
    cluster.close(wait=False)


def test_who_counts_traffic_is_told_of_runs_that_have_ended_and_of_those_that_have_not(tmp_path: Path) -> None:
    engine = ByHand(machine(slots=1))
    cluster = Cluster(engine, profiles=tmp_path / "p.json", threads=False)
    cluster.submit(chain(2))
    cluster.step()
    engine.news = [replace(engine.finished(0), began_s=10.0, seconds=1.0)]
    cluster.step()
    ended, running = cluster._loop.observer.runs_since(10.5)
    assert (ended.kernel, ended.began_s, ended.ended_s) == (alone.key, 10.0, 11.0)
    assert running.kernel == alone.key and math.isinf(running.ended_s)
    assert len(cluster._loop.observer.runs_since(11.5)) == 1
    cluster.close(wait=False)


@sy.kernel(device="accelerator")
def on_gpu(*_):
    return None


@pytest.mark.parametrize("others", [True, False])
def test_a_slow_run_is_charged_to_others_if_they_are_seen_and_else_to_the_kernel(tmp_path: Path, others: bool) -> None:
    """Two kernels in turn: if others have come, both are slow; if one of them has become slower, the other is not."""
    engine = ByHand(machine(others=1))
    cluster = Cluster(engine, profiles=tmp_path / "p.json", threads=False)
    background, now_s = cluster._loop.observer.background, 1000.0

    @sy.kernel(device="accelerator")
    def second(*_):
        return None

    for number in range(160):
        graph = sy.graph("one")
        graph.task(on_gpu if number % 2 else second)
        cluster.submit(graph)
        cluster.step()
        slow = 2.0 if number >= 40 and (others or number % 2) else 1.0
        seconds = 0.2 * slow * (1.01 if number % 3 else 0.99)
        engine.news = [replace(engine.finished(number), began_s=now_s, seconds=seconds)]
        cluster.step()
        now_s += seconds
        background.window("", now_s - 0.1, now_s, {"stat.user_us": 0.0, "stat.nice_us": 0.0, "stat.system_us": 0.0})
    cluster.step()
    alone_s = cluster.profiles.timing(on_gpu.key, "big").seconds(0.0)
    load = float(background.believed(now_s)[0][2])
    if others:
        assert 0.19 < alone_s < 0.26 and load > 0.5
    else:
        assert 0.35 < alone_s < 0.41 and load < 0.1
        assert cluster.profiles.timing(second.key, "big").seconds(0.0) == pytest.approx(0.2, rel=0.05)
    cluster.close(wait=False)


def test_a_slow_run_on_a_processor_without_a_compute_row_is_learned_from(tmp_path: Path) -> None:
    topology = machine(slots=1)
    memory = topology.devices[0].route[1:]
    bare = replace(topology, resources=topology.resources[1:], devices=(replace(topology.devices[0], route=memory),))
    engine = ByHand(bare)
    cluster = Cluster(engine, profiles=tmp_path / "p.json", threads=False)
    background, now_s = cluster._loop.observer.background, 1000.0
    for number in range(12):
        cluster.submit(chain(1))
        cluster.step()
        seconds = 1.0 if number > 8 else 0.1
        engine.news = [replace(engine.finished(number), began_s=now_s, seconds=seconds, busy_s=seconds)]
        cluster.step()
        now_s += seconds
        background.window("", now_s - 0.1, now_s, {})
    assert cluster.profiles.timing(alone.key, "small").runs == 12
    cluster.close(wait=False)


def test_runs_that_wait_for_others_are_learned_from_when_the_cluster_closes(tmp_path: Path) -> None:
    engine = ByHand(machine(others=1))
    cluster = Cluster(engine, profiles=tmp_path / "p.json", threads=False)
    cluster._loop.observer.background.estimator.watches = True
    for number in range(RUNS_BEFORE_REFRESH + 1):
        graph = sy.graph("one")
        graph.task(on_gpu)
        cluster.submit(graph)
        cluster.step()
        engine.news = [replace(engine.finished(number), began_s=1000.0 + number, seconds=0.2)]
        cluster.step()
    timing = cluster.profiles.timing(on_gpu.key, "big")
    assert timing.warm == RUNS_BEFORE_REFRESH  # the last one waits
    cluster.close(wait=False)
    assert timing.warm == RUNS_BEFORE_REFRESH + 1


def test_run_times_that_cannot_be_weighed_do_not_end_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ByHand(machine(others=1))
    cluster = Cluster(engine, profiles=tmp_path / "p.json", threads=False)

    def fails(now_s: float) -> list[Any]:
        raise KeyError("link")

    monkeypatch.setattr(cluster._loop.observer.background.estimator, "weigh", fails)
    job = cluster.submit(chain(1))
    cluster.step()
    engine.news = [engine.finished(0)]
    cluster.step()
    assert job.status == "done" and "could not be weighed" in caplog.text
    cluster.close(wait=False)
