"""Values of others: data is read, and nothing else is run."""

from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symphony.engines.data_only import NotData, read_data
from symphony.engines.worker import pickled

DATA: list[Any] = [
    None,
    [1, -(2**70), 2.5, "text €", b"bytes", True, complex(1, 2), range(3, 9, 2)],
    {"a": {"b": (1, 2), 3: {4, 5}}, "c": frozenset({6}), "d": bytearray(b"e")},
    np.arange(6).reshape(2, 3),
    np.arange(100_000.0).reshape(100, 1000),
    np.asfortranarray(np.arange(100_000.0).reshape(100, 1000)),
    np.arange(100)[::7],
    np.arange(6, dtype=">i4"),
    np.array(["a", "bc"]),
    np.array(3.5),
    np.float32(1.5),
    np.zeros((0, 5)),
    [np.ones(3), {"x": np.ones(50_000)}, (np.arange(10)[::2],)],
]


@pytest.mark.parametrize("value", DATA, ids=range(len(DATA)))
def test_data_comes_out_as_it_went_in(value: Any) -> None:
    found = read_data(*pickled(value))
    assert type(found) is type(value)
    np.testing.assert_equal(found, value)
    if isinstance(value, np.ndarray):
        assert found.dtype == value.dtype and found.flags.writeable
        assert found.flags.f_contiguous or not value.flags.f_contiguous


class Evil:
    """Runs code where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("hide", [lambda x: x, lambda x: [{"a": (x,)}], lambda x: np.array([x, 1], object)])
def test_what_would_run_code_is_refused_and_does_not_run(tmp_path: Path, hide: Any) -> None:
    mark = tmp_path / "ran"
    head, buffers = pickled(hide(Evil(mark)))
    with pytest.raises(NotData, match=r"refers to posix\.mkdir|opcode|array of type"):
        read_data(head, buffers)
    assert not mark.exists()
    pickle.loads(head, buffers=buffers)
    assert mark.exists()  # it would have


@pytest.mark.parametrize(
    "value",
    [
        len,
        Path("/"),
        collections.OrderedDict(a=1),
        np.array([{}], object),
        np.zeros(2, [("a", "f8")]),
        np.array(["2024"], "M8[s]"),
    ],
    ids=["function", "object", "class", "objects", "records", "dates"],
)
def test_what_is_more_than_data_is_refused(value: Any) -> None:
    with pytest.raises(NotData):
        read_data(*pickled(value))


def test_a_value_that_holds_another_many_times_does_not_grow() -> None:
    value: Any = (1,)
    for _ in range(200):
        value = (value, value)
    found = read_data(*pickled(value))
    assert found[0] is found[1]


def crafted(*parts: bytes) -> bytes:
    return b"\x80\x05" + b"".join(parts) + b"."


def name(module: str, what: str) -> bytes:
    return b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, what)) + b"\x93"


DTYPE = name("numpy", "dtype")
OBJECTS = DTYPE + b"(\x8c\x01OK\x00K\x01tR"  # numpy.dtype("O", 0, 1)
POINTERS = b"C\x10" + b"\x41" * 16


@pytest.mark.parametrize(
    "head",
    [
        crafted(name("os", "system"), b"\x8c\x04true", b"\x85R"),
        crafted(name("builtins", "eval"), b"\x8c\x011", b"\x85R"),
        crafted(name("builtins", "complex.__class__"), b"."),
        # NumPy trusts the flags of a type: bytes would become references to objects.
        crafted(
            name("numpy._core.numeric", "_frombuffer"),
            b"(" + POINTERS + OBJECTS + b"(K\x03\x8c\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"K\x02\x85\x8c\x01CtR",
        ),
        crafted(DTYPE, b"}\x8c\x08__call__", b"K\x01sb"),  # changes what the next reader would call
        crafted(DTYPE, b"N}\x8c\x08__doc__K\x01s\x86b"),
        crafted(DTYPE),
        crafted(b"N", b"r", struct.pack("<I", 2**31)),  # a place in memory far away
        crafted(b"\x96", struct.pack("<Q", 2**60), b"x"),
        crafted(b"\x82\x01"),  # the extension registry
        b"cos\nsystem\n(S'true'\ntR.",
        b"garbage",
        b"",
    ],
    ids=range(13),
)
def test_crafted_pickles_are_refused(head: bytes) -> None:
    with pytest.raises(NotData):
        read_data(head, [])
    assert read_data(*pickled([np.ones(2), complex(1, 1)]))[1] == complex(1, 1)  # and nothing is left of it


def test_the_crafted_pickles_are_what_they_are_meant_to_be() -> None:
    assert [one[0].name for one in pickletools.genops(crafted(DTYPE))][-2:] == ["STACK_GLOBAL", "STOP"]
    assert pickle.Unpickler(io.BytesIO(crafted(DTYPE))).load() is np.dtype
