"""Exploration: a few jobs go where they may be faster than is believed, so that it becomes known.

What is explored is a *signature*: a job on a kind of GPU beside another job. `optimistic` values it as if it were
`kappa` deviations faster than is believed, and goes there if the plan would then be worth more: doubt counts only where
it could change a decision. `disagreement` goes where the doubt is largest, `random` anywhere; they are for comparison.
All are capped alike: at most `share` of the jobs in play, and only while the plan, with what is explored `kappa`
deviations slower than is believed, is worth at least 1 - `epsilon` of what it was.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from symphony.policies.board import Board
from symphony.problem.errors import InputError

HOW = ("none", "optimistic", "disagreement", "random")
LOOKED_AT = 24  # jobs a round, drawn


class Exploration(NamedTuple):
    """How to explore."""

    how: str = "none"
    kappa: float = 1.0
    epsilon: float = 0.03
    share: float = 0.1  # of the jobs in play

    def check(self) -> None:
        """Refuse words and numbers that mean nothing."""
        if self.how not in HOW:
            raise InputError(f"exploration is {self.how!r}", hint=f"write one of {', '.join(HOW)}")
        if not (self.kappa >= 0 and 0 <= self.epsilon <= 1 and 0 <= self.share <= 1):
            raise InputError(f"it says {self}", where="exploration", hint="kappa 0 or more, the others from 0 to 1")


def explore(board: Board, by: Exploration, seed: int) -> list[int]:
    """Move a few jobs of one GPU on a finished plan; the rows that were moved."""
    if by.how == "none" or not board.shares:
        return []
    rng = np.random.default_rng(seed)
    rows = [row for row, devices in board.at.items() if len(devices) == 1]
    allowed = int(by.share * len(board.at))
    moved: list[int] = []
    least = (1 - by.epsilon) * float(board.value.sum())
    spent = 0.0  # what may be lost by those who have been moved
    for row in rng.permutation(rows)[:LOOKED_AT] if rows else ():
        if len(moved) >= allowed:
            break
        (here,) = board.remove(int(row))
        device, lost = _target(board, int(row), here, by, rng, float(board.value.sum()) - spent - least)
        board.put(int(row), (device,))
        if device != here:
            moved.append(int(row))
            spent += lost
    return moved


def _target(
    board: Board, row: int, here: int, by: Exploration, rng: np.random.Generator, slack: float
) -> tuple[int, float]:
    """Where a row that has been taken off goes: `here` again, or where something may be learned; and what that risks.

    `slack`: what the plan without the row is worth beyond the least that it must be.
    """
    believed, hoped, feared = (board.with_one_more(row, kappa=k) for k in (0.0, by.kappa, -by.kappa))
    gain = {name: worth - board.value for name, worth in zip("bhf", (believed, hoped, feared), strict=True)}
    able = np.isfinite(believed) & (gain["f"] + slack >= 0) & (hoped > believed)
    able[here] = False
    if not able.any():
        return here, 0.0
    if by.how == "optimistic":
        score = np.where(able, gain["h"], -np.inf)
        best = int(np.argmax(score))
        chosen = best if score[best] > gain["b"][here] else here
    elif by.how == "disagreement":
        chosen = int(np.argmax(np.where(able, hoped - feared, -np.inf)))
    else:
        chosen = int(rng.choice(np.flatnonzero(able)))
    return chosen, float(gain["b"][chosen] - gain["f"][chosen]) if chosen != here else 0.0
