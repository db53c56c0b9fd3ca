"""The time budget: what decides follows from what decisions cost and how long kernels take."""

from __future__ import annotations

import numpy as np
import pytest

from symphony.policies import LateBinding, named
from symphony.runtime.budget import FIRST_COST_S, GAIN, HEURISTIC, NETWORK, Budget
from symphony.runtime.plain_network import PlainAction, PlainNetwork
from symphony.runtime.plain_turn import PlainCore
from symphony.scheduling import state
from symphony.scheduling.policy import WAIT
from tests.runtime.test_plain_turn import SHAPES, TOPOLOGIES, Both


@pytest.mark.parametrize(("cost_s", "decides"), [(FIRST_COST_S, NETWORK), (4.0 * GAIN, HEURISTIC)])
def test_the_network_decides_about_kernels_that_are_worth_its_time(cost_s: float, decides: str) -> None:
    """Kernels take 0.1 to 3 s, and up to 2.7 s more for their inputs."""
    made = Both.__new__(Both)
    made.start(TOPOLOGIES["machine"], seed=1)
    budget = Budget(PlainNetwork(LateBinding(named("symphony"))), cost_s=cost_s)  # type: ignore[arg-type]
    core = PlainCore(made.workload, state.empty(made.workload.t, made.workload.w, SHAPES.jobs, np), budget)
    commands = core.turn([made.arrival()], 1.0, None)
    found = budget.counts[decides]
    assert found.decisions == commands.decisions > 0 and found.seconds > 0 and found.kernel_s > 0.1
    assert {budget.placed[gang][0] for gang, _ in commands.started} == {decides}
    assert sum(one.decisions for one in budget.counts.values()) == commands.decisions


def test_if_the_network_fails_the_heuristic_decides() -> None:
    made, said = Both.__new__(Both), []
    made.start(TOPOLOGIES["machine"], seed=1)
    budget = Budget(PlainNetwork(named("symphony")), 0.0, fall_back=lambda reason, text: said.append(reason))  # type: ignore[arg-type]
    del budget.network.network.lstm
    core = PlainCore(made.workload, state.empty(made.workload.t, made.workload.w, SHAPES.jobs, np), budget)
    assert core.turn([made.arrival()], 1.0, None).decisions == budget.counts[HEURISTIC].decisions > 1
    assert said == ["raised"]


def test_the_cost_follows_decisions_but_not_one_that_was_delayed() -> None:
    budget = Budget(PlainNetwork(named("symphony")))  # type: ignore[arg-type]
    budget._by, budget._asked_s = NETWORK, 1.0
    budget.decided(PlainAction(WAIT), 3.0)
    assert FIRST_COST_S < budget.cost_s < 1.1 * FIRST_COST_S
    for _ in range(200):
        budget.decided(PlainAction(WAIT), 10 * FIRST_COST_S)
    assert budget.threshold_s == pytest.approx(10 * FIRST_COST_S / GAIN, rel=0.01)
    budget._by = HEURISTIC
    for _ in range(5000):  # it is tried again some time
        budget.decided(PlainAction(WAIT), 1e-5)
    assert budget.cost_s < 1.1 * FIRST_COST_S
