"""Several policies in one program."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pytest

from symphony.scheduling.one_of import OneOf
from symphony.scheduling.policy import Observation, Policy, place, wait
from tests.scheduling.by_hand import decision, dot, shared_books, work


class Counts(Policy):
    """Places on a device of its own; counts its decisions."""

    device: int

    def init(self, topology: Any) -> Any:
        return jnp.asarray(self.device * 100)

    def decide(self, key: Any, state: Any, observation: Observation) -> Any:
        return state + 1, place(0, self.device)


class Peeks(Policy):
    """Waits if it sees the true background, and places on device 3 if it does not."""

    cheats: ClassVar[bool] = True

    def init(self, topology: Any) -> None:
        return None

    def decide(self, key: Any, state: Any, observation: Observation) -> Any:
        return state, wait() if observation.true_background is not None else place(0, 3)


class Honest(Peeks):
    cheats: ClassVar[bool] = False


def one_of(index: int, *policies: Policy) -> OneOf:
    return OneOf(policies, jnp.asarray(index, jnp.int32))


@pytest.mark.parametrize("index", [0, 1, 2])
def test_it_decides_as_the_chosen_one_and_leaves_the_states_of_the_others(index: int) -> None:
    books = shared_books(work(dot("any")))
    policy = one_of(index, Counts(0), Counts(1), Counts(2))
    state = policy.init(books.t)
    assert [int(x) for x in state] == [0, 100, 200]
    state, action = policy.decide(jax.random.key(0), state, books.observe(policy=policy))
    assert int(action.device) == index
    assert [int(x) for x in state] == [100 * n + (n == index) for n in range(3)]


def test_only_those_that_cheat_are_shown_the_truth() -> None:
    shown = shared_books(work(dot("any"))).observe(true_background=[1.0], policy=one_of(0, Peeks(), Honest()))
    assert one_of(0, Peeks(), Honest()).cheats and not one_of(0, Honest(), Counts(0)).cheats
    assert decision(one_of(0, Peeks(), Honest()), shown) == decision(Peeks(), shown)
    assert decision(one_of(1, Peeks(), Honest()), shown) == decision(Honest(), shown)
    assert decision(Peeks(), shown) != decision(Honest(), shown)


class Prepares(Policy):
    """Places on the device that it worked out beforehand."""

    device: int

    def init(self, topology: Any) -> Any:
        return None

    def prepare(self, topology: Any, workload: Any) -> Any:
        assert workload.jobs is None and workload.arrival_whole is None
        return jnp.asarray(self.device)

    def decide(self, key: Any, state: Any, observation: Observation) -> Any:
        return state, place(0, observation.prepared)


def test_each_finds_what_it_prepared_itself() -> None:
    for index, expected in enumerate([0, 2, 1]):
        policy = one_of(index, Counts(0), Prepares(2), Prepares(1))
        shown = shared_books(work(dot("any"))).observe(policy=policy)
        assert int(policy.decide(jax.random.key(0), policy.init(shown.topology), shown)[1].device) == expected


def test_the_index_is_no_part_of_the_program() -> None:
    books, traced = shared_books(work(dot("any"))), []

    @jax.jit
    def device(policy: OneOf, observation: Observation) -> jax.Array:
        traced.append(1)
        return policy.decide(jax.random.key(0), policy.init(observation.topology), observation)[1].device

    shown = books.observe(policy=one_of(0, Counts(0), Counts(2)))
    assert [int(device(one_of(i, Counts(0), Counts(2)), shown)) for i in (0, 1, 0)] == [0, 2, 0]
    assert len(traced) == 1
