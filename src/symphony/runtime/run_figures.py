"""What is remembered of what a machine told while a kernel ran. `machine_monitor.py` reads it, `profiles.py` keeps it.

Apart from both, so that whoever only reads profiles needs no counters.
"""

from __future__ import annotations

from dataclasses import dataclass

PCIE_FIGURE = "pcie"  # bytes a second, both ways; of this and the next, demands are made
GPU_BUSY_FIGURE = "gpu taken"  # share of the time for which anything computed


@dataclass
class FigureStatistics:
    """A figure over the runs of a kernel."""

    runs: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared distances from the mean

    @property
    def std(self) -> float:
        """How far single runs are from the mean."""
        return (self.squares / max(self.runs - 1, 1)) ** 0.5

    def add(self, value: float) -> None:
        """Another run."""
        self.runs += 1
        off = value - self.mean
        self.mean += off / self.runs
        self.squares += off * (value - self.mean)
