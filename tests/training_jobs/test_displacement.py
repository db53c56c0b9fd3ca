"""Jobs that wait take the place of running ones where that pays, and no job waits without bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symphony.problem.errors import InputError
from symphony.training_jobs.planner import PAYBACK, Planner
from tests.policies.pictures import picture
from tests.training_jobs.test_planner import placed

RUNS_LONG = {"rate": [[1.0]] * 2, "kinds": [0], "on": {0: 0}, "boundary": False}


@pytest.mark.parametrize(
    ("left", "moving_s", "runs"),
    [
        ([1e5, 60.0], 40.0, 1),  # 100 s of delay for a day of waiting
        ([150.0, 60.0], 100.0, 0),  # the runner would be done before the exchange has paid
        ([50.0, 60.0], 0.0, 0),
        ([1e5, 60.0], 2e5, 0),  # the checkpoint costs more than the job
    ],
)
def test_a_short_job_takes_the_place_of_a_long_one_between_rounds(
    left: list[float], moving_s: float, runs: int
) -> None:
    assert list(placed(picture(left, **RUNS_LONG, moving_s=moving_s))) == [runs]


def test_tails_weigh_the_delay_of_a_long_job_less() -> None:
    """The short job waits for 1,100 s; two long ones would lose 600 s each, a smaller part of their time."""
    jobs: dict[str, Any] = {"left": [1000.0, 1100.0, 100.0], "rate": [[1.0]] * 3, "kinds": [0, 0], "on": {0: 0, 1: 1}}
    p = picture(**jobs, boundary=False, workers=[1, 1, 2], moving_s=500.0)
    assert 2 not in placed(p, Planner(tails=0.0)) and list(placed(p, Planner(tails=1.0))) == [2]
    with pytest.raises(InputError, match="tails"):
        Planner(tails=2.0)


def test_a_gang_takes_the_machine_on_which_the_fewest_make_room() -> None:
    p = picture(
        [1e5, 1e5, 1e5, 60.0], [[1.0]] * 4, [0] * 4, on={0: 0, 1: 1, 2: 2}, machines=[0, 0, 1, 1],
        workers=[1, 1, 1, 2], boundary=False,
    )  # fmt: skip
    assert placed(p) == {0: [0], 1: [1], 3: [2, 3]}


def test_lower_priorities_make_room_and_higher_ones_do_not() -> None:
    long, short = ({"left": left, **RUNS_LONG} for left in ([60.0, 1e5], [1e5, 60.0]))
    assert placed(picture(**long, priority=[0, 1])) == {1: [0]}
    assert placed(picture(**short, priority=[1, 0])) == {0: [0]}


def test_no_job_waits_without_bound() -> None:
    """One GPU, and a short job every minute for ever: a long job runs all the same, a fifth of the time."""
    patience_s, minute, need_s, minutes = 600.0, 60.0, 1e3, 400
    planner = Planner(patience_s=patience_s)
    waited = longest = ran = 0.0
    on: dict[int, int] = {}
    for _ in range(minutes):
        p = picture([need_s, 50.0], [[1.0]] * 2, [0], on=on, boundary=False, waited_s=[waited, 0.0])
        p = p._replace(since_s=np.asarray(minute), ran_s=np.asarray([minute if on == {0: 0} else 0.0, 0.0]))
        plan = planner.plan(p)
        waited = float(plan.book[0, 0])
        longest = max(longest, waited)
        on = {0: 0} if plan.lanes[0] == 0 else {}  # the short one is done before the next one comes
        ran += minute * (on == {0: 0})
    assert longest <= patience_s + PAYBACK * need_s + minute
    assert ran >= minutes * minute / 8
