"""What kernels ask of the memory that they share with others, learned from how much slower they are beside them.

Where counters can be opened they tell what passes through a memory (`traffic.py`); on most machines that are rented,
and without root permissions, they cannot. What always can be seen is time. A kernel that asks for a share q of the
bandwidth, beside others that ask for Q, takes max(1, q + Q) times as long: that is the simulator's rule, turned round.

How long it takes alone is not known either, and one that only ever ran beside its like may just take that long. So the
belief is about both. For each of 50 shares, none and from a 64th to all, there is a weight, and a Gaussian belief
about the time alone, given that share, as in `timing.py`. A run moves the weights, by Bayes' rule, to the shares that
expected it. What the others ask for is taken from their own beliefs, doubt included. Small shares matter on many cores:
sixteen kernels that ask for a tenth each slow one another, nine do not.

On a CPU, the time that counts is that for which the processor worked: a wait for memory is in it, a wait for the
processor, which others have, is not; and company that waits for its own processor is none. Cache and memory are not
told apart: what one pays for beside others is charged to the memory.

Where traffic is counted, what that says of a share is one more reason for and against it, kept by itself: it is the
newest figure, not one for each run. If there is more traffic than is counted, it only speaks against smaller shares.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import takewhile

import numpy as np

from symphony.problem.topology import Topology
from symphony.runtime.timing import (
    CHANGED_CODE_STD,
    LOG_TIME_DRIFT,
    MIN_NOISE_STD,
    NOISE_DEGREES_OF_FREEDOM,
    NOISE_RUNS,
    NOISE_STD,
    PRIOR_MEAN,
    PRIOR_STD,
)

SHARE_LEVELS = np.array([0.0, *2.0 ** np.linspace(-6, 0, 49)])  # shares of the bandwidth
LEVEL_EDGES = np.array(
    [0.0, SHARE_LEVELS[1] / 2, *np.sqrt(SHARE_LEVELS[1:-1] * SHARE_LEVELS[2:]), 1.0]
)  # of what each level stands for
MIN_LIKELIHOOD_RATIO = math.exp(-1.353)  # of the likelihood: beyond it 10% are, if it is the truth
PRIOR_NO_DEMAND = 0.5  # chance that a kernel asks for next to nothing, before it ever ran beside another
MAX_NO_DEMAND_PROBABILITY = 0.1  # chance of the same, below which it is believed to ask for something
RUN_WEIGHT = 0.5  # of what a run says: those that run side by side have met the same company, and the same disturbances
FORGETTING_RATE = 0.002  # of the weights, with every run: kernels and inputs change
CHANGED_CODE_SHARE_STD = 0.1  # deviation that is added to counted traffic where the code is another
MIN_RUN_S = 1e-3  # runs that are shorter tell more of clocks than of memories
QUADRATURE_POINTS = np.sqrt(3.0) * np.array([-1.0, 0.0, 1.0])  # a normal in three points, and their weights
QUADRATURE_WEIGHTS = np.array([1.0, 4.0, 1.0]) / 6.0
RUN_PIECES = 8  # of the time of a run: company comes and goes
PIECE_EDGES = np.arange(RUN_PIECES + 1) / RUN_PIECES
MAX_PAST_RUNS = 1024  # runs that have ended, and may have been beside those that have not


@dataclass(frozen=True)
class PastRun:
    """A run, as others met it."""

    kernel: str
    kind: str  # of its device
    device: int
    began_s: float
    ended_s: float
    active: float = 1.0  # share of that time for which it had its processor; NaN = not known

    def beside(self, other: PastRun) -> float:
        """The share of our time during which the other ran, too. One that has not ended is taken to be as active."""
        both = min(self.ended_s, other.ended_s) - max(self.began_s, other.began_s)
        return max(both, 0.0) / max(self.ended_s - self.began_s, 1e-9) * self._activity(other)

    def _activity(self, other: PastRun) -> float:
        return self.active if math.isnan(other.active) else other.active

    def pieces(self, others: Sequence[PastRun]) -> np.ndarray:
        """The same of each of the pieces of our time: other × piece."""
        edges = self.began_s + PIECE_EDGES * (self.ended_s - self.began_s)
        began, ended, active = np.array([(x.began_s, x.ended_s, self._activity(x)) for x in others]).reshape(-1, 3).T
        both = np.minimum(edges[1:], ended[:, None]) - np.maximum(edges[:-1], began[:, None])
        return np.maximum(both, 0.0) / max(edges[1] - edges[0], 1e-9) * active[:, None]


@dataclass(frozen=True)
class Load:
    """What others asked of the memory while a kernel ran: a number each, or one for each of as many equal pieces of its
    time. Who is slowed for half of the time by twice as much as it can bear is not slowed by nothing."""

    part: float | np.ndarray = 0.0  # of its time, in which it had company; during that …
    same: float | np.ndarray = 0.0  # … runs of the same kernel beside it, …
    mean: float | np.ndarray = 0.0  # … and what the rest asks for, in shares of the bandwidth
    std: float | np.ndarray = 0.0

    def __bool__(self) -> bool:
        return bool(np.any(self.part))

    def plus(self, mean: float, std: float) -> Load:
        """With others beside it, all the time, who ask for so much."""
        if not mean:
            return self
        part = np.asarray(self.part)
        return Load(1.0, part * self.same, part * self.mean + mean, np.hypot(part * self.std, std))

    @cached_property
    def slows(self) -> tuple[np.ndarray, np.ndarray]:
        """Logarithm of the factor by which it slows a kernel of each share; its variance, by doubt of the others."""
        if not np.any(self.std):
            return np.log(slowdown(SHARE_LEVELS[:, None], self)), np.zeros(len(SHARE_LEVELS))
        log = np.log(slowdown(SHARE_LEVELS[:, None, None], self, QUADRATURE_POINTS[:, None]))
        mean = log @ QUADRATURE_WEIGHTS
        return mean, np.maximum(log**2 @ QUADRATURE_WEIGHTS - mean**2, 0.0)


NO_LOAD = Load()


def slowdown(share: np.ndarray, load: Load, off: float | np.ndarray = 0.0) -> np.ndarray:
    """Factor on the time of a kernel that asks for such a share, beside others who ask for so many deviations more
    than is believed. The last axis is that of the pieces."""
    others = np.maximum(load.mean + load.std * np.asarray(off), 0.0)
    beside = np.where(share > 0, np.maximum(share * (1 + np.asarray(load.same)) + others, 1.0), 1.0)
    # Parts are of the time that it took, not of that alone.
    return 1 / np.mean(1 - load.part + load.part / beside, axis=-1)


LEVEL_PRIOR = np.array(
    [PRIOR_NO_DEMAND, *[(1 - PRIOR_NO_DEMAND) / (len(SHARE_LEVELS) - 1)] * (len(SHARE_LEVELS) - 1)]
)  # next to nothing, or any share
SQUARED_LEVELS = SHARE_LEVELS**2


@lru_cache(maxsize=256)
def _by_traffic(share: float, precision: float, least: bool) -> np.ndarray:
    """How well each level explains what was counted; none is sharper than the width that it stands for."""
    off = np.where(least & (share < SHARE_LEVELS), 0.0, SHARE_LEVELS - share)
    reasons = off**2 / (1 / precision + np.diff(LEVEL_EDGES) ** 2 / 12)
    return np.exp(0.5 * (reasons.min() - reasons))


@dataclass
class Demand:
    """Belief about the share of a memory's bandwidth that one kernel asks for, on one device kind."""

    weights: np.ndarray = field(default_factory=LEVEL_PRIOR.copy)  # of LEVELS; given each, its time alone:
    fixed: np.ndarray = field(default_factory=lambda: np.full(len(SHARE_LEVELS), PRIOR_MEAN[0]))  # log seconds, mean …
    slope: np.ndarray = field(default_factory=lambda: np.full(len(SHARE_LEVELS), PRIOR_MEAN[1]))  # log seconds per byte
    fixed_var: np.ndarray = field(default_factory=lambda: np.full(len(SHARE_LEVELS), PRIOR_STD**2))  # … and covariance
    both_cov: np.ndarray = field(default_factory=lambda: np.full(len(SHARE_LEVELS), 0.0))
    slope_var: np.ndarray = field(default_factory=lambda: np.full(len(SHARE_LEVELS), PRIOR_STD**2))
    noise: float = NOISE_STD**2 * NOISE_RUNS  # sum of squares of what is left …
    weight: float = NOISE_RUNS  # … of so many runs
    runs: int = 0  # beside others
    counted: tuple[float, float] = (0.0, 0.0)  # share that its traffic is, and the precision of that; 0 = not known
    least: bool = False  # whether that is less than all of its traffic

    @property
    def believed(self) -> np.ndarray:
        """Weights of LEVELS, by times and by traffic."""
        if not self.counted[1]:
            return self.weights
        weights = np.maximum(self.weights, 1e-12) * _by_traffic(*self.counted, self.least)
        return weights / weights.sum()

    @property
    def share(self) -> float:
        """What it asks for, on average over what is possible."""
        return float(np.dot(self.believed, SHARE_LEVELS))

    @property
    def std(self) -> float:
        """How far off that may be."""
        return math.sqrt(max(float(np.dot(self.believed, SQUARED_LEVELS)) - self.share**2, 0.0))

    @property
    def band(self) -> tuple[float, float]:
        """Shares that the runs have not ruled out, at 90%: those that explain them nearly as well as the best does.

        What was believed before any run is not in it. Where nothing was ever slowed, all that would not have been are.
        """
        explains = self.believed / LEVEL_PRIOR
        [found] = np.nonzero(explains >= explains.max() * MIN_LIKELIHOOD_RATIO)
        return float(LEVEL_EDGES[found[0]]), float(LEVEL_EDGES[found[-1] + 1])

    @property
    def reported_share(self) -> float:
        """The demand that policies see: 0 until it is likely that there is any."""
        return self.share if self.believed[0] < MAX_NO_DEMAND_PROBABILITY else 0.0

    @property
    def reported_share_std(self) -> float:
        """How far from that it may be."""
        return math.hypot(self.std, self.share - self.reported_share)

    def slower(self, load: Load) -> tuple[float, float]:
        """By what factor such company slows it: mean of the logarithm, and its deviation."""
        if not load:
            return 0.0, 0.0
        (log, variance), weights = load.slows, self.believed
        mean = float(np.dot(weights, log))
        return mean, math.sqrt(max(float(np.dot(weights, log**2 + variance)) - mean**2, 0.0))

    def learn(self, size: float, seconds: float, load: Load) -> None:
        """Take in a run: how long it worked, and beside whom."""
        weights, fixed, slope = self.weights, self.fixed, self.slope
        aa, ab, bb = self.fixed_var + LOG_TIME_DRIFT**2, self.both_cov, self.slope_var + LOG_TIME_DRIFT**2
        slow, doubt = load.slows
        noise = self.noise / self.weight
        alone, rest = np.exp(fixed), np.exp(slope) * size
        a, b = alone / (alone + rest), rest / (alone + rest)
        off = math.log(seconds) - np.log(alone + rest) - slow
        known = a * a * aa + 2 * a * b * ab + b * b * bb + doubt
        far = off**2 / (known + noise)
        # Wild runs are believed less the wilder they are: Student's t for the weights, more noise for the times.
        # Doubt of the others is no sign against a share: it is the same in every run, and would be paid for each time.
        likely = (1 + far / NOISE_DEGREES_OF_FREEDOM) ** (-(NOISE_DEGREES_OF_FREEDOM + 1) / 2) / np.sqrt(
            known - doubt + noise
        )
        weights = weights * likely**RUN_WEIGHT
        wild = (
            np.maximum((NOISE_DEGREES_OF_FREEDOM + far) / (NOISE_DEGREES_OF_FREEDOM + 1), 1.0)
            if self.weight > NOISE_RUNS
            else 1.0
        )
        total = known + noise * wild
        gain_a, gain_b = (aa * a + ab * b) / total, (ab * a + bb * b) / total
        self.weights = (1 - FORGETTING_RATE) * weights / weights.sum() + FORGETTING_RATE * LEVEL_PRIOR
        self.fixed, self.slope = fixed + gain_a * off, slope + gain_b * off
        self.fixed_var = aa - gain_a**2 * total
        self.both_cov = ab - gain_a * gain_b * total
        self.slope_var = bb - gain_b**2 * total
        if self.weight > NOISE_RUNS or (known < noise).all():  # before that, it is not the noise that is seen
            left = min(float(np.dot(self.weights, off**2 * noise / (known + noise))), 16 * noise)
            self.noise, self.weight = self.noise * 0.98 + left, self.weight * 0.98 + 1.0
        self.noise = max(self.noise, MIN_NOISE_STD**2 * self.weight)
        self.runs += bool(load)

    def doubt(self) -> None:
        """The code is another: what was learned is a hint only."""
        self.fixed_var = self.fixed_var + CHANGED_CODE_STD**2
        self.slope_var = self.slope_var + CHANGED_CODE_STD**2
        self.counted = self.counted[0], self.counted[1] / (1 + self.counted[1] * CHANGED_CODE_SHARE_STD**2)


