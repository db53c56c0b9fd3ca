"""Who takes a decision of a plain turn: the network where the decision is worth its time, else the heuristic.

A better decision saves a share of the kernel's time (`GAIN`); the network costs the time that its decisions took so
far. So it decides about kernels that take at least cost / GAIN. What decided, how long it took, and how long the
kernels take that it was about, is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from symphony.problem.units import show
from symphony.runtime.plain_network import PlainAction, PlainNetwork
from symphony.scheduling.policy import WAIT

if TYPE_CHECKING:
    from symphony.runtime.plain_turn import PlainCore

NETWORK, HEURISTIC = "network", "heuristic"
GAIN = 0.05  # share of a kernel's time that the network's decision is expected to save (chosen; docs/lab/decisions.md)
FIRST_COST_S = 2e-4  # of a decision, before any was measured
MEMORY = 0.05  # weight of the latest decision in the mean of their times


@dataclass
class DecisionCounts:
    """Decisions of one decider."""

    decisions: int = 0
    seconds: float = 0.0  # that they took
    kernel_s: float = 0.0  # expected seconds of the kernels that they were about

    def __str__(self) -> str:
        each = show(self.seconds / max(self.decisions, 1), "seconds")
        return f"{self.decisions} decisions, {each} each, about kernels of {show(self.kernel_s, 'seconds')}"


@dataclass
class Budget:
    """`least_s`: the network decides about kernels that take at least as long; None = by the time that it takes."""

    network: PlainNetwork
    least_s: float | None = None
    cost_s: float = FIRST_COST_S  # mean time of the network's decisions, the latest counting most
    counts: dict[str, DecisionCounts] = field(
        default_factory=lambda: {NETWORK: DecisionCounts(), HEURISTIC: DecisionCounts()}
    )

    @property
    def threshold_s(self) -> float:
        """Seconds from which on a kernel is worth the network's time."""
        return self.cost_s / GAIN if self.least_s is None else self.least_s

    def decide(self, core: PlainCore, gang: int) -> PlainAction | None:
        """The network's action; None if the heuristic is to decide. `gang`: the next one by the heuristic."""
        self._asked_s = self.network.best_s(core, gang)
        self._by = HEURISTIC
        if not self._asked_s or self._asked_s < self.threshold_s:
            return None
        action = self.network.decide(core)
        if action.kind == WAIT and not core.busy:
            return None
        self._by = NETWORK
        return action

    def decided(self, action: PlainAction, seconds: float) -> None:
        """Count a decision that took so many seconds."""
        found = self.counts[self._by]
        found.decisions += 1
        found.seconds += seconds
        found.kernel_s += self._asked_s
        if self._by == NETWORK:
            self.cost_s += MEMORY * (seconds - self.cost_s)
