"""Policies for tests that say beforehand where everything goes, or misbehave in one way."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from symphony.scheduling.feasible import open_to
from symphony.scheduling.policy import Action, Observation, Policy, best_feasible, choose, pick_gang, place, wait
from symphony.scheduling.state import RUNNING


class Scripted(Policy):
    """The oldest gang first; each worker goes where the script says."""

    devices: jax.Array  # i32[jobs, gangs, workers]

    def init(self, topology: Any) -> None:
        """No state."""

    def decide(self, key: Any, state: Any, observation: Observation) -> tuple[Any, Action]:
        """The next worker of the oldest gang."""
        gang = pick_gang(observation)
        return state, place(gang, scripted_device(self.devices, observation, gang))


def scripted_device(devices: jax.Array, observation: Observation, gang: jax.Array) -> jax.Array:
    """Where the next worker of a gang goes."""
    tasks = observation.workload.kernel.shape[1]
    return devices[observation.core.job[gang // tasks], gang % tasks, observation.core.placed[gang]]


def script(plan: list[list[list[int]]], *, gangs: int, workers: int) -> jax.Array:
    """A plan, as devices of the workers of the gangs of each job, as an array."""
    devices = np.zeros((len(plan), gangs, workers), np.int32)
    for job, of_job in enumerate(plan):
        for gang, of_gang in enumerate(of_job):
            devices[job, gang, : len(of_gang)] = of_gang
    return jnp.asarray(devices)


class WaitsForEver(Policy):
    """Never places anything."""

    def init(self, topology: Any) -> None:
        """No state."""

    def decide(self, key: Any, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Wait."""
        return state, wait()


class Patient(Policy):
    """While something runs, holds the oldest gang that could start for so long; then decides as another policy does."""

    then: Policy
    seconds: float = 0.2

    def init(self, topology: Any) -> Any:
        """That of the other."""
        return self.then.init(topology)

    def prepare(self, topology: Any, workload: Any) -> Any:
        """As the other does."""
        return self.then.prepare(topology, workload)

    def decide(self, key: Any, state: Any, observation: Observation) -> tuple[Any, Action]:
        """A wait that ends when the time is over, or what the other says."""
        core = observation.core
        gang = pick_gang(observation)
        left_s = self.seconds - core.held.total[gang]
        holds = open_to(core, observation.topology)[gang] & (core.status == RUNNING).any() & (left_s > 1e-4)
        state, action = self.then.decide(key, state, observation)
        return state, choose(holds, wait(left_s), action)


class BreaksRules(Policy):
    """Every third decision asks for a device that does not exist."""

    def init(self, topology: Any) -> jax.Array:
        """How often it has decided."""
        return jnp.asarray(0)

    def decide(self, key: Any, state: Any, observation: Observation) -> tuple[Any, Action]:
        """A placement, or nonsense."""
        good = best_feasible(observation, -observation.queue_s)
        return state + 1, choose(state % 3 == 0, place(good.gang, -1), good)
