"""A perf that counts while kernels run: what its readings say of rows, and that nothing it does harms a run."""

from __future__ import annotations

import json
import logging
import mmap
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import symphony as sy
from symphony.problem.topology import Device, Hop, Resource, Topology
from symphony.runtime import memory_counter as module
from symphony.runtime.memory_counter import MAX_BLANK_WINDOWS, MemoryCounter
from symphony.telemetry import memory
from symphony.telemetry.memory import MemoryEvents
from symphony.telemetry.sources import Replay
from symphony.telemetry.sources.perf import PerfSource, paranoid
from tests.runtime.machines import machine
from tests.telemetry.sources.test_perf import Make, stand_in
from tests.waiting import has_ended, wait_until

__all__ = ["stand_in"]  # a fixture
IMC = MemoryEvents(
    ("uncore_imc/cas_count_read,name=memory.0/", "uncore_imc/cas_count_write,name=memory.1/"), 64 / 2**20, "MiB"
)
FAULTS = MemoryEvents(("software/config=0x2,name=memory.0/",))  # page faults, for want of anything better to count
MAY = shutil.which("perf") is not None and (os.geteuid() == 0 or (paranoid() or "2") in ("-1", "0"))
needs_perf = pytest.mark.skipif(not MAY, reason="needs perf, and permission to count everything")


def sockets() -> Topology:
    """Two, with a memory of 10 GB/s each."""
    found = machine()
    rows = (*found.resources, Resource("far", "memory", 1e10, "here"))
    second = Device("here/cpu-1", "small", "here", "rack", "s1", "sw1", (Hop("cpu/compute"), Hop("far", (1, 2, 3))))
    return replace(found, resources=rows, devices=(*found.devices, second))


def line(time_s: float, socket: int, event: str, value: str, unit: str, running_s: float, percent: float = 100) -> str:
    """As `perf stat -I 100 -j --per-socket -a` of Linux 6.1 writes it."""
    return (
        f'{{"interval" : {time_s:.9f}, "socket" : "S{socket}", "aggregate-number" : 8, "counter-value" : "{value}", '
        f'"unit" : "{unit}", "event" : "{event}", "event-runtime" : {round(running_s * 1e9)}, '
        f'"pcnt-running" : {percent:.2f}, "metric-value" : 0.000000, "metric-unit" : ""}}\n'
    )


def log_of(reads: tuple[float, float], writes: tuple[float, float], windows: int = 10) -> str:
    """Bytes per second of two sockets, eight channels each, beside the clock of 16 CPUs each."""
    text = ""
    for k in range(1, windows + 1):
        for socket in (0, 1):
            for event, rates in (("memory.0", reads), ("memory.1", writes)):
                text += line(k / 10, socket, event, f"{rates[socket] / 10 / 2**20:.6f}", "MiB", 0.8)
            text += line(k / 10, socket, "cpu-clock", "1600.000000", "msec", 1.6)
    return text


class Heard:
    """Keeps what is told."""

    def __init__(self) -> None:
        self.used: list[Mapping[str, tuple[float, float]]] = []
        self.spans: list[tuple[float, float]] = []
        self.some = threading.Event()

    def __call__(self, used: Mapping[str, tuple[float, float]], began_s: float, ended_s: float) -> None:
        self.used.append(used)
        self.spans.append((began_s, ended_s))
        if len(self.used) >= 3:
            self.some.set()


def counted(
    topology: Topology, source: Callable[[], Any], what: MemoryEvents = IMC, **given: Any
) -> tuple[Heard, MemoryCounter]:
    heard = Heard()
    return heard, MemoryCounter(topology, what, heard, source=source, **given)


def over(counting: MemoryCounter) -> None:
    """Until it counts no more by itself."""
    counting.set_busy(True)
    counting._thread.join(60)
    assert not counting.alive


@pytest.fixture(autouse=True)
def forget_what_was_said() -> None:
    module._log_once.cache_clear()


