"""Earliest-finish-time policies. They differ in the order of gangs and in the background load that they assume.

HEFT (Topcuoglu, Hariri, Wu, 2002) orders tasks by upward rank (the longest path to the end of their graph) and assigns
each to the processor with the earliest finish time. Here it decides when gangs become ready, because jobs arrive
unannounced; so it appends to queues and never inserts before queued gangs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from symphony.scheduling.estimate import EstimateParts, cost_s, estimate_parts, finish_s
from symphony.scheduling.indexing import NO_INDEX, first, smallest, take
from symphony.scheduling.policy import Action, Observation, Policy, best_device, choose, pick_gang, place, wait

MAX_REBOUND = 32  # gangs that are assigned again at every event


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


class EftRebinding(Policy):
    """As `EftBelief`, but a queued gang moves when another device would finish it earlier.

    Gangs are queued here, not at devices: at every event, the oldest are assigned again, each behind the older ones. A
    gang is sent to its device once that is free by the time the inputs are there. Gangs of several workers are placed
    at once.
    """

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        t, core = observation.topology, observation.core
        gangs = oldest(observation, min(MAX_REBOUND, core.status.shape[0]))
        parts = jax.vmap(
            lambda gang: estimate_parts(observation, gang, observation.background, observation.background_std)
        )(gangs)

        def assign(ahead_s: Array, one: tuple[Array, EstimateParts]) -> tuple[Array, tuple[Array, Array]]:
            gang, parts = one
            parts = replace(parts, queue=parts.queue + ahead_s)
            device = best_device(observation, gang, -parts.cost)
            sent = (gang >= 0) & (take(parts.queue, device) <= take(parts.fetch, device))
            sent |= take(core.workers, gang) > 1
            behind = (jnp.arange(ahead_s.shape[0]) == device) & (gang >= 0) & jnp.isfinite(parts.run)
            work = jnp.where(behind, parts.run * parts.slow / jnp.maximum(t.slots, 1), 0)
            return ahead_s + work, (sent, device)

        _, (sent, device) = jax.lax.scan(assign, jnp.zeros(t.exists.shape), (gangs, parts))
        at = first(sent)
        return state, choose(sent.any(), place(take(gangs, at), take(device, at)), wait())


def oldest(observation: Observation, count: int) -> Int[Array, " gangs"]:
    """The candidates that `pick_gang` would pick first, in that order; -1 = none."""
    core, tasks = observation.core, observation.workload.kernel.shape[1]
    allowed = observation.candidates
    priority = jnp.repeat(core.priority, tasks)
    allowed &= priority == jnp.where(allowed, priority, -NO_INDEX).max()
    return smallest(jnp.where(allowed, 1.0 * jnp.repeat(core.job, tasks), jnp.inf), count)


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
