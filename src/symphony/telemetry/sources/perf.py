"""Runs `perf stat`, as a counter source.

    source = PerfSource([["cycles", "instructions"], ["cache-misses"]], command=["make", "-j8"])
    for sample in source.samples(): ...
    source.exit_status

perf writes its numbers to a separate pipe, so the command's output is unchanged. The command is started here and
stopped until perf counts it, because `perf stat -I` does not report the command's exit status.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import IO

import numpy as np

from symphony.problem.errors import DataError, InputError
from symphony.telemetry.naming import bare, is_software
from symphony.telemetry.samples import Problem, Sample
from symphony.telemetry.sources.perf_log import PerfLines, lines_of
from symphony.telemetry.sources.problems import Problems

MIN_INTERVAL_MS = 1  # perf refuses less
_PERF_STOP_TIMEOUT_S = 5.0  # after an interrupt, before a stronger signal
_PERF_SLEEP_TIMEOUT_S = 0.1  # for perf to return to its wait
_CPU_CLOCKS = {"cpu-clock", "task-clock"}
NO_PMU_PROBLEM = (
    "this machine has no performance counters that perf can reach (a virtual machine?): "
    "hardware events are <not supported>, and unknown"
)


class PerfSource:
    """`perf stat` for a command, for processes, for CPUs or (`system_wide`) for the whole machine.

    `groups`: events, in perf's syntax, to be counted at the same times. perf splits a `weak` group that does not fit
    the counters. `per_cpu` and `per_socket` make a place of each CPU or socket, with `cpus` ("0-3,8") or `system_wide`;
    with those, a `command` only determines the duration. A clock of the kernel is always counted, if necessary as a
    last group: only that gives the exact enabled time. With `apart`, perf does not receive ctrl-C.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[str]],
        *,
        command: Sequence[str] = (),
        pids: Sequence[int] = (),
        cpus: str = "",
        system_wide: bool = False,
        per_cpu: bool = False,
        per_socket: bool = False,
        weak: bool = True,
        interval_ms: int = 100,
        apart: bool = False,
        perf: str = "perf",
    ) -> None:
        if not groups or not all(groups) or not all(event.strip() for group in groups for event in group):
            raise InputError("a group without events", hint='groups=[["cycles", "instructions"], ["cache-misses"]]')
        if interval_ms < MIN_INTERVAL_MS:
            raise InputError(f"an interval of {interval_ms} ms", hint="interval_ms=100")
        if bool(pids) + bool(cpus or system_wide) > 1 or not (pids or cpus or system_wide or command):
            raise InputError(
                "there is not exactly one target to count",
                hint="pass one of command=, pids=, cpus= and system_wide=True",
            )
        if pids and command:
            raise InputError("both a command and processes", hint="pass command= or pids=")
        if (per_cpu or per_socket) and not (cpus or system_wide):
            raise InputError("per_cpu and per_socket need CPUs to count", hint="system_wide=True, per_cpu=True")
        if per_cpu and per_socket:
            raise InputError("both per_cpu and per_socket", hint="pass per_cpu=True or per_socket=True")
        if command and shutil.which(command[0]) is None:
            raise InputError(f"there is no command {command[0]!r}", hint="give its path, or install it")
        self._groups, self._command, self._weak = [list(group) for group in groups], list(command), weak
        if not any(bare(event) in _CPU_CLOCKS for group in groups for event in group):
            self._groups.append(["cpu-clock" if cpus or system_wide else "task-clock"])
        self._where = ["-p", ",".join(map(str, pids))] if pids else ["-C", cpus] if cpus else []
        self._where += ["-a"] if system_wide and not cpus else []
        self._where += ["-A"] if per_cpu else ["--per-socket"] if per_socket else []
        self._interval_ms, self._apart, self._perf = interval_ms, apart, perf
        self._own, self._lines = Problems(), PerfLines(())
        self._process: subprocess.Popen[bytes] | None = None
        self._counted: subprocess.Popen[bytes] | None = None  # the command
        self._printed_s = 0.0  # the end of perf's last window
        self.cuts = bool(cpus or system_wide)  # whether counts are of CPUs, not of the command alone
        self.exit_status: int | None = None  # of the command, after it has ended
        self.first_read_s: float | None = None  # monotonic, as all three: perf counts from here
        self.began_s: float | None = None  # of the command
        self.ended_s: float | None = None
        self.on_begin: Callable[[], None] = lambda: None  # called when all is ready to start the command
        self.on_end: Callable[[], None] = lambda: None  # called as soon as the command has ended

    @property
    def problems(self) -> Sequence[Problem]:
        """What could not be counted or read so far; a missing PMU is the first problem."""
        return [*self._own, *self._lines.problems]

    @property
    def units(self) -> dict[str, str]:
        """The unit of each event's counts, by name."""
        return self._lines.units

    @property
    def unsupported(self) -> frozenset[str]:
        """Events that this machine cannot count."""
        return frozenset(self._lines.unsupported)

    def samples(self) -> Iterator[Sample]:
        """Starts perf and yields windows as they end; stops perf when the caller stops iterating."""
        path = shutil.which(self._perf)
        if path is None:
            raise DataError(
                "perf is not installed", hint="install it (Debian: linux-perf; Ubuntu: linux-tools-generic)"
            )
        with ExitStack() as stack:
            stack.callback(self.stop)
            messages = stack.enter_context(tempfile.TemporaryFile())  # perf's messages
            figures, figures_in = _pipe(stack)
            orders, orders_in = _pipe(stack)
            answers, answers_in = _pipe(stack)
            where = self._where
            if self._command:
                self._counted = _held_back(self._command)
                where = where or ["-p", str(self._counted.pid)]
            pipes = (figures_in.fileno(), orders.fileno(), answers_in.fileno())
            try:
                self._process = subprocess.Popen(
                    [path, "stat", *self._options(*pipes), *where],
                    pass_fds=pipes,
                    stdin=subprocess.DEVNULL,
                    stderr=messages,
                    process_group=0 if self._apart else None,
                )
            except OSError as error:
                raise DataError(f"perf does not start: {error.strerror or error}", where=path) from None
            for file in (figures_in, orders, answers_in):
                file.close()
            self._begin(orders_in, answers, messages)
            self.first_read_s = time.monotonic()
            self.on_begin()
            if self._counted:
                self.began_s = time.monotonic()
                self._counted.send_signal(signal.SIGCONT)
                Thread(target=self._end_with, args=(self._counted, self._process), daemon=True).start()
            yield from self._read(figures)

    def stop(self) -> None:
        """End the command if it is running, and interrupt perf like ctrl-C, so that it writes its last window."""
        for process, first in ((self._counted, signal.SIGTERM), (self._process, signal.SIGINT)):
            for ending in (first, signal.SIGTERM, signal.SIGKILL):
                if process is not None and process.poll() is None:
                    process.send_signal(ending)
                    process.send_signal(signal.SIGCONT)  # the command may still be stopped
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_PERF_STOP_TIMEOUT_S)
        self.exit_status = self._counted.returncode if self._counted else None

    def _options(self, figures: int, orders: int, answers: int) -> list[str]:
        options = ["-I", str(self._interval_ms), "-j", "--log-fd", str(figures)]
        options += ["-D", "-1", "--control", f"fd:{orders},{answers}"]  # perf waits for orders, and confirms them
        for group in self._groups:
            together = f"{{{','.join(group)}}}{':W' if self._weak else ''}"
            options += ["-e", together if len(group) > 1 else group[0]]
        return options

    def _begin(self, orders: IO[bytes], answers: IO[bytes], messages: IO[bytes]) -> None:
        """Let perf start counting, and wait until it has."""
        assert self._process is not None
        with suppress(BrokenPipeError):
            orders.write(b"enable\n")
        if not answers.read(4):  # perf has exited
            self._process.wait()
            messages.seek(0)
            raise _failure(messages.read(1 << 16).decode("utf-8", errors="replace"))

    def _read(self, figures: IO[bytes]) -> Iterator[Sample]:
        self._lines = PerfLines(lines_of(figures), groups=self._groups, look_ahead=1)
        first = True
        for sample in self._lines.samples():
            if first:
                self._look_for_pmu(sample)
            first = False
            self._printed_s = max(self._printed_s, sample.start_s + sample.duration_s)
            yield sample
        if self.ended_s and self.first_read_s and self.ended_s - self.first_read_s > self._printed_s:
            lost_s = self.ended_s - self.first_read_s - self._printed_s
            whole = "any count" if first else f"the counts of the last {lost_s * 1e3:.3g} ms"
            self._own.add("perf", f"it ended without printing {whole}; run the command again")

    def _end_with(self, command: subprocess.Popen[bytes], perf: subprocess.Popen[bytes]) -> None:
        """Interrupt perf when the command has ended."""
        with suppress(ChildProcessError):  # `stop` was first
            os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)  # if it were reaped, perf would end by itself
        self.ended_s = time.monotonic()
        self.on_end()
        _wait_until_asleep(perf)
        perf.send_signal(signal.SIGINT)
        command.wait()

    def _look_for_pmu(self, sample: Sample) -> None:
        hardware = [at for at, column in enumerate(sample.columns) if not is_software(column.event)]
        if hardware and not np.any(sample.enabled_s[hardware]) and any("supported" in p.what for p in self.problems):
            self._own.add("perf", NO_PMU_PROBLEM)


