"""Policies that consider queues only."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

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
    """A uniformly random candidate on a uniformly random feasible device."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        gang_key, device_key = jax.random.split(key)
        gang = pick_gang(observation, jax.random.uniform(gang_key, observation.core.status.shape))
        score = jax.random.uniform(device_key, observation.core.up.shape)
        return state, place(gang, best_device(observation, gang, score))


class Fifo(Policy):
    """One central queue: the oldest gang is placed on the first idle device that can run it; if none is idle, all wait.

    A gang of several workers waits until as many devices are idle. Speeds and transfers are ignored.
    """

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        gang = pick_gang(observation)
        idle = idle_devices(observation)
        partly = observation.core.status[gang] == PLACING
        enough = (observation.feasible(gang) & idle).sum() >= observation.facts(gang).workers
        go = place(gang, best_device(observation, gang, idle.astype(float)))
        return state, choose(partly | enough, go, wait())


class ShortestQueue(Policy):
    """The oldest gang is placed on the device with the least work ahead of it, in isolated seconds."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        return state, best_feasible(observation, -observation.queue_s)


class Sjf(Policy):
    """Shortest job first: the gang with the least isolated time on its best device kind is placed on the device with
    the least queue plus run time. Transfers, reconfiguration and contention are ignored."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        w = observation.workload
        seconds = w.time_fixed[w.kernel] + w.time_work[w.kernel] * w.work[..., None]
        able = (w.runs_on[..., None] >> jnp.arange(seconds.shape[-1])) & 1 > 0
        best = jnp.where(able, seconds * w.units[..., None], jnp.inf).min(axis=-1)
        gang = pick_gang(observation, -observation.per_gang(best))
        return state, place(gang, best_device(observation, gang, -(observation.queue_s + observation.seconds(gang))))
