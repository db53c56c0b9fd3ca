"""Who takes a decision of a plain turn: the network where the decision is worth its time, else the heuristic.

A better decision saves a share of the kernel's time (`GAIN`); the network costs the time that its decisions took so
far. So it decides about kernels that take at least cost / GAIN. Of a graph that is scheduled through a window the
network would not see the paths: the heuristic decides. What decided, how long it took, and how long the kernels take
that it was about, is counted. `policies/budgeted.py` is the same for compiled programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from symphony.problem.units import show
from symphony.runtime.plain_network import PlainAction, PlainNetwork
from symphony.scheduling.policy import PLACE, WAIT

if TYPE_CHECKING:
    from symphony.runtime.plain_turn import PlainCore

NETWORK, HEURISTIC = "network", "heuristic"
# Share of a kernel's time that a decision of the network is taken to save. Chosen: on real kernels it saves more than
# three times that, and any bound from 0 to 150 ms gives the same completion times (docs/lab/decision-latency.md).
GAIN = 0.05
FIRST_COST_S = 2e-4  # of a decision, before any was measured
MEMORY = 0.05  # weight of the latest decision in the mean of their times
FORGETS = 1e-3  # share of it that each decision of the heuristic forgets


@dataclass
class DecisionCounts:
    """Decisions of one decider."""

    decisions: int = 0
    seconds: float = 0.0  # that they took
    kernel_s: float = 0.0  # expected seconds of the kernels that they were about

    def __str__(self) -> str:
        each = show(float(f"{self.seconds / max(self.decisions, 1):.3g}"), "seconds")
        return (
            f"{self.decisions} decisions of {each}, about {show(float(f'{self.kernel_s:.3g}'), 'seconds')} of kernels"
        )


@dataclass
class Budget:
    """`least_s`: the network decides about kernels that take at least as long; None = by the time that it takes."""

    network: PlainNetwork
    least_s: float | None = None
    cost_s: float = FIRST_COST_S  # mean time of the network's decisions, the latest counting most
    counts: dict[str, DecisionCounts] = field(
        default_factory=lambda: {NETWORK: DecisionCounts(), HEURISTIC: DecisionCounts()}
    )

    fall_back: Callable[[str, str], None] = lambda reason, text: None  # called if the network fails
    placed: dict[int, tuple[str, float]] = field(default_factory=dict)  # by gang: what placed it last, in how long

    @property
    def threshold_s(self) -> float:
        """Seconds from which on a kernel is worth the network's time."""
        return self.cost_s / GAIN if self.least_s is None else self.least_s

    def decide(self, core: PlainCore, gang: int) -> PlainAction | None:
        """The network's action; None if the heuristic is to decide. `gang`: the next one by the heuristic."""
        self._by, self._asked_s = HEURISTIC, core.best_s(gang)
        if self._asked_s < self.threshold_s or core.in_window(gang):
            return None
        try:
            action = self.network.decide(core)
        except Exception as error:  # the heuristic decides from now on
            self.least_s = math.inf
            self.fall_back("raised", f"{type(error).__name__}: {error}")
            return None
        if action.kind == WAIT and not core.busy:
            return None
        self._by = NETWORK
        return action

    def decided(self, action: PlainAction, seconds: float) -> None:
        """Count a decision that took so many seconds."""
        if action.kind == PLACE:
            self.placed[action.gang] = self._by, seconds
        found = self.counts[self._by]
        found.decisions += 1
        found.seconds += seconds
        found.kernel_s += self._asked_s
        if self._by == NETWORK:  # one that other programs delayed counts as twice the usual
            self.cost_s += MEMORY * (min(seconds, 2 * self.cost_s) - self.cost_s)
        elif self.cost_s > FIRST_COST_S:  # so that it is tried again
            self.cost_s += FORGETS * (FIRST_COST_S - self.cost_s)
