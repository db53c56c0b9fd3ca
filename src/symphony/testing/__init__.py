"""Public conformance checks for policies, contention models, counter sources and engines of users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.problem.errors import InputError, PolicyError
from symphony.problem.topologies import topology
from symphony.scheduling.policy import Action, Policy, check_instance
from symphony.simulator.contention import ContentionModel
from symphony.simulator.rollout import Carry, begin, observe
from symphony.simulator.run import simulate
from symphony.simulator.scenario_source import scenario
from symphony.simulator.scenarios import Disturbances, Scenario, scenario_arrays
from symphony.testing.counter_sources import check_counter_source
from symphony.testing.engines import check_engine

__all__ = ["check_contention_model", "check_counter_source", "check_engine", "check_policy"]


def check_policy(policy: Policy, scenarios: Sequence[Scenario] | None = None) -> None:
    """Raise `PolicyError`, saying what to change, unless a policy keeps its contract.

    Checked on small scenarios with heterogeneous devices, gangs, FPGAs, failures and hidden tenants (or on yours):
    `decide` returns an `Action` of integer scalars and a state of unchanged structure, is pure, breaks no rule, and
    lets every job complete.
    """
    check_instance(policy)
    chosen = list(scenarios) if scenarios is not None else _scenarios()
    for instance in chosen:
        _check_signature(policy, instance)
        first, second = (simulate([instance], policy)[0] for _ in range(2))
        if first.refused:
            raise PolicyError(
                f"{first.refused} of the {first.decisions} actions of {policy.name} were not allowed "
                f"(workload {instance.workload.name!r}, seed {instance.seed})",
                hint="place only gangs in observation.candidates on devices in observation.feasible(gang)",
            )
        if first.jobs != second.jobs:
            raise PolicyError(
                f"{policy.name} decided differently in two equal runs",
                hint="draw randomness from `key` only, and keep no state outside `state`",
            )
        if len(first.jobs) != len(instance.workload.jobs):
            raise PolicyError(f"{policy.name} completed {len(first.jobs)} of {len(instance.workload.jobs)} jobs")


def _scenarios() -> list[Scenario]:
    disturbances = Disturbances(failures_per_day=200.0, repair_s=20.0)
    machine, cluster = topology("machine"), topology("gpu24")
    return [
        scenario(machine, "layered?jobs=6&tasks=8&arrivals=bursty", 0, disturbances),
        scenario(machine, "variant-calling?jobs=3", 1, disturbances),
        scenario(cluster, "training?jobs=8", 2),
    ]


def _check_signature(policy: Policy, instance: Scenario) -> None:
    """Check shapes and dtypes by tracing `init` and `decide`; nothing is computed."""
    arrays = jax.device_put(scenario_arrays(instance))
    try:
        carry = jax.eval_shape(lambda key: begin(arrays, policy, key), jax.random.key(0))
    except Exception as error:
        raise PolicyError(
            f"{policy.name}.init failed: {type(error).__name__}: {error}", hint="return a pytree of JAX arrays, or None"
        ) from error

    def decide(carry: Carry) -> tuple[Any, Any]:
        seen = observe(carry.world, arrays, policy.cheats, carry.prepared)
        return policy.decide(carry.key, carry.policy_state, seen)

    try:
        state, action = jax.eval_shape(decide, carry)
    except Exception as error:
        raise PolicyError(
            f"{policy.name}.decide could not be traced: {type(error).__name__}: {error}",
            hint="use jax.numpy on the observation's arrays, and no Python `if` on their values",
        ) from error
    if not isinstance(action, Action):
        raise PolicyError(f"{policy.name}.decide returned {type(action).__name__}, not an Action", hint="use sy.place")
    for name, value in vars(action).items():
        wanted = {"more": np.bool_, "seconds": np.floating}.get(name, np.integer)
        if value.shape != () or not np.issubdtype(value.dtype, wanted):
            raise PolicyError(
                f"{policy.name}.decide returned an action whose {name} is {value.dtype}{value.shape}",
                hint="every field of an action is an integer scalar, except `more` (boolean) and `seconds` (float)",
            )
    before = jax.tree.map(lambda x: (x.shape, x.dtype), carry.policy_state)
    after = jax.tree.map(lambda x: (x.shape, x.dtype), state)
    if before != after:
        raise PolicyError(
            f"{policy.name}.decide changed the structure of its state from {before} to {after}",
            hint="return a state with the same tree, shapes and dtypes as that of init",
        )


_SHARE_TOLERANCE = 1e-5  # shares are 32-bit floats


def check_contention_model(model: ContentionModel) -> None:
    """Raise `InputError`, saying what to change, unless a contention model keeps its contract.

    `share`: in (0, 1], 1 at load 0, non-increasing in the load. `compose`: reduces the last axis, in (0, 1], 1 if all
    used rows have a share of 1, independent of unused rows and of the order of rows, at most the smallest used share,
    and non-decreasing in every share. Both can be traced, broadcast, and are deterministic.
    """
    name = type(model).__name__

    def expect(holds: object, what: str, hint: str) -> None:
        if not holds:
            raise InputError(what, where=f"contention model {name}", hint=hint)

    loads = jnp.concatenate([jnp.linspace(0.0, 4.0, 257), jnp.geomspace(4.1, 4096.0, 64)])
    share = _traced(name, "share", model.share, loads)
    expect(
        share.shape == loads.shape,
        f"share of loads {loads.shape} has shape {share.shape}",
        "return a share for every load",
    )
    expect(_in_range(share), "a share is not in (0, 1]", "use jnp.minimum(…, 1), and let it fall towards 0 slowly")
    expect(share[0] == 1, f"the share of an idle row is {share[0]:.3g}, not 1", "return 1 where the load is 0")
    rises = np.flatnonzero(np.diff(share) > _SHARE_TOLERANCE)
    at = (
        f" (from {share[rises[0]]:.3g} to {share[rises[0] + 1]:.3g} at load {loads[rises[0]]:.3g})"
        if len(rises)
        else ""
    )
    expect(len(rises) == 0, f"the share rises with the load{at}", "use a non-increasing function, such as 1 / load")

    # As in the simulator: shares of the rows of each device, and which of them each span crosses.
    rng = np.random.default_rng(0)
    rows = rng.uniform(0.05, 1.0, (64, 1, 6)).astype(np.float32) ** rng.integers(0, 2, (64, 1, 6))
    used = rng.random((64, 5, 6)) < 0.5
    used[:, 0] = False
    used[:, 1] = True
    composed = _traced(name, "compose", model.compose, jnp.asarray(rows, jnp.float32), jnp.asarray(used))
    expect(
        composed.shape == used.shape[:-1],
        f"compose of shares {rows.shape} and used {used.shape} has shape {composed.shape}, not {used.shape[:-1]}",
        "let shares and used broadcast, and reduce the last axis only",
    )
    expect(_in_range(composed), "a composed share is not in (0, 1]", "combine shares by min or product")

    def again(shares: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.asarray(model.compose(jnp.asarray(shares, jnp.float32), jnp.asarray(mask)))

    expect(
        np.allclose(again(np.where(used, rows, 0.01), used), composed, atol=_SHARE_TOLERANCE),
        "compose depends on rows that are not used",
        "start from jnp.where(used, shares, 1)",
    )
    smallest = np.where(used, rows, 1).min(axis=-1)
    expect(
        (composed[:, 0] == 1).all(), "compose is not 1 where no row is used", "start from jnp.where(used, shares, 1)"
    )
    expect(
        (composed[smallest == 1] == 1).all(),
        "compose is not 1 where every used row has a share of 1",
        "do not slow down work on uncontended rows",
    )
    expect(
        (composed <= smallest + _SHARE_TOLERANCE).all(),
        "compose exceeds the smallest used share",
        "take jnp.minimum of the result and the smallest used share",
    )

    expect(
        np.allclose(again(rows[..., ::-1], used[..., ::-1]), composed, atol=_SHARE_TOLERANCE),
        "compose depends on the order of rows",
        "treat all rows alike: their order is that of the topology file",
    )
    expect(
        (again(rows * 0.9, used) <= composed + _SHARE_TOLERANCE).all(),
        "compose rises when shares fall",
        "use a function that is non-decreasing in every share",
    )


def _in_range(shares: np.ndarray) -> bool:
    return bool((np.isfinite(shares) & (shares > 0) & (shares <= 1)).all())


def _traced(name: str, method: str, function: Callable[..., Array], *arguments: Array) -> np.ndarray:
    """The result of a function, after checking that it can be traced, returns floats and is pure."""
    where = f"contention model {name}"
    try:
        traced = jax.eval_shape(function, *arguments)
        answer, again = function(*arguments), function(*arguments)
    except Exception as error:
        raise InputError(
            f"{method} could not be traced: {type(error).__name__}: {error}",
            where=where,
            hint="use jax.numpy, and no Python `if` on the values",
        ) from error
    if not jnp.issubdtype(traced.dtype, jnp.floating):
        raise InputError(f"{method} returns {traced.dtype}", where=where, hint="return floats")
    if not np.array_equal(answer, again):
        raise InputError(
            f"{method} returned different results for equal arguments",
            where=where,
            hint="keep no state, draw no random numbers",
        )
    return np.asarray(answer)
