"""The planner: who runs where, beside whom; and that nobody starves."""

from __future__ import annotations

import numpy as np
import pytest

from symphony.problem.errors import InputError
from symphony.testing import check_policy
from symphony.training_jobs.planner import PAYBACK, Planner, progress_weights
from symphony.training_jobs.round_planning import PlanInputs
from tests.baselines.cheap import cheap_scenario
from tests.policies.pictures import picture

FAST, SLOW = 0, 1


def placed(p: PlanInputs, planner: Planner | None = None) -> dict[int, list[int]]:
    """Devices of each row that is to run."""
    plan = (planner or Planner()).plan(p)
    rows = sorted({int(row) for row in plan.lanes if row >= 0})
    return {row: [int(d) for d in p.lane_device[plan.lanes == row]] for row in rows}


def kept(jobs: int, share: float, kinds: int = 2) -> np.ndarray:
    return np.full((jobs, jobs, kinds), share)


def test_who_is_done_soonest_gets_the_fast_gpu_where_others_wait() -> None:
    p = picture([1000.0, 10.0, 1000.0, 1000.0], [[1.0, 0.5]] * 4, [FAST, SLOW])
    assert placed(p)[1] == [0] and len(placed(p)) == 2


def test_where_there_is_room_for_all_who_gains_most_gets_the_fast_gpu() -> None:
    """The short job is nearly as fast on the slow GPU; the long one is ten times as slow there."""
    p = picture([100.0, 200.0], [[1.0, 0.9], [1.0, 0.1]], [FAST, SLOW])
    assert placed(p) == {0: [1], 1: [0]}


def test_two_share_a_gpu_where_that_is_faster_than_a_slow_one() -> None:
    rates = [[1.0, 0.2]] * 2
    shares = {share: placed(picture([100.0] * 2, rates, [FAST, SLOW], slots=2, beside=kept(2, share)))
              for share in (0.9, 0.5)}  # fmt: skip
    assert shares[0.9] == {0: [0], 1: [0]}
    assert sorted(shares[0.5].values()) == [[0], [1]]


def test_those_who_must_not_share_do_not() -> None:
    p = picture([100.0] * 2, [[1.0, 0.01]] * 2, [FAST, SLOW], slots=2, beside=kept(2, 0.0))
    assert sorted(placed(p).values()) == [[0], [1]]


def test_nothing_is_shared_where_nobody_says_what_that_costs() -> None:
    p = picture([100.0] * 3, [[1.0, 0.5]] * 3, [FAST, SLOW], slots=2)
    assert sorted(placed(p).values()) == [[0], [1]]


def test_a_gang_takes_whole_gpus_of_one_machine() -> None:
    p = picture(
        [100.0, 5.0], [[1.0], [1.0]], [0] * 5, slots=2, workers=[2, 1], machines=[0, 0, 1, 1, 1],
        beside=kept(2, 0.95, 1),
    )  # fmt: skip
    where = placed(p)
    assert len({int(p.machine[d]) for d in where[0]}) == 1 and not set(where[0]) & set(where[1])


def test_moving_must_be_worth_a_checkpoint() -> None:
    """A job runs on the slow GPU, and the fast one is free."""
    free, dear = (placed(picture([1e5], [[1.0, 0.8]], [FAST, SLOW], on={0: 1}, moving_s=cost)) for cost in (0.0, 900.0))
    assert free == {0: [0]} and dear == {0: [1]}


def test_between_rounds_nobody_is_moved() -> None:
    p = picture([1e5, 10.0], [[1.0, 0.1]] * 2, [FAST, SLOW], on={0: 0}, boundary=False)
    assert placed(p) == {0: [0], 1: [1]}


def test_who_has_waited_too_long_comes_first() -> None:
    """A long job would never run beside an endless stream of short ones. The longer it is, the longer it may wait."""
    jobs = {"left": [1e4, 10.0, 10.0], "rate": [[1.0]] * 3, "kinds": [0]}
    bound_s = 2000.0 + PAYBACK * 1e4
    for before, first in ((bound_s - 1000.0, False), (bound_s - 100.0, True)):  # and the round of 360 s
        assert (0 in placed(picture(**jobs, waited_s=[before, 0.0, 0.0]), Planner(patience_s=2000.0))) == first
    rare = picture(**jobs)._replace(since_s=np.asarray(1e6), age_s=np.asarray([360.0, 10.0, 10.0]))
    assert 0 not in placed(rare, Planner(patience_s=2000.0))  # it was not there at the plan before


def test_higher_priority_comes_first() -> None:
    p = picture([10.0, 1e5], [[1.0]] * 2, [0], priority=[0, 1])
    assert placed(p) == {1: [0]}


def test_weights_are_equal_where_nobody_waits_and_grow_with_those_who_do() -> None:
    calm = progress_weights(picture([10.0, 1000.0], [[1.0, 1.0]] * 2, [FAST, SLOW, FAST]))
    assert calm == pytest.approx([1.0, 1.0])
    busy = progress_weights(picture([10.0, 1000.0, 100.0, 1e4], [[1.0, 1.0]] * 4, [FAST]))
    assert busy == pytest.approx([1 + 0.75 * n for n in (3, 1, 2, 0)])


def test_two_change_places_where_each_alone_could_not_move() -> None:
    """Both run on the GPU that suits the other."""
    p = picture([100.0, 100.0], [[1.0, 0.2], [0.2, 1.0]], [FAST, SLOW], on={0: 1, 1: 0})
    assert placed(p) == {0: [0], 1: [1]}


def test_nobody_goes_where_somebody_is_in_the_queue() -> None:
    """A gang that was placed while the last one saves has no lane yet: the GPU only looks empty."""
    p = picture([100.0], [[1.0, 0.1]], [FAST, SLOW], slots=2, beside=kept(1, 0.9))
    assert placed(p) == {0: [0]}
    assert placed(p._replace(queued=np.asarray([1, 0]))) == {0: [1]}


def test_a_pair_of_which_little_is_known_is_left_alone() -> None:
    jobs = ([100.0] * 2, [[1.0, 0.5]] * 2, [FAST, SLOW])
    sure, unsure = (picture(*jobs, slots=2, beside=kept(2, 0.9), std=std) for std in (0.0, 0.3))
    assert placed(sure) == {0: [0], 1: [0]} == placed(unsure, Planner(caution=0.0))
    assert sorted(placed(unsure).values()) == [[0], [1]]
    with pytest.raises(InputError, match="caution"):
        Planner(caution=-1.0)


def test_it_keeps_the_contract_of_policies() -> None:
    check_policy(Planner(rows=64), [cheap_scenario()])


def test_who_is_on_its_way_goes_where_it_was_meant_to() -> None:
    """Between rounds: it was preempted to be moved to a slower GPU, and waits while it is saved. Both are free."""
    p = picture([100.0], [[1.0, 0.5]], [0, 1], boundary=False)
    assert placed(p) == {0: [0]}
    meant = p._replace(old_gang=np.asarray([0]), old_job=np.asarray([0]), old_plan=np.asarray([-1, 0]))
    assert placed(meant) == {0: [1]}
    assert placed(meant._replace(up=np.asarray([True, False]))) == {0: [0]}
