"""The exact model: a constraint program (OR-Tools CP-SAT) that equals the simulator on a subset of scenarios.

It models gangs of one task, each on one device for its true time; slots and memory of devices; arrivals; precedence;
and, where transfers take time: a gang's inputs are fetched one after the other once it is placed, over a bus that
carries one transfer at a time; queues are first in, first out; data in a memory is not fetched again. Outside the
subset (`instance.subset`) it omits only what costs time, so that with `exclusive=False` its bound holds for every
policy as long as gangs have one worker and are not preempted.

A task's alternatives are optional intervals of *fixed* size on one start variable, and its end is a linear sum over the
presence literals. Alternatives that share both start and end variables gave contradictory "optimal" answers.

Time is counted in ticks, and durations are rounded. A schedule's length is a sum of at most one arrival, each gang's
run and each input's transfer, so `ExactModel.error_s`, half a tick for each, bounds the rounding error.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symphony.oracle.bounds import Objective
from symphony.oracle.instance import Instance
from symphony.oracle.replay import Plan, linear_order
from symphony.problem.errors import InputError
from symphony.problem.extras import needs_extra

TICKS_PER_HORIZON = 10**9  # where times are not multiples of a round unit
WINDOW_LEVELS = 12  # quantiles of earliest starts, and of tails, for which energy constraints are added
ROUND_UNITS = tuple(10.0**-k for k in range(10))


def cp_sat() -> Any:
    """The solver's module, or an error with the command that installs it."""
    with needs_extra("oracle", "the oracle"):
        from ortools.sat.python import cp_model
    return cp_model


@dataclass(frozen=True)
class SolverSettings:
    """Parameters of CP-SAT. Two different settings must agree before a plan is called optimal."""

    seed: int = 0
    symmetry: int = 2  # symmetry_level
    probing: int = 2  # cp_model_probing_level
    workers: int = 2
    time_s: float = 60.0
    deterministic_s: float = math.inf  # a limit in the solver's deterministic time, for tests


@dataclass(frozen=True)
class SolverResult:
    """The result of one call of the solver."""

    status: str  # "optimal", "feasible", "infeasible" or "unknown"
    value_s: float  # of the plan, in the model; inf without one
    bound_s: float  # no plan of the model is better; 0 without one
    plan: Plan | None
    wall_s: float


