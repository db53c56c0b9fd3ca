"""The state from which futures are played: jobs, cluster and beliefs, of a running cluster or of a journal.

Times are seconds from the instant of the snapshot. Devices are indices into `Topology.devices`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
    took_s: float = math.nan  # of a journal: how long it ran …
    kind: str = ""  # … on this device kind


class SnapshotJob(NamedTuple):
    job: int
    tasks: tuple[SnapshotTask, ...]
    user: str = ""
    name: str = ""
    priority: int = 0  # in the core
    arrives_s: float = 0.0
    after: tuple[int, ...] = ()  # numbers of unfinished jobs that must be done before it
    started: bool = False  # a task of it has been started, even if none runs now

    @property
    def runs(self) -> bool:
        return self.started or any(task.devices for task in self.tasks)


@dataclass(frozen=True)
class Snapshot:
    topology: Topology
    kernels: Sequence[KernelBelief]
    jobs: Sequence[SnapshotJob]  # in the order in which they will be admitted
    slots: int = 16  # jobs that the policy considers at once
    loads: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # by others, by row: mean and deviation
    down: frozenset[int] = frozenset()  # devices
    recent: Sequence[SnapshotJob] = ()  # that arrived in the last `recent_s`: examples of what will arrive
    recent_s: float = 0.0
