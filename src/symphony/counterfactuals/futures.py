"""Futures: a snapshot played to its end in the simulator, in K draws of the joint belief, as it is or changed.

Drawn for each future, and the same whatever is changed:

    typical time of each kernel on each device kind    from its belief; policies see it, because they would learn it
    time of each run                                   around that, hidden from policies; of a task that runs, given for
                                                       how long it has run; of a journalled one, as it was where it ran
    load by others                                     from the belief, row by row; constant
    arrivals                                           like the recent ones, at the rate of the last few or of all, for
                                                       as long again at most

Where users share the cluster, its own rule of admission plays (`rehearsal`): priorities change with what users have
used, and the simulator's do not. Work then waits for a device instead of in its queue, and own work does not contend.

Shapes are padded coarsely, and devices that a change may add are there from the start but do not exist, so that one
compiled program plays all changes of a snapshot, and later snapshots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri, stdtrit

from symphony.counterfactuals.change import Addition, Change, devices_of, extended
from symphony.counterfactuals.rehearsal import RehearsedJob, rehearse
from symphony.counterfactuals.resume import Resume
from symphony.counterfactuals.snapshot import Snapshot, SnapshotJob, SnapshotTask
from symphony.policies import PLANNER, named
from symphony.policies.learned import first_come
from symphony.problem import limits
from symphony.problem.arrays import WorkloadArrays, split_seconds
from symphony.problem.errors import InputError
from symphony.problem.runnable import profile_on
from symphony.problem.topology import DeviceKind, Topology
from symphony.problem.workload import Edge, Gang, Job, Kernel, Task, TaskGraph, Workload
from symphony.scheduling.policy import Policy
from symphony.scheduling.state import FINISHED
from symphony.simulator.run import MIN_GANGS_TO_RUN_SINGLY, run_traces
from symphony.simulator.scenarios import BELIEFS, CALM, Scenario, ScenarioArrays, scenario_arrays

FUTURES = 32
MAX_ARRIVALS = 64  # of a future
MIN_RATED = 8  # arrivals of which their rate is drawn
NOISE_STRIDE = 31  # the simulator's factor of gang i of job j is number 31 j + i
FAR_S = 1e8
MIN_LEFT_S, MAX_TASK_S = 1e-4, 1e7  # of a running task
PLAY_POLICY = "eft-belief"  # in place of the planner, whose training jobs have forecasts of their own
COARSE = 4  # factor between padded sizes
CANDIDATES = 4_096  # from which draws are chosen that agree with how long tasks have run …
MAX_ALIKE = 32  # devices of a kind whose loads are looked at, where users share the cluster
TAIL_DEGREES, MAX_DEVIATIONS = 4.0, 6.0  # … with tails of this many degrees of freedom, up to so many deviations


class PlayedTimes(NamedTuple):
    """Times of J jobs in K futures, in seconds from now; inf = never."""

    start_s: np.ndarray  # f[K, J]
    finish_s: np.ndarray  # f[K, J]
    used_s: np.ndarray  # f[K]: device-seconds
    devices: int


class _Layout(NamedTuple):
    """Where the tasks of the snapshot are in the arrays: P tasks of all jobs, J groups of dependent jobs."""

    group: np.ndarray  # i[P]
    gang: np.ndarray  # i[P]
    job: np.ndarray  # i[P]


@dataclass(frozen=True)
class Stage:
    """A snapshot, ready to be played. `spare`: devices that changes may add. `extra`: a job that one may submit."""

    snapshot: Snapshot
    spare: tuple[Addition, ...] = ()
    extra: SnapshotJob | None = None
    draws: int = FUTURES
    seed: int = 0

    @cached_property
    def topology(self) -> Topology:
        return extended(self.snapshot.topology, self.spare)

    @cached_property
    def jobs(self) -> list[SnapshotJob]:
        """All jobs that outcomes are of: those of the snapshot, then the one that may be submitted."""
        return [*self.snapshot.jobs, *([self.extra] if self.extra is not None else [])]

    def play(
        self,
        change: Change | None = None,
        policy: Policy | str = PLAY_POLICY,
        progress: Callable[[float], None] | None = None,
    ) -> PlayedTimes:
        """The outcome of all jobs. In the simulator, `policy` decides unless the change names another."""
        change = change or Change()
        asked = change.policy or policy
        chosen = first_come(named(asked) if isinstance(asked, str) else asked)
        if chosen.cheats:
            hint = "choose another: symphony policies lists them"
            raise InputError(f"policy {chosen.name} sees what no real cluster shows", where="--policy", hint=hint)
        chosen = named(PLAY_POLICY) if chosen.name == PLANNER else chosen
        return _play(self, change, chosen, progress or (lambda share: None))

    # --- what all changes share

    @cached_property
    def recent(self) -> list[SnapshotJob]:
        """Recent arrivals that can run here."""
        able = _Able(self, np.ones(len(self.topology.devices), bool))
        return [job for job in self.snapshot.recent if all(able.runs(task) for task in job.tasks)]

    @cached_property
    def groups(self) -> list[list[int]]:
        """Indices of jobs that are played as one graph: jobs that wait for others, with those."""
        index, root = {job.job: n for n, job in enumerate(self.jobs)}, list(range(len(self.jobs)))

        def find(n: int) -> int:
            while root[n] != n:
                n = root[n] = root[root[n]]
            return n

        for n, job in enumerate(self.jobs):
            for before in job.after:
                if before in index:
                    a, b = sorted((find(n), find(index[before])))
                    root[b] = a
        found: dict[int, list[int]] = {}
        for n in range(len(self.jobs)):
            found.setdefault(find(n), []).append(n)
        return list(found.values())

    @cached_property
    def layout(self) -> _Layout:
        rows = [
            (g, gang, n)
            for g, members in enumerate(self.groups)
            for gang, n in enumerate(n for n in members for _ in self.jobs[n].tasks)
        ]
        return _Layout(*np.asarray(rows, int).reshape(-1, 3).T)

    def tasks(self, members: Sequence[int]) -> list[SnapshotTask]:
        """The tasks of a group, with the first tasks of a job reading the last ones of those before it."""
        first, total = {}, 0
        for n in members:
            first[n] = total
            total += len(self.jobs[n].tasks)
        index = {self.jobs[n].job: n for n in members}
        found = []
        for n in members:
            before = [
                first[index[job]] + last
                for job in self.jobs[n].after
                if job in index
                for last in _sinks(self.jobs[index[job]].tasks)
            ]
            for task in self.jobs[n].tasks:
                reads = tuple(first[n] + source for source in task.reads)
                found.append(task._replace(reads=reads or tuple(before)))
        return found

    @cached_property
    def all_tasks(self) -> list[SnapshotTask]:
        """In the order of `layout`."""
        return [task for members in self.groups for task in self.tasks(members)]

    @cached_property
    def rows(self) -> tuple[list[list[SnapshotTask]], list[int], list[int]]:
        """Distinct graphs; the graph of each group, -1 = no devices can run it; the graph of each recent arrival."""
        never = set(stranded(self, np.ones(len(self.topology.devices), bool)))
        many = [[] if not never.isdisjoint(members) else self.tasks(members) for members in self.groups]
        recent = [list(job.tasks) for job in self.recent]
        numbers: dict[Any, int] = {}
        graphs: list[list[SnapshotTask]] = []

        def number(tasks: list[SnapshotTask], alone: int | None) -> int:
            if not tasks:
                return -1
            key = (alone, *((t.kernel, t.reads, t.workers, _rounded(t.size), t.units) for t in tasks))
            if key not in numbers:
                numbers[key] = len(graphs)
                graphs.append(tasks)
            return numbers[key]

        long = max((len(tasks) for tasks in (*many, *recent)), default=0) > NOISE_STRIDE
        own = [number(tasks, g if long or any(t.devices for t in tasks) else None) for g, tasks in enumerate(many)]
        like = [number(tasks, -1 - n if long else None) for n, tasks in enumerate(recent)]
        return graphs, own, like

    @cached_property
    def scenario(self) -> Scenario:
        graphs, _, _ = self.rows
        kernels = tuple(replace(one.kernel, name=f"k{n}") for n, one in enumerate(self.snapshot.kernels))
        made = tuple(_graph(f"g{n}", tasks) for n, tasks in enumerate(graphs))
        count = max(len(self.groups) + (MAX_ARRIVALS if self.recent else 0), 1)
        work = Workload("counterfactual", kernels, made, (Job(0, 0.0),) * count)
        quiet = replace(CALM, window_s=FAR_S, phase_s=FAR_S)
        return Scenario(self.topology, work, self.seed, (), (), (1.0,), quiet, self.snapshot.slots)

    @cached_property
    def arrays(self) -> ScenarioArrays:
        made = scenario_arrays(self.scenario)
        return replace(made, workload=_padded(made.workload, made.job_slots), belief=np.int32(BELIEFS.index("exact")))

    @cached_property
    def drawn(self) -> _Draws:
        return _draw(self)


def _sinks(tasks: Sequence[SnapshotTask]) -> list[int]:
    read = {source for task in tasks for source in task.reads}
    return [n for n in range(len(tasks)) if n not in read]


def _rounded(size: float) -> float:
    """A size, to 9%: graphs of nearly equal sizes share a row."""
    return float(2 ** (round(4 * np.log2(size)) / 4)) if size > 0 else 0.0


def _graph(name: str, tasks: Sequence[SnapshotTask]) -> TaskGraph:
    made, gangs, edges = [], [], []
    for n, task in enumerate(tasks):
        workers = [f"t{n}", *(f"t{n}.{rank}" for rank in range(1, task.workers))]
        made += [Task(worker, f"k{task.kernel}", size=_rounded(task.size), units=task.units) for worker in workers]
        if task.workers > 1:
            gangs.append(Gang(f"t{n}", tuple(workers)))
        edges += [Edge(f"t{source}", f"t{n}") for source in task.reads]
    return TaskGraph(name, tuple(made), tuple(edges), tuple(gangs))


def _coarse(n: int, least: int) -> int:
    while least < n:
        least *= COARSE
    return least


def _padded(w: WorkloadArrays, slots: int) -> WorkloadArrays:
    """The same workload with coarser sizes, as `scenarios.stack_arrays` pads."""
    # With fewer gangs, draws would share a program, and another number of draws would need another one.
    a, t = _coarse(w.kernel.shape[0], 32), _coarse(w.kernel.shape[1], max(16, MIN_GANGS_TO_RUN_SINGLY // slots))
    e = _coarse(w.in_source.shape[1], 32)
    n, j = _coarse(w.exchange.shape[0], 8), _coarse(len(w.graph), 64)
    sizes: dict[str, tuple[int, ...]] = {name: (a, t) for name in ("kernel", "work", "units", "workers", "runs_on")}
    sizes |= {name: (a, t) for name in ("footprint", "preemptible", "checkpoint", "restore", "checkpoint_units")}
    sizes |= {name: (a, t) for name in ("rank", "parents")} | dict.fromkeys(("gangs", "isolated"), (a,))
    sizes |= dict.fromkeys(("in_start", "out_start"), (a, t + 1)) | dict.fromkeys(
        ("in_source", "in_bytes", "out_target"), (a, e)
    )
    sizes |= {name: (n,) for name in ("time_fixed", "time_work", "demand_fixed", "demand_work")}
    sizes |= {name: (n,) for name in ("memory_fixed", "memory_work", "exchange")}
    sizes |= {name: (j,) for name in ("arrival_whole", "arrival_part", "graph", "priority", "home")}
    padded: dict[str, Any] = {}
    for name, size in sizes.items():
        old = getattr(w, name)
        grow = [(0, m - k) for m, k in zip(size, old.shape, strict=False)] + [(0, 0)] * (old.ndim - len(size))
        padded[name] = np.pad(old, grow, mode="edge")
    padded["time_fixed"][w.time_fixed.shape[0] :] = np.inf  # such kernels run nowhere
    return replace(w, **padded, max_workers=_coarse(w.max_workers, 1), fan=4)


# ---------------------------------------------------------------------------------------------------------- draws


class _Draws(NamedTuple):
    """K draws: P tasks of present jobs, N kernels, Y kinds, F arrivals."""

    speed: np.ndarray  # f[K, N, Y]: factor on the times of a kernel
    factor: np.ndarray  # f[K, P]: time of a task over the typical one; of a running task, time left
    loads: np.ndarray  # f[K, rows]
    arrives_s: np.ndarray  # f[K, F]; inf = none
    like: np.ndarray  # i[K, F]: index into `Snapshot.recent`
    noise: np.ndarray  # f[K, F, T]: standard normal, for the tasks of arrivals


def _draw(stage: Stage) -> _Draws:
    s, t, w = stage.snapshot, stage.topology, stage.arrays.workload
    rng, draws = np.random.default_rng([stage.seed, 7]), stage.draws
    kinds = [kind.name for kind in t.kinds]
    std = np.zeros(w.time_fixed.shape)
    for n, one in enumerate(s.kernels):
        std[n, : len(kinds)] = [one.belief_std.get(kind, 0.0) for kind in kinds]
    speed = np.exp(rng.normal(size=(draws, *std.shape)) * std)
    for (kernel, kind), tasks in _running(s, t).items():
        speed[:, kernel, kind] = _given_elapsed(s, t, kernel, kind, tasks, draws, rng)
    every = stage.all_tasks
    factor = np.exp(rng.normal(size=(draws, len(every))) * [_noise(s, task) for task in every])
    runs = np.asarray([bool(task.devices) for task in every], bool)
    uniform = rng.uniform(1e-6, 1.0, (draws, len(every)))
    for p in np.flatnonzero(runs | np.asarray([np.isfinite(task.took_s) for task in every], bool)):
        task = every[p]
        kind = kinds.index(t.devices[task.devices[0]].kind if task.devices else task.kind)
        known_s = typical_s(s.kernels[task.kernel].kernel, t.kinds[kind], task)
        if known_s is None:
            continue
        typical = known_s * speed[:, task.kernel, kind]
        if not runs[p]:
            factor[:, p] = task.took_s / typical
            continue
        sigma = max(s.kernels[task.kernel].noise_std.get(kinds[kind], 0.0), 1e-3)
        so_far = np.clip(np.log(np.maximum(task.elapsed_s, 1e-9) / typical) / sigma, -30.0, 30.0)
        whole = typical * np.exp(-sigma * ndtri(uniform[:, p] * ndtr(-so_far)))
        factor[:, p] = np.clip(whole - task.elapsed_s, MIN_LEFT_S, MAX_TASK_S) / typical
    mean, deviation = (
        np.asarray([s.loads.get(row.name.split("+")[0], (0.0, 0.0))[n] for row in t.resources]) for n in (0, 1)
    )
    loads = np.maximum(mean + deviation * rng.normal(size=(draws, len(mean))), 0.0)
    recent = stage.recent
    ages_s = np.sort([-job.arrives_s for job in recent])
    many = MAX_ARRIVALS if recent and ages_s[-1] > 0 else 0
    arrives_s = np.full((draws, many), np.inf)
    like = np.zeros((draws, many), int)
    if many:
        # They go on for more than k times as long again with probability 1 / (1 + k): an uninformative prior.
        lasts_s = ages_s[-1] * np.minimum(1.0, 1 / rng.uniform(size=(draws, 1)) - 1)
        # Their rate may have changed at any time, and a few arrivals do not tell it.
        least = min(MIN_RATED, len(recent))
        last = np.exp(rng.uniform(np.log(least), np.log(len(recent) + 1), (draws, 1))).astype(int)
        gap_s = np.maximum(ages_s[last - 1], MIN_LEFT_S) / rng.gamma(last)
        arrives_s = np.cumsum(gap_s * rng.exponential(size=(draws, many)), axis=1)
        arrives_s = np.where(arrives_s <= lasts_s, arrives_s, np.inf)
        like = rng.integers(0, len(recent), arrives_s.shape)
    return _Draws(speed, factor, loads, arrives_s, like, rng.normal(size=(draws, many, w.kernel.shape[1])))


def _running(s: Snapshot, t: Topology) -> dict[tuple[int, int], list[SnapshotTask]]:
    """Running tasks by kernel and device kind."""
    found: dict[tuple[int, int], list[SnapshotTask]] = {}
    kinds = [kind.name for kind in t.kinds]
    for task in (task for job in s.jobs for task in job.tasks if task.devices and task.elapsed_s > 0):
        found.setdefault((task.kernel, kinds.index(t.devices[task.devices[0]].kind)), []).append(task)
    return found


def _given_elapsed(
    s: Snapshot,
    t: Topology,
    kernel: int,
    kind: int,
    tasks: Sequence[SnapshotTask],
    draws: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draws of a kernel's factor, given that these runs of it have not ended yet: weighted draws of the belief."""
    one, name = s.kernels[kernel], t.kinds[kind].name
    sigma = max(one.noise_std.get(name, 0.0), 1e-3)
    # Student's t: what runs for far longer than believed may do so for as long again.
    spread = np.clip(stdtrit(TAIL_DEGREES, (np.arange(CANDIDATES) + 0.5) / CANDIDATES), -MAX_DEVIATIONS, MAX_DEVIATIONS)
    factor = np.exp(one.belief_std.get(name, 0.0) * spread)
    weight = np.zeros(CANDIDATES)
    for task in tasks:
        typical = typical_s(one.kernel, t.kinds[kind], task) or task.elapsed_s
        weight += log_ndtr(-np.log(task.elapsed_s / (typical * factor)) / sigma)
    chance = np.exp(weight - weight.max())
    return rng.choice(factor, draws, p=chance / chance.sum())


