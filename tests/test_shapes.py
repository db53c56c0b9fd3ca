"""Shapes as types: the annotations of array code hold while whole runs are traced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
from jax import Array
from jaxtyping import Float, TypeCheckError, jaxtyped

from tests.shapes import checked

PROGRAM = """
from jaxtyping import install_import_hook

import tests.shapes

packages = [f"symphony.{name}" for name in ("scheduling", "simulator", "baselines", "policies", "envs")]
with install_import_hook(packages, "tests.shapes.checked"):
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    import symphony as sy
    from symphony.policies.explain import _evaluate_decision, _state_at_decision
    from symphony.policies.features import feature_jacobian
    from symphony.scheduling.one_of import OneOf
    from symphony.simulator import rollout, windowed_run
    from symphony.simulator.scenarios import pick, stack
    from tests.baselines.cheap import cheap_scenario

names = ["symphony", "symphony:4", "symphony-late", "look-ahead", *sy.baselines.BASELINES]
policies = tuple(sy.policies.named(name) for name in names)
every = OneOf(policies, jnp.asarray(0))
s, key, contention = pick(stack([cheap_scenario()]), 0), jax.random.key(0), sy.Bottleneck()


def steps(policy, alone):
    carry = rollout.begin(s, policy, key)
    carry, log = rollout.step(carry, s, policy, contention, record=True, alone=alone)
    return carry, log, windowed_run.snapshot(s, carry)


jax.eval_shape(lambda: steps(every, alone=False))
jax.eval_shape(lambda: steps(policies[0], alone=True))  # policies do not know whether they are alone
for number in (None, jnp.asarray(1)):
    found = eqx.filter_eval_shape(_state_at_decision, policies[0], s, jnp.uint32(0), contention, number)
    eqx.filter_eval_shape(_evaluate_decision, policies[0], *found)
env, params = sy.envs.make("tiny", seeds=range(2))
obs, state = jax.eval_shape(env.reset, key, params)
jax.eval_shape(env.step, key, state, jnp.asarray(0), params)
"""


@jaxtyped(typechecker=checked)
def double(x: Float[Array, " devices"], y: Float[Array, " devices"]) -> Float[Array, " devices"]:
    return x + y


def test_checker_finds_wrong_shapes() -> None:
    assert double(jnp.zeros(3), jnp.zeros(3)).shape == (3,)
    for wrong in (jnp.zeros(4), jnp.zeros((3, 1)), jnp.zeros(3, int)):
        with pytest.raises(TypeCheckError):
            double(jnp.zeros(3), wrong)


def test_shapes_hold_in_every_policy_and_in_the_simulator() -> None:
    """In a process of its own: functions are wrapped when their module is imported. Nothing is compiled."""
    root = Path(__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
