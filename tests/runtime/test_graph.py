"""Graphs of kernels, before anything runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import pytest

import symphony as sy
from symphony.engines.worker import unpickled
from symphony.runtime.graph import Handle, submission


@sy.kernel
def join(*parts, **named):
    return parts, named


def test_tasks_are_named_by_their_kernels() -> None:
    graph = sy.graph("g")
    assert [graph.task(join).name for _ in range(3)] == ["join-0", "join-1", "join-2"]
    assert repr(graph) == "<graph 'g' with 3 tasks>" and len(graph.tasks) == 3


def test_a_task_reads_from_every_handle_among_its_arguments() -> None:
    @dataclass
    class Box:
        content: object

    graph = sy.graph("g")
    a, b, c, d = (graph.task(join, number) for number in range(4))
    graph.task(join, a, [b, (c,)], more={"x": a}, box=Box(d))
    call = submission(graph).calls[-1]
    assert sorted(call.reads) == [0, 1, 2, 3]
    values = [f"value {number}" for number in call.reads]
    args, kwargs = unpickled(call.arguments.head, call.arguments.buffers, values)
    assert args == ("value 0", ["value 1", ("value 2",)])
    assert kwargs["more"] == {"x": "value 0"} and kwargs["box"].content == "value 3"


def test_the_result_is_what_nobody_reads_or_what_was_named() -> None:
    graph = sy.graph("g")
    a = graph.task(join)
    b, c = graph.task(join, a), graph.task(join, a)
    assert submission(graph).outputs == (b._index, c._index) and submission(graph).names == ()
    graph.output("start", a)
    assert submission(graph).outputs == (a._index,) and submission(graph).names == ("start",)


def test_large_arguments_are_left_out_of_the_pickle() -> None:
    graph = sy.graph("g")
    graph.task(join, np.zeros(100_000))
    arguments = submission(graph).calls[0].arguments
    assert len(arguments.head) < 2_000 and arguments.size > 800_000


def test_a_handle_of_another_graph_is_refused_where_it_is_passed() -> None:
    one, other = sy.graph("one"), sy.graph("other")
    handle = one.task(join)
    with pytest.raises(sy.WorkloadError, match="belongs to another graph") as caught:
        other.task(join, {"deep": [handle]})
    assert caught.value.where == "graph 'other': task 'join-0'"
    with pytest.raises(sy.WorkloadError, match="belongs to another graph"):
        other.output("x", handle)


def test_a_handle_is_no_value() -> None:
    handle = sy.graph("g").task(join)
    with pytest.raises(sy.WorkloadError, match="no value yet"):
        list(handle)
    import pickle

    with pytest.raises(sy.WorkloadError, match="no value yet"):
        pickle.dumps(handle)


@pytest.mark.parametrize("wrong", [len, 3, "align"])
def test_only_kernels_make_tasks(wrong) -> None:
    with pytest.raises(sy.WorkloadError, match="is not a kernel") as caught:
        sy.graph("g").task(wrong)
    assert "@sy.kernel" in caught.value.hint


def test_an_empty_graph_and_an_empty_name_are_refused() -> None:
    with pytest.raises(sy.WorkloadError, match="no task"):
        submission(sy.graph("g"))
    with pytest.raises(sy.WorkloadError, match="the name of a graph is"):
        sy.graph("")
    with pytest.raises(sy.WorkloadError, match="is not a graph"):
        submission("graph")  # type: ignore[arg-type]


def test_outputs_must_be_handles_and_have_names_of_their_own() -> None:
    graph = sy.graph("g")
    handle = graph.task(join)
    graph.output("a", handle)
    with pytest.raises(sy.WorkloadError, match="name is used twice"):
        graph.output("a", handle)
    with pytest.raises(sy.WorkloadError, match="is not a handle"):
        graph.output("b", 3)  # type: ignore[arg-type]


def test_the_argument_that_cannot_be_sent_is_named() -> None:
    graph = sy.graph("g")
    graph.task(join, 1, threading.Lock())
    with pytest.raises(sy.WorkloadError, match="argument 2 cannot be sent"):
        submission(graph)


def test_a_circle_of_changed_arguments_is_found() -> None:
    graph = sy.graph("g")
    later: list[Handle] = []
    first = graph.task(join, later)
    later.append(graph.task(join, first))
    with pytest.raises(sy.CycleError, match="join-0, join-1") as caught:
        submission(graph)
    assert "pass a copy" in caught.value.hint


def test_too_many_tasks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symphony.problem.limits.TASKS_PER_GRAPH", 2)
    graph = sy.graph("g")
    graph.task(join)
    graph.task(join)
    with pytest.raises(sy.LimitError, match="number of tasks"):
        graph.task(join)


def test_a_graph_runs_without_a_cluster() -> None:
    graph = sy.graph("plain")
    one = graph.task(join, 1)
    graph.task(join, [one], more=one)
    assert graph.run() == (([((1,), {})],), {"more": ((1,), {})})
    graph.task(join, 2)
    assert graph.run()[1] == ((2,), {})  # two tasks have no reader
    graph.output("one", one)
    assert graph.run() == {"one": ((1,), {})}
