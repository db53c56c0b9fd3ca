"""A process that forks those of the local engine, and runs no kernel itself.

It is started from scratch, imports once what nearly every kernel needs, and then does what it is asked: fork, which
takes a millisecond where a start takes fifty, or wait for a process that has ended. So every job can have processes of
its own, in which no other job has changed anything. It has one thread, and so may fork; the engine's process, with
JAX's threads, may not.

    engine ──► "fork", with the pipes of the new process ──► its number       answers come in the order of the requests
           ──► "reap", a number                          ──► its exit status

Run by its path, and loads `worker.py` from there: Symphony need not be where processes run.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

FORK, REAP = b"f", b"r"
REQUEST, ANSWER = "<cq", "<cq"  # what, and a number: of a process, or a status
UNKNOWN = -signal.SIGKILL  # status of a process of which nobody knows how it ended: it is not blamed
PATIENCE_S = 10.0  # that processes which were killed get to end
SHARED = ("cloudpickle", "numpy")  # imported before anything is forked


class ForkServer:
    """The engine's side of it. Whoever asks for something is given back with its answer."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._asked: deque[tuple[bytes, Any]] = deque()
        self._child: subprocess.Popen | None = None
        self.socket: socket.socket | None = None

    @property
    def pid(self) -> int:
        """Its process; 0 = there is none."""
        return 0 if self._child is None else self._child.pid

    def start(self) -> socket.socket:
        """Start the process; the socket on which it answers."""
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

    def fork(self, read: int, write: int, who: Any) -> bool:
        """Ask for a process that has these pipes; whether that could be asked for."""
        return self._ask(FORK, 0, who, [read, write])

    def reap(self, pid: int, who: Any) -> bool:
        """Ask how a process has ended; whether that could be asked for."""
        return self._ask(REAP, pid, who, [])

    def _ask(self, what: bytes, number: int, who: Any, descriptors: list[int]) -> bool:
        if self.socket is None:
            return False
        try:
            socket.send_fds(self.socket, [struct.pack(REQUEST, what, number)], descriptors)
        except OSError:  # it has ended, and `answers` will say so; or there is no room for what is sent
            return False
        self._asked.append((what, who))
        return True

    def answers(self) -> Iterator[tuple[bytes, Any, int]]:
        """What has come: request, who asked, and a number. Raises `EOFError` when the process has ended."""
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
        """End the process, after it has waited for the `last` ones, which are killed; what will not be answered."""
        with contextlib.suppress(OSError, EOFError):
            if self.socket is not None:
                self.socket.settimeout(PATIENCE_S)
                for pid in last:
                    self.reap(pid, None)
                self.socket.shutdown(socket.SHUT_WR)  # then it ends, and `answers` with it
                for _ in self.answers():
                    pass
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        lost, self._asked = list(self._asked), deque()
        return lost


# --- the process


def main(control: socket.socket) -> None:
    """Do what is asked, until the engine is gone."""
    worker = _load_worker()
    for name in SHARED:
        with contextlib.suppress(Exception):  # a kernel that needs it says so better
            __import__(name)
    gc.collect()
    gc.freeze()  # pages of what is here already stay shared
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, struct.calcsize(REQUEST), 2)
        if len(data) != struct.calcsize(REQUEST):
            os._exit(0)
        what, number = struct.unpack(REQUEST, data)
        if what == REAP:
            answer = _status(number)
        else:
            answer = _forked(worker, control, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        control.send(struct.pack(ANSWER, what, answer))


def _load_worker() -> Any:
    """The module from the file beside this one."""
    import importlib.util

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")
    spec = importlib.util.spec_from_file_location("symphony_worker", path)
    assert spec is not None and spec.loader is not None
    sys.modules["symphony_worker"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _forked(worker: Any, control: socket.socket, descriptors: list[int]) -> int:
    """The number of a new process; 0 = there can be none at present."""
    try:
        pid = os.fork()
    except OSError:
        return 0
    if pid:
        return pid
    try:
        control.close()
        os.setsid()  # what a kernel starts ends with it
        random = sys.modules.get("numpy.random")
        if random is not None:  # or all processes would draw the same; Python's own generator takes care of itself
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
    except OSError:  # a server before this one forked it
        return UNKNOWN


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[2])
    main(socket.socket(fileno=int(sys.argv[1])))
