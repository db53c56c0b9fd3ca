"""A plan in the making: which jobs are on which GPUs, and what that is worth, at the speeds that are believed."""

from __future__ import annotations

import numpy as np

from symphony.baselines.rounds import FIXED, RUNS, Picture, Seats, rows_of

SMALL = 128  # seats up to which two jobs may change places: beyond, only the order of the greedy part decides
PASSES = 4  # over all jobs, of improvement, at most
BETTER = 1 + 1e-6  # by which a plan must be better for a change


class Board:
    """A plan in the making: which rows are on which device, and what that is worth."""

    def __init__(self, p: Picture, seats: Seats, weight: np.ndarray, horizon_s: float) -> None:
        self.p, self.seats = p, seats
        self.kind = np.asarray(p.kind)
        self.shares = p.beside.shape[0] > 0
        lanes = np.maximum(seats.lanes, 0)
        self.room = lanes if self.shares else np.minimum(lanes, 1)
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
        self.lost = np.clip(p.moving_s / horizon_s, 1e-6, 0.9)
        for row, device in fixed:
            self._sit(row, device)
        self.value = self.worth(self.on, np.arange(len(self.kind)))

    def _sit(self, row: int, device: int) -> None:
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

    def put(self, row: int, devices: tuple[int, ...]) -> None:
        """Give a row devices."""
        for device in devices:
            self._sit(row, device)
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
        """Devices with room for a row; of those that are empty, the first of each kind stands for all but its home."""
        free = self.on < 0
        able = (self.room > 0) & free.any(axis=1) & (self.p.rate[row, self.kind] > 0)
        empty = np.flatnonzero(able & free.all(axis=1))
        first = empty[np.unique(self.kind[empty], return_index=True)[1]]
        at_home = empty[empty == self.home[row]]
        return np.unique(np.concatenate([np.flatnonzero(able & ~free.all(axis=1)), first, at_home]))

    def _room_for_all(self, row: int) -> tuple[tuple[int, ...], float]:
        """Empty devices of one kind for a gang of several: on one machine if they can be, and of the best kind."""
        p, count = self.p, int(self.p.workers[row])
        empty = (self.on < 0).all(axis=1) & (self.room > 0)
        best: tuple[tuple[int, ...], float] = ((), 0.0)
        here = self.seats.where(row)
        for kind in np.flatnonzero(p.rate[row] > 0):
            able = np.flatnonzero(empty & (self.kind == kind))
            if len(able) < count:
                continue
            machine = p.machine[able]
            alike = np.bincount(machine)[machine]
            fit = np.where(alike >= count, alike, -1e9 - alike)  # the machine with just enough, else the largest
            stays = np.isin(able, here)
            order = np.lexsort((able, ~stays, machine, np.where(alike >= count, fit, -fit)))
            chosen = tuple(int(d) for d in able[order[:count]])
            if len(here) == count and all(empty[d] for d in here) and p.kind[here[0]] == kind:
                chosen = here
            speed = p.rate[row, kind]
            if len(set(p.machine[list(chosen)])) > 1 and self.shares:
                packed, spread = p.unit_s[p.kernel[row], kind]
                speed *= packed / spread if packed > 0 and spread > 0 else 1.0
            moved = bool(here) and sorted(here) != sorted(chosen)
            gain = self.weight[row] * speed * (1 - self.lost[row] * moved)
            if gain > best[1]:
                best = (chosen, float(gain))
        return best

    def improve(self) -> None:
        """Let jobs of one GPU go elsewhere or change places while that pays."""
        if self.on.size > SMALL:
            return
        for _ in range(PASSES):
            changed = False
            for row in [r for r, devices in self.at.items() if len(devices) == 1]:
                changed |= self._elsewhere(row) or self._change_places(row)
            if not changed:
                return

    def _elsewhere(self, row: int) -> bool:
        total = float(self.value.sum())
        before = self.remove(row)
        devices, gain = self.best_place(row)
        if devices and devices != before and float(self.value.sum()) + gain > total * BETTER:
            self.put(row, devices)
            return True
        self.put(row, before)
        return False

    def _change_places(self, row: int) -> bool:
        """With the row of another device for which that pays most."""
        p, (here,) = self.p, self.at[row]
        device, seat = np.nonzero(self.on >= 0)
        other = self.on[device, seat]
        single = np.asarray([len(self.at.get(int(r), ())) == 1 for r in other], bool)
        able = single & (device != here) & (p.rate[row, self.kind[device]] > 0) & (p.rate[other, self.kind[here]] > 0)
        device, seat, other = device[able], seat[able], other[able]
        if not len(other):
            return False
        theirs = self.on[device].copy()
        theirs[np.arange(len(other)), seat] = row
        mine = np.repeat(self.on[here][None], len(other), axis=0)
        mine = np.where(mine == row, other[:, None], mine)
        new = self.worth(theirs, device) + self.worth(mine, np.full(len(other), here))
        gain = new - self.value[device] - self.value[here]
        best = int(np.argmax(gain))
        if gain[best] <= (BETTER - 1) * float(self.value.sum()):
            return False
        partner, there = int(other[best]), int(device[best])
        self.remove(row)
        self.remove(partner)
        self.put(row, (there,))
        self.put(partner, (here,))
        return True
