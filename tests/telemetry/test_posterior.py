"""The filter and the smoother: by hand, against sampling, in both forms, and on what cannot be."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.telemetry import posterior
from symphony.telemetry.bayes_net import build
from symphony.telemetry.identities import Identity
from symphony.telemetry.posterior import Belief, Parameters, Window, Wiring
from symphony.telemetry.samples import Column

SUM = Identity("all = a + b", (("all", 1.0), ("a", -1.0), ("b", -1.0)), tolerance=1e-3)


def wiring(columns: list[Column], identities: tuple[Identity, ...] = (), anchors: tuple[str, ...] = ()) -> Wiring:
    return build(dict.fromkeys(column.event for column in columns), identities).wiring(columns, anchors)


def window(rate: list[float], slices: list[float], total: float = 24.0) -> Window:
    return Window(np.array(rate), np.array(slices), np.full(len(rate), total), np.array(1.0 / total))


def after(wires: Wiring, *windows: Window, parameters: Parameters | None = None) -> Belief:
    parameters = parameters or Parameters()
    belief = posterior.start(np, wires, parameters)
    for one in windows:
        belief = posterior.update(np, wires, parameters, belief, one)
    return belief


def test_what_is_always_counted_is_known() -> None:
    wires = wiring([Column("a"), Column("b")])
    belief = after(wires, window([1e6, 3e3], [24, 24]))
    np.testing.assert_allclose(belief.mean, [1e6, 3e3], rtol=1e-3)
    assert (np.sqrt(np.diagonal(belief.cov)) < 0.01 * belief.mean).all()


def test_what_is_never_counted_is_unknown() -> None:
    wires = wiring([Column("a", 0), Column("b", 1)])
    belief = after(wires, window([1e6, 5e5], [12, 12]), window([1e6, 0.0], [24, 0]), window([1e6, 0.0], [24, 0]))
    assert belief.mean[1] == pytest.approx(5e5, rel=0.01)
    assert np.sqrt(belief.cov[1, 1]) > belief.mean[1]  # it may have moved since


def test_fewer_slices_are_less_certain() -> None:
    few, many = (after(wiring([Column("a")]), window([1e6], [slices])) for slices in (3.0, 12.0))
    assert few.cov[0, 0] > 3 * many.cov[0, 0]


def test_repeated_readings_tell_the_error() -> None:
    """Two groups count the same event: if they agree window after window, one can trust them."""
    wires = wiring([Column("a", 0), Column("a", 1)])
    rng = np.random.default_rng(0)
    alike = [window(list(1e6 * (1 + 0.001 * rng.standard_normal(2))), [4, 4]) for _ in range(60)]
    unlike = [window(list(1e6 * (1 + 0.3 * rng.standard_normal(2))), [4, 4]) for _ in range(60)]
    sure, unsure = after(wires, *alike), after(wires, *unlike)
    assert np.sqrt(sure.cov[0, 0]) < 0.02e6
    assert np.sqrt(unsure.cov[0, 0]) > 0.1e6


def test_an_identity_makes_readings_agree() -> None:
    """all was counted all the time, its parts some of it: they are scaled to fit, and less uncertain for it."""
    columns = [Column("all", 0), Column("a", 1), Column("b", 2)]
    readings = window([100.0, 60.0, 60.0], [24, 6, 6])
    free = after(wiring(columns), readings)
    tied = after(wiring(columns, (SUM,)), readings)
    np.testing.assert_allclose(free.mean, [100, 60, 60], rtol=0.01)
    np.testing.assert_allclose(tied.mean, [50, 50], rtol=0.05)
    assert tied.cov[0, 0] < 0.8 * free.cov[1, 1]


def test_a_soft_identity_only_pulls() -> None:
    columns = [Column("all", 0), Column("a", 1), Column("b", 2)]
    soft = Identity(SUM.name, SUM.terms, tolerance=0.1)
    found = after(wiring(columns, (soft,)), window([100.0, 60.0, 60.0], [24, 6, 6]))
    assert 100 < found.mean[1] + found.mean[2] < 119


def test_an_anchor_tells_what_a_groups_slices_were_like() -> None:
    """Group 1 had its turns while twice as many instructions ran as on average: so did its other event."""
    columns = [Column("instructions", 0), Column("x", 0), Column("instructions", 1), Column("a", 1)]
    wires = wiring(columns, anchors=("instructions",))
    found = after(wires, window([5e8, 100.0, 2e9, 700.0], [16, 16, 8, 8]))
    whole = (5e8 * 16 + 2e9 * 8) / 24
    assert found.mean[0] == pytest.approx(whole, rel=1e-3)
    assert found.mean[2] == pytest.approx(700 * whole / 2e9, rel=0.02)


def test_what_does_not_follow_the_anchor_is_learned() -> None:
    columns = [Column(event, group) for group in (0, 1, 2, 3) for event in ("instructions", "ab"[group % 2])]
    wires = wiring(columns, anchors=("instructions",))
    rng = np.random.default_rng(1)
    windows = []
    for _ in range(80):
        speed = rng.lognormal(0, 0.7, 4)
        rates = np.stack([1e9 * speed, [1e6, 1e6 * speed[1], 1e6, 1e6 * speed[3]]], axis=1)  # a steady, b in step
        windows.append(window(list(rates.ravel()), [6] * 8))
    belief = after(wires, *windows)
    follows = posterior._follows(np, Parameters(), belief)[:, 0]
    assert abs(follows[1]) < 0.15 and follows[2] == pytest.approx(1, abs=0.15)


def test_a_jump_is_followed_at_once_and_a_glitch_is_doubted() -> None:
    wires = wiring([Column("a", 0), Column("a", 1)])
    calm = [window([1e6 + i, 1e6 - i], [4, 4]) for i in range(30)]
    jumped = after(wires, *calm, window([5e6, 5.01e6], [4, 4]))
    assert jumped.mean[0] == pytest.approx(5e6, rel=0.02)
    odd = after(wires, *calm, window([1e6, 2e7], [4, 4]))
    assert np.sqrt(odd.cov[0, 0]) > 20 * np.sqrt(jumped.cov[0, 0])


def test_low_readings_are_no_surer_than_high_ones() -> None:
    """An event that comes in one slice of four, at random: what a window missed of it is as likely as what it saw."""
    wires, rng = wiring([Column("a", 0), Column("a", 1)]), np.random.default_rng(0)
    bias, zero = [], []
    for _ in range(4):
        slices = 1e6 * (rng.random((150, 24)) < 0.25)
        belief, beliefs = posterior.start(np, wires, Parameters()), []
        for one in slices:
            readings = [one[0::8].mean(), one[4::8].mean()]
            belief = posterior.update(np, wires, Parameters(), belief, window(readings, [3, 3]))
            beliefs.append(belief)
            if not any(readings):
                zero.append((float(np.sqrt(belief.cov[0, 0])), one.mean()))
        bias.append(np.mean([b.mean[0] for b in posterior.smooth(np, beliefs)]) / slices.mean() - 1)
    assert abs(np.mean(bias)) < 0.05
    claimed, missed = np.array(zero[5:]).T
    assert np.median(claimed) > 0.15 * missed.mean()


def test_windows_without_readings_leave_those_before_as_they_were() -> None:
    """Nothing follows them that could tell more."""
    wires = wiring([Column("a")])
    belief = after(wires, *[window([1e6 * (1 + 0.1 * (-1) ** i)], [6]) for i in range(8)], window([3e6], [6]))
    beliefs = [belief]
    for _ in range(3):
        beliefs.append(posterior.predict(np, beliefs[-1], np.array(1.0)))
    for smooth, filtered in zip(posterior.smooth(np, beliefs), beliefs, strict=True):
        np.testing.assert_allclose(smooth.mean, filtered.mean, rtol=1e-6)
        np.testing.assert_allclose(smooth.cov, filtered.cov, rtol=1e-6)


def test_smoothing_uses_what_came_later() -> None:
    wires = wiring([Column("a", 0), Column("a", 1)])
    parameters = Parameters(innovation=0.05, turn=1e6)
    rng = np.random.default_rng(0)
    belief, beliefs = posterior.start(np, wires, parameters), []
    for _ in range(40):
        belief = posterior.update(
            np, wires, parameters, belief, window(list(100 + 30 * rng.standard_normal(2)), [2, 2])
        )
        beliefs.append(belief)
    smooth = posterior.smooth(np, beliefs)
    np.testing.assert_array_equal(smooth[-1].mean, beliefs[-1].mean)
    middle = slice(10, 30)
    filtered, smoothed = (np.array([b.mean[0] for b in some[middle]]) for some in (beliefs, smooth))
    assert np.abs(smoothed - 100).mean() < 0.8 * np.abs(filtered - 100).mean()
    assert all(b.cov[0, 0] < a.cov[0, 0] for a, b in zip(beliefs[middle], smooth[middle], strict=True))


def test_later_is_less_certain() -> None:
    belief = after(wiring([Column("a")]), *[window([1e6], [12])] * 5)
    later = posterior.predict(np, belief, np.array(3.0))
    assert later.mean == belief.mean and later.cov[0, 0] > belief.cov[0, 0]


# --- Both forms --------------------------------------------------------------------------------------------


def scene(seed: int, places: tuple[int, ...] = ()) -> tuple[Wiring, list[Window]]:
    """A net with everything in it, and windows for some places."""
    columns = [Column("i", g) for g in range(4)] + [Column(e, g) for g, e in enumerate(("a", "b", "a", "b"))]
    columns += [Column("all", 0), Column("c", 1), Column("d", 2)]
    loose = Identity("c = d", (("c", 1.0), ("d", -1.0)), tolerance=0.2)
    wires = wiring(columns, (SUM, loose), anchors=("i",))
    rng = np.random.default_rng(seed)
    windows = []
    for _ in range(6):
        shape = (*places, len(columns))
        slices = rng.integers(0, 7, shape).astype(float)
        windows.append(Window(rng.lognormal(5, 2, shape), slices, np.full(shape, 24.0), np.full(places, 1 / 24)))
    return wires, windows


@pytest.mark.parametrize("seed", range(3))
def test_numpy_and_jax_agree(seed: int) -> None:
    wires, windows = scene(seed)
    plain = posterior.start(np, wires, Parameters())
    history = []
    for one in windows:
        plain = posterior.update(np, wires, Parameters(), plain, one)
        history.append(plain)
    with jax.enable_x64(True):
        there = jax.tree.map(jnp.asarray, wires)

        def run(windows: Window) -> tuple[Belief, Belief]:
            def step(belief: Belief, one: Window) -> tuple[Belief, Belief]:
                belief = posterior.update(jnp, there, Parameters(), belief, one)
                return belief, belief

            return jax.lax.scan(step, posterior.start(jnp, there, Parameters()), windows)

        last, every = jax.jit(run)(jax.tree.map(lambda *parts: jnp.stack(parts), *windows))
        smooth = posterior.smooth(jnp, [jax.tree.map(lambda x, k=k: x[k], every) for k in range(len(windows))])
    for name, ours, theirs in zip(Belief._fields, plain, last, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-6, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(smooth[0].mean, posterior.smooth(np, history)[0].mean, rtol=1e-6)


def test_places_side_by_side_are_as_if_alone() -> None:
    wires, windows = scene(0, (3,))
    together = posterior.start(np, wires, Parameters(), (3,))
    for one in windows:
        together = posterior.update(np, wires, Parameters(), together, one)
    for place in range(3):
        alone = after(wires, *(Window(*(part[place] for part in one)) for one in windows))
        np.testing.assert_allclose(together.mean[place], alone.mean, rtol=1e-9)
        np.testing.assert_allclose(together.cov[place], alone.cov, rtol=1e-6, atol=1e-12 * np.abs(alone.cov).max())


def test_gradients_reach_every_parameter() -> None:
    """What is believed in the end depends on all that can be learned, and says how."""
    wires, windows = scene(3)
    with jax.enable_x64(True):
        there = jax.tree.map(jnp.asarray, wires)
        stacked = jax.tree.map(lambda *each: jnp.stack(each), *windows)

        def believed(parameters: Parameters) -> Any:
            def step(belief: Belief, one: Window) -> tuple[Belief, None]:
                return posterior.update(jnp, there, parameters, belief, one), None

            belief, _ = jax.lax.scan(step, posterior.start(jnp, there, parameters), stacked)
            return belief.mean.sum() + jnp.sqrt(jnp.diagonal(belief.cov)).sum()

        start = jax.tree.map(jnp.asarray, Parameters())
        slopes = jax.jit(jax.grad(believed))(start)
        for name, slope in zip(Parameters._fields, slopes, strict=True):
            assert np.isfinite(slope) and slope != 0, name


# --- Against sampling --------------------------------------------------------------------------------------


def test_agrees_with_nuts() -> None:
    """The same model, sampled: three events of which one is the sum of the others, read for part of a window."""
    numpyro = pytest.importorskip("numpyro")
    from numpyro import distributions as dist
    from numpyro.infer import MCMC, NUTS

    columns = [Column("all", 0), Column("a", 1), Column("b", 2)]
    wires = wiring(columns, (SUM,))
    parameters = Parameters(spread=0.3, innovation=0.2, turn=1e6, freedom=4.0)
    slices, total = np.array([6.0, 4.0, 8.0]), 24.0
    before = after(wires, window([100, 55, 45], [20, 20, 20]), parameters=parameters)
    found = posterior.update(np, wires, parameters, before, window([112.0, 48.0, 50.0], list(slices), total))
    y = np.array([112.0, 48.0, 50.0])

    step = (before.innovation * found.level) ** 2
    prior = before.cov + np.diag(step)
    unseen = 1 / slices - 1 / total

    def model() -> None:
        x = numpyro.sample("x", dist.MultivariateNormal(jnp.asarray(before.mean), jnp.asarray(prior)))
        rates = jnp.asarray(wires.loading) @ x
        near = 0.5 * (rates + y)
        scale = jnp.sqrt(before.spread**2 * unseen + parameters.read_error**2) * near
        numpyro.sample("y", dist.StudentT(slices - 1 + parameters.freedom, rates, scale), obs=jnp.asarray(y))

    mcmc = MCMC(NUTS(model), num_warmup=500, num_samples=4000, progress_bar=False)
    mcmc.run(jax.random.key(0))
    draws = np.asarray(mcmc.get_samples()["x"])
    deviation = draws.std(axis=0)
    np.testing.assert_array_less(np.abs(found.mean - draws.mean(axis=0)) / deviation, 0.25)
    np.testing.assert_allclose(np.sqrt(np.diagonal(found.cov)), deviation, rtol=0.2)
    assert np.sign(found.cov[0, 1]) == np.sign(np.cov(draws.T)[0, 1])


# --- What cannot be ----------------------------------------------------------------------------------------


numbers = st.one_of(st.sampled_from([0.0, 1.0, 1e-300, 1e18, 1e300]), st.floats(0, 1e15))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.tuples(*[numbers] * 11), st.tuples(*[st.floats(0, 24)] * 11)), min_size=1, max_size=4))
def test_nothing_makes_it_crash_or_lie(windows: list[tuple[tuple[float, ...], tuple[float, ...]]]) -> None:
    """Whatever counts come, beliefs are finite, not negative, and never certain of what was not counted."""
    wires, _ = scene(0)
    belief = posterior.start(np, wires, Parameters())
    for rate, slices in windows:
        readings = Window(np.clip(rate, 0, 1e18), np.array(slices), np.full(11, 24.0), np.array(1 / 24))
        belief = posterior.update(np, wires, Parameters(), belief, readings)
        assert np.isfinite(belief.mean).all() and (belief.mean >= 0).all()
        assert np.isfinite(belief.cov).all() and (np.diagonal(belief.cov) >= 0).all()
