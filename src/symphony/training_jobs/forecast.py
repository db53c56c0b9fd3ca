"""What each training job may expect: how fast it runs, when it starts and ends, what it loses to whom, with bands.

Speeds are drawn from what is believed, all together, so that jobs that have something in common are fast or slow
together (`Beliefs.draws`), and with them what a job differs by from others of its kernel, given its own samples. In
every draw the queue is rolled forward (`queue_rollout.py`); bands hold the middle `share` of what came of it.

Jobs that are yet to come take GPUs from those who are there. If it is said what has come of late (`RecentArrivals`),
others like that are drawn: at the rate at which they came, for as long again at most. How long they go on is as unknown
as it can be.

Left out: jobs that come to share a GPU (those who do now are there), rounds (GPUs change hands at once, where a planner
waits for the end of one), trials of other GPUs, failures, and that speeds may change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from symphony.problem.errors import InputError
from symphony.problem.evidence import SampleEvidence
from symphony.problem.speeds import PACKED, SPREAD
from symphony.problem.topology import Topology
from symphony.training_jobs.beliefs import JOB_LOG_STD, NO_NEIGHBOUR, Beliefs, SpeedQuery
from symphony.training_jobs.queue_rollout import FutureJobs, QueuedJobs, QueueOutcome, roll_out_queue

MAX_FUTURE_JOBS = 64  # jobs yet to come that are looked at

Signature = tuple[int, int, int, int]  # kernel, kind, spread, neighbour


class JobNow(NamedTuple):
    """A job that runs or waits. Kernels and devices are indices."""

    job: int
    kernel: int
    left: float  # units
    workers: int = 1
    priority: int = 0
    devices: tuple[int, ...] = ()  # that it holds; none: it waits
    saving_s: float = 0.0  # that a checkpoint takes
    restoring_s: float = 0.0  # that reading it back takes
    has_run: bool = False  # of one that waits: has a checkpoint
    waited_s: float = 0.0  # without a GPU
    runs_on: frozenset[int] | None = None  # kinds, if not all that its kernel has a speed on


class ClusterNow(NamedTuple):
    """D devices."""

    kind: np.ndarray  # i[D]
    machine: np.ndarray  # i[D]
    up: np.ndarray  # bool[D]

    @classmethod
    def of(cls, topology: Topology, down: Container[int] = ()) -> ClusterNow:
        """A cluster, of which these devices take no work."""
        kinds = [kind.name for kind in topology.kinds]
        machines = sorted({device.machine for device in topology.devices})
        return cls(
            kind=np.asarray([kinds.index(device.kind) for device in topology.devices]),
            machine=np.asarray([machines.index(device.machine) for device in topology.devices]),
            up=np.asarray([number not in down for number in range(len(topology.devices))]),
        )


class RecentArrivals(NamedTuple):
    """What has come of late, which says what is yet to come."""

    like: Sequence[JobNow]  # as they were when they came
    for_s: float  # in so many seconds, up to the last
    silent_s: float = 0.0  # since then


class Band(NamedTuple):
    """The middle of what may be, and between what it lies with the share that was asked for."""

    low: float
    mid: float
    high: float


class SpeedLoss(NamedTuple):
    """What a job keeps of its speed alone beside a neighbour."""

    job: int
    kept: Band


@dataclass(frozen=True)
class JobForecast:
    """What a job may expect. Times are instants, on the clock of `now_s`; inf: it is not to be expected at all."""

    job: int
    runs: bool
    kind: int  # where it runs, or where it is most likely to start; -1 = nowhere
    speed: Band  # units per second there, beside the neighbours that it has
    start_s: Band  # now, if it runs
    finish_s: Band
    loses: tuple[SpeedLoss, ...]
    evidence: SampleEvidence


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
    """What these jobs may expect, in their order; `share` of what happens is to be within the bands."""
    if not (0 < share < 1 and draws >= 1):
        hint = "write a share between 0 and 1, and one draw or more"
        raise InputError(f"a share of {share!r} of {draws!r} draws means nothing", where="forecast", hint=hint)
    if coming is not None and not (coming.for_s > 0 and coming.silent_s >= 0):
        hint = "say for how long jobs have come, or leave `coming` out"
        raise InputError(f"jobs came for {coming.for_s!r} s, which means nothing", where="forecast", hint=hint)
    if not jobs:
        return []
    drawn = _draw_speeds(beliefs, jobs, cluster, now_s, coming, draws, np.random.default_rng(seed))
    rolled = roll_out_queue(drawn.queue, drawn.others, now_s)
    counted = _SampleCounts(beliefs, now_s)
    return [_job_forecasts(n, jobs, drawn, rolled, counted, share) for n in range(len(jobs))]


# ---------------------------------------------------------------------------------------------------------- draws


class _SpeedDraws(NamedTuple):
    """Draws of all that is asked for: S of them, J jobs, Y kinds, P neighbours at most."""

    queue: QueuedJobs
    others: FutureJobs | None
    kept: np.ndarray  # f[S, J, P]
    spread: np.ndarray  # i[J, Y]: whether it would be spread there
    is_spread: np.ndarray  # i[J]: where it is


class _SignatureTable:
    """Signatures whose speeds are drawn."""

    def __init__(self) -> None:
        self.rows: dict[Signature, int] = {}

    def row(self, kernel: int, kind: int, spread: int, beside: int = NO_NEIGHBOUR) -> int:
        """Where a signature is, which is added if it is not there."""
        return self.rows.setdefault((int(kernel), int(kind), int(spread), int(beside)), len(self.rows))

    def query(self) -> SpeedQuery:
        """All of them."""
        return SpeedQuery(*np.asarray(list(self.rows), int).reshape(-1, 4).T)


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
    kind, machine, up = (np.asarray(x) for x in cluster)
    every = [*jobs, *(coming.like if coming is not None else ())]
    kernel = np.asarray([job.kernel for job in every])
    workers = np.asarray([max(1, job.workers) for job in every])
    gpus = np.bincount(kind[up], minlength=kinds)
    runs = d.unit_s[kernel] > 0  # [E, Y, 2]
    for n, job in enumerate(every):
        if job.runs_on is not None:
            runs[n] &= np.isin(np.arange(kinds), list(job.runs_on))[:, None]
    spread = ((workers[:, None] > _widest(cluster, kinds)) & runs[..., SPREAD]).astype(int)
    able = runs[..., PACKED] & (workers[:, None] <= gpus)

    asked = _SignatureTable()
    alone = np.asarray([[asked.row(k, y, s[y]) for y in range(kinds)] for k, s in zip(kernel, spread, strict=True)])
    seated = _placements(jobs, kind, machine, runs, asked)
    able[np.flatnonzero(seated.at >= 0), seated.at[seated.at >= 0]] = True
    own = _own_samples(beliefs, {job.job for job in jobs}, now_s)
    for signatures in own.values():
        for signature in signatures:
            asked.row(*signature)
    log_s = beliefs.draws(asked.query(), now_s, draws, rng)
    off = rng.normal(0.0, JOB_LOG_STD, (draws, count))
    for n, job in enumerate(jobs):
        if job.job in own:  # what it differs by from its kernel, given its own samples
            rows = [asked.rows[signature] for signature in own[job.job]]
            seen, much = np.asarray(list(own[job.job].values())).T
            trust = 1 / (1 + much.sum())
            off[:, n] = off[:, n] * trust**0.5 + (seen - log_s[:, rows]) @ much * trust
    kept = np.clip(np.exp(log_s[:, seated.apart] - log_s[:, seated.together]), 0.02, 1.0)

    def rate(rows: np.ndarray, can: np.ndarray, off: np.ndarray) -> np.ndarray:  # [Y, S, C]
        return np.where(can.T[:, None], np.exp(-log_s[:, rows.T].swapaxes(0, 1) - off), 0.0)

    queue = QueuedJobs(
        rate=rate(alone[:count], able[:count], off),
        here=np.exp(-log_s[:, seated.here] - off),
        at=seated.at,
        left=np.asarray([float(job.left) for job in jobs]),
        workers=workers[:count],
        priority=np.asarray([job.priority for job in jobs]),
        saving_s=np.asarray([job.saving_s for job in jobs]),
        restoring_s=np.asarray([job.restoring_s for job in jobs]),
        has_run=np.asarray([job.has_run or bool(job.devices) for job in jobs]),
        waited_s=np.asarray([job.waited_s for job in jobs]),
        neighbour=seated.neighbour,
        cost=1 / kept - 1,
        crowding=float(d.crowding),
        gpus=gpus,
        free=np.bincount(kind[up & ~seated.held], minlength=kinds),
    )
    others = None
    if coming is not None and len(coming.like):
        differs = rng.normal(0.0, JOB_LOG_STD, (draws, len(coming.like)))
        others = _future_jobs(coming, rate(alone[count:], able[count:], differs), now_s, rng)
    return _SpeedDraws(queue, others, kept, spread[:count], seated.is_spread)


class _Placements(NamedTuple):
    """Where jobs are; rows are those of `_SignatureTable`.

    Where there is no neighbour, both rows are the same: all is kept.
    """

    at: np.ndarray  # i[J]: kind, -1 = it waits
    is_spread: np.ndarray  # i[J]
    here: np.ndarray  # i[J]: row alone where it is, any if it waits
    neighbour: np.ndarray  # i[J, P]: its place in the list, -1 = none
    apart: np.ndarray  # i[J, P]: row alone on one GPU
    together: np.ndarray  # i[J, P]: row beside the neighbour
    held: np.ndarray  # bool[D]


def _placements(
    jobs: Sequence[JobNow], kind: np.ndarray, machine: np.ndarray, runs: np.ndarray, asked: _SignatureTable
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
            here[n] = asked.row(job.kernel, at[n], is_spread[n])
        for p, m in enumerate(beside[n]):
            neighbour[n, p] = m
            apart[n, p] = asked.row(job.kernel, at[n], 0)
            together[n, p] = asked.row(job.kernel, at[n], 0, jobs[m].kernel)
    held = np.zeros(len(kind), bool)
    held[list(on)] = True
    return _Placements(at, is_spread, here, neighbour, apart, together, held)


def _future_jobs(coming: RecentArrivals, rate: np.ndarray, now_s: float, rng: np.random.Generator) -> FutureJobs:
    """Jobs yet to come, drawn of those that have."""
    draws, like = rate.shape[1], coming.like
    # Silence speaks for an end. What it is weighed against: of so many that came, any might have been the last.
    still = np.exp(-(len(like) + 1) * coming.silent_s / coming.for_s)
    going = rng.uniform(size=(draws, 1)) * (still + (1 - still) / (len(like) + 1)) <= still
    # They go on for more than k times as long again with a probability of 1 / (1 + k): nothing else is known.
    lasts_s = coming.for_s * np.minimum(1.0, 1 / rng.uniform(size=(draws, 1)) - 1)
    comes_s = np.cumsum(rng.exponential(coming.for_s / len(like), (draws, MAX_FUTURE_JOBS)), axis=1)
    comes_s = np.where(going & (comes_s <= lasts_s), now_s + comes_s, np.inf)
    comes_s = comes_s[:, : max(1, int(np.isfinite(comes_s).sum(axis=1).max()))]
    return FutureJobs(
        comes_s=comes_s,
        like=rng.integers(0, len(like), comes_s.shape),
        rate=rate,
        left=np.asarray([float(job.left) for job in like]),
        workers=np.asarray([max(1, job.workers) for job in like]),
        priority=np.asarray([job.priority for job in like]),
        saving_s=np.asarray([job.saving_s for job in like]),
        restoring_s=np.asarray([job.restoring_s for job in like]),
    )


def _widest(cluster: ClusterNow, kinds: int) -> np.ndarray:
    """The most GPUs of each kind that one machine has, of those that are up [Y]."""
    found = np.zeros(kinds, int)
    for (_, kind), count in Counter(zip(cluster.machine[cluster.up], cluster.kind[cluster.up], strict=True)).items():
        found[kind] = max(found[kind], count)
    return found


def _own_samples(
    beliefs: Beliefs, jobs: Container[int], now_s: float
) -> dict[int, dict[Signature, tuple[float, float]]]:
    """Of every job, by signature: the mean of its samples, and how many they count for. Old ones count less."""
    found: dict[int, dict[Signature, tuple[float, float]]] = {}
    for s in beliefs.store.samples:
        if s.job in jobs and len(s.neighbours) <= 1:
            place = (s.kernel, s.kind, int(s.spread), s.neighbours[0] if s.neighbours else NO_NEIGHBOUR)
            mean, much = found.setdefault(s.job, {}).get(place, (0.0, 0.0))
            weight = max(0.5 ** ((now_s - s.at_s) / beliefs.half_life_s), 1e-9)
            found[s.job][place] = ((mean * much + s.log_s * weight) / (much + weight), much + weight)
    return found


# -------------------------------------------------------------------------------------------------------- answers


class _SampleCounts:
    """Samples, counted by signature, kernel and family, and when the newest of each was taken."""

    def __init__(self, beliefs: Beliefs, now_s: float) -> None:
        self.now_s, self.family = now_s, beliefs.described.family
        self.count: Counter[object] = Counter()
        self.newest: dict[object, float] = {}
        for s in beliefs.store.samples:
            for key in (s[1:5], ("kernel", s.kernel), ("family", int(self.family[s.kernel]))):
                self.count[key] += 1
                self.newest[key] = max(s.at_s, self.newest.get(key, -np.inf))

    def evidence(self, kernel: int, kind: int, neighbours: tuple[int, ...], spread: bool) -> SampleEvidence:
        """What an estimate of this signature rests on."""
        keys = ((kernel, kind, neighbours, spread), ("kernel", kernel), ("family", int(self.family[kernel])))
        here, of_kernel, of_family = (self.count[key] for key in keys)
        newest = next((self.newest[key] for key in keys if self.count[key]), None)
        return SampleEvidence(
            here, of_kernel - here, of_family - of_kernel, None if newest is None else self.now_s - newest
        )


def _band(values: np.ndarray, share: float) -> Band:
    """Of draws; those that are inf count."""
    ranked = np.sort(values)
    picked = (np.asarray([(1 - share) / 2, 0.5, (1 + share) / 2]) * (len(ranked) - 1)).round().astype(int)
    return Band(*(float(x) for x in ranked[picked]))


def _job_forecasts(
    n: int, jobs: Sequence[JobNow], drawn: _SpeedDraws, rolled: QueueOutcome, counted: _SampleCounts, share: float
) -> JobForecast:
    q, job = drawn.queue, jobs[n]
    runs = bool(job.devices)
    kinds = rolled.kind[:, n][rolled.kind[:, n] >= 0]
    kind = int(np.bincount(kinds).argmax()) if len(kinds) else -1
    others = [(p, int(m)) for p, m in enumerate(q.neighbour[n]) if m >= 0]
    slower = 1 + q.cost[:, n].sum(axis=1)
    slower *= 1 + q.crowding * max(0, len(others) - 1)
    speed = q.here[:, n] / slower if runs else q.rate[kind, :, n] if kind >= 0 else np.zeros(len(q.here))
    spread = bool(drawn.is_spread[n] if runs else kind >= 0 and drawn.spread[n, kind])
    return JobForecast(
        job=job.job,
        runs=runs,
        kind=kind,
        speed=_band(speed, share),
        start_s=_band(rolled.start_s[:, n], share),
        finish_s=_band(rolled.finish_s[:, n], share),
        loses=tuple(SpeedLoss(jobs[m].job, _band(drawn.kept[:, n, p], share)) for p, m in others),
        evidence=counted.evidence(job.kernel, kind, tuple(sorted(jobs[m].kernel for _, m in others)), spread),
    )
