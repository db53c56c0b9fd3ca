"""What an estimate of a speed rests on: `training_jobs/forecast.py` counts it; clients of a service get it."""

from __future__ import annotations

from typing import NamedTuple


class SampleEvidence(NamedTuple):
    """Samples that an estimate rests on."""

    signature: int  # of this kernel, on this kind of GPU, packed or spread alike, beside the same neighbours
    kernel: int  # of this kernel elsewhere
    family: int  # of others of its family
    newest_s: float | None  # age of the newest of the nearest sort that there is

    @property
    def guess_only(self) -> bool:
        """Whether nothing like it has been seen."""
        return self.newest_s is None
