"""Which counters of this machine tell what passes through its memories, as perf is asked for them.

Memory controllers and data fabrics count all traffic, whoever causes it. Where the kernel offers none, misses of the
last-level cache tell the least that it can have been: what is prefetched and written back is not among them. Generic
`cache-misses` are those of the last level on Intel's CPUs only; others count another cache by that name.

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

CACHE_LINE_BYTES = 64.0  # bytes that a count stands for, unless the kernel says otherwise
BANDWIDTH = "memory_bandwidth_total"  # as `rows.toml` knows it, in MB/s
NOT_COUNTED = "not counted, as the kernel offers no counters for it (a virtual machine?)"
_UNIT_BYTES = {"MiB": float(1 << 20), "KiB": 1024.0, "MB": 1e6, "Bytes": 1.0, "bytes": 1.0}


@dataclass(frozen=True)
class _MemoryUnit:
    """A unit with counters, and what it has to be asked for."""

    device: str  # its name, or how those of several begin
    terms: tuple[str, ...]  # between perf's slashes: names that the kernel has for them, or codes
    cpus: tuple[str, ...] = ()  # those only, by their ids; () = any
    least: bool = False  # whether there is more traffic than it counts


_AMD_DF = tuple(f"event=0x{code:x},umask=0x38" for code in range(0x07, 0x200, 0x40))  # eight channels, four counters
_MEMORY_UNITS = (
    _MemoryUnit("uncore_imc", ("cas_count_read", "cas_count_write")),  # Intel, servers
    _MemoryUnit("uncore_imc_free_running", ("data_read", "data_write")),  # Intel, others
    _MemoryUnit("uncore_imc", ("data_reads", "data_writes")),  # … and older ones
    _MemoryUnit("amd_umc", ("event=0xa",)),  # Zen 4 and later
    _MemoryUnit("amd_df", _AMD_DF, ("AuthenticAMD-23-.+", "AuthenticAMD-25-[245]?[[:xdigit:]]")),  # Zen 1 to 3
    _MemoryUnit("armv8_pmuv3", ("ll_cache_miss_rd",), least=True),
    _MemoryUnit("cpu", ("cache-misses",), ("GenuineIntel-.+",), least=True),
)


@dataclass(frozen=True)
class MemoryEvents:
    """What is counted of memories. Counts are called `memory.0`, `memory.1`, …"""

    words: tuple[str, ...]  # as perf takes them
    scale: float = 1.0  # a count is worth so many …
    unit: str = ""  # … of these, if perf prints it so
    least: bool = False  # whether there is more traffic than that

    @property
    def names(self) -> tuple[str, ...]:
        """What perf is to call them."""
        return tuple(f"memory.{number}" for number in range(len(self.words)))

    @property
    def model(self) -> Model:
        """By which readings are understood: all that is known is what a count is worth."""
        events = tuple(Event(name, "memory", scale=self.scale, scale_unit=self.unit) for name in self.names)
        each = self.scale * _UNIT_BYTES[self.unit] if self.unit else CACHE_LINE_BYTES
        metric = Metric(BANDWIDTH, f"{each!r} * ({' + '.join(self.names)}) / 1e6 / duration_time", scale_unit="MB/s")
        return Model(Catalogue("memory", events, (metric,)), identities=())

    def source(self, interval_ms: int, perf: str = "perf") -> PerfSource:
        """A perf that counts them for the whole machine, each socket by itself."""
        groups = [[word] for word in self.words]
        return PerfSource(groups, system_wide=True, per_socket=True, interval_ms=interval_ms, apart=True, perf=perf)

    def __str__(self) -> str:
        least = ", which is the least that it can be" if self.least else ""
        return f"counted by {self.words[0].partition('/')[0]}, if perf is installed and permitted to{least}"


def at_hand(root: Path = Path("/")) -> MemoryEvents | None:
    """How this machine's memory traffic is counted; None if the kernel offers nothing for it, as in most guests."""
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
    """What the kernel says that a count is worth, and in which unit; nothing if it does not, or in one of its own."""
    try:
        scale = float(event.with_name(f"{event.name}.scale").read_text(encoding="ascii"))
        unit = event.with_name(f"{event.name}.unit").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return 1.0, ""
    return (scale, unit) if unit in _UNIT_BYTES and 0 < scale < float("inf") else (1.0, "")
