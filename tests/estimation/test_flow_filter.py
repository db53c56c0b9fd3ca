"""The filter over flows, against exact inference where that can be had."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import symphony as sy
from symphony.estimation import flow_filter
from symphony.estimation.flow_filter import FlowBelief, FlowParameters, Readings, RunTimes
from symphony.problem import native_code
from symphony.problem.arrays import topology_arrays

P = FlowParameters()
ONE = np.ones((1, 1))  # one row, one flow
UNSEEN = 1 / 4 - 1 / 24  # a counter for one slice in six


def reading(rate: np.ndarray, own: float = 0.0, unseen: float = UNSEEN, read: np.ndarray | bool = True) -> Readings:
    rate = np.asarray(rate, float)
    return Readings(rate, np.full_like(rate, own), np.full_like(rate, unseen), np.broadcast_to(read, rate.shape))


def play(event: np.ndarray, rates: np.ndarray, p: FlowParameters = P) -> list[FlowBelief]:
    """The beliefs after each window of readings [windows, ..., events]."""
    belief = flow_filter.start(np, event.shape[-1], p, rates.shape[1:-1])
    return [belief := flow_filter.update(np, event, p, belief, reading(rate)) for rate in rates]


def drawn(rng: np.random.Generator, windows: int, runs: int, event: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """True levels [windows, runs, flows] and readings [windows, runs, events], drawn from the model."""
    shape = runs, event.shape[-1]

    def anew() -> np.ndarray:
        level = stats.truncnorm.rvs(-P.on_mean / P.on_std, 9, P.on_mean, P.on_std, shape, random_state=rng)
        return np.where(rng.random(shape) < P.on_share, level, 0.0)

    level, levels = anew(), []
    for _ in range(windows):
        level = np.where(rng.random(shape) < P.changes, anew(), level)
        levels.append(level)
    truth = np.stack(levels)
    loads = truth @ event.T
    error = rng.standard_t(P.freedom, loads.shape) * scale(loads)
    return truth, np.maximum(loads + error, 0.0)


def scale(loads: np.ndarray) -> np.ndarray:
    """Of Student's t, with the variance of a reading."""
    return np.sqrt((P.burst**2 * loads**2 * UNSEEN + P.floor**2) * (P.freedom - 2) / P.freedom)


def exact(rates: np.ndarray) -> np.ndarray:
    """Posterior mean of one flow [windows, runs], by a sum over all levels."""
    grid = np.linspace(0.0, 3.5, 351)
    prior = P.on_share * stats.norm.pdf(grid, P.on_mean, P.on_std)
    prior *= P.on_share / prior.sum()
    prior[0] += 1 - P.on_share
    weight, means = np.tile(prior, (rates.shape[1], 1)), []
    for rate in rates:
        weight = (1 - P.changes) * weight + P.changes * prior
        weight *= stats.t.pdf(rate[:, None], P.freedom, grid, scale(grid))
        weight /= weight.sum(1, keepdims=True)
        means.append(weight @ grid)
    return np.array(means)


def test_one_row_is_close_to_exact_inference_and_its_bands_hold() -> None:
    truth, rates = drawn(np.random.default_rng(0), 120, 60, ONE)
    beliefs = play(ONE, rates)
    mean = np.stack([belief.mean[..., 0] for belief in beliefs])
    std = np.sqrt(np.stack([belief.cov[..., 0, 0] for belief in beliefs]))
    ideal = exact(rates[..., 0])
    late = slice(10, None)

    def error(estimate: np.ndarray) -> float:
        return float(np.sqrt(((estimate - truth[..., 0])[late] ** 2).mean()))

    assert error(mean) < 1.3 * error(ideal)
    assert error(mean) < 0.6 * error(rates[..., 0])
    busy = truth[..., 0][late] > 0.05
    inside = np.abs(mean - truth[..., 0])[late] <= 1.96 * std[late]
    assert 0.9 < inside[busy].mean() < 0.98


