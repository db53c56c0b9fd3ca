"""A plan under construction: which jobs are on which GPUs, and its value at the believed speeds.

The greedy planner does not evaluate every GPU. Empty GPUs of one kind are equivalent. So are GPUs of one kind that each
run a single job of the same kernel: a new job gains most beside the one of least value. `GpuOccupancy` keeps both in
heaps, so that the time of a plan grows about linearly with the number of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

import numpy as np

from symphony.training_jobs.round_planning import FIXED, RUNS, PlanInputs, SeatAllocation, rows_of

EMPTY_GPU, UNSHARABLE_GPU = -2, -1  # states of a GPU other than the index of a kernel that may be joined


def largest_machine(machine: np.ndarray, kind: np.ndarray, kinds: int) -> np.ndarray:
    """The largest number of devices of each kind on one machine [kinds], given the machine and kind of each device."""
    most = np.zeros(kinds, int)
    (_, of_kind), count = np.unique(np.stack([machine, kind]), axis=1, return_counts=True)
    np.maximum.at(most, of_kind, count)
    return most


class GpuOccupancy:
    """The state of each of D GPUs, and one representative of each group of equivalent GPUs. Y kinds, N kernels."""

    def __init__(self, kind: np.ndarray, machine: np.ndarray, kinds: int, kernels: int) -> None:
        self.kind, self.machine = kind, machine
        self.holds = np.full(len(kind), UNSHARABLE_GPU)
        self.worth = np.zeros(len(kind))  # of the job on it
        self.vacant = np.zeros((int(machine.max(initial=0)) + 1, kinds), int)  # empty GPUs of each machine
        self.empty = np.zeros(kinds, int)  # of the cluster
        self.least = np.full((kinds, max(1, kernels)), -1)  # the GPU with the job of least value, by kernel
        self._empty: list[list[int]] = [[] for _ in range(kinds)]
        self._joined: dict[tuple[int, int], list[tuple[float, int]]] = {}

    def update(self, device: int, holds: int, worth: float) -> None:
        """Set the state of a GPU: EMPTY_GPU, UNSHARABLE_GPU, or the kernel of its only job, with that job's value."""
        kind, before = int(self.kind[device]), int(self.holds[device])
        self.holds[device], self.worth[device] = holds, worth
        more = (holds == EMPTY_GPU) - (before == EMPTY_GPU)
        self.vacant[self.machine[device], kind] += more
        self.empty[kind] += more
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
        """The first empty GPU of each kind that has one."""
        for heap in self._empty:
            while heap and self.holds[heap[0]] != EMPTY_GPU:
                heappop(heap)
        return [heap[0] for heap in self._empty if heap]

    def candidates(self, home: int) -> np.ndarray:
        """Representatives of all groups of GPUs, for a job that runs at `home` (-1 = nowhere)."""
        here = [home] if home >= 0 and self.holds[home] != UNSHARABLE_GPU else []
        return np.unique(np.concatenate([self.least[self.least >= 0], np.asarray(self.first_empty() + here, int)]))

    def on_one_machine(self, kind: int, count: int) -> np.ndarray:
        """`count` empty GPUs of a kind on the machine with the fewest that suffice; none if no machine has enough."""
        able = self.vacant[:, kind]
        machine = int(np.argmin(np.where(able >= count, able, np.iinfo(int).max)))
        if able[machine] < count:
            return np.zeros(0, int)
        return np.flatnonzero((self.machine == machine) & (self.kind == kind) & (self.holds == EMPTY_GPU))[:count]