def typical_s(kernel: Kernel, kind: DeviceKind, task: SnapshotTask) -> float | None:
    """Median seconds of a task on a device kind; None if it cannot run there."""
    profile = kernel.on(kind)
    return None if profile is None else profile.seconds(kernel.work(_rounded(task.size))) * task.units


def _noise(s: Snapshot, task: SnapshotTask) -> float:
    """Deviation of the logarithm of a run's time: the mean over device kinds."""
    return float(np.mean(list(s.kernels[task.kernel].noise_std.values()) or [0.0]))


# ----------------------------------------------------------------------------------------------------------- a play


class _Able:
    """Whether existing devices can run tasks."""

    def __init__(self, stage: Stage, exists: np.ndarray) -> None:
        t = self._topology = stage.topology
        self._kernels, self._known = stage.snapshot.kernels, dict[tuple[int, float], int]()
        self._count = Counter(device.kind for device, there in zip(t.devices, exists, strict=True) if there)

    def runs(self, task: SnapshotTask) -> bool:
        key = task.kernel, _rounded(task.size)
        if key not in self._known:
            kernel, kinds = self._kernels[task.kernel].kernel, self._topology.kinds
            self._known[key] = sum(self._count[kind.name] for kind in kinds if profile_on(kernel, kind, key[1]))
        return self._known[key] >= task.workers


