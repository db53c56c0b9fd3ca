"""Graphs on Ray, with every decision made by the core: what users get."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symphony as sy
from examples import training_job
from symphony.problem.extras import install_command
from tests.test_docs import run_snippets
from tests.waiting import SECONDS, wait_until


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

    import ray

    (pathlib.Path(mark) / f"{ray.get_runtime_context().get_node_id()}-{time.monotonic_ns()}").touch()
    deadline = time.monotonic() + 240  # a test that fails must not hold up those after it
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.005)
    return "through"


@sy.kernel(device="cpu-2")
def total(array, held):
    return float(array.sum())


@pytest.fixture
def cluster(nodes: Any, tmp_path: Path) -> Iterator[sy.Cluster]:
    """Each test has its own: two of them lose a machine."""
    found = sy.ray(nodes.address, profiles=tmp_path / "profiles.json")
    yield found
    found.close(wait=False)


def test_functions_run_without_a_graph(cluster: sy.Cluster) -> None:
    jobs = cluster.map(lambda x: x * x, range(5))
    assert sorted(job.result(SECONDS) for job in sy.as_completed(jobs, timeout_s=SECONDS)) == [0, 1, 4, 9, 16]


@sy.kernel(retries=2, retry_on=ConnectionError, retry_delay_s=0.1)
def flaky(path):
    with open(path, "a+") as file:
        file.write(".")
        calls = file.tell()
    if calls < 3:
        raise ConnectionResetError(f"call {calls}")
    return calls


def test_a_kernel_that_raises_runs_again(cluster: sy.Cluster, tmp_path: Path) -> None:
    job = cluster.submit(flaky, str(tmp_path / "calls"))
    assert job.result(SECONDS) == 3
    assert job.explain().count("raised ConnectionResetError") == 2


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

    graph = sy.graph("trains")
    graph.task(sy.training(steps=1)(lambda job: None))
    with pytest.raises(sy.InfeasibleError, match="all machines reach"):  # no folder for checkpoints was named
        cluster.submit(graph)


@pytest.mark.slow
def test_a_training_job_runs_on_two_machines(nodes: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--rows", "1000", "--passes", "5", "--profiles", str(tmp_path / "p.json")]
    options += ["--kill-at", "4", "--folder", str(tmp_path / "shared")]
    found = training_job.main([*options, "--ray", nodes.address])
    assert found["right"] > 0.8 and found["began_at"] == 3
    lost, line, went = [line for line in capsys.readouterr().out.splitlines() if "train-0" in line]
    assert "ended" in lost and "lost once; resumed from step 3" in went
    assert "m1/cpu-2-0" in line and "m2/cpu-1-0" in line


def waiting(cluster: sy.Cluster, gate: Path, folder: Path) -> list[Any]:
    """Six jobs, for three slots, that wait for a gate; those that have started leave a mark."""
    folder.mkdir()
    graphs = [sy.graph(f"wait-{number}") for number in range(6)]
    for graph in graphs:
        graph.task(wait_for, str(gate), str(folder))
    return [cluster.submit(graph) for graph in graphs]


def started_on(folder: Path) -> int:
    """How many nodes have started something."""
    return len({mark.name.split("-")[0] for mark in folder.iterdir()})


def test_a_job_goes_on_when_a_machine_is_lost_under_it(cluster: sy.Cluster, nodes: Any, tmp_path: Path) -> None:
    gate, folder = tmp_path / "gate", tmp_path / "marks"
    jobs = waiting(cluster, gate, folder)
    wait_until(lambda: started_on(folder) == 2)
    nodes.kill("m2")
    gate.touch()
    assert [job.result(SECONDS) for job in jobs] == ["through"] * 6
    wait_until(lambda: cluster._loop._down)  # else Ray would have two machines of this name
    nodes.add("m2", num_cpus=1)


def test_a_machine_that_comes_back_is_used_again(cluster: sy.Cluster, nodes: Any, tmp_path: Path) -> None:
    gate, folder = tmp_path / "gate", tmp_path / "marks"
    jobs = waiting(cluster, gate, folder)
    wait_until(lambda: started_on(folder) == 2)
    nodes.kill("m2")
    wait_until(lambda: cluster._loop._down)
    nodes.add("m2", num_cpus=1)
    wait_until(lambda: started_on(folder) == 3)  # Ray's number for it is another
    gate.touch()
    assert [job.result(SECONDS) for job in jobs] == ["through"] * 6


def test_a_job_whose_values_were_lost_with_a_machine_fails_and_says_so(
    cluster: sy.Cluster, nodes: Any, tmp_path: Path
) -> None:
    there = sy.kernel(device="cpu-1", name="there")(draw.implementations["cpu"])  # on m2 only
    here = sy.kernel(device="cpu-2", name="here")(wait_for.implementations["cpu"])
    read, kept = sy.graph("reads it"), sy.graph("results in it")
    for number, graph in enumerate((read, kept)):
        (tmp_path / str(number)).mkdir()
        value, held = graph.task(there, number), graph.task(here, str(tmp_path / "gate"), str(tmp_path / str(number)))
        if graph is read:
            graph.task(total, value, held)
    jobs = [cluster.submit(graph) for graph in (read, kept)]
    wait_until(lambda: all(list((tmp_path / str(number)).iterdir()) for number in range(2)))
    wait_until(lambda: all(job._state.runs[0].value is not None for job in jobs))
    nodes.kill("m2")
    wait_until(lambda: cluster._loop._down)
    (tmp_path / "gate").touch()
    with pytest.raises(sy.WorkerDiedError, match=r"an input was lost") as lost:
        jobs[0].result(SECONDS)
    assert "submit the job again" in lost.value.hint
    with pytest.raises(sy.EngineError, match="a value was lost"):
        jobs[1].result(SECONDS)
    nodes.add("m2", num_cpus=1)


def test_ray_that_is_not_installed_is_an_error_that_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in [name for name in sys.modules if name.startswith("symphony.engines.ray")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(sy.EngineError, match="the Ray engine needs ray, which is not installed") as error:
        sy.ray()
    assert install_command("ray") in error.value.hint


def test_the_guide_runs(
    cluster: sy.Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sy, "ray", lambda: nullcontext(cluster))
    assert run_snippets(Path(__file__).parents[3] / "docs" / "guides" / "ray.md") == 1
    assert abs(float(capsys.readouterr().out)) < 0.01