def test_sockets_of_a_log_are_rows(tmp_path: Path) -> None:
    (tmp_path / "perf.json").write_text(log_of(reads=(2e9, 4e9), writes=(1e9, 2e9)))
    heard, counting = counted(sockets(), lambda: Replay(tmp_path / "perf.json"))
    over(counting)
    assert len(heard.used) == 9  # the first window has no time that is known
    for used in heard.used:
        assert {row: share for row, (share, _) in used.items()} == pytest.approx({"memory": 0.3, "far": 0.6}, rel=1e-3)
        assert all(std < 0.01 for _, std in used.values())


def test_a_machine_of_one_memory_has_what_both_sockets_tell(tmp_path: Path) -> None:
    (tmp_path / "perf.json").write_text(log_of(reads=(2e9, 4e9), writes=(1e9, 2e9)))
    heard, counting = counted(machine(), lambda: Replay(tmp_path / "perf.json"))
    over(counting)
    assert heard.used[-1]["memory"][0] == pytest.approx(0.9, rel=1e-3)


def test_a_socket_that_becomes_silent_does_not_hide_the_other(tmp_path: Path) -> None:
    """Its own memory, and a memory of which it counted a part, are not reported any more."""
    lines = log_of(reads=(2e9, 4e9), writes=(1e9, 2e9), windows=200).splitlines(keepends=True)
    (tmp_path / "perf.json").write_text("".join(x for k, x in enumerate(lines) if k // 6 < 20 or k % 6 < 3))
    heard, counting = counted(sockets(), lambda: Replay(tmp_path / "perf.json"))
    over(counting)
    assert len(heard.used) > 180
    assert heard.used[10].keys() == {"memory", "far"} and heard.used[-1].keys() == {"memory"}
    assert heard.used[-1]["memory"][0] == pytest.approx(heard.used[10]["memory"][0], rel=0.01)
    heard, counting = counted(machine(), lambda: Replay(tmp_path / "perf.json"))
    over(counting)
    assert 15 < len(heard.used) <= 20


def test_perf_is_asked_for_sockets_of_the_whole_machine(stand_in: Make, tmp_path: Path) -> None:
    perf = stand_in(log_of((2e9, 4e9), (1e9, 2e9)))
    heard, counting = counted(sockets(), lambda: IMC.source(100, perf))
    over(counting)
    asked = json.loads((tmp_path / "arguments").read_text())
    assert asked[-2:] == ["-a", "--per-socket"] and asked[asked.index("-e") + 1] == IMC.words[0]
    assert heard.used[-1]["far"][0] == pytest.approx(0.6, rel=1e-3)


@pytest.mark.parametrize("text", [log_of((2e9, 4e9), (1e9, 2e9)), "what is this?\n" * 5, ""])
def test_a_perf_that_dies_is_said_once(stand_in: Make, caplog: pytest.LogCaptureFixture, text: str) -> None:
    for _ in range(2):
        heard, counting = counted(sockets(), lambda: IMC.source(100, stand_in(text)))
        over(counting)
        assert bool(heard.used) is text.startswith("{")
    [said] = [record for record in caplog.records if record.name == "symphony.runtime"]
    assert said.levelno == logging.WARNING and "not counted any more" in said.getMessage()


def test_a_perf_that_goes_on_but_tells_nothing_is_ended(stand_in: Make, caplog: pytest.LogCaptureFixture) -> None:
    text = "".join(
        line(k / 10, 0, "memory.0", "<not supported>", "", 0.0) + line(k / 10, 0, "cpu-clock", "160.0", "msec", 1.6)
        for k in range(1, MAX_BLANK_WINDOWS + 10)
    )
    sources: list[PerfSource] = []

    def source() -> PerfSource:
        sources.append(IMC.source(100, stand_in(text, lasting=True)))
        return sources[-1]

    heard, counting = counted(sockets(), source)
    over(counting)
    assert not heard.used and "perf reports no values" in caplog.text
    [one] = sources
    assert one._process is not None and one._process.poll() is not None


def test_where_counting_is_not_permitted_nobody_is_bothered(stand_in: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for source in (lambda: IMC.source(100, stand_in(error="Access to performance monitoring is limited")),) * 2:
        over(counted(sockets(), source)[1])
    [said] = [record for record in caplog.records if record.name == "symphony.runtime"]
    assert said.levelno == logging.INFO and "not permitted" in said.getMessage()


def test_whatever_goes_wrong_with_a_source_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise ZeroDivisionError("division by zero")

    over(counted(sockets(), broken)[1])
    assert "ZeroDivisionError" in caplog.text


def test_before_anything_runs_nothing_is_begun() -> None:
    begun: list[bool] = []
    counting = counted(sockets(), lambda: begun.append(True))[1]
    counting.set_busy(False)
    counting.close()
    assert not begun and not counting.alive


@needs_perf
def test_the_real_perf_counts_while_something_runs_and_then_ends() -> None:
    topology = machine()
    sources: list[PerfSource] = []

    def source() -> PerfSource:
        sources.append(FAULTS.source(100))
        return sources[-1]

    heard, counting = counted(topology, source, FAULTS, idle_s=0.0)
    for times in (1, 2):
        began_s = time.monotonic()
        counting.set_busy(True)
        while not heard.some.wait(0.01):
            with closing(mmap.mmap(-1, 256 * 4096)) as pages:
                for page in range(256):
                    pages[4096 * page] = 1
        counting.set_busy(False)
        wait_until(lambda: sources[-1]._process is not None and sources[-1]._process.poll() is not None)
        assert len(sources) == times and counting.alive
        assert max(used["memory"][0] for used in heard.used) > 0
        assert all(began_s - 0.2 < start < end <= time.monotonic() for start, end in heard.spans)
        heard.used.clear()
        heard.spans.clear()
        heard.some.clear()
    counting.close()
    assert not counting.alive


@needs_perf
def test_perf_ends_with_a_process_that_is_killed() -> None:
    program = f"""
import os
from symphony.telemetry.memory import MemoryEvents
source = MemoryEvents({FAULTS.words!r}).source(100)
for sample in source.samples():
    print(source._process.pid, os.getpgid(source._process.pid) == os.getpgid(0), flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as counts:
        assert counts.stdout is not None
        pid, together = counts.stdout.readline().split()
        counts.kill()
    wait_until(lambda: has_ended(int(pid)))
    assert together == "False"  # what is meant to interrupt us does not reach it


@sy.kernel
def faults(seconds):
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        with closing(mmap.mmap(-1, 256 * 4096)) as pages:
            for page in range(256):
                pages[4096 * page] = 1


@sy.kernel
def spins(seconds):
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        pass


@needs_perf
def test_a_real_run_learns_by_counting_who_causes_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page faults stand for traffic. That is made up; perf, its readings, the kernels and the run are not."""
    monkeypatch.setattr(memory, "at_hand", lambda: FAULTS)
    topology = machine()
    topology = replace(topology, resources=(topology.resources[0], Resource("memory", "memory", 64 * 1e6, "here")))
    with sy.local(topology, profiles=tmp_path / "profiles.json") as cluster:
        for _ in range(8):
            for kernel in (faults, spins):
                graph = sy.graph(kernel.name)
                graph.task(kernel, 0.5)
                cluster.submit(graph).result()
        mean, deviation = cluster.others["memory"]
        [many, few] = (cluster.profiles.demand(kernel.key, "small").counted for kernel in (faults, spins))
        process = cluster._loop.observer.monitor._counting
        assert process is not None and process.alive
    assert 0 <= mean < 0.5 and deviation < 0.5
    assert many[1] > 0 and few[1] > 0 and many[0] > 3 * few[0]
    assert not process.alive
    assert "of the memory" in str(cluster.profiles)


def test_a_run_on_a_machine_that_cannot_count_goes_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "at_hand", lambda: None)
    with sy.local(machine(), profiles=tmp_path / "profiles.json") as cluster:
        graph = sy.graph("one")
        graph.task(spins, 0.3)
        cluster.submit(graph).result()
        assert cluster._loop.observer.monitor._counting is None and "memory" not in cluster.others
    assert not [thread for thread in threading.enumerate() if thread.name == "symphony-count"]
