"""What is believed of all speeds at once, from samples of a few: tables that a planner reads.

Two steps. The ensemble (`performance_model.py`) says what a job's description makes of it: a mean and a calibrated
deviation, for jobs that nobody has run. What has been seen of *this* job, its family, its neighbours and its GPUs is
then added exactly, by conditioning a normal distribution on the samples. Its deviations are the ensemble's; its
correlations say what two speeds have in common, and are a table of `SHARED_VARIANCE` parts. The part of neighbours is
the log-additive model of interference, what one suffers and the other does, which predicts pairs best while there are
few samples.

So one observation of a job on a V100 moves what is believed of it on a P100 at once, and a refit of the networks is
only needed now and then.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from symphony.problem.speeds import PACKED, SPREAD, BeliefArrays, SpeedArrays
from symphony.training_jobs import performance_model
from symphony.training_jobs.speed_samples import SampleStore, SpeedReport, SpeedSample

JOB_LOG_STD = 0.06  # jobs of one kernel differ by so much, and so do a job's rounds
MAX_SIGNATURES, MAX_SAMPLES = 192, 2_000  # signatures that beliefs are conditioned on, and samples, the newest
# Variance that two speeds share where these agree. Chosen; the parts of a pair's sum to a fifth of the whole.
SHARED_VARIANCE = {
    "family": 0.30, "family, kind": 0.08, "kernel": 0.25, "kernel, kind": 0.12,
    "spread of family": 0.05, "spread of kernel": 0.05,
    "suffers": 0.03, "suffers, kind": 0.03, "does, kind": 0.04, "pair": 0.05,
}  # fmt: skip
NO_NEIGHBOUR = -1


@dataclass(frozen=True)
class JobDescriptions:
    """What is known without running anything. N kernels, Y device kinds."""

    features: np.ndarray  # f[N, F]
    kinds: np.ndarray  # f[Y, G]
    family: np.ndarray  # i[N]: jobs that are alike; used to leave out and to share, never as an input
    unit_s: np.ndarray  # f[N, Y, 2]: guessed; 0 = cannot run there
    kept: np.ndarray  # f[N, N, Y]: guessed; 0 = must not share
    crowding: float = 0.0
    # f[N]: how far the scale of a guess may be off, on all kinds alike, as a deviation of its logarithm. Not 0 for
    # those of whom nothing is known: their features say nothing either, so that no network learns from them.
    doubt: np.ndarray | None = None

    @property
    def inputs(self) -> int:
        """Numbers that the ensemble is shown of a speed."""
        return 2 * self.features.shape[1] + self.kinds.shape[1] + 4


class SpeedQuery:
    """Speeds that are asked for: which kernel, on which kind, spread or not, beside which one (-1 = alone)."""

    def __init__(self, kernel: np.ndarray, kind: np.ndarray, spread: np.ndarray, beside: np.ndarray) -> None:
        self.kernel, self.kind, self.spread, self.beside = kernel, kind, spread, beside

    @classmethod
    def at(cls, samples: Sequence[SpeedSample | SpeedReport]) -> SpeedQuery:
        """Where samples or reports are from; of several neighbours the first."""
        rows = [(s.kernel, s.kind, int(s.spread), s.neighbours[0] if s.neighbours else NO_NEIGHBOUR) for s in samples]
        return cls(*np.asarray(rows, int).reshape(-1, 4).T)

    def guess(self, d: JobDescriptions) -> np.ndarray:
        """Logarithm of the guessed seconds."""
        alone = np.log(np.maximum(d.unit_s[self.kernel, self.kind, self.spread], 1e-9))
        kept = np.where(self.beside >= 0, d.kept[self.kernel, self.beside, self.kind], 1.0)
        return alone - np.log(np.maximum(kept, 1e-3))

    def inputs(self, d: JobDescriptions) -> np.ndarray:
        """What the ensemble is shown [n, F]."""
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
    """What two lists of speeds have in common [n, m]: 1 where they are the same."""

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
    """What became of a report."""

    report: SpeedReport
    why: str  # it was put aside, "" = it was not
    error: float  # of the logarithm of its seconds, against what was believed
    std: float  # what was doubted


class Beliefs:
    """Beliefs about one cluster's jobs, and the samples that they rest on."""

    def __init__(self, described: JobDescriptions, *, seed: int = 0, half_life_s: float = 86_400.0) -> None:
        self.described, self.half_life_s = described, half_life_s
        self.store = SampleStore()
        self.refits = 0
        self._key = jax.random.key(seed)
        self.ensemble = performance_model.untrained(jax.random.fold_in(self._key, 0), described.inputs)

    def refit(self, now_s: float) -> None:
        """Fit the ensemble to the samples so far."""
        d = self.described
        known = np.ones(len(d.family), bool) if d.doubt is None else d.doubt == 0
        samples = [s for s in self.store.samples if len(s.neighbours) <= 1 and known[[s.kernel, *s.neighbours]].all()]
        if not samples:
            return
        q = SpeedQuery.at(samples)
        off = np.asarray([s.log_s for s in samples]) - q.guess(d)
        age = now_s - np.asarray([s.at_s for s in samples])
        data = performance_model.fit_data(q.inputs(d), off, age, d.family[q.kernel], self.half_life_s)
        self.refits += 1
        self.ensemble = performance_model.fit(jax.random.fold_in(self._key, self.refits), self.ensemble, data)

    def update(self, reports: Sequence[SpeedReport], *, now_s: float, placed: Container[int]) -> list[ReportOutcome]:
        """Take the reports of a round; `placed`: jobs that have been."""
        if not reports:
            return []
        mean, std = self.log_seconds(SpeedQuery.at(reports), now_s)
        heard = []
        for report, m, d in zip(reports, mean, std, strict=True):
            why = self.store.add(report, now_s=now_s, placed=report.job in placed, mean=float(m), std=float(d))
            error = 0.0 if why else self.store.samples[-1].log_s - float(m)
            heard.append(ReportOutcome(report, why, error, float(d)))
        return heard

    def log_seconds(self, query: SpeedQuery, now_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of the logarithm of a unit's seconds, given all samples."""
        mean, std, known = self._conditioned(query, now_s)
        doubt = 0.0 if self.described.doubt is None else self.described.doubt[query.kernel]
        return mean, np.sqrt(np.maximum(std**2 + doubt**2 - (known**2).sum(axis=0), 1e-6))

    def draws(self, query: SpeedQuery, now_s: float, count: int, rng: np.random.Generator) -> np.ndarray:
        """The same logarithms, drawn together [count, n]: what two of them have in common is alike in a draw."""
        mean, std, known = self._conditioned(query, now_s)
        values, vectors = np.linalg.eigh(self._common(query, std, query, std) - known.T @ known)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(mean + rng.standard_normal((count, len(mean))) @ root.T)

    def _conditioned(self, query: SpeedQuery, now_s: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means given all samples [n], deviations without them [n], a root of what they take off variances [m, n]."""
        mean, std = self._prior(query)
        seen, value, noise = self._evidence(now_s)
        if not len(value):
            return mean, std, np.zeros((0, len(mean)))
        seen_mean, seen_std = self._prior(seen)
        factor = np.linalg.cholesky(self._common(seen, seen_std, seen, seen_std) + np.diag(noise))
        half = np.linalg.solve(factor, self._common(query, std, seen, seen_std).T)
        return mean + half.T @ np.linalg.solve(factor, value - seen_mean), std, half

    def _common(self, a: SpeedQuery, a_std: np.ndarray, b: SpeedQuery, b_std: np.ndarray) -> np.ndarray:
        """Covariance of two lists of speeds before anything was seen [n, m]."""
        d = self.described
        shared = correlation(a, b, d.family) * a_std[:, None] * b_std
        if d.doubt is None:
            return shared
        return np.asarray(shared + (a.kernel[:, None] == b.kernel) * d.doubt[a.kernel, None] * d.doubt[b.kernel])

    def tables(self, now_s: float, kernels: np.ndarray, before: BeliefArrays) -> BeliefArrays:
        """Beliefs about these kernels and their pairs; what is believed of others stays as it was."""
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
        """What is believed before anything has run: the guesses, and how far they may be off."""
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
        """Samples by place: their mean, and its variance. Old ones count less; those of one job are not independent."""
        places: dict[tuple[int, ...], dict[int, tuple[float, float]]] = {}
        for s in islice(reversed(self.store.samples), MAX_SAMPLES):
            if len(s.neighbours) > 1:
                continue
            key = (s.kernel, s.kind, int(s.spread), s.neighbours[0] if s.neighbours else NO_NEIGHBOUR)
            if key not in places and len(places) == MAX_SIGNATURES:
                continue
            jobs = places.setdefault(key, {})
            weight = 0.5 ** ((now_s - s.at_s) / self.half_life_s)
            total, much = jobs.get(s.job, (0.0, 0.0))
            jobs[s.job] = (total + weight * s.log_s, much + weight)
        query = SpeedQuery(*np.asarray(list(places), int).reshape(-1, 4).T)
        value, noise = [], []
        for jobs in places.values():
            precise = np.asarray([1 / (JOB_LOG_STD**2 + JOB_LOG_STD**2 / max(much, 1e-9)) for _, much in jobs.values()])
            means = np.asarray([total / max(much, 1e-300) for total, much in jobs.values()])
            value.append(float((precise * means).sum() / precise.sum()))
            noise.append(float(1 / precise.sum()))
        return query, np.asarray(value), np.asarray(noise)


def _padded(x: np.ndarray) -> np.ndarray:
    """To a power of two of rows, so that few programs are compiled."""
    rows = 1 << max(4, (len(x) - 1).bit_length())
    return np.pad(x, ((0, rows - len(x)), (0, 0)))
