"""AlloX: assigns jobs to devices and positions by minimum-cost matching (Le et al., EuroSys 2020).

A job in position k from the end of a device's queue delays itself and the k - 1 jobs after it, so it adds k times its
processing time there to the sum of completion times. A minimum-cost matching of jobs to (device, position from the end)
therefore minimises the mean completion time of a batch exactly. AlloX solves it whenever jobs arrive or finish, starts
the first job of every device, and considers only a share of the waiting jobs, the oldest, so that long jobs do not
starve.

Differences here: running jobs stay where they are, and their devices are matched with their remaining time added; only
jobs that are first on a free device start. AlloX is defined for jobs of one device; here a gang of n workers counts
with n times its time (its device-seconds), and starts when n devices of the chosen kind are free. A slot of a device
counts as a device. Jobs of higher priority are matched first. (Gavel's version of AlloX matches free devices only, and
its rounds move jobs to better devices that are idle.) A plan takes 2 to 4 ms on one core; with 80 jobs waiting for 24
devices, the matching takes 4 ms more.
"""

from __future__ import annotations

import equinox as eqx
import numpy as np

from symphony.training_jobs.round_planning import WAITS, HostPlanner, PlanInputs, RoundPlan, SeatAllocation

UNMATCHABLE_S = 1e15  # seconds of a job on a device that cannot run it: matched only if nothing else is left


def matching(seconds: np.ndarray, release_s: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Device and position from the end (0 = last) of each job that minimise the sum of completion times.

    `seconds` [jobs, devices]: processing times, inf where a job cannot run. `release_s` [devices]: when each device
    will be free.
    """
    from scipy.optimize import linear_sum_assignment  # takes a third of a second to import

    jobs, devices = seconds.shape
    cost = np.minimum(seconds, UNMATCHABLE_S)[:, None, :] * np.arange(1, jobs + 1)[None, :, None] + release_s
    chosen = linear_sum_assignment(cost.reshape(jobs, jobs * devices))[1]
    return chosen % devices, chosen // devices


class AlloX(HostPlanner):
    """Minimum-cost matching of the oldest waiting gangs to free devices, without preemption."""

    share: float = eqx.field(default=0.3, static=True)  # of the waiting gangs, if there are more than free devices

    preempts = False

    def sizes(self, kinds: int) -> tuple[int, int]:
        return 0, 0

    def plan(self, picture: PlanInputs) -> RoundPlan:
        p, seats = picture, SeatAllocation(picture)
        seats.keep()
        waiting = [
            r for r in np.lexsort((p.gang, p.job, -p.priority)) if p.standing[r] == WAITS and r not in seats.given
        ]
        order: list[int] = list(seats.given)
        for level in sorted({int(p.priority[r]) for r in waiting}, reverse=True):
            self._match([r for r in waiting if p.priority[r] == level], seats, order)
        return seats.plan(order, p.book, p.memo)

    def _match(self, waiting: list[int], seats: SeatAllocation, order: list[int]) -> None:
        """Match rows of one priority to all devices, and start those that are first on free ones."""
        p = seats.p
        free = np.repeat(p.kind, np.maximum(seats.free, 0))
        held = [lane for lane in np.flatnonzero(seats.holder >= 0) if p.up[p.lane_device[lane]]]
        kinds = np.concatenate([free, p.kind[p.lane_device[held]]]).astype(int)
        if not waiting or not len(free):
            return
        rows = waiting[: max(len(kinds), int(self.share * len(waiting)))]
        with np.errstate(divide="ignore"):
            seconds = (p.left * p.workers)[rows, None] / p.rate[rows][:, kinds]
            busy = p.left[seats.holder[held]] / p.rate[seats.holder[held], kinds[len(free) :]]
        able = (seconds < UNMATCHABLE_S).any(axis=1)
        rows, seconds = [r for r, can in zip(rows, able, strict=True) if can], seconds[able]
        if not rows:
            return
        device, behind = matching(seconds, np.concatenate([np.zeros(len(free)), np.minimum(busy, UNMATCHABLE_S)]))
        firsts = {int(d): max(behind[device == d]) for d in device}
        for index in np.argsort(seconds[np.arange(len(rows)), device], kind="stable"):
            d, row = int(device[index]), rows[index]
            starts = d < len(free) and behind[index] == firsts[d] and seconds[index, d] < UNMATCHABLE_S
            if starts and seats.take([row], seats.find(int(p.workers[row]), [int(kinds[d])])):
                order.append(row)
        # A gang too wide for the free devices of its matched kind takes another kind; too wide for any, several kinds.
        most = seats.capacity().max()
        for row in waiting:
            count, fits = int(p.workers[row]), [int(k) for k in np.flatnonzero(p.rate[row] > 0)]
            ways = [fits] if count > most else [[k] for k in sorted(fits, key=lambda k: -p.rate[row, k])]
            if count > 1 and row not in seats.given and any(seats.take([row], seats.find(count, way)) for way in ways):
                order.append(row)
