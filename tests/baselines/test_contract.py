"""The baselines for task graphs keep the contract of policies, all in one program: alone, each would compile its own.

`sy.testing.check_policy` asks for the same of one policy, and for the form of its answers besides.
"""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from symphony.baselines import named
from symphony.scheduling.one_of import OneOf
from symphony.simulator.run import simulate
from tests.baselines.cheap import cheap_scenario

NAMES = (
    "cpop",
    "peft",
    "dm",
    "dmda",
    "dmdas",
    "heteroprio",
    "sparrow",
    "sparrow-batch",
    "paragon",
    "graphene",
    "tetris",
    "drf",
    "least-interference",
    "load-balancing",
)
POLICIES = tuple(named(name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_rules_completes_every_job_and_decides_alike_in_equal_runs(name: str) -> None:
    scenario, policy = cheap_scenario(), OneOf(POLICIES, jnp.asarray(NAMES.index(name), jnp.int32))
    (first,), (second,) = simulate([scenario], policy), simulate([scenario], policy)
    assert first.refused == 0
    assert len(first.jobs) == len(scenario.workload.jobs)
    assert first.jobs == second.jobs
