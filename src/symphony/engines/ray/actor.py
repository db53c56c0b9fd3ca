"""What runs in an actor: the kernels of one slot.

Sent by value, with what it uses of `symphony.engines`: a machine need not have Symphony, and an actor is up in
half a second. Messages are `marshal`led, because bytes are what Ray sends fastest; answers are frames that can be
checked (`messages.py`), since kernels may change what runs them. Large values are objects of Ray's store, given as
arguments, so that Ray has moved them before a kernel begins.
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

MAX_LOG_TAIL_BYTES = 64 << 10  # bytes of a log that are looked at

# A value as it travels: its pickle, or which of the objects that came along has it, and where in it.
ValueReference = bytes | tuple[int, int]
# What is in an object: pickles, each with its buffers.
ObjectParts = list[tuple[bytes, Sequence[Any]]]


class SlotActor:
    """A slot of a device."""

    def __init__(self, path: Sequence[str], working: str, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)
        sys.path += [entry for entry in path if entry not in sys.path]
        if os.path.isdir(working):  # it is, on the machine of the one who asks
            os.chdir(working)
        self._kernels = Kernels(lambda: TrainingRun)
        self._printed = OutputRedirect(lambda: OutputLog)
        self._surroundings, self._job = Surroundings(), 0

    def hello(self, predecessor: int) -> tuple[int, float, str]:
        """Its process, its clock, and the signal that ended the process before it, if that left a word."""
        return os.getpid(), time.monotonic(), _signal_in_log(predecessor) if predecessor else ""

    def run(self, message: bytes, *objects: ObjectParts) -> bytes | tuple[bytes, ObjectParts]:
        """Run kernels, one after the other. What they made is in the answer; large values are behind it."""
        told, made = self._run(message, objects)
        return (told, made) if made else told

    @ray.method(num_returns=2)
    def run_apart(self, message: bytes, *objects: ObjectParts) -> tuple[bytes, ObjectParts]:
        """The same, with large values as an object of their own, which stays where it was made."""
        return self._run(message, objects)

    def _run(self, message: bytes, objects: Sequence[ObjectParts]) -> tuple[bytes, ObjectParts]:
        made: ObjectParts = []

        def fetched(value: ValueReference) -> tuple[bytes, Sequence[Any]]:
            return (value, ()) if isinstance(value, bytes) else objects[value[0]][value[1]]

        def kept(head: bytes, buffers: list[memoryview]) -> Portable:
            """The name of a large value is its place among them."""
            size = len(head) + sum(buffer.nbytes for buffer in buffers)
            if not buffers and len(head) <= MAX_INLINE_VALUE_BYTES:
                return head, None, (), size
            made.append((head, [pickle.PickleBuffer(buffer) for buffer in buffers]))
            return None, str(len(made) - 1), ((0, size),), size

        answers = []
        for number, (job, name, code, given, inputs, place, resumes, output) in enumerate(marshal.loads(message)):
            if job != self._job:
                self._surroundings.restore()
                self._job = job
            with self._printed.kept(output, place[0]):
                told = self._kernels.run(name, code, given, inputs, place, fetched, kept, resumes)
            answers.append(answer(number, told))
        return b"".join(answers), made


def _signal_in_log(process: int) -> str:
    """The name of the signal that ended a process of this machine, if its log has it; Ray does not tell.

    Those that nobody can catch, and a plain exit, leave none.
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
