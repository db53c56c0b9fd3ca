"""Lower bounds that hold for every policy: no schedule in the simulator is better.

They use only facts that contention, transfers, set-up, failures and preemption do not change: a gang takes at least its
true isolated time on its devices, children start after their parents, slots are limited, and some transfers are needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from symphony.oracle.instance import FULL_LOAD, Instance

Objective = Literal["makespan", "mean_completion"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
SOLVER_TOLERANCE = 1e-5  # subtracted from a bound that depends on the solver, whose own tolerance is 1e-7
MIN_GANGS_INTERIOR_POINT = 2000  # with more gangs, the interior-point method is faster


def lower_bounds(i: Instance, objective: Objective) -> dict[str, float]:
    """Each bound by name, in seconds: critical path, area and link; of a makespan also path and area combined."""
    jobs = len(i.scenario.workload.jobs)
    finish = critical_path(i, lambda gang, source: 0.0)
    linked = critical_path(i, lambda gang, source: _forced_s(i, gang, source))
    price, seconds = area(i)
    bus = _bus_s(i)
    if objective == "makespan":
        first = float(i.arrival_s.min())
        return {
            "critical path": float(finish.max()),
            "area": first + seconds,
            "path and area": path_and_area(i),
            "link": max(float(linked.max()), first + bus),
        }
    arrival = np.asarray([job.arrival_s for job in i.scenario.workload.jobs])

    def mean(done: np.ndarray) -> float:
        return float((done - arrival).mean())

    job_of = np.asarray([job for job, _ in i.who])
    work = np.bincount(job_of, price, minlength=jobs)
    return {
        "critical path": mean(_by_job(finish, job_of, jobs)),
        "area": mean(shortest_first(arrival, work)),
        "link": mean(_by_job(linked, job_of, jobs)),
    }


def _by_job(finish: np.ndarray, job_of: np.ndarray, jobs: int) -> np.ndarray:
    last = np.zeros(jobs)
    np.maximum.at(last, job_of, finish)
    return last


def critical_path(i: Instance, delay: Callable[[int, int], float]) -> np.ndarray:
    """Earliest finish of every gang on its best devices [N]; each input takes `delay(gang, input)` seconds."""
    finish = np.zeros(len(i))
    for gang in i.order:
        begin = i.arrival_s[gang]
        for number, x in enumerate(i.inputs[gang]):
            from_s = finish[x.source] if x.source >= 0 else i.arrival_s[gang]
            begin = max(begin, from_s + delay(gang, number))
        finish[gang] = begin + i.best_s[gang]
    return finish


@dataclass(frozen=True)
class Spread:
    """The optimal fractional assignment of all work to slots. K device kinds, in order of their names."""

    seconds: np.ndarray  # f[N, K]: slot-seconds, all workers of a gang together; inf where it cannot run
    capacity: np.ndarray  # f[K]: slots
    share: np.ndarray  # f[N, K]: part of each gang's work that is assigned to each kind
    price: np.ndarray  # f[K]: dual price of a slot-second; a second of the whole cluster costs one


def spread(i: Instance) -> Spread:
    """Solve the linear program: the least time in which the slots of all kinds can do all work, and its dual."""
    from scipy.optimize import linprog  # takes a third of a second to import

    kinds, kind_of = np.unique([device.kind for device in i.scenario.topology.devices], return_inverse=True)
    representative = [int(np.flatnonzero(kind_of == kind)[0]) for kind in range(len(kinds))]
    capacity = np.bincount(kind_of, i.slots).astype(float)
    seconds = i.seconds[:, representative] * i.workers[:, None]
    table, row_of, count = np.unique(seconds, axis=0, return_inverse=True, return_counts=True)
    scale = float(np.min(table[np.isfinite(table)]))
    row, kind = np.nonzero(np.isfinite(table))
    # variables: how many gangs of each row run on each kind, then the length
    length = len(row)
    fits, each = np.zeros((len(kinds), length + 1)), np.zeros((len(table), length + 1))
    fits[kind, np.arange(length)] = table[row, kind] / scale
    fits[:, length] = -capacity
    each[row, np.arange(length)] = 1.0
    cost = np.zeros(length + 1)
    cost[length] = 1.0
    solution = linprog(cost, A_ub=fits, b_ub=np.zeros(len(kinds)), A_eq=each, b_eq=count)
    price = np.maximum(-solution.ineqlin.marginals, 0.0)
    share = np.zeros_like(table)
    share[row, kind] = solution.x[:length] / count[row]
    return Spread(seconds, capacity, share[row_of.reshape(-1)], price / max(float(price @ capacity), 1e-300))


def area(i: Instance) -> tuple[np.ndarray, float]:
    """Each gang's part of the area bound [N], and the bound: the least time in which all slots can do all work.

    Parts are priced by the dual of the linear program: at these prices the cluster does at most one second's worth of
    work per second, in any order.
    """
    s = spread(i)
    # Any prices at which a second of the whole cluster costs at most one give a bound: the solver need not be exact.
    able_s = np.where(np.isfinite(s.seconds), s.seconds, 0.0)
    worth = np.where(np.isfinite(s.seconds), able_s * s.price, np.inf).min(axis=1)
    return worth, float(worth.sum())


def path_and_area(i: Instance) -> float:
    """Both in one linear program: fractions of gangs fit on the slots of all kinds, and no path exceeds the makespan.

    Neither bound alone accounts for a gang that is short only on a fast device, which other gangs then lack.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    s = spread(i)
    gangs = len(i)
    gang, kind = np.nonzero(np.isfinite(s.seconds))
    scale = float(i.best_s.min())
    # variables: the share of each gang on each kind, the end of each gang, the end of all
    shares, ends, last = np.arange(len(gang)), len(gang) + np.arange(gangs), len(gang) + gangs
    slot_s = s.seconds[gang, kind] / scale
    alone_s = slot_s / i.workers[gang]  # a gang finishes with its slowest worker, so not before their average
    first = float(i.arrival_s.min())
    links = [(parent, child) for child, parents in enumerate(i.parents) for parent in set(parents)]
    before = np.asarray(links, int).reshape(-1, 2)
    of_gang = [np.flatnonzero(gang == g) for g in range(gangs)]

    entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # rows, columns, values of A x <= b

    def put(rows: np.ndarray, columns: np.ndarray, values: np.ndarray | float) -> None:
        entries.append((rows, columns, np.broadcast_to(np.asarray(values, float), rows.shape)))

    kinds = len(s.capacity)
    put(kind, shares, slot_s)  # work on a kind <= slots * (end - first arrival)
    put(np.arange(kinds), np.full(kinds, last), -s.capacity)
    base = kinds
    put(base + np.arange(gangs), ends, 1.0)  # end of a gang <= end of all
    put(base + np.arange(gangs), np.full(gangs, last), -1.0)
    base += gangs
    put(base + gang, shares, alone_s)  # arrival + its time <= its end
    put(base + np.arange(gangs), ends, -1.0)
    base += gangs
    for number, (parent, child) in enumerate(before):  # end of a parent + its time <= its end
        row = np.full(len(of_gang[child]), base + number)
        put(row, of_gang[child], alone_s[of_gang[child]])
        put(row[:1], ends[[parent]], 1.0)
        put(row[:1], ends[[child]], -1.0)
    rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
    limit = np.concatenate([-s.capacity * first / scale, np.zeros(gangs), -i.arrival_s / scale, np.zeros(len(before))])
    cost = np.zeros(last + 1)
    cost[last] = 1.0
    solution = linprog(
        cost,
        A_ub=coo_array((values, (rows, columns)), shape=(len(limit), last + 1)),
        b_ub=limit,
        A_eq=coo_array((np.ones(len(gang)), (gang, shares)), shape=(gangs, last + 1)),
        b_eq=np.ones(gangs),
        method="highs-ipm" if gangs > MIN_GANGS_INTERIOR_POINT else "highs",
    )
    return float(solution.fun) * scale * (1 - SOLVER_TOLERANCE) if solution.success else 0.0


