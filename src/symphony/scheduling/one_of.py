"""Several policies in one compiled program, one of them chosen at run time.

The simulator takes far longer to compile than a policy. A comparison of n policies compiles it once, not n times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.policy import Action, Observation, Policy
from symphony.telemetry.tuning import FILTER_FACTORS, Tuning


class OneOf(Policy):
    """Decides as the policy at `index` does."""

    policies: tuple[Policy, ...]
    index: Array  # i32[]

    @property
    def cheats(self) -> bool:  # type: ignore[override]
        """Whether any of them does; the others are not shown what only cheats may see."""
        return any(policy.cheats for policy in self.policies)

    @property
    def tuning(self) -> Tuning | None:
        """The chosen one's."""
        given = [policy.tuning for policy in self.policies]
        if all(one is None for one in given):
            return None
        factors = jnp.stack([jnp.zeros(FILTER_FACTORS) if one is None else one.factors for one in given])
        return Tuning(factors[self.index])

    def init(self, topology: TopologyArrays) -> tuple[Any, ...]:
        """The states of all."""
        return tuple(policy.init(topology) for policy in self.policies)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> tuple[Any, ...]:
        """What each of them prepares."""
        return tuple(policy.prepare(topology, workload) for policy in self.policies)

    def decide(self, key: Array, state: tuple[Any, ...], observation: Observation) -> tuple[tuple[Any, ...], Action]:
        """The action of the chosen one; the states of the others stay."""

        def branch(number: int) -> Any:
            def run(key: Array, state: tuple[Any, ...]) -> tuple[tuple[Any, ...], Action]:
                policy = self.policies[number]
                shown = replace(
                    observation,
                    prepared=observation.prepared[number],
                    true_background=observation.true_background if policy.cheats else None,
                )
                new, action = policy.decide(key, state[number], shown)
                return (*state[:number], new, *state[number + 1 :]), action

            return run

        return jax.lax.switch(self.index, [branch(n) for n in range(len(self.policies))], key, state)
