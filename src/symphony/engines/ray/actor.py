"""The actor of a slot: runs its kernels.

It is sent by value, with what it uses of `symphony.engines`: a machine need not have Symphony, and an actor starts in
half a second. Requests are `marshal`led, because Ray sends bytes fastest; answers are validated frames (`messages.py`),
because kernels can change the actor. Large values are objects of Ray's store, passed as arguments, so that Ray moves
them before a kernel starts.
"""

from __future__ import annotations

import glob
import marshal
import os
import pickle
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from symphony.engines.messages import Portable
from symphony.engines.output import OutputLog
from symphony.engines.worker import MAX_INLINE_VALUE_BYTES, Kernels, OutputRedirect, Surroundings, answer
from symphony.training_jobs.training_run import TrainingRun

MAX_LOG_TAIL_BYTES = 64 << 10  # of a log that is searched for a signal

# A value in a request: its pickle, or the index of an object among the arguments, and its index in that object.
ValueReference = bytes | tuple[int, int]
# The contents of an object: pickles, each with its buffers.
ObjectParts = list[tuple[bytes, Sequence[Any]]]


class SlotActor:
    def __init__(self, path: Sequence[str], working: str, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)
        sys.path += [entry for entry in path if entry not in sys.path]
        if os.path.isdir(working):  # on the machine of the driver
            os.chdir(working)
        self._kernels = Kernels(lambda: TrainingRun)
        self._printed = OutputRedirect(lambda: OutputLog)
        self._surroundings, self._job = Surroundings(), 0

    def hello(self, predecessor: int) -> tuple[int, float, str]:
        """Its pid, its clock, and the signal that ended the `predecessor` process ("" = not known)."""
        return os.getpid(), time.monotonic(), _signal_in_log(predecessor) if predecessor else ""

    def run(self, message: bytes, *objects: ObjectParts) -> bytes | tuple[bytes, ObjectParts]:
        """Run kernels in order. Returns their answers, and large values if there are any."""
        answers, made = self._run(message, objects)
        return (answers, made) if made else answers

    @ray.method(num_returns=2)
    def run_apart(self, message: bytes, *objects: ObjectParts) -> tuple[bytes, ObjectParts]:
        """The same, with the large values as a separate object, which stays on this machine."""
        return self._run(message, objects)

    def _run(self, message: bytes, objects: Sequence[ObjectParts]) -> tuple[bytes, ObjectParts]:
        made: ObjectParts = []

        def fetched(value: ValueReference) -> tuple[bytes, Sequence[Any]]:
            return (value, ()) if isinstance(value, bytes) else objects[value[0]][value[1]]

        def kept(head: bytes, buffers: list[memoryview]) -> Portable:
            """Large values are named by their index."""
            size = len(head) + sum(buffer.nbytes for buffer in buffers)
            if not buffers and len(head) <= MAX_INLINE_VALUE_BYTES:
                return head, None, (), size
            made.append((head, [pickle.PickleBuffer(buffer) for buffer in buffers]))
            return None, str(len(made) - 1), ((0, size),), size

        answers = []
        for number, (job, name, code, arguments, inputs, place, resumes, output) in enumerate(marshal.loads(message)):
            if job != self._job:
                self._surroundings.restore()
                self._job = job
            with self._printed.kept(output, place[0]):
                outcome = self._kernels.run(name, code, arguments, inputs, place, fetched, kept, resumes)
            answers.append(answer(number, outcome))
        return b"".join(answers), made


def _signal_in_log(process: int) -> str:
    """The signal that ended a process of this machine, from its log in Ray's folder; Ray does not report it.

    SIGKILL and a plain exit leave no trace: then "".
    """
    try:
        folder = os.path.dirname(os.readlink("/proc/self/fd/2"))
        [log] = glob.glob(os.path.join(glob.escape(folder), f"worker-*-{process}.err"))
        with open(log, "rb") as file:
            file.seek(max(os.path.getsize(log) - MAX_LOG_TAIL_BYTES, 0))
            found = re.findall(rb"^\*\*\* (SIG[A-Z]+) received", file.read(), re.MULTILINE)
    except (OSError, ValueError):  # no such log
        return ""
    return found[-1].decode() if found else ""
