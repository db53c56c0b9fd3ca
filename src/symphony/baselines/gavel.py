"""Gavel: fair shares of unlike devices by linear programs, carried out in rounds (Narayanan et al., OSDI 2020).

Gavel's answer to "who gets what" is an allocation: the share of time that each job spends on each device kind. A policy
is an optimisation problem over allocations X, in which a job's throughput is the sum over kinds of its rate there times
its share. The shares of a job add up to at most 1, and those on a kind, times the jobs' numbers of workers, to at most
the devices of that kind. Here are

- `MaxMinFairness`: the least throughput is as large as can be, where each is divided by what the job would have if the
  devices were dealt out in proportion, and multiplied by its number of workers;
- `MaxMinFairnessPlain`: the same, blind to speed: all rates are taken to be equal;
- `MaxSumThroughput`: the sum of throughputs;
- `FinishTimeFairness`: the worst ratio of a job's finish time to that in an n-th of the cluster of its own (Themis) is
  as small as can be;
- `MinTotalDuration`: the time after which all are done, if nobody else comes, is as short as can be;
- the same four with `Packed` in their names: pairs of jobs that share a device may have shares as well.

Allocations are worked out again when jobs have come or gone, not oftener than every `reset_s`. In every round, kind by
kind, devices go to the jobs with the highest share over time received since then; ties go to who has been owed most
since it arrived. Nothing stays idle that somebody could use. A job stays on its device where it can.

Where ours differs:

- A round is a counter window of the scenario. Devices that fall idle within a round are given away at once, where
  Gavel's wait for its end.
- The optimum is found by HiGHS. It is often reached by many allocations; Gavel's solver, an interior-point method,
  answers with one inside that set, and so do we: its analytic centre, which treats jobs alike that are alike. With more
  than 160 options (pairs) the one with the largest sum of throughputs is taken instead.
- `MaxSumThroughput` adds up rates relative to each job's best: iterations of unlike models cannot be added.
- The rates of a pair are those that the scenario tells (`Observation.believed`), as Gavel has measured every pair;
  where it tells none, those that the profiles' demands predict (`pair_speed`).
  Only gangs of one worker are paired, on devices of two slots or more.
- Kinds are served fastest first (V100, P100, K80 in Gavel, by name), by the mean of the jobs' relative rates; the plain
  policy in an order drawn anew for every plan, as theirs.
- A gang too wide for any one kind takes devices of several. Jobs of higher priority are served first within a kind.
- A slot of a device counts as a device; for the packed policies, two slots do.

A plan costs 2 to 4 ms on one core. When the set of jobs has changed, a linear program and the centre of its optima come
on top: 4 ms for 20 jobs on 3 kinds, 12 ms for 50; finish-time fairness 10 and 24 ms; with pairs 15 and 85 ms.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.sparse import coo_matrix, csr_matrix, hstack, vstack

from symphony.baselines.preemptive import place_or_preempt
from symphony.problem.arrays import TopologyArrays
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

SLACK = 1e-3  # by which an optimum may be missed when ties are broken
MAX_OPTIONS_FOR_CENTRE = 160  # options up to which the centre of the optimal set is worked out
MAX_PAIR_SHARES = 512  # shares of pairs that are remembered
MAX_PAIRED_GANGS = 48  # gangs that are considered for pairs, the oldest


QueueEntry = tuple[tuple[int, ...], float, float, float]  # rows, urgency, time owed, share


class AllocationOptions(NamedTuple):
    """The ways in which gangs can run: V of them, each by one gang or a pair."""

    gang: np.ndarray  # i[V, 2], -1 = nobody
    kind: np.ndarray  # i[V]
    rate: np.ndarray  # f[V, 2]: throughput of each
    width: np.ndarray  # f[V]: devices that it takes


def single_gang_options(rate: np.ndarray, workers: np.ndarray) -> AllocationOptions:
    """Every gang by itself on every kind that can run it; rate [n, Y], workers [n]."""
    gang, kind = np.nonzero(rate > 0)
    nobody = np.full(len(gang), -1)
    speed = np.stack([rate[gang, kind], np.zeros(len(gang))], axis=1)
    return AllocationOptions(np.stack([gang, nobody], axis=1), kind, speed, workers[gang].astype(float))


PairSpeed = Callable[[int, np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def pair_options(rate: np.ndarray, workers: np.ndarray, kept: PairSpeed, kinds: Iterable[int]) -> AllocationOptions:
    """Pairs of gangs of one worker that get more done together than one after the other, on these kinds.

    `kept(i, others, kind)`: what i keeps of its speed beside each of the others, and they beside it.
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
    """Speed of one beside another, relative to alone: its share of the scarcest row that it needs. Rows are last."""
    load = need + other
    return np.where(np.broadcast_to(need, load.shape) > 0, 1 / np.maximum(load, 1), 1.0).min(axis=-1, initial=1.0)


