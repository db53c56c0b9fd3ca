"""Every error that Symphony raises on purpose.

SymphonyError
├── InputError            the caller gave something wrong; says what, where, and what to write instead
│   ├── TopologyError     a cluster description
│   ├── WorkloadError     a task graph, kernel, arrival list or workload name
│   │   └── CycleError    a task graph that waits for itself
│   ├── LimitError        a size beyond `symphony.problem.limits`
│   └── InfeasibleError   work that no device of the topology can ever run
├── PolicyError           a policy broke its contract (or waits for ever)
└── DataError             a file under SYMPHONY_DATA is missing or unreadable
"""

from __future__ import annotations

LONGEST = 400  # of a message: input that is echoed may be of any length


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 60]} … {text[-50:]}"


class SymphonyWarning(UserWarning):
    """Something was not as expected, and Symphony went on; the text says with what."""


class SymphonyError(Exception):
    """Base of every error raised on purpose. `hint` says what to type next."""

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        self.message, self.hint, self.where = _cut(message), hint, _cut(where)
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