class ExactModel:
    """One instance as a constraint program, which can be solved several times."""

    def __init__(self, i: Instance, objective: Objective, *, exclusive: bool, without: int | None = None) -> None:
        """`exclusive`: the bus carries one transfer at a time; else any number. `without`: a device to leave out."""
        self.i, self.objective, self.exclusive = i, objective, exclusive
        self.seconds = i.seconds.copy()
        if without is not None:
            self.seconds[:, without] = np.inf
        for g in np.flatnonzero(~np.isfinite(self.seconds).any(axis=1)):
            raise InputError(f"gang {i.who[g]} has no device left", hint="leave out one that no gang depends on")
        horizon_s = serial_makespan_s(i, self.seconds)
        self.tick_s = tick(i, horizon_s)
        terms = len(i) + sum(x.bytes > 0 for inputs in i.inputs for x in inputs) * (len(i.bandwidth) > 1) + 1
        self.horizon = math.ceil(horizon_s / self.tick_s) + terms
        self.error_s = 0.0 if self.tick_s in ROUND_UNITS else self.tick_s * terms / 2
        self.placed_in: dict[int, dict[int, Any]] = {}  # of a gang, by memory; filled by `_in_memory`
        self.cp = cp_sat()
        self.model = self.cp.CpModel()
        self._build()

    def _ticks(self, seconds: float) -> int:
        return round(seconds / self.tick_s)

    def _build(self) -> None:
        i, m = self.i, self.model
        gangs, devices = range(len(i)), range(len(i.slots))
        ticks = {(g, d): self._ticks(self.seconds[g, d]) for g in gangs for d in devices if self.seconds[g, d] < np.inf}
        least = [min(ticks[g, d] for d in devices if (g, d) in ticks) for g in gangs]
        head, tail = self.head, self.tail = self._windows(least)
        self.start = [m.new_int_var(head[g], self.horizon - tail[g] - least[g], f"start {g}") for g in gangs]
        self.on = {(g, d): m.new_bool_var(f"{g} on {d}") for g, d in ticks}
        self.end = []
        for g in gangs:
            mine = [d for d in devices if (g, d) in ticks]
            m.add_exactly_one(self.on[g, d] for d in mine)
            self.end.append(self.start[g] + sum(ticks[g, d] * self.on[g, d] for d in mine))
        self._run_on_devices(ticks)
        for g in gangs:
            for parent in set(i.parents[g]):
                m.add(self.start[g] >= self.end[parent])
        if any(x.bytes > 0 for inputs in i.inputs for x in inputs) and len(i.bandwidth) > 1:
            self._fetch(ticks) if self.exclusive else self._fetch_alone()
        self._aim(ticks)

    def _windows(self, least: list[int]) -> tuple[list[int], list[int]]:
        """Earliest start of each gang, and least time from its end to the end of its job."""
        i = self.i
        head, tail = [self._ticks(x) for x in i.arrival_s], [0] * len(i)
        for g in i.order:
            for child in i.children[g]:
                head[child] = max(head[child], head[g] + least[g])
        for g in reversed(i.order):
            for child in i.children[g]:
                tail[g] = max(tail[g], tail[child] + least[child])
        return head, tail

    def _run_on_devices(self, ticks: dict[tuple[int, int], int]) -> None:
        """Constraints on slots and memory of devices.

        Identical devices form one pool with the slots of all of them: a schedule of a pool can be assigned to its
        devices gang by gang in order of start. So the solver does not try every permutation.
        """
        i, m = self.i, self.model
        self.pools = pools(i, self.seconds, apart=self.exclusive)
        for pool in self.pools:
            chosen = pool[0]
            on = [(g, ticks[g, chosen]) for g in range(len(i)) if (g, chosen) in ticks]
            for g, _ in on:
                for other in pool[1:]:
                    m.add(self.on[g, other] == 0)
            runs = [m.new_optional_fixed_size_interval_var(self.start[g], t, self.on[g, chosen], "") for g, t in on]
            lanes = len(pool) * int(i.slots[chosen])
            if lanes == 1:
                m.add_no_overlap(runs)
            elif len(runs) > lanes:
                m.add_cumulative(runs, [1] * len(runs), lanes)
            needs = [int(i.footprint[g, chosen]) for g, _ in on]
            if i.slots[chosen] > 1 and sum(sorted(needs)[-int(i.slots[chosen]) :]) > i.room[chosen]:
                m.add_cumulative(runs, needs, int(i.room[chosen]))

    def _fetch_alone(self) -> None:
        """Inputs from other memories are delayed by their transfer time. A relaxation: transfers do not interact."""
        i, m = self.i, self.model
        for g, inputs in enumerate(i.inputs):
            for x in inputs:
                if x.bytes <= 0:
                    continue
                for memory, here in self._in_memory(g).items():
                    others = [y for y in range(len(i.bandwidth)) if y != memory]
                    if x.source < 0:
                        delay = i.transfer_s(x.bytes, int(i.home[g]), memory)
                        m.add(self.start[g] >= self._ticks(i.arrival_s[g] + delay)).only_enforce_if(here)
                        continue
                    # A sibling may have fetched a copy, so any memory may be the source.
                    delay = min((i.transfer_s(i.least_bytes(x), y, memory) for y in others), default=0.0)
                    away = [self.on[x.source, d] for d in self._devices(x.source) if i.memory_of[d] != memory]
                    for there in away:
                        arrival = self.end[x.source] + self._ticks(delay)
                        m.add(self.start[g] >= arrival).only_enforce_if([here, there])

    def _devices(self, g: int) -> list[int]:
        return [d for d in range(len(self.i.slots)) if (g, d) in self.on]

    def _in_memory(self, g: int) -> dict[int, Any]:
        """For each memory of a gang's devices, the literal that the gang is placed there."""
        if g not in self.placed_in:
            by_memory: dict[int, list[int]] = {}
            for d in self._devices(g):
                by_memory.setdefault(int(self.i.memory_of[d]), []).append(d)
            self.placed_in[g] = {}
            for memory, devices in by_memory.items():
                literal = self.on[g, devices[0]] if len(devices) == 1 else self.model.new_bool_var(f"{g} in {memory}")
                if len(devices) > 1:
                    self.model.add(literal == sum(self.on[g, d] for d in devices))
                self.placed_in[g][memory] = literal
        return self.placed_in[g]

    def _fetch(self, ticks: dict[tuple[int, int], int]) -> None:
        """Every gang's fetches are one batch, which begins when it is placed; the bus carries one batch at a time."""
        i, m = self.i, self.model
        gangs = range(len(i))
        self.batch, self.size, self.moving = [], [], []
        parts: list[list[tuple[int, Any]]] = [[] for _ in gangs]  # ticks and literal of each fetch of a gang
        first: dict[tuple[int, int], list[tuple[int, Any]]] = {}  # output and memory -> gang and "it fetches it"
        for g, inputs in enumerate(i.inputs):
            for x in inputs:
                for memory, here in self._in_memory(g).items() if x.bytes > 0 else ():
                    if x.source < 0:
                        parts[g].append((self._ticks(i.transfer_s(x.bytes, int(i.home[g]), memory)), here))
                        continue
                    there = self._in_memory(x.source).get(memory)
                    fetches = m.new_bool_var(f"{g} fetches {x.source} to {memory}")
                    m.add_implication(fetches, here)
                    if there is not None:
                        m.add_implication(fetches, ~there)
                    source = (memory + 1) % len(i.bandwidth)  # all sources are equally fast: see `subset`
                    parts[g].append((self._ticks(i.transfer_s(x.bytes, source, memory)), fetches))
                    first.setdefault((x.source, memory), []).append((g, fetches))
        for g in gangs:
            chosen = [(t, literal) for t, literal in parts[g] if t > 0]
            self.batch.append(m.new_int_var(0, self.horizon, f"batch {g}"))
            size = m.new_int_var(0, sum(t for t, _ in chosen), f"fetching {g}")
            m.add(size == sum(t * literal for t, literal in chosen))
            self.size.append(size)
            moving = m.new_bool_var(f"{g} moves")
            m.add_max_equality(moving, [literal for _, literal in chosen] or [0])
            self.moving.append(moving)
            m.add(self.batch[g] >= self._ticks(i.arrival_s[g]))
            for parent in set(i.parents[g]):
                m.add(self.batch[g] >= self.end[parent])
            m.add(self.start[g] >= self.batch[g] + size)
        for (source, memory), readers in first.items():
            m.add_at_most_one(literal for _, literal in readers)
            there = self._in_memory(source).get(memory)
            for g, _ in readers:
                here = self._in_memory(g)[memory]
                fetched = [literal for _, literal in readers]
                m.add_bool_or([*fetched, ~here] if there is None else [*fetched, ~here, there])
                for other, literal in readers:
                    if other != g:
                        ended = self.batch[other] + self.size[other]
                        m.add(self.batch[g] >= ended).only_enforce_if([literal, here])
        turns = []
        for g in gangs:
            end = m.new_int_var(0, self.horizon, f"fetched {g}")
            turns.append(m.new_optional_interval_var(self.batch[g], self.size[g], end, self.moving[g], f"batch {g}"))
        m.add_no_overlap(turns)
        self._first_in_first_out(ticks)

    def _first_in_first_out(self, ticks: dict[tuple[int, int], int]) -> None:
        """On a device, gangs start and fetch in the order of their placement."""
        i, m = self.i, self.model
        below = descendants(i)
        for g, h in itertools.combinations(range(len(i)), 2):
            if h in below[g] or g in below[h]:
                continue
            earlier = m.new_bool_var(f"{g} before {h}")
            for d in set(self._devices(g)) & set(self._devices(h)):
                for a, b, order in ((g, h, earlier), (h, g, ~earlier)):
                    together = [self.on[a, d], self.on[b, d], order]
                    until = self.start[a] + (ticks[a, d] if i.slots[d] == 1 else 0)
                    m.add(self.start[b] >= until).only_enforce_if(together)
                    m.add(self.batch[b] >= self.batch[a] + self.size[a]).only_enforce_if(together)

    def _aim(self, ticks: dict[tuple[int, int], int]) -> None:
        """Minimise the makespan, or the sum of the jobs' completions."""
        i, m = self.i, self.model
        if self.objective == "makespan":
            self.goal = m.new_int_var(0, self.horizon, "makespan")
            for g in range(len(i)):
                m.add(self.goal >= self.end[g])
            for pool in self.pools:
                # Redundant energy constraints, which strengthen the linear relaxation.
                d = pool[0]
                mine = [g for g in range(len(i)) if (g, d) in ticks]
                for within, (early, late) in windows(self.head, self.tail, mine).items():
                    used = sum(ticks[g, d] * self.on[g, d] for g in within)
                    m.add(used <= (self.goal - early - late) * len(pool) * int(i.slots[d]))
        else:
            last: dict[int, Any] = {}
            for g, (job, _) in enumerate(i.who):
                done = last.setdefault(job, m.new_int_var(0, self.horizon, f"job {job}"))
                m.add(done >= self.end[g])
            self.goal = sum(last.values())
        m.minimize(self.goal)

    def _seconds(self, goal: float) -> float:
        """The objective in seconds, from the model's objective in ticks."""
        if self.objective == "makespan":
            return goal * self.tick_s
        jobs = self.i.scenario.workload.jobs
        return (goal * self.tick_s - sum(job.arrival_s for job in jobs)) / len(jobs)

    def solve(
        self,
        setting: SolverSettings,
        *,
        hint: tuple[Plan, np.ndarray] | None = None,
        progress: Callable[[float, float], None] | None = None,
    ) -> SolverResult:
        """Run the solver. `hint`: a plan and its start times. `progress` is called with the value and bound so far."""
        cp = self.cp
        solver = cp.CpSolver()
        solver.parameters.max_time_in_seconds = setting.time_s
        if math.isfinite(setting.deterministic_s):
            solver.parameters.max_deterministic_time = setting.deterministic_s
        solver.parameters.num_workers = setting.workers
        solver.parameters.random_seed = setting.seed
        solver.parameters.linearization_level = 1
        solver.parameters.symmetry_level = setting.symmetry
        solver.parameters.cp_model_probing_level = setting.probing
        self.model.clear_hints()
        if hint is not None:
            plan, start_s = hint
            stands_for = {d: pool[0] for pool in self.pools for d in pool}
            for (g, d), literal in self.on.items():
                self.model.add_hint(literal, stands_for.get(int(plan.devices[g, 0])) == d)
            for g, variable in enumerate(self.start):
                self.model.add_hint(variable, self._ticks(start_s[g]))
        outer = self

        class Progress(cp.CpSolverSolutionCallback):  # type: ignore[name-defined]
            def on_solution_callback(self) -> None:
                if progress is not None:
                    bound = outer._seconds(self.best_objective_bound)
                    progress(outer._seconds(self.objective_value), bound)

        began = time.perf_counter()
        status = solver.solve(self.model, Progress())
        wall_s = time.perf_counter() - began
        if status == cp.MODEL_INVALID:
            raise AssertionError(self.model.validate())
        words = {cp.OPTIMAL: "optimal", cp.FEASIBLE: "feasible", cp.INFEASIBLE: "infeasible"}
        word = words.get(status, "unknown")
        if status not in (cp.OPTIMAL, cp.FEASIBLE):
            bound = 0.0 if status == cp.INFEASIBLE else self._seconds(solver.best_objective_bound)
            return SolverResult(word, math.inf, max(bound, 0.0), None, wall_s)
        return SolverResult(
            word,
            self._seconds(solver.objective_value),
            self._seconds(solver.best_objective_bound),
            self._plan(solver),
            wall_s,
        )

    def _plan(self, solver: Any) -> Plan:
        """The solver's solution as a plan."""
        i = self.i
        start = np.asarray([solver.value(x) for x in self.start])
        chosen = np.asarray([next(d for d in self._devices(g) if solver.value(self.on[g, d])) for g in range(len(i))])
        end = np.asarray([solver.value(x) for x in self.end])
        devices = devices_from_pools(self.pools, i.slots, start, end, chosen)
        moves, after = np.zeros(len(i), bool), np.zeros(len(i), int)
        order = np.lexsort((end, start))
        if hasattr(self, "batch"):
            batch = np.asarray([solver.value(x) for x in self.batch])
            over = batch + np.asarray([solver.value(x) for x in self.size])
            moves = over > batch
            ends = np.sort(over[moves])
            # A gang is placed only after the batches that precede it in the model.
            after = np.searchsorted(ends, batch, side="right")
            order = np.lexsort((end, start, batch))
        key = np.empty(len(i))
        key[order] = np.arange(len(i))
        return Plan(devices[:, None], linear_order(i, key), moves, after)


