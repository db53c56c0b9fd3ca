"""Several decisions of one look."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from symphony.policies import Batched, named
from symphony.problem.errors import PolicyError
from symphony.scheduling.one_of import OneOf
from symphony.simulator.next_event import EVENT_THOUGHT
from symphony.simulator.run import record, run_traces
from symphony.simulator.scenarios import CALM, Scenario, stack
from tests.policies.small_networks import small_policy
from tests.scheduling.by_hand import cluster, dot, work

SIZES = {"gangs": 6, "devices": 3}
BATCHES = (1, 4)
SLOW = 0.25  # seconds of thought


@pytest.fixture(scope="module")
def runs():
    """The same eight jobs, with and without batches, by one compiled program: trace and record of each."""
    jobs = work(*[dot("any") for _ in range(8)])
    calm = replace(CALM, latency_s=SLOW)
    scenario = Scenario(cluster(), jobs, 0, (), (), (1.0,), calm, job_slots=8)
    learned = small_policy(**SIZES)
    policies = (learned, *(Batched(learned, most) for most in BATCHES))
    made = []
    for number, policy in enumerate(policies):
        (trace,), _ = run_traces(stack([scenario]), [scenario], OneOf(policies, jnp.asarray(number)))
        made.append((trace, record(scenario, trace, policy.name, 0.0)))
    return made


def thoughts(trace) -> int:
    return int((trace.log.event[0] == EVENT_THOUGHT).sum())


def placed(trace) -> list[tuple[int, int]]:
    kinds, jobs, _, devices, *_ = trace.log.decision
    return [(int(jobs[row]), int(devices[row])) for row in np.flatnonzero(kinds == 0)]


def test_batches_of_one_are_none(runs) -> None:
    (plain, _), (one, _), _ = runs
    assert placed(plain) == placed(one) and thoughts(plain) == thoughts(one) == 8
    np.testing.assert_array_equal(plain.after_s, one.after_s)


def test_a_batch_is_charged_once(runs) -> None:
    (plain, slow), _, (batched, quick) = runs
    assert len(placed(batched)) == 8 and thoughts(batched) < thoughts(plain)
    assert sum(x.finish_s for x in quick.jobs) < sum(x.finish_s for x in slow.jobs)
    assert quick.refused == 0


def test_a_batch_does_not_pile_up_on_one_device(runs) -> None:
    """Eight jobs that are alike: what is placed first makes its device worse for the next."""
    *_, (batched, _) = runs
    rows = np.flatnonzero(batched.log.decision[0] == 0)
    first = [pair for row, pair in zip(rows, placed(batched), strict=True) if batched.before_s[row] == SLOW]
    assert len(first) == 4
    assert len({job for job, _ in first}) == 4 and len({device for _, device in first}) > 1


def test_by_name() -> None:
    policy = named("symphony:8")
    assert isinstance(policy, Batched) and policy.most == 8 and policy.name == "symphony:8"


@pytest.mark.parametrize("wrong", ["symphony:", "symphony:0", "symphony:many"])
def test_a_wrong_name_is_said(wrong: str) -> None:
    with pytest.raises(PolicyError, match="symphony:8"):
        named(wrong)


def test_what_cannot_be_batched_is_said() -> None:
    with pytest.raises(PolicyError, match="1 or more"):
        Batched(small_policy(**SIZES), 0)
    with pytest.raises(PolicyError, match="best action"):
        Batched(replace(small_policy(**SIZES), draws=True))
