"""The machine that is measured: the constants of metric expressions, and its CPU."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from symphony.problem.errors import InputError


@dataclass(frozen=True)
class Platform:
    """The values of the `#…` constants of expressions. Unknown ones are NaN, and so is every metric that needs them."""

    smt_on: bool = False  # several hardware threads of a core are in use
    core_wide: bool = False  # whole cores are counted, as by `perf stat -a`
    target_cpu: bool = False  # CPUs are counted, not processes
    num_cpus: float = 1  # hardware threads
    num_cpus_online: float = 1
    num_cores: float = 1
    num_dies: float = 1
    num_packages: float = 1
    slots: float = math.nan  # micro-operations that a core can start in a cycle (Arm)
    has_pmem: bool = False  # persistent memory
    system_tsc_freq: float = math.nan  # Hz
    cpuid: str = ""  # as in `mapfile.csv`; "" if unknown

    def constant(self, name: str) -> float:
        """The value of a constant such as `#num_packages`."""
        if name.lower() in ("#smt_on", "#system_tsc_freq"):  # as in perf, only these ignore case
            name = name.lower()
        field = name.removeprefix("#")
        if field not in _CONSTANTS:
            known = ", ".join(f"#{constant}" for constant in _CONSTANTS)
            raise InputError(f"there is no constant {name}", hint=f"constants are {known}")
        return float(getattr(self, field))

    def is_cpu(self, pattern: str) -> float:
        """perf's `strcmp_cpuid_str`: 1 if the CPU's id matches a pattern, 0 if not, NaN if the id is unknown."""
        return float(matches(pattern, self.cpuid)) if self.cpuid else math.nan


_CONSTANTS = tuple(field for field in Platform.__dataclass_fields__ if field != "cpuid")
_NUMBERS = tuple(name for name in _CONSTANTS if not isinstance(getattr(Platform(), name), bool))

# --- Which CPU it is ---------------------------------------------------------------------------------------

_VERSION = 0xF0000F  # of an Arm MIDR: variant and revision
_CLASSES = {"[:xdigit:]": "0-9a-fA-F", "[:digit:]": "0-9", "[:alpha:]": "a-zA-Z", "[:alnum:]": "0-9a-zA-Z"}


def matches(pattern: str, cpuid: str) -> bool:
    """Whether a pattern of `mapfile.csv` matches a CPU's id.

    Patterns are POSIX regular expressions for the whole id. On x86 an id is vendor-family-model-stepping, and patterns
    without a stepping match all steppings. On Arm an id is a MIDR, and a pattern matches its version of the part and
    later ones.
    """
    if re.fullmatch(r"0x[0-9a-fA-F]{16}", cpuid) and re.fullmatch(r"0x[0-9a-fA-F]{8,16}", pattern):
        wanted, found = int(pattern, 16), int(cpuid, 16)
        return wanted & ~_VERSION == found & ~_VERSION and _version(found) >= _version(wanted)
    if cpuid.count("-") == 3 and pattern.count("-") != 3:
        cpuid = cpuid.rpartition("-")[0]
    for posix, ours in _CLASSES.items():
        pattern = pattern.replace(posix, ours)
    try:
        return re.fullmatch(pattern, cpuid) is not None
    except re.error:
        return False


def _version(midr: int) -> tuple[int, int]:
    return midr >> 20 & 0xF, midr & 0xF


def architecture() -> str:
    """This machine's architecture, by the name of its folder in the kernel tree."""
    name = os.uname().machine
    if name in ("i386", "i686", "x86_64"):
        return "x86"
    return {"aarch64": "arm64", "ppc64le": "powerpc", "ppc64": "powerpc", "riscv64": "riscv", "s390x": "s390"}.get(
        name, name
    )


