"""Forecasts of training jobs: speed, start and finish with bands, and the speed lost to each neighbour.

Speeds are drawn jointly from the posterior (`Beliefs.draws`), so that related jobs are fast or slow together. Each job
also gets its own deviation from its kernel's speed, given its own samples. In every draw the queue is rolled forward
(`queue_rollout.py`); a band holds the central `share` of the outcomes.

Future arrivals take GPUs from the jobs that are present. Given `RecentArrivals`, similar jobs are drawn at the same
rate, for at most as long again as the recent ones took to arrive.

Not modelled: jobs that come to share a GPU (present sharing is), rounds (here GPUs change hands at any time; a planner
waits for the end of a round), trials of other GPUs, failures, and drift of speeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np

from symphony.problem.errors import InputError
from symphony.problem.speeds import PACKED, SPREAD
from symphony.problem.topology import Topology
from symphony.training_jobs.beliefs import JOB_LOG_STD, NO_NEIGHBOUR, Beliefs, Signature, SpeedQuery, signature
from symphony.training_jobs.job_forecast import Band, JobForecast, SampleEvidence, SpeedLoss
from symphony.training_jobs.partial_plan import largest_machine
from symphony.training_jobs.queue_rollout import FutureJobs, QueuedJobs, QueueOutcome, roll_out_queue

MAX_FUTURE_JOBS = 64  # arrivals drawn per draw


class JobNow(NamedTuple):
    """A job that runs or waits. Kernels, devices and kinds are indices."""

    job: int
    kernel: int
    left: float  # units
    workers: int = 1
    priority: int = 0
    devices: tuple[int, ...] = ()  # that it holds; () = it waits
    saving_s: float = 0.0  # to write a checkpoint
    restoring_s: float = 0.0  # to read it back
    has_run: bool = False  # for a job that waits: it has a checkpoint
    waited_s: float = 0.0  # without a GPU
    runs_on: frozenset[int] | None = None  # device kinds; None = all on which its kernel has a speed
    task: str = ""  # its name


class ClusterNow(NamedTuple):
    """D devices of Y kinds. Names default to the indices."""

    kind: np.ndarray  # i[D]
    machine: np.ndarray  # i[D]
    up: np.ndarray  # bool[D]
    kind_names: Sequence[str] = ()  # [Y]
    device_names: Sequence[str] = ()  # [D]

    @classmethod
    def of(cls, topology: Topology, down: Container[int] = ()) -> ClusterNow:
        """The devices of a topology, except those that are down."""
        kinds = [kind.name for kind in topology.kinds]
        machines = sorted({device.machine for device in topology.devices})
        return cls(
            kind=np.asarray([kinds.index(device.kind) for device in topology.devices]),
            machine=np.asarray([machines.index(device.machine) for device in topology.devices]),
            up=np.asarray([number not in down for number in range(len(topology.devices))]),
            kind_names=kinds,
            device_names=[device.name for device in topology.devices],
        )


class RecentArrivals(NamedTuple):
    """Jobs that arrived recently, as examples of future arrivals."""

    like: Sequence[JobNow]  # in their state at arrival
    for_s: float  # between the first and the last of them
    silent_s: float = 0.0  # since the last


def forecast(
    beliefs: Beliefs,
    jobs: Sequence[JobNow],
    cluster: ClusterNow,
    now_s: float,
    *,
    coming: RecentArrivals | None = None,
    share: float = 0.8,
    draws: int = 64,
    seed: int = 0,
) -> list[JobForecast]:
    """Forecasts of these jobs, in their order, on the clock of `now_s`.

    A band is meant to hold the actual value with probability `share`.
    """
    if not (0 < share < 1 and draws >= 1):
        hint = "write a share between 0 and 1, and one draw or more"
        raise InputError(f"share is {share!r} and draws is {draws!r}", where="forecast", hint=hint)
    if coming is not None and not (coming.for_s > 0 and coming.silent_s >= 0):
        problem = f"coming has for_s {coming.for_s!r} and silent_s {coming.silent_s!r}"
        hint = "for_s must be above 0 and silent_s 0 or more; or leave `coming` out"
        raise InputError(problem, where="forecast", hint=hint)
    if not jobs:
        return []
    drawn = _draw_speeds(beliefs, jobs, cluster, now_s, coming, draws, np.random.default_rng(seed))
    outcome = roll_out_queue(drawn.queue, drawn.future, now_s)
    counts = _SampleCounts(beliefs, now_s)
    return [_job_forecast(n, jobs, cluster, drawn, outcome, counts, share) for n in range(len(jobs))]


# ---------------------------------------------------------------------------------------------------------- draws


class _SpeedDraws(NamedTuple):
    """S draws of speeds: J jobs, Y kinds, P neighbours at most."""

    queue: QueuedJobs
    future: FutureJobs | None
    kept: np.ndarray  # f[S, J, P]: share of the isolated speed beside each neighbour
    spread: np.ndarray  # i[J, Y]: whether it would be spread over machines there
    is_spread: np.ndarray  # i[J]: whether it is now


class _SignatureTable:
    """Signatures whose speeds are drawn, each with a column of the draws."""

    def __init__(self) -> None:
        self.columns: dict[Signature, int] = {}

    def column(self, kernel: int, kind: int, spread: int, beside: int = NO_NEIGHBOUR) -> int:
        """The column of a signature, which is added if it is new."""
        key = Signature(int(kernel), int(kind), int(spread), int(beside))
        return self.columns.setdefault(key, len(self.columns))


def _draw_speeds(
    beliefs: Beliefs,
    jobs: Sequence[JobNow],
    cluster: ClusterNow,
    now_s: float,
    coming: RecentArrivals | None,
    draws: int,
    rng: np.random.Generator,
) -> _SpeedDraws:
    d = beliefs.described
    kinds, count = d.unit_s.shape[1], len(jobs)
    kind, machine, up = (np.asarray(x) for x in (cluster.kind, cluster.machine, cluster.up))
    every = [*jobs, *(coming.like if coming is not None else ())]
    kernel = np.asarray([job.kernel for job in every])
    workers = np.asarray([max(1, job.workers) for job in every])
    gpus = np.bincount(kind[up], minlength=kinds)
    runs = d.unit_s[kernel] > 0  # [E, Y, 2]
    for n, job in enumerate(every):
        if job.runs_on is not None:
            runs[n] &= np.isin(np.arange(kinds), list(job.runs_on))[:, None]
    spread = ((workers[:, None] > largest_machine(machine[up], kind[up], kinds)) & runs[..., SPREAD]).astype(int)
    able = runs[..., PACKED] & (workers[:, None] <= gpus)

    table = _SignatureTable()
    alone = np.asarray([[table.column(k, y, s[y]) for y in range(kinds)] for k, s in zip(kernel, spread, strict=True)])
    placed = _placements(jobs, kind, machine, runs, table)
    able[np.flatnonzero(placed.at >= 0), placed.at[placed.at >= 0]] = True
    own = _own_samples(beliefs, {job.job for job in jobs}, now_s)
    for signatures in own.values():
        for key in signatures:
            table.column(*key)
    log_s = beliefs.draws(SpeedQuery.of(table.columns), now_s, draws, rng)
    off = rng.normal(0.0, JOB_LOG_STD, (draws, count))
    for n, job in enumerate(jobs):
        if job.job in own:  # its deviation from its kernel's speed, given its own samples
            columns = [table.columns[key] for key in own[job.job]]
            mean, weight = np.asarray(list(own[job.job].values())).T
            shrink = 1 / (1 + weight.sum())
            off[:, n] = off[:, n] * shrink**0.5 + (mean - log_s[:, columns]) @ weight * shrink
    kept = np.clip(np.exp(log_s[:, placed.apart] - log_s[:, placed.together]), 0.02, 1.0)

    def rate(columns: np.ndarray, can: np.ndarray, off: np.ndarray) -> np.ndarray:  # [Y, S, C]
        return np.where(can.T[:, None], np.exp(-log_s[:, columns.T].swapaxes(0, 1) - off), 0.0)

    queue = QueuedJobs(
        rate=rate(alone[:count], able[:count], off),
        here=np.exp(-log_s[:, placed.here] - off),
        at=placed.at,
        left=np.asarray([float(job.left) for job in jobs]),
        workers=workers[:count],
        priority=np.asarray([job.priority for job in jobs]),
        saving_s=np.asarray([job.saving_s for job in jobs]),
        restoring_s=np.asarray([job.restoring_s for job in jobs]),
        has_run=np.asarray([job.has_run or bool(job.devices) for job in jobs]),
        waited_s=np.asarray([job.waited_s for job in jobs]),
        neighbour=placed.neighbour,
        cost=1 / kept - 1,
        crowding=float(d.crowding),
        gpus=gpus,
        free=np.bincount(kind[up & ~placed.held], minlength=kinds),
    )
    future = None
    if coming is not None and len(coming.like):
        differs = rng.normal(0.0, JOB_LOG_STD, (draws, len(coming.like)))
        future = _future_jobs(coming, rate(alone[count:], able[count:], differs), now_s, rng)
    return _SpeedDraws(queue, future, kept, spread[:count], placed.is_spread)


class _Placements(NamedTuple):
    """Where jobs are. Columns are those of `_SignatureTable`; without a neighbour, `apart` equals `together`."""

    at: np.ndarray  # i[J]: kind, -1 = it waits
    is_spread: np.ndarray  # i[J]
    here: np.ndarray  # i[J]: column alone where it is; any if it waits
    neighbour: np.ndarray  # i[J, P]: index into the jobs, -1 = none
    apart: np.ndarray  # i[J, P]: column alone on one GPU
    together: np.ndarray  # i[J, P]: column beside the neighbour
    held: np.ndarray  # bool[D]


def _placements(
    jobs: Sequence[JobNow], kind: np.ndarray, machine: np.ndarray, runs: np.ndarray, table: _SignatureTable
) -> _Placements:
    on: dict[int, list[int]] = {}
    for n, job in enumerate(jobs):
        for device in job.devices:
            on.setdefault(device, []).append(n)
    beside = [sorted({m for device in job.devices for m in on[device]} - {n}) for n, job in enumerate(jobs)]
    at, is_spread, here = np.full(len(jobs), -1), np.zeros(len(jobs), int), np.zeros(len(jobs), int)
    neighbour = np.full((len(jobs), max(map(len, beside))), -1)
    apart, together = np.zeros_like(neighbour), np.zeros_like(neighbour)
    for n, job in enumerate(jobs):
        if job.devices:
            at[n] = kind[job.devices[0]]
            is_spread[n] = len(set(machine[list(job.devices)])) > 1 and runs[n, at[n], SPREAD]
            here[n] = table.column(job.kernel, at[n], is_spread[n])
        for p, m in enumerate(beside[n]):
            neighbour[n, p] = m
            apart[n, p] = table.column(job.kernel, at[n], PACKED)
            together[n, p] = table.column(job.kernel, at[n], PACKED, jobs[m].kernel)
    held = np.zeros(len(kind), bool)
    held[list(on)] = True
    return _Placements(at, is_spread, here, neighbour, apart, together, held)


def _future_jobs(coming: RecentArrivals, rate: np.ndarray, now_s: float, rng: np.random.Generator) -> FutureJobs:
    """Future arrivals, drawn from the recent ones."""
    draws, like = rate.shape[1], coming.like
    # Silence suggests that arrivals have ended. The prior for that: any of the recent arrivals may have been the last.
    still = np.exp(-(len(like) + 1) * coming.silent_s / coming.for_s)
    going = rng.uniform(size=(draws, 1)) * (still + (1 - still) / (len(like) + 1)) <= still
    # Arrivals go on for more than k times as long again with probability 1 / (1 + k): an uninformative prior.
    lasts_s = coming.for_s * np.minimum(1.0, 1 / rng.uniform(size=(draws, 1)) - 1)
    arrives_s = np.cumsum(rng.exponential(coming.for_s / len(like), (draws, MAX_FUTURE_JOBS)), axis=1)
    arrives_s = np.where(going & (arrives_s <= lasts_s), now_s + arrives_s, np.inf)
    arrives_s = arrives_s[:, : max(1, int(np.isfinite(arrives_s).sum(axis=1).max()))]
    return FutureJobs(
        arrives_s=arrives_s,
        like=rng.integers(0, len(like), arrives_s.shape),
        rate=rate,
        left=np.asarray([float(job.left) for job in like]),
        workers=np.asarray([max(1, job.workers) for job in like]),
        priority=np.asarray([job.priority for job in like]),
        saving_s=np.asarray([job.saving_s for job in like]),
        restoring_s=np.asarray([job.restoring_s for job in like]),
    )


def _own_samples(
    beliefs: Beliefs, jobs: Container[int], now_s: float
) -> dict[int, dict[Signature, tuple[float, float]]]:
    """For each job and signature: the weighted mean of its samples and their total weight, which falls with age."""
    found: dict[int, dict[Signature, tuple[float, float]]] = {}
    for s in beliefs.store.samples:
        if s.job in jobs and len(s.neighbours) <= 1:
            key = signature(s)
            mean, total = found.setdefault(s.job, {}).get(key, (0.0, 0.0))
            weight = max(0.5 ** ((now_s - s.at_s) / beliefs.half_life_s), 1e-9)
            found[s.job][key] = ((mean * total + s.log_s * weight) / (total + weight), total + weight)
    return found


# ------------------------------------------------------------------------------------------------------- forecasts


class _SampleCounts:
    """Samples counted by signature, kernel and family, with the time of the newest of each."""

    def __init__(self, beliefs: Beliefs, now_s: float) -> None:
        self.now_s, self.family = now_s, beliefs.described.family
        self.count: Counter[object] = Counter()
        self.newest: dict[object, float] = {}
        for s in beliefs.store.samples:
            for key in self._keys(s.kernel, s.kind, s.neighbours, s.spread):
                self.count[key] += 1
                self.newest[key] = max(s.at_s, self.newest.get(key, -np.inf))

    def _keys(self, kernel: int, kind: int, neighbours: tuple[int, ...], spread: bool) -> tuple[object, ...]:
        return (kernel, kind, neighbours, spread), ("kernel", kernel), ("family", int(self.family[kernel]))

    def evidence(self, kernel: int, kind: int, neighbours: tuple[int, ...], spread: bool) -> SampleEvidence:
        keys = self._keys(kernel, kind, neighbours, spread)
        here, of_kernel, of_family = (self.count[key] for key in keys)
        newest = next((self.newest[key] for key in keys if self.count[key]), None)
        age_s = None if newest is None else self.now_s - newest
        return SampleEvidence(here, of_kernel - here, of_family - of_kernel, age_s)


def _band(values: np.ndarray, share: float) -> Band:
    """Median and central interval of draws, some of which may be inf."""
    ranked = np.sort(values)
    picked = (np.asarray([(1 - share) / 2, 0.5, (1 + share) / 2]) * (len(ranked) - 1)).round().astype(int)
    return Band(*(float(x) for x in ranked[picked]))


def _job_forecast(
    n: int,
    jobs: Sequence[JobNow],
    cluster: ClusterNow,
    drawn: _SpeedDraws,
    outcome: QueueOutcome,
    counts: _SampleCounts,
    share: float,
) -> JobForecast:
    q, job = drawn.queue, jobs[n]
    runs = bool(job.devices)
    kinds = outcome.kind[:, n][outcome.kind[:, n] >= 0]
    kind = int(np.bincount(kinds).argmax()) if len(kinds) else -1
    neighbours = [(p, jobs[m]) for p, m in enumerate(q.neighbour[n]) if m >= 0]
    slower = 1 + q.cost[:, n].sum(axis=1)
    slower *= 1 + q.crowding * max(0, len(neighbours) - 1)
    speed = q.here[:, n] / slower if runs else q.rate[kind, :, n] if kind >= 0 else np.zeros(len(q.here))
    spread = bool(drawn.is_spread[n] if runs else kind >= 0 and drawn.spread[n, kind])
    kind_names = cluster.kind_names or [str(index) for index in range(q.rate.shape[0])]
    device_names = cluster.device_names or [str(index) for index in range(len(cluster.kind))]
    return JobForecast(
        job=job.job,
        task=job.task,
        runs=runs,
        devices=tuple(device_names[device] for device in job.devices),
        kind=kind_names[kind] if kind >= 0 else "",
        workers=job.workers,
        steps_left=job.left,
        speed=_band(speed, share),
        start_s=_band(outcome.start_s[:, n], share),
        finish_s=_band(outcome.finish_s[:, n], share),
        loses=tuple(SpeedLoss(one.job, one.task, _band(drawn.kept[:, n, p], share)) for p, one in neighbours),
        evidence=counts.evidence(job.kernel, kind, tuple(sorted(one.kernel for _, one in neighbours)), spread),
    )
