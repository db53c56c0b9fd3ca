"""Every error that Symphony raises on purpose.

SymphonyError
├── InputError            an argument, file or option is wrong; says what, where, and what to write instead
│   ├── TopologyError     a cluster description
│   ├── WorkloadError     a task graph, kernel, arrival list or workload name
│   │   └── CycleError    a task graph that waits for itself
│   ├── LimitError        a size beyond `symphony.problem.limits`
│   └── InfeasibleError   work that no device of the topology can ever run
├── PolicyError           a policy broke its contract, or waits for ever
├── DataError             a data file is missing, unreadable or malformed
├── EngineError           an engine failed, or is closed
├── ServiceError          a service cannot be reached, or refuses a request
│   ├── TokenError            a token is missing, wrong or expired
│   │   └── ScopeError            a token does not permit the request
│   ├── TrustError            reading a result would run another user's code in this process
│   ├── UnknownJobError       there is no such job, or it belongs to another user
│   │   └── JobLostError          damage to the journal has destroyed the job
│   ├── BusyError             too many requests; `retry_s` says when to try again
│   │   └── UnavailableError      the service accepts no work at present: it is stopping, or cannot write
│   └── VersionError          client and service have different protocols or Python versions
└── JobError              an accepted job has no result
    ├── KernelError           a kernel raised, or its result cannot be sent; `traceback` says where
    ├── WorkerDiedError       the process of a kernel died; `signal` is the number of the signal
    ├── KernelTimeoutError    a kernel exceeded its time limit
    ├── KernelLimitError      a kernel used more than it may: memory, processes, CPU time, disk
    └── JobCancelledError     the job was cancelled
"""

from __future__ import annotations

from symphony.problem.texts import LONGEST_TEXT, readable

MAX_MESSAGE_CHARS = 400  # messages quote input, which may be of any length


def _cut(text: str) -> str:
    text = readable(text)
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[: MAX_MESSAGE_CHARS - 60]} … {text[-50:]}"


class SymphonyWarning(UserWarning):
    """Something was not as expected; the text says with what Symphony continues."""


class SymphonyError(Exception):
    """Base of every error raised on purpose. `where` names the input, `hint` says what to type next."""

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        self.message, self.hint, self.where = _cut(message), readable(hint), _cut(where)
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\nhint: {self.hint}" if self.hint else text


class InputError(SymphonyError):
    """An argument, file or option is wrong."""


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
    """A data file is missing, unreadable or malformed."""


class EngineError(SymphonyError):
    """An engine failed, or is closed."""


class ServiceError(SymphonyError):
    """A service cannot be reached, or refuses a request."""


class TokenError(ServiceError):
    """A token is missing, wrong or expired."""


class ScopeError(TokenError):
    """A token does not permit the request."""


class TrustError(ServiceError):
    """A result of another user's job is not plain data: reading it would run that user's code in this process."""


class UnknownJobError(ServiceError):
    """There is no such job, or it belongs to another user."""


class JobLostError(UnknownJobError):
    """Damage to the journal of the service has destroyed the job. Submit it again."""


class BusyError(ServiceError):
    """Too many requests. `retry_s`: seconds until the next try."""

    def __init__(self, message: str, *, hint: str = "", where: str = "", retry_s: float = 1.0) -> None:
        self.retry_s = retry_s
        super().__init__(message, hint=hint, where=where)


class UnavailableError(BusyError):
    """A service accepts no work at present: it is stopping, or cannot write."""


class VersionError(ServiceError):
    """Client and service have different protocols or Python versions."""


class JobError(SymphonyError):
    """An accepted job has no result."""


class KernelError(JobError):
    """A kernel raised, or its result cannot be sent. `traceback` is that of the process that ran it."""

    def __init__(self, message: str, *, hint: str = "", where: str = "", traceback: str = "") -> None:
        self.traceback = readable(traceback, longest=LONGEST_TEXT)
        super().__init__(message, hint=hint, where=where)

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n\n{self.traceback.rstrip()}" if self.traceback else text


class WorkerDiedError(JobError):
    """The process of a kernel died. `signal`: number of the signal that killed it; 0: it exited by itself."""

    def __init__(self, message: str, *, hint: str = "", where: str = "", signal: int = 0) -> None:
        self.signal = signal
        super().__init__(message, hint=hint, where=where)


class KernelTimeoutError(JobError):
    """A kernel, or a job, exceeded its time limit."""


class KernelLimitError(JobError):
    """A kernel used more than it may of memory, processes, CPU time, time or disk."""


class JobCancelledError(JobError):
    """The job was cancelled."""
