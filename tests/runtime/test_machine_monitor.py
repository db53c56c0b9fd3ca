"""What a machine tells of itself while kernels run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from symphony.problem.errors import DataError
from symphony.problem.topology import Topology
from symphony.runtime.machine_monitor import MachineMonitor
from symphony.runtime.profiles import GPU_BUSY_FIGURE, PCIE_FIGURE, FigureStatistics
from symphony.telemetry.samples import Column, Problem, Sample
from symphony.telemetry.sources.nvml import NvmlSource
from tests.runtime.machines import machine
from tests.telemetry.sources.clocks import Clock
from tests.telemetry.sources.test_nvml import Library
from tests.waiting import wait_until

PSI = ("psi.cpu.some_us", "psi.memory.some_us", "psi.io.some_us")


class Written:
    """A source whose samples a test has written: shares of time for which somebody waited, in windows of 100 s."""

    problems: Sequence[Problem] = ()

    def __init__(self, *shares: float) -> None:
        self.shares = shares

    def samples(self) -> Iterator[Sample]:
        for number, share in enumerate(self.shares):
            count = np.array([share * 1e8, 0.0, np.nan])
            always = np.full(3, 100.0)
            yield Sample("", 100.0 * number, 100.0, tuple(Column(event) for event in PSI), count, always, always)


def gpus(slots: int = 1) -> Topology:
    """Device 0 is a CPU, the others are GPUs."""
    found = machine(others=2)
    small, big = found.kinds
    return replace(found, kinds=(small, replace(big, type="gpu", slots=slots)))


def watched(topology: Topology, source: Any, device: int, began_s: float, ended_s: float) -> dict[str, float]:
    """What is known of a run, once a source has said all."""
    zero_s = time.monotonic()
    watch = MachineMonitor(topology, [lambda sleep: source])
    watch.set_busy(True)
    found = wait_until(lambda: watch.during(device, zero_s + began_s, zero_s + ended_s))
    watch.close()
    return found


def several(library: Library) -> NvmlSource:
    return NvmlSource(library=library, clock=library.clock, sleep=library.clock.sleep, windows=20)


def test_a_run_is_told_of_by_the_windows_within_it() -> None:
    found = watched(machine(), Written(1.0, 0.2, 0.4, 1.0), 0, 50.0, 350.0)
    assert found == pytest.approx({"cpu pressure": 0.3, "memory pressure": 0.0})  # of the disk, nobody knows


def test_of_a_short_run_nothing_is_told() -> None:
    watch = MachineMonitor(machine(), [lambda sleep: Written(1.0)])
    watch.set_busy(True)
    assert watch.during(0, time.monotonic(), time.monotonic() + 0.15) == {}
    watch.close()


def test_traffic_of_a_gpu_is_that_of_the_kernel_on_it() -> None:
    library = Library(Clock(), transmit=3e9)
    found = watched(gpus(), several(library), 2, -1.0, 3.0)
    assert found == pytest.approx(
        {PCIE_FIGURE: 0.97 * 3e9 + 2e8, GPU_BUSY_FIGURE: 0.8, "gpu busy": 0.34, "gpu memory busy": 0.55}, rel=0.2
    )


def test_of_a_gpu_that_several_share_nobody_knows_whose_it_is() -> None:
    zero_s, watch = time.monotonic(), MachineMonitor(gpus(slots=2), [lambda sleep: several(Library(Clock()))])
    watch.set_busy(True)
    wait_until(lambda: watch.during(1, zero_s - 1.0, zero_s + 3.0))
    assert watch.during(1, zero_s - 1.0, zero_s + 3.0, alone=False) == {}
    watch.close()


def test_what_a_machine_does_not_have_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def missing(sleep: Callable[[float], None]) -> Any:
        raise DataError("no such thing is here", hint="install it")

    for _ in range(2):
        MachineMonitor(machine(), [missing])
    assert [record.getMessage() for record in caplog.records] == ["no such thing is here; install it"]


def test_figures_have_a_mean_and_a_spread() -> None:
    seen = FigureStatistics()
    for value in (1.0, 2.0, 6.0):
        seen.add(value)
    assert (seen.runs, seen.mean, seen.squares) == (3, pytest.approx(3.0), pytest.approx(3 * np.var([1, 2, 6])))


def test_who_is_told_hears_of_gpus_by_their_number_among_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,7")
    heard: set[str] = set()
    library = Library(Clock())
    watch = MachineMonitor(gpus(), [lambda sleep: several(library)], lambda place, *window: heard.add(place))
    watch.set_busy(True)
    wait_until(lambda: len(watch._windows.get("GPU-1", ())) >= 20)
    watch.close()
    assert heard == {"GPU-0"}  # ours is the second of the machine; its first is none of ours
