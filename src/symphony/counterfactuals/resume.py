"""A policy that first puts running work back where it runs, then decides as another policy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from symphony.estimation.tuning import Tuning
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.indexing import NO_INDEX, IntScalar, first, take
from symphony.scheduling.policy import Action, Observation, Policy, choose, place, wait


class Resume(Policy):
    """At time 0, places gangs on the devices in `device`, and waits until all present jobs are admitted."""

    policy: Policy
    device: Int[Array, "graphs tasks workers"]  # -1 = the gang does not run
    present: IntScalar  # jobs that arrive at time 0

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def tuning(self) -> Tuning | None:
        return self.policy.tuning

    def init(self, topology: TopologyArrays) -> Any:
        return self.policy.init(topology)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Any:
        return self.policy.prepare(topology, workload)

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        core, now = observation.core, observation.now
        workers = self.device.shape[-1]
        held = self.device[core.graph].reshape(-1, workers)  # of the gangs in the system
        wanted = jnp.take_along_axis(held, jnp.minimum(core.placed, workers - 1)[:, None].astype(int), axis=1)[:, 0]
        gang = first(observation.candidates & (wanted >= 0))
        device = take(wanted, gang)
        begins = (now.whole == 0) & (now.part <= 0)
        runs = begins & (gang < NO_INDEX) & take(observation.feasible(jnp.minimum(gang, held.shape[0] - 1)), device)
        # Jobs beyond the slots are not admitted at time 0: there is nothing to wait for once all slots are taken.
        arriving = begins & (core.jobs_seen < self.present) & (core.job < 0).any()
        after, action = self.policy.decide(key, state, observation)
        kept = runs | arriving
        action = choose(runs, place(gang, device), choose(arriving, wait(), action))
        return jax.tree.map(lambda new, old: jnp.where(kept, old, new), after, state), action
