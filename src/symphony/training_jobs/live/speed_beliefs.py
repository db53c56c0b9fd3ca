"""What is believed of the speeds of training jobs in real runs: seconds of a step by kind of device, alone and beside.

The models are those of simulated clusters (`training_jobs/beliefs.py`). Jobs come and go here, so that what they are
grows; one who says nothing of itself (no parameters, no operations) begins with a guess that may be off by any factor,
on all kinds of device alike, and its first reports settle that.

The loop's thread names jobs and reads the newest tables. One other thread learns (`rounds.py`): a fit of the networks
takes seconds, for which nobody else must wait.
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
UNDESCRIBED_STD = 3.0  # deviation of the logarithm of a guess that rests on nothing
TYPICAL_MODEL = ModelDescription(2e7, 1e10, 500, 1e-3, 32)  # what a model is taken for in what it does not tell
MAX_JOB_KINDS = 512  # kinds of jobs; those that have not reported for the longest time go first


class JobKind(NamedTuple):
    """Jobs that are equally fast where they run alike."""

    name: str
    batch: int
    parameters: float
    operations: float
    workers: int
    servers: int

    @classmethod
    def of(cls, kernel: LiveKernel) -> JobKind:
        """That of a training kernel."""
        t = kernel.options.training
        assert t is not None
        name = t.kind or kernel.key
        return cls(name, t.batch, float(t.parameters), float(t.operations), kernel.options.workers, t.servers)

    @property
    def numbers(self) -> JobNumbers:
        """In numbers; where it tells none, those of a model of that name, or typical ones."""
        known = MODELS.get(self.name, TYPICAL_MODEL)
        told = known._replace(
            parameters=self.parameters or known.parameters, operations=self.operations or known.operations
        )
        return JobNumbers(told, self.batch or known.usual_batch, self.workers - self.servers)

    @property
    def doubt(self) -> float:
        """How far the scale of a guess may be off."""
        return 0.0 if self.name in MODELS or self.operations else UNDESCRIBED_STD


class RoundObservation(NamedTuple):
    """What a job did in a round, in one place and beside the same neighbours all the time."""

    job: int  # its number in samples
    kind: JobKind
    device: int  # number of the device kind
    neighbours: tuple[JobKind, ...]
    spread: bool
    seconds: float
    steps: float


def nearest_gpu(kind: DeviceKind) -> str:
    """The device in `GPUS` that a kind is, or is most like."""
    return kind.name if kind.name in GPUS else "gpu" if kind.type == "gpu" else "cpu"


@dataclass(frozen=True)
class BeliefTables:
    """What is believed of some kinds of jobs."""

    kinds: tuple[JobKind, ...]
    believed: BeliefArrays  # in the order of `kinds`


class SpeedBeliefs:
    """Beliefs about the jobs that there have been, and a file that keeps what they rest on."""

    def __init__(self, topology: Topology, path: Path | None = None) -> None:
        self.topology, self.path = topology, path
        self._devices = [nearest_gpu(kind) for kind in topology.kinds]
        self._shares = np.asarray([kind.type != "cpu" for kind in topology.kinds])  # workers of a CPU have cores
        self._tables = self._newest = BeliefTables(
            (), initial_tables(self._described(()))
        )  # the loop's, and what was learned last
        self.kinds: list[JobKind] = []  # by their numbers in samples

    # --- for the loop's thread

    def beliefs_about(self, kernels: Sequence[LiveKernel], count: int, width: int) -> BeliefArrays:
        """What is believed of these kernels, in their order, in tables of `count` kernels and `width` device kinds.

        Kernels that are no training jobs are as fast as profiles say, and nobody knows what they do to neighbours.
        """
        unit_s, unit_std = np.zeros((2, count, width, 2), np.float32)
        beside, beside_std = np.ones((count, count, width), np.float32), np.zeros((count, count, width), np.float32)
        at = np.asarray([n for n, kernel in enumerate(kernels) if kernel.options.training is not None], int)
        if len(at):
            told, y = self._of([JobKind.of(kernels[number]) for number in at]), len(self.topology.kinds)
            unit_s[at, :y], unit_std[at, :y] = told.mean.unit_s, told.unit_std
            beside[at[:, None], at, :y] = told.mean.beside
            # Caution is for those who share a GPU. Who has a core for itself is not to wait for one that nobody uses.
            beside_std[at[:, None], at, :y] = np.where(self._shares, told.beside_std, 0.0)
        return BeliefArrays(SpeedArrays(unit_s, beside, np.float32(EXPECTED_CROWDING)), unit_std, beside_std)

    def step_s(self, kernel: LiveKernel, kind: int) -> float:
        """Seconds that a step is believed to take on a device kind."""
        return float(self._of([JobKind.of(kernel)]).mean.unit_s[0, kind, PACKED])

    def _of(self, wanted: Sequence[JobKind]) -> BeliefArrays:
        """The newest tables of some kinds; what has never been asked for is guessed."""
        known = {kind: number for number, kind in enumerate(self._tables.kinds)}
        found, told = initial_tables(self._described(wanted)), self._tables.believed
        here = np.asarray([number for number, kind in enumerate(wanted) if kind in known], int)
        there = np.asarray([known[wanted[number]] for number in here], int)
        found.mean.unit_s[here], found.unit_std[here] = told.mean.unit_s[there], told.unit_std[there]
        pairs, of = (here[:, None], here), (there[:, None], there)
        found.mean.beside[pairs], found.beside_std[pairs] = told.mean.beside[of], told.beside_std[of]
        return found

    def adopt(self, tables: BeliefTables) -> None:
        """Go by these from now on."""
        self._tables = tables

    # --- for the thread that learns

    @cached_property
    def learner(self) -> BeliefLearner:
        """What learns, with what was kept. Made when a training job comes: most clusters never see one."""
        kinds, samples = self._load()
        self.kinds = kinds
        beliefs = Beliefs(self._described(kinds), seed=0)
        beliefs.store.samples.extend(samples)
        return BeliefLearner(beliefs)

    def learn(self, seen: Sequence[RoundObservation], now_s: float, present: Sequence[JobKind]) -> BeliefTables:
        """Take what was seen in a round, and say what is believed of those kinds that are there now."""
        learner = self.learner
        number = self.numbered({*present, *(kind for one in seen for kind in (one.kind, *one.neighbours))})
        numbers = np.asarray([number[kind] for kind in present], int)
        reports = [
            SpeedReport(
                one.job,
                number[one.kind],
                one.device,
                tuple(sorted(number[kind] for kind in one.neighbours)),
                one.spread,
                now_s - one.seconds,
                now_s,
                one.steps,
            )
            for one in seen
        ]
        before = initial_tables(learner.beliefs.described)
        placed = {one.job for one in seen}
        told = learner.learn(reports, now_s=now_s, placed=placed, kernels=numbers, before=before)
        if told is not before:  # else there was nothing to tell, or what came out is not to be used
            pairs = (numbers[:, None], numbers)
            mean = SpeedArrays(told.mean.unit_s[numbers], told.mean.beside[pairs], told.mean.crowding)
            self._newest = BeliefTables(
                tuple(present), BeliefArrays(mean, told.unit_std[numbers], told.beside_std[pairs])
            )
        return self._newest

    def numbered(self, kinds: Collection[JobKind]) -> dict[JobKind, int]:
        """Numbers of kinds in samples, with these among them.

        If there are too many, those that have not been heard of for the longest time go.
        """
        store = self.learner.beliefs.store
        mine = kept = self.kinds
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
        if len(self.kinds) != len(self.learner.beliefs.described.family) or mine is not kept:
            self.learner.beliefs.described = self._described(self.kinds)
        return {kind: number for number, kind in enumerate(self.kinds)}

    def _described(self, kinds: Sequence[JobKind]) -> JobDescriptions:
        """What is known of kinds of jobs without running them."""
        jobs = [kind.numbers for kind in kinds]
        # A step is one of the whole gang.
        unit_s = [
            [[job.gpus * estimate_step_s(job, gpu, spread=spread) for spread in (False, True)] for gpu in self._devices]
            for job in jobs
        ]
        shape = (len(kinds), len(self._devices))
        used = np.asarray([[busy(job, gpu) for gpu in self._devices] for job in jobs]).reshape(shape)
        kept = np.where(self._shares, 1 / np.maximum(1.0, used[:, None] + used), 1.0)
        alone = np.asarray([kind.workers > 1 for kind in kinds], bool)
        kept[alone[:, None] | alone] = 0.0  # nobody has measured gangs that share
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
        """Keep what beliefs rest on. Times are those of the wall clock, which goes on between runs."""
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
            log.warning("what was learned of training jobs cannot be kept in %s: %s", self.path, error.strerror)

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
                raise ValueError("a sample is of no kind")
            if not all(math.isfinite(s.log_s) and math.isfinite(s.at_s) for s in samples):
                raise ValueError("a sample is no number")
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s cannot be read, and what it tells of training jobs is not used: %s", path, error)
            return [], []
        return kinds, samples


def initial_tables(d: JobDescriptions) -> BeliefArrays:
    """What is believed of those of whom nothing has been heard."""
    doubt = np.hypot(UNSEEN_STD, np.zeros(len(d.family)) if d.doubt is None else d.doubt)
    std = np.broadcast_to(doubt[:, None, None], d.unit_s.shape).copy()
    beside = np.broadcast_to(doubt[:, None, None], d.kept.shape).copy()
    return BeliefArrays(SpeedArrays(np.array(d.unit_s), np.array(d.kept), np.float64(d.crowding)), std, beside)
