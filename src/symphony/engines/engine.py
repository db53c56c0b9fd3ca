"""The engine protocol: how commands become running work. Extension point number five.

An engine has devices, runs what it is given where it is told, and says what became of it. It decides nothing: queues,
order and places are the scheduler's, which sends little ahead, because no engine lets one take back what was handed
over. All methods but `put`, `get`, `free` and `wake` are called by one thread.

    dispatch ──► runs ──► Finished, Failed
       │          │
       │       preempt, cancel ──► Stopped
       └── device goes down ──► Stopped for all that was on it, and DeviceDown

Every piece of work that was dispatched ends in exactly one `Finished`, `Failed` or `Stopped`. `sy.testing.check_engine`
says whether an engine keeps to that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from symphony.problem.texts import LONGEST_TEXT, readable
from symphony.problem.topology import Topology

# Why work failed.
RAISED = "raised"  # the kernel raised
UNSENDABLE = "unsendable"  # it returned what cannot be pickled
UNREADABLE = "unreadable"  # the function or its arguments could not be read where it was to run
DIED = "died"  # its process ended
TIMEOUT = "timeout"  # it ran longer than it may
LOST = "lost"  # an input is gone, with the machine that kept it
REASONS = frozenset({RAISED, UNSENDABLE, UNREADABLE, DIED, TIMEOUT, LOST})
# What a process was at, and why the work has failed there.
FAILURE_BY_STAGE = {"function": UNREADABLE, "arguments": UNREADABLE, "call": RAISED, "result": UNSENDABLE}


@dataclass(frozen=True)
class Pickled:
    """A value in bytes: its pickle, and the large buffers that were left out of it. Engines never unpickle."""

    head: bytes
    buffers: Sequence[Any] = ()  # memoryviews

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.head) + sum(memoryview(buffer).nbytes for buffer in self.buffers)


@dataclass(frozen=True)
class Stored:
    """A value that an engine keeps. `at` is the engine's own, and tells others nothing."""

    at: Any
    size: int  # bytes


@dataclass(frozen=True)
class Function:
    """The implementation of a kernel, as it is sent: pickled, and called with unpickled arguments."""

    name: str
    digest: str  # equal functions have equal digests: an engine sends each once to where it is needed
    code: Stored


@dataclass(frozen=True)
class Resumable:
    """What work is told that goes in steps, saves what it has and goes on from there (`training_run.py`)."""

    folder: str  # that every device reaches; the same for every attempt
    attempt: str  # names it, also among those of other schedulers with this folder
    steps: int
    servers: int = 0
    every_s: float = 600.0


@dataclass(frozen=True)
class Output:
    """Where what work writes to its standard streams is to be kept while it runs (`output.py`)."""

    folder: str  # of the task; its parent's parent is there on every machine that can reach it
    run: str  # names the attempt, also among those of other schedulers with this folder


@dataclass(frozen=True)
class Work:
    """One attempt to run one task."""

    number: int  # of the attempt, never used twice
    device: int  # index into the inventory's devices
    function: Function
    arguments: Stored  # (positional, named), with the numbers of inputs as persistent ids
    inputs: tuple[Stored, ...] = ()
    gang: int = -1  # work of one call with equal numbers, 0 or more, starts together …
    rank: int = 0  # … and is told, as arguments `rank` and `size`, which of how many it is
    size: int = 1
    timeout_s: float = math.inf
    others: tuple[int, ...] = ()  # devices of the other workers, where a gang is one piece of work (`gangs.py`)
    resumes: Resumable | None = None  # then a handle of it is the first argument, and knows rank and size
    output: Output | None = None  # then what it writes is kept there, too, if the engine can
    user: str = ""  # whose it is, if several share an engine: then no process runs work of two users …
    job: int = 0  # … and what a job changes in a process, the next one must not find there


@dataclass(frozen=True)
class Finished:
    """Work is done."""

    number: int
    value: Stored
    began_s: float  # on the clock of `time.monotonic`
    seconds: float  # of the call alone
    cold: bool = False  # the first call of this function in its process, with imports, or maybe compilation, in it
    busy_s: float = math.nan  # for which its process had the processor, on all threads; NaN = the engine cannot tell


@dataclass(frozen=True)
class Failed:
    """Work ended without a value."""

    number: int
    why: str  # RAISED, UNSENDABLE, UNREADABLE, DIED, TIMEOUT or LOST
    message: str
    began_s: float = math.nan
    seconds: float = 0.0
    type: str = ""  # of the exception
    traceback: str = ""
    exception: bytes | None = None  # pickled: for the one who asked, and nobody else, to unpickle
    signal: int = 0  # that ended its process

    def __post_init__(self) -> None:
        for name in ("message", "type", "traceback"):  # as the kernel wrote them: anything
            object.__setattr__(self, name, readable(getattr(self, name), LONGEST_TEXT))


@dataclass(frozen=True)
class Stopped:
    """Work was cancelled, preempted, or lost with its device; it may be dispatched again, with another number."""

    number: int


@dataclass(frozen=True)
class DeviceDown:
    """A device takes no work any more. All that was on it has been told of."""

    device: int
    why: str


@dataclass(frozen=True)
class DeviceUp:
    """A device takes work again."""

    device: int


EngineEvent = Finished | Failed | Stopped | DeviceDown | DeviceUp


@runtime_checkable
class Engine(Protocol):
    """Runs work on devices."""

    def inventory(self) -> Topology:
        """The devices there are, and what they share. It does not change; devices go down and come up."""
        ...

    def put(self, value: Pickled) -> Stored:
        """Keep a value where every device can read it. Any thread may call it."""
        ...

    def get(self, value: Stored) -> Pickled:
        """A value that was put or that work made. Any thread may call it."""
        ...

    def free(self, value: Stored) -> None:
        """Forget a value; work that reads it already goes on. Any thread may call it."""
        ...

    def dispatch(self, work: Sequence[Work]) -> None:
        """Send work to its devices. A device with s slots runs s at once; what is beyond waits there, in order."""
        ...

    def cancel(self, number: int) -> None:
        """Stop work, however far it is. Does nothing if it has ended."""
        ...

    def preempt(self, number: int) -> None:
        """Stop work so that it can be dispatched again: from its last checkpoint if it writes any, else afresh."""
        ...

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """What has happened, in order; waits at most so long for something to happen."""
        ...

    def under_way(self) -> Collection[int]:
        """Numbers of the work that has not ended: of all else that was dispatched, `poll` has told, or will next."""
        ...

    def wake(self) -> None:
        """Let a `poll` that waits return at once. Any thread may call it."""
        ...

    def close(self) -> None:
        """Stop everything and forget every value. May be called twice."""
        ...
