"""What a kernel is called with is checked when a task is added, not when it runs."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import pytest

import symphony as sy


def align(reads: str, /, reference, *, quality: int = 30, table=tuple(range(100))) -> str:
    return reads


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {"reference": 1}, "missing a required .*argument: 'reads'"),
        (("x",), {}, "missing a required argument: 'reference'"),
        (("x", "y", "z"), {}, "too many positional arguments"),
        (("x", "y"), {"reference": "z"}, "multiple values for argument 'reference'"),
        (("x", "y"), {"colour": 3}, "got an unexpected keyword argument 'colour'"),
        (("y",), {"reads": "x"}, "'reference'|'reads'"),  # the text depends on the version of Python
    ],
)
def test_an_argument_that_is_wrong_is_named_with_the_kernel_and_its_signature(args, kwargs, said: str) -> None:
    graph = sy.graph("g")
    with pytest.raises(sy.WorkloadError) as refused:
        graph.task(sy.kernel(align), *args, **kwargs)
    assert re.search(said, refused.value.message) and refused.value.where == "graph 'g': kernel 'align'"
    assert refused.value.hint.endswith("write graph.task(align, reads, /, reference, *, quality=30, table=…)")
    assert not graph.tasks


def test_a_name_that_is_misspelt_is_guessed() -> None:
    with pytest.raises(sy.WorkloadError, match="unexpected keyword argument 'qualty'") as refused:
        sy.graph("g").task(sy.kernel(align), "x", "y", qualty=3)
    assert refused.value.hint.startswith("did you mean 'quality'? write graph.task(align, ")


def test_what_fits_is_taken() -> None:
    graph = sy.graph("g")
    kernel = sy.kernel(align)
    first = graph.task(kernel, "x", "y")
    graph.task(kernel, first, reference=[first], quality=3)
    anything = sy.kernel(lambda *parts, **named: None)
    graph.task(anything)
    graph.task(anything, 1, 2, x=3)
    some = sy.kernel(lambda first, *rest, last, **named: None)
    graph.task(some, 1, 2, 3, last=4, more=5)
    with pytest.raises(sy.WorkloadError, match=r"missing a required .*argument: 'last'"):
        graph.task(some, 1, 2)
    assert len(graph.tasks) == 5


def test_every_implementation_is_asked_also_one_that_came_later() -> None:
    @sy.kernel(device="cpu")
    def norm(array, order=2):
        return order

    graph = sy.graph("g")
    graph.task(norm, [1.0], order=1)

    @norm.implementation(device="gpu")
    def norm_on_gpu(array):
        return 2

    with pytest.raises(sy.WorkloadError, match="unexpected keyword argument 'order', in its implementation for 'gpu'"):
        graph.task(norm, [1.0], order=1)
    graph.task(norm, [1.0])


def test_a_training_job_is_given_its_handle() -> None:
    @sy.training(steps=3)
    def train(job, data, rate=0.1):
        return rate

    graph = sy.graph("g")
    graph.task(train, [1], rate=0.2)
    with pytest.raises(sy.WorkloadError, match="missing a required argument: 'data'") as refused:
        graph.task(train)
    assert refused.value.hint == "write graph.task(train, data, rate=0.1)"
    with pytest.raises(sy.WorkloadError, match="too many positional arguments"):
        graph.task(train, "job", [1], 0.2)
    with pytest.raises(sy.WorkloadError, match="'job'"):
        graph.task(train, [1], job=None)
    graph.task(sy.training(steps=3)(lambda *parts: None), 1, 2)
    with pytest.raises(sy.WorkloadError, match="multiple values for argument 'job'"):
        graph.task(sy.training(steps=3)(lambda job, **named: None), job=1)


def test_the_workers_of_a_gang_receive_rank_and_size() -> None:
    @sy.kernel(workers=2)
    def meet(folder, rank, size):
        return rank

    graph = sy.graph("g")
    graph.task(meet, "x")
    graph.task(meet, "x", rank=0, size=1)  # for a run without a cluster; on a cluster, workers receive their own
    with pytest.raises(sy.WorkloadError, match="too many positional arguments") as refused:
        graph.task(meet, "x", 0, 1)
    assert refused.value.hint == "write graph.task(meet, folder)"
    with pytest.raises(sy.WorkloadError, match="it has 2 workers, and no argument 'rank'") as refused:
        graph.task(sy.kernel(workers=2)(lambda folder: folder), "x")
    assert "define it with rank and size" in refused.value.hint
    graph.task(sy.kernel(workers=2)(lambda folder, **place: folder), "x")


def test_what_is_behind_rank_and_size_is_given_by_name() -> None:
    @sy.kernel(workers=2)
    def meet(group, rank, folder, *more, size):
        return rank

    graph = sy.graph("g")
    graph.task(meet, 1, folder="x")
    with pytest.raises(sy.WorkloadError, match="too many positional arguments") as refused:
        graph.task(meet, 1, "x")
    assert refused.value.hint == "write graph.task(meet, group, *, folder)"
    with pytest.raises(sy.WorkloadError, match=r"missing a required .*argument: 'folder'"):
        graph.task(meet, 1)


def test_what_does_not_tell_is_not_asked() -> None:
    """A builtin without a signature; and a decorator that gives an argument of its own."""

    def connected(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function("connection", *args, **kwargs)

        return call

    @sy.kernel
    @connected
    def read(connection, name):
        return connection, name

    graph = sy.graph("g")
    graph.task(read, "x")
    graph.task(sy.kernel(jax.jit(connected(lambda connection, number: number))), 3)
    with pytest.raises(sy.WorkloadError, match="too many positional arguments"):
        graph.task(sy.kernel(jax.jit(lambda number: number)), 3, 4)
    graph.task(sy.kernel(math.hypot), 3, 4)
    with pytest.raises(sy.WorkloadError, match="too many positional arguments"):
        graph.task(sy.kernel(len), [1], [2])
