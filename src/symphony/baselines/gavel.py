"""Gavel: heterogeneity-aware allocations by linear programs, carried out in rounds (Narayanan et al., OSDI 2020).

An allocation is the share of time that each job spends on each device kind. A policy is an optimisation problem over
allocations X, in which a job's throughput is the sum over kinds of its rate there times its share. The shares of a job
add up to at most 1, and those on a kind, times the jobs' numbers of workers, to at most the devices of that kind:

- `MaxMinFairness` maximises the least throughput, each divided by the job's throughput under proportional shares of the
  devices, and multiplied by its number of workers;
- `MaxMinFairnessPlain`: the same with all rates equal;
- `MaxSumThroughput` maximises the sum of throughputs;
- `FinishTimeFairness` minimises the worst ratio of a job's finish time to that in an n-th of the cluster (Themis);
- `MinTotalDuration` minimises the makespan of the present jobs;
- the same four with `Packed` in their names: pairs of jobs that share a device may have shares as well.

Allocations are computed again when jobs have arrived or left, at most every `reset_s`. In every round, kind by kind,
devices are assigned to the jobs with the highest share over time received since then; ties go to the job with the
largest deficit since its arrival. The rounds are work-conserving. A job stays on its device where possible.

Differences here:

- A round is a counter window of the scenario. Devices that become idle within a round are assigned at once; in Gavel
  they wait for its end.
- The linear programs are solved by HiGHS. An optimum is often reached by many allocations; Gavel's solver, an
  interior-point method, returns one inside that set. So does this one: the analytic centre, which treats equal jobs
  equally. With more than 160 options (pairs) the optimum with the largest sum of throughputs is used instead.
- `MaxSumThroughput` adds up rates relative to each job's best: iterations of different models cannot be added.
- The rates of a pair are the scenario's beliefs (`Observation.believed`), as Gavel has measured every pair; without
  beliefs, predictions from the profiles' demands (`pair_speed`). Only gangs of one worker are paired, on devices of two
  slots or more.
- Kinds are served fastest first (V100, P100, K80 in Gavel, by name), by the mean of the jobs' relative rates; in the
  plain policy in random order, as in Gavel.
- A gang too wide for any one kind uses devices of several. Jobs of higher priority are served first within a kind.
- A slot of a device counts as a device; for the packed policies, two slots do.

A plan takes 2 to 4 ms on one core. When the set of jobs has changed, a linear program and its analytic centre take
another 4 ms for 20 jobs on 3 kinds, 12 ms for 50; finish-time fairness 10 and 24 ms; with pairs 15 and 85 ms.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Num

from symphony.baselines.preemptive import place_or_preempt
from symphony.scheduling.policy import Action, Observation, Policy
from symphony.training_jobs.round_planning import (
    ABSENT,
    RUNS,
    WAITS,
    HostPlanner,
    PlanInputs,
    RoundPlan,
    SeatAllocation,
    rows_of,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

SLACK = 1e-3  # relative deviation from an optimum that is allowed for breaking ties
MAX_OPTIONS_FOR_CENTRE = 160  # options up to which the analytic centre is computed
MAX_PAIR_SHARES = 512  # shares of pairs that are stored
MAX_PAIRED_GANGS = 48  # gangs considered for pairs, the oldest
SPENT, BEFORE, PACE = -3, -2, -1  # columns of the book of `FinishTimeFairness`

QueueEntry = tuple[tuple[int, ...], float, float, float]  # rows, urgency, time owed, share
PairSpeed = Callable[[int, np.ndarray, int], tuple[np.ndarray, np.ndarray]]
Rates = Float[np.ndarray, "gangs kinds"]


class AllocationOptions(NamedTuple):
    """The ways to run gangs: one gang or a pair, on one device kind."""

    gang: Int[np.ndarray, "options 2"]  # -1 = none
    kind: Int[np.ndarray, " options"]
    rate: Float[np.ndarray, "options 2"]  # throughput of each gang
    width: Float[np.ndarray, " options"]  # devices used


def single_gang_options(rate: Rates, workers: Num[np.ndarray, " gangs"]) -> AllocationOptions:
    """Every gang by itself on every kind that can run it."""
    gang, kind = np.nonzero(rate > 0)
    none = np.full(len(gang), -1)
    speed = np.stack([rate[gang, kind], np.zeros(len(gang))], axis=1)
    return AllocationOptions(np.stack([gang, none], axis=1), kind, speed, workers[gang].astype(float))


def pair_options(
    rate: Rates, workers: Num[np.ndarray, " gangs"], kept: PairSpeed, kinds: Iterable[int]
) -> AllocationOptions:
    """Pairs of gangs of one worker that have more throughput together than in turns, on these kinds.

    `kept(i, others, kind)`: relative speed of i beside each of the others, and of them beside it.
    """
    gang, kind, speed = [], [], []
    for k in kinds:
        able = np.flatnonzero((workers == 1) & (rate[:, k] > 0))[:MAX_PAIRED_GANGS]
        for number, i in enumerate(able):
            others = able[number + 1 :]
            mine, theirs = kept(i, others, k)
            for j, a, b in zip(others, mine, theirs, strict=True):
                if a + b > 1 + SLACK and min(a, b) > 0:
                    gang.append((i, j))
                    kind.append(k)
                    speed.append((a * rate[i, k], b * rate[j, k]))
    count = len(gang)
    shape = (count, 2)
    return AllocationOptions(
        np.asarray(gang, int).reshape(shape), np.asarray(kind, int), np.asarray(speed).reshape(shape), np.ones(count)
    )


def pair_speed(need: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Relative speed of a gang beside another: its share of its bottleneck row. The last axis is rows."""
    load = need + other
    return np.where(np.broadcast_to(need, load.shape) > 0, 1 / np.maximum(load, 1), 1.0).min(axis=-1, initial=1.0)