def stranded(stage: Stage, exists: np.ndarray) -> list[int]:
    """Indices of jobs with a task that no existing devices can run, and of those that are played with such jobs."""
    able = _Able(stage, exists)
    found = {n for n, job in enumerate(stage.jobs) if not all(able.runs(task) for task in job.tasks)}
    return sorted(n for members in stage.groups if not found.isdisjoint(members) for n in members)


def _play(stage: Stage, change: Change, policy: Policy, progress: Callable[[float], None]) -> PlayedTimes:
    s, t = stage.snapshot, stage.topology
    real = len(s.topology.devices)
    exists = np.zeros(len(t.devices), bool)
    exists[:real] = True
    if change.more:
        added = extended(s.topology, change.more).devices[real:]
        spare = list(range(real, len(t.devices)))
        for device in added:  # a spare device of the same kind
            exists[spare.pop(next(n for n, x in enumerate(spare) if t.devices[x].kind == device.kind))] = True
    exists[[*s.down, *devices_of(t, change.without, "--without")]] = False
    lost = set(stranded(stage, exists))
    played = [g for g, members in enumerate(stage.groups)
              if lost.isdisjoint(members) and (change.submit is not None or len(stage.jobs) - 1 not in members
                                               or stage.extra is None)]  # fmt: skip
    start_s, finish_s = (np.full((stage.draws, len(stage.jobs)), np.inf) for _ in range(2))
    if not played:
        return PlayedTimes(start_s, finish_s, np.zeros(stage.draws), int(exists.sum()))
    failing = sorted(devices_of(t, change.fail, "--fail")) if change.fail else []
    if s.admission is not None and not change.policy:
        return _rehearsed(stage, change, played, exists, failing, progress)
    batch, gone = _batch(stage, change, played, exists, failing)
    present = sum(1 for g in played if _arrival(stage, g) <= 0)
    chosen = Resume(policy, jax.device_put(_devices(stage, exists)), jax.device_put(np.int32(present)))
    scenarios = [replace(stage.scenario, seed=stage.seed * 1_000 + k) for k in range(stage.draws)]
    traces, _ = run_traces(batch, scenarios, chosen, progress=progress)
    starts, ends = (np.full((stage.draws, len(stage.layout.job)), np.inf) for _ in range(2))
    first = np.searchsorted(stage.layout.group, np.arange(len(stage.groups)))
    for k, trace in enumerate(traces):
        log, before = trace.log, trace.before_s
        task_of = np.asarray([first[g] if g >= 0 else -1 for g in gone[k]])
        for into, part, rows in ((starts, log.started, log.started.job >= 0),
                                 (ends, log.left, (log.left.job >= 0) & (log.left.status == FINISHED))):  # fmt: skip
            job, gang, at = part.job[rows], part.gang[rows], before[rows]
            known = task_of[job] >= 0
            where = task_of[job][known] + gang[known]
            if into is starts:
                np.minimum.at(into[k], where, at[known])
            else:
                into[k, where] = at[known]
    workers = np.asarray([task.workers for task in stage.all_tasks], float)
    busy = np.where(np.isfinite(ends), ends - np.where(np.isfinite(starts), starts, 0.0), 0.0) * workers
    owner = stage.layout.job
    for k in range(stage.draws):
        np.minimum.at(start_s[k], owner, starts[k])
        finish_s[k] = -np.inf
        np.maximum.at(finish_s[k], owner, ends[k])
    runs = np.asarray([one.runs for one in stage.jobs], bool)
    start_s[:, runs] = np.where(np.isfinite(start_s[:, runs]), 0.0, start_s[:, runs])
    return PlayedTimes(start_s, np.where(np.isfinite(finish_s), finish_s, np.inf), busy.sum(axis=1), int(exists.sum()))