def pair_speed_source(p: PlanInputs, rows: np.ndarray) -> PairSpeed:
    """What is told of pairs, or else what the demands of profiles predict."""

    def told(i: int, others: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
        mine, theirs = p.kernel[rows[i]], p.kernel[rows[others]]
        return p.beside[mine, theirs, kind], p.beside[theirs, mine, kind]

    def predicted(i: int, others: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
        need = p.need[rows]
        return pair_speed(need[i, kind], need[others, kind]), pair_speed(need[others, kind], need[i, kind])

    return told if p.beside.shape[0] else predicted


def concatenate(a: AllocationOptions, b: AllocationOptions) -> AllocationOptions:
    """Both."""
    return AllocationOptions(*(np.concatenate(columns) for columns in zip(a, b, strict=True)))


class AllocationProgram:
    """The linear programs over one set of options: shares x[V] of time."""

    def __init__(self, options: AllocationOptions, gangs: int, capacity: np.ndarray) -> None:
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
        """Shares of the largest sum of gains, with throughputs of at least `floor`."""
        limits, most = self.limits, self.most
        if floor is not None:
            limits, most = vstack([limits, -self.throughput]), np.concatenate([most, -floor])
        return self._least(-gain, limits, most)

    def lift(self, need: np.ndarray) -> tuple[float, np.ndarray]:
        """The largest z such that every throughput can be z times its need, and shares that make it so."""
        column = coo_matrix(np.concatenate([np.zeros(self.limits.shape[0]), need])[:, None])
        limits = hstack([vstack([self.limits, -self.throughput]), column])
        most = np.concatenate([self.most, np.zeros(self.gangs)])
        gain = np.concatenate([np.zeros(self.count), [-1.0]])
        x = self._least(gain, limits, most)
        return float(x[-1]), x[:-1]

    def central(self, x: np.ndarray, floor: np.ndarray) -> np.ndarray:
        """The analytic centre of all shares with throughputs above `floor`; `x` are shares that reach more than that.

        Newton's method on the sum of the logarithms of all slacks.
        """
        used = self.limits.getnnz(axis=1) > 0  # a kind that nobody can use has no centre
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
            raise ArithmeticError(f"a linear program of Gavel's has no answer: {answer.message}")
        return np.maximum(answer.x, 0.0)


def max_min(
    options: AllocationOptions, gangs: int, capacity: np.ndarray, norm: np.ndarray, many: np.ndarray | float = 1.0
) -> np.ndarray:
    """Shares under which the least of throughput / norm is as large as can be: the centre of all that do, or (if there
    are too many options for that) one with the largest sum.

    `many` [gangs]: a row stands for as many gangs that are alike (options' widths are then those of all of them).
    """
    programme = AllocationProgram(options, gangs, capacity)
    least, x = programme.lift(norm)
    floor = least * norm * (1 - SLACK)
    if len(options.kind) <= MAX_OPTIONS_FOR_CENTRE:
        return programme.central(x, floor)
    weight = np.where(options.gang >= 0, (many / norm)[options.gang], 0.0)
    return programme.solve((options.rate * weight).sum(axis=1), floor)


def max_sum(options: AllocationOptions, gangs: int, capacity: np.ndarray, norm: np.ndarray) -> np.ndarray:
    """Shares under which the sum of throughput / norm is as large as can be."""
    weight = np.where(options.gang >= 0, 1 / norm[options.gang], 0.0)
    return AllocationProgram(options, gangs, capacity).solve((options.rate * weight).sum(axis=1))


def finish_time_fair(
    options: AllocationOptions, gangs: int, capacity: np.ndarray, left: np.ndarray, age_s: np.ndarray, own_s: np.ndarray
) -> np.ndarray:
    """Shares under which the worst of (age + left / throughput) / own is as small as can be.

    For a ratio to be reached, every throughput must be at least some need; lifting all throughputs as far above their
    needs as can be gives shares with a lower ratio, until there are none.
    """
    programme = AllocationProgram(options, gangs, capacity)
    x = programme.lift(left / own_s)[1]
    worst = np.inf
    for _ in range(30):
        ratio = float(((age_s + left / np.maximum(programme.throughput @ x, 1e-300)) / own_s).max())
        if ratio > worst * (1 - SLACK):
            break
        worst = ratio
        need = left / np.maximum(worst * own_s - age_s, 1e-9)
        x = programme.lift(need)[1]
    need = left / np.maximum(worst * own_s - age_s, 1e-9)
    floor = np.minimum(need, programme.throughput @ x) * (1 - SLACK)
    if len(options.kind) <= MAX_OPTIONS_FOR_CENTRE:
        return programme.central(x, floor)
    best = np.zeros(gangs)
    np.maximum.at(best, options.gang[:, 0], options.rate[:, 0])
    weight = np.where(options.gang >= 0, 1 / np.maximum(best, 1e-300)[options.gang], 0.0)
    return programme.solve((options.rate * weight).sum(axis=1), floor)


class Gavel(HostPlanner):
    """The mechanism of rounds; subclasses allocate."""

    reset_s: float = eqx.field(default=1000.0, static=True)  # least time between two allocations

    @property
    def uses_speeds(self) -> bool:
        """Whether it looks at speeds when it serves kinds."""
        return True

    @abstractmethod
    def allocate(self, options: AllocationOptions, rows: np.ndarray, capacity: np.ndarray, p: PlanInputs) -> np.ndarray:
        """Share of every option [V]; gangs in `options` are numbers into `rows`. May write to the last of p.book."""

    def sizes(self, kinds: int) -> tuple[int, int]:
        """Share, time received, time owed by kind, and three more; time of the last allocation, jobs changed, pairs."""
        return 3 * kinds + 3, 2 + (7 * MAX_PAIR_SHARES if self.packs else 0)

    def plan(self, picture: PlanInputs) -> RoundPlan:
        """Account for the time since the last plan, allocate if it is time, and serve kind by kind."""
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
        """Choose who runs on which kind, keep those in place that can stay, and find devices for the others."""
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
        for r in able:  # who is too wide for any one kind, or found the seats of its kind on too few devices
            if r not in seats.given:
                fits = [int(k) for k in np.flatnonzero(p.rate[r] > 0)]
                if seats.take([r], seats.where(r)) or seats.take([r], seats.find(int(p.workers[r]), fits)):
                    chosen.append(((int(r),), 0))
        return sorted([r for rows, _ in chosen for r in rows] + list(seats.given), key=lambda r: -p.priority[r])


def _gang_departed(p: PlanInputs) -> bool:
    present = {(int(g), int(j)) for g, j in zip(p.gang, p.job, strict=True)}
    return any(g >= 0 and (int(g), int(j)) not in present for g, j in zip(p.old_gang, p.old_job, strict=True))


class _PairShares:
    """Shares of pairs, kept in the memo: gang and job of each, kind, share, time received."""

    def __init__(self, p: PlanInputs) -> None:
        self.p = p
        row_of = {(int(g), int(j)): row for row, (g, j) in enumerate(zip(p.gang, p.job, strict=True)) if g >= 0}
        self.of: dict[tuple[int, int, int], list[float]] = {}
        for a, ja, b, jb, kind, share, received in p.memo[2:].reshape(MAX_PAIR_SHARES, 7):
            first, second = row_of.get((int(a), int(ja))), row_of.get((int(b), int(jb)))
            if share > 0 and first is not None and second is not None:
                self.of[first, second, int(kind)] = [float(share), float(received)]

    def ran(self, row: int, seats: SeatAllocation) -> bool:
        """Whether a row runs beside another; if so, the time is booked to the pair (once)."""
        devices = seats.where(row)
        beside = [r for r in set(seats.holder[np.isin(self.p.lane_device, devices)]) if r >= 0 and r != row]
        if len(devices) != 1 or not beside:
            return False
        key = (min(row, beside[0]), max(row, beside[0]), int(self.p.kind[devices[0]]))
        if key in self.of and row == key[0]:
            self.of[key][1] += float(self.p.ran_s[row])
        return True

    def share_out(self, rows: np.ndarray, kinds: np.ndarray, shares: np.ndarray) -> None:
        """Forget the old shares; remember the largest of these."""
        largest = [n for n in np.argsort(-shares)[:MAX_PAIR_SHARES] if shares[n] > SLACK]
        half = 0.5 * self.p.now_s / max(1, self.p.windows) or 1.0
        self.of = {(*sorted(map(int, rows[n])), int(kinds[n])): [float(shares[n]), half] for n in largest}  # type: ignore[misc]

    def entries(self, kind: int) -> list[QueueEntry]:
        """Pairs with a share of a kind, as entries of its queue."""
        movable = np.isin(self.p.standing, (WAITS, RUNS))
        return [
            ((a, b), share / max(received, 1e-9), 0.0, share)
            for (a, b, k), (share, received) in self.of.items()
            if k == kind and movable[a] and movable[b]
        ]

    def write(self) -> None:
        """Back into the memo."""
        table = np.zeros((MAX_PAIR_SHARES, 7))
        for n, ((a, b, kind), (share, received)) in enumerate(self.of.items()):
            p = self.p
            table[n] = p.gang[a], p.job[a], p.gang[b], p.job[b], kind, share, received
        self.p.memo[2:] = table.reshape(-1)


def proportional(rate: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Throughput of each gang if its time were spread over the kinds as the devices are [n]."""
    return rate @ (capacity / capacity.sum())


def isolated(rate: np.ndarray, workers: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Throughput of each gang in an n-th of the cluster of its own [n]."""
    share = capacity / len(rate) / workers[:, None]
    return (rate * share / np.maximum(share.sum(axis=1), 1)[:, None]).sum(axis=1)


class FifoPassing(Policy):
    """First come, first served on the fastest idle device; who can use nothing that is idle lets others pass."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """The oldest gang for which enough is idle."""
        return state, place_or_preempt(observation, jnp.zeros(observation.core.status.shape), preempts=False)


class MaxMinFairness(Gavel):
    """The least normalised throughput is as large as can be."""

    def allocate(self, options: AllocationOptions, rows: np.ndarray, capacity: np.ndarray, p: PlanInputs) -> np.ndarray:
        """Shares."""
        rate, workers = p.rate[rows], p.workers[rows].astype(float)
        if self.packs:
            return max_min(options, len(rows), capacity, proportional(rate, capacity) / workers)
        # Gangs that are alike share alike: one row of the program for each sort, and smaller programs.
        sorts, sort, many = np.unique(np.c_[rate, workers], axis=0, return_inverse=True, return_counts=True)
        sort = sort.reshape(-1)
        speed, width = sorts[:, :-1], sorts[:, -1]
        few = single_gang_options(speed, width * many)
        x = np.zeros(speed.shape)
        x[few.gang[:, 0], few.kind] = max_min(few, len(sorts), capacity, proportional(speed, capacity) / width, many)
        return x[sort[options.gang[:, 0]], options.kind]


class MaxMinFairnessPlain(MaxMinFairness):
    """As `MaxMinFairness`, but blind to speed: every device that can run a gang is as good as any other."""

    @property
    def uses_speeds(self) -> bool:
        """No."""
        return False

    def allocate(self, options: AllocationOptions, rows: np.ndarray, capacity: np.ndarray, p: PlanInputs) -> np.ndarray:
        """Shares."""
        blind = p._replace(rate=(p.rate > 0).astype(float))
        return MaxMinFairness.allocate(self, options, rows, capacity, blind)


class MaxSumThroughput(Gavel):
    """The sum of relative throughputs is as large as can be."""

    def allocate(self, options: AllocationOptions, rows: np.ndarray, capacity: np.ndarray, p: PlanInputs) -> np.ndarray:
        """Shares."""
        return max_sum(options, len(rows), capacity, p.rate[rows].max(axis=1))


class MinTotalDuration(Gavel):
    """The time until all are done is as short as can be."""

    def allocate(self, options: AllocationOptions, rows: np.ndarray, capacity: np.ndarray, p: PlanInputs) -> np.ndarray:
        """Shares."""
        return max_min(options, len(rows), capacity, np.maximum(p.left[rows], 1e-6))


class FinishTimeFairness(Gavel):
    """The worst ratio of finish time to that in an n-th of the cluster is as small as can be."""

    def allocate(self, options: AllocationOptions, rows: np.ndarray, capacity: np.ndarray, p: PlanInputs) -> np.ndarray:
        """Shares. Time in isolation is added up as the number of jobs changes: work done, at the rate of then."""
        rate, left = p.rate[rows], np.maximum(p.left[rows], 1e-6)
        spent, before, pace = (p.book[:, n] for n in (-3, -2, -1))
        done = np.where(pace[rows] > 0, (before[rows] - left) / np.maximum(pace[rows], 1e-300), 0)
        spent[rows] += np.maximum(done, 0)
        before[rows], pace[rows] = left, isolated(rate, p.workers[rows], capacity)
        own = spent[rows] + left / np.maximum(pace[rows], 1e-300)
        return finish_time_fair(options, len(rows), capacity, left, p.age_s[rows].astype(float), own)


class MaxMinFairnessPacked(MaxMinFairness):
    """As `MaxMinFairness`, with shares for pairs of gangs on one device."""

    @property
    def packs(self) -> bool:
        """Yes."""
        return True


class MaxSumThroughputPacked(MaxSumThroughput):
    """As `MaxSumThroughput`, with shares for pairs of gangs on one device."""

    @property
    def packs(self) -> bool:
        """Yes."""
        return True


class MinTotalDurationPacked(MinTotalDuration):
    """As `MinTotalDuration`, with shares for pairs of gangs on one device."""

    @property
    def packs(self) -> bool:
        """Yes."""
        return True


class FinishTimeFairnessPacked(FinishTimeFairness):
    """As `FinishTimeFairness`, with shares for pairs of gangs on one device."""

    @property
    def packs(self) -> bool:
        """Yes."""
        return True
