"""A plan for work that is known in advance: schedules drawn from the learned policy, the best of them improved.

policy, greedy ─┐             ┌► rebuilt in the sketch ┐
policy, drawn ──┼─► plans ────┴────────────────────────┴► local search in the simulator ─► plan
heuristics ─────┘
plan ─► followed in the simulator: the value ─► against the largest lower bound: the distance
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
from symphony.problem.errors import InputError
from symphony.scheduling.policy import Policy
from symphony.simulator.contention import ContentionModel
from symphony.simulator.records import RunRecord
from symphony.simulator.scenarios import Scenario

HEURISTICS = ("heft", "peft", "dmdas", "eft-static")  # to start from as well: on each kind of graph one of them is good
SAMPLING_TIME_SHARE = 0.25  # share of the time that drawing may take
REBUILD_TIME_SHARE = 0.5  # share of it for plans that are rebuilt in the sketch, where all gangs have one worker
GREEDY = "greedy"
Progress = Callable[[str, float, float], None]  # what is being done, share of it, best value so far


@dataclass(frozen=True)
class Planned:
    """A plan, what it comes to in the simulator, and what it was made from."""

    scenario: Scenario = field(repr=False)
    objective: Objective
    value_s: float  # of the plan, followed in the simulator
    bounds: Mapping[str, float]  # lower bounds that hold for every schedule, by name
    policy_name: str  # what schedules were drawn from
    greedy_s: float  # its own decisions
    heuristics: Mapping[str, float]  # by name
    samples_s: tuple[float, ...]  # drawn schedules, in the order of drawing
    rebuilt: int  # plans that were looked at in the sketch
    candidates: int  # plans that the search ran
    sampling_s: float  # time spent on drawing; compilation not counted
    rebuilding_s: float  # on rebuilding
    search_s: float  # on searching
    wall_s: float  # all in all, compilation included
    plan: Plan = field(repr=False)
    run: RunRecord = field(repr=False)
    policy: Policy = field(repr=False)  # does it again

    @property
    def bound_s(self) -> float:
        """The largest lower bound."""
        return max(self.bounds.values())

    @property
    def distance(self) -> float:
        """How far above the bound the plan is, as a fraction of the bound. The optimum lies between."""
        return self.value_s / self.bound_s - 1

    @property
    def best_sample_s(self) -> float:
        """The best of the drawn schedules."""
        return min(self.samples_s, default=math.inf)

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """Quality against budget: a number of samples, and the best of so many on average."""
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
    """Plan work that is known in advance, its arrivals and disturbances included.

    `seconds` are for drawing, rebuilding and searching; the simulator's compilation comes on top. Equal seeds give
    equal plans only with `rounds`, which counts rounds of rebuilding and of the search instead of time. `batch`
    schedules are run side by side.
    """
    learned = named(policy) if isinstance(policy, str) else policy
    if not isinstance(learned, Learned):
        raise InputError(f"{policy!r} does not learn", hint=f"use {SHIPPED}, or a file that symphony train wrote")
    if objective not in OBJECTIVES:
        raise InputError(f"the objective is {objective!r}", hint=f"write one of {', '.join(OBJECTIVES)}")
    if not seconds > 0:
        raise InputError(f"the time is {seconds!r} s", hint="write a number of seconds above 0")
    if samples < 0:
        raise InputError(f"samples are {samples!r}", hint="write how many schedules to draw, 0 or more")
    began = time.perf_counter()
    tell = progress or (lambda *_: None)
    i = instance(scenario)
    runs = Runs(i, objective, contention)
    tell("heuristics", 0.0, math.inf)
    decided = runs.decide({GREEDY: learned, **{name: named(name) for name in heuristics}})
    drawn, sampling_s = _drawn(
        i, learned, objective, samples, SAMPLING_TIME_SHARE * seconds, seed, batch, contention, tell
    )
    starts = _starts(i, decided, drawn, batch)
    left_s = seconds - min(sampling_s, SAMPLING_TIME_SHARE * seconds)
    rebuilt: list[Plan] = []
    looks, rebuilding_s = 0, 0.0
    if (i.workers == 1).all():
        rebuilt, looks, rebuilding_s = rebuild(
            i,
            objective,
            starts,
            time_s=REBUILD_TIME_SHARE * seconds,
            rounds=rounds,
            seed=seed,
            progress=lambda share, value_s: tell("rebuilding", share, value_s),
        )
        left_s -= min(rebuilding_s, REBUILD_TIME_SHARE * seconds)
    # In 64 bits, as the oracle does it: what a plan came to is compared with a bound.
    with jax.enable_x64(True):
        searched = runs.search(
            [*rebuilt, *starts],
            horizon_s=max(found.run.makespan_s for found in decided),
            time_s=left_s,
            rounds=rounds,
            seed=seed,
            batch=batch,
            name="plan",
            progress=lambda share, value_s: tell("search", share, value_s),
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
        rebuilt=looks,
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
    tell: Progress,
) -> tuple[list[SampledSchedule], float]:
    """So many schedules, or as many as time allows; and the time that they took."""
    if not samples:
        return [], 0.0
    tell("compiling", 0.0, math.inf)
    sampler = Sampler(i, learned, objective, contention=contention, batch=min(batch, samples))
    key = jax.random.key(seed)
    drawn = sampler(jax.random.fold_in(key, 0))  # compiles
    spent = 0.0
    while len(drawn) < samples and spent < time_s:
        tell("samples", len(drawn) / samples, min(sample.value_s for sample in drawn))
        began = time.perf_counter()
        drawn += sampler(jax.random.fold_in(key, len(drawn)))
        spent += time.perf_counter() - began
    return drawn[:samples], spent


def _starts(i: Instance, decided: list[FoundRun], drawn: list[SampledSchedule], most: int) -> list[Plan]:
    """Plans to search from: those of all policies, and of the best drawn runs. Runs that did not end have none."""
    best = sorted((sample for sample in drawn if sample.value_s < math.inf), key=lambda sample: sample.value_s)
    return [*(decode(i, found.run) for found in decided), *(sample.plan for sample in best[:most])]
