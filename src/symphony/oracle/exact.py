"""The exact model: a constraint program (OR-Tools CP-SAT) that says what the simulator does, on a subset of scenarios.

What it knows: gangs of one task, each on one device for its true time; slots and memory of devices; arrivals; parents
before children; and, where transfers take time, that a gang's inputs are fetched one after the other from when it is
placed, over a bus that carries one transfer at a time, that queues are first in, first out, and that what lies in a
memory is not fetched again. Outside the subset (`instance.subset`) it leaves out only what costs time, so that with
`exclusive=False` its bound holds for every policy as long as gangs have one worker and keep their device to the end.

A task's alternatives are optional intervals of *fixed* size on its one start variable, and its end is a linear sum
over the presence literals. Alternatives that share both start and end variables gave contradictory "optimal" answers.

Time is counted in ticks; every duration is rounded to the nearest. A schedule's length is a sum of at most one arrival,
each gang's run and each input's transfer, so `ExactModel.error_s`, half a tick for each, bounds what rounding does to
it.
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

TICKS_PER_HORIZON = 10**9  # of the horizon, where times are not multiples of a round unit
WINDOW_LEVELS = 12  # of earliest starts, and of times left at the end, for which work is added up
ROUND_UNITS = tuple(10.0**-k for k in range(10))


def cp_sat() -> Any:
    """The solver's module, or an error that says how to get it."""
    with needs_extra("oracle", "the oracle"):
        from ortools.sat.python import cp_model
    return cp_model


@dataclass(frozen=True)
class SolverSettings:
    """How the solver goes about it. Two that differ must agree before anything is called optimal."""

    seed: int = 0
    linearization: int = 1  # how much of the model its linear relaxation sees
    symmetry: int = 2  # how much symmetry is looked for and broken
    probing: int = 2  # how much is tried out beforehand
    workers: int = 2
    time_s: float = 60.0
    deterministic_s: float = math.inf  # a limit in the solver's own reproducible unit, for tests


@dataclass(frozen=True)
class SolverResult:
    """What one call of the solver said."""

    status: str  # "optimal", "feasible", "infeasible" or "unknown"
    value_s: float  # of the plan, by the model; inf without one
    bound_s: float  # no plan of the model is better; 0 if nothing is known
    plan: Plan | None
    wall_s: float


