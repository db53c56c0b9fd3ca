"""What a job may expect: bands of speeds, starts and ends, what it loses to whom, and the samples behind that."""

from __future__ import annotations

import numpy as np
import pytest

from symphony.problem.errors import InputError
from symphony.training_jobs.beliefs import NO_NEIGHBOUR, Beliefs, JobDescriptions, SpeedQuery
from symphony.training_jobs.forecast import ClusterNow, JobNow, RecentArrivals, forecast
from symphony.training_jobs.speed_samples import SpeedReport

N, Y = 4, 2  # kernels 0 and 1 are of one family, 2 and 3 of another
RNG = np.random.default_rng(0)
DESCRIBED = JobDescriptions(
    features=RNG.normal(0, 1, (N, 3)),
    kinds=RNG.normal(0, 1, (Y, 2)),
    family=np.asarray([0, 0, 1, 1]),
    unit_s=np.full((N, Y, 2), 2.0),
    kept=np.full((N, N, Y), 0.5),
)
NOW_S = 1000.0


def cluster(*kinds: int, machine: int = 0) -> ClusterNow:
    return ClusterNow(np.asarray(kinds), np.full(len(kinds), machine), np.ones(len(kinds), bool))


def told(*seen: tuple[int, int, int, float], rounds: int = 6, first_job: int = 100) -> Beliefs:
    """Beliefs that heard of kernels, on kinds, beside others, that a unit takes so long: of several jobs each."""
    b = Beliefs(DESCRIBED)
    for place, (kernel, kind, beside, seconds) in enumerate(seen):
        for n in range(rounds):
            job = first_job + rounds * place + n
            neighbours = () if beside < 0 else (beside,)
            report = SpeedReport(job, kernel, kind, neighbours, False, NOW_S - 460 + n, NOW_S - 400 + n, 60 / seconds)
            assert b.update([report], now_s=NOW_S, placed={job})[0].why == ""
    return b


@pytest.fixture(scope="module")
def known() -> Beliefs:
    return told((0, 0, NO_NEIGHBOUR, 4.0))


def test_one_that_is_alone_and_known_is_done_when_its_work_is(known: Beliefs) -> None:
    (one,) = forecast(known, [JobNow(7, 0, left=500.0, devices=(0,))], cluster(0), NOW_S)
    assert one.job == 7 and one.runs and one.kind == "0" and one.loses == ()
    assert one.speed.mid == pytest.approx(0.25, rel=0.05)
    assert one.start_s == (NOW_S, NOW_S, NOW_S)
    assert one.finish_s.mid == pytest.approx(NOW_S + 2000, rel=0.05)
    # 6% that jobs differ by, and a little doubt about the kernel: some 1.28 deviations either way.
    assert 0.1 < (one.finish_s.high - one.finish_s.low) / 2000 < 0.3
    assert one.finish_s.low < one.finish_s.mid < one.finish_s.high


def test_a_job_that_has_said_how_fast_it_is_is_believed() -> None:
    b = told((0, 0, NO_NEIGHBOUR, 4.0))
    for n in range(20):
        b.update([SpeedReport(7, 0, 0, (), False, 100.0 + n, 160.0 + n, 60 / 4.8)], now_s=NOW_S, placed={7})
    mine, other = forecast(
        b, [JobNow(7, 0, 500.0, devices=(0,)), JobNow(8, 0, 500.0, devices=(1,))], cluster(0, 0), NOW_S
    )
    assert mine.speed.mid == pytest.approx(1 / 4.8, rel=0.03) and other.speed.mid > 1.05 * mine.speed.mid
    assert mine.speed.high / mine.speed.low < 1.08 < other.speed.high / other.speed.low


