"""GPUs, through a library that behaves as NVIDIA documents its own."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from symphony.problem.errors import DataError, InputError
from symphony.problem.extras import install_command
from symphony.telemetry.samples import Sample, record
from symphony.telemetry.sources.nvml import NvmlSource
from symphony.testing import check_counter_source
from tests.telemetry.sources.clocks import Clock

UINT, ULONG_LONG = 1, 3  # types of values


class Library:
    """Two GPUs on one clock. What is asked of a model that does not have it raises, as NVML does."""

    class NVMLError(Exception):
        """Of the library."""

    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self, clock: Clock, *, gpus: int = 2, gpm: bool = True, transmit: float = 1e9) -> None:
        self.clock, self.gpus, self.gpm, self.transmit = clock, gpus, gpm, transmit
        self.lost: set[int] = set()
        self.missing: set[str] = set()
        self.alive = 0  # samples of GPM that were allocated and not freed
        self.gaps: list[float] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "missing"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def _check(self, handle: int) -> None:
        if handle in self.lost:
            raise self.NVMLError("GPU is lost")

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return 16

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        self._check(handle)
        return SimpleNamespace(gpu=99, memory=12)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        self._check(handle)
        return SimpleNamespace(used=1 << 30)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        self._check(handle)
        return round(self.clock() * 700_000)  # mJ, at 700 W

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        self._check(handle)
        return 650_000

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        self._check(handle)
        return {1: 1980, 2: 3201}[clock]

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> Any:
        self._check(handle)
        values = {197: self.transmit * self.clock(), 198: 2e8 * self.clock()}
        return [
            SimpleNamespace(
                nvmlReturn=0,
                valueType=ULONG_LONG,
                value=SimpleNamespace(ullVal=int(values[field]) % 2**32, uiVal=-1),
            )
            for field in fields
        ]

    def nvmlGpmQueryDeviceSupport(self, handle: int) -> Any:
        return SimpleNamespace(isSupportedDevice=int(self.gpm))

    def nvmlGpmSampleAlloc(self) -> Any:
        self.alive += 1
        return SimpleNamespace(at=None)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self.alive -= 1

    def nvmlGpmSampleGet(self, handle: int, sample: Any) -> Any:
        self._check(handle)
        sample.at = self.clock()
        return sample

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=np.nan) for _ in range(98)]
        return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=metrics)

    def nvmlGpmMetricsGet(self, wanted: Any) -> Any:
        assert wanted.version == 1
        gap = wanted.sample2.at - wanted.sample1.at
        self.gaps.append(gap)
        if gap < 0.1 - 1e-9:
            raise self.NVMLError("Invalid Argument")
        known = {1: 80.0, 2: 34.0, 3: 20.0, 5: 30.0, 10: 55.0, 20: self.transmit / 2**20 * 0.97, 21: 2e8 / 2**20}
        for metric in wanted.metrics[: wanted.numMetrics]:
            metric.nvmlReturn = 0 if metric.metricId in known else 3
            metric.value = known.get(metric.metricId, 0.0)
        return wanted


def source(library: Library, **options: Any) -> NvmlSource:
    return NvmlSource(library=library, clock=library.clock, sleep=library.clock.sleep, **options)


def rates(sample: Sample) -> dict[str, float]:
    return {c.event: float(n) / sample.duration_s for c, n in zip(sample.columns, sample.count, strict=True)}


def test_what_a_gpu_says() -> None:
    library = Library(Clock())
    found = source(library, windows=3)
    samples = list(found.samples())
    assert [sample.where for sample in samples] == ["GPU-0", "GPU-1"] * 3
    assert rates(samples[-1]) == pytest.approx(
        {
            "nvml.busy_us": 990_000,  # what misleads
            "nvml.memory_busy_us": 120_000,
            "nvml.memory_used_byte_s": 2**30,
            "nvml.energy_mj": 700_000,
            "nvml.sm_cycles": 1980e6,
            "nvml.memory_cycles": 3201e6,
            "nvml.pcie_transmit_bytes": 1e9,
            "nvml.pcie_receive_bytes": 2e8,
            "gpm.active_us": 800_000,  # the same, of this window
            "gpm.sm_busy_us": 340_000,  # what is
            "gpm.sm_occupancy_us": 200_000,
            "gpm.tensor_busy_us": 300_000,
            "gpm.dram_busy_us": 550_000,
            "gpm.pcie_transmit_bytes": 0.97e9,
            "gpm.pcie_receive_bytes": 2e8,
        },
        rel=1e-6,
    )
    assert not found.problems and library.alive == 0


def test_it_keeps_the_contract() -> None:
    check_counter_source(source(Library(Clock()), windows=5))
    library = Library(Clock())
    check_counter_source(source(library))  # without end
    assert library.alive == 0


@pytest.mark.parametrize("transmit", [1e9, 60e9])
def test_counters_of_pcie_wrap(transmit: float) -> None:
    """At 60 GB/s that is every 72 ms: how often, GPM tells."""
    found = record(source(Library(Clock(), transmit=transmit), windows=40, interval_s=0.5).samples())["GPU-0"]
    column = next(c for c, one in enumerate(found.columns) if one.event == "nvml.pcie_transmit_bytes")
    np.testing.assert_allclose(found.count[:, column], transmit * 0.5, rtol=1e-6)


def test_without_gpm_wraps_that_cannot_be_counted_are_unknown() -> None:
    library = Library(Clock(), gpm=False, transmit=1e9)
    found = source(library, windows=2, interval_s=0.5)
    samples = list(found.samples())
    assert "gpm.sm_busy_us" not in rates(samples[0])
    assert np.isnan(rates(samples[0])["nvml.pcie_transmit_bytes"])
    said = "\n".join(map(str, found.problems))
    assert "GPU-0: has no GPM metrics" in said and "may wrap more than once in 0.5 s: read every 0.068 s" in said
    library.nvmlDeviceGetMaxPcieLinkGeneration = lambda handle: 3  # type: ignore[method-assign]
    [first, _] = source(library, windows=1, interval_s=0.1).samples()
    assert rates(first)["nvml.pcie_transmit_bytes"] == pytest.approx(1e9, rel=1e-6)


def test_samples_of_gpm_are_far_enough_apart_also_after_a_late_one() -> None:
    library = Library(Clock(0.0, 0.25, 0.0, 0.0), gpus=1)
    found = source(library, windows=4)
    assert len(list(found.samples())) == 4
    assert len(library.gaps) == 4 and min(library.gaps) >= 0.1 - 1e-9 and not found.problems
    with pytest.raises(InputError, match=r"at least 0\.1 s apart"):
        source(library, interval_s=0.05)


def test_a_gpu_that_is_lost_is_unknown_from_then_on() -> None:
    library = Library(Clock())
    found = source(library, windows=3)
    samples = found.samples()
    before = [next(samples), next(samples)]
    library.lost.add(1)
    after = list(samples)
    assert np.isfinite(before[1].count).all() and np.isfinite(after[0].count).all()
    assert np.isnan(after[1].count).all() and after[1].columns == before[1].columns
    said = "\n".join(map(str, found.problems))
    assert "GPU-1: GPM metrics cannot be read: GPU is lost" in said
    assert "GPU-1: nvml.busy_us is no longer there" in said and library.alive == 0


def test_a_gpu_that_comes_back_is_known_again_a_window_later() -> None:
    library = Library(Clock(), gpus=1, transmit=60e9)
    samples = source(library, windows=4).samples()
    next(samples)
    library.lost.add(0)
    assert np.isnan(next(samples).count).all()
    library.lost.clear()
    again = rates(next(samples))
    assert again["nvml.busy_us"] == pytest.approx(990_000)
    assert np.isnan(again["nvml.pcie_transmit_bytes"]) and np.isnan(again["gpm.sm_busy_us"])
    assert rates(next(samples))["nvml.pcie_transmit_bytes"] == pytest.approx(60e9, rel=1e-6)


def test_older_libraries_and_models_have_less() -> None:
    library = Library(Clock(), gpus=1)
    library.missing = {
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetFieldValues",
        "nvmlGpmQueryDeviceSupport",
        "nvmlDeviceGetMaxPcieLinkWidth",
    }
    [sample] = source(library, windows=1).samples()
    assert rates(sample)["nvml.energy_mj"] == pytest.approx(650_000)
    assert not any("pcie" in event or "gpm" in event for event in rates(sample))


def test_no_gpus() -> None:
    with pytest.raises(DataError, match="no GPU"):
        source(Library(Clock(), gpus=0))
    library = Library(Clock())

    def fail() -> None:
        raise library.NVMLError("Driver Not Loaded")

    library.nvmlInit = fail  # type: ignore[method-assign]
    with pytest.raises(DataError, match="the NVIDIA driver does not respond: Driver Not Loaded"):
        source(library)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DataError, match="reading NVIDIA's GPUs needs pynvml, which is not installed") as error:
        NvmlSource()
    assert install_command("nvidia") in error.value.hint
