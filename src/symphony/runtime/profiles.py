"""Profiles of kernels, learned from their runs: times and demands for memory (`estimation/kernels.py`), and machine
figures during the runs (`machine_monitor.py`).

Saved as JSON in `$XDG_DATA_HOME/symphony` (`~/.local/share/…`).
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from symphony.estimation.kernels import MIN_RUN_S, SHARE_LEVELS, Demand, Load, Timing, load_of
from symphony.estimation.runs import PastRun
from symphony.problem.errors import DataError, SymphonyWarning
from symphony.problem.units import show

PROFILES_FORMAT = "symphony.profiles/1"
MAX_LOG_S = 100.0  # of the logarithm of a time in seconds: what is beyond is a damaged file
FIRST_RUNS = 3  # first runs in their processes that are enough where there are no other runs
BAD_FILE_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  # of a bad file
PCIE_FIGURE = "pcie"  # bytes a second, both directions
GPU_BUSY_FIGURE = "gpu taken"  # share of the time in which the GPU computed

MAX_CODES_PER_KERNEL = 16  # profiles of a kernel whose code has changed; the oldest are dropped
_NAME_AND_CODE = re.compile(r"(.+)@([0-9a-f]{8})")

KernelOnDevice = tuple[str, str]  # key of a kernel, name of a device kind


def kernel_name(key: str) -> str:
    """The name in the key of a kernel, without the digest of its code; profiles of older versions have only names."""
    return found[1] if (found := _NAME_AND_CODE.fullmatch(key)) else key


def _is_of_script(name: str) -> bool:
    """True for a function of a script: another script may have another one of the same name."""
    return name.rpartition(":")[2].startswith("__main__.")


@dataclass
class FigureStatistics:
    """Mean and variation of a machine figure over the runs of a kernel (Welford's algorithm)."""

    runs: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared deviations from the mean

    def add(self, value: float) -> None:
        self.runs += 1
        deviation = value - self.mean
        self.mean += deviation / self.runs
        self.squares += deviation * (value - self.mean)


@dataclass(frozen=True)
class ProfileRow:
    """The profile of a kernel on a device kind, for display."""

    kernel: str
    device: str
    runs: int
    fixed_s: float
    per_byte_s: float
    spread: float  # standard deviation of the logarithm of the run time of a small input
    memory: float  # its demand, as a share of the memory's bandwidth …
    memory_band: tuple[float, float]  # … and the 90% credible interval
    beside: int  # runs beside other kernels, which inform the demand
    counted: bool  # its traffic was measured
    seen: Mapping[str, FigureStatistics]  # machine figures while it ran

    @property
    def memory_shown(self) -> str:
        """Demand for memory bandwidth as text; empty until it ran beside others or its traffic was measured."""
        low, high = self.memory_band
        return f"{self.memory:.2f} ({low:.2f} to {high:.2f})" if self.beside or self.counted else ""

    @property
    def shown(self) -> str:
        """Machine figures as text: bytes a second, or shares of the time."""
        rates = {name: show(float(f"{x.mean:.3g}"), "bytes/s") for name, x in self.seen.items() if name == PCIE_FIGURE}
        shares = {name: f"{x.mean:.0%}" for name, x in self.seen.items() if name != PCIE_FIGURE}
        return ", ".join(f"{name} {value}" for name, value in (rates | shares).items())

    def __str__(self) -> str:
        per_mb = f" + {show(self.per_byte_s * 1e6, 'seconds')}/MB"
        memory = f"; {self.memory_shown} of the memory" if self.memory_shown else ""
        memory += f"; meanwhile: {self.shown}" if self.seen else ""
        return (
            f"{self.kernel} on {self.device}: {show(self.fixed_s, 'seconds')}{per_mb}, "
            f"× or ÷ {math.exp(self.spread):.2f} ({self.runs} runs){memory}"
        )


class EffectOfOthers(NamedTuple):
    """What is believed of the effect on a run of others, who are not ours."""

    log: float = 0.0  # logarithm of the factor on its time …
    std: float = 0.0  # … and its deviation
    memory: tuple[float, float] = (0.0, 0.0)  # what they ask of the memory, as a share of the bandwidth; deviation


NO_EFFECT = EffectOfOthers()


class Profiles(Mapping[KernelOnDevice, Timing]):
    """Profiles of all kernels, as a mapping to their timings. Saved in `path`; None = in memory only.

    A file that cannot be read is ignored with a warning: profiles are learned again. The loop's thread changes them;
    other threads may read, and call `counted`.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._timings: dict[KernelOnDevice, Timing] = {}
        self._demands: dict[KernelOnDevice, Demand] = {}
        self._seen: dict[KernelOnDevice, dict[str, FigureStatistics]] = {}
        if path is not None:
            try:
                self._fill(json.loads(path.read_bytes()))
            except (FileNotFoundError, NotADirectoryError):
                pass
            except BAD_FILE_ERRORS as error:
                text = f"{path} holds no profiles of this version ({error}); kernels are learned again from their runs"
                warnings.warn(SymphonyWarning(text), stacklevel=2)

    @classmethod
    def read(cls, path: Path) -> Profiles:
        """Profiles of an exported file. Raises `DataError` if it holds none."""
        try:
            return cls.of(json.loads(path.read_bytes()))
        except BAD_FILE_ERRORS as error:
            raise DataError(
                f"it holds no profiles of this version ({error})",
                where=str(path),
                hint="name a file that symphony profile -o wrote",
            ) from None

    @classmethod
    def of(cls, content: dict[str, Any]) -> Profiles:
        """Inverse of `content`. Raises one of `BAD_FILE_ERRORS` if the content is invalid."""
        profiles = cls()
        profiles._fill(content)
        return profiles

    def _fill(self, content: Any) -> None:
        """Read all of `content`, or change nothing."""
        if content["format"] != PROFILES_FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        timings = {key: _timing(fields) for key, fields in _entries(content["timings"])}
        demands = {key: _demand(fields) for key, fields in _entries(content.get("demands", ()))}
        seen = {
            key: {name: _figure(value) for name, value in fields.items()}
            for key, fields in _entries(content.get("seen", ()))
        }
        self._timings, self._demands, self._seen = timings, demands, seen

    def __getitem__(self, key: tuple[str, str]) -> Timing:
        return self._timings[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(list(self._timings))  # a copy: the loop's thread may add to them

    def __len__(self) -> int:
        return len(self._timings)

    def timing(self, kernel: str, device: str) -> Timing:
        """The timing of a kernel on a device kind; the prior if it never ran there."""
        if (kernel, device) not in self._timings:
            self._timings[kernel, device] = Timing()
        return self._timings[kernel, device]

    def believed(self, kernel: str, device: str) -> Timing:
        """The same, to be read only: from any thread."""
        return self._timings.get((kernel, device)) or Timing()

    def demand(self, kernel: str, device: str) -> Demand:
        """The demand of a kernel on a device kind; the prior if it never ran there."""
        return self._demands.get((kernel, device)) or Demand()

    def counted(self, kernel: str, device: str, share: float, precision: float, least: bool = False) -> None:
        """Set the measured traffic of a kernel, as a share of the memory's bandwidth. From any thread."""
        demand = self._demands.setdefault((kernel, device), Demand())
        demand.counted, demand.least = (share, precision), least

    def load_beside(self, ran: PastRun, company: Sequence[tuple[PastRun, float]]) -> Load:
        """What runs beside one asked of the memory, each with the share of its time, as far as that is known."""
        return load_of(ran, company, self._demands)

    def seen(self, kernel: str, device: str) -> Mapping[str, FigureStatistics]:
        """Machine figures while a kernel ran on a device kind, by name."""
        return self._seen.get((kernel, device), {})

    def learn(
        self,
        ran: PastRun,
        size: float,
        seconds: float,
        *,
        busy_s: float = math.nan,
        cold: bool = False,
        company: Sequence[tuple[PastRun, float]] = (),
        others: EffectOfOthers = NO_EFFECT,
        seen: Mapping[str, float] | None = None,
        timed: bool = False,
    ) -> None:
        """Learn from one run.

        `size`: bytes of its inputs. `busy_s`: its CPU time, NaN = unknown. `cold`: the first run of the kernel in its
        process. `company`: runs beside it, each with the share of its time. `others`: what those who are not ours did
        to it. `seen`: machine figures. `timed`: its timing has learned from it.
        """
        key, timing = (ran.kernel, ran.kind), self.timing(ran.kernel, ran.kind)
        for name, value in (seen or {}).items():
            self._seen.setdefault(key, {}).setdefault(name, FigureStatistics()).add(value)
        if seconds < MIN_RUN_S or cold:
            timing.learn(size, seconds, shared=bool(company), cold=cold)  # such a run is never `timed`
            return
        demand = self._demands.get(key) or self._demands.setdefault(key, Demand())  # `counted` may add it meanwhile
        load = self.load_beside(ran, company)
        if not timed:
            longer, unsure = demand.slower(load)
            longer, unsure = longer + others.log, math.hypot(unsure, others.std)
            timing.learn(size, seconds / math.exp(longer), shared=unsure > timing.noise_std)
        demand.learn(size, seconds if math.isnan(busy_s) else max(busy_s, MIN_RUN_S), load.plus(*others.memory))

    def doubt(self, kernel: str, device: str, digest: str) -> None:
        """Make the profile less certain if it was learned from code with another digest.

        Code that never ran begins with the last profile of its name, unless that may be of another script.
        """
        name = kernel_name(kernel)
        everything: tuple[dict[KernelOnDevice, Any], ...] = (self._timings, self._demands, self._seen)
        if (kernel, device) not in self._timings:
            others = [one for one in self._timings if one[1] == device and kernel_name(one[0]) == name]
            last = others[-1] if others else None
            if last and (self._timings[last].digest == digest or not _is_of_script(name)):
                for profiles in everything:
                    if last in profiles:
                        profiles[kernel, device] = copy.deepcopy(profiles[last])
            for oldest in others[: max(len(others) + 1 - MAX_CODES_PER_KERNEL, 0)]:
                for profiles in everything:
                    profiles.pop(oldest, None)
        timing = self.timing(kernel, device)
        if (kernel, device) in self._demands and timing.digest != digest:
            self._demands[kernel, device].doubt()
        timing.doubt(digest)

    def tried(self, kernel: str, device: str, warm: bool = False) -> bool:
        """True if the kernel has run there; with `warm`, not only as the first run of a process, which may compile.

        Where every job has its own processes, all runs are first runs: then `FIRST_RUNS` of them are enough.
        """
        timing = self._timings.get((kernel, device))
        if timing is None or not warm:
            return timing is not None and timing.runs > 0
        return timing.warm > 0 or timing.runs >= FIRST_RUNS

    @property
    def rows(self) -> list[ProfileRow]:
        """Profiles of kernels that have run, sorted, for display."""
        found = [(key, timing) for key, timing in sorted(self._timings.items()) if timing.runs]
        names = Counter((kernel_name(kernel), device) for (kernel, device), _ in found)
        return [self._row(*key, timing, several=names[kernel_name(key[0]), key[1]] > 1) for key, timing in found]

    def _row(self, kernel: str, device: str, timing: Timing, several: bool) -> ProfileRow:
        """A row; with `several`, there are several codes of this name, and the digest tells them apart."""
        demand = self.demand(kernel, device)
        return ProfileRow(
            kernel if several else kernel_name(kernel),
            device,
            timing.runs,
            timing.fixed_s,
            timing.per_byte_s,
            timing.spread(0.0),
            demand.share,
            demand.band,
            beside=demand.runs,
            counted=demand.counted[1] > 0,
            seen=self.seen(kernel, device),
        )

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows)) or "nothing has run yet"

    def content(self) -> dict[str, Any]:
        """All profiles, as they are saved in the file."""
        # Copies: the loop's thread may add to them meanwhile.
        timings = {key: asdict(timing) for key, timing in [*self._timings.items()] if timing.runs}
        demands = {key: _plain(demand) for key, demand in [*self._demands.items()]}
        seen = {
            key: {name: asdict(figure) for name, figure in [*figures.items()]} for key, figures in [*self._seen.items()]
        }
        content: dict[str, Any] = {"format": PROFILES_FORMAT}
        for part, profiles in (("timings", timings), ("demands", demands), ("seen", seen)):
            content[part] = [{"kernel": kernel, "device": device, **x} for (kernel, device), x in profiles.items()]
        return content

    def save(self) -> None:
        """Write the file atomically. Warns if the folder is not writable."""
        if self.path is None:
            return
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(self.content(), indent=1))
            partial.replace(self.path)
        except OSError as error:
            text = f"profiles of kernels could not be saved in {self.path}: {error.strerror}"
            warnings.warn(SymphonyWarning(text), stacklevel=2)


