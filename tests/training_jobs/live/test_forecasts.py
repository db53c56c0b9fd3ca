"""What real training jobs may expect: of where they are, where they can run at all, and what has been seen."""

from __future__ import annotations

import math
from typing import Any

import pytest

import symphony as sy
from symphony.training_jobs.forecast import JobNow
from symphony.training_jobs.job_forecast import Band, JobForecast, SampleEvidence, SpeedLoss, forecast_line
from symphony.training_jobs.live.forecasts import ClusterSnapshot, TrainingJobNow, forecasts
from symphony.training_jobs.live.speed_beliefs import JobKind, RoundObservation, SpeedBeliefs

GPUS = sy.topology("gpu24")
V100, P100, K80 = ([kind.name for kind in GPUS.kinds].index(name) for name in ("v100", "p100", "k80"))
ON = {name: [n for n, device in enumerate(GPUS.devices) if device.kind == name] for name in ("v100", "p100", "k80")}
ALL = frozenset({V100, P100, K80})
A, B = JobKind("a", 0, 0.0, 0.0, 1, 0), JobKind("b", 0, 0.0, 0.0, 1, 0)


def trains(
    job: int, kind: JobKind = A, left: float = 1000.0, *devices: int, on: frozenset[int] = ALL
) -> TrainingJobNow:
    now = JobNow(job, -1, left, 1, 0, devices, 1.0, 1.0, bool(devices), 0.0, on, "train")
    return TrainingJobNow(job, kind, now)


def but(one: TrainingJobNow, **other: Any) -> TrainingJobNow:
    """The same, in another state."""
    return one._replace(now=one.now._replace(**other))


def now(*jobs: TrainingJobNow, down: frozenset[int] = frozenset()) -> ClusterSnapshot:
    return ClusterSnapshot(2000.0, jobs, down, (), 0.0)


@pytest.fixture(scope="module")
def speeds() -> SpeedBeliefs:
    """Steps of `a` take 2 s on a V100, in samples of five jobs; beside `b` 4 s."""
    found = SpeedBeliefs(GPUS)
    alone = [RoundObservation(job, A, V100, (), False, 360.0, 180.0) for job in range(5)]
    beside = [RoundObservation(job, A, V100, (B,), False, 360.0, 90.0) for job in range(5, 10)]
    found.learn(alone, 1000.0, [A, B])
    found.learn(beside, 1500.0, [A, B])
    return found


def test_a_job_of_known_speed_ends_when_it_must(speeds: SpeedBeliefs) -> None:
    [one] = forecasts(speeds, now(trains(11, A, 1000.0, ON["v100"][0])))
    assert (one.job, one.task, one.runs, one.kind) == (11, "train", True, "v100")
    assert one.devices == (GPUS.devices[ON["v100"][0]].name,)
    assert one.speed.mid == pytest.approx(0.5, rel=0.05) and one.speed.low < one.speed.mid < one.speed.high
    assert one.start_s == (0.0, 0.0, 0.0)
    assert one.finish_s.mid == pytest.approx(2000.0, rel=0.1)
    assert one.evidence.signature == 5 and one.evidence.kernel == 5 and one.evidence.newest_s == pytest.approx(1000.0)


def test_what_it_loses_to_a_neighbour_is_named(speeds: SpeedBeliefs) -> None:
    first = ON["v100"][0]
    one, other = forecasts(speeds, now(trains(11, A, 1000.0, first), trains(12, B, 1000.0, first)))
    [loss] = one.loses
    assert (loss.job, loss.task) == (12, "train") and loss.kept.mid == pytest.approx(0.5, rel=0.15)
    assert one.speed.mid == pytest.approx(0.25, rel=0.15) and [x.job for x in other.loses] == [11]
    assert "to job 12" in forecast_line(one)


def test_who_has_no_implementation_for_a_kind_does_not_start_there(speeds: SpeedBeliefs) -> None:
    down = frozenset(ON["k80"][1:])
    runs = trains(11, A, 1000.0, ON["k80"][0], on=frozenset({K80}))
    free, bound = forecasts(speeds, now(runs, trains(12, A, 3000.0, on=frozenset({K80})), down=down))
    assert bound.kind == "k80" and bound.start_s.mid > 0.8 * free.finish_s.mid  # it waits, though V100s are idle
    [anywhere] = forecasts(speeds, now(trains(12), down=down))
    assert anywhere.kind != "k80" and anywhere.start_s.mid == 0


