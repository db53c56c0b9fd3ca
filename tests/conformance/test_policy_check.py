"""The public check of policies: those that break the contract are told how, those that keep it pass."""

from __future__ import annotations

from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import symphony as sy
from symphony.problem.errors import PolicyError
from symphony.scheduling.one_of import OneOf
from symphony.scheduling.policy import Action, Observation, Policy, best_feasible, place
from symphony.simulator.scenarios import Scenario, calm
from symphony.testing import check_policy
from tests.baselines.cheap import cheap_scenario
from tests.simulator.scripted import BreaksRules, WaitsForEver


@pytest.fixture(scope="module")
def cheap() -> list[Scenario]:
    """Without failures: where devices fail all the time, a policy that waits may be waiting for a repair."""
    return [calm(cheap_scenario())]


def refusal(policy: Policy, scenarios: list[Scenario]) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        check_policy(policy, scenarios)
    assert policy.name in caught.value.message or "policy" in caught.value.message
    assert caught.value.hint, "an error says what to do"
    return caught.value


class Fine(Policy):
    """Keeps its contract; others change one thing."""

    def init(self, topology: Any) -> Any:
        return {"asked": jnp.zeros((), jnp.int32)}

    def decide(self, key: Any, state: Any, observation: Observation) -> Any:
        return {"asked": state["asked"] + 1}, self.answer(best_feasible(observation, -observation.queue_s), observation)

    def answer(self, action: Action, observation: Observation) -> Any:
        return action


SORTS = (Fine(), BreaksRules(), WaitsForEver())  # in one program


def of(sort: type[Policy]) -> OneOf:
    return OneOf(SORTS, jnp.asarray([type(policy) for policy in SORTS].index(sort), jnp.int32))


def test_a_policy_that_keeps_its_contract_passes(cheap: list[Scenario]) -> None:
    check_policy(of(Fine), cheap)


@pytest.mark.slow
def test_by_default_the_scenarios_have_unlike_devices_gangs_fpgas_failures_and_tenants() -> None:
    """The slow one: the same check that users run. It is run for one policy here, and for others in the guides."""
    scenarios = sy.testing._scenarios()
    assert len({device.kind for s in scenarios for device in s.topology.devices}) > 4
    assert any(kind.reconfigurable for s in scenarios for kind in s.topology.kinds)
    assert any(len(gang.tasks) > 1 for s in scenarios for graph in s.workload.graphs for gang in graph.all_gangs)
    assert any(s.failures for s in scenarios) and all(s.phases for s in scenarios)
    check_policy(sy.baselines.EftBelief())


# -------------------------------------------------------------------- what is found by running it


def test_actions_against_the_rules(cheap: list[Scenario]) -> None:
    error = refusal(of(BreaksRules), cheap)
    assert "were not allowed" in error.message and "seed 3" in error.message
    assert "observation.feasible(gang)" in error.hint


def test_waiting_for_ever(cheap: list[Scenario]) -> None:
    error = refusal(of(WaitsForEver), cheap)
    assert "waited for ever" in error.message and "0 of its" in error.message


def test_memory_outside_the_state(cheap: list[Scenario]) -> None:
    """A host callback that counts: two equal runs are told different numbers."""
    numbers = count()

    class Impure(Fine):
        def answer(self, action: Action, observation: Observation) -> Action:
            def number(_: Any) -> np.int32:
                return np.int32(next(numbers))

            shape = jax.ShapeDtypeStruct((), jnp.int32)
            drawn = jax.pure_callback(number, shape, observation.now.part, vmap_method="sequential")
            devices = observation.core.up.shape[0]
            score = (jnp.arange(devices) * 7 + drawn * 13) % 11
            return best_feasible(observation, score * 1.0)

    error = refusal(Impure(), cheap)
    assert "differently in two equal runs" in error.message
    assert "`key`" in error.hint


# -------------------------------------------------------------------- what is found without running it


class FloatDevice(Fine):
    def answer(self, action: Action, observation: Observation) -> Action:
        return Action(action.kind, action.gang, action.device * 1.0, action.kernel)


class VectorGang(Fine):
    def answer(self, action: Action, observation: Observation) -> Action:
        return Action(action.kind, action.gang[None], action.device, action.kernel)


class FloatMore(Fine):
    def answer(self, action: Action, observation: Observation) -> Action:
        return Action(action.kind, action.gang, action.device, action.kernel, 1.0 * action.more)


class WholeSeconds(Fine):
    def answer(self, action: Action, observation: Observation) -> Action:
        return Action(action.kind, action.gang, action.device, action.kernel, action.more, action.kind)


class BareNumbers(Fine):
    def answer(self, action: Action, observation: Observation) -> Any:
        return (action.gang, action.device)


class Shrinks(Fine):
    def decide(self, key: Any, state: Any, observation: Observation) -> Any:
        return {}, best_feasible(observation, -observation.queue_s)


class Widens(Fine):
    def decide(self, key: Any, state: Any, observation: Observation) -> Any:
        return {"asked": state["asked"] * 1.0}, best_feasible(observation, -observation.queue_s)


class PythonIf(Fine):
    def answer(self, action: Action, observation: Observation) -> Action:
        return action if observation.core.queued.sum() > 0 else place(0, 0)


class Raises(Fine):
    def answer(self, action: Action, observation: Observation) -> Action:
        raise KeyError("oops")


class NoState(Fine):
    def init(self, topology: Any) -> Any:
        raise RuntimeError("no weights")


class PlainState(Fine):
    def init(self, topology: Any) -> Any:
        return {"asked": 0}


class LooksAhead(Fine):
    """At jobs that have not arrived."""

    def answer(self, action: Action, observation: Observation) -> Action:
        return place(action.gang, observation.workload.arrival_whole[0] % 2)


@pytest.mark.parametrize(
    ("policy", "message", "hint"),
    [
        (FloatDevice(), "an action whose device is float32()", "integer scalar"),
        (VectorGang(), "an action whose gang is int32(1,)", "integer scalar"),
        (FloatMore(), "an action whose more is float32()", "boolean"),
        (WholeSeconds(), "an action whose seconds is int32()", "float"),
        (BareNumbers(), "returned tuple, not an Action", "sy.place"),
        (Shrinks(), "changed the structure of its state", "same tree"),
        (Widens(), "changed the structure of its state", "dtypes"),
        (PythonIf(), "could not be traced: TracerBoolConversionError", "no Python `if`"),
        (Raises(), "could not be traced: KeyError: 'oops'", "jax.numpy"),
        (NoState(), "init failed: RuntimeError: no weights", "pytree of JAX arrays"),
        (PlainState(), "init failed", "pytree of JAX arrays"),
        (LooksAhead(), "could not be traced: TypeError", "jax.numpy"),
    ],
    ids=lambda value: value.name if isinstance(value, Policy) else "",
)
def test_the_signature(cheap: list[Scenario], policy: Policy, message: str, hint: str) -> None:
    error = refusal(policy, cheap)
    assert message in error.message
    assert hint in error.hint
