"""A learned alternative to the integer program: job after job, alone on a kind of GPU, beside another job, or not now.

The actions are those of Harmony (one job at a time, infeasible actions masked). The inputs are the planner's gain in
value, and what the planner does not weigh: how much of a kind is left, the jobs still to be placed, uncertainty, and
recent errors of predictions. A small network adds to UNTRAINED_SHARPNESS times the gain, so that it starts as a greedy
planner and learns corrections. `benchmarks/placer_training.py` trains it; `LearnedPlanner` uses it. It was never better
than the planner (docs/lab/learned-placement.md), so it is not part of the product.

`action_features` and `apply_action` are written once for NumPy and JAX: `xp` is either.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.training_jobs.assignment import AssignmentChoices, assign_gpus
from symphony.training_jobs.partial_plan import PartialPlan
from symphony.training_jobs.planner import Planner, by_tier, finished, keep_running
from symphony.training_jobs.round_planning import RUNS, HostPlanner, PlanInputs, RoundPlan, SeatAllocation, rows_of

PLACER_FEATURES, PLACER_WIDTH = 11, 32
UNTRAINED_SHARPNESS = 8.0  # logit of a job's largest possible gain before training
MASKED_LOGIT = -1e9
RESIDUAL_DECAY = 0.3  # weight of the newest round in the moving average of residuals


class RoundInputs(NamedTuple):
    """A round before the first placement. J jobs in the order of placement, Y kinds of GPU."""

    worth: Any  # f[J, Y]: value of running there alone, less the cost of moving; 0 = cannot
    kept: Any  # f[J, J, Y]: share of its speed beside another; 0 = must not share
    width: Any  # i[J]; 0 = no job
    doubt: Any  # f[J, Y]: deviation of its log speed
    residual: Any  # f[J]: recent log(observed / believed speed)
    urgency: Any  # f[J]: log of its remaining time


class RoundAllocation(NamedTuple):
    """Placements of a round so far."""

    free: Any  # f[Y]: GPUs left
    kind: Any  # i[J], -1 = none
    partner: Any  # i[J], -1 = alone


def network(key: Array) -> eqx.nn.MLP:
    """The network that corrects the gain of an action; its output is 0 at first."""
    made = eqx.nn.MLP(PLACER_FEATURES, "scalar", PLACER_WIDTH, 2, jax.nn.tanh, key=key)
    return eqx.tree_at(lambda m: (m.layers[-1].weight, m.layers[-1].bias), made, replace_fn=jnp.zeros_like)


def action_features(xp: Any, t: RoundInputs, taken: RoundAllocation, j: Any) -> tuple[Any, Any, Any, Any]:
    """Features [A, F], gains [A] and feasibility [A] of job j's actions, and its best partner on each kind [Y].

    Actions: not now; alone on each kind; beside the best partner on each kind.
    """
    number, kinds = t.worth.shape
    mine = t.worth[j]
    best = xp.maximum(mine.max(), 1e-9)
    single = t.width[j] == 1
    joinable = (taken.kind[:, None] == xp.arange(kinds)) & ((taken.partner < 0) & (t.width == 1))[:, None]
    joinable &= (t.kept[j] > 0) & (t.kept[:, j] > 0) & (mine > 0) & single
    loses = (1 - t.kept[:, j]) * t.worth
    beside = xp.where(joinable, t.kept[j] * mine - loses, MASKED_LOGIT)  # [J, Y]
    partner, shared = beside.argmax(axis=0), beside.max(axis=0)
    able = xp.concatenate([xp.ones(1, bool), (mine > 0) & (t.width[j] <= taken.free), shared > MASKED_LOGIT / 2])
    zero = xp.zeros(1)
    every = xp.arange(kinds)
    gain = xp.where(able, xp.concatenate([zero, mine, shared]), 0.0) / best
    speed = xp.where(able, xp.concatenate([zero, mine, t.kept[j, partner, every] * mine]), 0.0) / best
    cost = xp.where(able, xp.concatenate([zero, 0 * mine, loses[partner, every]]), 0.0) / best
    to_come = (t.width > 0) & (xp.arange(number) > j)
    wanted = xp.where(to_come, t.width, 0).sum() / xp.maximum(taken.free.sum(), 1.0)
    liking = t.worth / xp.maximum(t.worth.max(axis=1, keepdims=True), 1e-9)
    scarce = xp.where(to_come[:, None], liking, 0.0).sum(axis=0) / xp.maximum(taken.free, 1.0)
    one = xp.ones(1 + 2 * kinds)

    def by_kind(x: Any) -> Any:
        return xp.concatenate([zero, x, x])

    flags = xp.arange(1 + 2 * kinds)
    features = xp.stack(
        [
            gain,
            speed,
            cost,
            (flags == 0) * one,
            (flags > kinds) * one,
            by_kind(t.width[j] / xp.maximum(taken.free, 1.0)),
            xp.log1p(wanted) * one,
            by_kind(xp.log1p(scarce)),
            t.urgency[j] / 3 * one,
            by_kind(t.doubt[j]),
            t.residual[j] * one,
        ],
        axis=-1,
    )
    return features, gain, able, partner


def apply_action(xp: Any, t: RoundInputs, taken: RoundAllocation, j: Any, action: Any, partner: Any) -> RoundAllocation:
    """Placements after job j's action."""
    kinds = t.worth.shape[1]
    some, shares = action > 0, action > kinds
    kind = (action - 1) % kinds
    other = xp.where(shares, partner[kind], -1)
    rows = xp.arange(t.worth.shape[0])
    free = taken.free - xp.where((xp.arange(kinds) == kind) & some & ~shares, t.width[j], 0)
    placed = xp.where((rows == j) & some, kind, taken.kind)
    partners = xp.where((rows == j) & shares, other, xp.where((rows == other) & shares, j, taken.partner))
    return RoundAllocation(free, placed, partners)


