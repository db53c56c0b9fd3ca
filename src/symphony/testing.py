"""Public checks for what users plug in: does it keep its contract?"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from symphony.evaluation.compare import scenario
from symphony.problem.errors import PolicyError
from symphony.problem.topologies import topology
from symphony.scheduling.policy import Action, Policy
from symphony.simulator.rollout import begin, observe
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import Disturbances, Scenario, scenario_arrays

__all__ = ["check_policy"]


def check_policy(policy: Policy, scenarios: Sequence[Scenario] | None = None) -> None:
    """Raise `PolicyError`, saying what to change, unless a policy keeps its contract.

    Checked on small scenarios with unlike devices, gangs, FPGAs, failures and hidden tenants (or on yours): `decide`
    answers with an `Action` of integer scalars and a state of unchanged structure, is pure, breaks no rule, and lets
    every job complete.
    """
    chosen = list(scenarios) if scenarios is not None else _scenarios()
    for one in chosen:
        _check_signature(policy, one)
        first, second = (simulate([one], policy)[0] for _ in range(2))
        if first.refused:
            raise PolicyError(
                f"{policy.name} asked for {first.refused} of {first.decisions} actions against the rules "
                f"(workload {one.workload.name!r}, seed {one.seed})",
                hint="place only gangs in observation.candidates on devices in observation.feasible(gang)",
            )
        if first.jobs != second.jobs:
            raise PolicyError(
                f"{policy.name} decided differently in two equal runs",
                hint="draw randomness from `key` only, and keep no state outside `state`",
            )
        if len(first.jobs) != len(one.workload.jobs):
            raise PolicyError(f"{policy.name} completed {len(first.jobs)} of {len(one.workload.jobs)} jobs")


def _scenarios() -> list[Scenario]:
    disturbances = Disturbances(failures_per_day=200.0, repair_s=20.0)
    machine, cluster = topology("machine"), topology("gpu24")
    return [
        scenario(machine, "layered?jobs=6&tasks=8&arrivals=bursty", 0, disturbances),
        scenario(machine, "variant-calling?jobs=3", 1, disturbances),
        scenario(cluster, "training?jobs=8", 2),
    ]


def _check_signature(policy: Policy, one: Scenario) -> None:
    arrays = jax.tree.map(jnp.asarray, scenario_arrays(one))
    try:
        carry = begin(arrays, policy, jax.random.key(0))
    except Exception as error:
        raise PolicyError(
            f"{policy.name}.init failed: {type(error).__name__}: {error}",
            hint="return a pytree of JAX arrays, or None",
        ) from error
    try:
        state, action = jax.eval_shape(
            policy.decide, carry.key, carry.policy_state, observe(carry.world, arrays, policy.cheats, carry.prepared)
        )
    except Exception as error:
        raise PolicyError(
            f"{policy.name}.decide could not be traced: {type(error).__name__}: {error}",
            hint="use jax.numpy on the observation's arrays, and no Python `if` on their values",
        ) from error
    if not isinstance(action, Action):
        raise PolicyError(f"{policy.name}.decide answered {type(action).__name__}, not an Action", hint="use sy.place")
    for name, value in vars(action).items():
        if value.shape != () or not np.issubdtype(value.dtype, np.integer):
            raise PolicyError(
                f"{policy.name}.decide answered an action whose {name} is {value.dtype}{value.shape}",
                hint="each field of an action is an integer scalar",
            )
    before = jax.tree.map(lambda x: (x.shape, x.dtype), carry.policy_state)
    after = jax.tree.map(lambda x: (x.shape, x.dtype), state)
    if before != after:
        raise PolicyError(
            f"{policy.name}.decide changed the structure of its state from {before} to {after}",
            hint="return a state with the same tree, shapes and dtypes as init gives",
        )
