"""A plan for work that is known in advance: schedules are sampled from the learned policy, and the best improved.

policy, greedy ───┐             ┌► rebuilt in the sketch ┐
policy, sampled ──┼─► plans ────┴────────────────────────┴► local search in the simulator ─► plan
heuristics ───────┘
plan ─► simulated: the value ─► against the largest lower bound: the distance
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax
import numpy as np

from symphony.oracle.bounds import OBJECTIVES, Objective, lower_bounds
from symphony.oracle.instance import Instance, instance
from symphony.oracle.rebuild import rebuild
from symphony.oracle.replay import Plan, decode
from symphony.oracle.runs import FoundRun, Runs
from symphony.oracle.schedule_samples import SampledSchedule, Sampler, expected_best
from symphony.oracle.search import SIMULATION_BATCH
from symphony.policies import SHIPPED, Learned, named
from symphony.policies.learned import first_come
from symphony.problem.errors import InputError
from symphony.problem.program_cache import keep_programs
from symphony.scheduling.policy import Policy
from symphony.simulator.contention import ContentionModel
from symphony.simulator.records import RunRecord
from symphony.simulator.scenarios import Scenario

HEURISTICS = ("heft", "peft", "dmdas", "eft-static")  # starting points; one of them is good on each kind of graph
SAMPLING_TIME_SHARE = 0.25  # share of the time for sampling, at most
REBUILD_TIME_SHARE = 0.5  # share of the time for rebuilding in the sketch, if all gangs have one worker
GREEDY = "greedy"
Progress = Callable[[str, float, float], None]  # phase, share of it, best value so far


@dataclass(frozen=True)
class Planned:
    """A plan, its result in the simulator, and how it was found."""

    scenario: Scenario = field(repr=False)
    objective: Objective
    value_s: float  # of the plan, in the simulator
    bounds: Mapping[str, float]  # lower bounds that hold for every schedule, by name
    policy_name: str  # the policy that was sampled
    greedy_s: float  # the value of its most probable decisions
    heuristics: Mapping[str, float]  # values by name
    samples_s: tuple[float, ...]  # values of the sampled schedules, in order
    rebuilt: int  # plans that were evaluated in the sketch
    candidates: int  # plans that the search simulated
    sampling_s: float  # time for sampling, without compilation
    rebuilding_s: float
    search_s: float
    wall_s: float  # total, with compilation
    plan: Plan = field(repr=False)
    run: RunRecord = field(repr=False)
    policy: Policy = field(repr=False)  # follows the plan

    @property
    def bound_s(self) -> float:
        """The largest lower bound."""
        return max(self.bounds.values())

    @property
    def distance(self) -> float:
        """How far the plan is above the bound, as a fraction of the bound."""
        return self.value_s / self.bound_s - 1

    @property
    def best_sample_s(self) -> float:
        return min(self.samples_s, default=math.inf)

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """Pairs of a number of samples and the expected best of that many."""
        total = len(self.samples_s)
        counts = sorted({min(2**n, total) for n in range(total.bit_length() + 1)} - {0})
        values = np.asarray(self.samples_s)
        return tuple((count, expected_best(values, count)) for count in counts)


def plan(
    scenario: Scenario,
    *,
    policy: str | Learned = SHIPPED,
    heuristics: tuple[str, ...] = HEURISTICS,
    samples: int = 256,
    seconds: float = 20.0,
    objective: Objective = "makespan",
    seed: int = 0,
    rounds: int | None = None,
    batch: int = SIMULATION_BATCH,
    contention: ContentionModel | None = None,
    progress: Progress | None = None,
) -> Planned:
    """Plan work that is known in advance, with its arrivals and disturbances.

    `seconds` are for sampling, rebuilding and searching; compilation is not counted. Equal seeds give equal plans only
    with `rounds`, which limits the rounds of rebuilding and of the search. `batch` schedules are simulated at once.
    """
    learned = named(policy) if isinstance(policy, str) else policy
    if not isinstance(learned, Learned):
        raise InputError(
            f"{policy!r} is not a learned policy", hint=f"use {SHIPPED}, or a file that symphony train wrote"
        )
    if objective not in OBJECTIVES:
        raise InputError(f"the objective is {objective!r}", hint=f"write one of {', '.join(OBJECTIVES)}")
    if not seconds > 0:
        raise InputError(f"the time is {seconds!r} s", hint="write a number of seconds above 0")
    if samples < 0:
        raise InputError(f"samples are {samples!r}", hint="write the number of schedules to sample, 0 or more")
    keep_programs()
    began = time.perf_counter()
    report = progress or (lambda *_: None)
    i = instance(scenario)
    runs = Runs(i, objective, contention)
    report("heuristics", 0.0, math.inf)
    decided = runs.decide({GREEDY: first_come(learned), **{name: named(name) for name in heuristics}})
    drawn, sampling_s = _drawn(
        i, learned, objective, samples, SAMPLING_TIME_SHARE * seconds, seed, batch, contention, report
    )
    starts = _starts(i, decided, drawn, batch)
    left_s = seconds - min(sampling_s, SAMPLING_TIME_SHARE * seconds)
    rebuilt: list[Plan] = []
    evaluated, rebuilding_s = 0, 0.0
    if (i.workers == 1).all():
        rebuilt, evaluated, rebuilding_s = rebuild(
            i,
            objective,
            starts,
            time_s=REBUILD_TIME_SHARE * seconds,
            rounds=rounds,
            seed=seed,
            progress=lambda share, value_s: report("rebuilding", share, value_s),
        )
        left_s -= min(rebuilding_s, REBUILD_TIME_SHARE * seconds)
    # In 64 bits, as in the oracle: the value of a plan is compared with a bound.
    with jax.enable_x64(True):
        searched = runs.search(
            [*rebuilt, *starts],
            horizon_s=max(found.run.makespan_s for found in decided),
            time_s=left_s,
            rounds=rounds,
            seed=seed,
            batch=batch,
            name="plan",
            progress=lambda share, value_s: report("search", share, value_s),
        )
        bounds = lower_bounds(i, objective)
    found = searched.found
    assert found.plan is not None
    return Planned(
        scenario=i.scenario,
        objective=objective,
        value_s=found.value_s,
        bounds=bounds,
        policy_name=policy if isinstance(policy, str) else learned.name,
        greedy_s=decided[0].value_s,
        heuristics={name: other.value_s for name, other in zip(heuristics, decided[1:], strict=True)},
        samples_s=tuple(sample.value_s for sample in drawn),
        rebuilt=evaluated,
        candidates=searched.candidates,
        sampling_s=sampling_s,
        rebuilding_s=rebuilding_s,
        search_s=searched.seconds,
        wall_s=time.perf_counter() - began,
        plan=found.plan,
        run=found.run,
        policy=found.policy,
    )


def _drawn(
    i: Instance,
    learned: Learned,
    objective: Objective,
    samples: int,
    time_s: float,
    seed: int,
    batch: int,
    contention: ContentionModel | None,
    report: Progress,
) -> tuple[list[SampledSchedule], float]:
    """At most `samples` sampled schedules, as many as time allows; and the time for them."""
    if not samples:
        return [], 0.0
    report("compiling", 0.0, math.inf)
    sampler = Sampler(i, learned, objective, contention=contention, batch=min(batch, samples))
    key = jax.random.key(seed)
    drawn = sampler(jax.random.fold_in(key, 0))  # compiles
    spent = 0.0
    while len(drawn) < samples and spent < time_s:
        report("samples", len(drawn) / samples, min(sample.value_s for sample in drawn))
        began = time.perf_counter()
        drawn += sampler(jax.random.fold_in(key, len(drawn)))
        spent += time.perf_counter() - began
    return drawn[:samples], spent


def _starts(i: Instance, decided: list[FoundRun], drawn: list[SampledSchedule], most: int) -> list[Plan]:
    """Plans to start the search from: those of all policies and of the best sampled runs that finished."""
    best = sorted((sample for sample in drawn if sample.value_s < math.inf), key=lambda sample: sample.value_s)
    return [*(decode(i, found.run) for found in decided), *(sample.plan for sample in best[:most])]