def memory_rows(topology: Topology) -> list[str | None]:
    """Of each device: the memory of its socket, over which its work goes."""
    memories = {row.name for row in topology.resources if row.kind == "memory"}
    return [
        next((hop.resource for hop in device.route if hop.resource in memories), None) for device in topology.devices
    ]


class CoRunners:
    """Who ran beside whom, on devices that share a memory."""

    def __init__(self, topology: Topology) -> None:
        rows = memory_rows(topology)
        on: dict[str | None, set[int]] = {row: set() for row in rows}
        for device, row in enumerate(rows):
            on[row] |= {device} if row is not None else set()
        self._near = [on[row] for row in rows]
        self._ended: deque[PastRun] = deque(maxlen=MAX_PAST_RUNS)

    def ended(self, ran: PastRun) -> None:
        """A run has ended; it is remembered for those that it met."""
        self._ended.append(ran)

    def of(self, ran: PastRun, running: Iterable[PastRun]) -> list[tuple[PastRun, float]]:
        """Those beside a run that has ended, with the share of its time."""
        near = self._near[ran.device]
        met = self._met(ran, running)
        return [(one, share) for one in met if one.device in near and (share := ran.beside(one)) > 0]

    def since(self, began_s: float) -> list[PastRun]:
        """Those that have ended since then, as far as they are remembered. Any thread may ask."""
        return list(takewhile(lambda one: one.ended_s > began_s, reversed(tuple(self._ended))))

    def alone(self, ran: PastRun, running: Iterable[PastRun]) -> bool:
        """Whether a run that has ended had its device for itself."""
        return not any(one.device == ran.device and ran.beside(one) > 0 for one in self._met(ran, running))

    def _met(self, ran: PastRun, running: Iterable[PastRun]) -> list[PastRun]:
        """Those that may have run at the same time, wherever."""
        ended = takewhile(lambda one: one.ended_s > ran.began_s, reversed(self._ended))
        return [*(one for one in ended if one is not ran), *running]


def load_of(ran: PastRun, company: Sequence[tuple[PastRun, float]], known: Mapping[tuple[str, str], Demand]) -> Load:
    """What company asked of the memory, as far as that is known."""
    if not company:
        return NO_LOAD
    shares = ran.pieces([one for one, _ in company])
    part = np.minimum(shares.sum(axis=0), 1.0)
    runs: dict[tuple[str, str], list[int]] = {}
    for number, (one, _) in enumerate(company):
        runs.setdefault((one.kernel, one.kind), []).append(number)
    same, mean, variance = np.zeros((3, RUN_PIECES))
    for name, numbers in runs.items():
        theirs = (shares[numbers].sum(axis=0) if len(numbers) > 1 else shares[numbers[0]]) / np.maximum(part, 1e-9)
        if name == (ran.kernel, ran.kind):
            same = theirs
        else:
            asks = known.get(name) or UNKNOWN_DEMAND
            # What is not known of a kernel is so of all of its runs.
            mean, variance = mean + theirs * asks.reported_share, variance + (theirs * asks.reported_share_std) ** 2
    return Load(part, same, mean, np.sqrt(variance))


UNKNOWN_DEMAND = Demand()
