"""Isolated times of our kernels, and their demands for the bandwidth of memory.

**Times.** For each kernel and device kind, the isolated time of an input of s bytes is taken to be
`(fixed + slope · s) · noise`, all log-normal. `log fixed` and `log slope` have a Gaussian belief, updated by every
run (an extended Kalman filter, linearised at the share of the time that is fixed). A run that is far off, or was the
first of its process, has less weight. If counters of the machine are read, both are components of its joint belief
(`live.py`), so that a slow run may also be due to others.

**Demands.** Traffic through memory can seldom be counted; time always can. By the contention rule of the simulator, a
kernel that demands a share q of the bandwidth, beside others that demand Q, takes max(1, q + Q) times as long as alone.
Its time alone is not known either: a kernel that only ever ran beside its like may simply take that long. So the belief
is about both: a weight for each of 50 shares (none, and from a 64th to all), and given each share a Gaussian belief
about the time alone. A run moves the weights, by Bayes' rule, to the shares that expected its time. What others demand
comes from their own beliefs, with its uncertainty. Small shares matter: sixteen kernels of a tenth each slow one
another.

On a CPU, demands are learned from CPU time, which includes waiting for memory and not waiting for the processor. A
kernel beside it counts for the share of time in which it has a processor. Cache and memory are not told apart.

Counted traffic is further evidence about a share. It is kept apart from the weights, because it is the latest estimate
and not one for each run. If the counters miss a part of the traffic, it is only evidence against smaller shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from symphony.estimation.runs import RUN_PIECES, PastRun

# Before anything ran: milliseconds, and a gigabyte per second, give or take a factor of e^3 = 20.
PRIOR_MEAN = (math.log(2e-3), math.log(1e-9))
PRIOR_STD = 3.0
NOISE_STD = 0.3  # of the logarithm of a time, before it is known better …
NOISE_RUNS = 4.0  # … worth so many runs
MIN_NOISE_STD = 0.02
SHARED_NOISE_FACTOR = 2.0  # factor on the noise of a run that had company on its machine
COLD_NOISE_FACTOR = 8.0  # of the first run in a process: it imports and compiles
LOG_TIME_DRIFT = 0.02  # of log times, from run to run: what was learned long ago counts less
AVERAGED_RUNS = 20  # runs over which the time around them is averaged …
MAX_MEDIANS = 10.0  # … each cut at this many medians: some runs compile
NOISE_DEGREES_OF_FREEDOM = 4.0  # of Student's t: outliers have less weight
MIN_SECONDS = 1e-7  # resolution of clocks
CHANGED_CODE_STD = 1.0  # by which a belief widens when the code of a kernel has changed …
OUTLIER_DISTANCE, OUTLIERS_BEFORE_RESET = 25.0, 3  # … or after so many outliers in a row (squared deviations)


SHARE_LEVELS = np.array([0.0, *2.0 ** np.linspace(-6, 0, 49)])  # shares of the bandwidth
SHARE_COUNT = len(SHARE_LEVELS)
# Of what each level stands for.
LEVEL_EDGES = np.array([0.0, SHARE_LEVELS[1] / 2, *np.sqrt(SHARE_LEVELS[1:-1] * SHARE_LEVELS[2:]), 1.0])
MIN_LIKELIHOOD_RATIO = math.exp(-1.353)  # of the shares in a 90% band, to the most likely one
PRIOR_NO_DEMAND = 0.5  # probability that a kernel demands next to nothing, before it ran beside another
MAX_NO_DEMAND_PROBABILITY = 0.1  # the same, below which policies are shown a demand
RUN_WEIGHT = 0.5  # of the log likelihood of a run: those side by side met the same company and the same disturbances
FORGETTING_RATE = 0.002  # of the weights, with every run: kernels and inputs change
CHANGED_CODE_SHARE_STD = 0.1  # deviation that is added to counted traffic when the code has changed
MIN_RUN_S = 1e-3  # in shorter runs, the error of clocks is larger than the effect of memories
QUADRATURE_POINTS = np.sqrt(3.0) * np.array([-1.0, 0.0, 1.0])  # a normal in three points, and their weights
QUADRATURE_WEIGHTS = np.array([1.0, 4.0, 1.0]) / 6.0
LEVEL_PRIOR = np.full(SHARE_COUNT, (1 - PRIOR_NO_DEMAND) / (SHARE_COUNT - 1))  # any share, …
LEVEL_PRIOR[0] = PRIOR_NO_DEMAND  # … or next to nothing
SQUARED_LEVELS = SHARE_LEVELS**2
Number = Any  # float, or f[levels]


def _gains(cov: tuple[Number, Number, Number], a: Number, b: Number, noise: Number) -> tuple[Number, Number, Number]:
    """A reading of a log time with these derivatives by log fixed and log slope: gains of both, and its variance."""
    to_fixed, to_slope = cov[0] * a + cov[1] * b, cov[1] * a + cov[2] * b
    variance = a * to_fixed + b * to_slope + noise
    return to_fixed / variance, to_slope / variance, variance


def _tails(surprise: Number) -> Number:
    """Factor on the noise of a reading so many squared deviations off: Student's t as a mixture of Gaussians."""
    return np.maximum((NOISE_DEGREES_OF_FREEDOM + surprise) / (NOISE_DEGREES_OF_FREEDOM + 1.0), 1.0)


