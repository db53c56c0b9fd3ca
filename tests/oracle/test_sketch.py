"""The sketch: what the simulator does where nothing is left out, and close to it where transfers share a row."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.oracle.instance import Instance, instance
from symphony.oracle.replay import linear_order, shared_plan
from symphony.oracle.sketch import Sketch, classes
from symphony.problem.workload import Edge
from tests.oracle.small import replayed, scenario
from tests.oracle.test_bounds import made


def finishes(i: Instance, order: np.ndarray, devices: np.ndarray) -> np.ndarray:
    """Of a plan, in the sketch."""
    return Sketch(i)(order[None], devices[None])[2][0]


@pytest.mark.parametrize("seed", range(8))
def test_without_transfers_it_is_the_simulator(seed: int) -> None:
    i, rng = instance(scenario(seed)), np.random.default_rng(seed)
    rank, devices = linear_order(i, rng.random(6)), rng.integers(3, size=6)
    run = replayed(i, shared_plan(devices[:, None], rank))
    expected = {stay.gang: stay.finish_s for stay in run.gangs}
    assert finishes(i, np.argsort(rank), devices) == pytest.approx([expected[g] for g in range(6)], rel=1e-5)


def test_inputs_come_one_after_the_other_over_a_bus_and_what_is_there_is_not_fetched_again() -> None:
    """3 GB cross at 1 GB/s, once for the two that read them; 2 GB for the third come after them."""
    edges = (Edge("t0", "t2", 3e9), Edge("t0", "t3", 3e9), Edge("t1", "t4", 2e9))
    i = made([(2.0, 9.0), (1.0, 9.0), (9.0, 0.1), (9.0, 0.1), (9.0, 0.1)], edges, bus=True)
    devices = np.asarray([0, 0, 1, 1, 1])
    assert finishes(i, np.arange(5), devices) == pytest.approx([2, 3, 5.1, 5.2, 7.1], rel=1e-3)
    run = replayed(i, shared_plan(devices[:, None], np.arange(5)))
    assert run.makespan_s == pytest.approx(7.1, rel=1e-3)
    sketch = Sketch(i)  # over rows that nothing waits for, a device still fetches one thing at a time
    sketch.tables = eqx.tree_at(lambda t: t.crossed, sketch.tables, jnp.zeros_like(sketch.tables.crossed))
    assert sketch(np.arange(5)[None], devices[None])[2][0] == pytest.approx([2, 3, 5.1, 5.2, 7.1], rel=1e-3)


def test_transfers_to_unlike_devices_wait_for_one_another() -> None:
    """Each takes 2 s alone. The simulator lets them share the bus, so that both take 4 s; here one has it first."""
    edges = (Edge("t0", "t1", 2e9), Edge("t0", "t2", 2e9))
    i = made([(1.0, 9.0, 9.0), (9.0, 1.0, 9.0), (9.0, 9.0, 1.0)], edges, bus=True)
    devices = np.arange(3)
    assert finishes(i, np.arange(3), devices) == pytest.approx([1, 4, 6], rel=1e-3)
    assert replayed(i, shared_plan(devices[:, None], np.arange(3))).makespan_s == pytest.approx(6.0, rel=1e-3)


def test_a_gang_that_may_go_anywhere_goes_where_it_ends_first() -> None:
    i = made([(2.0, 3.0)] * 3)
    sketch = Sketch(i)
    devices, start, finish = sketch(np.arange(3)[None], np.full((1, 3), sketch.anywhere))
    assert devices[0].tolist() == [0, 1, 0]
    assert start[0].tolist() == [0, 0, 2] and finish[0].tolist() == [2, 3, 4]


def test_devices_of_one_class_take_about_as_long_for_every_gang() -> None:
    i = made([(2.0, 2.4, 9.0, 2.0), (1.0, 1.0, 1.0, 2.0)])
    assert classes(i).tolist() == [0, 0, 1, 2]
    assert classes(made([(2.0, 0.0, 2.0)])).tolist() == [0, 1, 0]  # one of them cannot run it


def test_a_class_is_a_choice() -> None:
    i = made([(1.0, 1.1, 5.0)] * 3)
    sketch = Sketch(i)
    devices, _, _ = sketch(np.arange(3)[None], np.asarray([[3, 3, 3 + 1]]))  # devices 0 to 2, then classes
    assert devices[0].tolist() == [0, 1, 2]