def _arrival(stage: Stage, group: int) -> float:
    return max(0.0, min(stage.jobs[n].begins_s for n in stage.groups[group]))


def _devices(stage: Stage, exists: np.ndarray) -> np.ndarray:
    """Devices of running tasks i32[A, T, W]; -1 = none. A task on a device that is gone starts anew elsewhere."""
    w = stage.arrays.workload
    found = np.full((*w.kernel.shape, w.max_workers), -1, np.int32)
    for row, tasks in enumerate(stage.rows[0]):
        for n, task in enumerate(tasks):
            if task.devices and exists[list(task.devices)].all():
                found[row, n, : len(task.devices)] = task.devices
    return found


def _rehearsed(
    stage: Stage,
    change: Change,
    played: Sequence[int],
    exists: np.ndarray,
    failing: Sequence[int],
    progress: Callable[[float], None],
) -> PlayedTimes:
    """The futures of a cluster that users share, by its own rule."""
    s, t, d = stage.snapshot, stage.topology, stage.drawn
    assert s.admission is not None
    kinds = [t.kinds.index(t.kind_of[device.kind]) for device in t.devices]
    lanes = [[0.0] * (t.kinds[kind].slots if there else 0) for kind, there in zip(kinds, exists, strict=True)]
    for device in failing:
        lanes[device] = [change.fail_s] * len(lanes[device])
    gone = {*np.flatnonzero(~exists).tolist(), *failing}
    tasks: dict[int, list[int]] = {}  # of each job
    for p, n in enumerate(stage.layout.job.tolist()):
        tasks.setdefault(n, []).append(p)
    factor, here = d.factor.copy(), []
    youngest = max((job.job for job in stage.jobs), default=0) + 1
    for n in (n for g in played for n in stage.groups[g]):
        job, runs_on = stage.jobs[n], []
        for p, task in zip(tasks[n], job.tasks, strict=True):
            runs = bool(task.devices) and gone.isdisjoint(task.devices)
            runs_on.append(kinds[task.devices[0]] if runs else -1)
            if task.devices and not runs:
                factor[:, p] = 1.0  # it starts anew
            for device in task.devices if runs else ():
                lanes[device] = lanes[device][1:]
        job = job._replace(priority=change.priority.get(job.job, job.priority))
        here.append((n, job if stage.jobs[n] is not stage.extra else job._replace(job=youngest), tasks[n], runs_on))
    free_s: list[list[float]] = [[] for _ in t.kinds]
    for kind, some in zip(kinds, lanes, strict=True):
        free_s[kind] += some
    took_s = _seconds(stage, stage.all_tasks, exists) * factor[:, :, None]
    like_took_s = [_seconds(stage, job.tasks, exists) for job in stage.recent]
    spread = [np.asarray([_noise(s, task) for task in job.tasks]) for job in stage.recent]
    start_s, finish_s = (np.full((stage.draws, len(stage.jobs)), np.inf) for _ in range(2))
    used_s = np.zeros(stage.draws)
    for k in range(stage.draws):
        mine_s = took_s[k].tolist()
        jobs = [RehearsedJob(job, [mine_s[p] for p in mine], runs_on) for _, job, mine, runs_on in here]
        for f in np.flatnonzero(d.arrives_s[k] < np.inf).tolist():
            like = d.like[k, f]
            noise = np.exp(spread[like] * d.noise[k, f, : len(spread[like])])
            job = stage.recent[like]._replace(job=youngest + 1 + f, arrives_s=float(d.arrives_s[k, f]))
            jobs.append(RehearsedJob(job, (like_took_s[like][k] * noise[:, None]).tolist()))
        rehearse(s.admission.copy(), free_s, jobs)
        for (n, job, *_), one in zip(here, jobs, strict=False):
            start_s[k, n], finish_s[k, n] = 0.0 if job.runs else one.first_s, one.ended_s
            used_s[k] += one.took_s
        progress((k + 1) / stage.draws)
    return PlayedTimes(start_s, finish_s, used_s, int(exists.sum()))