def pair_speed_source(p: PlanInputs, rows: np.ndarray) -> PairSpeed:
    """Beliefs about co-location, or else predictions from the demands of profiles."""

    def believed(i: int, others: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
        mine, theirs = p.kernel[rows[i]], p.kernel[rows[others]]
        return p.beside[mine, theirs, kind], p.beside[theirs, mine, kind]

    def predicted(i: int, others: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
        need = p.need[rows]
        return pair_speed(need[i, kind], need[others, kind]), pair_speed(need[others, kind], need[i, kind])

    return believed if p.beside.shape[0] else predicted


def concatenate(a: AllocationOptions, b: AllocationOptions) -> AllocationOptions:
    return AllocationOptions(*(np.concatenate(columns) for columns in zip(a, b, strict=True)))


class AllocationProgram:
    """The linear programs over one set of options. Variables: shares of time x [options]."""

    def __init__(self, options: AllocationOptions, gangs: int, capacity: np.ndarray) -> None:
        from scipy.sparse import csr_matrix, vstack  # takes a tenth of a second to import

        o = options
        count = len(o.kind)
        way = np.tile(np.arange(count)[:, None], (1, 2))
        real = o.gang >= 0
        at = (o.gang[real], way[real])
        self.gangs, self.count = gangs, count
        self.throughput = csr_matrix((o.rate[real], at), (gangs, count))
        time = csr_matrix((np.ones(real.sum()), at), (gangs, count))
        self.used = csr_matrix((o.width, (o.kind, np.arange(count))), (len(capacity), count))
        self.limits = vstack([time, self.used])
        self.most = np.concatenate([np.ones(gangs), capacity])
        self.capacity = capacity

    def solve(self, gain: np.ndarray, floor: np.ndarray | None = None) -> np.ndarray:
        """Shares that maximise the sum of gains, with throughputs of at least `floor`."""
        from scipy.sparse import vstack

        limits, most = self.limits, self.most
        if floor is not None:
            limits, most = vstack([limits, -self.throughput]), np.concatenate([most, -floor])
        return self._least(-gain, limits, most)

    def lift(self, need: np.ndarray) -> tuple[float, np.ndarray]:
        """The largest z such that every throughput can be z times its need, and shares that reach it."""
        from scipy.sparse import coo_matrix, hstack, vstack

        column = coo_matrix(np.concatenate([np.zeros(self.limits.shape[0]), need])[:, None])
        limits = hstack([vstack([self.limits, -self.throughput]), column])
        most = np.concatenate([self.most, np.zeros(self.gangs)])
        gain = np.concatenate([np.zeros(self.count), [-1.0]])
        x = self._least(gain, limits, most)
        return float(x[-1]), x[:-1]

    def central(self, x: np.ndarray, floor: np.ndarray) -> np.ndarray:
        """The analytic centre of all shares with throughputs above `floor`; `x` are shares that exceed it.

        Newton's method on the sum of the logarithms of all slacks.
        """
        used = self.limits.getnnz(axis=1) > 0  # an unusable kind has no centre
        scale = 1 / np.maximum(floor, 1e-300)
        shares, least = self.limits.toarray()[used], self.most[used]
        limits = np.concatenate([shares, -self.throughput.toarray() * scale[:, None], -np.eye(self.count)])
        most = np.concatenate([least, -floor * scale, np.zeros(self.count)])
        x = x + 0.3 * SLACK * (0.5 * (least / shares.sum(axis=1)).min() - x)
        slack = most - limits @ x
        for _ in range(60):
            gradient = limits.T @ (1 / slack)
            step = np.linalg.solve(limits.T @ (limits / slack[:, None] ** 2), gradient)
            change = -limits @ step
            closer = change > 0
            size = min(1.0, 0.95 * float((slack[closer] / change[closer]).min(initial=np.inf)))
            while np.log(slack - size * change).sum() < np.log(slack).sum():
                size /= 2
                if size < 1e-9:
                    return x
            x, slack = x - size * step, slack - size * change
            if gradient @ step < 1e-6:
                break
        return x

    @staticmethod
    def _least(cost: np.ndarray, limits: csr_matrix, most: np.ndarray) -> np.ndarray:
        from scipy.optimize import linprog  # takes a third of a second to import

        answer = linprog(cost, limits, most, method="highs")
        if answer.x is None:
            raise ArithmeticError(f"a linear program of Gavel has no solution: {answer.message}")
        return np.maximum(answer.x, 0.0)


def max_min(
    options: AllocationOptions, gangs: int, capacity: np.ndarray, norm: np.ndarray, many: np.ndarray | float = 1.0
) -> np.ndarray:
    """Shares that maximise the least throughput / norm: the analytic centre, or (with too many options for that) an
    optimum with the largest sum.

    `many` [gangs]: number of equal gangs that a row represents (options' widths are then those of all of them).
    """
    program = AllocationProgram(options, gangs, capacity)
    least, x = program.lift(norm)
    floor = least * norm * (1 - SLACK)
    if len(options.kind) <= MAX_OPTIONS_FOR_CENTRE:
        return program.central(x, floor)
    weight = np.where(options.gang >= 0, (many / norm)[options.gang], 0.0)
    return program.solve((options.rate * weight).sum(axis=1), floor)


def max_sum(options: AllocationOptions, gangs: int, capacity: np.ndarray, norm: np.ndarray) -> np.ndarray:
    """Shares that maximise the sum of throughput / norm."""
    weight = np.where(options.gang >= 0, 1 / norm[options.gang], 0.0)
    return AllocationProgram(options, gangs, capacity).solve((options.rate * weight).sum(axis=1))


def finish_time_fair(
    options: AllocationOptions, gangs: int, capacity: np.ndarray, left: np.ndarray, age_s: np.ndarray, own_s: np.ndarray
) -> np.ndarray:
    """Shares that minimise the worst (age + left / throughput) / own.

    A ratio requires a least throughput of every gang. Maximising all throughputs over these requirements gives shares
    with a lower ratio; this is repeated until it does not improve.
    """
    program = AllocationProgram(options, gangs, capacity)
    x = program.lift(left / own_s)[1]
    worst = np.inf
    for _ in range(30):
        ratio = float(((age_s + left / np.maximum(program.throughput @ x, 1e-300)) / own_s).max())
        if ratio > worst * (1 - SLACK):
            break
        worst = ratio
        need = left / np.maximum(worst * own_s - age_s, 1e-9)
        x = program.lift(need)[1]
    need = left / np.maximum(worst * own_s - age_s, 1e-9)
    floor = np.minimum(need, program.throughput @ x) * (1 - SLACK)
    if len(options.kind) <= MAX_OPTIONS_FOR_CENTRE:
        return program.central(x, floor)
    best = np.zeros(gangs)
    np.maximum.at(best, options.gang[:, 0], options.rate[:, 0])
    weight = np.where(options.gang >= 0, 1 / np.maximum(best, 1e-300)[options.gang], 0.0)
    return program.solve((options.rate * weight).sum(axis=1), floor)


class Gavel(HostPlanner):
    """The mechanism of rounds; subclasses allocate."""

    reset_s: float = eqx.field(default=1000.0, static=True)  # least time between two allocations
    uses_speeds: ClassVar[bool] = True  # serves the fastest kinds first

    @abstractmethod
    def allocate(self, options: AllocationOptions, rows: np.ndarray, capacity: np.ndarray, p: PlanInputs) -> np.ndarray:
        """Share of every option; gangs in `options` index `rows`. May write to the last three columns of p.book."""

    def sizes(self, kinds: int) -> tuple[int, int]:
        """Book: share, time received and owed, by kind; three more. Memo: last allocation, jobs changed, pairs."""
        return 3 * kinds + 3, 2 + (7 * MAX_PAIR_SHARES if self.packs else 0)

    def plan(self, picture: PlanInputs) -> RoundPlan:
        """Account for the time since the last plan, allocate if it is due, and serve kind by kind."""
        p = picture
        kinds = p.rate.shape[1]
        seats = SeatAllocation(p, paired=self.packs)
        share, received, owed = (p.book[:, n * kinds : (n + 1) * kinds] for n in range(3))
        couples = _PairShares(p) if self.packs else None
        half = 0.5 * p.now_s / max(1, p.windows)
        for row in rows_of(p.ran_s > 0):
            kind = p.kind[list(seats.where(row))]
            if len(kind) and not (couples and couples.ran(row, seats)):
                received[row, kind[0]] += p.ran_s[row]
        p.memo[0] += p.since_s
        new = (p.standing != ABSENT) & (received.sum(axis=1) == 0)
        received[new] = half or 1.0
        p.memo[1] = max(p.memo[1], float(new.any() or _gang_departed(p)))
        first_time = not share.any()
        if p.memo[1] and (first_time or (p.boundary and p.memo[0] >= self.reset_s)):
            owed += np.where(p.standing[:, None] != ABSENT, share * p.memo[0] - (received - half), 0)
            received[p.standing != ABSENT] = half or 1.0
            share[:] = 0
            self._share_out(p, seats, share, couples)
            p.memo[:2] = 0
        if not p.boundary:
            seats.keep()
        order = self._serve(p, seats, share / np.maximum(received, 1e-9), share, owed, couples)
        if couples:
            couples.write()
        return seats.plan(order, p.book, p.memo)

    def _share_out(self, p: PlanInputs, seats: SeatAllocation, share: np.ndarray, couples: _PairShares | None) -> None:
        capacity = seats.capacity()
        wide = seats.devices() >= p.workers[:, None]
        rows = np.flatnonzero((p.standing != ABSENT) & ((p.rate > 0) & wide).any(axis=1))
        if not len(rows):
            return
        rate = np.where(wide[rows], p.rate[rows], 0.0)
        options = single_gang_options(rate, p.workers[rows])
        if couples:
            roomy = np.unique(
                p.kind[(seats.all > 0) & (np.bincount(p.lane_device[p.lane_exists], minlength=len(p.kind)) > 1)]
            )
            options = concatenate(options, pair_options(rate, p.workers[rows], pair_speed_source(p, rows), roomy))
        x = self.allocate(options, rows, capacity, p._replace(rate=np.where(wide, p.rate, 0.0)))
        single = options.gang[:, 1] < 0
        share[rows[options.gang[single, 0]], options.kind[single]] = x[single]
        if couples:
            couples.share_out(rows[options.gang[~single]], options.kind[~single], x[~single])

    def _serve(
        self,
        p: PlanInputs,
        seats: SeatAllocation,
        urgency: np.ndarray,
        share: np.ndarray,
        owed: np.ndarray,
        couples: _PairShares | None,
    ) -> list[int]:
        """Choose gangs for each kind, keep those in place that can stay, and find devices for the others."""
        free = seats.capacity(only_free=True)
        able = rows_of(np.isin(p.standing, (WAITS, RUNS)))
        busy = set(seats.given)
        relative = p.rate[able] / np.maximum(p.rate[able].max(axis=1, keepdims=True, initial=0), 1e-300)
        kinds = np.argsort(-relative.sum(axis=0), kind="stable")
        if not self.uses_speeds:
            kinds = np.random.default_rng(int(p.seed)).permutation(kinds)
        chosen: list[tuple[tuple[int, ...], int]] = []
        for kind in kinds:
            queue: list[QueueEntry] = [((r,), urgency[r, kind], owed[r, kind], share[r, kind]) for r in able]
            queue += couples.entries(kind) if couples else []
            queue.sort(key=lambda e: (-max(p.priority[r] for r in e[0]), -e[1], -e[2], -e[3], p.job[e[0][0]]))
            for rows, *_ in queue:
                width = p.workers[rows[0]]
                if free[kind] >= width and not busy & set(rows) and all(p.rate[r, kind] > 0 for r in rows):
                    free[kind] -= width
                    busy |= set(rows)
                    chosen.append((rows, int(kind)))
        settled = set()
        for rows, kind in chosen:
            here = {tuple(sorted(seats.where(r))) for r in rows}
            devices = here.pop() if len(here) == 1 else ()
            if devices and all(p.kind[d] == kind for d in devices) and seats.take(rows, devices):
                settled.add(rows)
        for rows, kind in sorted(chosen, key=lambda c: -p.workers[c[0][0]]):
            if rows not in settled:
                seats.take(rows, seats.find(int(p.workers[rows[0]]), [kind], whole=len(rows) > 1))
        for r in able:  # too wide for any one kind, or the free seats of its kind are on too few devices
            if r not in seats.given:
                fits = [int(k) for k in np.flatnonzero(p.rate[r] > 0)]
                if seats.take([r], seats.where(r)) or seats.take([r], seats.find(int(p.workers[r]), fits)):
                    chosen.append(((int(r),), 0))
        return sorted([r for rows, _ in chosen for r in rows] + list(seats.given), key=lambda r: -p.priority[r])


def _gang_departed(p: PlanInputs) -> bool:
    present = {(int(g), int(j)) for g, j in zip(p.gang, p.job, strict=True)}
    return any(g >= 0 and (int(g), int(j)) not in present for g, j in zip(p.old_gang, p.old_job, strict=True))


class _PairShares:
    """Shares of pairs, stored in the memo: gang and job of each, kind, share, time received."""

    def __init__(self, p: PlanInputs) -> None:
        self.p = p
        row_of = {(int(g), int(j)): row for row, (g, j) in enumerate(zip(p.gang, p.job, strict=True)) if g >= 0}
        self.of: dict[tuple[int, int, int], list[float]] = {}
        for a, ja, b, jb, kind, share, received in p.memo[2:].reshape(MAX_PAIR_SHARES, 7):
            first, second = row_of.get((int(a), int(ja))), row_of.get((int(b), int(jb)))
            if share > 0 and first is not None and second is not None:
                self.of[first, second, int(kind)] = [float(share), float(received)]

    def ran(self, row: int, seats: SeatAllocation) -> bool:
        """Whether a row runs beside another; if so, its time is counted for the pair (once)."""
        devices = seats.where(row)
        beside = [r for r in set(seats.holder[np.isin(self.p.lane_device, devices)]) if r >= 0 and r != row]
        if len(devices) != 1 or not beside:
            return False
        key = (min(row, beside[0]), max(row, beside[0]), int(self.p.kind[devices[0]]))
        if key in self.of and row == key[0]:
            self.of[key][1] += float(self.p.ran_s[row])
        return True

    def share_out(self, rows: np.ndarray, kinds: np.ndarray, shares: np.ndarray) -> None:
        """Replace all shares by the largest of these."""
        largest = [n for n in np.argsort(-shares)[:MAX_PAIR_SHARES] if shares[n] > SLACK]
        half = 0.5 * self.p.now_s / max(1, self.p.windows) or 1.0
        self.of = {(*sorted(map(int, rows[n])), int(kinds[n])): [float(shares[n]), half] for n in largest}  # type: ignore[misc]

    def entries(self, kind: int) -> list[QueueEntry]:
        """Queue entries of the pairs with a share of a kind."""
        movable = np.isin(self.p.standing, (WAITS, RUNS))
        return [
            ((a, b), share / max(received, 1e-9), 0.0, share)
            for (a, b, k), (share, received) in self.of.items()
            if k == kind and movable[a] and movable[b]
        ]

    def write(self) -> None:
        table = np.zeros((MAX_PAIR_SHARES, 7))
        for n, ((a, b, kind), (share, received)) in enumerate(self.of.items()):
            p = self.p
            table[n] = p.gang[a], p.job[a], p.gang[b], p.job[b], kind, share, received
        self.p.memo[2:] = table.reshape(-1)


def proportional(rate: Rates, capacity: Num[np.ndarray, " kinds"]) -> Float[np.ndarray, " gangs"]:
    """Throughput of each gang if its time were spread over the kinds in proportion to their devices."""
    return rate @ (capacity / capacity.sum())


def isolated(
    rate: Rates, workers: Num[np.ndarray, " gangs"], capacity: Num[np.ndarray, " kinds"]
) -> Float[np.ndarray, " gangs"]:
    """Throughput of each of n gangs in an n-th of the cluster."""
    share = capacity / len(rate) / workers[:, None]
    return (rate * share / np.maximum(share.sum(axis=1), 1)[:, None]).sum(axis=1)


class FifoPassing(Policy):
    """First come, first served on the fastest idle device, with backfilling: gangs that do not fit are skipped."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        return state, place_or_preempt(observation, jnp.zeros(observation.core.status.shape), preempts=False)


class MaxMinFairness(Gavel):
    """Maximises the least normalised throughput."""

    def allocate(self, options: AllocationOptions, rows: np.ndarray, capacity: np.ndarray, p: PlanInputs) -> np.ndarray:
        rate, workers = p.rate[rows], p.workers[rows].astype(float)
        if self.packs:
            return max_min(options, len(rows), capacity, proportional(rate, capacity) / workers)
        # Equal gangs get equal shares: one row of the program for each class of equal gangs.
        classes, index, many = np.unique(np.c_[rate, workers], axis=0, return_inverse=True, return_counts=True)
        index = index.reshape(-1)
        speed, width = classes[:, :-1], classes[:, -1]
        few = single_gang_options(speed, width * many)
        x = np.zeros(speed.shape)
        x[few.gang[:, 0], few.kind] = max_min(few, len(classes), capacity, proportional(speed, capacity) / width, many)
        return x[index[options.gang[:, 0]], options.kind]


class MaxMinFairnessPlain(MaxMinFairness):
    """As `MaxMinFairness` with equal speeds on all devices that can run a gang."""

    uses_speeds: ClassVar[bool] = False

    def allocate(self, options: AllocationOptions, rows: np.ndarray, capacity: np.ndarray, p: PlanInputs) -> np.ndarray:
        equal = p._replace(rate=(p.rate > 0).astype(float))
        return MaxMinFairness.allocate(self, options, rows, capacity, equal)


class MaxSumThroughput(Gavel):
    """Maximises the sum of relative throughputs."""

    def allocate(self, options: AllocationOptions, rows: np.ndarray, capacity: np.ndarray, p: PlanInputs) -> np.ndarray:
        return max_sum(options, len(rows), capacity, p.rate[rows].max(axis=1))


class MinTotalDuration(Gavel):
    """Minimises the makespan of the present jobs."""

    def allocate(self, options: AllocationOptions, rows: np.ndarray, capacity: np.ndarray, p: PlanInputs) -> np.ndarray:
        return max_min(options, len(rows), capacity, np.maximum(p.left[rows], 1e-6))


class FinishTimeFairness(Gavel):
    """Minimises the worst ratio of finish time to that in an n-th of the cluster."""

    def allocate(self, options: AllocationOptions, rows: np.ndarray, capacity: np.ndarray, p: PlanInputs) -> np.ndarray:
        # Time in isolation is accumulated while the number of jobs changes: work done over the rate at that time.
        rate, left = p.rate[rows], np.maximum(p.left[rows], 1e-6)
        spent, before, pace = (p.book[:, column] for column in (SPENT, BEFORE, PACE))
        done = np.where(pace[rows] > 0, (before[rows] - left) / np.maximum(pace[rows], 1e-300), 0)
        spent[rows] += np.maximum(done, 0)
        before[rows], pace[rows] = left, isolated(rate, p.workers[rows], capacity)
        own = spent[rows] + left / np.maximum(pace[rows], 1e-300)
        return finish_time_fair(options, len(rows), capacity, left, p.age_s[rows].astype(float), own)


class MaxMinFairnessPacked(MaxMinFairness):
    """As `MaxMinFairness`, with shares for pairs of gangs on one device."""

    packs = True


class MaxSumThroughputPacked(MaxSumThroughput):
    """As `MaxSumThroughput`, with shares for pairs of gangs on one device."""

    packs = True


class MinTotalDurationPacked(MinTotalDuration):
    """As `MinTotalDuration`, with shares for pairs of gangs on one device."""

    packs = True


class FinishTimeFairnessPacked(FinishTimeFairness):
    """As `FinishTimeFairness`, with shares for pairs of gangs on one device."""

    packs = True
