"""The network in NumPy decides as the compiled program does, on random scenarios, decision by decision.

The two round differently, so that actions with nearly equal scores could change places; loads that differ from row to
row keep them apart here.
"""

from __future__ import annotations

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.policies import Budgeted, LateBinding, Learned, Network, named
from symphony.runtime.budget import HEURISTIC, NETWORK, Budget
from symphony.runtime.plain_network import PlainNetwork
from tests.runtime.test_plain_turn import TOPOLOGIES, Both, random_turns


@cache
def shipped() -> Learned:
    return named("symphony")  # type: ignore[return-value]


@cache
def untrained() -> Learned:
    """A network without its prior, in which every feature counts; it often waits and preempts."""
    network = Network(jax.random.key(3), shipped().network.sizes)
    zero = jnp.zeros(())
    return Learned(
        eqx.tree_at(
            lambda n: (n.regret, n.remaining, n.critical, n.queue, n.apart, n.idle),
            network,
            (jnp.asarray(-jnp.inf), zero, zero, zero, zero, zero),
        )
    )


@pytest.mark.parametrize(("policy", "late"), [(shipped, True), (untrained, True), (untrained, False)])
def test_decisions_are_those_of_the_compiled_program(policy, late: bool) -> None:  # type: ignore[no-untyped-def]
    by_network = by_heuristic = saved = 0
    learned = LateBinding(policy()) if late else policy()
    for seed, least_s in enumerate((0.0, 0.6, 0.0)):
        budget = Budget(PlainNetwork(learned), least_s)
        both = Both(TOPOLOGIES["machine"], seed, Budgeted(learned, least_s), budget, preemptible=True)
        random_turns(both, 60)
        np.testing.assert_allclose(budget.network.memory.hidden, both.policy_state.hidden, atol=1e-4)
        by_network += budget.counts[NETWORK].decisions
        by_heuristic += budget.counts[HEURISTIC].decisions
        saved += both.saved
    assert by_network > 100 and by_heuristic > 5
    assert saved > 3 or policy is shipped
