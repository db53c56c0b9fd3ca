"""Every error that Symphony raises on purpose.

SymphonyError
├── InputError            the caller gave something wrong; says what, where, and what to write instead
│   ├── TopologyError     a cluster description
│   ├── WorkloadError     a task graph, kernel, arrival list or workload name
│   │   └── CycleError    a task graph that waits for itself
│   ├── LimitError        a size beyond `symphony.problem.limits`
│   └── InfeasibleError   work that no device of the topology can ever run
├── PolicyError           a policy broke its contract (or waits for ever)
├── DataError             a file under SYMPHONY_DATA is missing or unreadable
├── EngineError           what runs the work does not work, or is closed
├── ServiceError          a service cannot be reached, or does not do what it is asked
│   ├── TokenError            a token is missing, wrong or expired
│   │   └── ScopeError            a token may not do this
│   ├── TrustError            a result that would run another user's code here
│   ├── UnknownJobError       there is no such job, or it is somebody else's
│   ├── BusyError             too much at once; `retry_s` says when to try again
│   │   └── UnavailableError      it takes nothing at present: it is about to stop, or cannot write
│   └── VersionError          client and service do not speak the same protocol, or Python
└── JobError              a job that was accepted has no result
    ├── KernelError           a kernel raised, or returned what cannot be sent; `traceback` says where
    ├── WorkerDiedError       the process of a kernel ended under it; `signal` says by what
    ├── KernelTimeoutError    a kernel ran longer than it may
    └── JobCancelledError     somebody cancelled it
"""

from __future__ import annotations

from symphony.problem.texts import LONGEST_TEXT, readable

MAX_MESSAGE_CHARS = 400  # of a message: input that is echoed may be of any length


def _cut(text: str) -> str:
    text = readable(text)
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[: MAX_MESSAGE_CHARS - 60]} … {text[-50:]}"


class SymphonyWarning(UserWarning):
    """Something was not as expected, and Symphony went on; the text says with what."""


class SymphonyError(Exception):
    """Base of every error raised on purpose. `hint` says what to type next."""

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        self.message, self.hint, self.where = _cut(message), readable(hint), _cut(where)
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\nhint: {self.hint}" if self.hint else text


class InputError(SymphonyError):
    """The caller gave something wrong."""


class TopologyError(InputError):
    """A cluster description is wrong."""


class WorkloadError(InputError):
    """A task graph, a kernel, an arrival list or the name of a workload is wrong."""


class CycleError(WorkloadError):
    """A task graph waits for itself."""


class LimitError(InputError):
    """A size is beyond a bound of `symphony.problem.limits`."""


class InfeasibleError(InputError):
    """Work that no device of the topology can ever run."""


class PolicyError(SymphonyError):
    """A policy broke its contract."""


class DataError(SymphonyError):
    """A data file is missing or unreadable."""


class EngineError(SymphonyError):
    """What runs the work does not work, or is closed."""


class ServiceError(SymphonyError):
    """A service cannot be reached, or does not do what it is asked."""


class TokenError(ServiceError):
    """A token is missing, wrong or expired."""


class ScopeError(TokenError):
    """A token may not do this."""


class TrustError(ServiceError):
    """A result of another user's job that is more than data: reading it would run that user's code here."""


class UnknownJobError(ServiceError):
    """There is no such job, or it is somebody else's."""


class BusyError(ServiceError):
    """Too much at once. `retry_s` says when to try again."""

    def __init__(self, message: str, *, hint: str = "", where: str = "", retry_s: float = 1.0) -> None:
        self.retry_s = retry_s
        super().__init__(message, hint=hint, where=where)


class UnavailableError(BusyError):
    """A service takes nothing at present: it is about to stop, or cannot write."""


class VersionError(ServiceError):
    """Client and service do not speak the same protocol, or Python."""


class JobError(SymphonyError):
    """A job that was accepted has no result."""


class KernelError(JobError):
    """A kernel raised, or returned what cannot be sent. `traceback` is the text from where it ran."""

    def __init__(self, message: str, *, hint: str = "", where: str = "", traceback: str = "") -> None:
        self.traceback = readable(traceback, LONGEST_TEXT)
        super().__init__(message, hint=hint, where=where)

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n\n{self.traceback.rstrip()}" if self.traceback else text


class WorkerDiedError(JobError):
    """The process of a kernel ended under it. `signal` is the number of what ended it, 0 = it ended by itself."""

    def __init__(self, message: str, *, hint: str = "", where: str = "", signal: int = 0) -> None:
        self.signal = signal
        super().__init__(message, hint=hint, where=where)


class KernelTimeoutError(JobError):
    """A kernel ran longer than it may."""


class JobCancelledError(JobError):
    """Somebody cancelled the job."""
