"""The learned choice of a round: what a job may do, what it is shown, and who ends up where."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.placer import (
    PLACER_FEATURES,
    LearnedPlanner,
    Placer,
    RoundAllocation,
    RoundInputs,
    action_features,
    apply_action,
    network,
    speed_residuals,
)
from symphony.training_jobs.planner import Planner
from symphony.training_jobs.round_planning import PlanInputs, SeatAllocation
from tests.policies.pictures import picture

FAST, SLOW = 0, 1


@pytest.fixture(scope="module")
def untrained() -> Placer:
    return Placer(network(jax.random.key(0)))


def placed(p: PlanInputs, placer: Placer) -> dict[int, list[int]]:
    """Devices of each row that is to run."""
    plan = LearnedPlanner(planner=Planner(), placer=placer).plan(p._replace(book=np.zeros((len(p.gang), 3))))
    rows = sorted({int(row) for row in plan.lanes if row >= 0})
    return {row: [int(d) for d in p.lane_device[plan.lanes == row]] for row in rows}


def test_untrained_it_takes_what_is_worth_most(untrained: Placer) -> None:
    p = picture([1000.0, 10.0, 1000.0], [[1.0, 0.5]] * 3, [FAST, SLOW])
    where = placed(p, untrained)
    assert where[1] == [0] and len(where) == 2


def test_a_job_joins_another_where_that_is_worth_more_than_a_slow_gpu(untrained: Placer) -> None:
    for share, wanted in ((0.9, [[0], [0]]), (0.3, [[0], [1]])):
        p = picture([100.0] * 2, [[1.0, 0.2]] * 2, [FAST, SLOW], slots=2, beside=np.full((2, 2, 2), share))
        assert sorted(placed(p, untrained).values()) == wanted


def test_a_gang_has_whole_gpus_or_none(untrained: Placer) -> None:
    p = picture([10.0, 100.0, 200.0], [[1.0]] * 3, [0] * 4, workers=[2, 1, 2])
    where = placed(p, untrained)
    assert len(where[0]) == 2 and len(where[1]) == 1 and 2 not in where


def test_what_it_has_learned_counts(untrained: Placer) -> None:
    """Weights that dislike running make everybody wait."""
    lazy = Placer(network(jax.random.key(0)))
    weight, _ = lazy.layers[-1]
    first, bias = lazy.layers[0]
    lazy.layers = [(0 * first, 0 * bias), *[(0 * w, 0 * b) for w, b in lazy.layers[1:-1]], (0 * weight, np.zeros(1))]
    lazy.layers[0][0][0, 3] = lazy.layers[1][0][0, 0] = 5.0  # whether the action is to wait
    lazy.layers[-1][0][0, 0] = 100.0
    p = picture([10.0], [[1.0]], [0])
    assert placed(p, untrained) == {0: [0]} and placed(p, lazy) == {}


def test_numpy_and_jax_show_a_job_the_same() -> None:
    rng = np.random.default_rng(0)
    table = RoundInputs(
        rng.uniform(0.1, 1, (5, 2)), rng.uniform(0.4, 1, (5, 5, 2)), np.asarray([1, 2, 1, 1, 0]),
        rng.uniform(0, 1, (5, 2)), rng.normal(0, 1, 5), rng.normal(0, 1, 5),
    )  # fmt: skip
    taken = RoundAllocation(np.asarray([2.0, 1.0]), np.full(5, -1), np.full(5, -1))
    for j, action in ((0, 1), (1, 0), (2, 3), (3, 2)):
        ours = action_features(np, table, taken, j)
        theirs = action_features(
            jnp, RoundInputs(*map(jnp.asarray, table)), RoundAllocation(*map(jnp.asarray, taken)), jnp.asarray(j)
        )
        assert ours[0].shape == (5, PLACER_FEATURES)
        for a, b in zip(ours, theirs, strict=True):
            assert np.allclose(a, b, atol=1e-5)
        assert ours[2][action]
        taken = apply_action(np, table, taken, j, action, ours[3])
    assert taken.kind.tolist() == [0, -1, 0, 1, -1] and taken.partner.tolist() == [2, -1, 0, -1, -1]
    assert taken.free.tolist() == [1.0, 0.0]


def test_history_is_how_far_jobs_came_against_what_was_believed() -> None:
    p = picture([100.0, 50.0], [[1.0]] * 2, [0, 0], on={0: 0})
    p = p._replace(book=np.asarray([[0.0, 280.0, 0.0], [0.0, 50.0, 0.0]]), ran_s=np.asarray([360.0, 0.0]))
    residual = speed_residuals(p, SeatAllocation(p))
    assert residual[0] == pytest.approx(0.3 * np.log(0.5)) and residual[1] == 0
    assert p.book[:, 1].tolist() == [100.0, 50.0]
