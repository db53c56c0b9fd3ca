"""Paired comparison: intervals hold what they promise, and say so when there is nothing to say."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from symphony.evaluation.metrics import METRICS
from symphony.evaluation.statistics import IntervalEstimate, Paired, holm, main_estimate, paired, verdict
from symphony.problem.errors import InputError

TIME, SHARE, NEITHER = METRICS["mean_completion_s"], METRICS["isolated_share"], METRICS["preemptions"]


def test_by_hand() -> None:
    # Ratios 1/2, 1/2, 1/4: logarithms -a, -a, -2a with a = ln 2; mean -4a/3, deviation a/√3; t(2) = 4.3027.
    result = paired([1, 2, 2], [2, 4, 8])
    a, half = math.log(2), 4.302653 * math.log(2) / math.sqrt(3) / math.sqrt(3)
    assert result.ratio is not None
    assert (result.ratio.value, result.ratio.low, result.ratio.high) == pytest.approx(
        (math.exp(-4 * a / 3), math.exp(-4 * a / 3 - half), math.exp(-4 * a / 3 + half)), rel=1e-6
    )
    assert result.difference.value == pytest.approx(-3)
    assert result.p == pytest.approx(0.25)  # the least that three seeds can give
    assert result.seeds == 3


@pytest.mark.parametrize("seeds", [5, 20])
def test_intervals_cover_the_truth_as_often_as_they_say(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    held = {"ratio": 0, "difference": 0}
    for _ in range(500):
        theirs = np.exp(rng.normal(3, 0.6, seeds))  # seeds differ a lot: pairing must take that out
        ratio = paired(theirs * np.exp(rng.normal(math.log(0.9), 0.1, seeds)), theirs).ratio
        difference = paired(theirs + rng.normal(-2, 1, seeds) - 100, theirs - 100).difference
        held["ratio"] += ratio is not None and not ratio.excludes(0.9)
        held["difference"] += not difference.excludes(-2)
    assert 460 <= held["ratio"] <= 490
    assert 460 <= held["difference"] <= 490


def test_equal_policies_are_rarely_told_apart() -> None:
    rng = np.random.default_rng(0)
    pairs = (np.exp(rng.normal(0, 0.3, (2, 12))) for _ in range(500))
    alarms = sum(verdict(paired(ours, theirs), TIME) != "not distinguishable" for ours, theirs in pairs)
    assert 10 <= alarms <= 40  # 5% of 500, give or take


@pytest.mark.parametrize("sample", [[3, -1, 4, 1.5, -5, 9, 2, 6], [1, 1, -1, 2, 2, 3, -4, 0]])
def test_p_is_the_share_of_sign_flips_that_are_as_extreme(sample: list[float]) -> None:
    nonzero = np.array([x for x in sample if x])
    ranks = np.array([np.mean([i + 1 for i, y in enumerate(sorted(abs(nonzero))) if y == x]) for x in abs(nonzero)])
    flips = np.array(list(itertools.product((0, 1), repeat=len(nonzero)))) @ ranks
    observed = abs(ranks[nonzero > 0].sum() - ranks.sum() / 2)
    expected = np.mean(abs(flips - ranks.sum() / 2) >= observed - 1e-9)
    assert paired(np.array(sample) - 10, np.full(len(sample), -10)).p == pytest.approx(expected)


def test_p_goes_over_to_the_normal_law_without_a_jump() -> None:
    shift = np.random.default_rng(1).normal(0.2, 1, 101)
    exact, normal = (paired(shift[:n] - 10, np.full(n, -10.0)).p for n in (100, 101))
    assert exact == pytest.approx(normal, rel=0.3)


def test_one_seed_gives_a_value_and_no_interval() -> None:
    result = paired([8.0], [10.0])
    assert result == Paired(1, IntervalEstimate(-2.0), IntervalEstimate(pytest.approx(0.8)), None)
    assert verdict(result, TIME) == "one seed"


def test_the_same_values_are_not_distinguishable() -> None:
    result = paired([3.0, 4.0, 5.0], [3.0, 4.0, 5.0])
    assert result == Paired(3, IntervalEstimate(0.0, 0.0, 0.0), IntervalEstimate(1.0, 1.0, 1.0), 1.0)
    assert verdict(result, TIME) == "not distinguishable"


def test_rounding_of_single_precision_is_no_difference() -> None:
    theirs = np.array([3.0, 40.0, 500.0])
    assert verdict(paired(theirs * (1 - 1e-7), theirs), TIME) == "not distinguishable"
    assert verdict(paired(theirs * (1 - 1e-3), theirs), TIME) == "better"


def test_a_zero_is_compared_by_difference() -> None:
    result = paired([0.0, 0.1, 0.0, 0.1], [0.5, 0.6, 0.4, 0.7])
    assert result.ratio is None
    assert main_estimate(result, TIME) == (result.difference, 0.0)
    assert verdict(result, SHARE) == "worse"


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_run_that_never_ended_is_not_comparable(bad: float) -> None:
    assert verdict(paired([1.0, bad], [2.0, 3.0]), TIME) == "not comparable"
    assert verdict(paired([1.0, 2.0], [2.0, bad]), TIME) == "not comparable"


def test_a_verdict_follows_the_metric_s_direction() -> None:
    less, more = paired([1, 2, 3], [2, 4.1, 6]), paired([2, 4.1, 6], [1, 2, 3])
    assert (verdict(less, TIME), verdict(more, TIME)) == ("better", "worse")
    assert (verdict(less, METRICS["decisions_per_s"]), verdict(more, METRICS["decisions_per_s"])) == (
        "worse",
        "better",
    )
    shares = paired([0.1, 0.2, 0.3], [0.5, 0.61, 0.7])
    assert verdict(shares, NEITHER) == "lower"


def test_unequal_numbers_of_seeds_are_refused() -> None:
    with pytest.raises(InputError, match=r"2 values cannot be paired with 3(.|\n)*same seeds"):
        paired([1, 2], [1, 2, 3])
    with pytest.raises(InputError, match="at least one"):
        paired([], [])


@settings(deadline=None)  # the machine may be busy
@example([(1.0, 2.0), (999999.0, 1000000.0)])  # alike by one's measure, and not by the other's
@given(st.lists(st.tuples(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6)), min_size=1, max_size=12))
def test_swapping_the_policies_inverts_the_answer(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = zip(*pairs, strict=True)
    one, other = paired(ours, theirs), paired(theirs, ours)
    assert one.ratio is not None and other.ratio is not None
    assert one.ratio.value * other.ratio.value == pytest.approx(1, rel=1e-5)
    assert one.difference.value == pytest.approx(-other.difference.value, rel=1e-6, abs=1e-6 * max(*ours, *theirs))
    assert one.p == pytest.approx(other.p)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([None, 0.01]) == pytest.approx([1.0, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
