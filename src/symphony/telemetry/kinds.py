"""Who counts an event: the PMU, the kernel itself, or a GPU."""

from __future__ import annotations

import re
from typing import Literal

from symphony.telemetry.expressions import key
from symphony.telemetry.sources.perf import is_software

Kind = Literal["hardware", "software", "kernel", "gpu"]

_KERNEL = ("psi.", "cgroup.", "sched.", "process.", "stat.", "vm.", "net.")
_GPU = ("nvml.", "gpm.")
_TRACEPOINT = re.compile(r"[\w-]+:(?![ukhpGHSDIWebR]+$)[\w-]+")  # and no modifiers, whose letters have a case


def kind(name: str) -> Kind:
    """Who counts an event."""
    plain = key(name)
    if plain.startswith(_KERNEL):
        return "kernel"
    if plain.startswith(_GPU):
        return "gpu"
    return "software" if is_software(plain) or _TRACEPOINT.fullmatch(name.strip()) else "hardware"
