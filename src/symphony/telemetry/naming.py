"""perf's names of events (`cycles`, `cycles:u`, `cpu_core/cycles/k`), which names mean one event, and who counts it.

Some modifiers select *whose* events are counted: those of user space (`u`), the kernel (`k`), the hypervisor (`h`),
guests (`G`), the host (`H`), or only while not idle (`I`); `R` asks for latencies. Each combination of them is a
separate event. The other modifiers say *how* an event is counted (precise, pinned, exclusive, …) and do not change
which event it is.

perf adds modifiers itself: a user who may not count the kernel gets `cycles:u` for everything. Modifiers that all
events of a log share carry no information and are dropped. The same holds for kinds of cores.

Keys are in lower case, but `h` and `H` are two modifiers: a key has `+h` for `H`, and likewise for other capitals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from symphony.telemetry import architectural
from symphony.telemetry.events import Catalogue
from symphony.telemetry.expressions import key

SOFTWARE_EVENTS = frozenset(
    {
        "alignment-faults",
        "bpf-output",
        "cgroup-switches",
        "context-switches",
        "cpu-clock",
        "cpu-migrations",
        "cs",
        "dummy",
        "duration_time",
        "emulation-faults",
        "faults",
        "major-faults",
        "migrations",
        "minor-faults",
        "page-faults",
        "system_time",
        "task-clock",
        "user_time",
    }
)
_SYNONYMS = {  # two names of one event in `perf list`
    "branches": "branch-instructions",
    "cpu-cycles": "cycles",
    "cs": "context-switches",
    "faults": "page-faults",
    "idle-cycles-backend": "stalled-cycles-backend",
    "idle-cycles-frontend": "stalled-cycles-frontend",
    "migrations": "cpu-migrations",
}
PRIVILEGE_MODIFIERS, PRECISION_MODIFIERS = "ukhGHIR", "pPSDWebX"  # whose events; how they are counted
_MODIFIED = re.compile(rf"(.+?):([{PRIVILEGE_MODIFIERS}{PRECISION_MODIFIERS}+]+)", re.IGNORECASE)
_OF_PMU = re.compile(r"(cpu|cpu_core|cpu_atom)/([^/=,]+)/([a-zA-Z+]*)")
_KINDS = ("cpu_core", "cpu_atom")  # of cores
_PERF_CLOCKS = frozenset({"duration_time", "user_time", "system_time"})  # perf's own clocks, which take no modifiers

CounterKind = Literal["hardware", "software", "kernel", "gpu"]

_KERNEL_PREFIXES = ("psi.", "cgroup.", "sched.", "process.", "stat.", "vm.", "net.")
_GPU_PREFIXES = ("nvml.", "gpm.")
_UNIT_SUFFIXES = {"_us": "us", "_ns": "ns", "_byte_s": "byte s", "_bytes": "bytes", "_mj": "mJ"}
_TRACEPOINT = re.compile(rf"[\w-]+:(?![{PRIVILEGE_MODIFIERS}{PRECISION_MODIFIERS}]+$)[\w-]+")  # not event:modifiers


@dataclass(frozen=True)
class CommonScope:
    """What all events of a log have in common, and what therefore distinguishes none of them."""

    kind: str = ""  # of core
    whose: str = ""  # modifiers of the core's hardware events
    software: str = ""  # modifiers of software events


def bare(event: str) -> str:
    """The name of an event without modifiers and PMU; of two names that perf has for one event, always the same one."""
    return _parts(event)[1]


def is_software(event: str) -> bool:
    """Whether the kernel itself counts an event, without a PMU."""
    return bare(event).lower() in SOFTWARE_EVENTS


def kind(name: str) -> CounterKind:
    """Who counts an event: the PMU, the kernel in software (perf), the kernel's own files, or a GPU."""
    plain = key(name)
    if plain.startswith(_KERNEL_PREFIXES):
        return "kernel"
    if plain.startswith(_GPU_PREFIXES):
        return "gpu"
    return "software" if is_software(plain) or _TRACEPOINT.fullmatch(name.strip()) else "hardware"


def unit(name: str) -> str:
    """The unit of a kernel or GPU event, from the suffix of its name; "" for plain counts."""
    if kind(name) not in ("kernel", "gpu"):
        return ""
    return next((unit for end, unit in _UNIT_SUFFIXES.items() if key(name).endswith(end)), "")


def node(catalogue: Catalogue, event: str, alike: CommonScope = CommonScope()) -> str:
    """The key of an event: its name, with the modifiers and kind of core that are not common to all events."""
    if catalogue.find(event) is not None:
        return key(event)  # the listing has it under this name, modifiers included
    kind, name, whose = _parts(event)
    common = alike.software if name.lower() in SOFTWARE_EVENTS else alike.whose
    return _joined("" if kind == alike.kind else kind, name, "" if whose == common else whose)


def scope(catalogue: Catalogue, event: str) -> tuple[str, str]:
    """The kind of core and the modifiers. Relations that follow from event codes hold within one scope only."""
    if catalogue.find(event) is not None:
        return "", ""
    kind, _, whose = _parts(event)
    return kind, whose


def common_scope(catalogue: Catalogue, events: Iterable[str]) -> CommonScope:
    parts = [_parts(event) if catalogue.find(event) is None else ("", event, "") for event in events]
    own = [(kind, whose) for kind, name, whose in parts if _is_of_core(catalogue, name, whose)]
    software = [whose for _, name, whose in parts if name.lower() in SOFTWARE_EVENTS - _PERF_CLOCKS]
    return CommonScope(
        _only(kind for kind, _ in own if kind), _only(whose for _, whose in own), _only(whose for whose in software)
    )


def _only(values: Iterable[str]) -> str:
    """The value that all have; "" if they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else ""


def _is_of_core(catalogue: Catalogue, name: str, whose: str) -> bool:
    """Whether it is an event of the core. Other units cannot count by privilege, so they have no modifiers."""
    if name.lower() in SOFTWARE_EVENTS:
        return False
    listed = catalogue.find(name) or architectural.CATALOGUE.find(name)
    return listed.core if listed else bool(whose)


def _parts(event: str) -> tuple[str, str, str]:
    """The kind of core ("" if there is only one), the name, and the modifiers that select whose events are counted."""
    name = event.strip()
    kind, modifiers = "", ""
    if found := _OF_PMU.fullmatch(name):
        kind, name, modifiers = found[1] if found[1] in _KINDS else "", found[2], found[3]
    elif found := _MODIFIED.fullmatch(name):
        name, modifiers = found[1], found[2]
        if inside := _OF_PMU.fullmatch(name):
            kind, name = inside[1] if inside[1] in _KINDS else "", inside[2]
    return kind, _SYNONYMS.get(name.lower(), name), _privilege_modifiers(modifiers)


def _privilege_modifiers(modifiers: str) -> str:
    """Those that select whose events are counted, each once and in order."""
    spelled = re.sub(r"\+(.)", lambda found: found[1].upper(), modifiers)
    meant = {letter if letter in PRIVILEGE_MODIFIERS else letter.upper() for letter in spelled}
    return "".join(letter for letter in PRIVILEGE_MODIFIERS if letter in meant)


def _joined(kind: str, name: str, whose: str) -> str:
    whose = re.sub(r"[A-Z]", lambda found: f"+{found[0].lower()}", whose)
    if kind:
        return key(f"{kind}/{name}/{whose}")
    return key(f"{name}:{whose}" if whose else name)
