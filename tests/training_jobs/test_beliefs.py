"""Tables of beliefs: what one sample says of others, and what is rejected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symphony.training_jobs.beliefs import NO_NEIGHBOUR, Beliefs, JobDescriptions, SpeedQuery, correlation
from symphony.training_jobs.speed_samples import SpeedReport

N, Y = 4, 2  # kernels 0 and 1 are of one family, 2 and 3 of another
RNG = np.random.default_rng(0)
DESCRIBED = JobDescriptions(
    features=RNG.normal(0, 1, (N, 3)),
    kinds=RNG.normal(0, 1, (Y, 2)),
    family=np.asarray([0, 0, 1, 1]),
    unit_s=np.where(np.arange(N * Y * 2).reshape(N, Y, 2) == 15, 0.0, 2.0),  # kernel 3 does not run spread on kind 1
    kept=np.where(np.eye(N)[..., None] * np.ones(Y) == 1, 0.0, 0.5),  # nobody shares with its like
)


def seen(kernel: int, kind: int, beside: int, seconds: float, job: int = 0, at_s: float = 100.0) -> SpeedReport:
    neighbours = () if beside < 0 else (beside,)
    return SpeedReport(job, kernel, kind, neighbours, False, at_s - 60, at_s, 60 / seconds)


def hear(b: Beliefs, report: SpeedReport) -> str:
    return b.update([report], now_s=100.0, placed={report.job})[0].why


def ask(kernel: int, kind: int = 0, beside: int = NO_NEIGHBOUR) -> SpeedQuery:
    return SpeedQuery(*(np.asarray([x]) for x in (kernel, kind, 0, beside)))


def believed(b: Beliefs, query: SpeedQuery, now_s: float = 100.0) -> tuple[float, float]:
    mean, std = b.log_seconds(query, now_s)
    return float(mean[0]), float(std[0])


def test_a_speed_that_was_seen_is_known_to_within_its_noise() -> None:
    b = Beliefs(DESCRIBED)
    for job in range(4):
        assert hear(b, seen(0, 0, NO_NEIGHBOUR, 6.0, job)) == ""
    mean, std = believed(b, ask(0))
    assert mean == pytest.approx(np.log(6.0), abs=0.03) and std < 0.06


def test_what_is_seen_of_a_job_on_one_gpu_says_much_of_it_on_another_and_less_of_its_family() -> None:
    b = Beliefs(DESCRIBED)
    guess, doubt = believed(b, ask(0))
    assert guess == pytest.approx(np.log(2.0))
    hear(b, seen(0, 0, NO_NEIGHBOUR, 6.0))
    other_gpu, relative, stranger = (believed(b, q)[0] - guess for q in (ask(0, 1), ask(1), ask(2)))
    assert np.log(3.0) > other_gpu > relative > 0.2 and stranger == pytest.approx(0.0)
    assert believed(b, ask(0, 1))[1] < believed(b, ask(1))[1] < doubt


def test_a_scale_that_nobody_told_is_learned_on_all_kinds_at_once_and_teaches_no_network() -> None:
    b = Beliefs(replace(DESCRIBED, doubt=np.asarray([3.0, 0.0, 0.0, 0.0])))
    assert believed(b, ask(0))[1] > 3.0 and believed(b, ask(1))[1] < 1.0
    for job in range(3):
        assert (
            hear(b, seen(0, 0, NO_NEIGHBOUR, 400.0, job)) == ""
        )  # two hundred times the guess, and no news to anybody
    here, there = believed(b, ask(0)), believed(b, ask(0, 1))
    assert here[0] == pytest.approx(np.log(400.0), abs=0.05) and here[1] < 0.06
    assert there[0] == pytest.approx(np.log(400.0), abs=0.4) and there[1] < 0.6  # what kinds differ by is as usual
    before = b.ensemble
    b.refit(100.0)
    assert b.ensemble is before  # there was nothing to learn from


def test_who_disturbs_one_neighbour_is_expected_to_disturb_others() -> None:
    b = Beliefs(DESCRIBED)
    hear(b, seen(0, 0, NO_NEIGHBOUR, 2.0))
    before = believed(b, ask(1, 0, 2))[0]
    hear(b, seen(0, 0, 2, 12.0, job=1))  # beside 2 at a sixth, not at a half
    assert believed(b, ask(1, 0, 2))[0] > before + 0.02


def test_old_samples_are_doubted() -> None:
    b = Beliefs(DESCRIBED, half_life_s=1000.0)
    hear(b, seen(0, 0, NO_NEIGHBOUR, 6.0))
    assert believed(b, ask(0), now_s=20_000.0)[1] > 2 * believed(b, ask(0), now_s=100.0)[1]


def test_tables_hold_beliefs_and_what_must_not_be() -> None:
    b = Beliefs(DESCRIBED)
    start = b.start()
    assert np.asarray(start.mean.unit_s)[0] == pytest.approx(2.0) and np.asarray(start.mean.unit_s)[3, 1, 1] == 0
    assert (np.diagonal(np.asarray(start.mean.beside)) == 0).all()
    assert np.asarray(start.mean.beside)[0, 2] == pytest.approx(0.5)
    hear(b, seen(0, 0, NO_NEIGHBOUR, 4.0))
    hear(b, seen(0, 0, 2, 5.0, job=1))
    told = b.tables(100.0, np.asarray([0, 2]), start)
    assert told.mean.unit_s[0, 0, 0] == pytest.approx(4.0, rel=0.05)
    assert 0.7 < told.mean.beside[0, 2, 0] < 0.82  # 4 of 5 s were seen; 0.5 was guessed
    assert told.mean.unit_s[1, 0, 0] == 2.0  # it was not asked for


def test_bad_reports_change_nothing() -> None:
    b = Beliefs(DESCRIBED)
    before = believed(b, ask(0))
    for bad in (seen(0, 0, NO_NEIGHBOUR, 1.0)._replace(units=float("nan")), seen(0, 0, NO_NEIGHBOUR, 1e9)):
        assert hear(b, bad)
    assert b.update([seen(0, 0, NO_NEIGHBOUR, 6.0)], now_s=100.0, placed=())[0].why == "never placed"
    assert believed(b, ask(0)) == before
    b.refit(100.0)
    assert b.refits == 0


def test_correlations_are_those_of_some_distribution() -> None:
    rng = np.random.default_rng(1)
    q = SpeedQuery(rng.integers(0, N, 60), rng.integers(0, Y, 60), rng.integers(0, 2, 60), rng.integers(-1, N, 60))
    c = correlation(q, q, DESCRIBED.family)
    assert np.allclose(c, c.T) and np.allclose(np.diag(c), 1) and np.linalg.eigvalsh(c).min() > -1e-9
