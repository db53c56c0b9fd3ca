"""Which CPU it is, and what expressions may ask about it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from symphony.telemetry.machine import Platform, cpuid, matches, platform, unknown_platform, with_constants


@pytest.mark.parametrize(
    ("pattern", "found", "same"),
    [
        ("GenuineIntel-6-55-[01234]", "GenuineIntel-6-55-4", True),
        ("GenuineIntel-6-55-[01234]", "GenuineIntel-6-55-7", False),
        ("GenuineIntel-6-(97|9A)", "GenuineIntel-6-9A-2", True),
        ("GenuineIntel-6-9", "GenuineIntel-6-9A-2", False),
        ("AuthenticAMD-23-([12][0-9A-F]|[0-9A-F])", "AuthenticAMD-23-1F-0", True),
        ("AuthenticAMD-23-([12][0-9A-F]|[0-9A-F])", "AuthenticAMD-23-31-0", False),
        ("AuthenticAMD-25-[[:xdigit:]]+", "AuthenticAMD-25-11-1", True),
        ("0x004e[[:xdigit:]]{4}", "0x004e1202", True),
        ("0x004e[[:xdigit:]]{4}", "0x00801202", False),
        ("0x00000000410fd0c0", "0x00000000413fd0c1", True),  # a later version
        ("0x00000000411fd0c2", "0x00000000410fd0cf", False),  # an earlier one
        ("0x00000000411fd0c2", "0x00000000411fd0c1", False),
        ("0x00000000410fd0c0", "0x00000000410fd400", False),
        ("0x410fd490", "0x00000000410fd493", True),
        ("0x489-0x8000000000000007-0x[[:xdigit:]]+", "0x489-0x8000000000000007-0x20181004", True),
        ("(", "GenuineIntel-6-55-4", False),
        ("GenuineIntel-6-55", "", False),
    ],
)
def test_matches(pattern: str, found: str, same: bool) -> None:
    assert matches(pattern, found) is same


X86 = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Some CPU @ 2.10GHz
stepping\t: 8
bogomips\t: 4000.00

processor\t: 1
stepping\t: 9
"""


def machine_with(root: Path, **files: str) -> Path:
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (X86, "GenuineIntel-6-8F-8"),
        ("cpu\t: POWER9\nrevision\t: 2.2 (pvr 004e 1202)\n", "0x004e1202"),
        (
            "mvendorid\t: 0x489\nmarchid\t: 0x8000000000000007\nmimpid\t: 0x20181004\n",
            "0x489-0x8000000000000007-0x20181004",
        ),
        ("vendor_id\t: GenuineIntel\ncpu family\t: six\n", ""),
        ("", ""),
    ],
)
def test_cpuid_from_cpuinfo(tmp_path: Path, cpuinfo: str, expected: str) -> None:
    assert cpuid(machine_with(tmp_path, proc__cpuinfo=cpuinfo)) == expected


def test_cpuid_of_a_mainframe(tmp_path: Path) -> None:
    root = machine_with(tmp_path, proc__cpuinfo="vendor_id       : IBM/S390\n# processors    : 4\n")
    assert cpuid(root) == ""
    sysinfo = "Manufacturer:         IBM\nType:                 3906\nModel:                704              M03\n"
    machine_with(tmp_path, proc__sysinfo=sysinfo)
    assert cpuid(root) == "IBM,3906,704,M03"
    levels = "VM: z/VM\nCPU-MF: Counter facility: version=3.6 authorization=002f\n"
    machine_with(tmp_path, proc__service_levels=levels)
    assert cpuid(root) == "IBM,3906,704,M03,3.6,002f"
    assert matches("^IBM.390[67].*[13]\\.[1-5].[[:xdigit:]]+$", cpuid(root)) is False
    assert matches("^IBM.390[67].*3\\.6.[[:xdigit:]]+$", cpuid(root))


def test_cpuid_of_arm(tmp_path: Path) -> None:
    file = tmp_path / "sys/devices/system/cpu/cpu0/regs/identification/midr_el1"
    file.parent.mkdir(parents=True)
    file.write_text("0x410fd0c1\n")
    assert cpuid(tmp_path) == "0x00000000410fd0c1"
    file.write_text("nonsense")
    assert cpuid(tmp_path) == ""


def test_platform_of_a_machine(tmp_path: Path) -> None:
    cpus = tmp_path / "sys/devices/system/cpu"
    for cpu in range(4):
        folder = cpus / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "core_cpus_list").write_text("0,2" if cpu % 2 == 0 else "1,3")
        (folder / "die_cpus_list").write_text("0-3")
        (folder / "package_cpus_list").write_text("0-3")
    machine_with(tmp_path, proc__cpuinfo=X86)
    (cpus / "online").write_text("0-3\n")
    (cpus / "present").write_text("0-5,7\n")
    (cpus / "smt").mkdir()
    (cpus / "smt/active").write_text("1\n")
    slots = tmp_path / "sys/bus/event_source/devices/cpu/caps/slots"
    slots.parent.mkdir(parents=True)
    slots.write_text("0x8\n")
    found = platform(tmp_path, system_wide=True)
    assert found == Platform(
        smt_on=True,
        core_wide=True,
        target_cpu=True,
        num_cpus=8,
        num_cpus_online=4,
        num_cores=2,
        num_dies=1,
        num_packages=1,
        slots=8.0,
        system_tsc_freq=2.1e9,
        cpuid="GenuineIntel-6-8F-8",
    )


def test_frequency_without_a_name_comes_from_bogomips(tmp_path: Path) -> None:
    machine_with(tmp_path, proc__cpuinfo=X86.replace(" @ 2.10GHz", ""))
    assert platform(tmp_path).system_tsc_freq == 2e9


def test_of_a_machine_elsewhere_only_what_is_told_is_known() -> None:
    found = with_constants(unknown_platform(), ["num_cpus_online=8", "#SMT_on=1"])
    assert (found.num_cpus_online, found.smt_on) == (8, True)
    assert math.isnan(found.num_packages) and math.isnan(found.system_tsc_freq) and not found.core_wide


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    found = platform(tmp_path)
    assert found.num_packages == 1 and found.cpuid == "" and math.isnan(found.slots)
