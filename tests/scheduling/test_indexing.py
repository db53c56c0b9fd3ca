"""Single elements of arrays: what is fast for short ones and what is fast for long ones do the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.scheduling import indexing
from symphony.scheduling.indexing import NO_INDEX, add_all, first, first_min, put, put_all, take

SHORT, LONG = 7, 9000  # on either side of every bound that is a multiple of DENSE


@pytest.fixture(params=[SHORT, LONG])
def size(request: pytest.FixtureRequest) -> int:
    assert indexing.MAX_DENSE_UPDATES < LONG
    return request.param


def test_take_clips(size: int) -> None:
    x = jnp.arange(size)
    assert int(take(x, jnp.asarray(3))) == 3
    assert int(take(x, jnp.asarray(size + 5))) == size - 1
    assert take(x, jnp.asarray([1, 2, size])).tolist() == [1, 2, size - 1]


def test_put(size: int) -> None:
    x = jnp.zeros(size)
    expected = np.zeros(size)
    expected[3] = 2.5
    assert (put(x, jnp.asarray(3), 2.5) == expected).all()
    assert (put(x, jnp.asarray(3), 2.5, False) == 0).all()
    assert put(jnp.zeros(size, jnp.int32), jnp.asarray(0), True).dtype == jnp.int32


def test_put_a_row(size: int) -> None:
    x = jnp.zeros((size, 2))
    expected = np.zeros((size, 2))
    expected[4] = [1.0, 2.0]
    assert (put(x, jnp.asarray(4), jnp.asarray([1.0, 2.0])) == expected).all()


def test_put_all(size: int) -> None:
    x = jnp.full(size, 9)
    indices, when = jnp.asarray([5, -1, 0, 6]), jnp.asarray([True, False, True, False])
    expected = np.full(size, 9)
    expected[[5, 0]] = [1, 3]
    assert (put_all(x, indices, jnp.asarray([1, 2, 3, 4]), when) == expected).all()
    expected[[5, 0]] = 7
    assert (put_all(x, indices, 7, when) == expected).all()


def test_put_all_rows(size: int) -> None:
    x = jnp.zeros((size, 2), jnp.int32)
    rows = jnp.asarray([[1, 2], [3, 4]])
    expected = np.zeros((size, 2))
    expected[[2, 6]] = [[1, 2], [3, 4]]
    assert (put_all(x, jnp.asarray([2, 6]), rows, jnp.asarray([True, True])) == expected).all()


@pytest.mark.parametrize("updates", [4, 100])
def test_add_all_adds_repeats_up(size: int, updates: int) -> None:
    indices = np.arange(updates) % 3
    x = jnp.ones(size, jnp.int32)
    expected = np.ones(size, int)
    np.add.at(expected, indices, np.arange(updates))
    assert (add_all(x, jnp.asarray(indices), jnp.arange(updates)) == expected).all()


def test_first(size: int) -> None:
    assert int(first(jnp.arange(size) >= 3)) == 3
    assert int(first(jnp.zeros(size, bool))) == NO_INDEX
    assert first(jnp.asarray([[False, True], [False, False]])).tolist() == [1, NO_INDEX]


def test_first_min_takes_the_lowest_index_of_equals(size: int) -> None:
    key = jnp.full(size, 5.0).at[jnp.asarray([4, 2])].set(1.0)
    least, index = first_min(key)
    assert (float(least), int(index)) == (1.0, 2)
    least, index = first_min(jnp.asarray([[3, 1, 1], [2, 2, 2]]))
    assert least.tolist() == [1, 2] and index.tolist() == [1, 0]
    assert int(first_min(jnp.full(size, jnp.inf))[1]) == 0


def test_under_vmap_too(size: int) -> None:
    x = jnp.zeros((3, size))
    moved = jax.vmap(lambda row, i: put(row, i, 1.0))(x, jnp.asarray([0, 1, 2]))
    assert (moved == np.eye(3, size)).all()
