"""Events that Linux names alike on every machine: the catalogue for CPUs without a listing.

These are the kernel's generic events, which it translates for the CPU (`perf_event_open`'s hardware, software and cache
types). A CPU may lack some of them; only the kernel knows which.
"""

from __future__ import annotations

from symphony.telemetry.events import Catalogue, Event, Metric, Pmu

ARCHITECTURAL_NAME = "architectural"

_HARDWARE = {
    "cycles": (0, "Cycles of the core while it is not halted."),
    "instructions": (1, "Instructions retired."),
    "cache-references": (2, "Accesses that reach the last-level cache, as a rule."),
    "cache-misses": (3, "Accesses that miss the last-level cache, as a rule."),
    "branch-instructions": (4, "Branches retired."),
    "branch-misses": (5, "Branches retired that were predicted wrongly."),
    "bus-cycles": (6, "Cycles of the bus."),
    "stalled-cycles-frontend": (7, "Cycles in which no instruction could be fetched or decoded."),
    "stalled-cycles-backend": (8, "Cycles in which no instruction could be executed or retired."),
    "ref-cycles": (9, "Cycles at a constant frequency while the core is not halted."),
}
_SOFTWARE = {
    "cpu-clock": (0, 1e-6, "msec", "Time on CPUs, by a high-resolution timer."),
    "task-clock": (1, 1e-6, "msec", "Time on CPUs, of the task."),
    "page-faults": (2, 1.0, "", "Page faults."),
    "context-switches": (3, 1.0, "", "Switches from one task to another."),
    "cpu-migrations": (4, 1.0, "", "Moves of a task to another CPU."),
    "minor-faults": (5, 1.0, "", "Page faults that needed no disk."),
    "major-faults": (6, 1.0, "", "Page faults that needed the disk."),
}
_CACHES = {  # number in the kernel's encoding, and operations
    "L1-dcache": (0, ("load", "store", "prefetch")),
    "L1-icache": (1, ("load",)),
    "LLC": (2, ("load", "store", "prefetch")),
    "dTLB": (3, ("load", "store")),
    "iTLB": (4, ("load",)),
    "branch": (5, ("load",)),
    "node": (6, ("load", "store", "prefetch")),
}
_OPERATIONS = {"load": (0, "loads"), "store": (1, "stores"), "prefetch": (2, "prefetches")}


def _cache_events() -> list[Event]:
    found = []
    for cache, (number, operations) in _CACHES.items():
        for operation in operations:
            kind, plural = _OPERATIONS[operation]
            config = number | kind << 8
            found.append(_generic(f"{cache}-{plural}", 3, config, "cache", f"{cache}: {plural}."))
            misses = f"{cache}-{operation}-misses"
            found.append(_generic(misses, 3, config | 1 << 16, "cache", f"{cache}: {plural} that miss."))
    return found


def _generic(name: str, type_: int, config: int, topic: str, text: str) -> Event:
    terms = (("type", str(type_)), ("config", hex(config)))
    return Event(name, terms=terms, topic=topic, description=text)


def _software(name: str, config: int, scale: float, unit: str, text: str) -> Event:
    terms = (("type", "1"), ("config", hex(config)))
    return Event(name, unit="software", terms=terms, scale=scale, scale_unit=unit, topic="software", description=text)


_METRICS = (
    Metric("ipc", "instructions / cycles", groups=("summary",), description="Instructions for each cycle."),
    Metric("cpi", "cycles / instructions", groups=("summary",), description="Cycles for each instruction."),
    Metric(
        "branch_miss_rate",
        "branch\\-misses / branch\\-instructions",
        groups=("branch",),
        scale=100.0,
        scale_unit="%",
        threshold="branch_miss_rate > 0.05",
        description="Branches that were predicted wrongly.",
    ),
    Metric(
        "cache_miss_rate",
        "cache\\-misses / cache\\-references",
        groups=("cache",),
        scale=100.0,
        scale_unit="%",
        description="Accesses to the last-level cache that miss.",
    ),
    Metric(
        "cache_mpki",
        "1e3 * cache\\-misses / instructions",
        groups=("cache",),
        description="Misses of the last-level cache for each thousand instructions.",
    ),
    Metric(
        "l1d_miss_rate",
        "L1\\-dcache\\-load\\-misses / L1\\-dcache\\-loads",
        groups=("cache",),
        scale=100.0,
        scale_unit="%",
        description="Loads that miss the first-level data cache.",
    ),
    Metric(
        "stalled_backend",
        "stalled\\-cycles\\-backend / cycles",
        groups=("summary",),
        scale=100.0,
        scale_unit="%",
        description="Cycles in which the back end held instructions up.",
    ),
    Metric(
        "stalled_frontend",
        "stalled\\-cycles\\-frontend / cycles",
        groups=("summary",),
        scale=100.0,
        scale_unit="%",
        description="Cycles in which the front end had nothing to give.",
    ),
    Metric(
        "frequency",
        "cycles / duration_time / 1e9 / #num_cpus_online",
        groups=("summary",),
        scale_unit="GHz",
        description="Mean frequency of all CPUs, halted ones as zero, where all are counted.",
    ),
)

CATALOGUE = Catalogue(
    ARCHITECTURAL_NAME,
    events=(
        *(_generic(name, 0, config, "hardware", text) for name, (config, text) in _HARDWARE.items()),
        *_cache_events(),
        *(_software(name, *facts) for name, facts in _SOFTWARE.items()),
    ),
    metrics=_METRICS,
    # The minimum of CPUs of the last ten years. Software events need no counter.
    pmus=(Pmu("", 4, assumed=True), Pmu("software", 1 << 10)),
    groups={"summary": "The first things to look at.", "cache": "Caches.", "branch": "Branch prediction."},
    source="built in",
)
