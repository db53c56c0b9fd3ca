"""Trees of arrays as two vectors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from symphony.runtime.packing import Packing
from symphony.scheduling import state
from tests.scheduling.by_hand import Books, chain, work


def equal(a, b) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert jax.tree.structure(a) == jax.tree.structure(b)


def test_what_is_packed_comes_out_again_with_its_types() -> None:
    books = Books(work(chain()))
    core = jax.tree.map(np.asarray, books.core)
    form = Packing.of(core)
    whole, part = form.pack(core)
    assert whole.dtype == np.int32 and part.dtype == np.float32
    back = form.unpack((whole, part), np)
    equal(back, core)
    assert back.status.dtype == core.status.dtype and back.up.dtype == bool


def test_packing_within_a_program_is_the_same() -> None:
    books = Books(work(chain()))
    form = Packing.of(books.core)
    packed = form.pack(books.core)
    again = jax.jit(lambda x: form.pack(form.unpack(x), jnp))(packed)
    equal(packed, tuple(map(np.asarray, again)))


def test_sixty_four_bits_become_thirty_two() -> None:
    tree = {"a": np.arange(3), "b": np.arange(3.0)}
    back = Packing.of(tree).unpack(Packing.of(tree).pack(tree), np)
    assert back["a"].dtype == np.int32 and back["b"].dtype == np.float32


def test_single_fields_can_be_looked_at() -> None:
    books = Books(work(chain()))
    core = state.empty(books.t, books.w, 3)
    form = Packing.of(core)
    status, device, free = form.peek(form.pack(core), ("status", "device", "lanes_free"))
    np.testing.assert_array_equal(status, core.status)
    np.testing.assert_array_equal(device, core.device)
    np.testing.assert_array_equal(free, core.lanes_free)
