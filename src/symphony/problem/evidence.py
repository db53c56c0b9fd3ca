"""What an estimate of a speed rests on: `training_jobs/forecast.py` counts it; clients of a service get it."""

from __future__ import annotations

from typing import NamedTuple


class SampleEvidence(NamedTuple):
    """Numbers of samples."""

    signature: int  # of this kernel, on this kind of GPU, equally packed or spread, beside the same neighbours
    kernel: int  # of this kernel in other circumstances
    family: int  # of other kernels of its family
    newest_s: float | None  # age of the newest sample of the closest of these three sorts; None: there is no sample

    @property
    def guess_only(self) -> bool:
        """Whether there is no sample at all."""
        return self.newest_s is None
