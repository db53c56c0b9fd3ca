"""Optimus: the jobs that gain most for a device come first, on as few machines as possible (Peng et al., EuroSys 2018).

Optimus fits, while jobs run, how many iterations each still needs and how its speed depends on its workers. At regular
intervals it gives every job one worker and then hands out the rest one at a time, each to the job whose remaining time
falls most by it. Jobs are then placed smallest first, each on the fewest servers that hold it, its workers spread
evenly over those.

Where ours differs: a gang here has a fixed number of workers, so there is no n-th worker to decide on: a gang gets all
its devices or none. What remains of the marginal gain is the order: the gang that finishes for the fewest
device-seconds first. The number of iterations left is what the gang reports, and speeds come from profiles, so nothing
is fitted. Gangs are preempted only at the end of an interval (a counter window of the scenario); between them, idle
devices go to the first in order that fits. Placement on the fewest machines is as theirs, with the fastest device kind
that has room chosen first.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from symphony.baselines.preemptive import place_or_preempt, remaining_s
from symphony.problem.arrays import TopologyArrays
from symphony.scheduling.policy import WAIT, Action, Observation, Policy


class Optimus(Policy):
    """Fewest device-seconds left first; running gangs make room at the end of an interval."""

    def init(self, topology: TopologyArrays) -> Array:
        """Intervals that are over and dealt with."""
        return jnp.zeros((), jnp.int32)

    def decide(self, key: Array, state: Array, observation: Observation) -> tuple[Array, Action]:
        """The gang that needs least; room is made for it if an interval has just ended."""
        windows = observation.core.windows
        left = remaining_s(observation) * observation.core.workers
        action = place_or_preempt(observation, left, preempts=windows > state)
        # An interval is dealt with when nothing more is to be done about it.
        return jnp.where(action.kind == WAIT, windows, state).astype(jnp.int32), action
