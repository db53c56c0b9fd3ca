"""Cutting runs into segments. The update itself: `test_train.py`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from symphony.learning.rollouts import Decisions
from symphony.learning.update import training_batch


def test_runs_are_cut_into_segments_also_where_no_other_actions_are_listed() -> None:
    """Two runs of four decisions each; a policy without preemption has features of no elements."""
    number = jnp.arange(8.0).reshape(2, 4)
    made = {"number": number, "others": jnp.zeros((2, 4, 0, 4))}
    count, of_a_run = jnp.asarray([4, 3]), jnp.zeros(2)
    cut = training_batch(
        Decisions(made, number, number, count, of_a_run, of_a_run, of_a_run), number, -number, unroll=2, group=1
    )
    assert cut.made["others"].shape == (4, 2, 0, 4)
    np.testing.assert_array_equal(cut.made["number"], [[0, 1], [2, 3], [4, 5], [6, 7]])
    np.testing.assert_array_equal(cut.target, -cut.advantage)
    np.testing.assert_array_equal(cut.kept, [[True, True], [True, True], [True, True], [True, False]])
    np.testing.assert_array_equal(cut.scenario, [0, 0, 1, 1])
