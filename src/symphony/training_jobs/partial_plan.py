"""A plan in the making: which jobs are on which GPUs, and what that is worth, at the speeds that are believed."""

from __future__ import annotations

import numpy as np

from symphony.training_jobs.gpu_occupancy import EMPTY_GPU, UNSHARABLE_GPU, GpuOccupancy
from symphony.training_jobs.round_planning import FIXED, RUNS, PlanInputs, SeatAllocation, rows_of


def widest(p: PlanInputs) -> np.ndarray:
    """The most GPUs of each kind that one machine has, of those that are up [Y]."""
    found = np.zeros(p.rate.shape[1], int)
    (_, kind), count = np.unique(np.stack([p.machine, p.kind])[:, p.up], axis=1, return_counts=True)
    np.maximum.at(found, kind, count)
    return found


class PartialPlan:
    """A plan in the making: which rows are on which device, and what that is worth."""

    def __init__(self, p: PlanInputs, seats: SeatAllocation, weight: np.ndarray, horizon_s: float) -> None:
        self.p, self.seats = p, seats
        self.kind = np.asarray(p.kind)
        self.shares = p.beside.shape[0] > 0
        lanes = np.maximum(seats.lanes, 0)
        # Who is in a queue is not seen on its device; a gang behind it might wait for hours.
        self.room = np.where(p.queued > 0, 0, lanes if self.shares else np.minimum(lanes, 1))
        fixed = [(seats.holder[lane], p.lane_device[lane]) for lane in np.flatnonzero(seats.holder >= 0)]
        fixed = [(int(row), int(device)) for row, device in fixed if p.standing[row] == FIXED]
        held = np.bincount([device for _, device in fixed], minlength=len(self.kind)) if fixed else 0 * self.room
        self.held = [row for row, _ in fixed]
        if not self.shares:
            self.room = np.where(held > 0, 0, self.room)
        self.on = np.full((len(self.kind), max(1, int((self.room + held).max(initial=1)))), -1)
        self.at: dict[int, tuple[int, ...]] = {}
        self.weight = weight / np.maximum(p.rate.max(axis=1), 1e-300)
        # Gangs of several are never shared, nor are those that nobody knows anything about.
        self.alone = (p.workers > 1) | (not self.shares)
        home = np.full(len(p.gang), -1)
        for row in rows_of(p.standing == RUNS):
            where = seats.where(row)
            home[row] = where[0] if len(where) else -1
        self.home = home
        self.widest = widest(p)
        self.lost = np.clip(p.moving_s / horizon_s, 1e-6, 0.9)
        for row, device in fixed:
            self._add_row(row, device)
        self.value = self.worth(self.on, np.arange(len(self.kind)))
        self.openings = GpuOccupancy(self.kind, np.asarray(p.machine), p.rate.shape[1], p.beside.shape[0])
        for device in range(len(self.kind)):
            self._update_occupancy(device)

    def use_beliefs(self, p: PlanInputs) -> None:
        """Go by other beliefs from now on; who is where stays."""
        self.p = p
        self.value = self.worth(self.on, np.arange(len(self.kind)))

    def _update_occupancy(self, device: int) -> None:
        """Say what a device holds to those who look for room."""
        if self.room[device] <= 0:
            return self.openings.update(device, UNSHARABLE_GPU, 0.0)
        rows = self.on[device][self.on[device] >= 0]
        if not len(rows):
            return self.openings.update(device, EMPTY_GPU, 0.0)
        joined = len(rows) == 1 and not self.alone[rows[0]]
        return self.openings.update(
            device, int(self.p.kernel[rows[0]]) if joined else UNSHARABLE_GPU, float(self.value[device])
        )

    def _add_row(self, row: int, device: int) -> None:
        self.on[device, np.flatnonzero(self.on[device] < 0)[0]] = row

    def speeds(self, rows: np.ndarray, device: np.ndarray, *, kappa: float = 0.0) -> np.ndarray:
        """Units per second [..., S] of rows [..., S] that share a device [...]; -1 = nobody, NaN = they must not share.

        `kappa`: so many deviations above what is believed.
        """
        p = self.p
        real, kind = rows >= 0, self.kind[device][..., None]
        speed = np.where(real, p.rate[rows, kind], 0.0)
        if self.shares and (rows.shape[-1] > 1 or kappa):
            kernel = p.kernel[rows]
            pairs = (kernel[..., :, None], kernel[..., None, :], kind[..., None])
            count = real.sum(axis=-1, keepdims=True)
            together = real[..., :, None] & real[..., None, :] & ~np.eye(rows.shape[-1], dtype=bool)
            kept = p.beside[pairs]
            if kappa:
                kept = np.where(kept > 0, np.clip(kept * np.exp(kappa * p.beside_std[pairs]), 1e-3, 1.0), 0.0)
                speed = speed * np.exp(kappa * p.unit_std[kernel, kind, 0])
            with np.errstate(divide="ignore"):
                cost = np.where(together, 1 / kept - 1, 0.0).sum(axis=-1)
            never = np.isinf(cost) | (real & self.alone[rows] & (count > 1))
            speed = np.where(never, np.nan, speed / (1 + cost) / (1 + p.crowding * np.maximum(count - 2, 0)))
        return np.asarray(speed)

    def worth(self, rows: np.ndarray, device: np.ndarray, *, kappa: float = 0.0) -> np.ndarray:
        """What devices [...] are worth with rows [..., S] on them; -inf where they must not share."""
        home = self.home[rows]
        stays = (home < 0) | (home == device[..., None])
        each = self.speeds(rows, device, kappa=kappa) * self.weight[rows] * np.where(stays, 1.0, 1 - self.lost[rows])
        return np.asarray(np.where(np.isnan(each).any(axis=-1), -np.inf, np.where(rows >= 0, each, 0.0).sum(axis=-1)))

    def with_one_more(self, row: int, *, kappa: float = 0.0) -> np.ndarray:
        """What every device would be worth with a row beside those who are there; -inf where there is no room."""
        free = self.on < 0
        seat = np.argmax(free, axis=1)
        rows = self.on.copy()
        rows[np.arange(len(rows)), seat] = row
        worth = self.worth(rows, np.arange(len(rows)), kappa=kappa)
        able = (self.room > 0) & free.any(axis=1) & (self.p.rate[row, self.kind] > 0)
        return np.where(able, worth, -np.inf)

    def empty(self) -> np.ndarray:
        """Devices that nobody has a seat on, and that may be given."""
        return np.flatnonzero(self.openings.holds == EMPTY_GPU)

    def put(self, row: int, devices: tuple[int, ...]) -> None:
        """Give a row devices."""
        for device in devices:
            self._add_row(row, device)
            self.room[device] -= 1
        self.at[row] = devices
        self._refresh(devices)

    def remove(self, row: int) -> tuple[int, ...]:
        """Take a row off its devices."""
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
        """Where a row adds most to the plan, and how much; () if nowhere."""
        if self.p.workers[row] > 1:
            return self._room_for_all(row)
        some = self._unlike(row)
        if not len(some):
            return (), 0.0
        rows = self.on[some]
        rows[np.arange(len(some)), np.argmax(rows < 0, axis=1)] = row
        gain = self.worth(rows, some) - self.value[some]
        best = int(np.argmax(gain))
        return ((int(some[best]),), float(gain[best])) if gain[best] > 0 else ((), 0.0)

    def _unlike(self, row: int) -> np.ndarray:
        """Devices with room for a row, of those that are alike one."""
        some = self.openings.candidates(int(self.home[row]))
        if self.on.shape[1] > 2:  # devices with several jobs and room for more
            some = np.union1d(some, np.flatnonzero((self.openings.holds == UNSHARABLE_GPU) & (self.room > 0)))
        return some[(self.on[some] < 0).any(axis=1) & (self.p.rate[row, self.kind[some]] > 0)]

    def _room_for_all(self, row: int) -> tuple[tuple[int, ...], float]:
        """Empty devices of one kind for a gang of several: on one machine if they can be, and of the best kind."""
        p, count = self.p, int(self.p.workers[row])
        best: tuple[tuple[int, ...], float] = ((), 0.0)
        here = self.seats.where(row)
        vacant = self.openings.holds == EMPTY_GPU
        empty = np.bincount(self.kind[vacant], minlength=p.rate.shape[1])
        for kind in np.flatnonzero((p.rate[row] > 0) & (empty >= count)):
            if len(here) == count and vacant[list(here)].all() and self.kind[here[0]] == kind:
                chosen = here
            else:
                some = self.openings.on_one_machine(int(kind), count)
                if not len(some):  # the machines with the most
                    able = np.flatnonzero(vacant & (self.kind == kind))
                    most = self.openings.vacant[p.machine[able], kind]
                    some = able[np.lexsort((able, p.machine[able], -most))[:count]]
                chosen = tuple(int(device) for device in some)
            speed = p.rate[row, kind]
            # Where no machine is large enough, rates are those of a gang that is spread (`planner.attainable`).
            if len(set(p.machine[list(chosen)])) > 1 and self.shares and self.widest[kind] >= count:
                packed, spread = p.unit_s[p.kernel[row], kind]
                speed *= packed / spread if packed > 0 and spread > 0 else 1.0
            moved = bool(here) and sorted(here) != sorted(chosen)
            gain = self.weight[row] * speed * (1 - self.lost[row] * moved)
            if gain > best[1]:
                best = (chosen, float(gain))
        return best
