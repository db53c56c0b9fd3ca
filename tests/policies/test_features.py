"""Features of the learned policy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from symphony.policies import features
from symphony.scheduling import estimate
from symphony.scheduling.policy import place
from tests.scheduling.by_hand import CPU0, dot, shared_books, work

trained_parts, estimate_parts = jax.jit(features.trained_parts), jax.jit(estimate.estimate_parts)


def test_the_weights_see_the_terms_that_they_were_trained_with() -> None:
    """2 s run and 2 s wait for memory on a CPU with two slots; the channels of both are loaded by 1.5 ± 0.5."""
    books = shared_books(work(*[dot("cpu only")] * 3))
    for gang in range(2):
        assert books.decide(place(gang * books.tasks, CPU0))
    books.start(0)
    observation, gang = books.observe([0.6]), jnp.asarray(2 * books.tasks)
    background = jnp.zeros(books.t.capacity.shape[0]).at[0].set(0.9)
    trained = trained_parts(observation, gang, background)
    assert trained.queue[CPU0] == observation.queue_s[CPU0] == 2.0
    assert trained.slow[CPU0] == pytest.approx(0.6 + 0.6 + 0.9)
    assert not trained.std.any()
    now = estimate_parts(observation, gang, background, 0.5 * (background > 0))
    assert now.queue[CPU0] > 2.0 * 1.5 and now.slow[CPU0] > 2.1  # expected, so more than at the mean
    chosen = trained_parts(observation, gang, background, jnp.array([CPU0]))
    assert chosen.finish.tolist() == trained.finish[:1].tolist()
