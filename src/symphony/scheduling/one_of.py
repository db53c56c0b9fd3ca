"""Several policies in one compiled program, one of them chosen at run time.

The simulator takes far longer to compile than a policy. A comparison of n policies compiles it once, not n times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from symphony.estimation.tuning import FILTER_FACTORS, Tuning
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.indexing import IntScalar
from symphony.scheduling.policy import Action, Observation, Policy


class OneOf(Policy):
    """Decides as the policy at `index`. States and prepared values are tuples, one entry for each policy."""

    policies: tuple[Policy, ...]
    index: IntScalar

    @property
    def cheats(self) -> bool:  # type: ignore[override]
        """Whether any policy cheats; the others are not shown the true background all the same."""
        return any(policy.cheats for policy in self.policies)

    @property
    def tuning(self) -> Tuning | None:
        tunings = [policy.tuning for policy in self.policies]
        if all(tuning is None for tuning in tunings):
            return None
        factors = jnp.stack([jnp.zeros(FILTER_FACTORS) if tuning is None else tuning.factors for tuning in tunings])
        return Tuning(factors[self.index])

    def init(self, topology: TopologyArrays) -> tuple[Any, ...]:
        return tuple(policy.init(topology) for policy in self.policies)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> tuple[Any, ...]:
        return tuple(policy.prepare(topology, workload) for policy in self.policies)

    def decide(self, key: Array, state: tuple[Any, ...], observation: Observation) -> tuple[tuple[Any, ...], Action]:
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
