"""Containment: what jobs and users may use of this machine, and who holds them to it.

The administrator writes the limits into a file (`symphony serve --limits FILE`):

    [job]                    # each job
    memory = "8 GB"          # of all of its processes together
    processes = 200          # with threads
    cpu_time = "10 h"
    time = "2 h"             # since its first task started
    disk = "20 GB"           # of its temporary folder and its values; also the largest file that it can write
    cores = 4                # at once

    [user]                   # all jobs of a user together: memory, processes, disk, cores, and
    memory = "16 GB"
    running_jobs = 8         # jobs beyond it wait
    slots = 16               # of devices at once: a task holds one for each of its cores or workers
    device_time_per_day = "100 h"  # no more jobs start in 24 hours after so much

    [users.ann]              # instead of [user]
    memory = "64 GB"

Where cgroups are delegated to the service, Linux enforces memory, processes and cores. A thread (`Supervisor`) measures
the rest, and all of it where there are no cgroups, every `MEASURE_S`. Work beyond a limit is ended.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from symphony.engines import processes
from symphony.engines.cgroups import Cgroup, CgroupTree
from symphony.problem import units
from symphony.problem.errors import InputError

MEASURE_S = 0.2
DISK_MEASURE_S = 2.0  # a folder may hold many files
MAX_COUNTED_FILES = 100_000  # of a folder; the rest is not counted
DIMENSIONS = {
    "memory": "bytes",
    "processes": "number",
    "cpu_time": "seconds",
    "time": "seconds",
    "disk": "bytes",
    "cores": "number",
}
OF_USERS = ("memory", "processes", "disk", "cores")  # the rest has no meaning for all jobs of a user together
QUOTAS = {"running_jobs": "number", "slots": "number", "device_time_per_day": "seconds"}  # of users; the service keeps
KERNEL_HINT = "use less memory, or ask for more: @sy.kernel(memory=…)"
POLICY_HINT = "use less; the administrator of the service sets limits with symphony serve --limits FILE"


@dataclass(frozen=True)
class Allowance:
    """What a job, or a user, may use at most."""

    memory: float = math.inf  # bytes
    processes: float = math.inf
    cpu_time: float = math.inf  # seconds
    time: float = math.inf  # seconds
    disk: float = math.inf  # bytes
    cores: float = math.inf
    running_jobs: float = math.inf  # quotas of users
    slots: float = math.inf
    device_time_per_day: float = math.inf  # seconds

    def __bool__(self) -> bool:
        return any(math.isfinite(getattr(self, one.name)) for one in fields(self))


@dataclass(frozen=True)
class Containment:
    """The policy of an administrator."""

    job: Allowance = Allowance()
    user: Allowance = Allowance()
    users: Mapping[str, Allowance] = field(default_factory=dict)
    own_accounts: bool = False  # run the jobs of each user as the operating system's user of the same name

    @property
    def of_users(self) -> tuple[Allowance, ...]:
        return self.user, *self.users.values()

    def of_user(self, user: str) -> Allowance:
        return self.users.get(user, self.user)

    @property
    def limits(self) -> set[str]:
        """Names of what is limited for anybody."""
        everybody = (self.job, *self.of_users)
        return {name for name in DIMENSIONS for one in everybody if math.isfinite(getattr(one, name))}


def read_limits(path: Path) -> Containment:
    """The policy in a file."""
    where = str(path)
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(
            f"it cannot be read: {error.strerror}", where=where, hint="name a file: --limits FILE"
        ) from None
    except ValueError as error:  # also text that is not UTF-8
        raise InputError(f"it is not TOML: {error}", where=where, hint='write [job] and memory = "8 GB"') from None
    for name in tables:
        _check_name(name, ("job", "user", "users"), where, "one of its tables")
    users = _table(tables.get("users", {}), f"{where}: users")
    return Containment(
        _allowance(tables.get("job", {}), tuple(DIMENSIONS), f"{where}: job"),
        _allowance(tables.get("user", {}), (*OF_USERS, *QUOTAS), f"{where}: user"),
        {user: _allowance(table, (*OF_USERS, *QUOTAS), f"{where}: users.{user}") for user, table in users.items()},
    )


def _allowance(table: Any, names: Sequence[str], where: str) -> Allowance:
    for name in _table(table, where):
        _check_name(name, names, where, "a limit")
    units_of = DIMENSIONS | QUOTAS
    parsed = {name: units.parse(value, units_of[name], where=f"{where}: {name}") for name, value in table.items()}
    for name, value in parsed.items():
        if not value:
            raise InputError(f"{name} is 0", where=where, hint="write a limit above 0, or leave it out")
    return Allowance(**parsed)


def _table(table: Any, where: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise InputError("it is not a table", where=where, hint='write [job] and memory = "8 GB"')
    return table


def _check_name(name: str, known: Sequence[str], where: str, what: str) -> None:
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"use {', '.join(known)}"
        raise InputError(f"{name!r} is not {what}", where=where, hint=hint)


def enforcement(containment: Containment, groups: CgroupTree | None, note: str) -> list[str]:
    """Who enforces what, in sentences."""
    controllers = groups.controllers if groups is not None else frozenset()
    kernel = [name for name, by in (("memory", "memory"), ("processes", "pids"), ("cores", "cpu")) if by in controllers]
    limited = containment.limits
    text = []
    if kernel:
        text.append(f"{_listed(kernel)} of jobs: bounded by cgroups")
    measured = sorted(limited - set(kernel) - {"cores"})
    if measured:
        text.append(f"{_listed(measured)} of jobs: measured every {MEASURE_S:g} s (disk: {DISK_MEASURE_S:g} s)")
    if "cores" in limited and "cores" not in kernel:
        text.append("cores of jobs: not enforced without cgroups; workers are pinned to the cores of their slots")
    quotas = [name for name in QUOTAS if any(math.isfinite(getattr(one, name)) for one in containment.of_users)]
    if quotas:
        text.append(f"{_listed(quotas)} of users: by the order of admission")
    unlimited = [name for name in DIMENSIONS if name not in limited]
    if unlimited:
        text.append(f"not limited: {', '.join(unlimited)} (--limits FILE)")
    text.append(
        "processes of a job end with it: by cgroups"
        if groups is not None
        else "processes of a job end with it: by their process tree"
    )
    if note:
        text.append(note)
    text.append(
        "jobs run as the user who submitted them"
        if containment.own_accounts
        else "jobs run as the user who serves (--run-as user)"
    )
    return text


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# --- supervision


@dataclass(frozen=True)
class Watched:
    """A worker process that has run work of a job."""

    worker: str
    pid: int
    user: str
    job: int
    began_s: float  # when the first work of the job started, on the clock of `time.monotonic`
    attempt: int = -1  # that it runs; -1 = it is idle, but may have left processes
    memory: float = math.inf  # bytes that the kernel asked for
    group: Cgroup | None = None
    folders: tuple[str, ...] = ()  # with the files of the job


class Breach(NamedTuple):
    """A worker beyond a limit."""

    worker: str
    attempt: int
    message: str
    hint: str


class Supervisor:
    """A thread that measures workers and reports those beyond a limit. It runs only while workers are watched."""

    def __init__(self, containment: Containment, groups: CgroupTree | None, report: Callable[[Breach], None]) -> None:
        self._containment, self._report = containment, report
        self._controllers = groups.controllers if groups is not None else frozenset()
        self._watched: dict[str, Watched] = {}
        self._spent: dict[tuple[str, int], float] = {}  # CPU seconds of workers that have ended, by job
        self._cpu: dict[str, float] = {}  # CPU seconds of each worker at the last measurement
        self._disk: dict[tuple[str, int], tuple[float, float]] = {}  # bytes of a job's files, and when that was
        self._refused: dict[Path, int] = {}  # forks that each group has refused so far
        self._lock, self._wake, self._closing = threading.Lock(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, one: Watched) -> None:
        """Watch a worker from now on, in its new state."""
        with self._lock:
            self._watched[one.worker] = one
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="symphony-limits", daemon=True)
                self._thread.start()
        self._wake.set()

    def forget(self, worker: str) -> None:
        """A worker has ended."""
        with self._lock:
            one = self._watched.pop(worker, None)
            if one is not None:
                job = one.user, one.job
                if one.group is not None:
                    self._refused.pop(one.group.path / "pids.events", None)
                self._spent[job] = self._spent.get(job, 0.0) + self._cpu.pop(worker, 0.0)

    def job_over(self, user: str, job: int) -> None:
        with self._lock:
            self._spent.pop((user, job), None)
            self._disk.pop((user, job), None)

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            with self._lock:
                watched = list(self._watched.values())
            if not watched:
                self._wake.wait()
                self._wake.clear()
                continue
            for breach in self.breaches(watched, time.monotonic()):
                self._report(breach)
            self._closing.wait(MEASURE_S)

    def breaches(self, watched: Sequence[Watched], now_s: float) -> Iterator[Breach]:
        """Those beyond a limit at present."""
        found = processes.all_processes() if any(one.group is None for one in watched) else None
        used = {}
        for one in watched:
            pids = [one.pid, *processes.tree(one.pid, found)] if one.group is None else one.group.pids()
            usage = processes.usage(pids, found)
            cpu_s = usage.cpu_s if one.group is None else one.group.cpu_s()
            used[one.worker] = usage._replace(cpu_s=cpu_s)
            self._cpu[one.worker] = cpu_s
            if "memory" not in self._controllers and usage.memory > one.memory:
                text = _beyond("memory", usage.memory, one.memory, "the kernel asked for")
                yield Breach(one.worker, one.attempt, text, KERNEL_HINT)
        jobs: dict[tuple[str, int], list[Watched]] = {}
        users: dict[str, list[Watched]] = {}
        for one in watched:
            jobs.setdefault((one.user, one.job), []).append(one)
            users.setdefault(one.user, []).append(one)
        for job, members in jobs.items():
            yield from self._of_job(job, members, used, now_s)
        for user, members in users.items():
            yield from self._of_user(user, members, used)

    def _of_job(
        self, job: tuple[str, int], members: list[Watched], used: dict[str, processes.ProcessUsage], now_s: float
    ) -> Iterator[Breach]:
        limit, whose = self._containment.job, "a job may use"
        yield from self._at_once(limit, members, used, whose, levels=1)
        cpu_s = self._spent.get(job, 0.0) + sum(used[one.worker].cpu_s for one in members)
        wall_s = now_s - min(one.began_s for one in members)
        for name, value in (("cpu_time", cpu_s), ("time", wall_s), ("disk", self._bytes(job, members, now_s))):
            most = getattr(limit, name)
            if value > most:
                for one in members:
                    yield Breach(one.worker, one.attempt, _beyond(name, value, most, whose), POLICY_HINT)

    def _of_user(self, user: str, members: list[Watched], used: dict[str, processes.ProcessUsage]) -> Iterator[Breach]:
        limit, whose = self._containment.of_user(user), f"all jobs of {user} may use"
        yield from self._at_once(limit, members, used, whose, levels=2)
        size = sum(self._disk.get(job, (0.0, 0.0))[0] for job in {(one.user, one.job) for one in members})
        if size > limit.disk:
            largest = max(members, key=lambda one: self._disk.get((one.user, one.job), (0.0, 0.0))[0])
            for one in members:
                if one.job == largest.job:
                    yield Breach(one.worker, one.attempt, _beyond("disk", size, limit.disk, whose), POLICY_HINT)

    def _at_once(
        self, limit: Allowance, members: list[Watched], used: dict[str, processes.ProcessUsage], whose: str, levels: int
    ) -> Iterator[Breach]:
        """Limits on the sum of all workers, whose groups have a common one so many `levels` above: the one that uses
        most is reported.
        """
        for name, controller in (("memory", "memory"), ("processes", "pids")):
            if controller in self._controllers:
                continue
            value, most = sum(getattr(used[one.worker], name) for one in members), getattr(limit, name)
            if value > most:
                worst = max(members, key=lambda one: getattr(used[one.worker], name))
                yield Breach(worst.worker, worst.attempt, _beyond(name, value, most, whose), POLICY_HINT)
        if "pids" in self._controllers and math.isfinite(limit.processes):
            # Linux counts refused forks in the group that forks, since 6.11 in the one whose limit was reached.
            groups = [one.group for one in members if one.group is not None]
            files = {group.path.parents[levels - 1] / "pids.events.local" for group in groups}
            files |= {group.path / "pids.events" for group in groups}
            if any([self._has_refused(file) for file in files]):
                worst = max(members, key=lambda one: used[one.worker].processes)
                text = f"processes: it tried to start more than the {limit.processes:g} that {whose}"
                yield Breach(worst.worker, worst.attempt, text, POLICY_HINT)

    def _has_refused(self, file: Path) -> bool:
        """Whether a group has refused a fork since the last call."""
        before, self._refused[file] = self._refused.get(file, 0), Cgroup(file.parent).count(file.name, "max")
        return self._refused[file] > before

    def _bytes(self, job: tuple[str, int], members: list[Watched], now_s: float) -> float:
        """Bytes of a job's files."""
        if not math.isfinite(min(self._containment.job.disk, self._containment.of_user(job[0]).disk)):
            return 0.0
        size, at_s = self._disk.get(job, (0.0, -math.inf))
        if now_s < at_s + DISK_MEASURE_S:
            return size
        prefixes = tuple(f"{one.worker}-" for one in members)
        folders = {folder for one in members for folder in one.folders}
        size = float(sum(_folder_bytes(folder, prefixes) for folder in folders))
        self._disk[job] = size, now_s
        return size


