"""Sparrow: whom it asks, and who gets what."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.baselines import Sparrow, SparrowBatch, sparrow
from symphony.baselines.sparrow import PROBES
from symphony.problem.workload import Task, TaskGraph
from symphony.scheduling.policy import PLACE, WAIT, place
from tests.scheduling.by_hand import CPU0, CPU1, FPGA, GPU, Books, decision, dot, shared_books, work

probes, batch = jax.jit(sparrow.probes), jax.jit(sparrow.batch)  # as a whole: op by op, each would be a program


def bag(count: int, kernel: str = "any") -> TaskGraph:
    """Tasks that have nothing to do with one another."""
    return TaskGraph("bag", tuple(Task(f"t{n}", kernel) for n in range(count)))


def test_two_devices_are_probed_for_each_task_and_any_that_can_run_it_is_as_likely() -> None:
    books = Books(work(bag(256), bag(256, "cpu only")))
    observation = books.observe(policy=Sparrow())
    number = jnp.arange(256)
    any_device = np.asarray(probes(observation, jnp.uint32(7), number * 0, number))
    assert any_device.shape == (256, PROBES) and PROBES == 2
    drawn = Counter(any_device.ravel().tolist())
    for device in (CPU0, CPU1, GPU, FPGA):
        assert drawn[device] / 512 == pytest.approx(1 / 4, abs=0.06)
    cpus = np.asarray(probes(observation, jnp.uint32(7), number * 0 + 1, number))
    assert set(cpus.ravel().tolist()) == {CPU0, CPU1}
    again = np.asarray(probes(observation, jnp.uint32(7), number * 0, number))
    other = np.asarray(probes(observation, jnp.uint32(9), number * 0, number))
    assert (again == any_device).all() and (other != any_device).any()


def test_a_batch_is_all_that_was_probed_for_the_job() -> None:
    books = Books(work(bag(3), dot("any")))
    observation = books.observe(policy=Sparrow())
    mine = np.asarray(probes(observation, jnp.uint32(3), jnp.zeros(3, int), jnp.arange(3)))
    assert set(np.flatnonzero(batch(observation, jnp.uint32(3), jnp.asarray(0))).tolist()) == set(mine.ravel().tolist())
    alone = np.asarray(probes(observation, jnp.uint32(3), jnp.asarray([1]), jnp.asarray([0])))
    of_other = np.flatnonzero(batch(observation, jnp.uint32(3), jnp.asarray(books.tasks)))
    assert set(of_other.tolist()) == set(alone.ravel().tolist()) and len(of_other) <= PROBES


def test_batch_sampling_takes_the_least_loaded_of_the_sample() -> None:
    """With many tasks everything is probed; the GPU holds one worker in its slot, CPUs and FPGA have two each."""
    books = Books(work(bag(64)))
    assert decision(SparrowBatch(), books.observe(policy=SparrowBatch())) == (PLACE, 0, CPU0)
    for gang, device in enumerate((CPU0, CPU1, GPU)):
        assert books.decide(place(gang, device))
    assert decision(SparrowBatch(), books.observe(policy=SparrowBatch())) == (PLACE, 3, FPGA)
    few = shared_books(work(dot("any")))
    chosen = {decision(SparrowBatch(), few.observe(policy=SparrowBatch()), seed)[2] for seed in range(12)}
    assert len(chosen) > 1, "whom it asks is a matter of luck"


def test_with_late_binding_a_gang_waits_until_somebody_that_was_asked_is_idle() -> None:
    books = shared_books(work(*[dot("cpu only")] * 5, dot("any")))
    for gang, device in ((0, CPU0), (1, CPU0), (2, CPU1), (3, CPU1)):
        assert books.decide(place(gang, device))
        books.start(gang)
    chosen = [decision(Sparrow(), books.observe(policy=Sparrow()), seed) for seed in range(8)]
    # The oldest has to wait for a CPU; the next goes where it has asked, if that is the GPU or the FPGA.
    assert {gang for kind, gang, _ in chosen if kind == PLACE} == {5}
    assert {device for kind, _, device in chosen if kind == PLACE} <= {GPU, FPGA}
    assert WAIT in {kind for kind, _, _ in chosen}
    assert decision(SparrowBatch(), books.observe(policy=SparrowBatch()))[1] == 4  # binds at once


def test_if_all_that_were_asked_are_down_anybody_will_do() -> None:
    books = shared_books(work(dot("any")))
    for device in (CPU0, CPU1, FPGA):
        books.fail(device)
    assert {decision(Sparrow(), books.observe(policy=Sparrow()), seed)[1:] for seed in range(8)} == {(0, GPU)}