def test_a_change_is_compared_by_its_likelihood() -> None:
    """The closed form of all explanations, against Gaussian densities of the readings."""
    rng = np.random.default_rng(1)
    event = np.abs(rng.normal(size=(4, 3)))
    root = rng.normal(size=(3, 3))
    mean, cov, noise = np.abs(rng.normal(size=3)), root @ root.T, rng.uniform(0.1, 0.5, 4)
    others = event @ mean + 3 * rng.normal(size=4)
    evidence = flow_filter._Evidence(event, others, noise, np.zeros(4))
    found = flow_filter._explanations(np, P, FlowBelief(mean, cov), evidence)
    density = np.array(
        [
            stats.multivariate_normal.logpdf(others, event @ m, event @ c @ event.T + np.diag(noise))
            for m, c in zip(found.mean, found.cov, strict=True)
        ]
    )
    changed = (found.mean != mean).any(-1)
    on = changed & (found.mean == P.on_mean).any(-1)
    share = np.where(changed, P.changes / (1 - P.changes) * np.where(on, P.on_share, 1 - P.on_share), 1.0)
    told = found.log_prior > flow_filter.IMPOSSIBLE  # else no change is as probable
    np.testing.assert_allclose(found.log_prior[told], np.log(share)[told], rtol=1e-9)
    np.testing.assert_allclose(found.log_prior_fit[told], (np.log(share) + density - density[0])[told], rtol=1e-6)
    assert changed.tolist() == [False, True, True, True] and told.sum() >= 3


def test_a_row_without_a_counter_is_inferred_from_one_that_shares_a_flow() -> None:
    """The first row is crossed by a flow that also crosses the second, which is never read."""
    event = np.array([[1.0], [0.5]])
    belief = flow_filter.start(np, 1, P)
    before = flow_filter.row_loads(np, event, belief)
    for _ in range(8):
        seen = reading(np.array([1.2, 9.9]), read=np.array([True, False]))
        belief = flow_filter.update(np, event, P, belief, seen)
    mean, std = flow_filter.row_loads(np, event, belief)
    assert mean[1] == pytest.approx(0.6, rel=0.1) and std[1] < 0.5 * before[1][1]


def test_a_plain_split_is_impossible() -> None:
    """Two rows are idle and a third is busy: only the flow that crosses the third alone explains that."""
    event = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    belief = play(event, np.tile([0.0, 0.0, 1.0], (6, 1)))[-1]
    assert belief.mean == pytest.approx([0.0, 0.0, 1.0], abs=0.1)


def test_what_is_not_read_becomes_typical_again() -> None:
    belief = play(ONE, np.full((10, 1), 2.0))[-1]
    mean, variance = flow_filter.fresh(P)
    assert belief.mean[0] == pytest.approx(2.0, rel=0.1)
    for windows in (1, 20, 1000):
        later = flow_filter.forget(np, P, belief, np.full(1, float(windows)))
        assert mean - 1e-9 <= later.mean[0] < belief.mean[0] and later.cov[0, 0] > belief.cov[0, 0]
    assert later.mean[0] == pytest.approx(mean) and later.cov[0, 0] == pytest.approx(variance)
    blind = belief
    for _ in range(1000):
        blind = flow_filter.update(np, ONE, P, blind, reading(np.zeros(1), read=False))
    assert blind.mean[0] == pytest.approx(mean, abs=1e-6)


def test_our_own_load_is_not_taken_for_others() -> None:
    belief = flow_filter.start(np, 1, P)
    for own in (0.0, 1.5) * 10:
        belief = flow_filter.update(np, ONE, P, belief, reading(np.array([own + 0.8]), own=own))
    assert belief.mean[0] == pytest.approx(0.8, abs=0.1)


def runs(slow: float, own: float = 1.0) -> RunTimes:
    length, row, uses = np.ones(1), np.zeros((1, 1), int), np.ones((1, 1), bool)
    return RunTimes(np.array([slow]), np.zeros(1), length, np.array([[own]]), row, uses)


def test_a_slow_run_is_evidence_where_nothing_is_counted() -> None:
    nothing = reading(np.zeros(1), read=False)
    busy = idle = flow_filter.start(np, 1, P)
    for _ in range(6):
        busy = flow_filter.update(np, ONE, P, busy, nothing, runs(2.0))
        idle = flow_filter.update(np, ONE, P, idle, nothing, runs(1.0))
    typical = flow_filter.fresh(P)[0]
    assert busy.mean[0] == pytest.approx(1.0, abs=0.2) and idle.mean[0] < 0.5 * typical
    none = flow_filter.update(np, ONE, P, busy, nothing, runs(0.0))
    assert none.mean[0] < busy.mean[0]  # no run, no evidence: it may have changed


