"""What tells the traffic of memories, by what the kernel offers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from symphony.telemetry.inference import infer
from symphony.telemetry.memory import BANDWIDTH, MemoryEvents, at_hand
from symphony.telemetry.samples import Column, Sample, record

INTEL = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nstepping\t: 8\n"
MIB = {"scale": "6.103515625e-5\n", "unit": "MiB\n"}  # as the kernel writes it: 64 bytes


def amd(family: int, model: int) -> str:
    return f"vendor_id\t: AuthenticAMD\ncpu family\t: {family}\nmodel\t\t: {model}\nstepping\t: 1\n"


def tree(root: Path, cpu: str, devices: dict[str, tuple[str, ...]]) -> Path:
    """As much of /sys and /proc as is looked at: units, and the events that the kernel names for them."""
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(cpu)
    for device, events in devices.items():
        folder = root / "sys/bus/event_source/devices" / device / "events"
        folder.mkdir(parents=True)
        for event in events:
            (folder / event).write_text("event=0x04,umask=0x03\n")
            for end, text in MIB.items() if device.startswith("uncore") else ():
                (folder / f"{event}.{end}").write_text(text)
    return root


CAS = ("cas_count_read", "cas_count_write", "clockticks")
CORE = {"cpu": ("cycles", "cache-misses"), "software": ()}


@pytest.mark.parametrize(
    ("cpu", "devices", "unit", "events", "least"),
    [
        (INTEL, CORE | {"uncore_imc_0": CAS, "uncore_imc_11": CAS}, "uncore_imc", 2, False),
        (
            INTEL,
            CORE | {"uncore_imc_free_running_0": ("data_read", "data_write")},
            "uncore_imc_free_running",
            2,
            False,
        ),
        (INTEL, CORE | {"uncore_imc": ("data_reads", "data_writes")}, "uncore_imc", 2, False),
        (amd(26, 2), CORE | {"amd_umc_0": (), "amd_df": ()}, "amd_umc", 1, False),
        (amd(23, 49), CORE | {"amd_df": ()}, "amd_df", 8, False),
        (amd(25, 1), CORE | {"amd_df": ()}, "amd_df", 8, False),
        (INTEL, CORE, "cpu", 1, True),
        ("", {"armv8_pmuv3_0": ("cpu_cycles", "ll_cache_miss_rd")}, "armv8_pmuv3", 1, True),
    ],
)
def test_what_is_asked_for(
    tmp_path: Path, cpu: str, devices: dict[str, tuple[str, ...]], unit: str, events: int, least: bool
) -> None:
    found = at_hand(tree(tmp_path, cpu, devices))
    assert found is not None and found.least is least
    assert [word.partition("/")[0] for word in found.words] == [unit] * events
    assert all(word.endswith(f",name={name}/") for word, name in zip(found.words, found.names, strict=True))
    assert (found.scale, found.unit) == ((64 / 2**20, "MiB") if unit.startswith("uncore") else (1.0, ""))
    assert unit in str(found) and ("a lower bound" in str(found)) is least


@pytest.mark.parametrize(
    ("cpu", "devices"),
    [
        (amd(25, 1), CORE),  # `cache-misses` are those of the second level there
        (amd(25, 17), CORE | {"amd_df": ()}),  # Zen 4 has other codes
        ("", {"armv8_pmuv3_0": ("cpu_cycles",)}),
        (INTEL, {"software": (), "msr": ("tsc",)}),  # a guest
        (INTEL, {"uncore_imc_0": ("clockticks",), "uncore_importer_0": CAS}),
    ],
)
def test_where_nothing_tells_nothing_is_counted(tmp_path: Path, cpu: str, devices: dict[str, tuple[str, ...]]) -> None:
    assert at_hand(tree(tmp_path, cpu, devices)) is None
    assert at_hand(tmp_path / "nowhere") is None


@pytest.mark.parametrize(("unit", "value"), [("MiB", 1e9 / 2**20), ("", 1e9 / 64)])
def test_counts_become_bytes_whatever_perf_prints_them_in(unit: str, value: float) -> None:
    counted = MemoryEvents(("uncore_imc/a/", "uncore_imc/b/"), 64 / 2**20, "MiB")
    columns = tuple(Column(name, number) for number, name in enumerate(counted.names))
    whole, units = np.full(2, 0.8), dict.fromkeys(counted.names, unit)  # eight channels
    samples = [Sample("", 0.1 * k, 0.1, columns, np.array([value, value / 2]), whole, whole, units) for k in range(3)]
    found = infer(counted.model, record(samples))[BANDWIDTH]
    np.testing.assert_allclose(found.mean, 15e3, rtol=1e-3)  # MB/s
    assert (found.std < 0.01 * found.mean).all()
