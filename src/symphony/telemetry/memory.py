"""Which counters of this machine count the traffic of its memories, in perf's syntax.

Memory controllers and data fabrics count all traffic, whatever causes it. If the kernel offers none, misses of the
last-level cache are a lower bound: they exclude prefetches and write-backs. The generic event `cache-misses` means the
last level on Intel's CPUs only; other CPUs count another cache by that name.

The names are the kernel's, in /sys/bus/event_source/devices, and need no catalogue; codes are those of AMD's listings.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from symphony.telemetry import machine
from symphony.telemetry.events import Catalogue, Event, Metric
from symphony.telemetry.reading import Model
from symphony.telemetry.sources.perf import PerfSource

CACHE_LINE_BYTES = 64.0  # bytes per count, unless the kernel states another scale
BANDWIDTH = "memory_bandwidth_total"  # the name in `rows.toml`; in MB/s
NOT_COUNTED = "not counted: the kernel offers no counters for it (a virtual machine?)"
_UNIT_BYTES = {"MiB": float(1 << 20), "KiB": 1024.0, "MB": 1e6, "Bytes": 1.0, "bytes": 1.0}


@dataclass(frozen=True)
class _MemoryUnit:
    """A unit with counters, and the events to count."""

    device: str  # its device, or the common prefix of several
    terms: tuple[str, ...]  # between perf's slashes: the kernel's names of events, or codes
    cpus: tuple[str, ...] = ()  # patterns of CPU ids; () = any
    least: bool = False  # whether the count is a lower bound


# eight channels share four counters
_AMD_DF = tuple(f"event=0x{code:x},umask=0x38" for code in range(0x07, 0x200, 0x40))
_MEMORY_UNITS = (
    _MemoryUnit("uncore_imc", ("cas_count_read", "cas_count_write")),  # Intel, servers
    _MemoryUnit("uncore_imc_free_running", ("data_read", "data_write")),  # Intel, others
    _MemoryUnit("uncore_imc", ("data_reads", "data_writes")),  # Intel, older ones
    _MemoryUnit("amd_umc", ("event=0xa",)),  # Zen 4 and later
    _MemoryUnit("amd_df", _AMD_DF, ("AuthenticAMD-23-.+", "AuthenticAMD-25-[245]?[[:xdigit:]]")),  # Zen 1 to 3
    _MemoryUnit("armv8_pmuv3", ("ll_cache_miss_rd",), least=True),
    _MemoryUnit("cpu", ("cache-misses",), ("GenuineIntel-.+",), least=True),
)


@dataclass(frozen=True)
class MemoryEvents:
    """The events that count memory traffic. perf calls them `memory.0`, `memory.1`, …"""

    words: tuple[str, ...]  # in perf's syntax
    scale: float = 1.0  # one count is so many …
    unit: str = ""  # … of this unit, in which perf prints it
    least: bool = False  # whether the sum is a lower bound

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"memory.{number}" for number in range(len(self.words)))

    @property
    def model(self) -> Model:
        """A model whose only knowledge is the number of bytes per count."""
        events = tuple(Event(name, "memory", scale=self.scale, scale_unit=self.unit) for name in self.names)
        each = self.scale * _UNIT_BYTES[self.unit] if self.unit else CACHE_LINE_BYTES
        metric = Metric(BANDWIDTH, f"{each!r} * ({' + '.join(self.names)}) / 1e6 / duration_time", scale_unit="MB/s")
        return Model(Catalogue("memory", events, (metric,)), identities=())

    def source(self, interval_ms: int, perf: str = "perf") -> PerfSource:
        """A perf that counts these events for the whole machine, by socket."""
        groups = [[word] for word in self.words]
        return PerfSource(groups, system_wide=True, per_socket=True, interval_ms=interval_ms, apart=True, perf=perf)

    def __str__(self) -> str:
        least = ", which is a lower bound" if self.least else ""
        return f"counted by {self.words[0].partition('/')[0]}, if perf is installed and permitted to{least}"


def at_hand(root: Path = Path("/")) -> MemoryEvents | None:
    """How this machine's memory traffic is counted; None if the kernel offers no counters, as in most guests."""
    devices = root / "sys/bus/event_source/devices"
    try:
        found = sorted(os.listdir(devices))
    except OSError:
        return None
    for way in _MEMORY_UNITS:
        own = [name for name in found if name == way.device or name.removeprefix(f"{way.device}_").isdecimal()]
        if not own or (way.cpus and not any(machine.matches(cpu, machine.cpuid(root)) for cpu in way.cpus)):
            continue
        named = devices / own[0] / "events" / way.terms[0]
        if "=" in way.terms[0] or named.exists():
            words = (f"{way.device}/{term},name=memory.{number}/" for number, term in enumerate(way.terms))
            return MemoryEvents(tuple(words), *_worth(named), way.least)
    return None


def memory_traffic() -> str:
    """How this machine's memory traffic is counted in real runs, as a phrase."""
    return str(at_hand() or NOT_COUNTED)


def _worth(event: Path) -> tuple[float, str]:
    """Scale and unit of a count as the kernel states them; (1, "") if it states none, or an unknown unit."""
    try:
        scale = float(event.with_name(f"{event.name}.scale").read_text(encoding="ascii"))
        unit = event.with_name(f"{event.name}.unit").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return 1.0, ""
    return (scale, unit) if unit in _UNIT_BYTES and 0 < scale < float("inf") else (1.0, "")
