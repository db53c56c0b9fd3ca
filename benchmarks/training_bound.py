"""What no plan of training jobs can beat: a lower bound on mean completion, with true speeds and arrivals known.

A linear program over stretches of time. In each, seconds of GPUs of a kind are given to jobs, alone or two to a GPU.
It asks less than a plan must do: jobs are cut into fractions and moved at no cost, there are no rounds, gangs are
packed wherever a machine is large enough, and work counts as done when its stretch begins.

How completion follows from fractions. With F(t) the part of a job that is done at t, its mean time of work is
M = ∫ t dF, and it completes at C = M + ∫ F dt. If the part z_l is done at such a speed that the whole job would take
p_l, that integral is least where slow parts come first: ½ Σ z_k z_l min(p_k, p_l). The form is convex (min is a
positive kernel), so that its tangents are below it: for every p,

    C ≥ M + Σ z_l min(p, p_l) − p/2

The program has some of these for each job, p among the times that it takes on the kinds of GPU and a few more.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from symphony.problem.errors import InputError
from symphony.simulator.scenarios import Scenario

ARRIVAL_INTERVALS = 32  # up to the last arrival
INTERVAL_GROWTH = 1.25  # after it, by which each is longer than the one before
TANGENT_SLOWDOWNS = (1.5, 2.5, 5.0)  # times its best time: where a job has tangents, besides the kinds of GPU


class TrueJobs(NamedTuple):
    """J jobs as they really are, on Y kinds of GPU."""

    arrival_s: np.ndarray  # f[J]
    workers: np.ndarray  # i[J]
    alone_s: np.ndarray  # f[J, Y]: all its work; inf = does not run there
    kept: np.ndarray  # f[J, J, Y]: of its speed, beside another on one GPU; 0 = they cannot share
    gpus: np.ndarray  # i[Y]


class GpuUses(NamedTuple):
    """U ways to use GPUs, each for one or two jobs."""

    jobs: np.ndarray  # i[U, 2], -1 = nobody
    kind: np.ndarray  # i[U]
    width: np.ndarray  # i[U]: GPUs
    whole_s: np.ndarray  # f[U, 2]: what all the work of each job would take so


def bound_s(scenario: Scenario) -> float:
    """Mean completion time, in seconds, that no policy can be below."""
    jobs = true_jobs(scenario)
    return solve(jobs, gpu_uses(jobs), interval_edges(jobs))


def true_jobs(scenario: Scenario) -> TrueJobs:
    """The truth of a scenario whose jobs are single gangs; speeds are those of `Scenario.truth`."""
    workload, truth = scenario.workload, scenario.truth
    graphs = [workload.graphs[job.graph] for job in workload.jobs]
    if truth is None or any(len(graph.all_gangs) != 1 for graph in graphs):
        raise InputError("jobs are not single gangs with a truth", hint="draw them with measured_jobs.drawn")
    counts = {kind: count for kind, count in scenario.topology.kind_counts.items() if count}
    kernel = [graph.tasks[0].kernel for graph in graphs]
    noise = scenario.work_noise
    units = [graph.tasks[0].units * noise[31 * n % len(noise)] for n, graph in enumerate(graphs)]
    workers = [len(graph.tasks) for graph in graphs]
    machines = Counter((device.machine, device.kind) for device in scenario.topology.devices)
    widest = {kind: max(count for (_, k), count in machines.items() if k == kind) for kind in counts}

    def unit_s(name: str, kind: str, width: int) -> float:
        """Packed only where a machine has so many."""
        return min(truth.unit_s.get((name, kind), (np.inf, np.inf))[width > widest[kind] :])

    shared = min(kind.slots for kind in scenario.topology.kinds) > 1
    names, number = np.unique(kernel, return_inverse=True)
    kept = np.asarray([[[truth.beside.get((a, b, kind), 0.0) for kind in counts] for b in names] for a in names])
    return TrueJobs(
        np.asarray([job.arrival_s for job in workload.jobs]),
        np.asarray(workers),
        np.asarray([[unit_s(n, kind, w) for kind in counts] for n, w in zip(kernel, workers, strict=True)])
        * np.asarray(units)[:, None],
        kept[number][:, number] * shared,
        np.asarray(list(counts.values())),
    )


def gpu_uses(jobs: TrueJobs) -> GpuUses:
    """All ways to use GPUs that may help: two who keep no more than one GPU's work had better take turns."""
    found: list[tuple[float, ...]] = []
    single = jobs.workers == 1
    for kind in range(len(jobs.gpus)):
        able = np.isfinite(jobs.alone_s[:, kind]) & (jobs.workers <= jobs.gpus[kind])
        one = [int(a) for a in np.flatnonzero(able & single)]
        for a in (int(a) for a in np.flatnonzero(able)):
            found.append((a, -1, kind, jobs.workers[a], jobs.alone_s[a, kind], 1.0))
            for b in (b for b in one if b > a and single[a]):
                mine, theirs = jobs.kept[a, b, kind], jobs.kept[b, a, kind]
                if mine + theirs > 1:
                    found.append((a, b, kind, 1, jobs.alone_s[a, kind] / mine, jobs.alone_s[b, kind] / theirs))
    table = np.asarray(found)
    return GpuUses(table[:, :2].astype(int), table[:, 2].astype(int), table[:, 3].astype(int), table[:, 4:])


