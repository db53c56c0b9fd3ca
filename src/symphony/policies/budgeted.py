"""The learned policy under a time budget: it decides about gangs that take long enough, a heuristic about the others.

A decision of the network takes time. For short gangs it is not worth it, and the heuristic of its own prior, earliest
finish under the belief, places them. In real runs the bound follows from the time that decisions take
(`runtime/budget.py`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from symphony.baselines import EftBelief
from symphony.estimation.tuning import Tuning
from symphony.policies.late_binding import LateBinding
from symphony.policies.learned import Learned, Memory, first_come
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.indexing import FloatScalar, float_array, take
from symphony.scheduling.policy import Action, Observation, Policy, pick_gang

COMPILED_LEAST_S = 0.02  # of a compiled program, whose decisions take about a millisecond: a twentieth of the gang


class Budgeted(Policy):
    """`policy` if the oldest gang takes at least `least_s` on its fastest device kind, else `EftBelief`."""

    policy: Learned | LateBinding
    least_s: FloatScalar

    def __init__(self, policy: Learned | LateBinding, least_s: float = COMPILED_LEAST_S) -> None:
        self.policy, self.least_s = first_come(policy), float_array(least_s)

    @property
    def name(self) -> str:
        return f"{self.policy.name.removesuffix('-late')}-budget"

    @property
    def tuning(self) -> Tuning:
        return self.policy.tuning

    def init(self, topology: TopologyArrays) -> Memory:
        return self.policy.init(topology)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Any:
        return self.policy.prepare(topology, workload)

    def decide(self, key: Array, state: Memory, observation: Observation) -> tuple[Memory, Action]:
        gang = pick_gang(observation)
        f = observation.facts(gang)
        able = (take(observation.core.runs_on, gang) >> observation.topology.device_kind) & 1 > 0
        best_s = jnp.where(able & observation.topology.exists, observation.seconds(gang), jnp.inf).min()
        whole = f.index < jnp.asarray(observation.workload.gangs)[f.graph]  # else it is a task of a window
        worth = (gang >= 0) & whole & (best_s >= self.least_s)
        return jax.lax.cond(
            worth,
            lambda: self.policy.decide(key, state, observation),
            lambda: EftBelief().decide(key, state, observation),
        )
