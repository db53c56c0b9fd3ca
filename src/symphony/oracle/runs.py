"""Single runs of policies and plans on one instance, and the search from plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from symphony.oracle.bounds import Objective
from symphony.oracle.instance import Instance
from symphony.oracle.replay import Plan, script
from symphony.oracle.search import SIMULATION_BATCH, PlanSimulator, improve
from symphony.scheduling.one_of import OneOf
from symphony.scheduling.policy import Policy
from symphony.simulator.contention import ContentionModel
from symphony.simulator.records import RunRecord
from symphony.simulator.run import simulate

TIME_TOLERANCE = 1e-6  # relative difference up to which two times are equal: more than the simulator's rounding


@dataclass(frozen=True)
class FoundRun:
    """A policy or plan and its run."""

    value_s: float
    policy: Policy
    run: RunRecord
    plan: Plan | None  # None: a policy, not a plan


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    found: FoundRun
    candidates: int  # plans that were simulated
    seconds: float  # without compilation


@dataclass(frozen=True)
class Runs:
    """Runs of one instance. Call `replay` and `search` in 64 bits if values are compared with a bound."""

    i: Instance
    objective: Objective
    contention: ContentionModel | None

    def value(self, run: RunRecord) -> float:
        """The objective of a run, in seconds."""
        if self.objective == "makespan":
            return run.makespan_s
        return float(np.mean([job.completion_s for job in run.jobs]))

    def decide(self, policies: Mapping[str, Policy]) -> list[FoundRun]:
        """One run of each policy, in 32 bits as in comparisons, with one compiled program."""
        every = tuple(policies.values())
        found = []
        for index, (name, policy) in enumerate(policies.items()):
            one = OneOf(every, jnp.asarray(index, jnp.int32))
            with jax.enable_x64(False):
                run = simulate([self.i.scenario], one, name=name, contention=self.contention)[0]
            found.append(FoundRun(self.value(run), policy, run, None))
        return found

    def replay(self, plan: Plan, name: str = "oracle") -> FoundRun:
        """Simulate a plan."""
        policy = script(self.i, plan)
        run = simulate([self.i.scenario], policy, name=name, contention=self.contention)[0]
        return FoundRun(self.value(run), policy, run, plan)

    def search(
        self,
        plans: Sequence[Plan],
        *,
        horizon_s: float,
        time_s: float,
        rounds: int | None = None,
        seed: int = 0,
        batch: int = SIMULATION_BATCH,
        name: str = "oracle",
        progress: Callable[[float, float], None] | None = None,
    ) -> SearchResult:
        """Improve the best of the plans; `horizon_s` is the approximate length of a run."""
        simulator = PlanSimulator(self.i, self.objective, horizon_s=horizon_s, contention=self.contention, batch=batch)
        simulator(plans[:1])  # compiles
        began = time.perf_counter()
        plan, outcome, candidates = improve(
            simulator, plans, time_s=time_s, rounds=rounds, seed=seed, progress=progress
        )
        seconds = time.perf_counter() - began
        found = self.replay(plan, name)
        if abs(found.value_s - outcome.value_s) > TIME_TOLERANCE * found.value_s:
            raise AssertionError(f"the same plan took {outcome.value_s} s in a batch and {found.value_s} s alone")
        return SearchResult(found, candidates, seconds)