class Placer:
    """Trained weights on the host; takes the most likely action."""

    def __init__(self, trained: eqx.nn.MLP) -> None:
        self.layers = [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in trained.layers]

    def logits(self, features: np.ndarray, gain: np.ndarray) -> np.ndarray:
        """Logits of actions, from their features [A, F] and gains [A]."""
        x = features
        for weight, bias in self.layers[:-1]:
            x = np.tanh(x @ weight.T + bias)
        weight, bias = self.layers[-1]
        return np.asarray(UNTRAINED_SHARPNESS * gain + (x @ weight.T + bias)[:, 0])

    def assign(self, board: PartialPlan, rows: np.ndarray, residual: np.ndarray) -> dict[int, tuple[int, ...]]:
        """Empty devices for rows, in this order; rows that get none are missing from the result."""
        p, empty = board.p, board.empty()
        kinds = p.rate.shape[1]
        home = board.home[rows]
        moves = (home >= 0)[:, None] & (np.where(home >= 0, board.kind[home], -1)[:, None] != np.arange(kinds))
        value = board.weight[rows, None] * p.rate[rows] * np.where(moves, 1 - board.lost[rows, None], 1.0)
        kernel, number = p.kernel[rows], len(rows)
        two = board.shares and bool((board.room[empty] > 1).all())
        left = p.left[rows] / np.maximum(p.rate[rows].max(axis=1, initial=0.0), 1e-300)
        table = RoundInputs(
            value,
            p.beside[kernel[:, None], kernel] * ~np.eye(number, dtype=bool)[..., None]
            if two
            else np.zeros((number, number, kinds)),
            p.workers[rows],
            p.unit_std[kernel, :, 0] if board.shares else np.zeros((number, kinds)),
            residual[rows],
            np.log(np.maximum(left, 1.0) / 3600),
        )
        taken = RoundAllocation(
            np.bincount(board.kind[empty], minlength=kinds).astype(float), np.full(number, -1), np.full(number, -1)
        )
        for j in range(number):
            features, gain, able, partner = action_features(np, table, taken, j)
            action = int(np.argmax(np.where(able, self.logits(features, gain), MASKED_LOGIT)))
            taken = apply_action(np, table, taken, j, action, partner)
        lead = [j for j in range(number) if taken.kind[j] >= 0 and not 0 <= taken.partner[j] < j]
        pairs = [(rows[j], rows[taken.partner[j]] if taken.partner[j] >= 0 else -1) for j in lead]
        chosen = AssignmentChoices(
            np.asarray(pairs, int).reshape(-1, 2),
            taken.kind[lead],
            p.workers[rows[lead]],
            value[lead, taken.kind[lead]],
        )
        return assign_gpus(board, chosen, empty)


class LearnedPlanner(HostPlanner):
    """The planner with a placer instead of the integer program. It displaces nothing."""

    planner: Planner = eqx.field(kw_only=True)
    placer: Placer = eqx.field(kw_only=True, static=True)

    def sizes(self, kinds: int) -> tuple[int, int]:
        """Columns of the book: waiting time and `speed_residuals`. Nothing is in the memo."""
        return 3, 0

    def plan(self, inputs: PlanInputs) -> RoundPlan:
        """Place all jobs at the end of a round; in between, only waiting ones."""
        board, order, tier = self.planner.opened(inputs)
        if inputs.boundary:
            residual = speed_residuals(board.p, board.seats)
            for rows in by_tier(order, tier):
                for row, devices in self.placer.assign(board, rows, residual).items():
                    board.put(row, devices)
        else:
            keep_running(board)
            board.place_all(int(row) for row in order)
        return finished(board, order)


def speed_residuals(p: PlanInputs, seats: SeatAllocation) -> np.ndarray:
    """Moving average of log(observed / believed speed) of each row [M], kept in the book with the units left."""
    before, residual = p.book[:, 1], p.book[:, 2]
    for row in rows_of((p.standing == RUNS) & (before > p.left) & (p.ran_s > 0)):
        here = seats.where(row)
        others = {int(r) for r in seats.holder[np.isin(p.lane_device, here)]} - {row, -1}
        kept = [p.beside[p.kernel[row], p.kernel[other], p.kind[here[0]]] for other in others] if len(p.beside) else []
        believed = p.rate[row, p.kind[here[0]]] * float(np.prod(kept)) * p.ran_s[row]
        if believed > 0:
            off = float(np.clip(np.log((before[row] - p.left[row]) / believed), -1, 1))
            residual[row] += RESIDUAL_DECAY * (off - residual[row])
    before[:] = p.left
    return residual