def test_what_a_job_has_shown_itself_counts_most(speeds: SpeedBeliefs) -> None:
    """Job 21 was seen to be a fifth slower than others of its kind."""
    slow = [RoundObservation(21, A, V100, (), False, 360.0, 150.0 + at_s / 1e6) for at_s in range(3)]
    for number, one in enumerate(slow):
        speeds.learn([one], 1600.0 + number, [A, B])
    first, second = ON["v100"][:2]
    mine, other = forecasts(speeds, now(trains(21, A, 1000.0, first), trains(22, A, 1000.0, second)))
    assert mine.speed.mid < 0.95 * other.speed.mid


def test_two_tasks_of_a_job_are_told_apart(speeds: SpeedBeliefs) -> None:
    first = ON["v100"][0]
    one, two = trains(21, A, 1000.0, first), but(trains(21, B, 1000.0, first), job=99, task="other")
    mine, other = forecasts(speeds, now(one, two))
    assert [loss.task for loss in mine.loses] == ["other"] and [loss.task for loss in other.loses] == ["train"]


def test_where_no_device_is_up_nothing_is_to_be_expected(speeds: SpeedBeliefs) -> None:
    [one] = forecasts(speeds, now(trains(12), down=frozenset(range(len(GPUS.devices)))))
    assert math.isinf(one.start_s.mid) and math.isinf(one.finish_s.mid)
    assert "at an unknown time" in forecast_line(one)


def test_what_a_job_has_shown_itself_counts_for_it_and_for_no_other() -> None:
    found = SpeedBeliefs(GPUS)
    for n in range(6):  # a job that is slower than others of its kind, which are heard of as often
        told = [
            RoundObservation(1, A, V100, (), False, 360.0, 150.0),
            *(RoundObservation(j, A, V100, (), False, 360.0, 180.0) for j in (3, 4)),
        ]
        found.learn(told, 1000.0 + n, [A])
    first, second = ON["v100"][:2]
    slow, other = forecasts(found, now(trains(1, A, 1000.0, first), trains(3, A, 1000.0, second)))
    assert slow.speed.mid == pytest.approx(150 / 360, rel=0.03) and other.speed.mid == pytest.approx(0.5, rel=0.03)


def test_who_came_all_at_once_and_long_ago_is_not_followed_by_others(speeds: SpeedBeliefs) -> None:
    waits = trains(11, A, 1000.0, on=frozenset({V100}))
    come = [but(waits, job=12 + n, priority=1) for n in range(24)]  # three for every V100
    burst, steady = (
        ClusterSnapshot(2000.0, [waits], frozenset(), come, *times) for times in ((0.1, 1000.0), (1000.0, 0.0))
    )
    [high, more, least] = [forecasts(speeds, x)[0].finish_s.high for x in (burst, steady, now(waits))]
    assert high == pytest.approx(least, rel=0.05) and more > 1.2 * least


def test_who_has_run_before_has_to_read_back_what_it_saved(speeds: SpeedBeliefs) -> None:
    fresh = but(trains(11, A, 1000.0, on=frozenset({V100})), restoring_s=5000.0)
    [first], [again] = (forecasts(speeds, now(but(fresh, has_run=has_run))) for has_run in (False, True))
    assert again.finish_s.mid == pytest.approx(first.finish_s.mid + 5000.0)


def test_a_job_that_nobody_has_seen_is_a_guess() -> None:
    [one] = forecasts(SpeedBeliefs(GPUS), now(trains(12)))
    assert one.evidence.guess_only and one.finish_s.high > 100 * one.finish_s.low
    assert "a guess" in forecast_line(one)


def test_it_is_told_in_a_line() -> None:
    one = JobForecast(
        7, "train", False, (), "v100", 1, 100.0, Band(0.4, 0.5, 0.6), Band(10.0, 20.0, 30.0),
        Band(170.0, 220.0, math.inf), (SpeedLoss(0, "", Band(0.7, 0.8, 0.9)),), SampleEvidence(3, 2, 1, 60.0),
    )  # fmt: skip
    assert forecast_line(one) == (
        "train  expected to end in 3.67 min (2.83 min to any time); to start in 20 s (10 s to 30 s) on v100; "
        "0.5 steps/s (0.4 to 0.6); loses 20% (10% to 30%) to another user; "
        "based on 3 samples there, 2 elsewhere, 1 of its family, the newest 60 s old"
    )
