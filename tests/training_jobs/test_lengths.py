"""Lengths that the user did not tell: the posterior of the time left, and policies that are shown it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from symphony.baselines.preemptive import Srtf
from symphony.simulator.run import simulate
from symphony.training_jobs.lengths import (
    LengthLearner,
    UnknownLengths,
    add_lengths,
    groups,
    hazards,
    no_lengths,
    time_left_s,
)
from tests.baselines import training


def left_s(lengths: np.ndarray, attained: list[float], kernel: int = 0, of: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Mean and index time of jobs of kernel `of` after jobs of `kernel` with these lengths have ended."""
    rows = groups(jnp.full(len(lengths), kernel), jnp.ones(len(lengths), int))
    counts = add_lengths(no_lengths(), rows, jnp.asarray(lengths), jnp.ones(len(lengths), bool))
    asked = groups(jnp.full(len(attained), of), jnp.ones(len(attained), int))
    hazard = hazards(counts, asked, jnp.asarray(attained), jnp.zeros(len(attained), bool))
    return tuple(np.asarray(x) for x in time_left_s(hazard, jnp.asarray(attained)))  # type: ignore[return-value]


def test_the_longer_a_heavy_tailed_job_has_run_the_longer_it_will() -> None:
    drawn = 60.0 * (1 + np.random.default_rng(0).pareto(1.2, 4000))
    mean, index = left_s(drawn, [100.0, 1000.0, 10_000.0])
    assert (np.diff(mean) > 0).all() and (np.diff(index) > 0).all()
    exact = [np.mean(drawn[drawn > a] - a) for a in (100.0, 1000.0)]
    assert mean[:2] == pytest.approx(exact, rel=0.15)


def test_real_runs_learn_the_same() -> None:
    rng = np.random.default_rng(1)
    lengths, attained = rng.lognormal(6, 2, 60), [0.0, 40.0, 3000.0]
    rows = groups(jnp.zeros(60, int), jnp.ones(60, int))
    counts = add_lengths(no_lengths(), rows, jnp.asarray(lengths), jnp.ones(60, bool))
    present = hazards(counts, groups(jnp.zeros(3, int), jnp.ones(3, int)), jnp.asarray(attained), jnp.ones(3, bool))
    learner = LengthLearner()
    for seconds in lengths:
        learner.ended("a", 1, float(seconds))
    assert learner.index_s([("a", 1, s) for s in attained]) == pytest.approx(
        np.asarray(time_left_s(present, jnp.asarray(attained))[1]), rel=1e-4
    )


def test_jobs_of_one_length_are_known_after_a_few() -> None:
    middle_s = 1092.0  # of a bin
    mean, index = left_s(np.full(400, middle_s), [0.0, 500.0])
    expected = [middle_s, middle_s - 500.0]
    assert mean == pytest.approx(expected, rel=0.02) and index == pytest.approx(expected, rel=0.02)


def test_another_kernel_is_believed_to_be_alike_until_its_own_jobs_have_ended() -> None:
    long, none = np.full(50, 1e4), np.zeros(0)
    known, like, nothing = (left_s(*case)[0][0] for case in ((long, [0.0]), (long, [0.0], 1, 0), (none, [0.0])))
    assert known > like > nothing


def test_a_policy_does_not_see_how_long_a_job_takes() -> None:
    """A job that has just come is taken to be the shorter one, whether it is or not."""
    starts = []
    for seconds in (3.0, 150.0):
        case = training.scenario(training.jobs((0, 100, 1), (30, seconds, 1)), window_s=5.0)
        (record,) = simulate([case], UnknownLengths(Srtf()))
        assert len(record.jobs) == training.JOBS
        starts.append(next(gang.start_s for gang in record.gangs if gang.job == 1))
    assert starts == [30.0, 30.0]
