"""A process that plays futures: compiling and playing would hold up the threads of this one.

It starts with the first call, runs at low priority on CPUs only, and ends when its standard input is closed, so also if
this process dies. Both sides are this program: messages are pickled.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from symphony.problem.errors import ServiceError

T = TypeVar("T")
NICENESS = 5
PROGRESS, DONE, RAISED = range(3)  # kinds of messages


class Player:
    """Calls functions of `counterfactuals` in a process of their own, one at a time. From any thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._closed = threading.Lock(), False

    def call(self, function: Callable[..., T], *arguments: Any, progress: Callable[[float], None] | None = None) -> T:
        """The result of a function; it gets `progress=` as well if that is not None. Raises what that raises."""
        with self._lock:
            try:
                process = self._running()
                assert process.stdin is not None and process.stdout is not None
                pickle.dump((function, arguments, progress is not None), process.stdin)
                process.stdin.flush()
                while True:
                    kind, value = pickle.load(process.stdout)
                    if kind == PROGRESS and progress is not None:
                        progress(value)
                    elif kind == RAISED:
                        raise value
                    elif kind == DONE:
                        return value
            except (EOFError, OSError, pickle.UnpicklingError) as error:
                self._end()
                raise ServiceError("the process that plays futures has ended", hint="ask again") from error

    def close(self) -> None:
        """End the process, also during a call."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise ServiceError("the service is stopping", hint="ask its successor")
        if self._process is None:
            command = [sys.executable, "-c", "from symphony.runtime.player import serve; serve()"]
            environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
            )
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None


def serve() -> None:
    """The process: carries out calls until there are no more."""
    os.nice(NICENESS)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no message

    def send(kind: int, value: Any) -> None:
        pickle.dump((kind, value), out)
        out.flush()

    while True:
        try:
            function, arguments, reports = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            more = {"progress": lambda share: send(PROGRESS, share)} if reports else {}
            send(DONE, function(*arguments, **more))
        except Exception as error:
            try:
                send(RAISED, error)
            except Exception:  # it cannot be pickled
                send(RAISED, ServiceError(f"the play failed: {type(error).__name__}: {error}", hint="see the log"))