class ExactModel:
    """One instance as a constraint program, to be solved as often as one likes."""

    def __init__(
        self,
        i: Instance,
        objective: Objective,
        *,
        exclusive: bool,
        without: int | None = None,
    ) -> None:
        """`exclusive`: transfers take the bus in turn; else each just takes its time. `without`: leave a device out."""
        self.i, self.objective, self.exclusive = i, objective, exclusive
        self.seconds = i.seconds.copy()
        if without is not None:
            self.seconds[:, without] = np.inf
        for g in np.flatnonzero(~np.isfinite(self.seconds).any(axis=1)):
            raise InputError(f"gang {i.who[g]} has no device left", hint="leave out one that all gangs can do without")
        horizon_s = serial_makespan_s(i, self.seconds)
        self.tick_s = tick(i, horizon_s)
        terms = len(i) + sum(x.bytes > 0 for inputs in i.inputs for x in inputs) * (len(i.bandwidth) > 1) + 1
        self.horizon = math.ceil(horizon_s / self.tick_s) + terms
        self.error_s = 0.0 if self.tick_s in ROUND_UNITS else self.tick_s * terms / 2
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
        """Devices hold as many gangs as they have slots and memory for.

        Devices that cannot be told apart are one pool, which holds as many as all of them: a schedule of a pool can be
        dealt out to its devices, gang by gang in order of start. So the solver does not try every permutation.
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
        """An input that is made elsewhere takes its time to get here. Nothing else is asked: a relaxation."""
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
                    # A copy may be fetched by a sibling, from wherever one lies.
                    delay = min((i.transfer_s(i.least_bytes(x), y, memory) for y in others), default=0.0)
                    away = [self.on[x.source, d] for d in self._devices(x.source) if i.memory_of[d] != memory]
                    for there in away:
                        late = self.end[x.source] + self._ticks(delay)
                        m.add(self.start[g] >= late).only_enforce_if([here, there])

    def _devices(self, g: int) -> list[int]:
        return [d for d in range(len(self.i.slots)) if (g, d) in self.on]

    def _in_memory(self, g: int) -> dict[int, Any]:
        """For each memory that a gang's devices work in, a literal that it is placed there."""
        known = self.__dict__.setdefault("_placed_in", {})
        if g not in known:
            by_memory: dict[int, list[int]] = {}
            for d in self._devices(g):
                by_memory.setdefault(int(self.i.memory_of[d]), []).append(d)
            known[g] = {}
            for memory, devices in by_memory.items():
                literal = self.on[g, devices[0]] if len(devices) == 1 else self.model.new_bool_var(f"{g} in {memory}")
                if len(devices) > 1:
                    self.model.add(literal == sum(self.on[g, d] for d in devices))
                known[g][memory] = literal
        return known[g]

    def _fetch(self, ticks: dict[tuple[int, int], int]) -> None:
        """Every gang's fetches are one batch from when it is placed; batches take the bus in turn."""
        i, m = self.i, self.model
        gangs = range(len(i))
        self.batch, self.size, self.moving = [], [], []
        parts: list[list[tuple[int, Any]]] = [[] for _ in gangs]  # ticks and literal of what each gang may fetch
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
                    source = (memory + 1) % len(i.bandwidth)  # all are as good: see `subset`
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
            over = m.new_int_var(0, self.horizon, f"fetched {g}")
            turns.append(m.new_optional_interval_var(self.batch[g], self.size[g], over, self.moving[g], f"batch {g}"))
        m.add_no_overlap(turns)
        self._first_in_first_out(ticks)

    def _first_in_first_out(self, ticks: dict[tuple[int, int], int]) -> None:
        """On a device, gangs start in the order in which they were placed, and fetch in that order."""
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
                # Redundant, but the linear relaxation sees it at once.
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
        """A value of the goal as the objective, in seconds."""
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
        """Run the solver once. `hint`: a plan, and when its gangs start. `progress` is told value and bound so far."""
        cp = self.cp
        solver = cp.CpSolver()
        solver.parameters.max_time_in_seconds = setting.time_s
        if math.isfinite(setting.deterministic_s):
            solver.parameters.max_deterministic_time = setting.deterministic_s
        solver.parameters.num_workers = setting.workers
        solver.parameters.random_seed = setting.seed
        solver.parameters.linearization_level = setting.linearization
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

        class Tell(cp.CpSolverSolutionCallback):  # type: ignore[name-defined]
            def on_solution_callback(self) -> None:
                if progress is not None:
                    bound = outer._seconds(self.best_objective_bound)
                    progress(outer._seconds(self.objective_value), bound)

        began = time.perf_counter()
        status = solver.solve(self.model, Tell())
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
        """The solver's solution as something to be followed."""
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
            # Batches that are over when a gang is placed are over in the replay too.
            after = np.searchsorted(ends, batch, side="right")
            order = np.lexsort((end, start, batch))
        key = np.empty(len(i))
        key[order] = np.arange(len(i))
        return Plan(devices[:, None], linear_order(i, key), moves, after)


def windows(head: list[int], tail: list[int], gangs: list[int]) -> dict[frozenset[int], tuple[int, int]]:
    """Sets of gangs that cannot start before one time and must end another before the end, and those two times."""
    found: dict[frozenset[int], tuple[int, int]] = {}
    steps = np.linspace(0, 1, WINDOW_LEVELS)
    levels = [np.unique(np.quantile([x[g] for g in gangs], steps, method="higher")).tolist() for x in (head, tail)]
    for early, late in itertools.product(*levels):
        within = frozenset(g for g in gangs if head[g] >= early and tail[g] >= late)
        if within:
            found[within] = (early, late)  # the later of several are tighter
    return found


def serial_makespan_s(i: Instance, seconds: np.ndarray) -> float:
    """A makespan that no sensible plan exceeds: the last arrival, then every gang alone, fetched from afar."""
    per_byte = (1 / i.bandwidth).max()
    fetch_s = sum(i.latency_s.max() + x.bytes * per_byte for inputs in i.inputs for x in inputs if x.bytes > 0)
    longest = np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1)
    return float(i.arrival_s.max() + longest.sum() + (fetch_s if len(i.bandwidth) > 1 else 0.0))


def tick(i: Instance, horizon_s: float) -> float:
    """The unit of time: the coarsest round one that measures every duration exactly, else a fraction of the horizon."""
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
    """For each gang, all that must come after it."""
    below: list[set[int]] = [set() for _ in range(len(i))]
    for g in reversed(i.order):
        for child in i.children[g]:
            below[g] |= {child} | below[child]
    return below


def pools(i: Instance, seconds: np.ndarray, *, apart: bool) -> list[list[int]]:
    """Devices that cannot be told apart, together. `apart`: none may be pooled, for queues and fetches matter."""
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
    """Devices for gangs that were given to pools: each, in order of start, to a device with a free slot."""
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
