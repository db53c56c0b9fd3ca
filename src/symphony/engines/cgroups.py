"""Control groups (version 2): the kernel's own bounds for users, jobs and worker processes.

    the cgroup of this process          must be writable: systemd delegates it (Delegate=yes), containers often own it
    ├── symphony-service                this process moves here: a group with processes cannot bound its children
    └── symphony-jobs-PID
        └── USER
            └── JOB
                └── WORKER              one worker process, and all that it starts: none can leave it

Without controllers (memory, pids, cpu) a group bounds nothing, but still says which processes are in it, counts their
CPU time, and ends them all at once.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import time
from pathlib import Path

CONTROLLERS = ("memory", "pids", "cpu")
CPU_PERIOD_US = 100_000
REMOVING_S = 2.0  # for killed processes to leave their group
SERVICE, JOBS = "symphony-service", "symphony-jobs"


class Cgroup:
    """A control group. It may vanish at any time, so that nothing here raises, except `enter`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def enter(self, pid: int) -> None:
        """Move a process here. Raises `OSError` if that is not allowed. Takes ten milliseconds and more."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        """Its processes, with those of the groups below."""
        below = [self.path, *self.path.rglob("*/")] if self.path.is_dir() else []
        return [int(word) for folder in below for word in _text(folder / "cgroup.procs").split()]

    def cpu_s(self) -> float:
        """CPU time of its processes so far, also of those that have ended."""
        return self.count("cpu.stat", "usage_usec") / 1e6

    def number(self, name: str) -> float:
        """A file with one number; NaN without the controller, inf for "max"."""
        text = _text(self.path / name).strip()
        return math.inf if text == "max" else float(text) if text else math.nan

    def count(self, name: str, key: str) -> int:
        """A number in a file of keys and numbers; 0 without the controller."""
        found = re.search(rf"^{key} (\d+)$", _text(self.path / name), re.MULTILINE)
        return int(found[1]) if found else 0

    def bound(self, memory: float, processes: float, cores: float) -> None:
        """Bound it, where it has the controllers."""
        if math.isfinite(memory):
            self._set("memory.max", str(int(memory)))
            self._set("memory.swap.max", "0")
        if math.isfinite(processes):
            self._set("pids.max", str(int(processes)))
        if math.isfinite(cores):
            self._set("cpu.max", f"{int(cores * CPU_PERIOD_US)} {CPU_PERIOD_US}")

    def end_together(self) -> None:
        """If the kernel has to kill one of its processes for memory, it kills all."""
        self._set("memory.oom.group", "1")

    def kill(self) -> None:
        """Kill all processes in it and below, also those that fork meanwhile."""
        self._set("cgroup.kill", "1")

    def removed(self) -> bool:
        """Remove it if it is empty; whether it is gone."""
        try:
            self.path.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def remove(self) -> bool:
        """Kill its processes and remove it with all below; whether it is gone."""
        self.kill()
        until = time.monotonic() + REMOVING_S
        while self.path.is_dir():
            for folder in sorted(self.path.rglob("*/"), key=lambda folder: -len(folder.parts)):
                Cgroup(folder).removed()
            if self.removed():
                break
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True

    def _set(self, name: str, value: str) -> None:
        with contextlib.suppress(OSError):
            (self.path / name).write_text(value)


class CgroupTree:
    """The groups of one engine."""

    def __init__(self, root: Path, controllers: frozenset[str]) -> None:
        self.root, self.controllers = Cgroup(root), controllers

    def user(self, user: str) -> Cgroup:
        return self._made(self.root.path / _file_name(user))

    def job(self, user: str, job: int) -> Cgroup:
        return self._made(self.user(user).path / str(job))

    def worker(self, user: str, job: int, name: str) -> Cgroup:
        leaf = Cgroup(self.job(user, job).path / name)
        leaf.path.mkdir(exist_ok=True)
        leaf.end_together()
        return leaf

    def _made(self, path: Path) -> Cgroup:
        if not path.is_dir():
            path.mkdir()
            _enable(path, self.controllers)
        return Cgroup(path)

    def close(self) -> None:
        self.root.remove()


def open_cgroups() -> tuple[CgroupTree | None, str]:
    """The groups for a new engine, or None; and why there are none, or why some controllers are missing."""
    base = own_cgroup()
    if base is None:
        return None, "this system has no cgroups of version 2"
    if not os.access(base, os.W_OK) or not os.access(base / "cgroup.procs", os.W_OK):
        return None, f"{base} is not writable; systemd-run --user --scope -p Delegate=yes makes one that is"
    _remove_abandoned(base)
    wanted = frozenset(CONTROLLERS) & set(_text(base / "cgroup.controllers").split())
    problem = _enable_below(base, wanted)
    root = base / f"{JOBS}-{os.getpid()}"
    try:
        root.mkdir()
    except OSError as error:
        return None, f"no group can be made in {base}: {error.strerror}"
    enabled = wanted & set(_text(root / "cgroup.controllers").split())
    _enable(root, enabled)
    missing = [name for name in CONTROLLERS if name not in enabled]
    note = f"no controller for {', '.join(missing)} in {base}{': ' if problem else ''}{problem}" if missing else ""
    return CgroupTree(root, enabled), note


def own_cgroup() -> Path | None:
    """The folder of the cgroup of this process."""
    mounts = re.findall(r"^\S+ \S+ \S+ (\S+) (\S+) .* - cgroup2 ", _text(Path("/proc/self/mountinfo")), re.MULTILINE)
    own = re.search(r"^0::(/.*)$", _text(Path("/proc/self/cgroup")), re.MULTILINE)
    if not mounts or own is None:
        return None
    path = own[1]
    if path.startswith(f"/{SERVICE}") or f"/{SERVICE}" in path:
        path = path.rpartition(f"/{SERVICE}")[0]  # an earlier engine of this process has moved it
    base = Path(mounts[0][1] + path)
    return base if base.is_dir() else None


def _enable_below(base: Path, wanted: frozenset[str]) -> str:
    """Let the groups below `base` have controllers; why that is not possible, or ""."""
    missing = wanted - set(_text(base / "cgroup.subtree_control").split())
    problem = _enable(base, missing)
    if problem != errno.EBUSY:
        return os.strerror(problem) if problem else ""
    # Processes are in the way. If all are ours, they can move.
    service = base / SERVICE
    present = {int(word) for word in _text(base / "cgroup.procs").split()}
    if not present <= _ours():
        return (
            "other programs run in the same group; start the service in its own: "
            "systemd-run --scope -p Delegate=yes symphony serve"
        )
    try:
        service.mkdir(exist_ok=True)
        for pid in sorted(present):
            with contextlib.suppress(ProcessLookupError):
                Cgroup(service).enter(pid)
    except OSError as error:
        return str(error.strerror)
    problem = _enable(base, missing)
    return os.strerror(problem) if problem else ""


def _ours() -> set[int]:
    from symphony.engines.processes import tree

    return {os.getpid(), *tree(os.getpid())}


def _enable(path: Path, controllers: frozenset[str] | set[str]) -> int:
    """Let the groups below have controllers, one by one; the number of the last error, 0 if there was none."""
    problem = 0
    for name in sorted(controllers):
        try:
            (path / "cgroup.subtree_control").write_text(f"+{name}")
        except OSError as error:
            problem = error.errno or errno.EIO
    return problem


def _remove_abandoned(base: Path) -> None:
    """End what services have left that were killed, with all of their jobs' processes."""
    for old in base.glob(f"{JOBS}-*"):
        try:
            os.kill(int(old.name.rpartition("-")[2]), 0)
        except ProcessLookupError:
            Cgroup(old).remove()
        except (OSError, ValueError):
            continue


def _file_name(user: str) -> str:
    """A different name for every user, without dots and slashes."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"%{ord(found[0]):x}.", user)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
