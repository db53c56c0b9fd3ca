"""Optimus: largest marginal gain per device first, on as few machines as possible (Peng et al., EuroSys 2018).

Optimus estimates, while jobs run, how many iterations each still needs and how its speed depends on its workers. At
regular intervals it gives every job one worker and then assigns further workers one at a time, each to the job whose
remaining time it reduces most. Jobs are then placed smallest first, each on the fewest servers that fit it, its workers
spread evenly over those.

Differences here: a gang has a fixed number of workers, so it gets all its devices or none. What remains of the marginal
gain is the order: fewest remaining device-seconds first. Gangs report their remaining iterations, and speeds come from
profiles, so nothing is fitted. Gangs are preempted only at the end of an interval (a counter window of the scenario);
in between, idle devices go to the first gang in order that fits. Placement on the fewest machines is as in Optimus, on
the fastest device kind with room.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from symphony.baselines.preemptive import place_or_preempt, remaining_s
from symphony.problem.arrays import TopologyArrays
from symphony.scheduling.indexing import IntScalar
from symphony.scheduling.policy import WAIT, Action, Observation, Policy


class Optimus(Policy):
    """Fewest remaining device-seconds first, with preemption at the end of an interval."""

    def init(self, topology: TopologyArrays) -> IntScalar:
        """Number of intervals that have been handled."""
        return jnp.zeros((), jnp.int32)

    def decide(self, key: Array, state: IntScalar, observation: Observation) -> tuple[IntScalar, Action]:
        windows = observation.core.windows
        left = remaining_s(observation) * observation.core.workers
        action = place_or_preempt(observation, left, preempts=windows > state)
        # An interval has been handled when the policy has no further action for it.
        return jnp.where(action.kind == WAIT, windows, state).astype(jnp.int32), action
