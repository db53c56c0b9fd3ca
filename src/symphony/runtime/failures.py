"""Runs that failed: whether they are run again, and what the one who asked is told."""

from __future__ import annotations

import signal

from symphony.engines.engine import DIED, LOST, RAISED, TIMEOUT, UNREADABLE, UNSENDABLE, Failed
from symphony.problem.errors import JobError, KernelError, KernelTimeoutError, WorkerDiedError
from symphony.runtime.jobs import TaskRun

# What ends a process from outside: the kernel that it ran is not to blame.
EXTERNAL_SIGNALS = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}
FAILURE_HINTS = {
    RAISED: "the traceback below is from the process that ran it",
    UNSENDABLE: "return what can be pickled: arrays, numbers, plain containers of them",
    UNREADABLE: "what it uses must be importable where it runs",
}


def is_run_again(run: TaskRun, event: Failed) -> bool:
    """Whether a run that failed is no fault of the kernel's, and it may try once more."""
    return event.why == DIED and event.signal in EXTERNAL_SIGNALS and run.lost < run.kernel.options.retries


def error_of(run: TaskRun, event: Failed) -> JobError:
    """What the one who asked is told."""
    where, name = run.job.where(run), run.kernel.name
    if event.why == TIMEOUT:
        hint = "give it more time: @sy.kernel(timeout_s=…)"
        return KernelTimeoutError(f"kernel {name!r}: {event.message}", where=where, hint=hint)
    if event.why == DIED:
        again = f" ({run.lost + 1} times)" if run.lost else ""
        memory = "; is there enough memory?" if event.signal == signal.SIGKILL else ""
        hint = f"run it by itself to see what it does to its process{memory}"
        return WorkerDiedError(f"kernel {name!r}: {event.message}{again}", where=where, hint=hint, signal=event.signal)
    if event.why == LOST:
        hint = "submit the job again: what it needs is made again"
        return WorkerDiedError(f"kernel {name!r}: {event.message}", where=where, hint=hint)
    said = {RAISED: "raised", UNSENDABLE: "returned what cannot be sent:", UNREADABLE: "could not be read:"}
    text = f"kernel {name!r} {said[event.why]} {event.type}: {event.message}"
    return KernelError(text, where=where, hint=FAILURE_HINTS[event.why], traceback=event.traceback)
