"""Policies that look at queues only."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from symphony.problem.arrays import TopologyArrays
from symphony.scheduling.policy import (
    Action,
    Observation,
    Policy,
    best_device,
    best_feasible,
    choose,
    idle_devices,
    pick_gang,
    place,
    wait,
)
from symphony.scheduling.state import PLACING


class Random(Policy):
    """Any candidate on any feasible device, each as likely as the other."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Draw a gang, then a device."""
        gang_key, device_key = jax.random.split(key)
        gang = pick_gang(observation, jax.random.uniform(gang_key, observation.core.status.shape))
        score = jax.random.uniform(device_key, observation.core.up.shape)
        return state, place(gang, best_device(observation, gang, score))


class Fifo(Policy):
    """One central queue: the oldest gang goes to the first idle device that can run it; if none is idle, all wait.

    A gang of several workers waits until as many devices are idle. It looks at no speed, queue or transfer.
    """

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Oldest gang, first idle device; or wait."""
        gang = pick_gang(observation)
        idle = idle_devices(observation)
        partly = observation.core.status[gang] == PLACING
        enough = (observation.feasible(gang) & idle).sum() >= observation.facts(gang).workers
        go = place(gang, best_device(observation, gang, idle.astype(float)))
        return state, choose(partly | enough, go, wait())


class ShortestQueue(Policy):
    """The oldest gang goes to the device with the least work ahead of it."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Oldest gang, shortest queue in isolated seconds."""
        return state, best_feasible(observation, -observation.queue_s)


class Sjf(Policy):
    """Shortest job first: the gang with the least isolated time on its best device kind goes to the device with the
    least queue plus run time. It looks at no transfer, reconfiguration or contention."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Least isolated time first, on the device with the shortest queue plus run time."""
        w = observation.workload
        seconds = w.time_fixed[w.kernel] + w.time_work[w.kernel] * w.work[..., None]
        able = (w.runs_on[..., None] >> jnp.arange(seconds.shape[-1])) & 1 > 0
        best = jnp.where(able, seconds * w.units[..., None], jnp.inf).min(axis=-1)
        gang = pick_gang(observation, -observation.per_gang(best))
        return state, place(gang, best_device(observation, gang, -(observation.queue_s + observation.seconds(gang))))
