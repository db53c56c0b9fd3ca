"""What a user says about a training job before it runs.

A training job is a kernel that repeats a step, can be stopped, and resumes from its last checkpoint. Its steps are
alike, so that its speed can be measured while it runs; jobs of one kind are alike, so that they share samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from symphony.problem import limits, units
from symphony.problem.errors import WorkloadError

MAX_STEPS = 10**12
MAX_MODEL_SIZE = 1e18  # parameters, operations: estimates of times have to stay finite


@dataclass(frozen=True)
class Training:
    """Description of a training job. 0 = unknown."""

    steps: int  # of the whole gang, in total
    kind: str = ""  # jobs of one kind have equal speeds in equal placements; "" = the kernel's name
    servers: int = 0  # the last workers are parameter servers; 0 = workers exchange gradients themselves
    batch: int = 0  # samples per worker and step
    parameters: float = 0.0
    operations: float = 0.0  # floating-point, per sample, forward and backward
    checkpoint_s: float = 0.0  # to write a checkpoint …
    restore_s: float = 0.0  # … and to read it back
    every_s: float = 600.0  # between checkpoints that the scheduler did not request
    exact: bool = True  # False: it may end before `steps`; what is left is learned from jobs that have ended

    def __post_init__(self) -> None:
        if not units.is_whole(self.steps, 1, MAX_STEPS):
            raise WorkloadError(f"steps is {self.steps!r}", hint=f"write a whole number from 1 to {MAX_STEPS:.0e}")
        for name in ("servers", "batch"):
            if not units.is_whole(getattr(self, name), 0, MAX_STEPS):
                raise WorkloadError(f"{name} is {getattr(self, name)!r}", hint="write a whole number, 0 or more")
        for name in ("parameters", "operations", "checkpoint_s", "restore_s"):
            value, most = getattr(self, name), limits.SECONDS if name.endswith("_s") else MAX_MODEL_SIZE
            if not units.is_number(value, 0, most):
                raise WorkloadError(f"{name} is {value!r}", hint=f"write a number from 0 to {most:.0e}")
        if not units.is_number(self.every_s, 0, limits.SECONDS) or self.every_s == 0:
            raise WorkloadError(f"every_s is {self.every_s!r}", hint="write seconds above 0, or leave it out")