def _pipe(stack: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    reading, writing = os.pipe()
    return stack.enter_context(open(reading, "rb")), stack.enter_context(open(writing, "wb", buffering=0))


def _held_back(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """A command that is stopped before its first instruction."""
    process = subprocess.Popen(["sh", "-c", 'kill -STOP $$; exec "$@"', "sh", *command])
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return process


def _wait_until_asleep(perf: subprocess.Popen[bytes]) -> None:
    """Wait until perf waits for its next window: it prints the last one only if a signal interrupts that wait."""
    end_s = time.monotonic() + _PERF_SLEEP_TIMEOUT_S
    with suppress(OSError):
        while perf.poll() is None and time.monotonic() < end_s:
            if b"poll" in Path(f"/proc/{perf.pid}/wchan").read_bytes():
                return
            time.sleep(2e-4)


def _failure(messages: str) -> DataError:
    """Why perf counts nothing, and what to type."""
    if any(word in messages.lower() for word in ("paranoid", "permission", "access to performance")):
        level = paranoid()
        now = f" (kernel.perf_event_paranoid is {level})" if level else ""
        return DataError(
            f"counting is not permitted to this user{now}",
            hint="sudo sysctl kernel.perf_event_paranoid=-1, or run it as root; a user's own commands need 2 or less",
        )
    if "finding threads" in messages or "No such process" in messages:
        return DataError("there is no such process", hint="`ps -e` lists the running processes")
    lines = [line.strip() for line in messages.splitlines() if line.strip().lower() not in ("", "error:")]
    return DataError(
        f"perf stat counts nothing: {lines[0] if lines else 'without a message'}",
        hint="`perf list` shows the events that this machine knows; perf 6.0 or later is needed",
    )


def paranoid(root: Path = Path("/")) -> str:
    """The kernel's setting `perf_event_paranoid`; "" if it has none."""
    try:
        return (root / "proc/sys/kernel/perf_event_paranoid").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
