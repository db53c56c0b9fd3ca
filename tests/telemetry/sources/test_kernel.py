"""The kernel's own figures, from files as they really look."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from symphony.problem.errors import DataError
from symphony.telemetry.samples import Sample
from symphony.telemetry.sources import kernel
from symphony.telemetry.sources.kernel import KernelSource
from symphony.testing import check_counter_source
from tests.telemetry.sources.clocks import Clock

NET = """\
Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo:    9631      88    0    0    0     0     0     0     9631      88    0    0    0     0     0     0
docker0: 90{faults} 9 0 0 0 0 0 0 800 8 0 0 0 0 0 0
  eth0:{rx} {packets}    0    0    0     0       0      0  2268452   26668    0    0    0     0    0    0
"""
IDLE = "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
FILES = {
    "proc/pressure/cpu": "some avg10=7.26 avg60=3.03 avg300=3.92 total={psi}\n" + IDLE,
    "proc/pressure/io": "some avg10=0.18 avg60=0.04 avg300=0.00 total=5\n" + IDLE,
    "proc/self/cgroup": "0::/user.slice/run.scope\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu io memory\n",
    "sys/fs/cgroup/user.slice/run.scope/cpu.stat": (
        "usage_usec {usage}\nuser_usec 31\nsystem_usec 19\nnr_periods 0\nnr_throttled 2\nthrottled_usec 70\n"
    ),
    "sys/fs/cgroup/user.slice/run.scope/memory.current": "{memory}\n",
    "sys/fs/cgroup/user.slice/run.scope/memory.stat": "anon 4096\npgfault {faults}\npgmajfault 1\n",
    "sys/fs/cgroup/user.slice/run.scope/io.stat": (
        "8:0 rbytes={read} wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n259:0 rbytes=100 wbytes=0 rios=1 wios=0\n"
    ),
    "proc/schedstat": (
        "version 15\ntimestamp 4295\ncpu0 0 0 0 0 0 0 {run} 2000 30\ndomain0 03 1 2 3\ncpu1 0 0 0 0 0 0 5000 6000 70\n"
    ),
    "proc/77/schedstat": "{run} 6794585 2\n",
    "proc/stat": (
        "cpu  {user} 20 30 40 50 0 6 7 0 0\ncpu0 5 5 5 5\nintr 1000 1 2 3\nctxt {switches}\nbtime 1\nprocesses 80\n"
    ),
    "proc/vmstat": "nr_free_pages 5\npgpgin 9\npgpgout 11\npswpin 0\npswpout 0\npgfault {faults}\npgmajfault 14\n",
    "proc/net/dev": NET,
}
BEFORE = {"psi": 100, "usage": 1000, "memory": 4096, "faults": 10, "read": 50, "run": 10**6, "user": 100, "switches": 5}
BEFORE |= {"rx": 2**32 - 1000, "packets": 10}
AFTER = {
    "psi": 350,
    "usage": 1700,
    "memory": 8192,
    "faults": 17,
    "read": 80,
    "run": 4 * 10**6,
    "user": 103,
    "switches": 9,
}
AFTER |= {"rx": 500, "packets": 12}


def write(root: Path, values: dict[str, int], files: dict[str, str] = FILES) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text.format(**values))
    (root / "sys/class/net/eth0/device").mkdir(parents=True, exist_ok=True)


class Changing(Clock):
    """While one sleeps, the files change."""

    def __init__(self, root: Path, *steps: dict[str, int], files: dict[str, str] = FILES) -> None:
        super().__init__()
        self._root, self._steps, self._files = root, list(steps), files

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        write(self._root, self._steps.pop(0), self._files)


def amounts(sample: Sample) -> dict[str, float]:
    return {column.event: float(count) for column, count in zip(sample.columns, sample.count, strict=True)}


def test_every_file_says_what_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_CLOCK_TICKS_PER_S", 100)
    write(tmp_path, BEFORE)
    clock = Changing(tmp_path, AFTER)
    source = KernelSource(root=tmp_path, windows=1, pid=77, clock=clock, sleep=clock.sleep)
    [sample] = source.samples()
    found = amounts(sample)
    expected = {
        "psi.cpu.some_us": 250,
        "psi.cpu.full_us": 0,
        "psi.io.some_us": 0,
        "cgroup.cpu.usage_us": 700,
        "cgroup.cpu.throttled_us": 0,
        "cgroup.memory.page_faults": 7,
        "cgroup.memory.used_byte_s": 614.4,
        "cgroup.io.read_bytes": 30,
        "sched.run_us": 3000,
        "sched.slices": 0,
        "process.run_us": 3000,
        "stat.user_us": 30_000,
        "stat.context_switches": 4,
        "vm.page_faults": 7,
        "net.receive_bytes": 1500,  # wrapped
        "net.receive_packets": 2,
        "net.transmit_bytes": 0,
    }
    assert {event: found[event] for event in expected} == pytest.approx(expected)
    assert not source.problems and "psi.memory.some_us" not in found
    assert {column.group for column in sample.columns} == {0}


def test_files_that_vanish_leave_nan_and_a_problem(tmp_path: Path) -> None:
    write(tmp_path, BEFORE)
    gone = {path: text for path, text in FILES.items() if "77" not in path}
    clock = Changing(tmp_path, AFTER, AFTER, files=gone)
    source = KernelSource(root=tmp_path, windows=2, pid=77, clock=clock, sleep=clock.sleep)
    samples = source.samples()
    next(samples)
    (tmp_path / "proc/77/schedstat").unlink()
    found = amounts(next(samples))
    assert np.isnan(found["process.run_us"]) and found["vm.page_faults"] == 0
    assert "/proc/77/schedstat: process.run_us is no longer there" in map(str, source.problems)


def test_cgroups_of_the_first_version(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/job\n2:cpuacct:/\n1:cpu:/hidden\n",
        "sys/fs/cgroup/cpuacct/cpuacct.usage": "{usage}000\n",
        "sys/fs/cgroup/cpu/cpu.stat": "nr_periods 0\nnr_throttled 3\nthrottled_time {psi}000\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "{memory}\n",
        "sys/fs/cgroup/memory/job/memory.stat": "pgfault 1\ntotal_pgfault {faults}\ntotal_pgmajfault 0\n",
        "sys/fs/cgroup/blkio/blkio.throttle.io_service_bytes": (
            "8:0 Read {read}\n8:0 Write 0\n8:0 Total {read}\n8:16 Read 7\nTotal {read}\n"
        ),
    }
    write(tmp_path, BEFORE, files)
    clock = Changing(tmp_path, AFTER, files=files)
    source = KernelSource(root=tmp_path, windows=1, clock=clock, sleep=clock.sleep)
    [sample] = source.samples()
    assert amounts(sample) == pytest.approx(
        {
            "cgroup.cpu.usage_us": 700,
            "cgroup.cpu.throttled_us": 250,
            "cgroup.cpu.throttled_periods": 0,
            "cgroup.memory.page_faults": 7,
            "cgroup.memory.major_faults": 0,
            "cgroup.memory.used_byte_s": 614.4,
            "cgroup.io.read_bytes": 30,
            "cgroup.io.written_bytes": 0,
        }
    )


def test_a_cgroup_can_be_named(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/cgroup.controllers": "cpu\n", "sys/fs/cgroup/other/cpu.stat": "usage_usec {usage}\n"}
    write(tmp_path, BEFORE, files)
    clock = Changing(tmp_path, AFTER, files=files)
    [sample] = KernelSource(root=tmp_path, windows=1, cgroup="/other", clock=clock, sleep=clock.sleep).samples()
    assert amounts(sample) == {"cgroup.cpu.usage_us": 700}


def test_where_there_is_nothing_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the kernel has no counters here"):
        KernelSource(root=tmp_path).samples()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(sorted(FILES)), st.binary(max_size=200), min_size=1, max_size=4))
def test_any_content(tmp_path: Path, contents: dict[str, bytes]) -> None:
    shutil.rmtree(tmp_path, ignore_errors=True)
    write(tmp_path, BEFORE)
    for path, content in contents.items():
        (tmp_path / path).write_bytes(content)
    clock = Clock()
    check_counter_source(KernelSource(root=tmp_path, windows=2, pid=77, clock=clock, sleep=clock.sleep))


def test_malformed_figures_are_named(tmp_path: Path) -> None:
    write(tmp_path, BEFORE | {"faults": -3})
    clock = Clock()
    source = KernelSource(root=tmp_path, windows=1, clock=clock, sleep=clock.sleep)
    [sample] = source.samples()
    assert "vm.page_faults" not in amounts(sample)
    assert any(str(problem).startswith("/proc/vmstat: vm.page_faults is '-3'") for problem in source.problems)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_this_machine() -> None:
    check_counter_source(KernelSource(interval_s=0.01, windows=3))
