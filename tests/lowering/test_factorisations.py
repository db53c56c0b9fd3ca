"""The graphs are checked by doing the arithmetic: tasks run in any order that the edges allow."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from symphony.lowering.factorisations import ALGORITHMS, factorisation
from symphony.problem.errors import LimitError
from symphony.problem.topologies import topology
from symphony.problem.topology import DeviceKind
from symphony.problem.workload import TaskGraph

SIDE = 3


def graph_of(algorithm: str, tiles: int) -> TaskGraph:
    _, (graph,) = factorisation(
        np.random.default_rng(0), topology("machine"), algorithm=algorithm, tiles=tiles, tile=960
    )
    return graph


def split(name: str) -> tuple[str, list[int]]:
    match = re.fullmatch(r"(\w+)\(([\d,]+)\)", name)
    assert match
    return match[1], [int(number) for number in match[2].split(",")]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 16])
def test_task_counts_in_closed_form(n: int) -> None:
    pairs, triples, squares = n * (n - 1) // 2, n * (n - 1) * (n - 2) // 6, n * (n - 1) * (2 * n - 1) // 6
    expected = {
        "cholesky": {"potrf": n, "trsm": pairs, "syrk": pairs, "gemm": triples},
        "lu": {"getrf": n, "trsm": 2 * pairs, "gemm": squares},
        "qr": {"geqrt": n, "unmqr": pairs, "tsqrt": pairs, "tsmqr": squares},
    }
    for algorithm, counts in expected.items():
        graph = graph_of(algorithm, n)
        assert Counter(task.kernel for task in graph.tasks) == +Counter(counts)
        assert len(graph.tasks) == ALGORITHMS[algorithm][1](n)
    assert n not in (10, 16) or len(graph_of("cholesky", n).tasks) == {10: 220, 16: 816}[n]


def any_order(graph: TaskGraph, rng: np.random.Generator) -> list[str]:
    """A random order in which every task comes after those that it reads from."""
    left = {task.name: {e.source for e in graph.edges if e.target == task.name and e.source} for task in graph.tasks}
    order: list[str] = []
    while left:
        ready = [name for name, parents in left.items() if parents <= set(order)]
        order.append(ready[int(rng.integers(len(ready)))])
        del left[order[-1]]
    return order


def cholesky_step(a: dict, kernel: str, index: list[int]) -> None:
    match kernel, index:
        case "potrf", [k]:
            a[k, k] = np.linalg.cholesky(a[k, k])
        case "trsm", [i, k]:
            a[i, k] = a[i, k] @ np.linalg.inv(a[k, k]).T
        case "syrk", [i, k]:
            a[i, i] = a[i, i] - a[i, k] @ a[i, k].T
        case "gemm", [i, j, k]:
            a[i, j] = a[i, j] - a[i, k] @ a[j, k].T


def lu_step(a: dict, kernel: str, index: list[int]) -> None:
    match kernel, index:
        case "getrf", [k]:
            tile = a[k, k].copy()
            for c in range(SIDE):
                tile[c + 1 :, c] /= tile[c, c]
                tile[c + 1 :, c + 1 :] -= np.outer(tile[c + 1 :, c], tile[c, c + 1 :])
            a[k, k] = tile
        case "trsm", [i, j, k] if i == k:
            a[k, j] = np.linalg.inv(np.tril(a[k, k], -1) + np.eye(SIDE)) @ a[k, j]
        case "trsm", [i, _, k]:
            a[i, k] = a[i, k] @ np.linalg.inv(np.triu(a[k, k]))
        case "gemm", [i, j, k]:
            a[i, j] = a[i, j] - a[i, k] @ a[k, j]


def qr_step(a: dict, kernel: str, index: list[int]) -> None:
    match kernel, index:
        case "geqrt", [k]:
            a["Q", k, k], a[k, k] = np.linalg.qr(a[k, k])
        case "unmqr", [j, k]:
            a[k, j] = a["Q", k, k].T @ a[k, j]
        case "tsqrt", [i, k]:
            a["Q", i, k], r = np.linalg.qr(np.vstack([a[k, k], a[i, k]]), mode="complete")
            a[k, k], a[i, k] = r[:SIDE], r[SIDE:]
        case "tsmqr", [i, j, k]:
            both = a["Q", i, k].T @ np.vstack([a[k, j], a[i, j]])
            a[k, j], a[i, j] = both[:SIDE], both[SIDE:]


def assembled(a: dict, n: int, keep) -> np.ndarray:
    zero = np.zeros((SIDE, SIDE))
    return np.block([[a[i, j] if keep(i, j) else zero for j in range(n)] for i in range(n)])


@pytest.mark.parametrize("algorithm", ["cholesky", "lu", "qr"])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_that_the_edges_allow_factors_the_matrix(algorithm: str, seed: int) -> None:
    n, rng = 4, np.random.default_rng(seed)
    m = rng.normal(size=(n * SIDE, n * SIDE))
    matrix = m @ m.T + n * SIDE * np.eye(n * SIDE)
    a: dict = {
        (i, j): matrix[i * SIDE : (i + 1) * SIDE, j * SIDE : (j + 1) * SIDE].copy() for i in range(n) for j in range(n)
    }
    step = {"cholesky": cholesky_step, "lu": lu_step, "qr": qr_step}[algorithm]
    for name in any_order(graph_of(algorithm, n), rng):
        step(a, *split(name))
    if algorithm == "cholesky":
        low = np.tril(assembled(a, n, lambda i, j: i >= j))
        np.testing.assert_allclose(low @ low.T, matrix)
    elif algorithm == "lu":
        both = assembled(a, n, lambda i, j: True)
        np.testing.assert_allclose((np.tril(both, -1) + np.eye(n * SIDE)) @ np.triu(both), matrix)
    else:
        r = np.triu(assembled(a, n, lambda i, j: i <= j))
        np.testing.assert_allclose(r.T @ r, matrix.T @ matrix)


def accesses(algorithm: str, kernel: str, index: list[int]) -> tuple[set, set]:
    """Tiles read and written, from the definition of the kernels. V: the reflectors of a QR tile."""
    match algorithm, kernel, index:
        case _, "potrf" | "getrf", [k]:
            return {(k, k)}, {(k, k)}
        case "cholesky", "trsm", [i, k]:
            return {(k, k), (i, k)}, {(i, k)}
        case _, "syrk", [i, k]:
            return {(i, k), (i, i)}, {(i, i)}
        case "cholesky", "gemm", [i, j, k]:
            return {(i, k), (j, k), (i, j)}, {(i, j)}
        case "lu", "trsm", [i, j, k]:
            return {(k, k), (i, j)}, {(i, j)}
        case "lu", "gemm", [i, j, k]:
            return {(i, k), (k, j), (i, j)}, {(i, j)}
        case _, "geqrt", [k]:
            return {(k, k)}, {(k, k), ("V", k, k)}
        case _, "unmqr", [j, k]:
            return {("V", k, k), (k, j)}, {(k, j)}
        case _, "tsqrt", [i, k]:
            return {(k, k), (i, k)}, {(k, k), ("V", i, k)}
        case _, "tsmqr", [i, j, k]:
            return {("V", i, k), (k, j), (i, j)}, {(k, j), (i, j)}
    raise AssertionError(kernel)


def closure(count: int, pairs: set[tuple[int, int]]) -> np.ndarray:
    reach = np.zeros((count, count), dtype=bool)
    for source, target in pairs:
        reach[source, target] = True
    for middle in range(count):
        reach |= np.outer(reach[:, middle], reach[middle])
    return reach


@pytest.mark.parametrize("algorithm", ["cholesky", "lu", "qr"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_partial_order_is_that_of_conflicting_accesses(algorithm: str, n: int) -> None:
    """Two calls of the sequential order conflict if one writes what the other reads or writes."""
    graph = graph_of(algorithm, n)
    touched = [accesses(algorithm, *split(task.name)) for task in graph.tasks]
    conflicts = {
        (i, j)
        for j, (reads, writes) in enumerate(touched)
        for i, (reads_before, writes_before) in enumerate(touched[:j])
        if writes_before & (reads | writes) or reads_before & writes
    }
    number = {task.name: index for index, task in enumerate(graph.tasks)}
    edges = {(number[edge.source], number[edge.target]) for edge in graph.edges if edge.source}
    count = len(graph.tasks)
    np.testing.assert_array_equal(closure(count, edges), closure(count, conflicts))


@pytest.mark.parametrize(("algorithm", "tiles"), [("cholesky", 5 * 6 // 2), ("lu", 25), ("qr", 25)])
def test_every_tile_of_the_matrix_comes_once_from_the_home_machine(algorithm: str, tiles: int) -> None:
    external = [edge for edge in graph_of(algorithm, 5).edges if edge.source is None]
    assert len(external) == tiles
    assert {edge.bytes for edge in external} == {960.0 * 960 * 8}


def test_products_gain_much_from_a_gpu_and_panels_little() -> None:
    kernels, _ = factorisation(np.random.default_rng(0), topology("machine"), algorithm="cholesky", tiles=4, tile=960)
    gain = {}
    for kernel in kernels:
        xeon, v100 = (kernel.on(DeviceKind(kind, "?")) for kind in ("xeon", "v100"))
        assert xeon and v100
        gain[kernel.name] = xeon.seconds(1.0) / v100.seconds(1.0)
        assert kernel.work(0.5) == 0.125
    assert gain["gemm"] > 80 > gain["syrk"] > gain["trsm"] > 20
    assert gain["potrf"] < 10


def test_too_many_tiles_are_refused_before_they_are_made() -> None:
    with pytest.raises(LimitError, match="tasks"):
        graph_of("lu", 10_000)