def test_the_less_is_known_the_wider_are_bands_and_a_larger_share_needs_wider_ones(known: Beliefs) -> None:
    jobs = [JobNow(7, 0, 500.0, devices=(0,))]

    def width(b: Beliefs, share: float = 0.8) -> float:
        (one,) = forecast(b, jobs, cluster(0), NOW_S, share=share)
        return (one.finish_s.high - one.finish_s.low) / (one.finish_s.mid - NOW_S)

    relative, unknown = told((1, 0, NO_NEIGHBOUR, 4.0)), Beliefs(DESCRIBED)
    assert width(known) < 0.7 * width(relative) < 0.7 * width(unknown)
    assert width(known, 0.5) < width(known) < width(known, 0.98)


def test_who_waits_is_expected_to_start_when_the_one_before_ends(known: Beliefs) -> None:
    jobs = [JobNow(1, 0, 100.0, devices=(0,)), JobNow(2, 0, 300.0), JobNow(3, 0, 900.0)]
    first, second, third = forecast(known, jobs, cluster(0), NOW_S)
    assert not second.runs and second.kind == "0"
    assert second.start_s == first.finish_s
    assert third.start_s == second.finish_s and third.finish_s.mid == pytest.approx(NOW_S + 5200, rel=0.05)


def test_priority_goes_first(known: Beliefs) -> None:
    jobs = [JobNow(1, 0, 100.0, priority=9, devices=(0,)), JobNow(2, 0, 50.0), JobNow(3, 0, 900.0, priority=5)]
    _, low, high = forecast(known, jobs, cluster(0), NOW_S)
    assert high.start_s.high < low.start_s.low


def test_what_a_job_loses_is_named_with_its_neighbour_and_its_band() -> None:
    b = told((0, 0, NO_NEIGHBOUR, 4.0), (0, 0, 2, 5.0))
    jobs = [JobNow(5, 0, 500.0, devices=(0,)), JobNow(6, 2, 500.0, devices=(0,)), JobNow(7, 0, 500.0, devices=(1,))]
    shares, other, alone = forecast(b, jobs, cluster(0, 0), NOW_S)
    (loss,) = shares.loses
    assert loss.job == 6 and loss.kept.low < loss.kept.mid < loss.kept.high
    assert loss.kept.mid == pytest.approx(0.8, abs=0.05)
    assert shares.speed.mid == pytest.approx(alone.speed.mid * 0.8, rel=0.08)
    assert [one.job for one in other.loses] == [5] and alone.loses == ()
    # Nobody has seen the other one: it keeps half, as was guessed, give or take much.
    assert other.loses[0].kept.high - other.loses[0].kept.low > 2 * (loss.kept.high - loss.kept.low)


def test_samples_are_counted_by_signature_kernel_and_family() -> None:
    shared = (0, 0, 2, 5.0)
    b = told((0, 0, NO_NEIGHBOUR, 4.0), (0, 1, NO_NEIGHBOUR, 4.0), shared, shared, (1, 0, NO_NEIGHBOUR, 4.0), rounds=2)
    jobs = [JobNow(1, 0, 9.0, devices=(0,)), JobNow(2, 1, 9.0, devices=(1,)), JobNow(3, 0, 9.0, devices=(2,)),
            JobNow(4, 2, 9.0, devices=(2,)), JobNow(5, 0, 9.0, workers=2, devices=(3, 4))]  # fmt: skip
    where = ClusterNow(np.asarray([0, 1, 0, 0, 0]), np.asarray([0, 0, 0, 1, 2]), np.ones(5, bool))
    alone, elsewhere, shares, stranger, spread = (one.evidence for one in forecast(b, jobs, where, NOW_S))
    assert alone[:3] == (2, 6, 2) and alone.newest_s == 399.0 and not alone.guess_only
    assert elsewhere[:3] == (0, 2, 8)
    assert shares[:3] == (4, 4, 2) and spread[:3] == (0, 8, 2)
    assert stranger == (0, 0, 0, None) and stranger.guess_only


