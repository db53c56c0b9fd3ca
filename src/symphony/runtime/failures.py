"""Failed runs: whether they are retried, and which error the job ends with."""

from __future__ import annotations

import signal

from symphony.engines.engine import DIED, LOST, RAISED, TIMEOUT, UNREADABLE, UNSENDABLE, Failed
from symphony.problem.errors import JobError, KernelError, KernelTimeoutError, WorkerDiedError
from symphony.runtime.jobs import TaskRun

# Signals that come from outside the process: its kernel is not to blame.
EXTERNAL_SIGNALS = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}
FAILURE_HINTS = {
    RAISED: "the traceback below is from the process that ran it",
    UNSENDABLE: "return values that can be pickled: arrays, numbers, plain containers of them",
    UNREADABLE: "modules that it uses must be importable on the machine that runs it",
}


PROGRAM_FAILED = "ProgramFailed"  # type of the error of a program that ended badly; its message: how, and its stderr


def is_run_again(run: TaskRun, event: Failed) -> bool:
    """True if the kernel is not to blame for the failure and has retries left."""
    return event.why == DIED and event.signal in EXTERNAL_SIGNALS and run.lost < run.kernel.options.retries


def error_of(run: TaskRun, event: Failed) -> JobError:
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
        hint = "submit the job again: its lost inputs are computed again"
        return WorkerDiedError(f"kernel {name!r}: {event.message}", where=where, hint=hint)
    if event.why == RAISED and event.type == PROGRAM_FAILED:
        how, _, printed = event.message.partition("\n")
        hint = "its standard error is below" if printed.strip() else "it printed nothing on standard error"
        return KernelError(f"program {name!r} {how}", where=where, hint=hint, traceback=printed)
    verbs = {RAISED: "raised", UNSENDABLE: "returned a value that cannot be sent:", UNREADABLE: "could not be read:"}
    text = f"kernel {name!r} {verbs[event.why]} {event.type}: {event.message}"
    return KernelError(text, where=where, hint=FAILURE_HINTS[event.why], traceback=event.traceback)
