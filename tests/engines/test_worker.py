"""How values and messages travel between processes."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from symphony.engines import worker


def through(value, folder: Path, inputs=()):
    stored = worker.store(*worker.pickled(value), str(folder), "value")
    return worker.unpickled(*worker.fetch(stored, str(folder)), inputs), stored


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, "x", b"y"]},
        np.arange(10),
        np.arange(100_000.0).reshape(100, 1000),
        np.asfortranarray(np.arange(100_000.0).reshape(100, 1000)),
        np.arange(100_000)[::7],
        np.zeros((0, 5)),
        [np.ones(50_000), np.ones(50_000, np.int8), "between"],
        "long text " * 10_000,
    ],
    ids=["none", "plain", "small", "large", "fortran", "strided", "empty", "several", "text"],
)
def test_values_come_out_as_they_went_in(value, tmp_path: Path) -> None:
    back, stored = through(value, tmp_path)
    flat = value if isinstance(value, list) else [value]
    for old, new in zip(flat, back if isinstance(value, list) else [back], strict=True):
        np.testing.assert_array_equal(new, old)
        if isinstance(old, np.ndarray):
            assert new.dtype == old.dtype and new.flags.writeable
            assert new.flags.f_contiguous or not old.flags.f_contiguous
    assert len(worker.framed(stored)) < 2 * worker.MAX_INLINE_VALUE_BYTES  # whatever it is, a message stays small


def test_large_arrays_are_mapped_and_written_to_by_their_reader_alone(tmp_path: Path) -> None:
    value = np.arange(100_000.0)
    first, stored = through(value, tmp_path)
    first[:] = -1.0
    second = worker.unpickled(*worker.fetch(stored, str(tmp_path)))
    np.testing.assert_array_equal(second, value)
    os.unlink(tmp_path / "value")
    np.testing.assert_array_equal(second, value)  # who has mapped a value keeps it


def test_small_values_need_no_file(tmp_path: Path) -> None:
    through(np.arange(10), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_arrays_of_jax_are_left_out_of_the_pickle_too() -> None:
    import jax.numpy as jnp

    head, buffers = worker.pickled({"x": jnp.arange(50_000.0)})
    assert len(head) < 2_000 and buffers[0].nbytes == 200_000
    np.testing.assert_array_equal(worker.unpickled(head, buffers)["x"], np.arange(50_000.0))


def test_what_is_referred_to_is_put_in_by_number() -> None:
    class Handle:
        pass

    first, second = Handle(), Handle()
    numbers = {id(first): 0, id(second): 1}
    head, buffers = worker.pickled([first, {"b": second}, first], lambda value: numbers.get(id(value)))
    assert worker.unpickled(head, buffers, ["a", "b"]) == ["a", {"b": "b"}, "a"]


def test_functions_without_a_module_can_be_sent() -> None:
    offset = 3
    head, buffers = worker.pickled(lambda x: x + offset)
    assert worker.unpickled(head, buffers)(4) == 7


def test_what_cannot_be_sent_says_so() -> None:
    with pytest.raises((TypeError, pickle.PicklingError), match="generator"):
        worker.pickled(number for number in range(3))


@given(st.lists(st.tuples(st.text(), st.integers(), st.binary(max_size=300))), st.lists(st.integers(1, 40)))
def test_messages_are_complete_however_they_are_cut(messages, cuts) -> None:
    data = b"".join(worker.framed(message) for message in messages)
    inbox, found, at = worker.Inbox(), [], 0
    for cut in [*cuts, len(data)]:
        found += inbox.feed(data[at : at + cut])
        at += cut
    assert found == messages
