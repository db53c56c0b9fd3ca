"""How long a kernel takes: a belief, updated by every run.

For each kernel and device kind, the isolated time of an input of s bytes is taken to be `(fixed + slope · s) · noise`,
all three log-normal. `log fixed` and `log slope` have a Gaussian belief, updated by every run (an extended Kalman
filter in logarithms: how much of the time is fixed is how much the run tells of `fixed`). A run that is far off, that
shared the machine, or was the first of its process tells less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

# Before anything ran: milliseconds, and a gigabyte per second, give or take a factor of e^3 = 20.
PRIOR_MEAN = (math.log(2e-3), math.log(1e-9))
PRIOR_STD = 3.0
NOISE_STD = 0.3  # of the logarithm of a time, before it is known better …
NOISE_RUNS = 4.0  # … worth so many runs
MIN_NOISE_STD = 0.02
SHARED_NOISE_FACTOR = 2.0  # factor on the noise of a run that had company on its machine
COLD_NOISE_FACTOR = 8.0  # of the first run in a process: it imports and compiles
LOG_TIME_DRIFT = 0.02  # by which log times wander from run to run: what was learned long ago counts less
AVERAGED_RUNS = 20  # runs over which the time around them is averaged …
MAX_MEDIANS = 10.0  # … and that of each counts as no more than so many medians: some runs compile
NOISE_DEGREES_OF_FREEDOM = 4.0  # degrees of freedom of the noise: a wild run is believed less the wilder it is
MIN_SECONDS = 1e-7  # seconds: clocks tell no shorter times
CHANGED_CODE_STD = 1.0  # by which a belief widens when the code of a kernel has changed …
OUTLIER_DISTANCE, OUTLIERS_BEFORE_RESET = (
    25.0,
    3,
)  # … or when so many runs in a row were as far off as this, in squared deviations


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

    def _at(self, size: float) -> tuple[float, float, float]:
        """Log time of an input, and how much of the time is fixed and how much is not: its derivatives."""
        fixed, rest = math.exp(self.mean[0]), math.exp(self.mean[1]) * size
        return math.log(fixed + rest), fixed / (fixed + rest), rest / (fixed + rest)

    def seconds(self, size: float) -> float:
        """Median of the time of an input of so many bytes."""
        return math.exp(self._at(size)[0])

    def spread(self, size: float) -> float:
        """Deviation of the logarithm of that time: of what is not known, and of what differs from run to run."""
        _, a, b = self._at(size)
        (aa, ab), (_, bb) = self.cov
        return math.sqrt(a * a * aa + 2 * a * b * ab + b * b * bb + self.noise_std**2)

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
        before = list(self.mean)
        (aa, ab), (_, bb) = self.cov
        aa, bb = aa + LOG_TIME_DRIFT**2, bb + LOG_TIME_DRIFT**2
        expected, a, b = self._at(size)
        surprise = (seen - expected) ** 2 / (a * a * aa + 2 * a * b * ab + b * b * bb + noise)
        self.odd = self.odd + 1 if surprise > OUTLIER_DISTANCE else 0
        if self.odd >= OUTLIERS_BEFORE_RESET:  # it is not the runs that are wrong
            aa, bb, self.odd = aa + CHANGED_CODE_STD**2, bb + CHANGED_CODE_STD**2, 0
        elif self.warm or (cold and self.runs):  # but the first run, and the first warm one, count fully
            noise *= max((NOISE_DEGREES_OF_FREEDOM + surprise) / (NOISE_DEGREES_OF_FREEDOM + 1.0), 1.0)
        for _ in range(4):  # around where it ends up, not around where it began
            expected, a, b = self._at(size)
            towards = aa * a + ab * b, ab * a + bb * b
            gain = [part / (a * towards[0] + b * towards[1] + noise) for part in towards]
            off = seen - expected - a * (before[0] - self.mean[0]) - b * (before[1] - self.mean[1])
            self.mean = [before[0] + gain[0] * off, before[1] + gain[1] * off]
        ab -= gain[0] * towards[1]
        self.cov = [[aa - gain[0] * towards[0], ab], [ab, bb - gain[1] * towards[1]]]
        if not cold and not shared and self.runs:
            left = min((seen - self._at(size)[0]) ** 2, (4 * self.noise_std) ** 2)
            self.noise, self.weight = self.noise * 0.98 + left, self.weight * 0.98 + 1.0
        self.runs, self.warm = self.runs + 1, self.warm + (not cold)

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
        """The code is another than that of earlier runs: what they told is a hint only."""
        if self.runs and self.digest != digest:
            (aa, ab), (_, bb) = self.cov
            self.cov = [[aa + CHANGED_CODE_STD**2, ab], [ab, bb + CHANGED_CODE_STD**2]]
        self.digest = digest
