"""The fork server of the local engine: a process that forks the workers and runs no kernel itself.

It imports once what nearly every kernel needs. A fork then takes a millisecond, where starting a Python process takes
fifty. So every job can have processes of its own, in which no other job has changed anything. The server has one
thread and may therefore fork; the process of the engine, which has JAX's threads, may not.

    engine ──► "fork", with the pipes of the worker ──► its pid           answers arrive in the order of the requests
           ──► "reap", a pid                        ──► its exit status

It adopts the processes that an ended worker leaves, and ends them. When the engine ends, in whatever way, the server
ends all workers and what they have started.

It runs as a script and loads `worker.py` from the same folder: Symphony need not be importable there.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

FORK, REAP = b"f", b"r"
REQUEST, ANSWER = "<cq", "<cq"  # kind, and a pid or an exit status
PIPES = 3  # of a worker: see `worker.main`
UNKNOWN = -signal.SIGKILL  # assumed where the exit status of a process is not known
PATIENCE_S = 10.0  # for killed processes to end
SWEEP_AFTER_S = 0.2  # from the end of a worker to the end of what it has left
SHARED = ("cloudpickle", "numpy")  # imported before the first fork


class ForkServer:
    """The engine's side. Every request names a `requester`, which is returned with the answer."""

    def __init__(self, environment: Mapping[str, str], cores: int = 1) -> None:
        """`cores`: for which `environment` sets the number of threads."""
        self._environment, self.cores = environment, cores
        self._asked: deque[tuple[bytes, Any]] = deque()
        self._child: subprocess.Popen | None = None
        self.socket: socket.socket | None = None
        self.crashed = False  # it has ended without ending what its workers had started

    @property
    def pid(self) -> int:
        """0 = it is not running."""
        return 0 if self._child is None else self._child.pid

    def start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **self._environment},
                start_new_session=True,  # an interrupt from the keyboard is ours to handle
            )
        ours.setblocking(False)
        self.socket = ours
        return ours

    def fork(self, pipes: Sequence[int], requester: Any) -> bool:
        """Request a worker with these pipes; False if the request could not be sent."""
        return self._ask(FORK, 0, requester, pipes)

    def reap(self, pid: int, requester: Any) -> bool:
        """Ask for the exit status of a process; False if the request could not be sent."""
        return self._ask(REAP, pid, requester, [])

    def _ask(self, what: bytes, number: int, requester: Any, descriptors: Sequence[int]) -> bool:
        if self.socket is None:
            return False
        try:
            socket.send_fds(self.socket, [struct.pack(REQUEST, what, number)], list(descriptors))
        except OSError:  # it has ended, which `answers` reports; or its buffer is full
            return False
        self._asked.append((what, requester))
        return True

    def answers(self) -> Iterator[tuple[bytes, Any, int]]:
        """Answers that have arrived: request, requester, number. Raises `EOFError` when the server has ended."""
        assert self.socket is not None
        while True:
            try:
                data = self.socket.recv(struct.calcsize(ANSWER))
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if len(data) != struct.calcsize(ANSWER) or not self._asked:
                raise EOFError
            what, number = struct.unpack(ANSWER, data)
            yield what, self._asked.popleft()[1], number

    def end(self, last: Iterable[int] = ()) -> list[tuple[bytes, Any]]:
        """End the server after it has reaped the `last` processes; requests that will not be answered."""
        with contextlib.suppress(OSError, EOFError):
            if self.socket is not None:
                self.socket.settimeout(PATIENCE_S)
                for pid in last:
                    self.reap(pid, None)
                self.socket.shutdown(socket.SHUT_WR)  # the server then ends, and so does `answers`
                for _ in self.answers():
                    pass
        if self._child is not None:
            self._child.kill()
            self.crashed |= self._child.wait() != 0
            self._child = None
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        lost, self._asked = list(self._asked), deque()
        return lost


# --- the process


def main(control: socket.socket) -> None:
    worker, processes = _load("worker"), _load("processes")
    processes.adopt_orphans()
    workers: set[int] = set()  # that run
    sweep_s = math.inf  # when to look for processes that ended workers have left
    for name in SHARED:
        with contextlib.suppress(Exception):  # a kernel that needs the module raises a better error
            __import__(name)
    gc.collect()
    gc.freeze()  # so that memory pages stay shared with the workers
    while True:
        left_s = sweep_s - time.monotonic()
        if left_s < math.inf and (left_s <= 0 or not select.select([control], [], [], left_s)[0]):
            if processes.children() != workers:
                processes.end_tree(os.getpid(), without=workers)
            sweep_s = math.inf
            continue
        data, descriptors, _, _ = socket.recv_fds(control, struct.calcsize(REQUEST), PIPES)
        if len(data) != struct.calcsize(REQUEST):
            processes.end_tree(os.getpid())
            os._exit(0)
        what, number = struct.unpack(REQUEST, data)
        if what == REAP:
            answer = _status(number)
            workers.discard(number)
            sweep_s = min(sweep_s, time.monotonic() + SWEEP_AFTER_S)
        else:
            answer = _forked(worker, processes, control, descriptors)
            workers |= {answer} if answer else set()
            for descriptor in descriptors:
                os.close(descriptor)
        control.send(struct.pack(ANSWER, what, answer))


def _load(name: str) -> Any:
    import importlib.util

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"symphony_{name}", path)
    assert spec is not None and spec.loader is not None
    sys.modules[f"symphony_{name}"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _forked(worker: Any, processes: Any, control: socket.socket, descriptors: list[int]) -> int:
    """The pid of a new worker; 0 if the system allows none at present."""
    try:
        pid = os.fork()
    except OSError:
        return 0
    if pid:
        return pid
    try:
        control.close()
        os.setsid()  # child processes of kernels are killed with this group …
        processes.adopt_orphans()  # … and those that have left it, with this tree
        processes.be_killed_first()
        random = sys.modules.get("numpy.random")
        if random is not None:  # or all workers would draw the same numbers; Python's generator reseeds itself
            random.seed()
        worker.main(*descriptors)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _status(pid: int) -> int:
    """Wait for a process; its exit code, or minus the signal that ended it."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except OSError:  # a previous server forked it
        return UNKNOWN


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[2])
    main(socket.socket(fileno=int(sys.argv[1])))
