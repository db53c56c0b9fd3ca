"""The network in NumPy, and natively, decides as the compiled program does, on random scenarios, decision by decision.

The two round differently, so that actions with nearly equal scores could change places; loads that differ from row to
row keep them apart here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from symphony.policies.learned import Memory
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.runtime.budget import HEURISTIC, NETWORK, Budget
from symphony.runtime.native import NativeFields, NativeNetwork, NativeTables
from symphony.runtime.plain_network import NOT_NUMBERS, PlainAction, PlainNetwork
from symphony.runtime.plain_turn import PlainCore
from symphony.runtime.scheduler import _budget
from symphony.runtime.turn import observe
from symphony.scheduling import state
from symphony.scheduling.clock import Amount
from symphony.scheduling.state import Core
from tests.runtime.test_plain_turn import SHAPES, TOPOLOGIES, Both, needs_native, random_turns


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
    return extract_features(observe(core, t, w, moment, prepared), *shipped().network.sizes.counts, by_due=False)  # type: ignore[arg-type]


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


@needs_native
def test_on_large_clusters() -> None:
    late = LateBinding(shipped())
    for seed in range(2):
        network = ComparedNative(late)
        budget = Budget(network, 0.0, fall_back=lambda reason, text: pytest.fail(f"{reason}: {text}"))
        both = Both(TOPOLOGIES["fat-tree:500"], seed, Budgeted(late, 0.0), budget)
        random_turns(both, 40)
        np.testing.assert_allclose(network.memory.hidden, both.policy_state.hidden, atol=1e-4)
        assert network.compared > 20


class Fresh(NativeNetwork):
    """Takes every decision twice: with what was kept since the last one, and with nothing."""

    decisions = 0

    def decide(self, core: PlainCore) -> PlainAction:
        self._tables(core)
        kept, memory = core.native, Memory(*(part.copy() for part in self.memory))
        mine = super().decide(core)
        core.native, after = NativeTables(core), self.memory
        core.native.set(background=core.background[0], deviation=core.background[1])
        self.memory = memory
        assert super().decide(core) == mine
        assert (self.memory.hidden == after.hidden).all() and (self.memory.cell == after.cell).all()
        self.memory, core.native = after, kept
        self.decisions += 1
        return mine


@needs_native
@pytest.mark.parametrize("name", ["machine", "fat-tree:500"])
def test_what_is_kept_between_decisions_is_never_stale(name: str) -> None:
    """Loads of a few rows change now and then; the core is replaced by a copy, as when arrays grow."""
    for seed in range(4):
        made = Both.__new__(Both)
        made.start(TOPOLOGIES[name], seed, preemptible=True)
        rng, rows = np.random.default_rng(seed), len(made.workload.topology.resources)
        network = Fresh(LateBinding((shipped, untrained)[seed % 2]()))
        budget = Budget(network, 0.0, fall_back=lambda reason, text: pytest.fail(f"{reason}: {text}"))
        empty = state.empty(made.workload.t, made.workload.w, SHAPES.jobs, np)
        made.plain, others, now_s = PlainCore(made.workload, empty, budget), None, 0.0
        for number in range(150):
            now_s += float(rng.exponential(0.3))
            if rng.random() < 0.3:
                old = np.zeros((2, rows), np.float32) if others is None else np.array(others)
                changed = rng.integers(rows, size=3)
                old[:, changed] = rng.uniform(0, 2, (2, 3))
                others = old[0], old[1]
            event = made.random_event()
            if event is not None:
                made.plain.turn([event], now_s, others)
            if number % 20 == 0:
                made.plain = PlainCore(made.workload, made.plain.core(), budget)
            taken = {row for row, job in zip(made.plain.graph, made.plain.job, strict=True) if job >= 0}
            for row in set(made.workload._used) - taken:
                made.workload.remove(row)
        assert network.decisions > 20


@pytest.mark.parametrize("kind", [PlainNetwork, pytest.param(NativeNetwork, marks=needs_native)])
def test_a_network_whose_scores_are_not_numbers_is_not_asked_again(kind: Callable[[LateBinding], Any]) -> None:
    made, reasons = Both.__new__(Both), []
    made.start(TOPOLOGIES["machine"], 0)
    budget = Budget(kind(LateBinding(shipped())), 0.0, fall_back=lambda reason, text: reasons.append((reason, text)))
    made.plain = PlainCore(made.workload, state.empty(made.workload.t, made.workload.w, SHAPES.jobs, np), budget)
    unknown = np.full(len(made.workload.topology.resources), np.nan, np.float32)
    for number in range(40):
        event = made.random_event() if made.workload.free else None
        if event is not None:
            made.plain.turn([event], 0.1 * number, (unknown, unknown))
    assert reasons == [("raised", f"ValueError: {NOT_NUMBERS}")]
    assert made.plain.next_sequence > 5  # the heuristic goes on


@needs_native
def test_arrays_of_another_type_are_not_passed_on() -> None:
    NativeFields(status=np.zeros(4, bool), job=np.zeros(4, np.int32))
    for wrong in (np.zeros(4, np.float32), np.zeros(4), np.zeros((4, 2), np.int32)[:, 0]):
        with pytest.raises(TypeError, match="job"):
            NativeFields(job=wrong)


def test_among_many_devices_a_network_of_other_sizes_decides_in_its_compiled_program() -> None:
    other = Learned(Network(jax.random.key(0), replace(shipped().network.sizes, width=16)))
    assert _budget(LateBinding(other), 500) is None
    assert type(_budget(LateBinding(other), 8).network) is PlainNetwork