def memory_breach(one: Watched, containment: Containment) -> tuple[str, str]:
    """Message and hint if the kernel has killed a worker for its memory; ("", "") if it has not."""
    group = one.group
    if group is None or not group.count("memory.events", "oom_kill"):
        return "", ""
    if group.count("memory.events.local", "oom"):
        return f"memory: it needed more than the {units.show(one.memory, 'bytes')} the kernel asked for", KERNEL_HINT
    above = Cgroup(group.path.parent)
    for level, limit, whose in (
        (above, containment.job, "a job may use"),
        (Cgroup(above.path.parent), containment.of_user(one.user), f"all jobs of {one.user} may use"),
    ):
        if math.isfinite(limit.memory) and level.count("memory.events.local", "oom"):
            return f"memory: it needed more than the {units.show(limit.memory, 'bytes')} {whose}", POLICY_HINT
    return "memory: the machine had none left", "use less memory, or run less at once"


def _beyond(name: str, value: float, most: float, whose: str) -> str:
    dimension = DIMENSIONS[name]
    return f"{name}: it used {units.show(value, dimension)}, more than the {units.show(most, dimension)} {whose}"


def _folder_bytes(folder: str, prefixes: tuple[str, ...]) -> int:
    """Bytes on disk below a temporary folder of a job; of the folder of values, only of files of its workers."""
    total, counted, open_folders = 0, 0, [folder]
    shared = os.path.exists(os.path.join(folder, "owner"))
    while open_folders and counted < MAX_COUNTED_FILES:
        with contextlib.suppress(OSError), os.scandir(open_folders.pop()) as entries:
            for entry in entries:
                counted += 1
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        open_folders.append(entry.path)
                    elif not shared or entry.name.startswith(prefixes):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total
