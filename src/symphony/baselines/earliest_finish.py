"""Policies that place where a gang would finish first. They differ in the order of gangs and in what they know.

HEFT (Topcuoglu, Hariri, Wu, 2002) ranks tasks by the longest path to the end of their graph and gives each to the
processor with the earliest finish time. Ours decides when gangs become ready, because jobs arrive unannounced; so it
appends to queues and never inserts before what is queued.
"""

from __future__ import annotations

from typing import Any, ClassVar

from jax import Array

from symphony.problem.arrays import TopologyArrays
from symphony.scheduling.estimate import finish_s
from symphony.scheduling.policy import Action, Observation, Policy, best_device, pick_gang, place


class EftStatic(Policy):
    """Oldest gang first, earliest finish by profiles alone: contention is ignored."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Least estimated finish."""
        gang = pick_gang(observation)
        return state, place(gang, best_device(observation, gang, -finish_s(observation, gang)))


class EftBelief(Policy):
    """Oldest gang first, earliest finish given own loads and the background load that counters suggest."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Least estimated finish under the belief's mean."""
        gang = pick_gang(observation)
        return state, place(gang, best_device(observation, gang, -finish_s(observation, gang, observation.background)))


class EftExact(Policy):
    """As `EftBelief`, but sees the true background load: it cheats."""

    cheats: ClassVar[bool] = True

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Least estimated finish under the truth."""
        assert observation.true_background is not None
        gang = pick_gang(observation)
        score = -finish_s(observation, gang, observation.true_background)
        return state, place(gang, best_device(observation, gang, score))


class Heft(Policy):
    """Highest upward rank first, earliest finish by profiles alone."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Highest rank, least estimated finish."""
        gang = pick_gang(observation, observation.per_gang(observation.workload.rank))
        return state, place(gang, best_device(observation, gang, -finish_s(observation, gang)))