def _seconds(stage: Stage, tasks: Sequence[SnapshotTask], exists: np.ndarray) -> np.ndarray:
    """Seconds f[K, P, Y] of tasks on each device kind, slowed by the load of others; inf = cannot run there."""
    s, d = stage.snapshot, stage.drawn
    t, w, kinds = stage.arrays.topology, stage.arrays.workload, stage.topology.kinds
    known: dict[tuple[int, float, float], int] = {}
    which = [known.setdefault((task.kernel, _rounded(task.size), task.units), len(known)) for task in tasks]
    found = np.full((stage.draws, len(known), len(kinds)), np.inf)
    loads = np.zeros((stage.draws, len(t.capacity)))
    loads[:, : d.loads.shape[1]] = d.loads
    for y, kind in enumerate(kinds):
        devices = np.flatnonzero(exists & (np.asarray(t.device_kind)[: len(exists)] == y))
        devices = devices[:: max(len(devices) // MAX_ALIKE, 1)]
        rows, row_kinds = np.asarray(t.route_row)[devices], np.asarray(t.route_kind)[devices]
        for u, (kernel, size, units) in enumerate(known):
            profiled = s.kernels[kernel].kernel
            profile = profiled.on(kind)
            if profile is None or not len(devices):
                continue
            work = profiled.work(size)
            need = (w.demand_fixed[kernel, y] + work * w.demand_work[kernel, y])[row_kinds] / t.capacity[rows]
            slow = np.where(need > 0, np.maximum(loads[:, rows] + need, 1.0), 1.0).max(axis=-1).mean(axis=-1)
            found[:, u, y] = profile.seconds(work) * units * d.speed[:, kernel, y] * slow
    return found[:, which]


def _batch(
    stage: Stage, change: Change, played: Sequence[int], exists: np.ndarray, failing: Sequence[int]
) -> tuple[ScenarioArrays, list[np.ndarray]]:
    """The arrays of all draws, and for each draw the group of each job of the arrays (-1 = an arrival)."""
    s, base, d, draws = stage.snapshot, stage.arrays, stage.drawn, stage.draws
    w, t = base.workload, base.topology
    _, own, like = stage.rows
    own_level = [
        max(change.priority.get(stage.jobs[n].job, stage.jobs[n].priority) for n in members) for members in stage.groups
    ]
    in_core = [any(task.devices for n in members for task in stage.jobs[n].tasks) for members in stage.groups]
    order = sorted(played, key=lambda g: _arrival(stage, g))  # stable: jobs that are here keep their order, …
    if change.priority:  # … unless priorities change: those that wait are admitted by them
        order.sort(key=lambda g: (_arrival(stage, g), not in_core[g], 0 if in_core[g] else -own_level[g]))
    here = np.asarray([_arrival(stage, g) for g in order])
    row = np.asarray([own[g] for g in order])
    level = np.asarray([own_level[g] for g in order])
    size = len(w.graph)
    noises = _coarse(NOISE_STRIDE * size + w.kernel.shape[1] + 1, 256)
    long = int(w.gangs.max()) > NOISE_STRIDE
    arrival, graph = np.full((draws, size), np.inf), np.zeros((draws, size), np.int32)
    priority = np.zeros((draws, size), np.int32)
    units, noise = np.repeat(w.units[None], draws, axis=0), np.ones((draws, 1 if long else noises))
    groups: list[np.ndarray] = []
    layout = stage.layout
    runs = np.asarray([bool(task.devices) for task in stage.all_tasks], bool)
    kept = np.asarray([bool(exists[list(task.devices)].all()) for task in stage.all_tasks], bool)
    factor = np.where(runs & ~kept, 1.0, d.factor)
    at = np.asarray(own)[layout.group]
    into_units = (runs | long) & (at >= 0)
    units[:, at[into_units], layout.gang[into_units]] *= factor[:, into_units]
    recent_level = [job.priority for job in stage.recent]
    spread = [[_noise(s, task) for task in job.tasks] for job in stage.recent]
    for k in range(draws):
        comes = np.flatnonzero(np.isfinite(d.arrives_s[k]))
        times = np.concatenate([here, d.arrives_s[k, comes]])
        place = np.argsort(times, kind="stable")
        which = np.concatenate([np.asarray(order), np.full(len(comes), -1)])[place].astype(int)
        n = len(place)
        groups.append(which)
        arrival[k, :n] = times[place]
        graph[k, :n] = np.concatenate([row, [like[x] for x in d.like[k, comes]]])[place]
        priority[k, :n] = np.concatenate([level, [recent_level[x] for x in d.like[k, comes]]])[place]
        if long:
            continue
        number = np.full(len(stage.groups), -1)
        number[which[which >= 0]] = np.flatnonzero(which >= 0)
        j = number[layout.group]
        some = (j >= 0) & ~runs
        noise[k, NOISE_STRIDE * j[some] + layout.gang[some]] = factor[k, some]
        for f, j in zip(comes, np.argsort(place)[len(here) :], strict=True):
            sigma = np.asarray(spread[d.like[k, f]])
            noise[k, NOISE_STRIDE * j : NOISE_STRIDE * j + len(sigma)] = np.exp(sigma * d.noise[k, f, : len(sigma)])
    whole, part = split_seconds(np.where(np.isfinite(arrival), arrival, 0.0))
    jobs = np.asarray([len(which) for which in groups], np.int32)
    late = np.arange(size) >= jobs[:, None]
    there = np.zeros(len(t.exists), bool)
    there[: len(exists)] = exists
    lanes = t.lane_exists & there[t.lane_device]
    topology = replace(t, exists=there, slots=np.where(there, t.slots, 0).astype(np.int32), lane_exists=lanes)

    def all_draws(x: Any) -> np.ndarray:
        return np.repeat(np.asarray(x)[None], draws, axis=0)

    work = replace(
        jax.tree.map(all_draws, w),
        time_fixed=np.where(np.isfinite(w.time_fixed), w.time_fixed * d.speed, np.inf),
        time_work=w.time_work * d.speed,
        units=units,
        jobs=jobs,
        arrival_whole=np.where(late, np.iinfo(np.int32).max, whole).astype(np.int32),
        arrival_part=part,
        graph=graph,
        priority=priority,
    )
    phases = _phases(stage, t)
    fails = limits.bucket(len(t.exists) + 1)
    gap, which, down = np.zeros(fails), np.zeros(fails, np.int32), np.zeros(fails)
    which[: len(failing)], down[: len(failing)] = failing, change.fail_s
    gap[len(failing)] = FAR_S
    no_workload: Any = None  # it has its own axis already
    made = replace(jax.tree.map(all_draws, replace(base, topology=None, workload=no_workload)), workload=work)
    made = replace(
        made,
        **phases,
        failures=np.full(draws, len(failing) + 1 if failing else 0, np.int32),
        failure_gap=all_draws(gap),
        failure_device=all_draws(which),
        failure_down=all_draws(down),
        work_noises=np.full(draws, noise.shape[1], np.int32),
        work_noise=noise,
        topology=jax.device_put(topology),
    )
    return made, groups


def _phases(stage: Stage, t: Any) -> Mapping[str, np.ndarray]:
    """Constant loads by others: one phase of each group at time 0, then nothing."""
    loads, rows = stage.drawn.loads, len(stage.topology.resources)
    groups, slots = t.group_row.shape
    count = limits.bucket(groups + 1)
    load = np.zeros((stage.draws, count, slots))
    if rows:
        load[:, t.row_group[:rows], t.row_slot[:rows]] = loads
    load[:, groups] = load[:, 0]
    gap = np.zeros((stage.draws, count))
    gap[:, groups] = FAR_S
    number = np.arange(count) % groups
    some = bool(loads.any())
    return {
        "phases": np.full(stage.draws, groups + 1 if some else 0, np.int32),
        "phase_gap": gap,
        "phase_group": np.repeat(np.where(np.arange(count) == groups, 0, number)[None], stage.draws, axis=0).astype(
            np.int32
        ),
        "phase_load": load,
    }
