"""Counters that every Linux machine has without a PMU and without privileges: files of /proc and of cgroups.

    for sample in KernelSource(interval_s=0.1).samples(): ...

Events, all of them amounts over the window:

- `psi.cpu.some_us`, `psi.memory.full_us`, …: time for which some, or all, tasks waited for a resource;
- `cgroup.cpu.usage_us`, `cgroup.cpu.throttled_us`, `cgroup.memory.page_faults`, `cgroup.io.read_bytes`, …: of a cgroup,
  by default this process's own; `cgroup.memory.used_byte_s` is memory in use times the duration;
- `sched.run_us`, `sched.wait_us`, `sched.slices`: on CPUs, and waiting for one, all CPUs together;
- `process.run_us`, `process.wait_us`, `process.slices`: the same of one process (its first thread);
- `stat.user_us`, `stat.idle_us`, `stat.context_switches`, …: all CPUs together, in steps of 10 ms;
- `vm.page_faults`, `vm.swap_in_pages`, …; `net.receive_bytes`, `net.transmit_bytes`: of the devices, without loopback.

Events that a machine lacks are left out. An event that disappears later is NaN, and a problem.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from symphony.problem.errors import DataError, InputError
from symphony.telemetry.samples import Sample
from symphony.telemetry.sources.polling import Figure, Figures, PolledSource, Poller

FIGURE_GROUPS = ("psi", "cgroup", "sched", "stat", "vm", "net")
_MAX_PROC_FILE_BYTES = 1 << 20  # bytes of a file
_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_CPU_TIMES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_VMSTAT = {
    "pgfault": "vm.page_faults",
    "pgmajfault": "vm.major_faults",
    "pgpgin": "vm.read_kib",
    "pgpgout": "vm.written_kib",
    "pswpin": "vm.swap_in_pages",
    "pswpout": "vm.swap_out_pages",
    "numa_miss": "vm.numa_misses",
}
_CPU_STAT = {
    "usage_usec": "cgroup.cpu.usage_us",
    "user_usec": "cgroup.cpu.user_us",
    "system_usec": "cgroup.cpu.system_us",
    "throttled_usec": "cgroup.cpu.throttled_us",
    "nr_throttled": "cgroup.cpu.throttled_periods",
}
_MEMORY_STAT = {"pgfault": "cgroup.memory.page_faults", "pgmajfault": "cgroup.memory.major_faults"}
_IO_STAT = {
    "rbytes": "cgroup.io.read_bytes",
    "wbytes": "cgroup.io.written_bytes",
    "rios": "cgroup.io.reads",
    "wios": "cgroup.io.writes",
}

_Found = dict[str, Figure]


class KernelSource(PolledSource):
    """The kernel's counters, read every `interval_s`, `windows` times or forever.

    `about`: groups of events (the first parts of their names) to read; `cgroup`: a path below the mount point; `pid`
    adds a process; `where` is the name of the place; `root` is the folder of /proc and /sys.
    """

    def __init__(
        self,
        *,
        interval_s: float = 0.1,
        windows: int | None = None,
        about: Collection[str] = FIGURE_GROUPS,
        cgroup: str | None = None,
        pid: int | None = None,
        where: str = "",
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if unknown := sorted(set(about) - set(FIGURE_GROUPS)):
            raise InputError(
                f"there are no kernel counters {unknown[0]!r}", hint=f"use some of {', '.join(FIGURE_GROUPS)}"
            )
        self._root, self._about, self._cgroup, self._pid, self._where = root, about, cgroup, pid, where
        self._poller = Poller(self._read, interval_s, windows, clock, sleep)

    def samples(self) -> Iterator[Sample]:
        """A sample for each window, of one place: this machine."""
        if not self._read()[self._where]:
            raise DataError(
                "the kernel has no counters here", where=str(self._root / "proc"), hint="mount /proc, or use Linux"
            )
        return self._poller.samples()

    def _read(self) -> Figures:
        found: _Found = {}
        parts = (self._pressure, self._cgroup_2, self._cgroup_1, self._sched, self._stat, self._vm, self._net)
        for about, part in zip(("psi", "cgroup", "cgroup", "sched", "stat", "vm", "net"), parts, strict=True):
            for event, figure in part().items() if about in self._about else ():
                found.setdefault(event, figure)  # v2 takes precedence over v1, event by event: many machines have both
        return {self._where: found}

    def _lines(self, path: str) -> list[list[str]]:
        """The words of each line of a file; none if it cannot be read."""
        try:
            with (self._root / path).open("rb") as file:
                return [
                    line.split()
                    for line in file.read(_MAX_PROC_FILE_BYTES).decode("utf-8", errors="replace").splitlines()
                ]
        except OSError:
            return []

    def _total(self, found: _Found, event: str, text: str, path: str, scale: float = 1.0, part: str = "") -> None:
        """Add a total, or one of its parts, if the text is a number."""
        if not (text.isascii() and text.isdecimal() and len(text) <= 20):
            self._poller.problems.add(f"/{path}", f"{event} is {text[:40]!r}", kind=f"malformed {event}")
            return
        before = found[event].parts if part and event in found else {}
        found[event] = Figure({**before, part: int(text)}, f"/{path}", scale=scale)

    def _table(self, path: str, names: dict[str, str], scale: float = 1.0) -> _Found:
        """Totals from lines of a name and a number."""
        found: _Found = {}
        for words in self._lines(path):
            if len(words) == 2 and words[0] in names:
                self._total(found, names[words[0]], words[1], path, scale)
        return found

    # --- The whole machine

    def _pressure(self) -> _Found:
        found: _Found = {}
        for resource in ("cpu", "memory", "io"):
            path = f"proc/pressure/{resource}"
            for words in self._lines(path):
                total = next((word[6:] for word in words if word.startswith("total=")), None)
                if total is not None and words[0] in ("some", "full"):
                    self._total(found, f"psi.{resource}.{words[0]}_us", total, path)
        return found

    def _sched(self) -> _Found:
        found: _Found = {}
        for words in self._lines("proc/schedstat"):
            if words and words[0].startswith("cpu") and len(words) > 3:
                self._sched_totals(found, "sched", words[-3:], "proc/schedstat", words[0])
        if self._pid:
            path = f"proc/{self._pid}/schedstat"
            for words in self._lines(path)[:1]:
                self._sched_totals(found, "process", words, path)
        return found

    def _sched_totals(self, found: _Found, prefix: str, words: list[str], path: str, part: str = "") -> None:
        names = ("run_us", "wait_us", "slices")
        for event, text, scale in zip(names, words, (1e-3, 1e-3, 1.0), strict=False):
            self._total(found, f"{prefix}.{event}", text, path, scale, part)

    def _stat(self) -> _Found:
        found: _Found = {}
        path = "proc/stat"
        for words in self._lines(path):
            if words[:1] == ["cpu"]:
                for name, text in zip(_CPU_TIMES, words[1:], strict=False):
                    self._total(found, f"stat.{name}_us", text, path, 1e6 / _CLOCK_TICKS_PER_S)
            elif words[:1] == ["ctxt"] and len(words) == 2:
                self._total(found, "stat.context_switches", words[1], path)
            elif words[:1] == ["processes"] and len(words) == 2:
                self._total(found, "stat.forks", words[1], path)
            elif words[:1] == ["intr"] and len(words) > 1:
                self._total(found, "stat.interrupts", words[1], path)
        return found

    def _vm(self) -> _Found:
        return self._table("proc/vmstat", _VMSTAT)

    def _net(self) -> _Found:
        found: _Found = {}
        path = "proc/net/dev"
        lines = [" ".join(words).partition(":") for words in self._lines(path)]
        names = [name for name, colon, _ in lines if colon and name != "lo"]
        # Bridges and tunnels count the traffic of their devices again.
        devices = [name for name in names if (self._root / "sys/class/net" / name / "device").exists()]
        for name, _, rest in lines:
            words = rest.split()
            if name in (devices or names) and len(words) >= 10:
                for event, at in (("bytes", 0), ("packets", 1)):
                    self._total(found, f"net.receive_{event}", words[at], path, part=name)
                    self._total(found, f"net.transmit_{event}", words[8 + at], path, part=name)
        return found

    # --- The cgroup

    def _group_path(self, mount: str, controller: str) -> str:
        """The folder of the cgroup below a mount point; the mount point itself if namespaces hide it."""
        group = self._cgroup
        if group is None:
            for line in self._lines("proc/self/cgroup"):
                _, controllers, path = [*" ".join(line).split(":", 2), "", ""][:3]
                if controller in controllers.split(","):
                    group = path
        inside = f"{mount}/{(group or '').strip('/')}".rstrip("/")
        return inside if self._cgroup is not None or (self._root / inside).is_dir() else mount

    def _cgroup_2(self) -> _Found:
        mount = "sys/fs/cgroup"
        if not (self._root / mount / "cgroup.controllers").exists():
            mount = f"{mount}/unified"
        folder = self._group_path(mount, "")
        found = self._table(f"{folder}/cpu.stat", _CPU_STAT) | self._table(f"{folder}/memory.stat", _MEMORY_STAT)
        self._level(found, f"{folder}/memory.current")
        path = f"{folder}/io.stat"
        for words in self._lines(path):
            for name, equals, text in (word.partition("=") for word in words[1:]):
                if equals and name in _IO_STAT:
                    self._total(found, _IO_STAT[name], text, path, part=words[0])
        return found

    def _cgroup_1(self) -> _Found:
        mount = "sys/fs/cgroup"
        found: _Found = {}
        cpu, accounts, memory, block = (
            self._group_path(f"{mount}/{name}", name) for name in ("cpu", "cpuacct", "memory", "blkio")
        )
        path = f"{accounts}/cpuacct.usage"
        for words in self._lines(path):
            self._total(found, "cgroup.cpu.usage_us", "".join(words), path, 1e-3)
        found |= self._table(f"{cpu}/cpu.stat", {"throttled_time": "cgroup.cpu.throttled_us"}, 1e-3)
        found |= self._table(f"{cpu}/cpu.stat", {"nr_throttled": "cgroup.cpu.throttled_periods"})
        found |= self._table(f"{memory}/memory.stat", {f"total_{name}": event for name, event in _MEMORY_STAT.items()})
        self._level(found, f"{memory}/memory.usage_in_bytes")
        names = {"Read": "cgroup.io.read_bytes", "Write": "cgroup.io.written_bytes"}
        path = f"{block}/blkio.throttle.io_service_bytes"
        for words in self._lines(path):
            if len(words) == 3 and words[1] in names:
                self._total(found, names[words[1]], words[2], path, part=words[0])
        return found

    def _level(self, found: _Found, path: str) -> None:
        for words in self._lines(path):
            self._total(found, "cgroup.memory.used_byte_s", "".join(words), path)
        if figure := found.get("cgroup.memory.used_byte_s"):
            found["cgroup.memory.used_byte_s"] = Figure(figure.parts, figure.at, kind="level")