def windows(head: list[int], tail: list[int], gangs: list[int]) -> dict[frozenset[int], tuple[int, int]]:
    """Sets of gangs with an earliest start and a least time from their ends to the makespan, and these two times."""
    found: dict[frozenset[int], tuple[int, int]] = {}
    steps = np.linspace(0, 1, WINDOW_LEVELS)
    levels = [np.unique(np.quantile([x[g] for g in gangs], steps, method="higher")).tolist() for x in (head, tail)]
    for early, late in itertools.product(*levels):
        within = frozenset(g for g in gangs if head[g] >= early and tail[g] >= late)
        if within:
            found[within] = (early, late)  # the later of several are tighter
    return found


def serial_makespan_s(i: Instance, seconds: np.ndarray) -> float:
    """An upper bound on the makespan: the last arrival, then all gangs one after the other with remote inputs."""
    per_byte = (1 / i.bandwidth).max()
    fetch_s = sum(i.latency_s.max() + x.bytes * per_byte for inputs in i.inputs for x in inputs if x.bytes > 0)
    longest = np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1)
    return float(i.arrival_s.max() + longest.sum() + (fetch_s if len(i.bandwidth) > 1 else 0.0))


def tick(i: Instance, horizon_s: float) -> float:
    """The unit of time: the coarsest power of ten of which all durations are multiples, else horizon / 10**9."""
    moved = [
        i.transfer_s(x.bytes, a, b)
        for inputs in i.inputs
        for x in inputs
        for a in range(len(i.bandwidth))
        for b in range(len(i.bandwidth))
    ]
    times = np.concatenate([i.seconds[np.isfinite(i.seconds)], i.arrival_s, moved])
    for unit in ROUND_UNITS:
        count = times / unit
        if count.max() < 2**31 and np.abs(count - np.round(count)).max() < 1e-6:
            return unit
    return horizon_s / TICKS_PER_HORIZON


