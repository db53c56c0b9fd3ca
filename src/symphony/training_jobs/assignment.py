"""The plan that is worth most, exactly: an integer program over who has GPUs of which kind, alone or beside whom.

Greedy plans let jobs of one GPU take what a gang of four would need, and never take it back. Here all are weighed
against all. GPUs of a kind are alike in the program, so that it stays small; afterwards `assign_gpus` says which GPU is
whose: who runs on one of that kind stays, and gangs of several are put on one machine where that displaces fewest.

Two who together keep no more than one GPU's work are never put on it: whichever is worth more had better be alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from symphony.training_jobs.partial_plan import PartialPlan
from symphony.training_jobs.quiet_highs import without_stray_lines

MAX_PARTNERS = 12  # of a job on a kind of GPU, the best: more change next to nothing
MAX_SEARCH_NODES = (
    200  # of the search, at most: a number of nodes and not of seconds, so that equal questions have equal answers
)
RELATIVE_GAP = 1e-3  # relative, at which a plan is good enough


class AssignmentChoices(NamedTuple):
    """C ways in which one row, or two that share, may have GPUs of a kind."""

    rows: np.ndarray  # i[C, 2], -1 = nobody
    kind: np.ndarray  # i[C]
    width: np.ndarray  # i[C]: GPUs
    worth: np.ndarray  # f[C]


def assign(board: PartialPlan, rows: np.ndarray) -> dict[int, tuple[int, ...]]:
    """Devices for those of these rows that get any, of what is empty on the board."""
    empty = board.empty()
    kinds = board.p.rate.shape[1]
    gpus = np.bincount(board.kind[empty], minlength=kinds)
    for_two = gpus == np.bincount(board.kind[empty[board.room[empty] > 1]], minlength=kinds)
    return assign_gpus(board, best(choices(board, rows, gpus, for_two & board.shares), gpus), empty)


def choices(board: PartialPlan, rows: np.ndarray, gpus: np.ndarray, for_two: np.ndarray) -> AssignmentChoices:
    """All that rows may be given; `gpus` [Y] are empty, and two may share one of the kinds `for_two` [Y]."""
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
        # Of two who are each on a GPU of that kind, one has to come over.
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
    """Those that are worth most together: each row at most once, no more GPUs than there are."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes a third of a second to import
    from scipy.sparse import coo_array

    if not len(c.kind):
        return c
    names, number = np.unique(c.rows, return_inverse=True)
    number = number.reshape(c.rows.shape)
    column = np.arange(len(c.kind))
    two = c.rows[:, 1] >= 0
    line = np.concatenate([number[:, 0], number[two, 1], len(names) + c.kind])
    entry = np.concatenate([np.ones(len(column) + int(two.sum())), c.width])
    matrix = coo_array(
        (entry, (line, np.concatenate([column, column[two], column]))), (len(names) + len(gpus), len(column))
    )
    limits = LinearConstraint(matrix.tocsr(), -np.inf, np.concatenate([np.ones(len(names)), gpus]))
    with without_stray_lines():
        found = milp(
            -c.worth / c.worth.max(),
            integrality=np.ones(len(column)),
            bounds=Bounds(0, 1),
            constraints=limits,
            options={"mip_rel_gap": RELATIVE_GAP, "node_limit": MAX_SEARCH_NODES, "presolve": False},
        )
    chosen = found.x > 0.5 if found.x is not None else np.zeros(len(column), bool)
    return AssignmentChoices(*(part[chosen] for part in c))


def assign_gpus(board: PartialPlan, c: AssignmentChoices, empty: np.ndarray) -> dict[int, tuple[int, ...]]:
    """Which GPU is whose. `empty`: devices that may be given."""
    free = np.zeros(len(board.kind), bool)
    free[empty] = True
    at: dict[int, tuple[int, ...]] = {}

    def give(index: int, devices: tuple[int, ...]) -> None:
        free[list(devices)] = False
        at.update({int(row): devices for row in c.rows[index] if row >= 0})

    def at_home(index: int) -> tuple[int, ...]:
        """Where one of those who are meant is already."""
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
    """So many of the devices that are able: on one machine if they can be, where fewest are `claimed` by others."""
    machine = board.p.machine[able]
    order = np.lexsort((able, claimed[able], machine))
    able, machine = able[order], machine[order]
    place = np.arange(len(able)) - np.searchsorted(machine, machine)  # of a device among those of its machine
    displaced = np.bincount(machine, claimed[able] & (place < count))[machine]
    room = np.bincount(machine)[machine]
    # One machine before several; then whom it displaces; then the machine with just enough, or with the most.
    fits = room >= count
    ranked = np.lexsort((place, machine, np.where(fits, room, -room), displaced, ~fits))
    return tuple(int(device) for device in able[ranked[:count]])
