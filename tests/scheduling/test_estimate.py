"""Estimated finish times: by hand, and against what the simulator then measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.problem.workload import Job, Workload
from symphony.scheduling import estimate
from symphony.scheduling.policy import Observation, Policy, pick_gang, place, reconfigure
from symphony.simulator.run import record, run_traces
from symphony.simulator.scenarios import CALM, Phase, Scenario, draw, stack
from tests.scheduling.by_hand import (
    CPU0,
    CPU1,
    FPGA,
    GB,
    GPU,
    KERNELS,
    Books,
    chain,
    cluster,
    dot,
    pair,
    shared_books,
    work,
)
from tests.simulator.scripted import script, scripted_device

RACK_SPAN = 4
A_MEMORY, A_NIC, GPU_LINK, FPGA_LINK, B_NIC = range(5)  # rows of the cluster


# As a whole: every operation by itself would be a program.
exchange_s, fetch_s, setup_s = jax.jit(estimate.exchange_s), jax.jit(estimate.fetch_s), jax.jit(estimate.setup_s)
slowdown, span_bandwidth = jax.jit(estimate.slowdown), jax.jit(estimate.span_bandwidth)
row_slowdown, queue_s, estimate_parts = map(jax.jit, (estimate.row_slowdown, estimate.queue_s, estimate.estimate_parts))


def finish(
    books: Books, gang: int, background: Sequence[float] | None = None, own: Sequence[float] = ()
) -> list[float]:
    """The estimate for each of the four devices."""
    observation = books.observe(own, true_background=background)
    return estimate_parts(observation, jnp.asarray(gang), observation.true_background).finish.tolist()[:4]


def test_an_idle_cluster_takes_the_isolated_time_and_the_set_up() -> None:
    books = shared_books(work(dot("any")))
    assert finish(books, 0) == [4.0, 4.0, 1.0, 0.5 + 0.5]
    assert books.decide(reconfigure(FPGA, 0))
    assert finish(books, 0)[FPGA] == 1.0  # not ready yet
    books.setup_ended(5)
    assert finish(books, 0)[FPGA] == 0.5


def test_queues_come_first() -> None:
    books = shared_books(work(dot("any"), dot("any"), dot("any")))
    assert books.decide(place(0, GPU))
    books.start(0)
    books.pass_time(0.25)
    assert books.decide(place(1, GPU))
    assert finish(books, 2)[GPU] == pytest.approx(0.75 + 1.0 + 1.0)


def test_inputs_are_fetched_while_others_run() -> None:
    """1 GB over the slower NIC (1 GB/s) to the other machine; on the home machine it lies there already."""
    books = shared_books(work(chain(), dot("any")))
    observation = books.observe()
    bandwidth = span_bandwidth(observation, None)
    assert bandwidth[:4, RACK_SPAN].tolist() == [1 * GB, 1 * GB, 2 * GB, 2 * GB]
    assert fetch_s(observation, jnp.asarray(0), bandwidth).tolist()[:4] == pytest.approx([0.0, 0.0, 1.0, 1.0])
    assert finish(books, 0) == pytest.approx([4.0, 4.0, 1.0 + 1.0, 1.0 + 0.5 + 0.5])
    assert books.decide(place(books.tasks, GPU))
    books.start(books.tasks)
    assert finish(books, 0)[GPU] == pytest.approx(1.0 + 1.0)  # a second in the queue, the same second in transfer


def test_what_waits_for_the_fetch_engine_comes_first() -> None:
    """1 GB is on its way to the GPU, and another would wait its turn there; nothing is on its way to the FPGA."""
    books = shared_books(work(chain(), replace(chain(), name="other")))
    assert books.decide(place(0, GPU))
    assert finish(books, books.tasks) == pytest.approx([4.0, 4.0, 1.0 + 1.0 + 1.0, 1.0 + 0.5 + 0.5])
    books.fetched(0)
    assert finish(books, books.tasks)[GPU] == pytest.approx(1.0 + 1.0)  # a second in the queue, the same in transfer


def test_every_transfer_has_its_latency() -> None:
    far = replace(cluster(), latency_s=(0.0, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0))
    assert finish(Books(work(chain()), far), 0) == pytest.approx([4.0, 4.0, 0.25 + 1.0 + 1.0, 0.25 + 1.0 + 1.0])


def test_the_nearest_copy_counts() -> None:
    books = shared_books(work(chain(first="cpu only")))
    assert books.decide(place(0, CPU0))
    books.fetched(0)
    books.start(0)
    books.finish(0)
    assert finish(books, 1) == pytest.approx([4.0, 4.0, 2.0, 2.0])
    books.copied(0, GPU)  # a copy at the GPU, which is behind the FPGA's switch: 2 GB/s over the FPGA's link
    assert finish(books, 1) == pytest.approx([4.0, 4.0, 1.0, 0.5 + 0.5 + 0.5])


def test_load_slows_what_asks_for_a_row_and_nothing_else() -> None:
    """ "cpu only" asks for 0.6 of the memory channels. With 0.3 of ours and 0.5 of others there, the load is 1.4."""
    books = shared_books(work(dot("cpu only"), dot("any")))
    observation = books.observe([0.3])
    background = jnp.zeros(books.t.capacity.shape[0]).at[A_MEMORY].set(0.5)
    assert slowdown(observation, jnp.asarray(0), background).mean.tolist()[:4] == pytest.approx([1.4, 1.4, 1.0, 1.0])
    assert slowdown(observation, jnp.asarray(1), background).mean.tolist()[:4] == [1.0] * 4  # it demands nothing
    assert slowdown(observation, jnp.asarray(0), background * 0).mean.tolist()[:1] == [1.0]  # 0.9 is within capacity
    assert finish(books, 0, [0.5], own=[0.3])[:2] == pytest.approx([2.0 * 1.4] * 2)
    assert finish(books, 0, own=[0.3])[:2] == [2.0, 2.0]  # without a belief, contention is ignored


def rows(books: Books, memory: float) -> jax.Array:
    """A value for the memory channels of the first machine, 0 for all other rows."""
    return jnp.zeros(books.t.capacity.shape[0]).at[A_MEMORY].set(memory)


def test_the_expected_slow_down_of_a_row_is_that_of_sampled_loads() -> None:
    mean, std = jnp.meshgrid(jnp.array([0.0, 0.5, 0.9, 1.0, 1.1, 1.5, 3.0]), jnp.array([0.05, 0.2, 0.6, 1.5]))
    sampled = np.random.default_rng(0).standard_normal((400_000, 1, 1)) * np.asarray(std) + np.asarray(mean)
    sampled = np.maximum(sampled, 1)
    found = row_slowdown(mean, std)
    np.testing.assert_allclose(found.mean, sampled.mean(axis=0), atol=0.01)
    np.testing.assert_allclose(found.std, sampled.std(axis=0), atol=0.01)


def test_a_load_that_is_known_slows_down_by_itself() -> None:
    load = jnp.array([0.0, 0.3, 1.0, 1.0000001, 1.7, 123.4])
    found = row_slowdown(load, jnp.zeros(load.shape))
    assert found.mean.tolist() == jnp.maximum(load, 1).tolist()
    assert found.std.tolist() == [0.0] * 6
    nearly = row_slowdown(load, jnp.full(load.shape, 1e-6))
    np.testing.assert_allclose(nearly.mean, found.mean, rtol=1e-5)
    np.testing.assert_allclose(nearly.std, 0, atol=1e-5)
    slope = jax.grad(lambda x: (row_slowdown(x, 0 * x).mean + row_slowdown(x, 0 * x).std).sum())(load)
    assert slope.tolist() == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0, 1.0])


def test_an_uncertain_load_slows_down_even_if_its_mean_does_not() -> None:
    """0.6 asked for, 0.4 ± 0.5 by others: 1 + 0.5 φ(0) in the mean."""
    books = shared_books(work(dot("cpu only"), dot("any")))
    observation, mean, std = books.observe(), rows(books, 0.4), rows(books, 0.5)
    found = slowdown(observation, jnp.asarray(0), mean, std)
    assert found.mean.tolist()[:4] == pytest.approx([1 + 0.5 * 0.39894] * 2 + [1.0, 1.0], rel=1e-4)
    assert found.std.tolist()[:4] == pytest.approx([0.5 * np.sqrt(0.5 - 0.39894**2)] * 2 + [0.0, 0.0], rel=1e-4)
    assert slowdown(observation, jnp.asarray(0), mean).mean.tolist()[:4] == [1.0] * 4
    parts = estimate_parts(observation, jnp.asarray(0), mean, std)
    np.testing.assert_allclose(parts.finish[:2], 2 * found.mean[:2], rtol=1e-6)
    np.testing.assert_allclose(parts.std[:2], 2 * found.std[:2], rtol=1e-6)


def busy_cpu() -> tuple[Books, Observation]:
    """CPU0 has run two "cpu only" for half a second; both its slots are taken, and a third and "any" wait there."""
    wide = replace(cluster(), kinds=tuple(replace(kind, memory=1e12) for kind in cluster().kinds))
    books = Books(work(*[dot("cpu only")] * 3, dot("any"), dot("any")), wide)
    for gang in range(4):
        assert books.decide(place(gang * books.tasks, CPU0))
        if gang < 2:
            books.start(gang * books.tasks)
    books.pass_time(0.5)
    return books, books.observe([1.2])


def test_queues_are_slowed_like_runs() -> None:
    """1.2 of ours and 0.3 of others: 2 s take 3, of which 0.5 have passed; so do the 2 s and the 4 s in the queue."""
    books, observation = busy_cpu()
    calm, slowed = queue_s(observation, rows(books, -0.2)), queue_s(observation, rows(books, 0.3))
    assert calm.mean.tolist()[:4] == pytest.approx([(1.5 + 1.5 + 2 + 4) / 2, 0, 0, 0])
    assert calm.mean.tolist() == pytest.approx(observation.queue_s.tolist())
    assert slowed.mean.tolist()[:4] == pytest.approx([(2.5 + 2.5 + 3 + 6) / 2, 0, 0, 0])
    assert slowed.std.tolist()[:4] == [0.0] * 4


def test_deviations_of_queue_and_run_add_up() -> None:
    """Far above capacity the slow-down deviates as much as the load: by 0.1 for each isolated second."""
    books, observation = busy_cpu()
    gang, mean, std = jnp.asarray(2 * books.tasks), rows(books, 2.0), rows(books, 0.1)
    queue = queue_s(observation, mean, std)
    assert queue.std.tolist()[:4] == pytest.approx([0.1 * (2 + 2 + 2 + 4) / 2, 0, 0, 0], rel=1e-4)
    parts = estimate_parts(observation, gang, mean, std)
    assert parts.std.tolist()[:2] == pytest.approx([0.1 * (5 + 2), 0.1 * 2], rel=1e-4)
    drawn = 2.0 + 0.1 * np.random.default_rng(1).standard_normal(400)
    each = jax.vmap(lambda load: estimate.estimate_parts(observation, gang, rows(books, load)).finish)
    sampled = jax.jit(each)(jnp.asarray(drawn, jnp.float32))
    np.testing.assert_allclose(parts.finish[:2], np.mean(sampled, axis=0)[:2], rtol=0.01)
    np.testing.assert_allclose(parts.std[:2], np.std(sampled, axis=0)[:2], rtol=0.1)


def test_what_others_lose_is_part_of_the_cost() -> None:
    """0.9 of ours run on the memory channels. 0.6 more make 1.5 of it: for 3 s, 0.9 · 0.5 of a second each."""
    books = shared_books(work(dot("cpu only"), dot("any")))
    observation = books.observe([0.9])
    parts = estimate_parts(observation, jnp.asarray(0), rows(books, 0.0))
    assert parts.harm.tolist()[:4] == pytest.approx([3.0 * 0.9 * 0.5] * 2 + [0.0, 0.0])
    assert parts.cost.tolist()[:4] == pytest.approx([3.0 + 1.35] * 2 + [np.inf] * 2)
    assert estimate_parts(observation, jnp.asarray(1), rows(books, 0.0)).harm.tolist()[:4] == [0.0] * 4
    assert estimate_parts(observation, jnp.asarray(0)).cost.tolist()[:2] == [2.0, 2.0]  # contention is ignored


def test_transfers_get_their_share_of_a_busy_row() -> None:
    books = shared_books(work(chain()))
    assert finish(books, 0, [0.0] * 5)[GPU] == pytest.approx(2.0)
    assert finish(books, 0, [0.0, 1.5])[GPU] == pytest.approx(1.0 * 2.5 + 1.0)
    assert finish(books, 0, [0.0, 1.0], own=[0.0, 0.5])[GPU] == pytest.approx(1.0 * 2.5 + 1.0)


def test_exchange_is_with_the_first_worker() -> None:
    """8 units of 0.5 GB. To the other machine: 1 GB/s. Between the CPUs, which share a memory: nothing."""
    books = shared_books(work(pair()))
    observation = books.observe()
    assert exchange_s(observation, jnp.asarray(0), span_bandwidth(observation, None)).tolist()[:4] == [0.0] * 4
    assert finish(books, 0) == [8.0, 8.0, 2.0, np.inf]
    assert books.decide(place(0, CPU0))
    assert finish(books, 0)[CPU1:] == pytest.approx([8.0, 2.0 + 4.0, np.inf])


def test_where_a_gang_could_start_at_once_only_free_contexts_count() -> None:
    """The context that is configured for it is busy; the free one would be reconfigured."""
    books = shared_books(work(dot("any"), dot("any")))
    assert books.decide(place(0, FPGA))
    books.start(0)
    assert setup_s(books.observe(), jnp.asarray(1)).tolist()[:4] == [0.0, 0.0, 0.0, 0.5]


# -------------------------------------------------------------------- against the simulator


class Foretells(Policy):
    """Places each worker where it is told to, and writes down when it thinks that the gang will be done."""

    devices: jax.Array  # i32[jobs, gangs, workers]
    cheats: ClassVar[bool] = True

    def init(self, topology: Any) -> jax.Array:
        return jnp.zeros((3, *self.devices.shape[:2]))

    def decide(self, key: Any, state: jax.Array, observation: Observation) -> Any:
        gang = pick_gang(observation)
        device = scripted_device(self.devices, observation, gang)
        tasks = observation.workload.kernel.shape[1]
        job, index = observation.core.job[gang // tasks], gang % tasks
        beliefs = (None, observation.background, observation.true_background)
        estimates = jnp.stack([estimate.estimate_parts(observation, gang, belief).finish[device] for belief in beliefs])
        return state.at[:, job, index].set(observation.now.total + estimates), place(gang, device)


# Each job: its graph, and where the workers of its gangs go. The slower device is placed last, as the estimate is for
# the worker placed last. All alone: jobs come 100 s apart.
PLAN = [
    (dot("any"), [[CPU1]]),
    (dot("any"), [[GPU]]),
    (dot("any"), [[FPGA]]),  # with set-up
    (dot("any"), [[FPGA]]),  # without
    (dot("cpu only", units=3.0), [[CPU0]]),
    (chain(), [[GPU], [CPU1]]),
    (chain(), [[FPGA], [GPU]]),
    (chain(), [[CPU0], [FPGA]]),
    (pair(), [[CPU0, CPU1]]),
    (pair(), [[GPU, CPU0]]),
    (pair(units=5.0), [[GPU, CPU1]]),
]


@pytest.fixture(scope="module")
def foretold() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For a calm cluster and one with tenants: what was foretold [3, stays], and what came to pass [stays]."""
    graphs = tuple(replace(graph, name=f"{graph.name}-{n}") for n, (graph, _) in enumerate(PLAN))
    jobs = tuple(Job(n, 100.0 * (n + 1)) for n in range(len(PLAN)))
    drawn = draw(
        cluster(), Workload("plan", KERNELS, graphs, jobs), 0, replace(CALM, window_s=7.0, belief="exact"), job_slots=1
    )
    calm, busy = (replace(drawn, phases=(Phase(50.0, "a", load),)) for load in ({}, {"memory": 0.7}))
    policy = Foretells(script([gangs for _, gangs in PLAN], gangs=2, workers=2))

    def run(scenario: Scenario) -> tuple[np.ndarray, np.ndarray]:
        (trace,), _ = run_traces(stack([scenario]), [scenario], policy)
        stays = record(scenario, trace, "foretells", 0.0).gangs
        said = np.asarray(trace.carry.policy_state)
        return np.stack([said[:, s.job, s.gang] for s in stays], axis=1), np.asarray([s.finish_s for s in stays])

    return {"calm": run(calm), "busy": run(busy)}


def test_a_lone_gang_finishes_when_it_was_foretold(foretold: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    said, measured = foretold["calm"]
    assert said.shape[1] == sum(len(gangs) for _, gangs in PLAN)
    for belief in said:
        np.testing.assert_allclose(belief % 100, measured % 100, rtol=1e-4)


def test_with_tenants_it_does_if_they_are_known(foretold: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Policies are shown the true loads, which are steady."""
    said, measured = foretold["busy"]
    ignorant, believed, knowing = said
    np.testing.assert_allclose(knowing % 100, measured % 100, rtol=1e-4)
    np.testing.assert_allclose(believed % 100, measured % 100, rtol=1e-4)
    late = (measured - ignorant)[4]  # the one that asks for memory: 3 units of 2 s, at load 0.6 + 0.7
    assert late == pytest.approx(6.0 * 0.3, rel=1e-3)


def test_fetching_many_inputs_adds_up() -> None:
    """Four at most are looked at, the largest: see `fan`."""
    books = shared_books(work(chain(size=2 * GB)))
    observation = books.observe()
    seconds = fetch_s(observation, jnp.asarray(0), span_bandwidth(observation, None))
    assert seconds.tolist()[:4] == pytest.approx([0.0, 0.0, 2.0, 2.0])
