"""The posterior of all speeds, given samples of a few: tables that a planner reads.

Two steps. The ensemble (`performance_model.py`) predicts a speed from the job's description: a mean and a calibrated
deviation, also for jobs that have never run. A Gaussian process then conditions on the samples of *this* job, its
family, its neighbours and its GPUs. Its deviations are the ensemble's; its correlations are the sum of the
`SHARED_VARIANCE` parts that two speeds have in common. The parts for neighbours are the log-additive model of
interference (what one job suffers plus what the other causes), which predicts pairs best while samples are few.

So one observation of a job on a V100 changes its estimate on a P100 at once, and refits of the networks can be rare.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from symphony.problem.speeds import PACKED, SPREAD, BeliefArrays, SpeedArrays
from symphony.training_jobs import performance_model
from symphony.training_jobs.speed_samples import SampleStore, SpeedReport, SpeedSample

JOB_LOG_STD = 0.06  # deviation of log speed between jobs of one kernel, and between rounds of one job
MAX_SIGNATURES, MAX_SAMPLES = 192, 2_000  # conditioned on: the newest
# Variance that two speeds share where these agree. Chosen; the parts of a pair sum to a fifth of the whole.
SHARED_VARIANCE = {
    "family": 0.30, "family, kind": 0.08, "kernel": 0.25, "kernel, kind": 0.12,
    "spread of family": 0.05, "spread of kernel": 0.05,
    "suffers": 0.03, "suffers, kind": 0.03, "does, kind": 0.04, "pair": 0.05,
}  # fmt: skip
NO_NEIGHBOUR = -1


@dataclass(frozen=True)
class JobDescriptions:
    """Descriptions and analytic estimates, before anything has run. N kernels, Y device kinds."""

    features: np.ndarray  # f[N, F]
    kinds: np.ndarray  # f[Y, G]
    family: np.ndarray  # i[N]: similar kernels; for cross-validation and correlations, never an input
    unit_s: np.ndarray  # f[N, Y, 2]: estimated; 0 = cannot run there
    kept: np.ndarray  # f[N, N, Y]: estimated share of the speed beside another; 0 = must not share
    crowding: float = 0.0
    # f[N]: deviation of the log of a common factor on all kinds. Above 0 for kernels without a description; the
    # ensemble is not trained on these, because their features carry no information.
    doubt: np.ndarray | None = None

    @property
    def inputs(self) -> int:
        """Number of inputs of the ensemble."""
        return 2 * self.features.shape[1] + self.kinds.shape[1] + 4


class Signature(NamedTuple):
    """What one speed sample describes."""

    kernel: int
    kind: int
    spread: int  # PACKED or SPREAD
    beside: int  # kernel of the neighbour, or NO_NEIGHBOUR


def signature(sample: SpeedSample | SpeedReport) -> Signature:
    """Where a sample or report is from; only the first of several neighbours counts."""
    beside = sample.neighbours[0] if sample.neighbours else NO_NEIGHBOUR
    return Signature(sample.kernel, sample.kind, int(sample.spread), beside)


class SpeedQuery(NamedTuple):
    """n signatures as arrays i[n]."""

    kernel: np.ndarray
    kind: np.ndarray
    spread: np.ndarray
    beside: np.ndarray

    @classmethod
    def of(cls, signatures: Iterable[Signature]) -> SpeedQuery:
        """These signatures, in their order."""
        return cls(*np.asarray(list(signatures), int).reshape(-1, 4).T)

    def guess(self, d: JobDescriptions) -> np.ndarray:
        """Log of the estimated seconds per unit."""
        alone = np.log(np.maximum(d.unit_s[self.kernel, self.kind, self.spread], 1e-9))
        kept = np.where(self.beside >= 0, d.kept[self.kernel, self.beside, self.kind], 1.0)
        return alone - np.log(np.maximum(kept, 1e-3))

    def inputs(self, d: JobDescriptions) -> np.ndarray:
        """Inputs of the ensemble [n, F]."""
        shared = (self.beside >= 0)[:, None]
        kept = np.where(self.beside >= 0, np.maximum(d.kept[self.kernel, self.beside, self.kind], 1e-3), 1.0)
        alone = np.log(np.maximum(d.unit_s[self.kernel, self.kind, PACKED], 1e-9))
        return np.concatenate(
            [
                d.features[self.kernel],
                d.kinds[self.kind],
                np.where(shared, d.features[self.beside], 0.0),
                np.stack([self.spread, shared[:, 0], alone / 3 + 1, np.log(kept)], axis=1),
            ],
            axis=1,
        )


def correlation(a: SpeedQuery, b: SpeedQuery, family: np.ndarray) -> np.ndarray:
    """Prior correlation of two lists of speeds [n, m]: 1 where the signatures are equal."""

    def parts(a: SpeedQuery, b: SpeedQuery, same: bool) -> np.ndarray:
        def equal(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return (x == y) if same else (x[:, None] == y)

        def both(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return (x & y) if same else (x[:, None] & y)

        kernel, kind = equal(a.kernel, b.kernel), equal(a.kind, b.kind)
        alike = equal(family[a.kernel], family[b.kernel])
        spread = both(a.spread > 0, b.spread > 0)
        shared = both(a.beside >= 0, b.beside >= 0)
        other = equal(a.beside, b.beside) & shared
        holds = {
            "family": alike, "family, kind": alike & kind, "kernel": kernel, "kernel, kind": kernel & kind,
            "spread of family": alike & spread, "spread of kernel": kernel & spread,
            "suffers": kernel & shared, "suffers, kind": kernel & kind & shared,
            "does, kind": other & kind, "pair": kernel & other & kind,
        }  # fmt: skip
        return np.asarray(sum(SHARED_VARIANCE[name] * holds[name] for name in SHARED_VARIANCE))

    scale_a, scale_b = parts(a, a, True), parts(b, b, True)
    return parts(a, b, False) / np.sqrt(scale_a[:, None] * scale_b)


class ReportOutcome(NamedTuple):
    """Whether a report was accepted."""

    report: SpeedReport
    why: str  # reason of the rejection; "" = accepted
    error: float  # log of observed over predicted seconds
    std: float  # predicted deviation of that log


class Beliefs:
    """The posterior of one cluster's job speeds, and its samples."""

    def __init__(self, described: JobDescriptions, *, seed: int = 0, half_life_s: float = 86_400.0) -> None:
        self.described, self.half_life_s = described, half_life_s
        self.store = SampleStore()
        self.refits = 0
        self._key = jax.random.key(seed)
        self.ensemble = performance_model.untrained(jax.random.fold_in(self._key, 0), described.inputs)

    def refit(self, now_s: float) -> None:
        """Fit the ensemble to all samples."""
        d = self.described
        known = np.ones(len(d.family), bool) if d.doubt is None else d.doubt == 0
        samples = [s for s in self.store.samples if len(s.neighbours) <= 1 and known[[s.kernel, *s.neighbours]].all()]
        if not samples:
            return
        q = SpeedQuery.of(map(signature, samples))
        off = np.asarray([s.log_s for s in samples]) - q.guess(d)
        age = now_s - np.asarray([s.at_s for s in samples])
        data = performance_model.fit_data(q.inputs(d), off, age, d.family[q.kernel], self.half_life_s)
        self.refits += 1
        self.ensemble = performance_model.fit(jax.random.fold_in(self._key, self.refits), self.ensemble, data)

    def update(self, reports: Sequence[SpeedReport], *, now_s: float, placed: Container[int]) -> list[ReportOutcome]:
        """Add the reports of a round. `placed`: jobs that held devices in it; reports of others are rejected."""
        if not reports:
            return []
        mean, std = self.log_seconds(SpeedQuery.of(map(signature, reports)), now_s)
        outcomes = []
        for report, m, d in zip(reports, mean, std, strict=True):
            why = self.store.add(report, now_s=now_s, placed=report.job in placed, mean=float(m), std=float(d))
            error = 0.0 if why else self.store.samples[-1].log_s - float(m)
            outcomes.append(ReportOutcome(report, why, error, float(d)))
        return outcomes

    def log_seconds(self, query: SpeedQuery, now_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Posterior mean and deviation of log seconds per unit [n]."""
        mean, std, reduction = self._conditioned(query, now_s)
        doubt = 0.0 if self.described.doubt is None else self.described.doubt[query.kernel]
        return mean, np.sqrt(np.maximum(std**2 + doubt**2 - (reduction**2).sum(axis=0), 1e-6))

    def draws(self, query: SpeedQuery, now_s: float, count: int, rng: np.random.Generator) -> np.ndarray:
        """Joint posterior draws of log seconds per unit [count, n]."""
        mean, std, reduction = self._conditioned(query, now_s)
        values, vectors = np.linalg.eigh(self._covariance(query, std, query, std) - reduction.T @ reduction)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(mean + rng.standard_normal((count, len(mean))) @ root.T)

    def _conditioned(self, query: SpeedQuery, now_s: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Posterior means [n], prior deviations [n], and a square root of the reduction of the covariance [m, n]."""
        mean, std = self._prior(query)
        seen, value, noise = self._evidence(now_s)
        if not len(value):
            return mean, std, np.zeros((0, len(mean)))
        seen_mean, seen_std = self._prior(seen)
        factor = np.linalg.cholesky(self._covariance(seen, seen_std, seen, seen_std) + np.diag(noise))
        half = np.linalg.solve(factor, self._covariance(query, std, seen, seen_std).T)
        return mean + half.T @ np.linalg.solve(factor, value - seen_mean), std, half

    def _covariance(self, a: SpeedQuery, a_std: np.ndarray, b: SpeedQuery, b_std: np.ndarray) -> np.ndarray:
        """Prior covariance of two lists of speeds [n, m]."""
        d = self.described
        shared = correlation(a, b, d.family) * a_std[:, None] * b_std
        if d.doubt is None:
            return shared
        return np.asarray(shared + (a.kernel[:, None] == b.kernel) * d.doubt[a.kernel, None] * d.doubt[b.kernel])

    def tables(self, now_s: float, kernels: np.ndarray, before: BeliefArrays) -> BeliefArrays:
        """`before`, updated for these kernels and their pairs."""
        d = self.described
        kinds, k = d.unit_s.shape[1], len(kernels)
        unit_s, unit_std = np.array(before.mean.unit_s), np.array(before.unit_std)
        beside, beside_std = np.array(before.mean.beside), np.array(before.beside_std)
        alone = [x.ravel() for x in np.meshgrid(kernels, np.arange(kinds), [PACKED, SPREAD], indexing="ij")]
        pairs = [x.ravel() for x in np.meshgrid(kernels, kernels, np.arange(kinds), indexing="ij")]
        first = len(alone[0])
        query = SpeedQuery(
            np.concatenate([alone[0], pairs[0]]),
            np.concatenate([alone[1], pairs[2]]),
            np.concatenate([alone[2], np.zeros(len(pairs[0]), int)]),
            np.concatenate([np.full(first, NO_NEIGHBOUR), pairs[1]]),
        )
        mean, std = self.log_seconds(query, now_s)
        runs = d.unit_s[kernels] > 0
        at = np.ix_(kernels, np.arange(kinds))
        by_kind = mean[:first].reshape(k, kinds, 2)
        unit_s[at] = np.where(runs, np.exp(by_kind), 0.0)
        unit_std[at] = std[:first].reshape(k, kinds, 2)
        cost = mean[first:].reshape(k, k, kinds) - by_kind[:, None, :, PACKED]
        here = np.ix_(kernels, kernels, np.arange(kinds))
        beside[here] = np.where(d.kept[here] > 0, np.clip(np.exp(-cost), 0.02, 1.0), 0.0)
        beside_std[here] = std[first:].reshape(k, k, kinds)
        return BeliefArrays(SpeedArrays(unit_s, beside, np.float64(d.crowding)), unit_std, beside_std)

    def start(self) -> BeliefArrays:
        """Tables before any sample: the analytic estimates and their deviations."""
        d = self.described
        shape = d.unit_s.shape
        blank = SpeedArrays(np.array(d.unit_s), np.array(d.kept), np.float64(d.crowding))
        empty = BeliefArrays(blank, np.zeros(shape), np.zeros(d.kept.shape))
        return self.tables(0.0, np.arange(shape[0]), empty)

    def _prior(self, query: SpeedQuery) -> tuple[np.ndarray, np.ndarray]:
        mean, std = self.ensemble.predict(jnp.asarray(_padded(query.inputs(self.described))))
        count = len(query.kernel)
        return query.guess(self.described) + np.asarray(mean, float)[:count], np.asarray(std, float)[:count]

    def _evidence(self, now_s: float) -> tuple[SpeedQuery, np.ndarray, np.ndarray]:
        """Observed signatures, their mean log seconds and its variance.

        Weights of samples fall with age. Samples of one job share its deviation, so they are not independent.
        """
        places: dict[Signature, dict[int, tuple[float, float]]] = {}
        for s in islice(reversed(self.store.samples), MAX_SAMPLES):
            if len(s.neighbours) > 1:
                continue
            key = signature(s)
            if key not in places and len(places) == MAX_SIGNATURES:
                continue
            jobs = places.setdefault(key, {})
            weight = 0.5 ** ((now_s - s.at_s) / self.half_life_s)
            total, weights = jobs.get(s.job, (0.0, 0.0))
            jobs[s.job] = (total + weight * s.log_s, weights + weight)
        value, noise = [], []
        for jobs in places.values():
            total, weight = np.asarray(list(jobs.values())).T
            precision = 1 / (JOB_LOG_STD**2 + JOB_LOG_STD**2 / np.maximum(weight, 1e-9))
            means = total / np.maximum(weight, 1e-300)
            value.append(float((precision * means).sum() / precision.sum()))
            noise.append(float(1 / precision.sum()))
        return SpeedQuery.of(places), np.asarray(value), np.asarray(noise)


def _padded(x: np.ndarray) -> np.ndarray:
    """With the number of rows padded to a power of two, so that few programs are compiled."""
    rows = 1 << max(4, (len(x) - 1).bit_length())
    return np.pad(x, ((0, rows - len(x)), (0, 0)))
