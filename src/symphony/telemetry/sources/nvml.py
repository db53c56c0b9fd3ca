"""NVIDIA's GPUs, through their management library: the extra `nvidia`.

    for sample in NvmlSource(interval_s=0.1).samples(): ...       # one place for each GPU: "GPU-0", "GPU-1"

Events, all of them amounts over the window (amount / duration is the mean):

- `nvml.busy_us`: time with at least one kernel on the GPU. This is the classic "utilisation", and misleads: one small
  kernel counts as much as one that fills the GPU. `nvml.memory_busy_us` is the same for memory accesses.
- `gpm.active_us`: time with at least one kernel, in exactly this window. Hopper or later.
- `gpm.sm_busy_us`, `gpm.sm_occupancy_us`, `gpm.tensor_busy_us`, `gpm.dram_busy_us`: the share of the multiprocessors,
  of their warps, of the tensor cores and of the memory bandwidth in use, times the duration. Hopper or later.
- `gpm.pcie_transmit_bytes`, `gpm.pcie_receive_bytes`, `gpm.nvlink_transmit_bytes`, `gpm.nvlink_receive_bytes`: from and
  to the GPU. Hopper or later.
- `nvml.pcie_transmit_bytes`, `nvml.pcie_receive_bytes`: the same from 32-bit counters. How often they wrapped in a
  window follows from the GPM events; without those, from the link's speed, or it is unknown.
- `nvml.memory_used_byte_s`, `nvml.energy_mj`, `nvml.sm_cycles`, `nvml.memory_cycles`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from symphony.problem.errors import DataError, InputError
from symphony.problem.extras import needs_extra
from symphony.telemetry.samples import Sample
from symphony.telemetry.sources.polling import Figure, Figures, PolledSource, Poller

MIN_GPM_INTERVAL_S = 0.1  # smallest distance of two GPM samples
_WRAP = 2**32
_MIB = float(1 << 20)
_PERCENT_US = 1e4  # from per cent to microseconds per second
_MHZ = 1e6
_CLOCK_EVENTS = {"nvml.sm_cycles": 1, "nvml.memory_cycles": 2}
_PCIE = {"nvml.pcie_transmit_bytes": 197, "nvml.pcie_receive_bytes": 198}  # numbers of NVML fields
_GPM = {  # numbers of GPM metrics, and factors from NVML's unit to ours per second
    "gpm.active_us": (1, _PERCENT_US),
    "gpm.sm_busy_us": (2, _PERCENT_US),
    "gpm.sm_occupancy_us": (3, _PERCENT_US),
    "gpm.tensor_busy_us": (5, _PERCENT_US),
    "gpm.dram_busy_us": (10, _PERCENT_US),
    "gpm.pcie_transmit_bytes": (20, _MIB),
    "gpm.pcie_receive_bytes": (21, _MIB),
    "gpm.nvlink_receive_bytes": (60, _MIB),
    "gpm.nvlink_transmit_bytes": (61, _MIB),
}
_LINK_BYTES = {1: 2.5e8, 2: 5e8, 3: 9.9e8, 4: 1.97e9, 5: 3.94e9, 6: 7.6e9}  # per second and lane, by PCIe generation
_FIELD_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by number of the type


@dataclass
class _GpuState:
    handle: Any
    name: str
    link_bytes: float  # per second, at most
    gpm: bool
    held: Any = None  # the previous GPM sample
    seen: dict[str, int] = field(default_factory=dict)  # previous values of PCIe counters
    bytes: dict[str, float] = field(default_factory=dict)  # PCIe totals, unwrapped
    seen_s: float = math.nan


class NvmlSource(PolledSource):
    """The GPUs of this machine, read every `interval_s`, `windows` times or forever.

    `library` replaces the module `pynvml`.
    """

    def __init__(
        self,
        *,
        interval_s: float = MIN_GPM_INTERVAL_S,
        windows: int | None = None,
        library: Any = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if interval_s < MIN_GPM_INTERVAL_S:
            raise InputError(
                f"an interval of {interval_s} s: GPUs are read at least {MIN_GPM_INTERVAL_S} s apart",
                hint="interval_s=0.1",
            )
        self._nvml = library if library is not None else _load()
        self._clock = clock
        self._poller = Poller(self._read, interval_s, windows, clock, sleep, least_s=MIN_GPM_INTERVAL_S)
        try:
            self._nvml.nvmlInit()
            there = self._nvml.nvmlDeviceGetCount()
        except (self._nvml.NVMLError, OSError) as error:
            raise DataError(
                f"the NVIDIA driver does not respond: {error}", hint="run nvidia-smi to see whether it is installed"
            ) from None
        if not there:
            raise DataError("the driver has no GPU", hint="`nvidia-smi -L` lists the usable GPUs")
        self._gpus = [self._open(number) for number in range(there)]

    def samples(self) -> Iterator[Sample]:
        """A sample for each GPU and window."""
        try:
            yield from self._poller.samples()
        finally:
            for gpu in self._gpus:
                if gpu.held is not None:
                    self._ask("nvmlGpmSampleFree", gpu.held)
                    gpu.held = None

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The result of an NVML call, or None if the model or driver does not support it."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def _open(self, number: int) -> _GpuState:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(number)
        generation = self._ask("nvmlDeviceGetMaxPcieLinkGeneration", handle)
        lanes = self._ask("nvmlDeviceGetMaxPcieLinkWidth", handle) or 16
        support = self._ask("nvmlGpmQueryDeviceSupport", handle)
        gpu = _GpuState(
            handle,
            f"GPU-{number}",
            lanes * _LINK_BYTES.get(generation, _LINK_BYTES[6]),
            bool(support and support.isSupportedDevice),
        )
        if not gpu.gpm:
            self._poller.problems.add(gpu.name, "has no GPM metrics (before Hopper): nvml.busy_us overstates its load")
        return gpu

    def _read(self) -> Figures:
        return {gpu.name: self._figures(gpu) for gpu in self._gpus}

    def _figures(self, gpu: _GpuState) -> Mapping[str, Figure]:
        found: dict[str, Figure] = {}

        def put(event: str, value: float | None, kind: Any, scale: float = 1.0) -> None:
            if value is not None:
                found[event] = Figure({"": value}, gpu.name, kind, scale)

        busy = self._ask("nvmlDeviceGetUtilizationRates", gpu.handle)
        put("nvml.busy_us", busy and busy.gpu, "mean", _PERCENT_US)
        put("nvml.memory_busy_us", busy and busy.memory, "mean", _PERCENT_US)
        memory = self._ask("nvmlDeviceGetMemoryInfo", gpu.handle)
        put("nvml.memory_used_byte_s", memory and memory.used, "level")
        energy = self._ask("nvmlDeviceGetTotalEnergyConsumption", gpu.handle)
        if energy is not None:
            put("nvml.energy_mj", energy, "total")
        else:
            put("nvml.energy_mj", self._ask("nvmlDeviceGetPowerUsage", gpu.handle), "level")
        for event, clock in _CLOCK_EVENTS.items():
            put(event, self._ask("nvmlDeviceGetClockInfo", gpu.handle, clock), "level", _MHZ)
        metrics = self._gpm(gpu)
        for event, value in metrics.items():
            put(event, value, "mean", _GPM[event][1])
        for event, value in self._pcie(gpu, metrics).items():
            put(event, value, "total")
        return found

    def _gpm(self, gpu: _GpuState) -> dict[str, float]:
        """Means since the last call, by event; none at the first call."""
        if not gpu.gpm:
            return {}
        before, gpu.held = gpu.held, self._ask("nvmlGpmSampleAlloc")
        try:
            self._nvml.nvmlGpmSampleGet(gpu.handle, gpu.held)
            return self._metrics(before, gpu.held) if before is not None else {}
        except self._nvml.NVMLError as error:
            self._poller.problems.add(gpu.name, f"GPM metrics cannot be read: {error}")
            self._ask("nvmlGpmSampleFree", gpu.held)
            gpu.held = None  # restart, so that a mean never covers more than its window
            return {}
        finally:
            if before is not None:
                self._ask("nvmlGpmSampleFree", before)

    def _metrics(self, before: Any, now: Any) -> dict[str, float]:
        wanted = self._nvml.c_nvmlGpmMetricsGet_t()
        wanted.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        wanted.sample1, wanted.sample2, wanted.numMetrics = before, now, len(_GPM)
        for slot, (number, _) in zip(wanted.metrics, _GPM.values(), strict=False):
            slot.metricId = number
        answer = self._nvml.nvmlGpmMetricsGet(wanted)
        return {
            event: slot.value
            for event, slot in zip(_GPM, answer.metrics, strict=False)
            if slot.nvmlReturn == 0 and math.isfinite(slot.value)
        }

    def _pcie(self, gpu: _GpuState, metrics: Mapping[str, float]) -> dict[str, float]:
        """Bytes since the first call, by event."""
        answer = self._ask("nvmlDeviceGetFieldValues", gpu.handle, list(_PCIE.values()))
        now_s = self._clock()
        passed_s, gpu.seen_s = now_s - gpu.seen_s, now_s
        if answer is None:
            gpu.seen.clear()  # restart: the number of wraps in between is unknown
            return {}
        found = {}
        for event, value in zip(_PCIE, answer, strict=False):
            if value.nvmlReturn != 0 or not 0 <= value.valueType < len(_FIELD_TYPES):
                continue
            now = int(getattr(value.value, _FIELD_TYPES[value.valueType]))
            if event not in gpu.seen:
                gpu.bytes[event] = 0.0
            else:
                grown = (now - gpu.seen[event]) % _WRAP
                gpu.bytes[event] += grown + _WRAP * self._wraps(gpu, event, grown, passed_s, metrics)
            gpu.seen[event] = now
            found[event] = gpu.bytes[event]
            if math.isnan(gpu.bytes[event]):
                gpu.bytes[event] = 0.0  # count from here on
        return found

    def _wraps(self, gpu: _GpuState, event: str, grown: int, passed_s: float, metrics: Mapping[str, float]) -> float:
        """How many more times a PCIe counter wrapped than its two values show; NaN if unknown."""
        rate = metrics.get(event.replace("nvml.", "gpm."), math.nan)
        if math.isfinite(rate):
            return max(0, round((rate * _MIB * passed_s - grown) / _WRAP))
        if passed_s * gpu.link_bytes < _WRAP:
            return 0
        self._poller.problems.add(
            gpu.name,
            f"{event} may wrap more than once in {passed_s:.2g} s: read every {_WRAP / gpu.link_bytes:.2g} s",
            kind=f"wraps {event}",
        )
        return math.nan


def _load() -> Any:
    with needs_extra("nvidia", "reading NVIDIA's GPUs", DataError):
        import pynvml
    return pynvml