@pytest.mark.parametrize("rate", [np.nan, np.inf, -np.inf, -5.0, 1e12])
def test_bad_readings_widen_and_never_break_the_belief(rate: float) -> None:
    event = np.array([[1.0, 0.5], [0.0, 1.0]])
    belief = play(event, np.tile([1.0, 0.2], (10, 1)))[-1]
    for _ in range(3):
        after = flow_filter.update(np, event, P, belief, reading(np.array([rate, 0.2])))
        assert np.isfinite(after.mean).all() and np.isfinite(after.cov).all() and (after.mean >= 0).all()
        assert (np.linalg.eigvalsh(after.cov) > -1e-9).all()
        belief = after
    if not np.isfinite(rate):
        assert belief.mean[0] == pytest.approx(0.9, abs=0.3)


def test_numpy_and_jax_agree_on_a_whole_cluster() -> None:
    with jax.enable_x64(True):
        agree_on_a_whole_cluster()


def agree_on_a_whole_cluster() -> None:
    event = topology_arrays(sy.topology("paper")).flow_load
    rng = np.random.default_rng(2)
    plain = flow_filter.start(np, event.shape[-1], P, event.shape[:1])
    compiled = FlowBelief(*map(jnp.asarray, plain))
    update = jax.jit(partial(flow_filter.update, jnp, jnp.asarray(event), P))
    for _ in range(4):
        rate = np.where(rng.random(event.shape[:2]) < 0.5, rng.uniform(0, 2, event.shape[:2]), 0.0)
        seen = Readings(rate, 0.2 * rate, np.full_like(rate, UNSEEN), rng.random(rate.shape) < 0.7)
        plain = flow_filter.update(np, event, P, plain, seen)
        compiled = update(compiled, Readings(*map(jnp.asarray, seen)))
        np.testing.assert_allclose(compiled.mean, plain.mean, atol=1e-9)
        np.testing.assert_allclose(compiled.cov, plain.cov, atol=1e-9)