def interval_edges(jobs: TrueJobs) -> np.ndarray:
    """Edges of the stretches: equal ones while jobs arrive, then longer and longer until all could be done in turn."""
    last, best = float(jobs.arrival_s.max()), jobs.alone_s.min(axis=1)
    step = max(last / ARRIVAL_INTERVALS, float(best.mean()) / 40)
    edges = [*np.arange(0.0, last, step).tolist(), last]
    while edges[-1] < last + float(best.sum()) + step:
        edges.append(edges[-1] + step)
        step *= INTERVAL_GROWTH
    return np.asarray(edges)


def solve(jobs: TrueJobs, uses: GpuUses, edges: np.ndarray) -> float:
    """The linear program. Columns: seconds of each use in each stretch where its jobs have arrived; completions."""
    from scipy.optimize import linprog  # takes a third of a second to import
    from scipy.sparse import coo_array

    many, kinds = len(jobs.workers), len(jobs.gpus)
    since = np.maximum(edges[:-1], jobs.arrival_s[:, None])  # [J, S]
    there = since < edges[1:]
    both = there[uses.jobs[:, 0]] & (there[uses.jobs[:, 1]] | (uses.jobs[:, 1] < 0)[:, None])
    use, stretch = np.nonzero(both)
    column, done = np.arange(len(use)), len(use)
    count = len(edges) - 1
    # GPUs of a kind in a stretch, then a job's own time in it.
    rows, columns, values = [kinds * stretch + uses.kind[use]], [column], [uses.width[use].astype(float)]
    limits = [np.outer(np.diff(edges), jobs.gpus).ravel(), np.maximum(edges[1:] - since, 0).ravel()]
    parts = []
    for side in (0, 1):
        job = uses.jobs[use, side]
        some = job >= 0
        rows.append(kinds * count + job[some] * count + stretch[some])
        columns.append(column[some])
        values.append(np.ones(int(some.sum())))
        parts.append((job[some], column[some], uses.whole_s[use[some], side], since[job[some], stretch[some]]))
    job, at, whole, begins = (np.concatenate(part) for part in zip(*parts, strict=True))
    first = kinds * count + many * count
    best = jobs.alone_s.min(axis=1)
    tangents = np.concatenate([jobs.alone_s, best[:, None] * TANGENT_SLOWDOWNS], axis=1)  # [J, P]
    for number, p in enumerate(tangents.T):
        able = np.isfinite(p)
        some = able[job]
        rows += [first + number * many + job[some], first + number * many + np.flatnonzero(able)]
        columns += [at[some], done + np.flatnonzero(able)]
        cost = (begins - jobs.arrival_s[job] + np.minimum(p[job], whole)) / whole
        values += [cost[some], np.full(int(able.sum()), -1.0)]
        limits.append(np.where(able, p, 0.0) / 2)
    shape = (first + tangents.shape[1] * many, done + many)
    found = linprog(
        np.concatenate([np.zeros(done), np.ones(many)]),
        A_ub=coo_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape).tocsr(),
        b_ub=np.concatenate(limits),
        A_eq=coo_array((1 / whole, (job, at)), (many, done + many)).tocsr(),
        b_eq=np.ones(many),
        bounds=[(0.0, None)] * done + [(float(least), None) for least in best],
        method="highs-ds",
    )
    if found.status != 0:
        raise InputError(f"no bound was found: {found.message}", hint="use fewer jobs")
    return float(found.fun) / many
