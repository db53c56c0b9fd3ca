"""Earliest-finish-time policies. They differ in the order of gangs and in the background load that they assume.

HEFT (Topcuoglu, Hariri, Wu, 2002) orders tasks by upward rank (the longest path to the end of their graph) and assigns
each to the processor with the earliest finish time. Here it decides when gangs become ready, because jobs arrive
unannounced; so it appends to queues and never inserts before queued gangs.
"""

from __future__ import annotations

from typing import Any, ClassVar

from jax import Array

from symphony.scheduling.estimate import cost_s, finish_s
from symphony.scheduling.policy import Action, Observation, Policy, best_device, pick_gang, place


class EftStatic(Policy):
    """Oldest gang first, earliest finish time by profiles alone: contention is ignored."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        gang = pick_gang(observation)
        return state, place(gang, best_device(observation, gang, -finish_s(observation, gang)))


class EftBelief(Policy):
    """Oldest gang first, earliest finish time given own loads and the belief about the background load.

    Seconds by which the gang would delay other work of ours count like its own.
    """

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        gang = pick_gang(observation)
        cost = cost_s(observation, gang, observation.background, observation.background_std)
        return state, place(gang, best_device(observation, gang, -cost))


class EftExact(Policy):
    """As `EftBelief`, with the true background load: it cheats."""

    cheats: ClassVar[bool] = True

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        assert observation.true_background is not None
        gang = pick_gang(observation)
        cost = cost_s(observation, gang, observation.true_background)
        return state, place(gang, best_device(observation, gang, -cost))


class Heft(Policy):
    """Highest upward rank first, earliest finish time by profiles alone."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        gang = pick_gang(observation, observation.per_gang(observation.workload.rank))
        return state, place(gang, best_device(observation, gang, -finish_s(observation, gang)))