def clipped_mean(seconds: Sequence[float]) -> float:
    """Mean of short times, without what is far beyond all others; 0 of none."""
    return float(np.minimum(seconds, MAX_MEDIANS * np.median(seconds)).mean()) if len(seconds) else 0.0


@dataclass
class Timing:
    """Belief about the isolated time of one kernel on one device kind."""

    mean: list[float] = field(default_factory=lambda: list(PRIOR_MEAN))  # of log fixed, log slope
    cov: list[list[float]] = field(default_factory=lambda: [[PRIOR_STD**2, 0.0], [0.0, PRIOR_STD**2]])
    noise: float = NOISE_STD**2 * NOISE_RUNS  # sum of squares
    weight: float = NOISE_RUNS  # of how many runs
    runs: int = 0
    warm: int = 0  # runs that were not the first of their process
    odd: int = 0  # runs in a row that were far off
    around: list[float] = field(default_factory=list)  # seconds for which the last runs kept a slot from running …
    behind: list[float] = field(default_factory=list)  # … and those that were sent ahead, which follow another …
    ahead: float = 0.0  # … as this share of the runs does
    digest: str = ""  # of the code that ran

    @property
    def noise_std(self) -> float:
        """Of the logarithm of a single time."""
        return max(math.sqrt(self.noise / self.weight), MIN_NOISE_STD)

    def at(self, size: float) -> tuple[float, float, float]:
        """Log time of an input, and its derivatives by the two logarithms: the fixed share, and the rest."""
        fixed, rest = math.exp(self.mean[0]), math.exp(self.mean[1]) * size
        return math.log(fixed + rest), fixed / (fixed + rest), rest / (fixed + rest)

    def seconds(self, size: float) -> float:
        """Median of the time of an input of so many bytes."""
        return math.exp(self.at(size)[0])

    def spread(self, size: float) -> float:
        """Deviation of the logarithm of that time: of what is not known, and of what differs from run to run."""
        _, a, b = self.at(size)
        return math.sqrt(_gains(self._cov, a, b, self.noise_std**2)[2])

    @property
    def _cov(self) -> tuple[float, float, float]:
        return self.cov[0][0], self.cov[0][1], self.cov[1][1]

    @property
    def fixed_s(self) -> float:
        """Seconds of an empty input."""
        return math.exp(self.mean[0])

    @property
    def per_byte_s(self) -> float:
        """Seconds that each byte adds."""
        return math.exp(self.mean[1])

    def learn(self, size: float, seconds: float, *, shared: bool = False, cold: bool = False) -> None:
        """Take in a run."""
        seen = math.log(max(seconds, MIN_SECONDS))
        factor = (SHARED_NOISE_FACTOR if shared else 1.0) * (COLD_NOISE_FACTOR if cold else 1.0)
        noise = (self.noise_std * factor) ** 2
        before, (aa, ab, bb) = list(self.mean), self._cov
        aa, bb = aa + LOG_TIME_DRIFT**2, bb + LOG_TIME_DRIFT**2
        expected, a, b = self.at(size)
        surprise = (seen - expected) ** 2 / _gains((aa, ab, bb), a, b, noise)[2]
        self.odd = self.odd + 1 if surprise > OUTLIER_DISTANCE else 0
        if self.odd >= OUTLIERS_BEFORE_RESET:  # it is not the runs that are wrong
            aa, bb, self.odd = aa + CHANGED_CODE_STD**2, bb + CHANGED_CODE_STD**2, 0
        elif self.warm or (cold and self.runs):  # but the first run, and the first warm one, count fully
            noise *= float(_tails(surprise))
        for _ in range(4):  # around where it ends up, not around where it began
            expected, a, b = self.at(size)
            x, y, variance = _gains((aa, ab, bb), a, b, noise)
            off = seen - expected - a * (before[0] - self.mean[0]) - b * (before[1] - self.mean[1])
            self.mean = [before[0] + x * off, before[1] + y * off]
        aa, ab, bb = aa - x * x * variance, ab - x * y * variance, bb - y * y * variance
        self.cov = [[aa, ab], [ab, bb]]
        if not cold and not shared and self.runs:
            self._learn_noise(seen - self.at(size)[0])
        self.runs, self.warm = self.runs + 1, self.warm + (not cold)

    def _learn_noise(self, off: float) -> None:
        self.noise, self.weight = self.noise * 0.98 + min(off**2, 9 * self.noise_std**2), self.weight * 0.98 + 1.0

    def take(self, mean: Sequence[float], cov: np.ndarray, off: Sequence[float]) -> None:
        """Take over what `live.py` inferred from runs. `off`: residuals of their log times."""
        self.mean, self.cov = list(map(float, mean)), cov.tolist()
        for one in off:
            self._learn_noise(one)
        self.runs, self.warm, self.odd = self.runs + len(off), self.warm + len(off), 0

    @property
    def around_s(self) -> float:
        """Seconds that a run holds a slot beyond its own: for messages, values that are read and kept, and for us."""
        return (1 - self.ahead) * clipped_mean(self.around) + self.ahead * clipped_mean(self.behind)

    def learn_around(self, seconds: float, ahead: bool = False) -> None:
        """Take in for how long a slot was held by a run that was not running."""
        if ahead:
            self.behind = [*self.behind[1 - AVERAGED_RUNS :], seconds]
        else:
            self.around = [*self.around[1 - AVERAGED_RUNS :], seconds]
        self.ahead += (ahead - self.ahead) / min(len(self.around) + len(self.behind), AVERAGED_RUNS)

    def doubt(self, digest: str) -> None:
        """The code may have changed: if it has, what was learned is a hint only."""
        if self.runs and self.digest != digest:
            (aa, ab), (_, bb) = self.cov
            self.cov = [[aa + CHANGED_CODE_STD**2, ab], [ab, bb + CHANGED_CODE_STD**2]]
        self.digest = digest