def descendants(i: Instance) -> list[set[int]]:
    """All descendants of each gang."""
    below: list[set[int]] = [set() for _ in range(len(i))]
    for g in reversed(i.order):
        for child in i.children[g]:
            below[g] |= {child} | below[child]
    return below


def pools(i: Instance, seconds: np.ndarray, *, apart: bool) -> list[list[int]]:
    """Groups of identical devices. `apart`: every device is its own group, because queues and fetches matter."""
    found: dict[Any, list[int]] = {}
    for d in range(len(i.slots)):
        if not np.isfinite(seconds[:, d]).any():
            continue
        tight = i.slots[d] > 1 and i.footprint[:, d].max() * i.slots[d] > i.room[d]
        alone = apart or tight
        alike = d if alone else (tuple(seconds[:, d]), int(i.slots[d]), int(i.memory_of[d]))
        found.setdefault(alike, []).append(d)
    return list(found.values())


def devices_from_pools(
    groups: Sequence[Sequence[int]], slots: np.ndarray, start: np.ndarray, end: np.ndarray, chosen: np.ndarray
) -> np.ndarray:
    """Devices for gangs that were assigned to pools: each, in order of start, on a device with a free slot."""
    devices = chosen.copy()
    for pool in groups:
        free = [(0, d) for d in pool for _ in range(int(slots[d]))]  # when each slot is free again
        mine = [int(g) for g in np.lexsort((end, start)) if chosen[g] in pool]
        for g in mine:
            lane = min(range(len(free)), key=lambda k: (free[k][0] > start[g], -free[k][0]))
            assert free[lane][0] <= start[g], "a pool holds more gangs than it has slots"
            devices[g] = free[lane][1]
            free[lane] = (int(end[g]), free[lane][1])
    return devices
