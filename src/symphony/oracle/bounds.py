"""Lower bounds that hold for every policy: no schedule of the simulator is better than any of them.

They use only what contention, transfers, set-up, failures and preemption cannot undo: a gang takes at least its true
isolated time on the devices it runs on, a child starts after its parents, a device has so many slots, and data that
must cross a link crosses it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import numpy as np

from symphony.oracle.instance import Instance

Objective = Literal["makespan", "mean_completion"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def lower_bounds(i: Instance, objective: Objective) -> dict[str, float]:
    """Each bound by name, in seconds: critical path, area, link."""
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
    """Earliest finish of every gang on its best devices; `delay(gang, input)` is charged for each input [N]."""
    finish = np.zeros(len(i))
    for gang in i.order:
        begin = i.arrival_s[gang]
        for number, x in enumerate(i.inputs[gang]):
            from_s = finish[x.source] if x.source >= 0 else i.arrival_s[gang]
            begin = max(begin, from_s + delay(gang, number))
        finish[gang] = begin + i.best_s[gang]
    return finish


def area(i: Instance) -> tuple[np.ndarray, float]:
    """How long all work keeps all slots busy at least, spread as well as fractions of gangs can be: a linear program.

    Also returns each gang's part of it [N], priced by the scarcity of device kinds (the dual): at those prices the
    cluster does at most one second's worth of work a second, whatever the order.
    """
    from scipy.optimize import linprog  # takes a third of a second to import

    kinds, kind_of = np.unique([device.kind for device in i.scenario.topology.devices], return_inverse=True)
    representative = [int(np.flatnonzero(kind_of == kind)[0]) for kind in range(len(kinds))]
    capacity = np.bincount(kind_of, i.slots).astype(float)
    seconds = i.seconds[:, representative] * i.workers[:, None]
    rows: Mapping[tuple[float, ...], int] = Counter(map(tuple, seconds))
    table = np.asarray(list(rows))
    scale = float(np.min(table[np.isfinite(table)]))
    able = [(row, kind) for row in range(len(table)) for kind in range(len(kinds)) if np.isfinite(table[row, kind])]
    # variables: how many gangs of each row run on each kind, then the length
    length = len(able)
    fits = np.zeros((len(kinds), length + 1))
    each = np.zeros((len(table), length + 1))
    for column, (row, kind) in enumerate(able):
        fits[kind, column] = table[row, kind] / scale
        each[row, column] = 1.0
    fits[:, length] = -capacity
    cost = np.zeros(length + 1)
    cost[length] = 1.0
    found = linprog(cost, A_ub=fits, b_ub=np.zeros(len(kinds)), A_eq=each, b_eq=np.asarray(list(rows.values())))
    price = np.maximum(-found.ineqlin.marginals, 0.0)
    # Any prices give a bound as long as a second of the whole cluster costs at most one: no trust in the solver needed.
    price = price / max(float(price @ capacity), 1e-300)
    able_s = np.where(np.isfinite(seconds), seconds, 0.0)
    worth = np.where(np.isfinite(seconds), able_s * price, np.inf).min(axis=1)
    return worth, float(worth.sum())


def shortest_first(arrival: np.ndarray, work: np.ndarray) -> np.ndarray:
    """Completion of each job on one machine that always does the job with least work left: the least possible sum."""
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
    """Where the output of a gang may come to lie, and where its inputs may have to go."""
    return set(i.memory_of[np.isfinite(i.seconds[gang])].tolist())


def _forced_s(i: Instance, gang: int, number: int) -> float:
    """Least time from when an input is made until it is where the gang can read it."""
    x = i.inputs[gang][number]
    sources = {int(i.home[gang])} if x.source < 0 else _memories(i, x.source)
    targets = _memories(i, gang)
    if sources & targets or x.bytes <= 0:
        return 0.0
    # A copy may have come closer on behalf of others, so any memory may be the last hop's source.
    every = range(len(i.bandwidth))
    smallest = (
        min((y.bytes for y in _readers(i, x.source) if y.bytes > 0), default=x.bytes) if x.source >= 0 else x.bytes
    )
    return min(i.transfer_s(smallest, a, b) for a in every for b in targets if a != b)


def _readers(i: Instance, source: int) -> list:
    return [x for child in i.children[source] for x in i.inputs[child] if x.source == source]


def _bus_s(i: Instance) -> float:
    """Seconds that the busiest row is needed by transfers which no placement can avoid."""
    least = np.where(np.isfinite(i.bandwidth)[:, :, None], i.crossed, np.iinfo(np.int64).max).min(axis=(0, 1))
    always = least / (1 << 16)  # of a row, by any transfer at all, at full speed
    total = 0.0
    for gang, inputs in enumerate(i.inputs):
        for number, x in enumerate(inputs):
            # Readers of one gang's output may share a copy, so only the job's own inputs are counted each.
            if x.source < 0:
                total += _forced_s(i, gang, number)
    return total * float(np.minimum(always, 1.0).max(initial=0.0)) if len(i.bandwidth) > 1 else 0.0
