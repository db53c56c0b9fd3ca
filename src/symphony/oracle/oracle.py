"""The oracle: lower bounds, all baselines, an exact proof where one is possible, a local search elsewhere."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import jax
import numpy as np

from symphony.baselines import BASELINES, FOR_TRAINING, named
from symphony.oracle.bounds import OBJECTIVES, Objective, lower_bounds
from symphony.oracle.exact import ExactModel, SolverResult, SolverSettings, cp_sat
from symphony.oracle.instance import Instance, Subset, instance, subset
from symphony.oracle.replay import Plan, decode
from symphony.oracle.runs import TIME_TOLERANCE, FoundRun, Runs
from symphony.oracle.search import SIMULATION_BATCH
from symphony.problem.errors import InputError, SymphonyWarning
from symphony.problem.program_cache import keep_programs
from symphony.scheduling.policy import Policy
from symphony.simulator.contention import ContentionModel
from symphony.simulator.records import RunRecord
from symphony.simulator.scenarios import Scenario

FEWER_DEVICES_TIME_SHARE = 0.05  # share of the time for the check with fewer devices
MAX_EXACT_GANGS = 160  # with more, the exact model is not tried
FLOAT32_TOLERANCE = 1e-5  # relative; baselines run in 32 bits
Progress = Callable[[str, float, float, float], None]  # phase, share of the time, value, bound


@runtime_checkable
class ScenarioPlanner(Protocol):
    """Makes a policy for one scenario, with full knowledge of it, and is marked as a cheat for that."""

    cheats: ClassVar[bool]

    def plan(self, scenario: Scenario, contention: ContentionModel | None = None) -> Policy:
        """The policy to run on this scenario, and on no other."""
        ...


@dataclass(frozen=True)
class Check:
    """A condition for calling a plan optimal."""

    what: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Solution:
    """The oracle's result for one scenario."""

    objective: Objective
    value_s: float  # of `plan`, in the simulator
    label: str  # "optimal", "gap x%" or "best known"
    scope: str  # class of plans for which the label holds; "" = all
    bounds: Mapping[str, float]  # lower bounds that hold for every policy, by name
    outside: tuple[str, ...]  # why the exact model does not apply; () = it does
    baselines: Mapping[str, float]  # the objective under each
    checks: tuple[Check, ...]
    candidates: int  # plans that the search simulated
    solve_s: float  # time of proofs and search
    wall_s: float  # total time, with baselines and compilation
    run: RunRecord = field(repr=False)
    policy: Policy = field(repr=False)  # follows the plan

    @property
    def bound_s(self) -> float:
        """The largest lower bound."""
        return max(self.bounds.values())

    @property
    def best_baseline(self) -> str:
        return min(self.baselines, key=lambda name: self.baselines[name])


@dataclass(frozen=True)
class Oracle:
    """Plans a scenario with full knowledge of arrivals, true work, tenants and failures.

    `time_limit_s` is for solving and searching; compilation is not counted. `objective` is "makespan" or
    "mean_completion". Equal seeds give equal results only with `rounds` and `deterministic_s`, which limit work instead
    of time.
    """

    cheats: ClassVar[bool] = True

    time_limit_s: float = 60.0
    objective: Objective = "makespan"
    workers: int = 2  # threads of the solver
    seed: int = 0
    starts: tuple[str, ...] | None = None  # baselines to start from; None = all that suit the workload
    rounds: int | None = None  # of the local search
    batch: int = SIMULATION_BATCH  # plans that the search simulates at once
    deterministic_s: float = math.inf  # limit of each call of the solver, in its deterministic time

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"the objective is {self.objective!r}", hint=f"write one of {', '.join(OBJECTIVES)}")
        if not self.time_limit_s > 0:
            raise InputError(f"the time limit is {self.time_limit_s!r} s", hint="write a number of seconds above 0")

    def plan(self, scenario: Scenario, contention: ContentionModel | None = None) -> Policy:
        """The policy that follows the best plan found for a scenario."""
        return self.solve(scenario, contention).policy

    def solve(
        self, scenario: Scenario, contention: ContentionModel | None = None, *, progress: Progress | None = None
    ) -> Solution:
        """Bound, plan, verify and label one scenario."""
        cp_sat()  # fails before the long work if it is not installed
        keep_programs()
        # In 64 bits throughout: a proof is compared with a replay, and must not differ by rounding of the clock.
        with jax.enable_x64(True):
            return _Solve(self, scenario, contention, progress or (lambda *_: None)).solution()


