"""What was learned of kernels by running them: how long they take (`timing.py`), what they ask of memory (`demand.py`),
and what the machine told of itself meanwhile (`machine_monitor.py`).

Kept as JSON in `$XDG_DATA_HOME/symphony` (`~/.local/share/…`).
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from symphony.problem.errors import DataError, SymphonyWarning
from symphony.problem.units import show
from symphony.runtime.demand import MIN_RUN_S, SHARE_LEVELS, Demand, PastRun, load_of
from symphony.runtime.run_figures import PCIE_FIGURE, FigureStatistics
from symphony.runtime.timing import Timing

PROFILES_FORMAT = "symphony.profiles/1"
FIRST_RUNS = 3  # first runs of processes that tell enough where there are no others
BAD_FILE_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  # what a bad file raises


@dataclass(frozen=True)
class ProfileRow:
    """What is known of a kernel on a device kind."""

    kernel: str
    device: str
    runs: int
    fixed_s: float
    per_byte_s: float
    spread: float  # deviation of the logarithm of the time of a small input
    memory: float  # share of the memory's bandwidth that it asks for …
    memory_band: tuple[float, float]  # … and what the runs have not ruled out, at 90%
    beside: int  # runs beside others, which told
    counted: bool  # whether its traffic was counted
    seen: Mapping[str, FigureStatistics]  # what the machine told of itself while it ran, by figure

    @property
    def memory_shown(self) -> str:
        """What it asks of the memory, for people; nothing until it ran beside others, or its traffic was counted."""
        least, most = self.memory_band
        return f"{self.memory:.2f} ({least:.2f} to {most:.2f})" if self.beside or self.counted else ""

    @property
    def shown(self) -> str:
        """What the machine told, for people: bytes a second, or shares of the time."""
        rates = {name: show(float(f"{x.mean:.3g}"), "bytes/s") for name, x in self.seen.items() if name == PCIE_FIGURE}
        shares = {name: f"{x.mean:.0%}" for name, x in self.seen.items() if name != PCIE_FIGURE}
        return ", ".join(f"{name} {value}" for name, value in (rates | shares).items())

    def __str__(self) -> str:
        per_mb = f" + {show(self.per_byte_s * 1e6, 'seconds')}/MB"
        memory = f"; {self.memory_shown} of the memory" if self.memory_shown else ""
        memory += f"; meanwhile: {self.shown}" if self.seen else ""
        return (
            f"{self.kernel} on {self.device}: {show(self.fixed_s, 'seconds')}{per_mb}, "
            f"times or over {math.exp(self.spread):.2f} ({self.runs} runs){memory}"
        )


class Profiles(Mapping[tuple[str, str], Timing]):
    """Timings by kernel and device kind, in a file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._timings: dict[tuple[str, str], Timing] = {}
        self._demands: dict[tuple[str, str], Demand] = {}
        self._seen: dict[tuple[str, str], dict[str, FigureStatistics]] = {}
        if path is not None:
            self._timings, self._demands, self._seen = _load(path)

    @classmethod
    def read(cls, path: Path) -> Profiles:
        """Those of a file that somebody named: unlike one's own, it has to hold some."""
        made = cls()
        try:
            made._timings, made._demands, made._seen = _read(json.loads(path.read_bytes()))
        except BAD_FILE_ERRORS as error:
            raise DataError(
                f"it holds no profiles of this version ({error})",
                where=str(path),
                hint="name a file that symphony profile -o wrote",
            ) from None
        return made

    def __getitem__(self, key: tuple[str, str]) -> Timing:
        return self._timings[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(list(self._timings))  # the loop may add to them meanwhile

    def __len__(self) -> int:
        return len(self._timings)

    def timing(self, kernel: str, device: str) -> Timing:
        """That of a kernel on a device kind; one that knows nothing if it never ran there."""
        if (kernel, device) not in self._timings:
            self._timings[kernel, device] = Timing()
        return self._timings[kernel, device]

    def demand(self, kernel: str, device: str) -> Demand:
        """What a kernel asks of memory on a device kind; as if it had never run, if it did not."""
        return self._demands.get((kernel, device)) or Demand()

    def counted(self, kernel: str, device: str, share: float, precision: float, least: bool = False) -> None:
        """Take in what its traffic is, as a share of the memory's bandwidth: the newest figure. From any thread."""
        asks = self._demands.setdefault((kernel, device), Demand())
        asks.counted, asks.least = (share, precision), least

    def seen(self, kernel: str, device: str) -> Mapping[str, FigureStatistics]:
        """What the machine told of itself while a kernel ran on a device kind, by figure."""
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
        seen: Mapping[str, float] | None = None,
    ) -> None:
        """Take in a run of so many seconds, in which the processor worked for `busy_s` (NaN = not known)."""
        for name, value in (seen or {}).items():
            self._seen.setdefault((ran.kernel, ran.kind), {}).setdefault(name, FigureStatistics()).add(value)
        if seconds < MIN_RUN_S or cold:
            self.timing(ran.kernel, ran.kind).learn(size, seconds, shared=bool(company), cold=cold)
            return
        key = ran.kernel, ran.kind
        demand = self._demands.get(key) or self._demands.setdefault(key, Demand())  # whoever counts may be first
        load = load_of(ran, company, self._demands)
        longer, unsure = demand.slower(load)
        timing = self.timing(ran.kernel, ran.kind)
        timing.learn(size, seconds / math.exp(longer), shared=unsure > timing.noise_std)
        demand.learn(size, seconds if math.isnan(busy_s) else max(busy_s, MIN_RUN_S), load)

    def doubt(self, kernel: str, device: str, digest: str) -> None:
        """The code of a kernel is this; if it was another, what was learned is not as sure."""
        timing = self.timing(kernel, device)
        if (kernel, device) in self._demands and timing.digest != digest:
            self._demands[kernel, device].doubt()
        timing.doubt(digest)

    def tried(self, kernel: str, device: str, warm: bool = False) -> bool:
        """Whether it has ever run there; `warm`: other than as the first of its process, which may have compiled.

        Where every job has processes of its own, there may never be another than first runs: some of them will do.
        """
        found = self._timings.get((kernel, device))
        if found is None or not warm:
            return found is not None and found.runs > 0
        return found.warm > 0 or found.runs >= FIRST_RUNS

    @property
    def rows(self) -> list[ProfileRow]:
        """Those with runs, to be read by people."""
        found = []
        for (kernel, device), x in sorted(self._timings.items()):
            asks = self.demand(kernel, device)
            seen = self.seen(kernel, device)
            told = (x.fixed_s, x.per_byte_s, x.spread(0.0), asks.share, asks.band, asks.runs, asks.counted[1] > 0, seen)
            found += [ProfileRow(kernel, device, x.runs, *told)] if x.runs else []
        return found

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows)) or "nothing has run yet"

    def content(self) -> dict[str, Any]:
        """All that is known, as the file has it."""
        timings = list(self._timings.items())  # the loop may add to them meanwhile
        entries = [{"kernel": kernel, "device": device, **asdict(x)} for (kernel, device), x in timings if x.runs]
        demands = [
            {"kernel": kernel, "device": device, **_plain(x)} for (kernel, device), x in [*self._demands.items()]
        ]
        seen = [
            {"kernel": kernel, "device": device, **{name: asdict(x) for name, x in [*figures.items()]}}
            for (kernel, device), figures in [*self._seen.items()]
        ]
        return {"format": PROFILES_FORMAT, "timings": entries, "demands": demands, "seen": seen}

    @classmethod
    def of(cls, content: dict[str, Any]) -> Profiles:
        """The inverse; raises what it will if that is not what profiles look like."""
        found = cls()
        found._timings, found._demands, found._seen = _read(content)
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


