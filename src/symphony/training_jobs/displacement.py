"""Preemption between rounds: a job that waits takes the GPUs of jobs that need them for longer.

A round is long for a short job. So whenever a job waits, two completion times are compared: if it waits until enough
GPUs are free, and if it starts now in the place of others. The others are delayed by as long as it runs, and by their
checkpoints. They make room if that is less, in total, than what the waiting job gains.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from symphony.training_jobs.partial_plan import PartialPlan
from symphony.training_jobs.round_planning import RUNS, rows_of

MAX_DISPLACING_JOBS = 64  # waiting jobs that are considered, the first ones in the order of the plan


class _Runners(NamedTuple):
    """Rows that run alone where the plan leaves them."""

    row: np.ndarray  # i[R]
    kind: np.ndarray  # i[R]
    ends_s: np.ndarray  # f[R]: time left there


def displace(board: PartialPlan, order: np.ndarray, tier: np.ndarray, tails: float) -> None:
    """Place waiting rows, in this order, instead of running ones of the same tier or a lower one.

    A lower tier [M] makes room without counting its delay. `tails`: in a comparison of two delays, each is divided by
    this power of the time that the job has left: 0 compares seconds, 1 slow-downs.
    """
    p = board.p
    waiting = [int(row) for row in order if int(row) not in board.at][:MAX_DISPLACING_JOBS]
    if not waiting:
        return
    running = _runners(board)
    gpus = np.bincount(p.kind[p.up], minlength=p.rate.shape[1])
    ahead = 0  # GPUs that the rows before this one wait for
    for row in waiting:
        victims, kind = _exchange(board, running, row, ahead * gpus / max(1, gpus.sum()), tier, tails)
        if not victims:
            ahead += int(p.workers[row])
            continue
        for victim in victims:
            board.remove(victim)
        board.put(row, board.empty_devices(kind, int(p.workers[row])))
        stays = ~np.isin(running.row, victims)
        running = _Runners(*(part[stays] for part in running))


def _runners(board: PartialPlan) -> _Runners:
    p = board.p
    stays = [r for r in rows_of(p.standing == RUNS) if r in board.at and board.home[r] in board.at[r]]
    alone = [r for r in stays if (board.on[list(board.at[r])] >= 0).sum() == len(board.at[r])]
    rows = np.asarray(alone, int)
    kind = board.kind[board.home[rows]]
    return _Runners(rows, kind, p.left[rows] / np.maximum(p.rate[rows, kind], 1e-300))


def _exchange(
    board: PartialPlan, running: _Runners, row: int, ahead: np.ndarray, tier: np.ndarray, tails: float
) -> tuple[list[int], int]:
    """The rows that make room for a row, and the kind of their GPUs, such that the gain is largest; [] if none pays."""
    p, width = board.p, int(board.p.workers[row])
    workers, moving_s = p.workers[running.row], p.moving_s[running.row]
    empty = np.bincount(board.kind[board.empty()], minlength=p.rate.shape[1])
    takes_s = {int(kind): float(p.left[row] / p.rate[row, kind]) for kind in np.flatnonzero(p.rate[row] > 0)}
    waits_s = np.inf  # until it is done, if it waits
    for kind, seconds in takes_s.items():
        here = np.flatnonzero(running.kind == kind)
        here = here[np.argsort(running.ends_s[here], kind="stable")]
        enough = np.flatnonzero(empty[kind] + np.cumsum(workers[here]) >= ahead[kind] + width)
        if len(enough):
            waits_s = min(waits_s, float(running.ends_s[here[enough[0]]]) + seconds)
    best: tuple[float, list[int], int] = (0.0, [], -1)
    lower, equal = tier[running.row] < tier[row], tier[running.row] == tier[row]
    for kind, seconds in takes_s.items():
        delays = np.where(lower, 0.0, (seconds + moving_s) * (seconds / np.maximum(running.ends_s, 1e-9)) ** tails)
        may = (running.kind == kind) & (lower | (equal & (running.ends_s > seconds + moving_s)))
        longest = np.lexsort((-running.ends_s * workers, ~lower))
        victims = _fewest(board, running.row[longest[may[longest]]], kind, width)
        gain = waits_s - seconds - float(delays[np.isin(running.row, victims)].sum())
        if victims and gain > best[0]:
            best = gain, victims, kind
    return best[1], best[2]


def _fewest(board: PartialPlan, rows: np.ndarray, kind: int, width: int) -> list[int]:
    """The first few rows whose GPUs, with the empty ones of that kind, are enough; of one machine if possible."""
    vacant = board.openings.vacant[:, kind]
    held: dict[int, dict[int, int]] = {}  # machine -> row -> GPUs
    for row in rows:
        for device in board.at[int(row)]:
            of = held.setdefault(int(board.p.machine[device]), {})
            of[int(row)] = of.get(int(row), 0) + 1

    def prefix(free: int, gpus: dict[int, int]) -> list[int]:
        taken: list[int] = []
        for row, count in gpus.items():
            if free >= width:
                break
            free, taken = free + count, [*taken, row]
        return taken if free >= width else []

    if board.widest[kind] >= width:
        sets = [prefix(int(vacant[machine]), gpus) for machine, gpus in held.items()]
        if sets := [some for some in sets if some]:
            return min(sets, key=len)  # machines are in the order of their longest row
    return prefix(int(vacant.sum()), {int(row): len(board.at[int(row)]) for row in rows})
