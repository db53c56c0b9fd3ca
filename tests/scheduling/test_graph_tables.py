"""Tables over graphs, and the rule that keeps slow devices from taking what fast ones are about to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from symphony.scheduling import graph_tables, policy
from symphony.scheduling.policy import place
from tests.scheduling.by_hand import CPU0, GPU, Books, chain, dot, work

# As a whole: every operation by itself would be a program.
gang_seconds, links, device_mean = (
    jax.jit(graph_tables.gang_seconds),
    jax.jit(graph_tables.data_edges),
    jax.jit(graph_tables.device_mean),
)
of_kinds, seconds_now, worth_it = (
    jax.jit(graph_tables.count_by_kind),
    jax.jit(graph_tables.seconds_now),
    jax.jit(graph_tables.worthwhile_kinds),
)
devices_by_kind, pick_gang = jax.jit(graph_tables.devices_by_kind), jax.jit(policy.pick_gang)


def test_edges_join_gangs_and_leave_out_what_comes_from_home() -> None:
    """Data of 1 GB over the median of the memory, the links and the NICs: 10, 1, 4, 2 and 2 GB/s."""
    books = Books(work(chain(), dot("any")))
    edges = links(books.t, books.w)
    tasks = books.tasks
    joined = np.asarray(edges.source[0]) < tasks
    assert np.asarray(edges.source[0])[joined].tolist() == [0]
    assert np.asarray(edges.target[0])[joined].tolist() == [1]
    np.testing.assert_allclose(np.asarray(edges.seconds[0])[joined], [0.5], rtol=1e-6)
    assert (np.asarray(edges.source[1]) == tasks).all(), "a graph of one task has no edge"


def test_means_weigh_kinds_by_their_number_of_devices() -> None:
    books = Books(work(dot("any"), dot("cpu only")))
    assert devices_by_kind(books.t)[:3].tolist() == [2, 1, 1]
    seconds = gang_seconds(books.t, books.w)
    assert seconds[0, 0, :3].tolist() == [4.0, 1.0, 0.5]
    assert seconds[1, 0, :3].tolist() == [2.0, np.inf, np.inf]
    mean = device_mean(books.t, seconds, jnp.isfinite(seconds))
    np.testing.assert_allclose(mean[:, 0], [(2 * 4.0 + 1.0 + 0.5) / 4, 2.0])


def test_a_slow_kind_is_worth_it_once_the_fast_one_has_enough_to_do() -> None:
    """An FPGA of two contexts takes 0.5 s, a GPU 1 s, a CPU 4 s."""
    few = Books(work(*[dot("any")] * 2)).observe()
    worth = worth_it(few, gang_seconds(few.topology, few.workload))
    assert worth[0, 0, :3].tolist() == [False, True, True]  # 1 s: as soon as the FPGA has done both
    many = Books(work(*[dot("any")] * 14)).observe()
    worth = worth_it(many, gang_seconds(many.topology, many.workload))
    assert worth[0, 0, :3].tolist() == [True, True, True]  # 14 of 0.5 s in two contexts: 3.5 s before it, and its own


def test_a_kind_with_no_device_up_counts_for_nothing() -> None:
    books = Books(work(*[dot("any")] * 2))
    books.fail(GPU)
    books.fail(GPU + 1)
    observation = books.observe()
    assert of_kinds(observation, observation.core.up)[:3].tolist() == [2, 0, 0]
    seconds = seconds_now(observation, gang_seconds(books.t, books.w))
    assert seconds[0, 0, :3].tolist() == [4.0, np.inf, np.inf]
    assert worth_it(observation, seconds)[0, 0, :3].tolist() == [True, False, False]


def test_picking_among_some_keeps_to_priority_then_score_then_age() -> None:
    books = Books(work(*[dot("any")] * 4, priorities=(9, 0, 0, 0)))
    observation, all_but = books.observe(), jnp.arange(4) != 0
    score = jnp.asarray([0.0, 1.0, 2.0, 2.0])
    assert int(pick_gang(observation, score, all_but | True)) == 0  # priority
    assert int(pick_gang(observation, score, all_but)) == 2  # score, then the oldest
    assert int(pick_gang(observation, among=all_but)) == 1
    assert int(pick_gang(observation, among=jnp.zeros(4, bool))) == -1
    assert books.decide(place(1, CPU0))
    assert int(pick_gang(books.observe(), among=jnp.arange(4) == 1)) == -1  # placed: no candidate any more
