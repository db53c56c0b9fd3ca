"""The ensemble: it fits, doubts where it has seen nothing, and its doubt is calibrated."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from symphony.training_jobs import performance_model as pm

FEATURES = 3
KEY = jax.random.key(0)


def world(rng: np.random.Generator, families: int, each: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Families lie about points of their own. What holds for all is linear; every family has an error of its own."""
    family = np.repeat(np.arange(families), each)
    x = rng.normal(0, 1, (families, FEATURES))[family] + rng.normal(0, 0.2, (len(family), FEATURES))
    own = rng.normal(0, 0.3, families)[family]
    return x, 0.8 * x[:, 0] + own + rng.normal(0, 0.05, len(family)), family


def fit(x: np.ndarray, y: np.ndarray, age_s: np.ndarray, family: np.ndarray, half_life_s: float = 1e9) -> pm.Ensemble:
    """With few samples, which is what the time depends on."""
    return pm.fit(KEY, pm.untrained(KEY, FEATURES), pm.fit_data(x, y, age_s, family, half_life_s, capacity=80))


@pytest.fixture(scope="module")
def fitted() -> tuple[pm.Ensemble, np.ndarray, np.ndarray]:
    x, y, family = world(np.random.default_rng(1), 20, 4)
    return fit(x, y, np.zeros(len(y)), family), x, y


def test_before_any_sample_guesses_stand_with_a_wide_band() -> None:
    mean, std = pm.untrained(KEY, FEATURES).predict(np.ones((4, FEATURES)))
    assert (np.asarray(mean) == 0).all() and np.allclose(std, pm.UNSEEN_STD)


def test_it_learns_what_all_families_have_in_common(fitted: tuple[pm.Ensemble, np.ndarray, np.ndarray]) -> None:
    x, y, _ = world(np.random.default_rng(2), 40, 5)
    mean, _ = map(np.asarray, fitted[0].predict(x))
    assert np.mean((y - mean) ** 2) < 0.4 * np.mean(y**2)


def test_intervals_hold_what_they_promise_of_families_never_seen() -> None:
    held = []
    for seed in range(5, 8):
        x, y, family = world(np.random.default_rng(seed), 20, 4)
        ensemble = fit(x, y, np.zeros(len(y)), family)
        x, y, _ = world(np.random.default_rng(seed + 100), 60, 5)
        mean, std = map(np.asarray, ensemble.predict(x))
        held.append(np.mean(np.abs(y - mean) < pm.Z_90 * std))
    assert 0.85 <= np.mean(held) <= 0.97, held


def test_members_disagree_most_where_nothing_was_seen(fitted: tuple[pm.Ensemble, np.ndarray, np.ndarray]) -> None:
    ensemble, x, _ = fitted
    near, _ = ensemble.members(x)
    corners = np.stack(np.meshgrid(*zip(x.min(axis=0), x.max(axis=0), strict=True)), axis=-1).reshape(-1, FEATURES)
    far, _ = ensemble.members(corners)
    assert np.asarray(near).std(axis=0).mean() < 0.7 * np.asarray(far).std(axis=0).mean()


def test_old_samples_give_way_to_new_ones_that_contradict_them() -> None:
    """The same inputs were slow a hundred half-lives ago, and are fast now."""
    x = np.random.default_rng(0).normal(0, 1, (80, FEATURES))
    y, age = np.repeat([1.0, -1.0], 40), np.repeat([100.0, 0.0], 40)
    mean, _ = fit(x, y, age, np.arange(80) % 8, half_life_s=1.0).predict(x)
    assert np.asarray(mean).mean() < -0.8


def test_fits_of_any_number_of_samples_share_a_program() -> None:
    x, y, family = world(np.random.default_rng(4), 5, 3)
    before = pm.fit._cached._cache_size()
    fit(x[:7], y[:7], np.zeros(7), family[:7])
    assert pm.fit._cached._cache_size() == before
