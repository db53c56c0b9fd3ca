"""What depends on what: by hand, and against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.belief_gradients.dependence import ParentLists, bayes_ball, separating


def test_bayes_ball_by_hand() -> None:
    chain, fork, collider = ((), (0,), (1,)), ((), (0,), (0,)), ((), (), (0, 1), (2,))
    assert bayes_ball(chain, [2], []).linked == {0, 1, 2}
    assert bayes_ball(chain, [2], [1]) == ({2}, {2})
    assert bayes_ball(chain, [0], []).tables == {0}  # what comes after does not matter
    assert bayes_ball(chain, [0], [2]).tables == {0, 1, 2}  # unless it is known
    assert bayes_ball(fork, [1], []) == ({0, 1}, {0, 1, 2})
    assert bayes_ball(fork, [1], [0]) == ({1}, {1})
    assert bayes_ball(collider, [0], []) == ({0}, {0, 2, 3})
    assert bayes_ball(collider, [0], [2]) == ({0, 1, 2}, {0, 1})
    assert bayes_ball(collider, [0], [3]) == ({0, 1, 2, 3}, {0, 1, 2})
    assert bayes_ball(chain, [1], [1]) == (frozenset(), frozenset())


def some_graph(rng: np.random.Generator, count: int) -> ParentLists:
    return tuple(tuple(u for u in range(v) if rng.random() < 0.4) for v in range(count))


@pytest.mark.parametrize("seed", range(30))
def test_bayes_ball_against_brute_force_independence(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = some_graph(rng, 6)
    joint = np.ones((2,) * 6)
    for v, parents in enumerate(graph):
        table = rng.uniform(0.1, 0.9, (2,) * len(parents))
        table = np.stack([table, 1 - table], axis=-1)
        shape = [2 if u in (*parents, v) else 1 for u in range(6)]
        joint = joint * table.reshape(shape)  # parents are in order, and all before v
    asked, *others = rng.permutation(6).tolist()
    known = others[: rng.integers(0, 4)]
    linked = bayes_ball(graph, [asked], known).linked
    for other in set(others) - set(known):
        rest = tuple(v for v in range(6) if v not in (asked, other, *known))
        table = joint.sum(rest, keepdims=True)
        product = table.sum(asked, keepdims=True) * table.sum(other, keepdims=True)
        whole = table.sum((asked, other), keepdims=True)
        dependent = np.abs(table / whole - product / whole**2).max() > 1e-9
        assert dependent == (other in linked), (graph, asked, other, known)


def test_what_makes_parents_independent() -> None:
    plate = ((), (0,), (0,), (1, 2), (1,), (3,))
    assert separating(plate, (1, 2), ()) == {0}
    assert separating(plate, (1, 2), (0,)) == frozenset()
    assert separating(((), (), (0, 1)), (0, 1), ()) == frozenset()
    assert separating(((), (0,), (0, 1)), (0, 1), ()) == {0}  # one is the other's parent
