"""A queue rolled forward: who has GPUs when, in cases that can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symphony.training_jobs import queue_rollout
from symphony.training_jobs.queue_rollout import FutureJobs, QueuedJobs, roll_out_queue


def queue(
    rate: list[list[float]],
    left: list[float],
    at: list[int],
    gpus: list[int],
    pairs: dict[int, tuple[int, float]] | None = None,
    draws: int = 1,
    **other: Any,
) -> QueuedJobs:
    """Jobs by column; `rate` [C][Y]. `pairs`: of a column, its neighbour and what that costs."""
    count = len(left)
    rates = np.tile(np.asarray(rate, float).T[:, None], (1, draws, 1))
    here = np.asarray([rate[n][max(y, 0)] for n, y in enumerate(at)], float)
    pairs = pairs or {}
    neighbour, cost = np.full((count, 1 if pairs else 0), -1), np.zeros((draws, count, 1 if pairs else 0))
    for n, (m, c) in pairs.items():
        neighbour[n, 0], cost[:, n, 0] = m, c
    workers = np.asarray(other.pop("workers", [1] * count))
    held = np.asarray([0 if n in pairs and pairs[n][0] < n else workers[n] for n in range(count)])
    free = [gpus[y] - int(held[np.asarray(at) == y].sum()) for y in range(len(gpus))]
    made = QueuedJobs(
        rate=rates, here=np.tile(here, (draws, 1)), at=np.asarray(at), left=np.asarray(left, float), workers=workers,
        priority=np.zeros(count, int), saving_s=np.zeros(count), restoring_s=np.zeros(count),
        has_run=np.asarray(at) >= 0, waited_s=np.zeros(count), neighbour=neighbour, cost=cost, crowding=0.0,
        gpus=np.asarray(gpus), free=np.asarray(free),
    )  # fmt: skip
    return made._replace(**{name: np.asarray(value) for name, value in other.items()})


def rolled(q: QueuedJobs, others: FutureJobs | None = None) -> tuple[list[float], list[float]]:
    """Starts and finishes of the first draw, from 100 s on."""
    found = roll_out_queue(q, others, 100.0)
    return found.start_s[0].tolist(), found.finish_s[0].tolist()


def test_one_that_is_alone_is_done_when_its_work_is() -> None:
    assert rolled(queue([[2.0]], [100.0], [0], [1])) == ([100.0], [150.0])


def test_who_waits_starts_where_another_ends() -> None:
    start, finish = rolled(queue([[2.0], [1.0]], [100.0, 60.0], [0, -1], [1]))
    assert start == [100.0, 150.0] and finish == [150.0, 210.0]


def test_the_shorter_of_two_who_wait_comes_first_but_for_priority_and_patience() -> None:
    work = [10.0, 200.0, 100.0]  # the first runs
    assert rolled(queue([[1.0]] * 3, work, [0, -1, -1], [1]))[0] == [100.0, 210.0, 110.0]
    assert rolled(queue([[1.0]] * 3, work, [0, -1, -1], [1], priority=[2, 1, 0]))[0] == [100.0, 110.0, 310.0]
    assert rolled(queue([[1.0]] * 3, work, [0, -1, -1], [1], waited_s=[0, 90_000, 0]))[1] == [310.0, 300.0, 410.0]


def test_a_long_job_gives_way_to_a_short_one_and_pays_for_its_checkpoint() -> None:
    costs = {"saving_s": [5.0, 5.0], "restoring_s": [7.0, 7.0]}
    start, finish = rolled(queue([[1.0], [1.0]], [1000.0, 10.0], [0, -1], [1], **costs))
    assert start == [100.0, 100.0] and finish == [100 + 10 + 7 + 1000, 110.0]


def test_a_job_moves_to_a_faster_gpu_that_is_free() -> None:
    costs = {"saving_s": [5.0], "restoring_s": [7.0]}
    _, finish = rolled(queue([[1.0, 4.0]], [1000.0], [0], [1, 1], **costs))
    assert finish == [100 + 5 + 7 + 250]


def test_a_gang_waits_for_all_its_gpus_and_one_that_is_too_wide_for_ever() -> None:
    start, finish = rolled(queue([[1.0]] * 3, [10.0, 30.0, 500.0], [0, 0, -1], [2], workers=[1, 1, 2]))
    assert start[2] == 130.0 and finish[2] == 630.0
    start, finish = rolled(queue([[1.0], [0.0]], [10.0, 5.0], [0, -1], [1], workers=[1, 2]))
    assert start[1] == finish[1] == np.inf and finish[0] == 110.0


def test_who_shares_goes_at_full_speed_once_the_other_is_done() -> None:
    """Each takes half as long again beside the other: 20 units in 30 s, then 30 more in 30 s."""
    _, finish = rolled(queue([[1.0], [1.0]], [20.0, 50.0], [0, 0], [1], pairs={0: (1, 0.5), 1: (0, 0.5)}))
    assert finish == [130.0, 160.0]


def test_a_gpu_that_two_share_is_free_when_both_are_done() -> None:
    q = queue([[1.0]] * 3, [20.0, 50.0, 500.0], [0, 0, -1], [1], pairs={0: (1, 0.5), 1: (0, 0.5)})
    assert rolled(q)[0][2] == 160.0


def others(comes_s: list[float], left: float, rate: float = 1.0) -> FutureJobs:
    one = np.ones(1, int)
    return FutureJobs(np.asarray([comes_s]), np.zeros((1, len(comes_s)), int), np.full((1, 1, 1), rate),
                  left * np.ones(1), one, 0 * one, np.zeros(1), np.zeros(1))  # fmt: skip


def test_those_yet_to_come_take_gpus_from_those_who_are_there() -> None:
    q = queue([[1.0]], [100.0], [0], [1])
    assert rolled(q, others([120.0, 130.0], 10.0))[1] == [220.0]  # two of 10 s each come in between
    assert rolled(q, others([120.0, np.inf], 500.0))[1] == [200.0]  # a longer one waits
    assert rolled(q, others([250.0], 10.0))[1] == [200.0]


def random_queue(seed: int, gpus: tuple[int, ...] = (4, 3), draws: int = 6, count: int = 20) -> QueuedJobs:
    rng = np.random.default_rng(seed)
    workers = rng.choice([1, 1, 2], count)
    at, free = np.full(count, -1), np.asarray(gpus)
    for n in range(count):
        kind = int(rng.integers(len(gpus)))
        if free[kind] >= workers[n] and n % 3:
            at[n], free[kind] = kind, free[kind] - workers[n]
    rate = rng.lognormal(0, 0.5, (count, len(gpus))).tolist()
    q = queue(rate, rng.lognormal(4, 1, count).tolist(), at.tolist(), list(gpus), draws=draws, workers=workers,
              saving_s=np.full(count, 2.0), restoring_s=np.full(count, 4.0))  # fmt: skip
    return q._replace(rate=q.rate * rng.lognormal(0, 0.3, q.rate.shape))


def with_others(q: QueuedJobs, count: int = 30) -> FutureJobs:
    rng = np.random.default_rng(5)
    (kinds, draws, _), number = q.rate.shape, np.arange(count)
    comes = 100 + np.cumsum(rng.exponential(5.0, (draws, count)), axis=1)
    return FutureJobs(comes, np.tile(number, (draws, 1)), rng.lognormal(0, 0.3, (kinds, draws, count)), 20.0 + number,
                  1 + number % 2, 0 * number, np.ones(count), np.ones(count))  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_all_are_done_and_none_sooner_than_it_can_be(seed: int) -> None:
    q = random_queue(seed)
    for more in (None, with_others(q)):
        found = roll_out_queue(q, more, 100.0)
        assert np.isfinite(found.finish_s).all() and (found.start_s >= 100).all() and (found.kind >= 0).all()
        # Somebody who is displaced and never moved pays for it; nobody gains by it.
        fastest = np.maximum(q.rate.max(axis=0), np.where(q.at >= 0, q.here, 0))
        assert (found.finish_s >= found.start_s + q.left / fastest - 1e-6).all()
        busy = (q.left * q.workers / fastest).sum(axis=1)
        assert (found.finish_s.max(axis=1) >= 100 + busy / q.gpus.sum() - 1e-6).all()


def test_dropping_what_is_over_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those yet to come sit elsewhere then, which decides between two of equal worth: here none are."""
    monkeypatch.setattr(queue_rollout, "FUTURE_JOB_COLUMNS", 30)  # nobody is left out either way
    two, one = random_queue(7), random_queue(9, gpus=(6,))
    cases = [(two, None), (one, None), (one, with_others(one))]
    monkeypatch.setattr(queue_rollout, "COMPACTION_INTERVAL", 10**9)
    whole = [roll_out_queue(q, more, 100.0) for q, more in cases]
    monkeypatch.setattr(queue_rollout, "COMPACTION_INTERVAL", 3)
    for before, now in zip(whole, [roll_out_queue(q, more, 100.0) for q, more in cases], strict=True):
        for a, b in zip(before, now, strict=True):
            assert np.allclose(a, b)
