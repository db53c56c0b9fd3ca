"""What a policy is shown, and the helpers that it is written with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.problem.errors import PolicyError
from symphony.problem.workload import Task, TaskGraph
from symphony.scheduling.policy import (
    PLACE,
    PREEMPT,
    RECONFIGURE,
    WAIT,
    Policy,
    best_device,
    best_feasible,
    choose,
    idle_devices,
    pick_gang,
    place,
    preempt,
    reconfigure,
    wait,
    with_more,
)
from tests.scheduling.by_hand import CPU0, CPU1, FPGA, GPU, Books, dot, pair, work

ROWS = 5


def as_numbers(action: object) -> list[int]:
    return [int(x) for name, x in vars(action).items() if name not in ("seconds", "order")]


def test_actions() -> None:
    assert as_numbers(place(3, 2)) == [PLACE, 3, 2, 0, False]
    assert as_numbers(preempt(3)) == [PREEMPT, 3, 0, 0, False]
    assert as_numbers(reconfigure(2, 5)) == [RECONFIGURE, 0, 2, 5, False]
    assert as_numbers(wait()) == [WAIT, 0, 0, 0, False]
    assert as_numbers(with_more(place(3, 2), True)) == [PLACE, 3, 2, 0, True]
    *numbers, more, seconds, order = vars(place(np.int64(3), 2.0, order=7)).values()
    assert (
        int(order) == 7
        and all(x.dtype == jnp.int32 for x in [*numbers, order])
        and more.dtype == bool
        and seconds.dtype == jnp.float32
    )
    assert float(wait().seconds) == np.inf and float(wait(2).seconds) == 2.0 and wait(2).seconds.dtype == jnp.float32
    assert as_numbers(choose(jnp.asarray(True), place(3, 2), wait())) == [PLACE, 3, 2, 0, False]
    assert as_numbers(choose(jnp.asarray(False), place(3, 2), wait())) == [WAIT, 0, 0, 0, False]


# -------------------------------------------------------------------- what is shown


def test_seconds_on_each_device() -> None:
    books = Books(work(dot("any", units=2.0), dot("cpu only")))
    assert books.observe().seconds(jnp.asarray(0)).tolist()[:4] == [8.0, 8.0, 2.0, 1.0]
    assert books.observe().seconds(jnp.asarray(1)).tolist()[:4] == [2.0, 2.0, np.inf, np.inf]


def test_work_ahead_of_a_newcomer() -> None:
    """Nothing while a slot is free and nobody queues; else what runs and what queues, over the slots."""
    books = Books(work(*[dot("any")] * 4))
    for gang in range(2):
        assert books.decide(place(gang, CPU0))
        books.start(gang)
    books.pass_time(1.0)
    assert books.observe().running_s.tolist()[:4] == [6.0, 0.0, 0.0, 0.0]
    assert books.observe().queue_s.tolist()[:4] == [3.0, 0.0, 0.0, 0.0]
    assert books.decide(place(2, CPU0))
    assert books.observe().queue_s.tolist()[:4] == [(6.0 + 4.0) / 2, 0.0, 0.0, 0.0]
    books.pass_time(9.0)  # what runs is overdue: nothing is known of how much is left
    assert books.observe().running_s.tolist()[:4] == [0.0, 0.0, 0.0, 0.0]
    books.finish(0)
    assert books.observe().queue_s.tolist()[:4] == [2.0, 0.0, 0.0, 0.0]  # a slot is free, but one queues
    assert idle_devices(books.observe()).tolist()[:4] == [False, True, True, True]


def test_a_failed_device_is_not_idle() -> None:
    books = Books(work(dot("any")))
    books.fail(CPU1)
    assert idle_devices(books.observe()).tolist()[:4] == [True, False, True, True]


def test_the_error_of_readings_has_the_size_that_it_is_said_to_have() -> None:
    books = Books(work(dot("any")))
    means = []
    for _ in range(200):
        books.window([2.0] * ROWS, [0.0] * ROWS)
        means += books.observe(noise=0.1).load_mean.tolist()[:ROWS]
    assert np.mean(means) == pytest.approx(2.0, rel=0.02)
    assert np.std(means) == pytest.approx(0.2, rel=0.1)
    assert min(means) >= 0


def test_columns_of_graphs_for_the_gangs_in_the_system() -> None:
    books = Books(work(dot("any", units=3.0), pair(units=5.0)))
    units = books.observe().per_gang(books.w.units).reshape(2, -1)
    assert units[:, 0].tolist() == [3.0, 5.0]


# -------------------------------------------------------------------- helpers


def test_gangs_are_picked_by_priority_then_score_then_age() -> None:
    books = Books(work(*[dot("any")] * 4, priorities=(0, 2, 2, 2)))
    assert int(pick_gang(books.observe())) == 1
    assert int(pick_gang(books.observe(), jnp.asarray([9.0, 1.0, 3.0, 3.0]))) == 2
    assert books.decide(place(2, GPU))
    assert int(pick_gang(books.observe(), jnp.asarray([9.0, 1.0, 3.0, 3.0]))) == 3


def test_the_oldest_job_is_the_first_to_arrive_whatever_its_slot() -> None:
    """When a job is gone, a younger one takes its slot."""
    books = Books(work(*[dot("any")] * 3), arrived=2)
    assert books.decide(place(0, GPU))
    books.start(0)
    books.finish(0)
    books.arrive()
    assert books.core.job.tolist() == [2, 1, -1]
    assert int(pick_gang(books.observe())) == 1


def test_within_a_job_the_lowest_gang_is_first() -> None:
    books = Books(work(TaskGraph("two", (Task("a", "any"), Task("b", "any")))))
    assert int(pick_gang(books.observe())) == 0


def test_a_gang_partly_placed_is_picked_whatever_else_there_is() -> None:
    books = Books(work(dot("any"), pair(), priorities=(5, 0)))
    assert books.decide(place(books.tasks, CPU1))
    assert int(pick_gang(books.observe())) == books.tasks


def test_picking_from_nothing_is_a_wait() -> None:
    books = Books(work(dot("any")), arrived=0)
    assert int(pick_gang(books.observe())) == -1
    assert as_numbers(place(-1, CPU0))[0] == WAIT
    assert as_numbers(best_feasible(books.observe(), jnp.zeros(4)))[0] == WAIT


def test_the_best_device_is_feasible_and_ties_go_to_the_lowest() -> None:
    books = Books(work(dot("cpu only")))
    gang = jnp.asarray(0)
    devices = books.t.device_kind.shape[0]
    assert int(best_device(books.observe(), gang, jnp.zeros(devices))) == CPU0
    score = jnp.zeros(devices).at[jnp.asarray([GPU, CPU1])].set(jnp.asarray([9.0, 1.0]))
    assert int(best_device(books.observe(), gang, score)) == CPU1
    books.fail(CPU1)
    assert int(best_device(books.observe(), gang, score)) == CPU0
    assert as_numbers(best_feasible(books.observe(), score))[:3] == [PLACE, 0, CPU0]


def test_scores_are_of_all_devices() -> None:
    observation = Books(work(dot("any"))).observe()
    with pytest.raises(PolicyError, match=r"the shape \(1,\), and there are 4 devices"):
        best_feasible(observation, observation.queue_s[:1])


@pytest.mark.parametrize("score", [-jnp.inf, jnp.nan])
def test_where_every_score_is_hopeless_the_device_is_feasible_all_the_same(score: float) -> None:
    """Say, the logarithm of a chance of 0."""
    books = Books(work(dot("any")))
    books.fail(CPU0)
    devices = books.t.device_kind.shape[0]
    assert int(best_device(books.observe(), jnp.asarray(0), jnp.full(devices, score))) in (CPU1, GPU, FPGA)


def test_policies_are_called_by_their_class_and_do_not_cheat_unless_they_say_so() -> None:
    class Mine(Policy):
        def init(self, topology):
            return None

        def decide(self, key, state, observation):
            return state, wait()

    assert Mine().name == "Mine"
    assert Mine.cheats is False
    with pytest.raises(TypeError):
        Policy()  # type: ignore[abstract]


def test_an_observation_passes_through_jit() -> None:
    books = Books(work(dot("any")))
    seen = jax.jit(lambda observation: observation.queue_s)(books.observe())
    assert seen.tolist() == books.observe().queue_s.tolist()
