"""Functions without a graph, on real processes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import symphony as sy
from symphony.runtime.function_calls import FunctionCall
from symphony.runtime.profiles import kernel_name
from tests.runtime.machines import machine
from tests.waiting import SECONDS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sy.Cluster]:
    with sy.local(machine(others=1), profiles=tmp_path_factory.mktemp("profiles") / "profiles.json") as found:
        yield found


def scaled(x, factor=1):
    return x * factor


class Adder:
    """An object that can be called, with an attribute that a kernel has, too."""

    def __init__(self, added):
        self.added, self.name = added, "mine"

    def __call__(self, x):
        return x + self.added


@sy.kernel(device="accelerator", name="elsewhere")
def here(x):
    return x, 1


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "result"),
    [
        (scaled, (3,), {"factor": 2}, 6),
        (lambda x: x - 1, (3,), {}, 2),
        (functools.partial(scaled, factor=5), (2,), {}, 10),
        (functools.partial(Adder(1)), (2,), {}, 3),
        (Adder(4), (3,), {}, 7),
        (dict, (), {"a": 1}, {"a": 1}),
        (len, ([1, 2],), {}, 2),
    ],
)
def test_anything_that_can_be_called_is_run(cluster: sy.Cluster, function, args, kwargs, result) -> None:
    assert cluster.submit(function, *args, **kwargs).result(SECONDS) == result


def test_a_kernel_keeps_its_options(cluster: sy.Cluster) -> None:
    job = cluster.submit(here, 3, priority=1)
    assert job.result(SECONDS) == (3, 1) and job.name == "elsewhere"
    assert "here/big-0" in job.explain()


def test_map_calls_a_function_once_for_each_item(cluster: sy.Cluster) -> None:
    jobs = cluster.map(scaled, range(40), [1, 2] * 20)
    assert [job.result(SECONDS) for job in jobs] == [x * (1 + x % 2) for x in range(40)]
    assert cluster.map(scaled, []) == []


def test_one_call_that_fails_leaves_the_others_alone(cluster: sy.Cluster) -> None:
    jobs = cluster.map(lambda x: 1 // x, [1, 0, 1])
    assert jobs[0].result(SECONDS) == jobs[2].result(SECONDS) == 1
    with pytest.raises(sy.KernelError, match="ZeroDivisionError"):
        jobs[1].result(SECONDS)


def test_a_function_sees_the_present_value_of_what_it_refers_to(cluster: sy.Cluster) -> None:
    factor = 2

    def times(x):
        return x * factor

    assert cluster.submit(times, 3).result(SECONDS) == 6
    factor = 5
    assert cluster.submit(times, 3).result(SECONDS) == 15


def test_equal_functions_are_one_kernel() -> None:
    kernels = {FunctionCall(scaled).submission((k,), {}).calls[0].kernel for k in range(3)}
    assert len(kernels) == 1


def test_what_cannot_be_run_is_refused_at_once(cluster: sy.Cluster, tmp_path: Path) -> None:
    with pytest.raises(sy.WorkloadError, match="missing a required argument: 'x'"):
        cluster.submit(scaled)
    with pytest.raises(sy.WorkloadError, match="a graph takes no factor"):
        cluster.submit(sy.graph("empty"), factor=3)
    with pytest.raises(sy.WorkloadError, match="int is not a graph"):
        cluster.submit(3)  # type: ignore[arg-type]
    with pytest.raises(sy.WorkloadError, match="nothing to call the function with"):
        cluster.map(scaled)
    with pytest.raises(sy.WorkloadError, match="3 is not a function"):
        cluster.map(3, [1])  # type: ignore[arg-type]
    with pytest.raises(sy.WorkloadError, match=r"cannot be sent to a task\nhint: pass its value, job.result\(\)"):
        cluster.submit(scaled, cluster.submit(scaled, 1))
    with open(tmp_path / "x", "w") as file, pytest.raises(sy.WorkloadError, match="argument 1 cannot be sent"):
        cluster.submit(scaled, file)


def test_functions_of_different_scripts_have_different_profiles() -> None:
    def key(text: str) -> str:
        names: dict = {"__name__": "__main__"}
        exec(text, names)
        return FunctionCall(names["work"])._sent.key

    key_of_one = key("def work(x): return x")
    assert key_of_one == key("# a comment\ndef work(x): return x") and kernel_name(key_of_one) == "__main__.work"
    assert key("def work(x): return -x") != key_of_one
