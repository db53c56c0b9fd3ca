"""Amounts that keep their small change."""

from __future__ import annotations

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.scheduling import clock
from symphony.scheduling.clock import Amount

plus = jax.jit(lambda amount, change: amount.plus(change))


def amount(total: float) -> Amount:
    whole = int(np.floor(total))
    return Amount(jnp.asarray(whole, jnp.int32), jnp.asarray(total - whole, jnp.float32))


def exact(a: Amount) -> Fraction:
    return int(a.whole) + Fraction(float(a.part))


def test_milliseconds_survive_thirty_years() -> None:
    """A float32 counter of seconds is 64 s coarse at 1e9 s."""
    later = amount(999_999_999.5)
    for _ in range(1000):
        later = plus(later, jnp.float32(1e-3))
    assert float(later.minus(amount(999_999_999.5))) == pytest.approx(1.0, rel=1e-5)


@given(st.floats(0, 1e6, width=32), st.lists(st.floats(-100, 100, width=32), max_size=20))
@settings(max_examples=200, deadline=None)
def test_plus_is_exact_to_rounding_and_keeps_the_part_below_one(start: float, changes: list[float]) -> None:
    now, true = amount(start), exact(amount(start))
    for change in changes:
        now, true = plus(now, jnp.float32(change)), true + Fraction(change)
        assert 0 <= float(now.part) < 1
    assert abs(exact(now) - true) <= (1 + len(changes)) * Fraction(1, 2**16)  # of changes up to 100


@pytest.mark.parametrize("change", [-1e-30, -1e-9, 1e-30, -1.0, 0.0, -0.0])
def test_tiny_and_negative_changes(change: float) -> None:
    for start in (0.0, 5.0):
        now = plus(amount(start), jnp.float32(change))
        assert 0 <= float(now.part) < 1
        assert float(now.total) == pytest.approx(start + change, abs=1e-7)


def test_minus_is_exact_however_large() -> None:
    early, late = amount(1e9), amount(1e9 + 0.125)
    assert float(late.minus(early)) == 0.125
    assert float(early.minus(late)) == -0.125


def test_of_and_where() -> None:
    made = Amount.of(jnp.asarray([2.75, 0.0, -0.25]))
    assert made.whole.tolist() == [2, 0, -1] and made.part.tolist() == [0.75, 0.0, 0.75]
    other = Amount.of(jnp.asarray([9.5, 9.5, 9.5]))
    chosen = clock.where(jnp.asarray([True, False, True]), made, other)
    assert chosen.total.tolist() == [2.75, 9.5, -0.25]
