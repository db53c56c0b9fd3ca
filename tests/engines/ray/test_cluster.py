"""Graphs on Ray, with every decision made by the core: what users get."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symphony as sy

SECONDS = 30.0


@sy.kernel
def draw(seed):
    import numpy as np

    return np.random.default_rng(seed).normal(size=20_000)


@sy.kernel
def mean(parts):
    return float(sum(part.mean() for part in parts) / len(parts))


@sy.kernel
def wait_for(path, mark):
    import os
    import pathlib
    import time

    (pathlib.Path(mark) / str(time.monotonic_ns())).touch()
    while not os.path.exists(path):
        time.sleep(0.005)
    return "through"


@pytest.fixture(scope="module")
def cluster(nodes: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sy.Cluster]:
    found = sy.ray(nodes.address, profiles=tmp_path_factory.mktemp("profiles") / "profiles.json")
    yield found
    found.close(wait=False)


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_graph_runs_on_all_machines_and_says_where(cluster: sy.Cluster) -> None:
    assert [device.machine for device in cluster.topology.devices] == ["m1", "m2"]
    graph = sy.graph("sample")
    parts = [graph.task(draw, seed) for seed in range(12)]
    graph.task(mean, parts)
    job = cluster.submit(graph)
    wanted = np.mean([np.random.default_rng(seed).normal(size=20_000).mean() for seed in range(12)])
    assert job.result(SECONDS) == pytest.approx(float(wanted))
    text = job.explain()
    assert "on m1/cpu-2-0" in text and "on m2/cpu-1-0" in text


def test_a_job_goes_on_when_a_machine_is_lost_under_it_and_the_machine_is_used_again(
    cluster: sy.Cluster, nodes: Any, tmp_path: Path
) -> None:
    def jobs(count: int, gate: Path, folder: Path) -> list[Any]:
        folder.mkdir()
        graphs = [sy.graph(f"wait-{number}") for number in range(count)]
        for graph in graphs:
            graph.task(wait_for, str(gate), str(folder))
        started = [cluster.submit(graph) for graph in graphs]
        until(lambda: len(list(folder.iterdir())) == count)
        return started

    started = jobs(3, tmp_path / "gate", tmp_path / "first")  # one on each of the three slots
    nodes.kill("m2")
    (tmp_path / "gate").touch()
    assert [job.result(SECONDS) for job in started] == ["through"] * 3
    nodes.add("m2", num_cpus=1)
    until(lambda: not cluster._loop._down)
    again = jobs(3, tmp_path / "gate-2", tmp_path / "second")  # all three run: the slot is back
    (tmp_path / "gate-2").touch()
    assert [job.result(SECONDS) for job in again] == ["through"] * 3


def test_ray_that_is_not_installed_is_an_error_that_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in [name for name in sys.modules if name.startswith("symphony.engines.ray")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(sy.EngineError, match="not installed") as error:
        sy.ray()
    assert "pip install 'symphony-scheduler[ray]'" in error.value.hint
