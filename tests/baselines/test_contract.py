"""The baselines for task graphs keep the contract of policies, in one program: alone, each would compile its own."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from jax import Array

from symphony import testing
from symphony.baselines import Fifo, named
from symphony.problem.arrays import TopologyArrays
from symphony.problem.errors import PolicyError
from symphony.scheduling.one_of import OneOf
from symphony.scheduling.policy import Action, Observation
from tests.baselines.cheap import cheap_scenario, check_runs

NAMES = (
    "random",
    "fifo",
    "shortest-queue",
    "sjf",
    "heft",
    "eft-static",
    "eft-belief",
    "eft-rebinding",
    "eft-exact",
    "cpop",
    "peft",
    "dm",
    "dmda",
    "dmdas",
    "heteroprio",
    "sparrow",
    "sparrow-batch",
    "paragon",
    "paragon-profiled",
    "graphene",
    "tetris",
    "drf",
    "least-interference",
    "load-balancing",
)
POLICIES = tuple(named(name) for name in NAMES)


def chosen(name: str) -> OneOf:
    return OneOf(POLICIES, jnp.asarray(NAMES.index(name), jnp.int32))


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_rules_completes_every_job_and_decides_alike_in_equal_runs(name: str) -> None:
    check_runs(chosen(name), cheap_scenario())


def test_all_answer_in_the_form_that_is_asked_for() -> None:
    """Which one is chosen is known at run time only, so all are traced, and all must answer alike."""
    testing.check_policy(chosen("fifo"), [cheap_scenario()])


class Widens(Fifo):
    """Breaks the contract: a state that is not as it was."""

    def init(self, topology: TopologyArrays) -> Array:
        return jnp.zeros((), jnp.int32)

    def decide(self, key: Array, state: Array, observation: Observation) -> tuple[Array, Action]:
        return state * 1.0, super().decide(key, None, observation)[1]


def test_one_that_does_not_is_noticed_among_the_others() -> None:
    policy = OneOf((*POLICIES[:2], Widens()), jnp.asarray(0, jnp.int32))
    with pytest.raises(PolicyError, match="could not be traced"):
        testing.check_policy(policy, [cheap_scenario()])
