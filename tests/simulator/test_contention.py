"""How sharing slows work down."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from symphony.simulator.contention import LOAD_UNIT, MAX_LOAD, Bottleneck, ContentionModel, Serial, to_load

MODELS = [Bottleneck(), Serial()]


def test_loads_are_rounded_to_the_nearest_unit_ties_to_even() -> None:
    fractions = jnp.asarray([0.0, 0.5, 1.0, 0.4 * LOAD_UNIT, 0.5 * LOAD_UNIT, 1.5 * LOAD_UNIT, 0.6 * LOAD_UNIT])
    assert to_load(fractions).tolist() == [0, 2**15, 2**16, 0, 0, 2, 1]
    assert to_load(fractions).dtype == jnp.int32


def test_absurd_demands_are_cut() -> None:
    assert to_load(jnp.asarray([100.0, jnp.inf])).tolist() == [2**20, 2**20]
    assert MAX_LOAD == 16.0


@pytest.mark.parametrize("model", MODELS)
def test_shares_fall_only_beyond_capacity(model: ContentionModel) -> None:
    share = model.share(jnp.asarray([0.0, 0.5, 1.0, 1.6, 4.0]))
    assert share.tolist() == pytest.approx([1.0, 1.0, 1.0, 0.625, 0.25])


def test_the_scarcest_row_sets_the_pace_or_waits_add_up() -> None:
    shares = jnp.asarray([[1.0, 0.5, 0.8], [0.25, 1.0, 1.0]])
    used = jnp.asarray([[True, True, True], [False, True, True]])
    assert Bottleneck().compose(shares, used).tolist() == pytest.approx([0.5, 1.0])
    assert Serial().compose(shares, used).tolist() == pytest.approx([0.4, 1.0])


@pytest.mark.parametrize("model", MODELS)
def test_who_uses_no_row_is_not_slowed(model: ContentionModel) -> None:
    assert float(model.compose(jnp.asarray([0.1, 0.2]), jnp.asarray([False, False]))) == 1.0


def test_a_model_of_ones_own_must_say_both() -> None:
    class Half(ContentionModel):
        def share(self, load):
            return load

    with pytest.raises(TypeError):
        Half()  # type: ignore[abstract]
