"""Who counts an event: the PMU, the kernel itself, or a GPU."""

from __future__ import annotations

import re
from typing import Literal

from symphony.telemetry.expressions import key
from symphony.telemetry.naming import PRECISION_MODIFIERS, PRIVILEGE_MODIFIERS, is_software

Kind = Literal["hardware", "software", "kernel", "gpu"]

_KERNEL_PREFIXES = ("psi.", "cgroup.", "sched.", "process.", "stat.", "vm.", "net.")
_GPU_PREFIXES = ("nvml.", "gpm.")
_UNIT_SUFFIXES = {"_us": "us", "_ns": "ns", "_byte_s": "byte s", "_bytes": "bytes", "_mj": "mJ"}
_TRACEPOINT = re.compile(
    rf"[\w-]+:(?![{PRIVILEGE_MODIFIERS}{PRECISION_MODIFIERS}]+$)[\w-]+"
)  # and no modifiers, whose letters have a case


def kind(name: str) -> Kind:
    """Who counts an event."""
    plain = key(name)
    if plain.startswith(_KERNEL_PREFIXES):
        return "kernel"
    if plain.startswith(_GPU_PREFIXES):
        return "gpu"
    return "software" if is_software(plain) or _TRACEPOINT.fullmatch(name.strip()) else "hardware"


def unit(name: str) -> str:
    """In what the kernel and the GPUs give a figure, by the end of its name; "" for plain counts."""
    if kind(name) not in ("kernel", "gpu"):
        return ""
    return next((unit for end, unit in _UNIT_SUFFIXES.items() if key(name).endswith(end)), "")
