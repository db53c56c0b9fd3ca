"""An engine of your own: a process for every piece of work. It is slow, and keeps the whole contract.

    python -m examples.own_engine

`sy.testing.check_engine` checks it; then a cluster runs a graph on it.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import cloudpickle

import symphony as sy
from symphony.engines.engine import (
    DIED,
    RAISED,
    TIMEOUT,
    UNSENDABLE,
    EngineEvent,
    Failed,
    Finished,
    Pickled,
    Stopped,
    Stored,
    Work,
)
from symphony.training_jobs import training_run

cloudpickle.register_pickle_by_value(training_run)  # a child need not import Symphony
CHILD = """
import pickle, sys, time, traceback
import cloudpickle

class Reader(pickle.Unpickler):
    persistent_load = lambda self, number: inputs[number]

with open(sys.argv[1] + ".in", "rb") as file:
    code, (head, buffers), given, (rank, size), handle = pickle.load(file)
inputs = [pickle.loads(head, buffers=buffers) for head, buffers in given]
import io
args, kwargs = Reader(io.BytesIO(head), buffers=buffers).load()
kwargs |= {"rank": rank, "size": size} if size > 1 and not handle else {}
began, step = time.monotonic(), "raised"
try:
    if handle:
        args = pickle.loads(handle[0])(*handle[1], rank, size), *args
    value = pickle.loads(code)(*args, **kwargs)
    if handle:
        args[0].returned()
    seconds, step, out = time.monotonic() - began, "unsendable", []
    head = cloudpickle.dumps(value, protocol=5, buffer_callback=out.append)
    answer = ("done", began, seconds, (head, [bytes(buffer.raw()) for buffer in out]))
except BaseException as error:
    answer = (step, began, time.monotonic() - began, (type(error).__name__, str(error), traceback.format_exc()))
with open(sys.argv[1] + ".out", "wb") as file:
    pickle.dump(answer, file)
"""


class OneShot(sy.Engine):
    """A process for every piece of work."""

    def __init__(self, topology: sy.Topology) -> None:
        self.topology = topology
        self.folder = tempfile.TemporaryDirectory()
        self.running: dict[int, tuple[Work, subprocess.Popen[bytes], float]] = {}  # with the start time
        self.stopping: set[int] = set()
        self.waiting: deque[Work] = deque()
        self.events: list[EngineEvent] = []
        self.awake = False

    def inventory(self) -> sy.Topology:
        return self.topology

    def put(self, value: Pickled) -> Stored:
        return Stored((value.head, [bytes(buffer) for buffer in value.buffers]), value.size)

    def get(self, value: Stored) -> Pickled:
        head, buffers = value.at
        return Pickled(head, [bytearray(buffer) for buffer in buffers])

    def free(self, value: Stored) -> None:
        pass

    def wake(self) -> None:
        self.awake = True

    def under_way(self) -> set[int]:
        return {*self.running, *(work.number for work in self.waiting)}

    def dispatch(self, work: Sequence[Work]) -> None:
        self.waiting += work
        self._start()

    def cancel(self, number: int) -> None:
        for work in [work for work in self.waiting if work.number == number]:
            self.waiting.remove(work)
            self.events.append(Stopped(number))
        if number in self.running:
            self.stopping.add(number)
            self.running[number][1].kill()

    preempt = cancel

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        deadline = time.monotonic() + timeout_s
        while not self._check() and not self.awake and time.monotonic() < deadline:
            time.sleep(0.005)
        self.awake, events, self.events = False, self.events, []
        return events

    def close(self) -> None:
        for _, process, _ in self.running.values():
            process.kill()
            process.wait()
        self.running.clear()
        self.folder.cleanup()

    def _start(self) -> None:
        """Start work that has a free slot."""
        for work in list(self.waiting):
            slots = self.topology.kind_of[self.topology.devices[work.device].kind].slots
            if sum(other.device == work.device for other, _, _ in self.running.values()) < slots:
                self.waiting.remove(work)
                path = os.path.join(self.folder.name, str(work.number))
                handle = work.resumes and (cloudpickle.dumps(training_run.TrainingRun), astuple(work.resumes))
                given = (work.function.code.at[0], work.arguments.at, [value.at for value in work.inputs])
                Path(path + ".in").write_bytes(pickle.dumps((*given, (work.rank, work.size), handle)))
                process = subprocess.Popen([sys.executable, "-c", CHILD, path])
                self.running[work.number] = work, process, time.monotonic()

    def _check(self) -> bool:
        """Collect finished processes and time-outs; return whether there are events."""
        for number, (work, process, began) in list(self.running.items()):
            if process.poll() is not None:
                del self.running[number]
                self.events.append(self._end_event(number, process.returncode, began))
            elif time.monotonic() - began > work.timeout_s:
                process.kill()
                process.wait()
                del self.running[number]
                self.events.append(Failed(number, TIMEOUT, f"it ran for more than {work.timeout_s} s", began))
        self._start()
        return bool(self.events)

    def _end_event(self, number: int, code: int, began: float) -> EngineEvent:
        if number in self.stopping:
            return Stopped(number)
        try:
            kind, began, seconds, rest = pickle.loads(Path(self.folder.name, f"{number}.out").read_bytes())
        except (OSError, EOFError):
            return Failed(number, DIED, f"its process ended with code {code}", began, signal=max(-code, 0))
        if kind == "done":
            head, buffers = rest
            return Finished(number, Stored((head, buffers), len(head) + sum(map(len, buffers))), began, seconds, True)
        name, message, text = rest
        return Failed(number, RAISED if kind == "raised" else UNSENDABLE, message, began, seconds, name, text)


@sy.kernel
def double(x: int) -> int:
    return 2 * x


def main(arguments: Sequence[str] | None = None) -> None:
    """Check the engine, then run a graph on it."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(
        arguments
    )
    engine = OneShot(sy.discover().topology)
    try:
        sy.testing.check_engine(engine)
    finally:
        engine.close()
    graph = sy.graph("twice")
    graph.task(double, graph.task(double, 21))
    with sy.Cluster(OneShot(sy.discover().topology)) as cluster:
        print(cluster.submit(graph).result())


if __name__ == "__main__":
    main()