Known = tuple[
    dict[tuple[str, str], Timing], dict[tuple[str, str], Demand], dict[tuple[str, str], dict[str, FigureStatistics]]
]


def _load(path: Path) -> Known:
    """What a file holds; nothing, with a warning, if it cannot be understood: it can be learned again."""
    try:
        return _read(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}, {}, {}
    except BAD_FILE_ERRORS as error:
        text = f"{path} holds no profiles of this version ({error}); kernels are learned anew"
        warnings.warn(SymphonyWarning(text), stacklevel=2)
        return {}, {}, {}


def _read(content: Any) -> Known:
    if content["format"] != PROFILES_FORMAT:
        raise ValueError(f"its format is {content['format']!r}")
    timings, demands, seen = {}, {}, {}
    for entry in content["timings"]:
        timings[str(entry["kernel"]), str(entry["device"])] = _timing(_fields(entry))
    for entry in content.get("demands", ()):
        demands[str(entry["kernel"]), str(entry["device"])] = _demand(_fields(entry))
    for entry in content.get("seen", ()):
        figures = {name: _figure(value) for name, value in _fields(entry).items()}
        seen[str(entry["kernel"]), str(entry["device"])] = figures
    return timings, demands, seen


def _fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in ("kernel", "device")}


def _timing(fields: Mapping[str, Any]) -> Timing:
    timing = Timing(**fields)
    if not np.isfinite(
        [*timing.mean, *np.ravel(timing.cov), timing.noise, timing.weight, *timing.around, *timing.behind, timing.ahead]
    ).all():
        raise ValueError("a number is not finite")
    if np.shape(timing.cov) != (2, 2) or len(timing.mean) != 2 or timing.weight <= 0:
        raise ValueError("a belief has another shape")
    return timing


def _figure(fields: Mapping[str, Any]) -> FigureStatistics:
    figure = FigureStatistics(**fields)
    if not np.isfinite([figure.mean, figure.squares]).all() or figure.runs < 1:
        raise ValueError("a figure makes no sense")
    return figure


def _plain(asks: Demand) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(asks).items()}


def _demand(fields: Mapping[str, Any]) -> Demand:
    given: dict[str, Any] = {name: np.asarray(x) if isinstance(x, list) else x for name, x in fields.items()}
    asks = Demand(**given)
    tables = [asks.weights, asks.fixed, asks.slope, asks.fixed_var, asks.both_cov, asks.slope_var]
    if any(np.shape(table) != SHARE_LEVELS.shape for table in tables):
        raise ValueError("a belief about demands has another shape")
    if not np.isfinite(tables).all() or min(asks.weights) < 0 or sum(asks.weights) <= 0 or asks.weight <= 0:
        raise ValueError("a number of a demand makes no sense")
    share, precision = asks.counted
    if not np.isfinite([share, precision]).all() or min(share, precision) < 0:
        raise ValueError("counted traffic makes no sense")
    asks.counted = float(share), float(precision)
    return asks
