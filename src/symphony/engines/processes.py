"""Trees of processes on this machine: their members, what they use, and how all of them are ended.

Used in the fork server and in workers, where Symphony may be missing: it must not import Symphony.

A process can leave its group and its session (a daemon does), but not its tree, if an ancestor adopts orphans: when its
parent ends, the next adopting ancestor becomes its parent. Every worker adopts orphans, and so does the fork server,
for workers that have ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

_SET_CHILD_SUBREAPER, _SET_DUMPABLE = 36, 4  # of prctl(2)
ENGINE_VARIABLE = "SYMPHONY_ENGINE"  # environment variable of the processes of an engine: names its folder
FIRST_TO_KILL = 1000  # of oom_score_adj: where memory runs out, the kernel kills such processes first
ENDING_S = 5.0  # for killed processes to end
try:
    _call_prctl: Any = ctypes.CDLL(None, use_errno=True).prctl  # before the forks: each would load it again
except (OSError, AttributeError):
    _call_prctl = None
_PAGE, _TICK = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


class ProcessUsage(NamedTuple):
    """What processes use at present."""

    memory: float = 0.0  # bytes of anonymous memory
    processes: int = 0  # with their threads
    cpu_s: float = 0.0  # CPU seconds so far, of those that have not ended and of the children that they waited for


class _Process(NamedTuple):
    parent: int
    zombie: bool
    threads: int
    cpu_s: float


def adopt_orphans() -> bool:
    """Become the parent of descendants that lose theirs; False where the system has no such call."""
    return _prctl(_SET_CHILD_SUBREAPER, 1)


def stay_readable() -> bool:
    """Let processes of the same user open /proc/PID/fd after a change of the user."""
    return _prctl(_SET_DUMPABLE, 1)


def _prctl(what: int, value: int) -> bool:
    return _call_prctl is not None and _call_prctl(what, value, 0, 0, 0) == 0


def be_killed_first() -> None:
    """Where memory runs out, the kernel kills this process and its children before others."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(FIRST_TO_KILL))


def all_processes() -> dict[int, _Process]:
    """The processes of this machine that this one can see."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            one = _read(int(name))
            if one is not None:
                found[int(name)] = one
    return found


def _read(pid: int) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    ticks = sum(int(word) for word in words[11:15])
    return _Process(int(words[1]), words[0] in (b"Z", b"X"), int(words[17]), ticks / _TICK)


def children() -> set[int] | None:
    """The children of this process, which has one thread; None where the system does not list them.

    A hundred times as fast as `all_processes`. Linux may leave out a child while another one ends: so it is asked
    twice.
    """
    found: set[int] = set()
    try:
        for _ in range(2):
            with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
                found.update(map(int, file.read().split()))
    except OSError:
        return None
    return found


def tree(root: int, found: dict[int, _Process] | None = None, without: Collection[int] = ()) -> list[int]:
    """Descendants of a process, parents first, without those in `without` and their descendants."""
    found = all_processes() if found is None else found
    children: dict[int, list[int]] = {}
    for pid, one in found.items():
        children.setdefault(one.parent, []).append(pid)
    inside, at = [root], 0
    while at < len(inside):
        inside += [pid for pid in children.get(inside[at], ()) if pid not in without]
        at += 1
    return inside[1:]


def usage(pids: Collection[int], found: dict[int, _Process] | None = None) -> ProcessUsage:
    """What these processes use together. Memory that they share since a fork counts for each."""
    memory, processes, cpu_s = 0, 0, 0.0
    for pid in pids:
        one = _read(pid) if found is None else found.get(pid)
        if one is None:
            continue
        cpu_s += one.cpu_s
        if not one.zombie:
            processes += one.threads
            memory += _anonymous(pid)
    return ProcessUsage(memory, processes, cpu_s)


def _anonymous(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            words = file.read().split()
    except OSError:
        return 0
    return (int(words[1]) - int(words[2])) * _PAGE


def end_all(list_them: Callable[[], Collection[int]], wait: bool = False) -> bool:
    """Kill processes until none is listed: they may start others meanwhile. Whether all have ended in time.

    `wait`: also wait for those that are children of this process, if no other code does.
    """
    until = time.monotonic() + ENDING_S
    while pids := list_them():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if wait:
            _reap(pids)
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def end_tree(root: int, without: Collection[int] = ()) -> bool:
    """Kill all descendants of a process, but not those in `without` and their descendants."""

    def left() -> list[int]:
        found = all_processes()
        # Zombies with another parent are that parent's to wait for: they have ended.
        return [pid for pid in tree(root, found, without) if not found[pid].zombie or found[pid].parent == os.getpid()]

    return end_all(left, wait=root == os.getpid())


def end_marked(folder: str) -> bool:
    """Kill all processes of an engine that has ended, wherever they are, unless they changed their environment."""
    mark = f"{ENGINE_VARIABLE}={folder}".encode()
    return end_all(lambda: [pid for pid, environment in _environments() if mark in environment])


def _environments() -> Iterator[tuple[int, list[bytes]]]:
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # empty for zombies
                yield int(name), file.read().split(b"\0")


def _reap(pids: Collection[int]) -> None:
    """Wait for those that are our children and have ended."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