def cpuid(root: Path = Path("/")) -> str:
    """This machine's CPU id, in the form of its architecture's `mapfile.csv`; "" if unknown."""
    midr = _text(root / "sys/devices/system/cpu/cpu0/regs/identification/midr_el1")
    if midr:
        return f"0x{int(midr, 16):016x}" if re.fullmatch(r"(0x)?[0-9a-fA-F]+", midr) else ""
    facts = _cpuinfo(root)
    try:
        if "vendor_id" in facts and "cpu family" in facts:
            numbers = (int(facts[name]) for name in ("cpu family", "model", "stepping"))
            return "{}-{}-{:X}-{:X}".format(facts["vendor_id"], *numbers)
        if pvr := re.search(r"pvr ([0-9a-f]{4}) ([0-9a-f]{4})", facts.get("revision", "")):
            return f"0x{pvr[1]}{pvr[2]}"
        if facts.get("vendor_id") == "IBM/S390":
            made, levels = _facts(root / "proc/sysinfo"), _text(root / "proc/service_levels")
            counters = re.search(r"CPU-MF: Counter facility: version=(\S+) authorization=(\S+)", levels)
            model = made["Model"].split()[:2]
            return ",".join((made["Manufacturer"], made["Type"], *model, *(counters.groups() if counters else ())))
        if "mvendorid" in facts:
            return "-".join(f"0x{int(facts[name], 16):x}" for name in ("mvendorid", "marchid", "mimpid"))
    except (KeyError, ValueError):
        pass  # another format of /proc/cpuinfo
    return ""


def platform(root: Path = Path("/"), *, system_wide: bool = False) -> Platform:
    """The constants of this machine, as far as /sys and /proc state them. `system_wide`: all its CPUs are counted."""
    cpus = root / "sys/devices/system/cpu"
    online = _cpu_list(_text(cpus / "online")) or list(range(os.cpu_count() or 1))
    present = _cpu_list(_text(cpus / "present")) or online

    def groups(name: str) -> int:
        return max(1, len({_text(cpus / f"cpu{cpu}/topology/{name}") for cpu in online} - {""}))

    caps = (root / "sys/bus/event_source/devices").glob("*/caps/slots")
    slots = [int(text, 0) for text in map(_text, caps) if re.fullmatch(r"0x[0-9a-fA-F]+|[0-9]+", text)]
    return Platform(
        smt_on=_text(cpus / "smt/active") == "1",
        core_wide=system_wide,
        target_cpu=system_wide,
        num_cpus=max(present) + 1,
        num_cpus_online=len(online),
        num_cores=groups("core_cpus_list"),
        num_dies=groups("die_cpus_list"),
        num_packages=groups("package_cpus_list"),
        slots=float(slots[0]) if slots else math.nan,
        has_pmem=(root / "sys/firmware/acpi/tables/NFIT").exists(),
        system_tsc_freq=_tsc_hz(_cpuinfo(root)),
        cpuid=cpuid(root),
    )


def unknown_platform() -> Platform:
    """The constants of an unknown machine: numbers are NaN, flags are off."""
    unknown: dict[str, Any] = dict.fromkeys(_NUMBERS, math.nan)
    return Platform(**unknown)


def with_constants(platform: Platform, constants: Iterable[str]) -> Platform:
    """A platform with some constants replaced: "num_cpus_online=8"."""
    for text in constants:
        name, _, value = text.lower().removeprefix("#").partition("=")
        if name not in _CONSTANTS:
            raise InputError(f"there is no constant {name!r}", hint=f"constants are {', '.join(_CONSTANTS)}")
        try:
            number = float(value)
        except ValueError:
            raise InputError(f"{text!r} has no value for {name}", hint=f"write {name}=1") from None
        fact: dict[str, Any] = {name: number if name in _NUMBERS else bool(number)}
        platform = replace(platform, **fact)
    return platform


def _tsc_hz(facts: dict[str, str]) -> float:
    if "cpu family" not in facts:  # x86 only
        return math.nan
    if written := re.search(r"@ ([0-9.]+)GHz", facts.get("model name", "")):
        return float(written[1]) * 1e9
    try:
        return float(facts["bogomips"]) / 2 * 1e6  # twice the time-stamp counter's MHz
    except (KeyError, ValueError):
        return math.nan


def _cpuinfo(root: Path) -> dict[str, str]:
    return _facts(root / "proc/cpuinfo")


def _facts(file: Path) -> dict[str, str]:
    """The first value of each field of a file like /proc/cpuinfo."""
    facts: dict[str, str] = {}
    for line in _text(file).splitlines():
        name, colon, value = line.partition(":")
        if colon:
            facts.setdefault(name.strip(), value.strip())
    return facts


def _cpu_list(text: str) -> list[int]:
    """The numbers of "0-3,8"; none if the text is not such a list."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        return []
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
