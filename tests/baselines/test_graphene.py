"""Graphene: which gangs are troublesome, what comes first, and what it decides."""

from __future__ import annotations

import jax
import numpy as np

from symphony.baselines import Graphene, graphene
from symphony.problem.workload import Edge, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.scheduling.graph_tables import data_edges
from tests.baselines.test_packing import server
from tests.scheduling.by_hand import Books, decision

# L1 and L2 are long. b lies between them; d only follows; a is needed; e and f have nothing to do with them.
#
#   a -> L1 -> b -> L2 -> d      e -> f
TASKS = {"e": "short", "f": "short", "a": "short", "L1": "long", "b": "short", "L2": "long", "d": "short"}
EDGES = (("a", "L1"), ("L1", "b"), ("b", "L2"), ("L2", "d"), ("e", "f"))


def example() -> Workload:
    kernels = (
        Kernel("short", {"cpu": Profile(1.0, demand={"compute": 2.0})}),
        Kernel("long", {"cpu": Profile(5.0, demand={"compute": 2.0})}),
        Kernel("awkward", {"cpu": Profile(1.0, demand={"compute": 6.0})}),
        Kernel("narrow", {"cpu": Profile(1.0, demand={"compute": 0.1})}),
    )
    tasks = tuple(Task(name, kernel) for name, kernel in TASKS.items())
    graph = TaskGraph("example", tasks, tuple(Edge(a, b, 1.0) for a, b in EDGES))
    packed = TaskGraph("packed", tuple(Task(name, name) for name in ("short", "long", "awkward", "narrow")))
    return Workload("example", kernels, (graph, packed), (Job(0, 0.0),))


BOOKS = Books(example(), server(10, 10))
fullness, turn = jax.jit(graphene.fullness), jax.jit(graphene.placement_class)
troublesome = jax.jit(lambda t, w: graphene.troublesome(t, w, data_edges(t, w)))


def test_long_gangs_and_what_lies_between_them_are_troublesome() -> None:
    found = np.asarray(troublesome(BOOKS.t, BOOKS.w))[0]
    assert {name for name, is_so in zip(TASKS, found, strict=False) if is_so} == {"L1", "b", "L2"}


def test_how_full_a_device_gets() -> None:
    """Of ten cores: five of 2, five of 2, one of 6, and no more than the sixteen slots of 0.1."""
    np.testing.assert_allclose(fullness(BOOKS.t, BOOKS.w)[1, :4, 0], [1.0, 1.0, 0.6, 0.16], rtol=1e-5)


def test_gangs_that_leave_a_device_half_empty_are_troublesome() -> None:
    found = np.asarray(troublesome(BOOKS.t, BOOKS.w))[1]
    assert found[:4].tolist() == [False, True, False, True]  # the long one, and the narrow one


def test_what_they_need_comes_with_them_then_the_unrelated_then_what_follows() -> None:
    turns = dict(zip(TASKS, np.asarray(turn(BOOKS.t, BOOKS.w))[0].tolist(), strict=False))
    assert turns == {"a": 2, "L1": 2, "b": 2, "L2": 2, "e": 1, "f": 1, "d": 0}


def test_it_begins_with_what_leads_to_trouble() -> None:
    """`e` has the lower number; `a` leads to the long ones."""
    assert decision(Graphene(), BOOKS.observe(policy=Graphene()))[1] == list(TASKS).index("a")