@dataclass(frozen=True)
class Load:
    """Demands of others for the memory while a kernel ran: numbers, or one for each of equal pieces of its time, as a
    load that is high for half of the time slows it more than its mean would."""

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
    """Factor on the time of a kernel with this demand, if others demand `off` deviations more than is believed. The
    last axis is that of the pieces."""
    others = np.maximum(load.mean + load.std * np.asarray(off), 0.0)
    beside = np.where(share > 0, np.maximum(share * (1 + np.asarray(load.same)) + others, 1.0), 1.0)
    # Parts are of the time that it took, not of that alone.
    return 1 / np.mean(1 - load.part + load.part / beside, axis=-1)


@lru_cache(maxsize=256)
def _by_traffic(share: float, precision: float, least: bool) -> np.ndarray:
    """Relative likelihood of counted traffic at each level; the width of a level adds to the error."""
    off = np.where(least & (share < SHARE_LEVELS), 0.0, SHARE_LEVELS - share)
    reasons = off**2 / (1 / precision + np.diff(LEVEL_EDGES) ** 2 / 12)
    return np.exp(0.5 * (reasons.min() - reasons))


@dataclass
class Demand:
    """Belief about the share of a memory's bandwidth that one kernel asks for, on one device kind."""

    weights: np.ndarray = field(default_factory=LEVEL_PRIOR.copy)  # of SHARE_LEVELS; given each, its time alone:
    fixed: np.ndarray = field(default_factory=partial(np.full, SHARE_COUNT, PRIOR_MEAN[0]))  # log seconds, mean …
    slope: np.ndarray = field(default_factory=partial(np.full, SHARE_COUNT, PRIOR_MEAN[1]))  # log seconds per byte
    fixed_var: np.ndarray = field(default_factory=partial(np.full, SHARE_COUNT, PRIOR_STD**2))  # … and covariance
    both_cov: np.ndarray = field(default_factory=partial(np.full, SHARE_COUNT, 0.0))
    slope_var: np.ndarray = field(default_factory=partial(np.full, SHARE_COUNT, PRIOR_STD**2))
    noise: float = NOISE_STD**2 * NOISE_RUNS  # sum of squares of what is left …
    weight: float = NOISE_RUNS  # … of so many runs
    runs: int = 0  # beside others
    counted: tuple[float, float] = (0.0, 0.0)  # share that its traffic is, and the precision of that; 0 = not known
    least: bool = False  # whether that is less than all of its traffic

    @property
    def believed(self) -> np.ndarray:
        """weights of SHARE_LEVELS, by times and by traffic."""
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
        cov = self.fixed_var + LOG_TIME_DRIFT**2, self.both_cov, self.slope_var + LOG_TIME_DRIFT**2
        slow, doubt = load.slows
        noise = self.noise / self.weight
        alone, rest = np.exp(fixed), np.exp(slope) * size
        a, b = alone / (alone + rest), rest / (alone + rest)
        off = math.log(seconds) - np.log(alone + rest) - slow
        total = _gains(cov, a, b, doubt + noise)[2]
        far = off**2 / total
        # Wild runs are believed less the wilder they are: Student's t for the weights, more noise for the times.
        # Doubt of the others is no sign against a share: it is the same in every run, and would be paid for each time.
        likely = (1 + far / NOISE_DEGREES_OF_FREEDOM) ** (-(NOISE_DEGREES_OF_FREEDOM + 1) / 2) / np.sqrt(total - doubt)
        weights = weights * likely**RUN_WEIGHT
        self.weights = (1 - FORGETTING_RATE) * weights / weights.sum() + FORGETTING_RATE * LEVEL_PRIOR
        known = total - noise
        wild = _tails(far) if self.weight > NOISE_RUNS else 1.0
        x, y, total = _gains(cov, a, b, doubt + noise * wild)
        self.fixed, self.slope = fixed + x * off, slope + y * off
        self.fixed_var, self.both_cov = cov[0] - x**2 * total, cov[1] - x * y * total
        self.slope_var = cov[2] - y**2 * total
        if self.weight > NOISE_RUNS or (known < noise).all():  # before that, it is not the noise that is seen
            left = min(float(np.dot(self.weights, off**2 * noise / (known + noise))), 16 * noise)
            self.noise, self.weight = self.noise * 0.98 + left, self.weight * 0.98 + 1.0
        self.noise = max(self.noise, MIN_NOISE_STD**2 * self.weight)
        self.runs += bool(load)

    def doubt(self) -> None:
        """The code has changed: what was learned is a hint only."""
        self.fixed_var = self.fixed_var + CHANGED_CODE_STD**2
        self.slope_var = self.slope_var + CHANGED_CODE_STD**2
        self.counted = self.counted[0], self.counted[1] / (1 + self.counted[1] * CHANGED_CODE_SHARE_STD**2)


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