class _Solve:
    """One call of `Oracle.solve`."""

    def __init__(
        self, oracle: Oracle, scenario: Scenario, contention: ContentionModel | None, progress: Progress
    ) -> None:
        self.o, self.progress = oracle, progress
        self.began = time.perf_counter()
        self.i: Instance = instance(scenario)
        self.subset: Subset = subset(self.i, contention)
        self.bounds = lower_bounds(self.i, oracle.objective)
        suitable = [name for name in BASELINES if name not in FOR_TRAINING or scenario.workload.preemptible]
        self.names = tuple(oracle.starts or suitable)
        self.runs = Runs(self.i, oracle.objective, contention)
        self.checks: list[Check] = []
        self.candidates = 0
        self.solve_s = 0.0

    def solution(self) -> Solution:
        """All stages in order: baselines, proof or bound, search."""
        self.progress("baselines", 0.0, math.inf, self._bound())
        baselines = self.runs.decide({name: named(name) for name in self.names})
        plans = [decode(self.i, found.run) for found in baselines]
        followed = min(map(self.runs.replay, plans), key=lambda found: found.value_s)
        lead = min(baselines, key=lambda found: found.value_s)
        # A baseline that no plan reproduces, for instance because it preempts, is kept itself, unless it is better by
        # rounding only.
        best = lead if lead.value_s < followed.value_s * (1 - FLOAT32_TOLERANCE) else followed
        label, scope = "best known", ""
        began = time.perf_counter()
        if len(self.i) <= MAX_EXACT_GANGS and self.subset.exact:
            proved, label = self._prove(min(found.value_s for found in baselines))
            best = min([best, *proved], key=lambda found: found.value_s)
        elif len(self.i) <= MAX_EXACT_GANGS and self.subset.relaxed:
            self._relax(0.25)
        self.solve_s = time.perf_counter() - began
        if label != "optimal" and self.solve_s < self.o.time_limit_s:
            best = min([best, self._search(plans, best)], key=lambda found: found.value_s)
        if label != "best known":
            label, scope = self._label(label, best.value_s)
        return Solution(
            objective=self.o.objective,
            value_s=best.value_s,
            label=label,
            scope=scope,
            bounds=self.bounds,
            outside=self.subset.outside,
            baselines={name: found.value_s for name, found in zip(self.names, baselines, strict=True)},
            checks=tuple(self.checks),
            candidates=self.candidates,
            solve_s=self.solve_s,
            wall_s=time.perf_counter() - self.began,
            run=best.run,
            policy=best.policy,
        )

    def _label(self, label: str, value_s: float) -> tuple[str, str]:
        """Label and scope of a value, after the exact model was solved."""
        if value_s < self.model_s * (1 - TIME_TOLERANCE):
            return "best known", ""  # transfers that share a resource beat all plans of the model: its bound is void
        scope = self.subset.scope if value_s > self._bound() * (1 + TIME_TOLERANCE) else ""
        return label if label == "optimal" else f"gap {max(1 - self.model_s / value_s, 0.0):.1%}", scope

    def _bound(self) -> float:
        return max(self.bounds.values())

    def _prove(self, baseline_s: float) -> tuple[list[FoundRun], str]:
        """Solve the exact model; the label is "optimal" only if all checks pass, else "gap"."""
        began = time.perf_counter()
        model = ExactModel(self.i, self.o.objective, exclusive=self.subset.moves)
        first = self._solve(model, 0, 0.55)  # without a hint: a baseline's plan made proofs slower
        self.model_s = first.bound_s - model.error_s
        if self.subset.moves:
            self._relax(0.1)
        else:
            self.bounds["exact model"] = self.model_s
        if first.plan is None:
            return [], "gap"
        found = self.runs.replay(first.plan)
        if first.status != "optimal":
            return [found], "gap"
        # All the time that is left, except for the last check.
        share = 1 - FEWER_DEVICES_TIME_SHARE - (time.perf_counter() - began) / self.o.time_limit_s
        second = self._solve(model, 1, max(share, FEWER_DEVICES_TIME_SHARE), self._hint(found))
        slack = model.error_s + TIME_TOLERANCE * first.value_s
        self._check(
            "two configurations agree",
            second.status == "optimal" and abs(second.value_s - first.value_s) <= slack,
            f"{first.value_s:.9g} s and {second.value_s:.9g} s ({second.status})",
        )
        self._check(
            "the simulator agrees",
            abs(found.value_s - first.value_s) <= slack and found.run.refused == 0,
            f"{found.value_s:.9g} s when the plan is followed, to within {slack:.2g} s",
        )
        self._check(
            "no bound is above it", self._bound() <= first.value_s + slack, f"the largest is {self._bound():.9g} s"
        )
        if not self.subset.moves:
            better = baseline_s < first.value_s * (1 - FLOAT32_TOLERANCE) - slack
            self._check("no baseline is below it", not better, f"the best has {baseline_s:.9g} s")
        self._check_fewer_devices(first.value_s - slack, found)
        failed = [check for check in self.checks if not check.passed]
        if not failed:
            return [found], "optimal"
        if len(failed) > 1 or second.status == "optimal":  # more than a second proof that ran out of time
            details = "; ".join(f"failed: {check.what} ({check.detail})" for check in failed)
            warnings.warn(f"the oracle's proof contradicts itself: {details}", SymphonyWarning, stacklevel=4)
            self.model_s = 0.0
            self.bounds.pop("exact model", None)
        return [found], "gap"

    def _check_fewer_devices(self, least_s: float, found: FoundRun) -> None:
        """The optimum without one of the devices must not be better than the optimum with all."""
        used = np.bincount([stay.devices[0] for stay in found.run.gangs], minlength=len(self.i.slots))
        others = [d for d in np.argsort(used) if np.isfinite(np.delete(self.i.seconds, d, axis=1)).any(axis=1).all()]
        if not others:
            return
        # The busiest device that can be left out: without an idle one nothing would change.
        model = ExactModel(self.i, self.o.objective, exclusive=self.subset.moves, without=int(others[-1]))
        fewer = self._solve(model, 0, FEWER_DEVICES_TIME_SHARE)
        name = self.i.scenario.topology.devices[int(others[-1])].name
        self._check(f"it is not better without {name}", fewer.value_s >= least_s, f"{fewer.value_s:.9g} s at best")

    def _relax(self, share: float) -> None:
        """A bound from the model without the features that it omits, which only cost time."""
        model = ExactModel(self.i, self.o.objective, exclusive=False)
        answer = self._solve(model, 0, share)
        self.bounds["relaxed model"] = answer.bound_s - model.error_s

    def _solve(
        self, model: ExactModel, number: int, share: float, hint: tuple[Plan, np.ndarray] | None = None
    ) -> SolverResult:
        setting = SolverSettings(
            seed=self.o.seed + 7919 * number,
            symmetry=(2, 0)[number],
            probing=(2, 0)[number],
            workers=self.o.workers,
            time_s=share * self.o.time_limit_s,
            deterministic_s=self.o.deterministic_s,
        )

        def report(value_s: float, bound_s: float) -> None:
            self.progress(
                "proof" if number == 0 else "second proof", number * 0.5, value_s, max(bound_s, self._bound())
            )

        return model.solve(setting, hint=hint, progress=report)

    def _hint(self, found: FoundRun) -> tuple[Plan, np.ndarray] | None:
        if found.plan is None:
            return None
        start = np.zeros(len(self.i))
        for stay in found.run.gangs:
            start[self.i.index[stay.job, stay.gang]] = stay.start_s
        return found.plan, start

    def _check(self, what: str, passed: bool, detail: str) -> None:
        self.checks.append(Check(what, bool(passed), detail))

    def _search(self, plans: list[Plan], best: FoundRun) -> FoundRun:
        searched = self.runs.search(
            [*([best.plan] if best.plan is not None else []), *plans],
            horizon_s=best.run.makespan_s,
            time_s=self.o.time_limit_s - self.solve_s,
            rounds=self.o.rounds,
            seed=self.o.seed,
            batch=self.o.batch,
            progress=lambda share, value_s: self.progress("search", share, value_s, self._bound()),
        )
        self.candidates = searched.candidates
        self.solve_s += searched.seconds
        return searched.found