def default_path() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "symphony" / "profiles.json"


def _entries(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[KernelOnDevice, dict[str, Any]]]:
    for entry in entries:
        fields = {name: value for name, value in entry.items() if name not in ("kernel", "device")}
        yield (str(entry["kernel"]), str(entry["device"])), fields


def _timing(fields: Mapping[str, Any]) -> Timing:
    timing = Timing(**fields)
    if not np.isfinite(
        [*timing.mean, *np.ravel(timing.cov), timing.noise, timing.weight, *timing.around, *timing.behind, timing.ahead]
    ).all():
        raise ValueError("a timing has a number that is not finite")
    if np.shape(timing.cov) != (2, 2) or len(timing.mean) != 2 or max(map(abs, timing.mean)) > MAX_LOG_S:
        raise ValueError("a timing has an invalid shape or is out of range")
    if timing.weight <= 0:
        raise ValueError("a timing has an invalid shape or weight")
    return timing


def _figure(fields: Mapping[str, Any]) -> FigureStatistics:
    figure = FigureStatistics(**fields)
    if not np.isfinite([figure.mean, figure.squares]).all() or figure.runs < 1:
        raise ValueError("a machine figure is invalid")
    return figure


def _plain(demand: Demand) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(demand).items()}


def _demand(fields: Mapping[str, Any]) -> Demand:
    arrays: dict[str, Any] = {name: np.asarray(x) if isinstance(x, list) else x for name, x in fields.items()}
    demand = Demand(**arrays)
    tables = [demand.weights, demand.fixed, demand.slope, demand.fixed_var, demand.both_cov, demand.slope_var]
    if any(np.shape(table) != SHARE_LEVELS.shape for table in tables):
        raise ValueError("a demand has a table of another shape")
    if not np.isfinite(tables).all() or min(demand.weights) < 0 or sum(demand.weights) <= 0 or demand.weight <= 0:
        raise ValueError("a demand has an invalid number")
    share, precision = demand.counted
    if not np.isfinite([share, precision]).all() or min(share, precision) < 0:
        raise ValueError("a demand has invalid measured traffic")
    demand.counted = float(share), float(precision)
    return demand
