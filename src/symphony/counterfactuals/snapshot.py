"""The state from which futures are played: jobs, cluster and beliefs, of a running cluster or of a journal.

Times are seconds from the instant of the snapshot. Devices are indices into `Topology.devices`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from symphony.problem.topology import Topology
from symphony.problem.workload import Kernel


class KernelBelief(NamedTuple):
    """What is believed of a kernel's times. Deviations are of logarithms, by device kind."""

    kernel: Kernel  # its profiles are medians
    belief_std: Mapping[str, float]  # of the typical time, which is the same for all runs
    noise_std: Mapping[str, float]  # of a single run


class SnapshotTask(NamedTuple):
    """A task that has not finished; or, of a journal, one that has."""

    kernel: int  # index into `Snapshot.kernels`
    reads: tuple[int, ...] = ()  # indices of unfinished tasks of the same job
    workers: int = 1
    size: float = 0.0  # bytes of its inputs
    units: float = 1.0  # steps left of a training job
    devices: tuple[int, ...] = ()  # that it runs on; () = it waits
    elapsed_s: float = 0.0  # since it started there
    delay_s: float = 0.0  # before it may be tried again
    took_s: float = math.nan  # of a journal: how long it ran …
    kind: str = ""  # … on this device kind


class SnapshotJob(NamedTuple):
    job: int
    tasks: tuple[SnapshotTask, ...]
    user: str = ""
    name: str = ""
    priority: int = 0
    arrives_s: float = 0.0
    after: tuple[int, ...] = ()  # numbers of unfinished jobs that must be done before it
    started: bool = False  # a task of it has been started, even if none runs now
    admitted: bool = False
    queue: str = ""
    trains: bool = False

    @property
    def runs(self) -> bool:
        return self.started or any(task.devices for task in self.tasks)

    @property
    def begins_s(self) -> float:
        """Before which none of its tasks can run."""
        delays = [0.0 if task.devices else task.delay_s for task in self.tasks if not task.reads]
        return max(self.arrives_s, min(delays, default=0.0))


class Admission(Protocol):
    """The rule by which a cluster that users share admits jobs and serves them, in one future. Times are from now."""

    def copy(self) -> Admission:
        """For another future."""

    def arrives(self, job: SnapshotJob, now_s: float, admitted: bool = False) -> None:
        """A job waits from now on, or is one that has been admitted. Of equals, the lowest number is admitted first."""

    def admit(self, now_s: float, used_s: Mapping[int, float]) -> list[int]:
        """The numbers of the jobs that are admitted now. `used_s`: device-seconds of running tasks, by job."""

    def levels(self, now_s: float, used_s: Mapping[int, float]) -> Mapping[int, int]:
        """Priorities in the core of the admitted jobs."""

    def slots(self, user: str) -> float:
        """The most slots of devices that a user may hold."""

    def used(self, number: int, seconds: float, now_s: float) -> None:
        """A task of a job has ended, after so many device-seconds."""

    def ended(self, number: int) -> None:
        """A job has ended."""


@dataclass(frozen=True)
class Snapshot:
    topology: Topology
    kernels: Sequence[KernelBelief]
    jobs: Sequence[SnapshotJob]  # those that are admitted first; in the order of admission, if there is no `admission`
    slots: int = 16  # jobs that the policy considers at once
    loads: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # by others, by row: mean and deviation
    down: frozenset[int] = frozenset()  # devices
    recent: Sequence[SnapshotJob] = ()  # that have arrived (`arrives_s` < 0): examples of what will arrive
    admission: Admission | None = None  # as it is now, without jobs; None: jobs are admitted in order
