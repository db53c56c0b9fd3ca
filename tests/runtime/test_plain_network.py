"""The network in NumPy, and natively, decides as the compiled program does, on random scenarios, decision by decision.

The two round differently, so that actions with nearly equal scores could change places; loads that differ from row to
row keep them apart here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.policies import Budgeted, LateBinding, Learned, Network, named
from symphony.policies.features import extract_features
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.runtime.budget import HEURISTIC, NETWORK, Budget
from symphony.runtime.native import NativeNetwork, library
from symphony.runtime.plain_network import PlainAction, PlainNetwork
from symphony.runtime.plain_turn import PlainCore
from symphony.runtime.turn import observe
from symphony.scheduling.clock import Amount
from symphony.scheduling.state import Core
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


@eqx.filter_jit
def compiled_features(core: Core, t: TopologyArrays, w: WorkloadArrays, now: Any, mean: Any, std: Any) -> Any:
    prepared = shipped().prepare(t, w)
    moment = SimpleNamespace(now=now, background=mean, background_std=std)
    return extract_features(observe(core, t, w, moment, prepared), *shipped().network.sizes.counts)  # type: ignore[arg-type]


class Compared:
    """A network that compares its features with those of the compiled program."""

    compared = 0

    def decide(self, core: PlainCore) -> PlainAction:
        before = self.compared
        action = super().decide(core)  # type: ignore[misc]
        if self.compared == before:  # decided without them
            self.features(core)
        return action

    def features(self, core: PlainCore, devices: Any = None) -> Any:
        mine, workload = super().features(core, devices), core.workload  # type: ignore[misc]
        whole = int(core.now_s)
        now = Amount(jnp.asarray(whole, jnp.int32), jnp.asarray(core.now_s - whole, jnp.float32))
        theirs = jax.tree.map(np.asarray, compiled_features(core.core(), workload.t, workload.w, now, *core.background))
        count, others = len(mine.gangs.number), len(mine.other_actions.device)
        assert mine.gangs.number.tolist() == theirs.gangs.number[theirs.gangs.number >= 0].tolist()
        allowed = theirs.allowed[:count]
        assert (mine.allowed == allowed).all() and mine.may_wait == theirs.may_wait
        assert (mine.device[allowed] == theirs.device[:count][allowed]).all()
        pairs = [
            (mine.rows, theirs.rows),
            (mine.devices, theirs.devices),
            (mine.scene, theirs.scene),
            (mine.gangs.features, theirs.gangs.features[:count]),
            (mine.pairs, theirs.pairs[:count]),
            (mine.wait_s, theirs.wait_s),
            (mine.other_actions.features, theirs.other_actions.features[:others]),
        ]
        for a, b in pairs:
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
        assert theirs.other_actions.allowed.sum() == others
        if others:
            given = theirs.other_actions.gangs
            assert mine.other_actions.gangs.number.tolist() == given.number[:others].tolist()
            np.testing.assert_allclose(mine.other_actions.gangs.features, given.features[:others], rtol=1e-3, atol=1e-3)
        self.compared += 1
        return mine


class ComparedPlain(Compared, PlainNetwork):
    """In NumPy."""


class ComparedNative(Compared, NativeNetwork):
    """In `native.c`."""


needs_native = pytest.mark.skipif(library() is None, reason="native.c was not compiled")
NETWORKS = [ComparedPlain, pytest.param(ComparedNative, marks=needs_native)]


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("policy", [shipped, untrained])
def test_features_and_decisions_are_those_of_the_compiled_program(
    policy: Callable[[], Learned], kind: Callable[[LateBinding], Any]
) -> None:
    by_network = by_heuristic = saved = 0
    late = LateBinding(policy())
    for seed, least_s in enumerate((0.0, 0.6, 0.0)):
        network = kind(late)
        budget = Budget(network, least_s, fall_back=lambda reason, text: pytest.fail(f"{reason}: {text}"))
        both = Both(TOPOLOGIES["machine"], seed, Budgeted(late, least_s), budget, preemptible=True)
        random_turns(both, 60)
        np.testing.assert_allclose(network.memory.hidden, both.policy_state.hidden, atol=1e-4)
        assert network.compared > 10
        by_network += budget.counts[NETWORK].decisions
        by_heuristic += budget.counts[HEURISTIC].decisions
        saved += both.saved
    assert by_network > 100 and by_heuristic > 5
    assert saved > 3 or policy is shipped
