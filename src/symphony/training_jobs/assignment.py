"""The plan of highest value, by an integer program: which job gets GPUs of which kind, alone or sharing.

A greedy plan gives single GPUs away that a gang of four would need, and never takes them back; the program weighs all
jobs against each other. GPUs of one kind are interchangeable in it, so that it stays small. `assign_gpus` then chooses
the GPUs: jobs that already run on that kind stay, and a gang goes to one machine, where it displaces the fewest jobs.

Two jobs that together keep no more than the work of one GPU never share it: one of them alone is worth more.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

import numpy as np

from symphony.training_jobs.partial_plan import PartialPlan

MAX_PARTNERS = 12  # the best of a job on a kind of GPU; more change next to nothing
MAX_SEARCH_NODES = 200  # not seconds, so that the result does not depend on the machine's speed
RELATIVE_GAP = 1e-3  # at which the search stops
STDOUT = 1
STRAY_PREFIX = b"HighsMipSolverData::"
_one_at_a_time = Lock()


class AssignmentChoices(NamedTuple):
    """C ways to give GPUs of a kind to one row, or to two that share."""

    rows: np.ndarray  # i[C, 2], -1 = none
    kind: np.ndarray  # i[C]
    width: np.ndarray  # i[C]: GPUs
    worth: np.ndarray  # f[C]


def assign(board: PartialPlan, rows: np.ndarray) -> dict[int, tuple[int, ...]]:
    """Empty devices for rows; rows that get none are missing from the result."""
    empty = board.empty()
    kinds = board.p.rate.shape[1]
    gpus = np.bincount(board.kind[empty], minlength=kinds)
    for_two = gpus == np.bincount(board.kind[empty[board.room[empty] > 1]], minlength=kinds)
    return assign_gpus(board, best(choices(board, rows, gpus, for_two & board.shares), gpus), empty)


def choices(board: PartialPlan, rows: np.ndarray, gpus: np.ndarray, for_two: np.ndarray) -> AssignmentChoices:
    """All choices for rows. `gpus` [Y]: empty GPUs; `for_two` [Y]: kinds that two rows may share."""
    p = board.p
    home = board.home[rows]
    settled = np.where(home >= 0, board.kind[home], -1)[:, None] == np.arange(len(gpus))  # [R, Y]
    value = board.weight[rows, None] * p.rate[rows]
    stays = np.where(settled | (home < 0)[:, None], value, value * (1 - board.lost[rows, None]))
    able = (p.rate[rows] > 0) & (p.workers[rows, None] <= gpus)
    row, kind = np.nonzero(able)
    made = [
        AssignmentChoices(np.stack([rows[row], np.full(len(row), -1)], 1), kind, p.workers[rows[row]], stays[row, kind])
    ]
    kernel = p.kernel[rows]
    for k in np.flatnonzero(for_two):
        kept = p.beside[kernel[:, None], kernel, k]
        fits = ~board.alone[rows] & able[:, k]
        pair = fits[:, None] & fits & (kept > 0) & (kept.T > 0) & (kept + kept.T > 1)
        each = kept * stays[:, k, None]
        # If both already run, on different GPUs of that kind, one of them has to move.
        apart = settled[:, k, None] & settled[:, k] & (home[:, None] != home)
        moving = board.lost[rows] * value[:, k]
        worth = np.where(pair, each + each.T - apart * np.minimum(moving[:, None], moving), -np.inf)
        near = np.zeros_like(pair)
        near[np.arange(len(rows))[:, None], np.argsort(-worth, axis=1, kind="stable")[:, :MAX_PARTNERS]] = True
        a, b = np.nonzero(np.triu(pair & (near | near.T), 1))
        made.append(
            AssignmentChoices(np.stack([rows[a], rows[b]], 1), np.full(len(a), k), np.ones(len(a), int), worth[a, b])
        )
    return AssignmentChoices(*(np.concatenate(part) for part in zip(*made, strict=True)))


def best(c: AssignmentChoices, gpus: np.ndarray) -> AssignmentChoices:
    """The choices of highest total value: each row at most once, no more GPUs than there are."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes a third of a second to import
    from scipy.sparse import coo_array

    if not len(c.kind):
        return c
    names, index = np.unique(c.rows, return_inverse=True)
    index = index.reshape(c.rows.shape)
    column = np.arange(len(c.kind))
    two = c.rows[:, 1] >= 0
    line = np.concatenate([index[:, 0], index[two, 1], len(names) + c.kind])
    entry = np.concatenate([np.ones(len(column) + int(two.sum())), c.width])
    matrix = coo_array(
        (entry, (line, np.concatenate([column, column[two], column]))), (len(names) + len(gpus), len(column))
    )
    limits = LinearConstraint(matrix.tocsr(), -np.inf, np.concatenate([np.ones(len(names)), gpus]))
    with without_stray_lines():
        solution = milp(
            -c.worth / c.worth.max(),
            integrality=np.ones(len(column)),
            bounds=Bounds(0, 1),
            constraints=limits,
            options={"mip_rel_gap": RELATIVE_GAP, "node_limit": MAX_SEARCH_NODES, "presolve": False},
        )
    chosen = solution.x > 0.5 if solution.x is not None else np.zeros(len(column), bool)
    return AssignmentChoices(*(part[chosen] for part in c))


