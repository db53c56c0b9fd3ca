"""Believed speeds of training jobs in real runs: seconds per step on each kind of device, alone and sharing.

The models are those of simulated clusters (`training_jobs/beliefs.py`). Kinds of jobs are added as they appear. A job
without a description (neither a known model nor operations) starts with a guess that may be off by any factor on all
kinds of device; its first reports settle that factor.

The loop's thread looks up kinds and reads the newest tables. One other thread learns (`rounds.py`), because a fit of
the networks takes seconds.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from symphony.problem.speeds import PACKED, BeliefArrays, SpeedArrays
from symphony.problem.topology import DeviceKind, Topology
from symphony.training_jobs.belief_learner import BeliefLearner
from symphony.training_jobs.beliefs import Beliefs, JobDescriptions
from symphony.training_jobs.job_features import (
    EXPECTED_CROWDING,
    GPUS,
    JOB_FEATURES,
    MODELS,
    JobNumbers,
    ModelDescription,
    busy,
    estimate_step_s,
    gpu_features,
    job_features,
)
from symphony.training_jobs.live.runs import LiveKernel
from symphony.training_jobs.performance_model import UNSEEN_STD
from symphony.training_jobs.speed_samples import SpeedReport, SpeedSample

log = logging.getLogger("symphony.runtime")
SPEEDS_FORMAT = 1  # of the file
UNDESCRIBED_STD = 3.0  # deviation of the log of a guess without a description
TYPICAL_MODEL = ModelDescription(2e7, 1e10, 500, 1e-3, 32)  # for what a description leaves out
MAX_JOB_KINDS = 512  # beyond it, kinds without recent reports are dropped
MAX_ABSENT_KINDS = 32  # kinds of jobs that are not present, but whose speeds are kept in the tables


class JobKind(NamedTuple):
    """Jobs of one kind have equal speeds in equal placements."""

    name: str
    batch: int
    parameters: float
    operations: float
    workers: int
    servers: int

    @classmethod
    def of(cls, kernel: LiveKernel) -> JobKind:
        """The kind of a training kernel."""
        t = kernel.options.training
        assert t is not None
        name = t.kind or kernel.key
        return cls(name, t.batch, float(t.parameters), float(t.operations), kernel.options.workers, t.servers)

    @property
    def numbers(self) -> JobNumbers:
        """Its description; missing numbers are those of the model of that name, or typical ones."""
        default = MODELS.get(self.name, TYPICAL_MODEL)
        parameters, operations = self.parameters or default.parameters, self.operations or default.operations
        model = default._replace(parameters=parameters, operations=operations)
        return JobNumbers(model, self.batch or default.usual_batch, self.workers - self.servers)

    @property
    def doubt(self) -> float:
        """Deviation of the log of an unknown factor on all its speeds."""
        return 0.0 if self.name in MODELS or self.operations else UNDESCRIBED_STD


class RoundObservation(NamedTuple):
    """Progress of a job in a round, on the same devices and beside the same neighbours all the time."""

    job: int  # its number in samples
    kind: JobKind
    device: int  # number of the device kind
    neighbours: tuple[JobKind, ...]
    spread: bool
    seconds: float
    steps: float


def nearest_gpu(kind: DeviceKind) -> str:
    """The entry of `GPUS` for a kind, or a generic one."""
    return kind.name if kind.name in GPUS else "gpu" if kind.type == "gpu" else "cpu"


@dataclass(frozen=True)
class BeliefTables:
    """Believed speeds of some kinds of jobs."""

    kinds: tuple[JobKind, ...]
    believed: BeliefArrays  # in the order of `kinds`


class SpeedBeliefs:
    """Believed speeds of all kinds of jobs so far, and a file that keeps their samples."""

    def __init__(self, topology: Topology, path: Path | None = None) -> None:
        self.topology, self.path = topology, path
        self._devices = [nearest_gpu(kind) for kind in topology.kinds]
        self._shares = np.asarray([kind.type != "cpu" for kind in topology.kinds])  # workers of a CPU have cores
        nothing = BeliefTables((), initial_tables(self._described(())))
        self._tables = self._newest = nothing  # used by the loop's thread; learned last
        self.kinds: list[JobKind] = []  # by number in samples

    # --- called on the loop's thread

    def beliefs_about(self, kernels: Sequence[LiveKernel], count: int, width: int) -> BeliefArrays:
        """Beliefs about these kernels, in their order, in tables of `count` kernels and `width` device kinds.

        Rows of kernels that are not training jobs are 0 (speeds as in the profiles) and 1 (no cost of sharing).
        """
        unit_s, unit_std = np.zeros((2, count, width, 2), np.float32)
        beside, beside_std = np.ones((count, count, width), np.float32), np.zeros((count, count, width), np.float32)
        at = np.asarray([n for n, kernel in enumerate(kernels) if kernel.options.training is not None], int)
        if len(at):
            known, y = self._of([JobKind.of(kernels[number]) for number in at]), len(self.topology.kinds)
            unit_s[at, :y], unit_std[at, :y] = known.mean.unit_s, known.unit_std
            beside[at[:, None], at, :y] = known.mean.beside
            # The planner's caution is for jobs that share a GPU. Workers on a CPU have cores of their own.
            beside_std[at[:, None], at, :y] = np.where(self._shares, known.beside_std, 0.0)
        return BeliefArrays(SpeedArrays(unit_s, beside, np.float32(EXPECTED_CROWDING)), unit_std, beside_std)

    def step_s(self, kernel: LiveKernel, kind: int) -> float:
        """Believed seconds per step on a device kind."""
        return float(self._of([JobKind.of(kernel)]).mean.unit_s[0, kind, PACKED])

    def _of(self, wanted: Sequence[JobKind]) -> BeliefArrays:
        """The newest tables of some kinds; kinds that are not in them are guessed."""
        index = {kind: number for number, kind in enumerate(self._tables.kinds)}
        tables, learned = initial_tables(self._described(wanted)), self._tables.believed
        here = np.asarray([number for number, kind in enumerate(wanted) if kind in index], int)
        there = np.asarray([index[wanted[number]] for number in here], int)
        tables.mean.unit_s[here], tables.unit_std[here] = learned.mean.unit_s[there], learned.unit_std[there]
        pairs, of = (here[:, None], here), (there[:, None], there)
        tables.mean.beside[pairs], tables.beside_std[pairs] = learned.mean.beside[of], learned.beside_std[of]
        return tables

    def adopt(self, tables: BeliefTables) -> None:
        """Use these tables from now on."""
        self._tables = tables

    # --- called on the learning thread

    @cached_property
    def learner(self) -> BeliefLearner:
        """The learner, with the samples of the file. Made for the first training job; most clusters never have one."""
        kinds, samples = self._load()
        self.kinds = kinds
        beliefs = Beliefs(self._described(kinds), seed=0)
        beliefs.store.samples.extend(samples)
        return BeliefLearner(beliefs)

    def learn(self, observations: Sequence[RoundObservation], now_s: float, present: Sequence[JobKind]) -> BeliefTables:
        """Learn from the observations of a round; returns tables of the kinds that are present."""
        learner = self.learner
        number = self.numbered({*present, *(kind for one in observations for kind in (one.kind, *one.neighbours))})
        numbers = np.asarray([number[kind] for kind in present], int)
        reports = [
            SpeedReport(
                job=one.job,
                kernel=number[one.kind],
                kind=one.device,
                neighbours=tuple(sorted(number[kind] for kind in one.neighbours)),
                spread=one.spread,
                began_s=now_s - one.seconds,
                ended_s=now_s,
                units=one.steps,
            )
            for one in observations
        ]
        before = initial_tables(learner.beliefs.described)
        placed = {one.job for one in observations}
        new = learner.learn(reports, now_s=now_s, placed=placed, kernels=numbers, before=before)
        if new is not before:  # otherwise nothing changed, or the result is not finite
            pairs = (numbers[:, None], numbers)
            mean = SpeedArrays(new.mean.unit_s[numbers], new.mean.beside[pairs], new.mean.crowding)
            believed = BeliefArrays(mean, new.unit_std[numbers], new.beside_std[pairs])
            self._newest = BeliefTables(tuple(present), believed)
        return self._newest

    def with_recent(self, kinds: Collection[JobKind]) -> list[JobKind]:
        """These kinds, and those with the newest samples: the next job of such a kind begins with what is known."""
        recent: dict[JobKind, None] = {}
        for sample in reversed(self.learner.beliefs.store.samples):
            if len(recent) == MAX_ABSENT_KINDS:
                break
            recent.setdefault(self.kinds[sample.kernel])
        return sorted({*kinds, *recent})

    def numbered(self, kinds: Collection[JobKind]) -> dict[JobKind, int]:
        """The numbers of all kinds in samples, after adding these.

        If there are too many, those with the oldest samples are dropped, with their samples.
        """
        store = self.learner.beliefs.store
        mine = before = self.kinds
        if len({*mine, *kinds}) > MAX_JOB_KINDS:
            newest = {sample.kernel: sample.at_s for sample in store.samples}
            order = sorted(range(len(mine)), key=lambda n: (mine[n] in kinds, newest.get(n, -1.0)))
            keep = sorted(order[-max(MAX_JOB_KINDS // 2, len(set(mine).intersection(kinds))) :])
            new = {old: number for number, old in enumerate(keep)}
            left = [s for s in store.samples if {s.kernel, *s.neighbours} <= set(new)]
            store.samples.clear()
            store.samples.extend(
                s._replace(kernel=new[s.kernel], neighbours=tuple(sorted(new[n] for n in s.neighbours))) for s in left
            )
            mine = [mine[old] for old in keep]
        self.kinds = [*mine, *sorted(set(kinds) - set(mine))]
        if len(self.kinds) != len(self.learner.beliefs.described.family) or mine is not before:
            self.learner.beliefs.described = self._described(self.kinds)
        return {kind: number for number, kind in enumerate(self.kinds)}

    def _described(self, kinds: Sequence[JobKind]) -> JobDescriptions:
        """Features and initial estimates of kinds of jobs."""
        jobs = [kind.numbers for kind in kinds]
        # `estimate_step_s` counts the steps of all workers; here a step is one of the whole gang.
        unit_s = [
            [[job.gpus * estimate_step_s(job, gpu, spread=spread) for spread in (False, True)] for gpu in self._devices]
            for job in jobs
        ]
        shape = (len(kinds), len(self._devices))
        used = np.asarray([[busy(job, gpu) for gpu in self._devices] for job in jobs]).reshape(shape)
        kept = np.where(self._shares, 1 / np.maximum(1.0, used[:, None] + used), 1.0)
        alone = np.asarray([kind.workers > 1 for kind in kinds], bool)
        kept[alone[:, None] | alone] = 0.0  # gangs do not share: it was never measured
        names = sorted({kind.name for kind in kinds})
        return JobDescriptions(
            features=np.asarray([job_features(job) for job in jobs]).reshape(-1, JOB_FEATURES),
            kinds=np.stack([gpu_features(device) for device in self._devices]),
            family=np.asarray([names.index(kind.name) for kind in kinds], int),
            unit_s=np.asarray(unit_s).reshape(*shape, 2),
            kept=kept,
            crowding=EXPECTED_CROWDING,
            doubt=np.asarray([kind.doubt for kind in kinds]),
        )

    # --- the file

    def save(self) -> None:
        """Write the samples to the file. Times are of the wall clock, which goes on between runs."""
        if self.path is None or "learner" not in vars(self):
            return
        shift = time.time() - time.monotonic()
        samples = [
            [s.job, s.kernel, self.topology.kinds[s.kind].name, s.neighbours, s.spread, s.log_s, s.at_s + shift]
            for s in self.learner.beliefs.store.samples
        ]
        content = {"format": SPEEDS_FORMAT, "kinds": self.kinds, "samples": samples}
        new = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(content))
            new.replace(self.path)
        except OSError as error:
            log.warning("the speed samples of training jobs cannot be written to %s: %s", self.path, error.strerror)

    def _load(self) -> tuple[list[JobKind], list[SpeedSample]]:
        path = self.path
        if path is None or not path.exists():
            return [], []
        try:
            content = json.loads(path.read_text())
            if content["format"] != SPEEDS_FORMAT:
                raise ValueError(f"its format is {content['format']!r}, not {SPEEDS_FORMAT}")
            kinds = [JobKind(*kind) for kind in content["kinds"]]
            devices = {kind.name: number for number, kind in enumerate(self.topology.kinds)}
            shift = time.time() - time.monotonic()
            samples = [
                SpeedSample(
                    int(job), int(kernel), devices[device], tuple(near), bool(spread), float(log_s), at_s - shift
                )
                for job, kernel, device, near, spread, log_s, at_s in content["samples"]
                if device in devices
            ]
            if any(not {s.kernel, *s.neighbours} <= set(range(len(kinds))) for s in samples):
                raise ValueError("a sample refers to an unknown kind")
            if not all(math.isfinite(s.log_s) and math.isfinite(s.at_s) for s in samples):
                raise ValueError("a sample is not finite")
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s cannot be read, and its speed samples are not used: %s", path, error)
            return [], []
        return kinds, samples


def initial_tables(d: JobDescriptions) -> BeliefArrays:
    """Beliefs before any sample."""
    doubt = np.hypot(UNSEEN_STD, np.zeros(len(d.family)) if d.doubt is None else d.doubt)
    std = np.broadcast_to(doubt[:, None, None], d.unit_s.shape).copy()
    beside = np.broadcast_to(doubt[:, None, None], d.kept.shape).copy()
    return BeliefArrays(SpeedArrays(np.array(d.unit_s), np.array(d.kept), np.float64(d.crowding)), std, beside)
