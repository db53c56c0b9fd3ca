"""Training jobs: what is known of one before it runs.

A training job is a kernel that goes in steps, is stopped and goes on from what it saved last. Its steps are alike, so
that its speed can be measured while it runs; jobs of one kind are alike, so that what one has shown counts for others.
"""

from __future__ import annotations

from dataclasses import dataclass

from symphony.problem import limits, units
from symphony.problem.errors import WorkloadError

MAX_STEPS = 10**12  # at most
MAX_MODEL_SIZE = 1e18  # parameters and operations, at most: times that are guessed from them have to be numbers


@dataclass(frozen=True)
class Training:
    """What a training job says of itself. Numbers that are 0 are not known."""

    steps: int  # of the whole gang, in all
    kind: str = ""  # jobs of one kind are equally fast where they run alike; "" = as the kernel is called
    servers: int = 0  # of the workers, the last ones: parameter servers. 0: workers exchange gradients themselves
    batch: int = 0  # samples that a worker takes in a step
    parameters: float = 0.0
    operations: float = 0.0  # floating-point, of a sample, forth and back
    checkpoint_s: float = 0.0  # what saving takes …
    restore_s: float = 0.0  # … and reading it back
    every_s: float = 600.0  # between two checkpoints that nobody asked for

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
