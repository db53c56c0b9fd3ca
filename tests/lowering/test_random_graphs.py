from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.lowering.random_graphs import SHAPES, fork_join, layered, random_graphs, series_parallel
from symphony.problem.errors import LimitError
from symphony.problem.topologies import topology
from tests.lowering.small import cluster

PAPER = topology("paper")
seeds = st.integers(0, 2**32 - 1)
tasks = st.integers(1, 60)
degrees = st.integers(1, 6)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@settings(max_examples=60, deadline=None)
@given(shape=st.sampled_from(sorted(SHAPES)), seed=seeds, n=tasks, degree=degrees)
def test_edges_go_forward_once_and_within_the_degree(shape: str, seed: int, n: int, degree: int) -> None:
    edges = SHAPES[shape](rng(seed), n, degree)
    assert len(set(edges)) == len(edges)
    assert all(0 <= source < target < n for source, target in edges)
    assert max(Counter(target for _, target in edges).values(), default=0) <= degree
    if shape != "layered":  # where a task may be read by many, or by none
        assert n == 1 or {end for edge in edges for end in edge} == set(range(n))
        assert max(Counter(source for source, _ in edges).values(), default=0) <= degree


@settings(max_examples=60, deadline=None)
@given(seed=seeds, n=tasks, degree=degrees)
def test_series_parallel_graphs_reduce_to_an_edge(seed: int, n: int, degree: int) -> None:
    """The definition: joining edges in series and merging parallel ones leaves source to sink."""
    edges = set(series_parallel(rng(seed), n, degree))
    reduced = True
    while reduced:
        reduced = False
        into, out = Counter(t for _, t in edges), Counter(s for s, _ in edges)
        for middle in range(n):
            if into[middle] == out[middle] == 1:
                (source,) = (s for s, t in edges if t == middle)
                (target,) = (t for s, t in edges if s == middle)
                edges = (edges - {(source, middle), (middle, target)}) | {(source, target)}
                reduced = True
                break
    assert edges == ({(0, n - 1)} if n > 1 else set())


@settings(max_examples=40, deadline=None)
@given(seed=seeds, n=tasks, degree=degrees)
def test_forks_join(seed: int, n: int, degree: int) -> None:
    """Every task either is a branch (one in, one out) or one where all paths meet."""
    edges = fork_join(rng(seed), n, degree)
    into, out = Counter(t for _, t in edges), Counter(s for s, _ in edges)
    assert [task for task in range(n) if not into[task]] == [0]
    assert [task for task in range(n) if not out[task]] == [n - 1]
    meets = [t for t in range(n) if not any(s < t < u for s, u in edges)]
    assert all(into[task] == out[task] == 1 for task in set(range(n)) - set(meets))
    assert n < 4 or degree < 2 or len(meets) < n


def test_layers_read_only_from_the_layer_before() -> None:
    edges = layered(rng(1), 40, 3)
    depth = [0] * 40
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        depth[target] = max(depth[target], depth[source] + 1)
    assert all(depth[target] == depth[source] + 1 for source, target in edges)
    assert max(depth) == round(40**0.5) - 1


def draw(where=PAPER, seed: int = 0, **options):
    defaults = {
        "shape": "layered",
        "graphs": 3,
        "tasks": 16,
        "degree": 4,
        "ccr": 0.5,
        "heterogeneity": 1.0,
        "kernels": 12,
    }
    return random_graphs(rng(seed), where, **(defaults | options))


def test_ccr_is_transfer_time_over_compute_time() -> None:
    """On a cluster whose every transfer goes through 10 GB/s NICs."""
    t = cluster({"cpu": 3, "gpu": 3}, nic=10e9)
    for ccr in (0.0, 0.5, 4.0):
        kernels, graphs = draw(t, ccr=ccr)
        best = {k.name: min(p.seconds(1.0) for p in k.implementations.values()) for k in kernels}
        for graph in graphs:
            transfer = sum(edge.bytes for edge in graph.edges) / 10e9
            compute = sum(best[task.kernel] * task.size for task in graph.tasks)
            assert transfer == pytest.approx(ccr * compute)


def test_heterogeneity_is_the_spread_of_times_across_kinds() -> None:
    t = cluster({"cpu": 1, "gpu": 1, "fpga": 1})

    def spread(heterogeneity: float) -> float:
        kernels, _ = draw(t, heterogeneity=heterogeneity, kernels=300)
        full = [k for k in kernels if len(k.implementations) == 3]
        logs = np.log([[p.seconds(1.0) for p in k.implementations.values()] for k in full])
        return float(np.sqrt(logs.var(axis=1, ddof=1).mean()))

    assert spread(0.0) == pytest.approx(0.0, abs=1e-12)
    assert spread(0.8) == pytest.approx(0.8, rel=0.15)


def test_speeds_are_unrelated() -> None:
    """No kind is the fastest for all kernels."""
    kernels, _ = draw(cluster({"cpu": 1, "gpu": 1, "fpga": 1}), kernels=60)
    best = {min(k.implementations, key=lambda kind: k.implementations[kind].seconds(1.0)) for k in kernels}
    assert best == {"cpu", "gpu", "fpga"}


def test_some_kernels_lack_a_device_type_but_none_lacks_all() -> None:
    kernels, _ = draw(kernels=200)
    types = [{PAPER.kind_of[kind].type for kind in kernel.implementations} for kernel in kernels]
    assert all(types)
    missing = np.mean([len(found) < 3 for found in types])
    assert 0.1 < missing < 0.5


def test_an_entry_reads_from_the_home_machine() -> None:
    _, graphs = draw(shape="fork-join")
    for graph in graphs:
        assert [edge.target for edge in graph.edges if edge.source is None] == ["t0"]


def test_sizes_are_refused_before_they_are_built() -> None:
    with pytest.raises(LimitError, match="tasks"):
        draw(tasks=10**7)
    with pytest.raises(LimitError, match="all graphs"):
        draw(tasks=16_384, graphs=4_096)