@pytest.fixture(params=["compiled", "NumPy"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both implementations."""
    if request.param == "NumPy":
        monkeypatch.setattr(native_code, "library", lambda: None)
    elif native_code.library() is None:
        pytest.skip("flow_filter.c was not compiled")


@pytest.mark.usefixtures("either")
def test_what_is_not_a_number_is_no_reading() -> None:
    event = np.array([[1.0, 0.5], [0.0, 1.0]])
    belief, nothing = play(event, np.tile([0.5, 0.2], (5, 1)))[-1], reading(np.zeros(2), read=False)
    expected = flow_filter.update(np, event, P, belief, nothing)
    row, uses = np.array([[0, 1]]), np.ones((1, 2), bool)
    for slow, own in [(2.0, math.nan), (2.0, math.inf), (2.0, -math.inf), (math.nan, 0.5), (math.inf, 0.5), (1e9, 0.5)]:
        bad = RunTimes(np.array([slow]), np.zeros(1), np.ones(1), np.full((1, 2), own), row, uses)
        for runs in (bad, bad._replace(times=np.ones((1, 2)), freedom=np.full(1, 30.0))):
            found = flow_filter.update(np, event, P, belief, nothing, runs)
            np.testing.assert_array_equal(found.mean, expected.mean)
            np.testing.assert_array_equal(found.cov, expected.cov)
    for own in (math.nan, math.inf, -math.inf):
        found = flow_filter.update(np, event, P, belief, reading(np.array([0.5, 0.2]), own=own))
        np.testing.assert_allclose(found.mean, expected.mean, atol=1e-12)


@pytest.mark.usefixtures("either")
def test_a_row_that_a_run_does_not_use_is_never_its_bottleneck() -> None:
    """Nothing is known of any load; the route's first row belongs to another machine."""
    event = np.eye(2)
    belief, nothing = FlowBelief(np.zeros(2), np.eye(2)), reading(np.zeros(2), read=False)
    uses, row = np.array([[False, True]]), np.array([[-1, 0]])
    runs = RunTimes(np.full(1, 2.0), np.zeros(1), np.ones(1), np.zeros((1, 2)), row, uses)
    found = flow_filter.update(np, event, P, belief, nothing, runs)
    assert found.mean[0] > 1.0 and found.mean[1] < 0.1


@pytest.mark.usefixtures("either")
def test_one_belief_serves_several_machines() -> None:
    event = np.random.default_rng(0).random((3, 4, 5))
    one, rate = flow_filter.start(np, 5, P), np.full((3, 4), 0.7)
    every = flow_filter.start(np, 5, P, (3,))
    found, expected = (flow_filter.update(np, event, P, before, reading(rate)) for before in (one, every))
    np.testing.assert_array_equal(found.mean, expected.mean)
    np.testing.assert_array_equal(found.cov, expected.cov)


@pytest.mark.skipif(native_code.library() is None, reason="flow_filter.c was not compiled")
@pytest.mark.parametrize(
    ("places", "events", "flows", "devices", "timed"),
    [((), 1, 1, 0, False), ((), 9, 12, 0, False), ((3,), 8, 10, 4, False), ((2, 2), 5, 7, 3, True)],
)
def test_the_compiled_filter_is_that_in_numpy(
    places: tuple[int, ...], events: int, flows: int, devices: int, timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readings of all kinds, bad ones too; parameters of all flows, or one for each; windows without readings."""
    rng = np.random.default_rng(flows)
    event = (rng.random((*places, events, flows)) < 0.4) * rng.random((*places, events, flows))
    p = P._replace(changes=rng.uniform(0.01, 0.1, flows), lowest=np.where(np.arange(flows) < 3, 0.0, -np.inf))
    belief = flow_filter.start(np, flows, P, places)
    for window in range(25):
        seen = Readings(*(rng.random((*places, events)) for _ in range(3)), rng.random((*places, events)) < 0.6)
        seen.rate[..., 0] += rng.choice([0.0, 3.0, np.nan, -9.0, np.inf])
        of_runs = None
        if devices:
            shape = *places, devices
            slow = np.where(rng.random(shape) < 0.6, rng.uniform(0.1, 4.0, shape), 0.0)
            row, uses = rng.integers(0, events, (*shape, 3)), rng.random((*shape, 3)) < 0.7
            of_runs = RunTimes(slow, 0.1 * slow, 5 * slow, rng.random((*shape, 3)), row, uses)
        if timed and of_runs is not None:
            of_runs = of_runs._replace(times=rng.random((*shape, flows)), freedom=np.full(shape, 30.0))
        gap, parameters = (rng.choice([0.0, 1.0, 40.0], (*places, flows)), p) if window % 2 else (float(window % 3), P)
        counts = 2 * event if window % 4 == 0 else None
        both = []
        for library in (native_code.library, lambda: None):
            with monkeypatch.context() as patched:
                patched.setattr(native_code, "library", library)
                both.append(flow_filter.update(np, event, parameters, belief, seen, of_runs, gap, counts))
        belief = both[0]
        np.testing.assert_allclose(belief.mean, both[1].mean, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(belief.cov, both[1].cov, rtol=1e-7, atol=1e-9)


@pytest.mark.usefixtures("either")
def test_after_thousands_of_windows_a_covariance_is_still_one() -> None:
    """What two entries that should be equal differ by must not grow: without care it is 10% after 270 windows."""
    event = topology_arrays(sy.topology("machine")).flow_load[0]
    rng, rows = np.random.default_rng(0), len(event)
    p = P._replace(changes=0.01, on_share=0.05, off_std=0.03)
    belief, load = flow_filter.start(np, event.shape[-1], p, ()), np.zeros(rows)
    for _ in range(2000):
        load = np.where(rng.random(rows) < 0.05, rng.uniform(0, 1.5, rows), load)
        rate = load * rng.uniform(0.9, 1.1, rows)
        seen = Readings(rate, np.zeros(rows), np.full(rows, 0.01), np.ones(rows, bool))
        belief = flow_filter.update(np, event, p, belief, seen)
    np.testing.assert_allclose(belief.cov, belief.cov.T, rtol=0, atol=1e-12)
    assert np.linalg.eigvalsh(belief.cov)[0] > 0
