"""Names of events as perf has them: `cycles`, `cycles:u`, `cpu_core/cycles/k`, and which of them mean one event.

perf adds modifiers of its own: who may count only programs, and not the kernel, sees `cycles:u` throughout. Where all
events of a log have the same, they say nothing, and are left out. Where `cycles:u` stands beside `cycles:k`, or the
counts of one kind of core beside those of another, each is an event of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from symphony.telemetry import architectural
from symphony.telemetry.events import Catalogue
from symphony.telemetry.expressions import key

SOFTWARE = frozenset(
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
_MODIFIED = re.compile(r"(.+?):([ukhpPGHSDIWebR]+)", re.IGNORECASE)
_OF_PMU = re.compile(r"(cpu|cpu_core|cpu_atom)/([^/=,]+)/([a-zA-Z]*)")
_WHOSE = "ukhGHI"  # modifiers that say whose events are counted; others say how
_KINDS = ("cpu_core", "cpu_atom")  # of cores


def bare(event: str) -> str:
    """The name of an event without modifiers and the CPU's own PMU: as it was asked for, whatever perf made of it."""
    return _parts(event)[1]


def is_software(event: str) -> bool:
    """Whether the kernel itself counts an event, so that no PMU is needed."""
    return bare(event).lower() in SOFTWARE


def whole(event: str) -> str:
    """The key of an event with all that says what is counted: the kind of core, and whose events."""
    return _joined(*_parts(event))


def nodes(catalogue: Catalogue, events: Iterable[str]) -> dict[str, str]:
    """Keys of the events that columns count, by the keys of the columns' names."""
    parts = {key(event): _parts(event) for event in events}
    # What the listing has with its modifiers is an event by that name.
    parts |= {name: ("", name, "") for name in parts if catalogue.find(name) is not None}
    hardware = [(kind, whose) for kind, name, whose in parts.values() if _is_of_core(catalogue, name, whose)]
    several_kinds = len({kind for kind, _ in hardware if kind}) > 1
    several = len({whose for _, whose in hardware}) > 1
    found = {
        name: _joined(kind if several_kinds else "", own, whose if several else "")
        for name, (kind, own, whose) in parts.items()
    }
    return found | {node: node for node in found.values()}


def _is_of_core(catalogue: Catalogue, name: str, whose: str) -> bool:
    """Whether it is an event of the core. Outside it nobody can tell whose events are, so no modifiers are missing."""
    if name.lower() in SOFTWARE:
        return False
    listed = catalogue.find(name) or architectural.CATALOGUE.find(name)
    return listed.core if listed else bool(whose)


def _parts(event: str) -> tuple[str, str, str]:
    """The kind of core ("" if there is one only), the name, and the modifiers that say whose events are counted."""
    name = event.strip()
    kind, modifiers = "", ""
    if found := _OF_PMU.fullmatch(name):
        kind, name, modifiers = found[1] if found[1] in _KINDS else "", found[2], found[3]
    elif found := _MODIFIED.fullmatch(name):
        name, modifiers = found[1], found[2]
        if inside := _OF_PMU.fullmatch(name):
            kind, name = inside[1] if inside[1] in _KINDS else "", inside[2]
    return kind, name, "".join(letter for letter in modifiers if letter in _WHOSE or letter in _WHOSE.lower())


def _joined(kind: str, name: str, whose: str) -> str:
    if kind:
        return key(f"{kind}/{name}/{whose}")
    return key(f"{name}:{whose}" if whose else name)
