"""Which of our runs were beside which, when and for how long."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np

from symphony.problem.topology import Topology

RUN_PIECES = 8  # of the time of a run: company comes and goes
PIECE_EDGES = np.arange(RUN_PIECES + 1) / RUN_PIECES
MAX_PAST_RUNS = 16_384  # runs that have ended: more than can end in a window of counters, with its delay
MAX_MET_RUNS = 1024  # of these, the latest may have been beside one that ends


@dataclass(frozen=True)
class PastRun:
    """A run, as others met it."""

    kernel: str
    kind: str  # of its device
    device: int
    began_s: float
    ended_s: float
    active: float = 1.0  # share of that time for which it had its processor; NaN = not known

    def beside(self, other: PastRun) -> float:
        """The share of our time during which the other ran, too. One that has not ended is taken to be as active."""
        both = min(self.ended_s, other.ended_s) - max(self.began_s, other.began_s)
        return max(both, 0.0) / max(self.ended_s - self.began_s, 1e-9) * self._activity(other)

    def _activity(self, other: PastRun) -> float:
        return self.active if math.isnan(other.active) else other.active

    def pieces(self, others: Sequence[PastRun]) -> np.ndarray:
        """The same of each of the pieces of our time: other × piece."""
        edges = self.began_s + PIECE_EDGES * (self.ended_s - self.began_s)
        began, ended, active = np.array([(x.began_s, x.ended_s, self._activity(x)) for x in others]).reshape(-1, 3).T
        both = np.minimum(edges[1:], ended[:, None]) - np.maximum(edges[:-1], began[:, None])
        return np.maximum(both, 0.0) / max(edges[1] - edges[0], 1e-9) * active[:, None]


def memory_rows(topology: Topology) -> list[str | None]:
    """Of each device: the memory of its socket, over which its work goes."""
    memories = {row.name for row in topology.resources if row.kind == "memory"}
    return [
        next((hop.resource for hop in device.route if hop.resource in memories), None) for device in topology.devices
    ]


class CoRunners:
    """Who ran beside whom, on devices that share a memory."""

    def __init__(self, topology: Topology) -> None:
        rows = memory_rows(topology)
        on: dict[str | None, set[int]] = {row: set() for row in rows}
        for device, row in enumerate(rows):
            on[row] |= {device} if row is not None else set()
        self._near = [on[row] for row in rows]
        self._ended: deque[PastRun] = deque()  # by their ends

    def ended(self, ran: PastRun) -> None:
        """A run has ended; it is remembered for those that it met. Ends are reported nearly in their order."""
        at = len(self._ended)
        while at and self._ended[at - 1].ended_s > ran.ended_s:
            at -= 1
        self._ended.insert(at, ran)
        if len(self._ended) > MAX_PAST_RUNS:
            self._ended.popleft()

    def of(self, ran: PastRun, running: Iterable[PastRun]) -> list[tuple[PastRun, float]]:
        """Those beside a run that has ended, with the share of its time."""
        near = self._near[ran.device]
        met = self._met(ran, running)
        return [(one, share) for one in met if one.device in near and (share := ran.beside(one)) > 0]

    def since(self, began_s: float) -> list[PastRun]:
        """Those that have ended since then, as far as they are remembered. Any thread may ask."""
        return list(takewhile(lambda one: one.ended_s > began_s, reversed(tuple(self._ended))))

    def alone(self, ran: PastRun, running: Iterable[PastRun]) -> bool:
        """Whether a run that has ended had its device for itself."""
        return not any(one.device == ran.device and ran.beside(one) > 0 for one in self._met(ran, running))

    def _met(self, ran: PastRun, running: Iterable[PastRun]) -> list[PastRun]:
        """Those that may have run at the same time, wherever."""
        latest = islice(reversed(self._ended), MAX_MET_RUNS)
        ended = takewhile(lambda one: one.ended_s > ran.began_s, latest)
        return [*(one for one in ended if one is not ran), *running]
