"""How long kernels take, learned by running them.

For each kernel and device kind, the isolated time of an input of s bytes is taken to be `(fixed + slope · s) · noise`,
all three log-normal. `log fixed` and `log slope` have a Gaussian belief, updated by every run (an extended Kalman
filter in logarithms: how much of the time is fixed is how much the run tells of `fixed`). A run that is far off, that
shared the machine, or was the first of its process tells less. Kept as JSON in `$XDG_DATA_HOME/symphony`
(`~/.local/share/…`).
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from symphony.problem.errors import SymphonyWarning
from symphony.problem.units import show

FORMAT = "symphony.profiles/1"
# Before anything ran: milliseconds, and a gigabyte per second, give or take a factor of e^3 = 20.
PRIOR_MEAN = (math.log(2e-3), math.log(1e-9))
PRIOR_STD = 3.0
NOISE_STD = 0.3  # of the logarithm of a time, before it is known better …
NOISE_RUNS = 4.0  # … worth so many runs
LEAST_NOISE = 0.02
SHARED = 2.0  # factor on the noise of a run that had company on its machine
COLD = 8.0  # of the first run in a process: it imports and compiles
DRIFT = 0.02  # by which log times wander from run to run: what was learned long ago counts less
FREEDOM = 4.0  # degrees of freedom of the noise: a wild run is believed less the wilder it is
SHORTEST = 1e-7  # seconds: clocks tell no shorter times
CHANGED_STD = 1.0  # by which a belief widens when the code of a kernel has changed …
FAR, OFTEN = 25.0, 3  # … or when so many runs in a row were as far off as this, in squared deviations


@dataclass
class Timing:
    """Belief about the isolated time of one kernel on one device kind."""

    mean: list[float] = field(default_factory=lambda: list(PRIOR_MEAN))  # of log fixed, log slope
    cov: list[list[float]] = field(default_factory=lambda: [[PRIOR_STD**2, 0.0], [0.0, PRIOR_STD**2]])
    noise: float = NOISE_STD**2 * NOISE_RUNS  # sum of squares
    weight: float = NOISE_RUNS  # of how many runs
    runs: int = 0
    odd: int = 0  # runs in a row that were far off
    digest: str = ""  # of the code that ran

    @property
    def noise_std(self) -> float:
        """Of the logarithm of a single time."""
        return max(math.sqrt(self.noise / self.weight), LEAST_NOISE)

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
        seen = math.log(max(seconds, SHORTEST))
        factor = (SHARED if shared else 1.0) * (COLD if cold else 1.0)
        noise = (self.noise_std * factor) ** 2
        before = list(self.mean)
        (aa, ab), (_, bb) = self.cov
        aa, bb = aa + DRIFT**2, bb + DRIFT**2
        expected, a, b = self._at(size)
        surprise = (seen - expected) ** 2 / (a * a * aa + 2 * a * b * ab + b * b * bb + noise)
        self.odd = self.odd + 1 if surprise > FAR else 0
        if self.odd >= OFTEN:  # it is not the runs that are wrong
            aa, bb, self.odd = aa + CHANGED_STD**2, bb + CHANGED_STD**2, 0
        elif self.runs:  # the first run is news, however far off
            noise *= max((FREEDOM + surprise) / (FREEDOM + 1.0), 1.0)
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
        self.runs += 1

    def doubt(self, digest: str) -> None:
        """The code is another than that of earlier runs: what they told is a hint only."""
        if self.runs and self.digest != digest:
            (aa, ab), (_, bb) = self.cov
            self.cov = [[aa + CHANGED_STD**2, ab], [ab, bb + CHANGED_STD**2]]
        self.digest = digest


@dataclass(frozen=True)
class ProfileRow:
    """What is known of a kernel on a device kind."""

    kernel: str
    device: str
    runs: int
    fixed_s: float
    per_byte_s: float
    spread: float  # deviation of the logarithm of the time of a small input

    def __str__(self) -> str:
        per_mb = f" + {show(self.per_byte_s * 1e6, 'seconds')}/MB"
        return (
            f"{self.kernel} on {self.device}: {show(self.fixed_s, 'seconds')}{per_mb}, "
            f"times or over {math.exp(self.spread):.2f} ({self.runs} runs)"
        )


class Profiles(Mapping[tuple[str, str], Timing]):
    """Timings by kernel and device kind, in a file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._timings: dict[tuple[str, str], Timing] = {}
        if path is not None:
            self._timings = _load(path)

    def __getitem__(self, key: tuple[str, str]) -> Timing:
        return self._timings[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(list(self._timings))  # the loop may add to them meanwhile

    def __len__(self) -> int:
        return len(self._timings)

    def timing(self, kernel: str, device: str) -> Timing:
        """That of a kernel on a device kind; one that knows nothing if it never ran there."""
        return self._timings.setdefault((kernel, device), Timing())

    def tried(self, kernel: str, device: str) -> bool:
        """Whether it has ever run there."""
        found = self._timings.get((kernel, device))
        return found is not None and found.runs > 0

    @property
    def rows(self) -> list[ProfileRow]:
        """Those with runs, to be read by people."""
        return [
            ProfileRow(kernel, device, x.runs, x.fixed_s, x.per_byte_s, x.spread(0.0))
            for (kernel, device), x in sorted(self._timings.items())
            if x.runs
        ]

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows)) or "nothing has run yet"

    def content(self) -> dict[str, Any]:
        """All that is known, as the file has it."""
        timings = list(self._timings.items())  # the loop may add to them meanwhile
        entries = [{"kernel": kernel, "device": device, **asdict(x)} for (kernel, device), x in timings if x.runs]
        return {"format": FORMAT, "timings": entries}

    @classmethod
    def of(cls, content: dict[str, Any]) -> Profiles:
        """The inverse; raises what it will if that is not what profiles look like."""
        found = cls()
        found._timings = _read(content)
        return found

    def save(self) -> None:
        """Write the file, whole or not at all; a folder that cannot be written to is warned of."""
        if self.path is None:
            return
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(self.content(), indent=1))
            partial.replace(self.path)
        except OSError as error:
            text = f"what was learned about kernels could not be kept in {self.path}: {error.strerror}"
            warnings.warn(SymphonyWarning(text), stacklevel=2)


def default_path() -> Path:
    """Where profiles are kept."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "symphony" / "profiles.json"


def _load(path: Path) -> dict[tuple[str, str], Timing]:
    """What a file holds; nothing, with a warning, if it cannot be understood: it can be learned again."""
    try:
        return _read(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        text = f"{path} holds no profiles of this version ({error}); kernels are learned anew"
        warnings.warn(SymphonyWarning(text), stacklevel=2)
        return {}


def _read(content: Any) -> dict[tuple[str, str], Timing]:
    if content["format"] != FORMAT:
        raise ValueError(f"its format is {content['format']!r}")
    found = {}
    for entry in content["timings"]:
        rest = {name: value for name, value in entry.items() if name not in ("kernel", "device")}
        timing = Timing(**rest)
        if not np.isfinite([*timing.mean, *np.ravel(timing.cov), timing.noise, timing.weight]).all():
            raise ValueError("a number is not finite")
        if np.shape(timing.cov) != (2, 2) or len(timing.mean) != 2 or timing.weight <= 0:
            raise ValueError("a belief has another shape")
        found[str(entry["kernel"]), str(entry["device"])] = timing
    return found