def test_draws_have_in_common_what_speeds_do(known: Beliefs) -> None:
    """One job on two GPUs; another of its family; a stranger. And each is as wide as it is alone."""
    query = SpeedQuery(np.asarray([0, 0, 1, 2]), np.asarray([0, 1, 0, 0]), np.zeros(4, int), np.full(4, NO_NEIGHBOUR))
    for b, doubts in ((Beliefs(DESCRIBED), True), (known, False)):
        drawn = b.draws(query, NOW_S, 4000, np.random.default_rng(0))
        mean, std = b.log_seconds(query, NOW_S)
        assert drawn.mean(axis=0) == pytest.approx(mean, abs=0.05) and drawn.std(axis=0) == pytest.approx(std, rel=0.1)
        if doubts:
            other_gpu, relative, stranger = np.corrcoef(drawn.T)[0, 1:]
            assert 0.9 > other_gpu > relative + 0.1 > 0.4 and abs(stranger) < 0.05


def test_jobs_of_one_family_are_late_together() -> None:
    """Two that wait for one another: what is doubted of their family adds up, and does not cancel out."""
    unknown = Beliefs(DESCRIBED)

    def width(*kernels: int) -> float:
        queue = [JobNow(n, kernel, 100.0, priority=-n, devices=() if n else (0,)) for n, kernel in enumerate(kernels)]
        band = forecast(unknown, queue, cluster(0), NOW_S, draws=2000)[-1].finish_s
        return band.high - band.low

    one_kernel, one_family, strangers = width(0, 0), width(0, 1), width(0, 2)
    assert one_kernel > 1.05 * one_family and one_family > 1.05 * strangers, (one_kernel, one_family, strangers)


def test_jobs_yet_to_come_make_others_wait_unless_none_have_come_for_long(known: Beliefs) -> None:
    jobs = [JobNow(1, 0, 100.0, devices=(0,)), JobNow(2, 0, 4000.0)]
    like = [JobNow(n, 0, 200.0) for n in range(10)]

    def start(coming: RecentArrivals | None) -> float:
        return forecast(known, jobs, cluster(0), NOW_S, coming=coming)[1].start_s.high

    assert start(RecentArrivals(like, for_s=10_000.0)) > start(None) + 500
    assert start(RecentArrivals(like, for_s=10_000.0, silent_s=30_000.0)) == pytest.approx(start(None))


def test_where_it_fits_nowhere_a_job_is_not_to_be_expected(known: Beliefs) -> None:
    wide, down = JobNow(1, 0, 9.0, workers=3), cluster(0, 0)._replace(up=np.zeros(2, bool))
    (one,) = forecast(known, [wide], cluster(0, 0), NOW_S)
    assert one.kind == "" and one.start_s.low == one.finish_s.high == np.inf and one.speed.mid == 0
    assert forecast(known, [wide._replace(workers=1)], down, NOW_S)[0].start_s.mid == np.inf
    assert forecast(known, [wide._replace(workers=2)], cluster(0, 0), NOW_S)[0].start_s.mid == NOW_S


def test_who_is_spread_now_is_at_that_speed_and_equal_questions_have_equal_answers() -> None:
    slow = JobDescriptions(
        DESCRIBED.features, DESCRIBED.kinds, DESCRIBED.family, np.array(DESCRIBED.unit_s), DESCRIBED.kept
    )
    slow.unit_s[..., 1] = 8.0
    apart = ClusterNow(np.zeros(2, int), np.asarray([0, 1]), np.ones(2, bool))
    job = [JobNow(1, 0, 9.0, workers=2, devices=(0, 1))]
    packed, spread = (forecast(Beliefs(slow), job, where, NOW_S)[0] for where in (cluster(0, 0), apart))
    assert packed.speed.mid > 2.5 * spread.speed.mid
    assert forecast(Beliefs(slow), job, apart, NOW_S) == [spread]


def test_what_means_nothing_is_refused_and_nobody_expects_nothing(known: Beliefs) -> None:
    assert forecast(known, [], cluster(0), NOW_S) == []
    for wrong in ({"share": 0.0}, {"share": 1.0}, {"draws": 0}, {"coming": RecentArrivals([JobNow(1, 0, 9.0)], 0.0)}):
        with pytest.raises(InputError, match=r"share is|coming has"):
            forecast(known, [JobNow(1, 0, 9.0)], cluster(0), NOW_S, **wrong)  # type: ignore[arg-type]
