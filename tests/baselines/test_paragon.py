"""Paragon: filling in what was not profiled, and placing by it."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from symphony.baselines import Paragon
from symphony.baselines.paragon import PROFILED_KINDS, classify, complete, profiled
from symphony.problem.topology import Device, DeviceKind, Hop, Resource, Topology
from symphony.problem.workload import Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.scheduling.policy import PLACE
from tests.baselines.test_packing import bags, server
from tests.scheduling.by_hand import Books, decision


def test_a_matrix_of_low_rank_is_recovered_from_few_entries() -> None:
    """Rank one and biases, 40 by 12, two fifths of it seen: what was not seen is found to a few per cent."""
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(40, 1)) @ rng.normal(size=(1, 12)) + rng.normal(size=(40, 1)) + rng.normal(size=12)
    known = rng.random(whole.shape) < 0.4
    found = np.asarray(jax.jit(complete)(jnp.asarray(whole, jnp.float32), jnp.asarray(known)))
    np.testing.assert_allclose(found[known], whole[known], rtol=1e-5)
    error = np.sqrt(((found - whole)[~known] ** 2).mean())
    means = np.where(known, whole, 0).sum(axis=0) / known.sum(axis=0)
    guess = np.sqrt(((means - whole)[~known] ** 2).mean())
    assert error < 0.25 * guess


def test_two_kinds_are_profiled_for_most_and_all_for_some() -> None:
    able = jnp.ones((12, 6), bool).at[5, 1:].set(False)
    counts = np.asarray(profiled(able)).sum(axis=1)
    assert counts[[0, 2, 4, 6, 8, 10]].tolist() == [6] * 6
    assert counts[5] == 1, "it runs on one kind only"
    assert set(counts[[1, 3, 7, 9, 11]].tolist()) == {PROFILED_KINDS}


def kinds(count: int) -> Topology:
    """A machine of each kind."""
    return Topology(
        "kinds",
        tuple(DeviceKind(f"p{n}", f"p{n}", slots=4) for n in range(count)),
        tuple(Resource(f"c{n}", "compute", 4.0, f"m{n}") for n in range(count)),
        tuple(Device(f"d{n}", f"p{n}", f"m{n}", "r", f"s{n}", f"w{n}", (Hop(f"c{n}"),)) for n in range(count)),
        (0.0,) * 7,
    )


def test_times_that_were_not_profiled_follow_from_similar_kernels() -> None:
    """All kernels scale alike over six kinds: then two profiles tell the other four."""
    speed = (1.0, 2.0, 4.0, 0.5, 8.0, 3.0)
    sizes = [1.0 + 0.7 * n for n in range(12)]
    kernels = tuple(
        Kernel(f"k{n}", {f"p{p}": Profile(size / s, demand={"compute": 1.0}) for p, s in enumerate(speed)})
        for n, size in enumerate(sizes)
    )
    graphs = tuple(TaskGraph(f"g{n}", (Task("t", f"k{n}"),)) for n in range(12))
    books = Books(Workload("alike", kernels, graphs, (Job(0, 0.0),)), kinds(6))
    classes = jax.jit(classify)(books.t, books.w)
    np.testing.assert_allclose(classes.seconds[:12, :6], np.outer(sizes, 1 / np.asarray(speed)), rtol=0.05)
    np.testing.assert_allclose(classes.causes[:12, :6, 0], 0.25, atol=0.01)
    exact = jax.jit(partial(classify, every_profile=True))(books.t, books.w)
    np.testing.assert_allclose(exact.seconds[:12, :6], np.outer(sizes, 1 / np.asarray(speed)), rtol=1e-5)


def test_it_shuns_disturbance_and_then_fits_tightly() -> None:
    """Tasks of 0.4 of the cores on two machines. With 0.8 on one they shun it; with 0.5 they fit there best."""
    books = Books(bags((4, 4, 1, 1.0)), server(10, 10, count=2))
    policy = Paragon()
    assert decision(policy, books.observe([0.8, 0.0, 0.1, 0.0], policy=policy)) == (PLACE, 0, 1)
    assert decision(policy, books.observe([0.1, 0.0, 0.5, 0.0], policy=policy)) == (PLACE, 0, 1)
    assert decision(policy, books.observe([0.5, 0.0, 0.1, 0.0], policy=policy)) == (PLACE, 0, 0)
    assert decision(policy, books.observe([0.9, 0.0, 0.8, 0.0], policy=policy)) == (PLACE, 0, 1)  # the lesser evil
