"""Figures of this machine while kernels run: pressure (PSI) and CPU time from the kernel, those of GPUs from NVML.

All are read ten times a second, by threads that sleep while nothing runs, and each window is passed to
`background_load.py`. The profile of a kernel keeps the mean over the windows within a run; of runs shorter than two
windows, nothing.

- If a GPU runs one kernel, all its traffic is that kernel's: bytes over PCIe are its demand for the link, and the share
  of time with any computation its demand for the GPU, on which processes take turns. If several kernels run, the parts
  are unknown: of a GPU with several slots, only runs that were alone on it count.
- Pressure is the share of time for which some task of the machine waited for a processor, memory pages or a disk. It is
  of the whole machine and does not include waiting for memory bandwidth. So it is shown beside a kernel, and no demand
  follows from it.

These figures are exact amounts over a window; nothing is inferred. Traffic through memories needs counters that may
take turns: `memory_counter.py`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from symphony.problem.errors import SymphonyError
from symphony.problem.topology import Topology
from symphony.runtime.memory_counter import MemoryCounter
from symphony.runtime.profiles import GPU_BUSY_FIGURE, PCIE_FIGURE
from symphony.telemetry.samples import CounterSource
from symphony.telemetry.sources.kernel import KernelSource
from symphony.telemetry.sources.nvml import NvmlSource

log = logging.getLogger("symphony.runtime")
INTERVAL_S = 0.1
KERNEL_FIGURE_GROUPS = ("psi", "stat", "net")  # the last two are for `background_load.py`
MAX_WINDOWS_PER_PLACE = 3_000  # windows of a place: five minutes
MIN_WINDOWS_PER_RUN = 2  # within a run, for its means to be kept
MICRO = 1e-6
# Figures in profiles: the first sum of events whose events were all read, per second, times a unit.
FigureSums = Mapping[str, list[tuple[tuple[str, ...], float]]]
CPU_FIGURES: FigureSums = {
    "cpu pressure": [(("psi.cpu.some_us",), MICRO)],
    "memory pressure": [(("psi.memory.some_us",), MICRO)],
    "io pressure": [(("psi.io.some_us",), MICRO)],
}
GPU_FIGURES: FigureSums = {
    PCIE_FIGURE: [
        (("gpm.pcie_transmit_bytes", "gpm.pcie_receive_bytes"), 1.0),
        (("nvml.pcie_transmit_bytes", "nvml.pcie_receive_bytes"), 1.0),
    ],
    GPU_BUSY_FIGURE: [(("gpm.active_us",), MICRO), (("nvml.busy_us",), MICRO)],
    "gpu busy": [(("gpm.sm_busy_us",), MICRO), (("nvml.busy_us",), MICRO)],
    "gpu memory busy": [(("gpm.dram_busy_us",), MICRO), (("nvml.memory_busy_us",), MICRO)],
}
Opener = Callable[[Callable[[float], None]], CounterSource]  # given how to sleep
WindowCallback = Callable[[str, float, float, Mapping[str, float]], None]  # place, beginning and end, rates by event


@dataclass(frozen=True)
class _FigureWindow:
    began_s: float
    ended_s: float
    rates: Mapping[str, float] = field(default_factory=dict)  # by event, per second


class MachineMonitor:
    """Reads figures while something runs, in threads of its own."""

    def __init__(
        self,
        topology: Topology,
        openers: Sequence[Opener] | None = None,
        on_window: WindowCallback = lambda *window: None,
        counting: MemoryCounter | None = None,
    ) -> None:
        """`on_window` is called with every window, by the reading threads; GPUs are numbered as in the topology.

        `counting` starts, stops and closes with this monitor.
        """
        self._on_window, self._counting = on_window, counting
        gpus = [number for number, d in enumerate(topology.devices) if topology.kind_of[d.kind].type == "gpu"]
        self._gpu = {device: f"GPU-{_visible(number)}" for number, device in enumerate(gpus)}
        self._called = {"": "", **{f"GPU-{_visible(number)}": f"GPU-{number}" for number in range(len(gpus))}}
        self._windows: dict[str, deque[_FigureWindow]] = {}
        self._wanted = threading.Event()
        self._closed = False
        for opener in _openers(bool(gpus)) if openers is None else openers:
            try:
                source = opener(self._sleep)
            except SymphonyError as error:
                _log_once(f"{error.message}; {error.hint}")
                continue
            threading.Thread(target=self._read, args=(source,), name="symphony-watch", daemon=True).start()

    def set_busy(self, busy: bool) -> None:
        """Whether something runs; otherwise nothing is read."""
        if busy != self._wanted.is_set() and not self._closed:
            (self._wanted.set if busy else self._wanted.clear)()
        if self._counting is not None:
            self._counting.set_busy(busy)

    def during(self, device: int, began_s: float, ended_s: float, alone: bool = True) -> dict[str, float]:
        """Means over a run on a device, by figure, as far as they are known. `alone`: it had the device for itself."""
        place, figures = (self._gpu[device], GPU_FIGURES) if device in self._gpu else ("", CPU_FIGURES)
        if (device in self._gpu and not alone) or ended_s - began_s < MIN_WINDOWS_PER_RUN * INTERVAL_S:
            return {}
        kept = tuple(self._windows.get(place, ()))  # a copy: others add to it
        within = [one for one in kept if one.began_s >= began_s and one.ended_s <= ended_s]
        if len(within) < MIN_WINDOWS_PER_RUN:
            return {}
        whole = sum(window.ended_s - window.began_s for window in within)
        found = {}
        for name, sums in figures.items():
            for events, unit in sums:
                parts = [(one.ended_s - one.began_s) * one.rates.get(e, float("nan")) for one in within for e in events]
                if (total := sum(parts)) >= 0:  # not NaN: all were read
                    found[name] = total * unit / whole
                    break
        return found

    def close(self) -> None:
        """Stop reading."""
        self._closed = True
        self._wanted.set()
        if self._counting is not None:
            self._counting.close()

    # --- threads

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self._wanted.wait()
        if self._closed:
            raise _MonitorClosed

    def _read(self, source: CounterSource) -> None:
        try:
            self._wanted.wait()
            zero_s = time.monotonic()  # of the source's times
            for sample in source.samples():
                began_s = zero_s + sample.start_s
                rates = {c.event: n / sample.duration_s for c, n in zip(sample.columns, sample.count, strict=True)}
                kept = self._windows.setdefault(sample.where, deque(maxlen=MAX_WINDOWS_PER_PLACE))
                kept.append(_FigureWindow(began_s, began_s + sample.duration_s, rates))
                if sample.where in self._called:  # a GPU that we may not see is no row of ours
                    self._on_window(self._called[sample.where], began_s, began_s + sample.duration_s, rates)
        except _MonitorClosed:
            return
        except SymphonyError as error:
            _log_once(f"{error.message}; {error.hint}")


class _MonitorClosed(Exception):
    """Raised in the reading threads when the monitor is closed."""


def _openers(gpus: bool) -> list[Opener]:
    """The sources that this machine should have."""
    found: list[Opener] = [lambda sleep: KernelSource(interval_s=INTERVAL_S, about=KERNEL_FIGURE_GROUPS, sleep=sleep)]
    if not Path("/proc/pressure").is_dir():
        _log_once("this system has no pressure figures (/proc/pressure): profiles have none either")
    if gpus:
        found.append(lambda sleep: NvmlSource(interval_s=INTERVAL_S, sleep=sleep))
    return found


def _visible(number: int) -> int:
    """The number by which NVML knows a GPU, of those that we may see."""
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.isdecimal()]
    return int(given[number]) if number < len(given) else number


@lru_cache(maxsize=64)
def _log_once(text: str) -> None:
    log.warning("%s", text)
