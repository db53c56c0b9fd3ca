"""The engine protocol: how commands become running work. Extension point number five.

An engine has devices, runs work on the device that the scheduler chose, and reports how it ended. It decides nothing:
queues, order and placement belong to the scheduler. The scheduler dispatches little ahead of time, because engines
cannot hand dispatched work back. One thread calls all methods but `put`, `get`, `free`, `wake` and `processes`.

    dispatch ──► runs ──► Finished, Failed
       │          │
       │       preempt, cancel ──► Stopped
       └── device goes down ──► Stopped for all that was on it, and DeviceDown

Every piece of work that was dispatched ends in exactly one `Finished`, `Failed` or `Stopped`. `sy.testing.check_engine`
checks this. Subclass `Engine`: the members with a default (`notes`, `whole_gangs`, `contained`, `several_cores`,
`processes`, `release`) are optional.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Protocol, runtime_checkable

from symphony.problem.errors import TopologyError
from symphony.problem.texts import LONGEST_TEXT, readable
from symphony.problem.topology import Topology

# Why work failed.
RAISED = "raised"  # the kernel raised
UNSENDABLE = "unsendable"  # it returned what cannot be pickled
UNREADABLE = "unreadable"  # the function or its arguments could not be unpickled in the worker process
DIED = "died"  # its process ended before the kernel returned
TIMEOUT = "timeout"  # it ran longer than `Work.timeout_s`
LOST = "lost"  # an input was lost with the machine that stored it
LIMIT = "limit"  # it used more than it may, of memory for instance
REASONS = frozenset({RAISED, UNSENDABLE, UNREADABLE, DIED, TIMEOUT, LOST, LIMIT})
# The stage at which a worker process failed, and the reason that the engine reports for it.
FAILURE_BY_STAGE = {"function": UNREADABLE, "arguments": UNREADABLE, "call": RAISED, "result": UNSENDABLE}


@dataclass(frozen=True)
class Pickled:
    """A pickled value: the pickle stream and its out-of-band buffers. Engines never unpickle."""

    head: bytes
    buffers: Sequence[Any] = ()  # memoryviews

    @property
    def size(self) -> int:
        return len(self.head) + sum(memoryview(buffer).nbytes for buffer in self.buffers)


@dataclass(frozen=True)
class Stored:
    """A value that an engine stores. `at` is meaningful to that engine only."""

    at: Any
    size: int  # bytes


@dataclass(frozen=True)
class Function:
    """The implementation of a kernel, as it is sent: pickled, to be called with unpickled arguments."""

    name: str
    digest: str  # equal functions have equal digests: an engine sends each once to every process
    code: Stored


@dataclass(frozen=True)
class Resumable:
    """What a training job needs to resume from its last checkpoint (`training_run.py`)."""

    folder: str  # reachable from every device; the same for every attempt
    attempt: str  # unique, also among other schedulers that use this folder
    steps: int
    servers: int = 0
    every_s: float = 600.0


@dataclass(frozen=True)
class Output:
    """Where to store what work writes to its standard streams (`output.py`)."""

    folder: str  # of the task; the parent of its parent exists on every machine that can reach it
    run: str  # name of the attempt, unique also among other schedulers that use this folder


@dataclass(frozen=True)
class Work:
    """One attempt to run one task."""

    number: int  # of the attempt, never reused
    device: int  # index into the inventory's devices
    function: Function
    arguments: Stored  # (positional, named), with the numbers of inputs as persistent ids
    inputs: tuple[Stored, ...] = ()
    gang: int = -1  # work of one `dispatch` with the same number, 0 or more, starts together …
    rank: int = 0  # … and is called with the keyword arguments `rank` and `size`
    size: int = 1
    timeout_s: float = math.inf
    others: tuple[int, ...] = ()  # devices of the other workers, if this is a whole gang (`gangs.py`)
    resumes: Resumable | None = None  # if set, the first argument is a `TrainingRun`, which has rank and size
    output: Output | None = None  # if set, the engine stores the standard streams there, if it can
    user: str = ""  # owner, if several users share the engine: no process runs work of two users …
    job: int = 0  # … and no job sees what another job changed in its process
    cores: int = 1  # slots of a CPU device that it holds; ignored by engines without `several_cores`
    memory: float = math.inf  # bytes that its process, with its children, may use

    def plain_options(self) -> tuple[tuple[int, int], tuple | None, tuple | None]:
        """Plain values for messages to workers: rank and size, arguments of `TrainingRun`, arguments of `OutputLog`."""
        resumes = None if self.resumes is None else astuple(self.resumes)
        return (self.rank, self.size), resumes, None if self.output is None else astuple(self.output)


@dataclass(frozen=True)
class Finished:
    number: int
    value: Stored
    began_s: float  # on the clock of `time.monotonic`
    seconds: float  # of the call alone
    cold: bool = False  # first call of this function in its process: the time includes imports, maybe compilation
    busy_s: float = math.nan  # CPU time of its process, over all threads; NaN = the engine cannot measure it


@dataclass(frozen=True)
class Failed:
    number: int
    why: str  # RAISED, UNSENDABLE, UNREADABLE, DIED, TIMEOUT, LOST or LIMIT
    message: str
    began_s: float = math.nan
    seconds: float = 0.0
    type: str = ""  # of the exception
    traceback: str = ""
    exception: bytes | None = None  # pickled; only the user who submitted the work may unpickle it
    signal: int = 0  # that ended its process
    hint: str = ""  # what the user can do about it
    classes: frozenset[str] = frozenset()  # of the exception, with base classes: "OSError", "package.module.Error"

    def __post_init__(self) -> None:
        for name in ("message", "type", "traceback"):  # written by the kernel, so not trusted
            object.__setattr__(self, name, readable(getattr(self, name), longest=LONGEST_TEXT))


@dataclass(frozen=True)
class Stopped:
    """Work was cancelled, preempted or lost with its device. It may be dispatched again, under a new number."""

    number: int


@dataclass(frozen=True)
class DeviceDown:
    """A device accepts no more work. Everything that was on it was reported before this event."""

    device: int
    why: str


@dataclass(frozen=True)
class DeviceUp:
    """A device accepts work again."""

    device: int


EngineEvent = Finished | Failed | Stopped | DeviceDown | DeviceUp


@runtime_checkable
class Engine(Protocol):
    """Runs work on devices. Subclass it: members with a default are optional."""

    notes: Sequence[str] = ()  # for the user: for instance, devices that did not start, and why
    whole_gangs: bool = False  # whether it takes a gang as one piece of work (`gangs.py`)
    contained: Sequence[str] = ()  # who enforces which limits of jobs, in sentences
    several_cores: bool = False  # whether work may hold several slots of a CPU, and its memory is bounded

    def inventory(self) -> Topology:
        """The devices, and what they share. Never changes: devices only go down and come up."""
        ...

    def put(self, value: Pickled) -> Stored:
        """Store a value where every device can read it. Thread-safe."""
        ...

    def get(self, value: Stored) -> Pickled:
        """A value that was put or that work returned. Thread-safe. Raises `EngineError` if it is lost."""
        ...

    def free(self, value: Stored) -> None:
        """Release a value; running work that reads it is not affected. Thread-safe."""
        ...

    def dispatch(self, work: Sequence[Work]) -> None:
        """Send work to its devices. A device with s slots runs s pieces at once; the rest queues there, first in, first
        out.
        """
        ...

    def cancel(self, number: int) -> None:
        """Stop work, whether it runs or queues. Does nothing if it has ended."""
        ...

    def preempt(self, number: int) -> None:
        """Stop work that will be dispatched again: it resumes from its last checkpoint, or restarts if it has none."""
        ...

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """Events since the last call, in order. Waits up to `timeout_s` for the first."""
        ...

    def under_way(self) -> Collection[int]:
        """Numbers of the work that has not ended. The end of all other work was, or is next, returned by `poll`."""
        ...

    def wake(self) -> None:
        """Let a waiting `poll` return at once. Thread-safe."""
        ...

    def close(self) -> None:
        """Stop all work and release all values. Idempotent."""
        ...

    def processes(self) -> Mapping[int, Sequence[int]] | None:
        """Worker processes on this machine, by the process that forked them; None: it has none here. Thread-safe."""
        return None

    def release(self, user: str, job: int) -> None:
        """A job has finished: end whatever it left running in worker processes."""
        return


def refuse_reconfigurable(topology: Topology, engine: str) -> None:
    """Refuse devices, such as FPGAs, that must be configured for a kernel, which our engines do not support."""
    for kind in topology.kinds:
        if kind.reconfigurable:
            raise TopologyError(
                f"{kind.name!r} must be configured for a kernel, which the {engine} engine does not support",
                where=topology.name,
                hint="remove such devices from the topology",
            )