class PartialPlan:
    """The rows (jobs) on each device, and the value of each device: the sum of weight times speed of its rows."""

    def __init__(self, p: PlanInputs, seats: SeatAllocation, weight: np.ndarray, horizon_s: float) -> None:
        self.p, self.seats = p, seats
        self.kind = np.asarray(p.kind)
        self.shares = p.beside.shape[0] > 0
        lanes = np.maximum(seats.lanes, 0)
        # Queued gangs hold no lane yet. A gang behind them might wait for hours, so their devices have no room.
        self.room = np.where(p.queued > 0, 0, lanes if self.shares else np.minimum(lanes, 1))
        fixed = [(seats.holder[lane], p.lane_device[lane]) for lane in np.flatnonzero(seats.holder >= 0)]
        fixed = [(int(row), int(device)) for row, device in fixed if p.standing[row] == FIXED]
        held = np.bincount([device for _, device in fixed], minlength=len(self.kind)) if fixed else 0 * self.room
        if not self.shares:
            self.room = np.where(held > 0, 0, self.room)
        self.on = np.full((len(self.kind), max(1, int((self.room + held).max(initial=1)))), -1)
        self.at: dict[int, tuple[int, ...]] = {}
        self.weight = weight / np.maximum(p.rate.max(axis=1), 1e-300)
        # Gangs of several workers never share, and nothing shares without beliefs about pairs.
        self.alone = (p.workers > 1) | (not self.shares)
        home = np.full(len(p.gang), -1)
        for row in rows_of(p.standing == RUNS):
            where = seats.where(row)
            home[row] = where[0] if len(where) else -1
        self.home = home
        self.widest = largest_machine(p.machine[p.up], p.kind[p.up], p.rate.shape[1])
        self.lost = np.clip(p.moving_s / horizon_s, 1e-6, 0.9)
        for row, device in fixed:
            self._add_row(row, device)
        self.value = self.worth(self.on, np.arange(len(self.kind)))
        self.openings = GpuOccupancy(self.kind, np.asarray(p.machine), p.rate.shape[1], p.beside.shape[0])
        for device in range(len(self.kind)):
            self._update_occupancy(device)

    def _update_occupancy(self, device: int) -> None:
        if self.room[device] <= 0:
            return self.openings.update(device, UNSHARABLE_GPU, 0.0)
        rows = self.on[device][self.on[device] >= 0]
        if not len(rows):
            return self.openings.update(device, EMPTY_GPU, 0.0)
        joinable = len(rows) == 1 and not self.alone[rows[0]]
        kernel = int(self.p.kernel[rows[0]]) if joinable else UNSHARABLE_GPU
        return self.openings.update(device, kernel, float(self.value[device]))

    def _add_row(self, row: int, device: int) -> None:
        self.on[device, np.flatnonzero(self.on[device] < 0)[0]] = row

    def speeds(self, rows: np.ndarray, device: np.ndarray) -> np.ndarray:
        """Units/s [..., S] of rows [..., S] (-1 = none) that share a device [...]; NaN where they must not share."""
        p = self.p
        real, kind = rows >= 0, self.kind[device][..., None]
        speed = np.where(real, p.rate[rows, kind], 0.0)
        if self.shares and rows.shape[-1] > 1:
            kernel = p.kernel[rows]
            count = real.sum(axis=-1, keepdims=True)
            together = real[..., :, None] & real[..., None, :] & ~np.eye(rows.shape[-1], dtype=bool)
            kept = p.beside[kernel[..., :, None], kernel[..., None, :], kind[..., None]]
            with np.errstate(divide="ignore"):
                cost = np.where(together, 1 / kept - 1, 0.0).sum(axis=-1)
            never = np.isinf(cost) | (real & self.alone[rows] & (count > 1))
            speed = np.where(never, np.nan, speed / (1 + cost) / (1 + p.crowding * np.maximum(count - 2, 0)))
        return np.asarray(speed)

    def worth(self, rows: np.ndarray, device: np.ndarray) -> np.ndarray:
        """Value of devices [...] with rows [..., S] on them; -inf where these must not share."""
        home = self.home[rows]
        stays = (home < 0) | (home == device[..., None])
        each = self.speeds(rows, device) * self.weight[rows] * np.where(stays, 1.0, 1 - self.lost[rows])
        return np.asarray(np.where(np.isnan(each).any(axis=-1), -np.inf, np.where(rows >= 0, each, 0.0).sum(axis=-1)))

    def empty(self) -> np.ndarray:
        """Empty devices that may be given to a row."""
        return np.flatnonzero(self.openings.holds == EMPTY_GPU)

    def empty_devices(self, kind: int, count: int) -> tuple[int, ...]:
        """`count` empty devices of a kind that has as many, on one machine if possible."""
        some = self.openings.on_one_machine(kind, count)
        if not len(some):  # the machines with the most
            able = np.flatnonzero((self.openings.holds == EMPTY_GPU) & (self.kind == kind))
            most = self.openings.vacant[self.p.machine[able], kind]
            some = able[np.lexsort((able, self.p.machine[able], -most))[:count]]
        return tuple(int(device) for device in some)

    def put(self, row: int, devices: tuple[int, ...]) -> None:
        """Place a row on devices."""
        for device in devices:
            self._add_row(row, device)
            self.room[device] -= 1
        self.at[row] = devices
        self._refresh(devices)

    def remove(self, row: int) -> tuple[int, ...]:
        """Take a row off its devices, which are returned."""
        devices = self.at.pop(row)
        for device in devices:
            self.on[device, self.on[device] == row] = -1
            self.room[device] += 1
        self._refresh(devices)
        return devices

    def _refresh(self, devices: tuple[int, ...]) -> None:
        some = np.asarray(devices, int)
        self.value[some] = self.worth(self.on[some], some)
        for device in devices:
            self._update_occupancy(device)

    def best_place(self, row: int) -> tuple[tuple[int, ...], float]:
        """The devices where a row adds most value, and that value; () if nowhere."""
        if self.p.workers[row] > 1:
            return self._best_place_of_gang(row)
        some = self._candidates(row)
        if not len(some):
            return (), 0.0
        rows = self.on[some]
        rows[np.arange(len(some)), np.argmax(rows < 0, axis=1)] = row
        gain = self.worth(rows, some) - self.value[some]
        best = int(np.argmax(gain))
        return ((int(some[best]),), float(gain[best])) if gain[best] > 0 else ((), 0.0)

    def place_all(self, rows: Iterable[int]) -> None:
        """Place rows, one after the other, where each adds most value; rows that add none are left out."""
        # With no empty GPU left, room only shrinks: a job does not fit where one of its kernel that is worth as much
        # did not.
        refused: dict[int, float] = {}
        for row in rows:
            kernel, worth = int(self.p.kernel[row]), float(self.weight[row])
            if row in self.at or (self.home[row] < 0 and worth <= refused.get(kernel, -1.0)):
                continue
            devices, _ = self.best_place(row)
            if devices:
                self.put(row, devices)
            elif self.p.workers[row] == 1 and not self.openings.empty.any() and self.home[row] < 0:
                refused[kernel] = worth

    def _candidates(self, row: int) -> np.ndarray:
        """One of each group of equivalent devices with room for a row."""
        some = self.openings.candidates(int(self.home[row]))
        if self.on.shape[1] > 2:  # devices with several jobs and room for more
            some = np.union1d(some, np.flatnonzero((self.openings.holds == UNSHARABLE_GPU) & (self.room > 0)))
        return some[(self.on[some] < 0).any(axis=1) & (self.p.rate[row, self.kind[some]] > 0)]

    def _best_place_of_gang(self, row: int) -> tuple[tuple[int, ...], float]:
        """Empty devices of the best kind, on one machine if possible."""
        p, count = self.p, int(self.p.workers[row])
        best: tuple[tuple[int, ...], float] = ((), 0.0)
        able = np.flatnonzero((p.rate[row] > 0) & (self.openings.empty >= count))
        here = self.seats.where(row) if len(able) and self.home[row] >= 0 else ()
        vacant = self.openings.holds == EMPTY_GPU if here else np.zeros(0, bool)
        for kind in able:
            if len(here) == count and vacant[list(here)].all() and self.kind[here[0]] == kind:
                chosen = here
            else:
                chosen = self.empty_devices(int(kind), count)
            speed = p.rate[row, kind]
            # If no machine is large enough, rates already are those of a spread gang (`planner.attainable_speeds`).
            if len(set(p.machine[list(chosen)])) > 1 and self.shares and self.widest[kind] >= count:
                packed, spread = p.unit_s[p.kernel[row], kind]
                speed *= packed / spread if packed > 0 and spread > 0 else 1.0
            moved = bool(here) and sorted(here) != sorted(chosen)
            gain = self.weight[row] * speed * (1 - self.lost[row] * moved)
            if gain > best[1]:
                best = (chosen, float(gain))
        return best