def assign_gpus(board: PartialPlan, c: AssignmentChoices, empty: np.ndarray) -> dict[int, tuple[int, ...]]:
    """The GPUs of each row, chosen from the devices `empty`."""
    free = np.zeros(len(board.kind), bool)
    free[empty] = True
    at: dict[int, tuple[int, ...]] = {}

    def give(index: int, devices: tuple[int, ...]) -> None:
        free[list(devices)] = False
        at.update({int(row): devices for row in c.rows[index] if row >= 0})

    def at_home(index: int) -> tuple[int, ...]:
        """The devices of the right kind that one of the rows already holds."""
        for row in c.rows[index]:
            here = board.seats.where(int(row)) if row >= 0 and board.home[row] >= 0 else ()
            if here and free[list(here)].all() and board.kind[here[0]] == c.kind[index]:
                return tuple(int(device) for device in here)
        return ()

    order = np.lexsort((-c.worth, -c.width))
    settled = {int(index): at_home(int(index)) for index in order}
    claimed = np.bincount([d for here in settled.values() for d in here], minlength=len(free)).astype(bool)
    for wide in (True, False):
        some = [int(index) for index in order if (c.width[index] > 1) == wide]
        for index in some:
            if here := at_home(index):
                give(index, here)
        for index in some:
            if int(c.rows[index, 0]) not in at:
                able = np.flatnonzero(free & (board.kind == c.kind[index]))
                give(index, nearby_devices(board, able, int(c.width[index]), claimed))
    return at


def nearby_devices(board: PartialPlan, able: np.ndarray, count: int, claimed: np.ndarray) -> tuple[int, ...]:
    """`count` of the devices `able`: on one machine if possible, where the fewest are `claimed` by other rows."""
    machine = board.p.machine[able]
    order = np.lexsort((able, claimed[able], machine))
    able, machine = able[order], machine[order]
    place = np.arange(len(able)) - np.searchsorted(machine, machine)  # rank of a device on its machine
    displaced = np.bincount(machine, claimed[able] & (place < count))[machine]
    room = np.bincount(machine)[machine]
    # One machine before several; then the fewest displaced rows; then the machine with just enough, or with the most.
    fits = room >= count
    ranked = np.lexsort((place, machine, np.where(fits, room, -room), displaced, ~fits))
    return tuple(int(device) for device in able[ranked[:count]])


@contextmanager
def without_stray_lines() -> Iterator[None]:
    """Keep the debug lines of the HiGHS solver off stdout; its options do not silence them.

    Output goes to a temporary file meanwhile; all other lines are copied to stdout afterwards. One solver at a time,
    because a process has one stdout. Does nothing without a stdout, or where there is no POSIX.
    """
    with _one_at_a_time:
        try:
            original = os.dup(STDOUT) if os.name == "posix" else -1
        except OSError:
            original = -1
        if original < 0:
            yield
            return
        library = ctypes.CDLL(None)  # to flush the buffer of C's stdout
        with tempfile.TemporaryFile() as file:
            library.fflush(None)
            os.dup2(file.fileno(), STDOUT)
            try:
                yield
            finally:
                library.fflush(None)
                os.dup2(original, STDOUT)
                os.close(original)
                file.seek(0)
                others = b"".join(line for line in file if not line.startswith(STRAY_PREFIX))
                while others:
                    others = others[os.write(STDOUT, others) :]