def shortest_first(arrival: np.ndarray, work: np.ndarray) -> np.ndarray:
    """Completion of each job on one machine with shortest remaining time first, which minimises the sum."""
    done = np.zeros(len(arrival))
    left: list[tuple[float, int]] = []
    now, order = 0.0, np.argsort(arrival, kind="stable")
    for turn, job in enumerate(order):
        now = max(now, float(arrival[job]))
        heapq.heappush(left, (float(work[job]), int(job)))
        until = float(arrival[order[turn + 1]]) if turn + 1 < len(order) else np.inf
        while left and now < until:
            rest, current = heapq.heappop(left)
            spent = min(rest, until - now)
            now += spent
            if spent < rest:
                heapq.heappush(left, (rest - spent, current))
            else:
                done[current] = now
    return done


def _memories(i: Instance, gang: int) -> set[int]:
    """The memories of the devices that a gang can run on."""
    return set(i.memory_of[np.isfinite(i.seconds[gang])].tolist())


def _forced_s(i: Instance, gang: int, number: int) -> float:
    """Least time from the production of an input until it is in a memory where the gang can read it."""
    x = i.inputs[gang][number]
    sources = {int(i.home[gang])} if x.source < 0 else _memories(i, x.source)
    targets = _memories(i, gang)
    if sources & targets or x.bytes <= 0:
        return 0.0
    # Another gang may have fetched a copy, so any memory may be the source of the last transfer.
    every, size = range(len(i.bandwidth)), i.least_bytes(x)
    return min(i.transfer_s(size, a, b) for a in every for b in targets if a != b)


def _bus_s(i: Instance) -> float:
    """Seconds for which transfers that no placement avoids need the busiest resource."""
    least = np.where(np.isfinite(i.bandwidth)[:, :, None], i.crossed, np.iinfo(np.int64).max).min(axis=(0, 1))
    always = least / FULL_LOAD  # of a row, by any transfer at all, at full speed
    total = 0.0
    for gang, inputs in enumerate(i.inputs):
        for number, x in enumerate(inputs):
            # Readers of one gang's output may share a copy, so only inputs of the job itself are counted.
            if x.source < 0:
                total += _forced_s(i, gang, number)
    return total * float(np.minimum(always, 1.0).max(initial=0.0)) if len(i.bandwidth) > 1 else 0.0
