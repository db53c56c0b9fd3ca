"""Where the next job could go, without a look at every GPU: of GPUs that are alike, one stands for all.

Empty GPUs of a kind are alike. So are those of a kind on which one job of the same kernel runs alone: a newcomer does
best beside the one that is worth least. Heaps find both, so that a plan for a thousand times as many GPUs takes little
more than a thousand times as long.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

EMPTY_GPU, UNSHARABLE_GPU = -2, -1  # what a GPU holds, if not one job of a kernel that may be joined


class GpuOccupancy:
    """What each of D GPUs holds, and which of them stand for others. Y kinds, N kernels."""

    def __init__(self, kind: np.ndarray, machine: np.ndarray, kinds: int, kernels: int) -> None:
        self.kind, self.machine = kind, machine
        self.holds = np.full(len(kind), UNSHARABLE_GPU)
        self.worth = np.zeros(len(kind))  # of whom it holds
        self.vacant = np.zeros((int(machine.max(initial=0)) + 1, kinds), int)  # empty GPUs of each machine
        self.least = np.full((kinds, max(1, kernels)), -1)  # the GPU with the job of a kernel that is worth least
        self._empty: list[list[int]] = [[] for _ in range(kinds)]
        self._joined: dict[tuple[int, int], list[tuple[float, int]]] = {}

    def update(self, device: int, holds: int, worth: float) -> None:
        """A GPU holds something else now: EMPTY, OTHER, or one job of a kernel, with what that job is worth."""
        kind, before = int(self.kind[device]), int(self.holds[device])
        self.holds[device], self.worth[device] = holds, worth
        self.vacant[self.machine[device], kind] += (holds == EMPTY_GPU) - (before == EMPTY_GPU)
        if holds == EMPTY_GPU:
            heappush(self._empty[kind], device)
        elif holds != UNSHARABLE_GPU:
            heappush(self._joined.setdefault((kind, holds), []), (worth, device))
        for kernel in {before, holds} - {EMPTY_GPU, UNSHARABLE_GPU}:
            self._refresh(kind, kernel)

    def _refresh(self, kind: int, kernel: int) -> None:
        heap = self._joined[kind, kernel]
        while heap and (self.holds[heap[0][1]] != kernel or self.worth[heap[0][1]] != heap[0][0]):
            heappop(heap)
        self.least[kind, kernel] = heap[0][1] if heap else -1

    def first_empty(self) -> list[int]:
        """Of each kind that has any."""
        for heap in self._empty:
            while heap and self.holds[heap[0]] != EMPTY_GPU:
                heappop(heap)
        return [heap[0] for heap in self._empty if heap]

    def candidates(self, home: int) -> np.ndarray:
        """GPUs of which one is as good as any, for a job that runs at `home` (-1 = nowhere)."""
        here = [home] if home >= 0 and self.holds[home] != UNSHARABLE_GPU else []
        return np.unique(np.concatenate([self.least[self.least >= 0], np.asarray(self.first_empty() + here, int)]))

    def on_one_machine(self, kind: int, count: int) -> np.ndarray:
        """Empty GPUs of the machine that has just enough of a kind; none if no machine has."""
        able = self.vacant[:, kind]
        machine = int(np.argmin(np.where(able >= count, able, np.iinfo(int).max)))
        if able[machine] < count:
            return np.zeros(0, int)
        return np.flatnonzero((self.machine == machine) & (self.kind == kind) & (self.holds == EMPTY_GPU))[:count]
