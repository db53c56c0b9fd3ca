"""Lengths of training jobs that the user did not tell: a posterior of the time left, from the jobs that have ended.

The probability that a job ends in the next bin of a logarithmic grid, given that it has come so far, is estimated from
all jobs, from those of its kernel, and from those of its kernel and width: each level is a Beta posterior around the
one before. Jobs that still run count as having come so far. Lengths are heavy-tailed, so the longer a job has run, the
longer it is likely to run on, and no single number says what is left. Two are used:

- the *mean* of the time left, which policies such as `srtf` are shown;
- the *index time* (the inverse of Gittins' index): the least ratio, over all spans, of the expected time spent in the
  next span to the probability that the job ends in it. On one machine, running the job of the least index time first
  minimises the mean completion time. The planner is shown this one. For a job of known length it is the time left.

`UnknownLengths` hides the number of units from any policy and shows it one of the two instead. `LengthLearner` is the
same model for real runs, in NumPy (`xp` is either library).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.errors import LimitError
from symphony.scheduling.graph_tables import unit_seconds
from symphony.scheduling.indexing import BoolScalar
from symphony.scheduling.policy import Action, Observation, Policy

BINS = 44
UPPER_S = 10.0 * 2.0 ** (np.arange(BINS) / 2)  # upper edges, to 4e7 s; the first bin begins at 0
LOWER_S = np.concatenate([[0.0], UPPER_S[:-1]])
PRIOR_HAZARD = 1 - 2.0**-0.75  # of a bin: half of the jobs that have come so far end before 1.6 times as long
PRIOR_JOBS = (4.0, 8.0, 8.0)  # weight of the level before: of the prior, of all jobs, of the kernel
KERNELS, WIDTHS = 64, 8  # kernels beyond share rows; widths by powers of two
MAX_TRACKED_JOBS = 512


class LengthCounts(eqx.Module):
    """Jobs by the bins that they have reached, for each group: all, 64 kernels, and 64 times 8 kernels and widths."""

    ended: Float[Array, "groups bins"]  # ended in the bin
    reached: Float[Array, "groups bins"]  # came to the bin and went on, or ended there


def no_lengths() -> LengthCounts:
    zero = jnp.zeros((1 + KERNELS * (1 + WIDTHS), BINS))
    return LengthCounts(zero, zero)


def groups(kernel: Any, workers: Any, xp: Any = jnp) -> Int[Array, "jobs 3"]:
    """Rows of the tables for jobs, from the widest group to the narrowest."""
    kernel = kernel % KERNELS
    width = xp.clip(xp.log2(xp.maximum(workers, 1)).astype(xp.int32), 0, WIDTHS - 1)
    return xp.stack([0 * kernel, 1 + kernel, 1 + KERNELS + kernel * WIDTHS + width], axis=1)


def add_lengths(counts: LengthCounts, rows: Array, seconds: Array, when: Array) -> LengthCounts:
    """Add jobs of these lengths that have ended, where `when`."""
    at = _bin(seconds)[:, None]
    bins = jnp.arange(BINS)
    ended, reached = ((test & when[:, None]).astype(float)[:, None] for test in (bins == at, bins <= at))
    return LengthCounts(counts.ended.at[rows].add(ended), counts.reached.at[rows].add(reached))


def hazards(counts: LengthCounts, rows: Array, attained_s: Array, present: Array) -> Float[Array, "jobs bins"]:
    """The probability of each job to end in a bin, if it comes to it. Present jobs count as far as they have come."""
    passed = ((jnp.arange(BINS) < _bin(attained_s)[:, None]) & present[:, None]).astype(float)
    return _shrunk(counts.ended, counts.reached.at[rows].add(passed[:, None]), rows)


def _shrunk(ended: Any, reached: Any, rows: Any) -> Any:
    """The posterior mean of the hazards of each group, around those of the group before."""
    hazard = PRIOR_HAZARD
    for level, weight in enumerate(PRIOR_JOBS):
        row = rows[:, level]
        hazard = (ended[row] + weight * hazard) / (reached[row] + weight)
    return hazard


def time_left_s(hazard: Any, attained_s: Any, xp: Any = jnp) -> tuple[Any, Any]:
    """Mean time left of each job, and its index time. Within a bin, all ends are equally likely."""
    bins, at = xp.arange(BINS), _bin(attained_s, xp)[:, None]
    share = xp.clip((attained_s[:, None] - LOWER_S) / (UPPER_S - LOWER_S), 0.0, 0.999)
    share = xp.where(bins == at, share, 0.0)  # of the present bin that has passed
    hazard = xp.where(bins < at, 0.0, hazard * (1 - share) / (1 - hazard * share))
    width = xp.where(bins < at, 0.0, (UPPER_S - LOWER_S) * (1 - share))
    comes = xp.cumprod(1 - hazard, axis=1) / (1 - hazard)  # probability to come to a bin
    ends, spent = xp.cumsum(comes * hazard, axis=1), xp.cumsum(comes * width * (1 - hazard / 2), axis=1)
    ratio = xp.where((bins >= at) & (ends > 0), spent / xp.where(ends > 0, ends, 1.0), xp.inf)
    return spent[:, -1], ratio.min(axis=1)


def _bin(seconds: Any, xp: Any = jnp) -> Any:
    return xp.minimum(xp.searchsorted(xp.asarray(UPPER_S), seconds, side="right"), BINS - 1)


class LengthLearner:
    """Learns the lengths of jobs that have ended, and estimates what is left of others."""

    def __init__(self) -> None:
        self._ended, self._reached = np.zeros((2, 1 + KERNELS * (1 + WIDTHS), BINS))

    def ended(self, kind: str, workers: int, seconds: float) -> None:
        """A job of this kind and width has ended after so many seconds."""
        (rows,), at = self._rows([(kind, workers, seconds)]), _bin(seconds, np)
        self._ended[rows, at] += 1
        self._reached[rows, : at + 1] += 1

    def index_s(self, jobs: Sequence[tuple[str, int, float]]) -> np.ndarray:
        """Index times of all present jobs: kind, width and seconds so far of each."""
        rows, attained_s = self._rows(jobs), np.asarray([seconds for _, _, seconds in jobs], float)
        reached = self._reached.copy()
        np.add.at(reached, rows, (np.arange(BINS) < _bin(attained_s, np)[:, None]).astype(float)[:, None])
        return np.asarray(time_left_s(_shrunk(self._ended, reached, rows), attained_s, np)[1])

    def _rows(self, jobs: Sequence[tuple[str, int, float]]) -> np.ndarray:
        kernel = np.asarray([zlib.crc32(kind.encode()) for kind, _, _ in jobs])
        return np.asarray(groups(kernel, np.asarray([workers for _, workers, _ in jobs]), np))


def check_trackable(job_slots: int, gangs: int) -> None:
    """Raise LimitError if lengths cannot be learned of so many jobs at once, of so many gangs each."""
    if gangs > 1 or job_slots > MAX_TRACKED_JOBS:
        hint = f"use jobs of one gang each, and job_slots={MAX_TRACKED_JOBS} or fewer"
        raise LimitError(f"there are {job_slots} job slots and {gangs} gangs in a job", where="lengths", hint=hint)


class LengthState(eqx.Module):
    """What is remembered of the jobs in the system, by job slot, and of those that have ended."""

    inner: Any  # the state of the policy
    job: Int[Array, " jobs"]
    rows: Int[Array, "jobs 3"]
    seconds: Float[Array, " jobs"]  # its length, which is learned when it has ended
    counts: LengthCounts


class UnknownLengths(Policy):
    """A policy that is shown estimates of the units left, instead of their number. Each graph must be one gang."""

    policy: Policy
    by_index: BoolScalar = eqx.field(default=False, converter=jnp.asarray)  # show index times instead of means

    @property
    def cheats(self) -> bool:  # type: ignore[override]
        return self.policy.cheats

    @property
    def tuning(self) -> Any:
        return self.policy.tuning

    @property
    def name(self) -> str:
        return self.policy.name

    def init(self, topology: TopologyArrays) -> LengthState:
        none = jnp.full(MAX_TRACKED_JOBS, -1, jnp.int32)
        rows = jnp.zeros((MAX_TRACKED_JOBS, len(PRIOR_JOBS)), jnp.int32)
        return LengthState(self.policy.init(topology), none, rows, jnp.zeros(MAX_TRACKED_JOBS), no_lengths())

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Any:
        return self.policy.prepare(topology, workload)

    def decide(self, key: Array, state: LengthState, observation: Observation) -> tuple[LengthState, Action]:
        core, w = observation.core, observation.workload
        slots = core.job.shape[0]
        check_trackable(slots, w.kernel.shape[1])
        seconds = jnp.where(core.job >= 0, unit_seconds(observation).min(axis=1), 1.0)
        units = observation.per_gang(w.units)
        rows = groups(observation.per_gang(w.kernel), core.workers)
        left = state.job[:slots] != core.job
        gone = left & (state.job[:slots] >= 0)
        counts = add_lengths(state.counts, state.rows[:slots], state.seconds[:slots], gone)
        attained_s = jnp.maximum(units - observation.units_left, 0.0) * seconds
        hazard = hazards(counts, rows, attained_s, core.job >= 0)
        mean_s, index_s = time_left_s(hazard, attained_s)
        shown = jnp.where(core.job >= 0, jnp.where(self.by_index, index_s, mean_s) / seconds, 0.0)
        inner, action = self.policy.decide(key, state.inner, replace(observation, units_left=shown))
        new = (core.job, rows, units * seconds)
        old = (state.job, state.rows, state.seconds)
        job, rows, length = jax.tree.map(lambda every, some: every.at[:slots].set(some), old, new)
        return LengthState(inner, job, rows, length, counts), action
