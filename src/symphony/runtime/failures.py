"""Failed runs: whether they are retried, and which error the job ends with."""

from __future__ import annotations

import signal

from symphony.engines.engine import DIED, LIMIT, LOST, RAISED, TIMEOUT, UNREADABLE, UNSENDABLE, Failed
from symphony.problem.errors import JobError, KernelError, KernelLimitError, KernelTimeoutError, WorkerDiedError
from symphony.runtime.jobs import TaskRun
from symphony.runtime.kernels import KernelOptions

# Signals that come from outside the process: its kernel is not to blame.
EXTERNAL_SIGNALS = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}
FAILURE_HINTS = {
    RAISED: "the traceback below is from the process that ran it",
    UNSENDABLE: "return values that can be pickled: arrays, numbers, plain containers of them",
    UNREADABLE: "modules that it uses must be importable on the machine that runs it",
}


# Types of the errors of programs that ended badly:
PROGRAM_FAILED = "ProgramFailed"  # of a graph file; its message: how, and its standard error
EXIT_STATUS = "ExitStatus"  # of `symphony run`; with its exit status, as in a shell
BY_SIGNAL = 128  # plus the signal that killed it


def is_run_again(options: KernelOptions, lost: int, event: Failed) -> bool:
    """True if the kernel has retries left, and is not to blame for the failure or raised what its `retry_on` names.

    `lost`: attempts that failed before.
    """
    killed = event.why == DIED and event.signal in EXTERNAL_SIGNALS
    raised = event.why == RAISED and not event.classes.isdisjoint(options.retry_on)
    return (killed or raised) and lost < options.retries


def retry_delay_s(options: KernelOptions, event: Failed) -> float:
    """Seconds until a kernel that failed runs again."""
    return options.retry_delay_s if event.why == RAISED else 0.0


def ending(event: Failed) -> str:
    """How a run ended, in a few words."""
    raised = _program_ending(event) or f"raised {event.type}: {event.message}"
    return raised if event.why == RAISED else event.message or event.why


def _program_ending(event: Failed) -> str:
    """How a program ended; "" if the kernel ran none."""
    if event.type == PROGRAM_FAILED:
        return event.message.partition("\n")[0]
    status = event.type.removeprefix(EXIT_STATUS)
    if status == event.type or not status.isdecimal():
        return ""
    if int(status) - BY_SIGNAL in set(signal.Signals):
        return f"was killed by {signal.Signals(int(status) - BY_SIGNAL).name}"
    return f"ended with exit status {status}"


def error_of(run: TaskRun, event: Failed) -> JobError:
    where, name = run.job.where(run), run.kernel.name
    if event.why == TIMEOUT:
        hint = "give it more time: @sy.kernel(timeout_s=…)"
        return KernelTimeoutError(f"kernel {name!r}: {event.message}", where=where, hint=hint)
    if event.why == LIMIT:
        return KernelLimitError(f"kernel {name!r}: {event.message}", where=where, hint=event.hint)
    if event.why == DIED:
        again = f" ({run.lost + 1} times)" if run.lost else ""
        memory = "; is there enough memory?" if event.signal == signal.SIGKILL else ""
        hint = f"run it by itself to see what it does to its process{memory}"
        return WorkerDiedError(f"kernel {name!r}: {event.message}{again}", where=where, hint=hint, signal=event.signal)
    if event.why == LOST:
        hint = "submit the job again: its lost inputs are computed again"
        return WorkerDiedError(f"kernel {name!r}: {event.message}", where=where, hint=hint)
    tried = f" ({run.lost + 1} times)" if run.lost and event.why == RAISED and run.kernel.options.retry_on else ""
    how = _program_ending(event) if event.why == RAISED else ""
    if how and event.type == PROGRAM_FAILED:
        printed = event.message.partition("\n")[2]
        hint = "its standard error is below" if printed.strip() else "it printed nothing on standard error"
        return KernelError(f"program {name!r} {how}", where=where, hint=hint, traceback=printed)
    if how:
        hint = f"symphony logs {run.job.number} has what it printed"
        return KernelError(f"program {name!r} {how}{tried}", where=where, hint=hint)
    verbs = {RAISED: "raised", UNSENDABLE: "returned a value that cannot be sent:", UNREADABLE: "could not be read:"}
    text = f"kernel {name!r} {verbs[event.why]} {event.type}: {event.message}{tried}"
    return KernelError(text, where=where, hint=FAILURE_HINTS[event.why], traceback=event.traceback)
