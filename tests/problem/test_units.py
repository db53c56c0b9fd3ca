"""Quantities as people write them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from symphony.problem import units
from symphony.problem.errors import InputError


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("32 GB/s", "bytes/s", 32e9),
        ("32GB/s", "bytes/s", 32e9),
        (" 1.5 gb/S ", "bytes/s", 1.5e9),
        ("100 Gbit/s", "bytes/s", 12.5e9),
        ("100 Gbps", "bytes/s", 12.5e9),
        ("16 GiB", "bytes", 2**34),
        ("16 GB", "bytes", 16e9),
        ("8 bit", "bytes", 1.0),
        ("200 ms", "seconds", 0.2),
        ("3 µs", "seconds", 3e-6),
        ("3 us", "seconds", 3e-6),
        ("2 min", "seconds", 120.0),
        ("10m", "seconds", 600.0),
        ("1e-3", "seconds", 1e-3),
        ("+.5 h", "seconds", 1800.0),
        ("0", "bytes", 0.0),
        (7, "number", 7.0),
        (2.5, "seconds", 2.5),
    ],
)
def test_parse(text: str | float, dimension: str, value: float) -> None:
    assert units.parse(text, dimension) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("value", "dimension", "message", "hint"),
    [
        ("fast", "bytes/s", "'fast' is not a quantity in bytes/s", '"32 GB/s"'),
        ("32 GB", "bytes/s", "'32 GB' is not a quantity in bytes/s", "gb/s"),
        ("32 GB/s", "bytes", "not a quantity in bytes", '"16 GB"'),
        ("3 parsec", "seconds", "not a quantity in seconds", "ms"),
        ("3 s", "number", "not a quantity in number", "units: none"),
        ("", "seconds", "not a quantity", '"200 ms"'),
        ("1 2 s", "seconds", "not a quantity", '"200 ms"'),
        ("nan", "seconds", "not a quantity", '"200 ms"'),
        (None, "bytes", "None is not a quantity", '"16 GB"'),
        (True, "number", "True is not a quantity", "1.0"),
        ([1], "number", "[1] is not a quantity", "1.0"),
        (-1, "seconds", "not a finite, non-negative", '"200 ms"'),
        ("-1 s", "seconds", "not a finite, non-negative", '"200 ms"'),
        (math.nan, "bytes", "not a finite", '"16 GB"'),
        (math.inf, "bytes", "not a finite", '"16 GB"'),
        ("1e999 B", "bytes", "not a finite", '"16 GB"'),
    ],
)
def test_what_is_no_quantity(value: object, dimension: str, message: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        units.parse(value, dimension, where="lab.toml:7")  # type: ignore[arg-type]
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.where == "lab.toml:7"


@given(st.floats(1e-5, 1e14), st.sampled_from(["bytes", "bytes/s", "seconds", "number"]))
def test_what_show_writes_parse_reads(value: float, dimension: str) -> None:
    assert units.parse(units.show(value, dimension), dimension) == pytest.approx(value, rel=6e-3)


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (32e9, "bytes/s", "32 GB/s"),
        (512, "bytes", "512 B"),
        (64e6, "bytes", "64 MB"),
        (32 * 2**20, "bytes", "32 MiB"),
        (64 * 2**30, "bytes", "64 GiB"),
        (2**30, "bytes/s", "1.074 GB/s"),
        (90.0, "seconds", "90 s"),
        (7200.0, "seconds", "2 h"),
        (0.0015, "seconds", "1.5 ms"),
        (0.0, "seconds", "0 s"),
        (-5400.0, "seconds", "-90 min"),
        (3.0, "number", "3"),
    ],
)
def test_show(value: float, dimension: str, text: str) -> None:
    assert units.show(value, dimension) == text


def test_digits_are_those_of_the_unit_that_is_shown() -> None:
    assert units.show(41_688.0, "seconds", 2) == "12 h" and units.show(780_120.0, "seconds", 2) == "220 h"


def test_an_integer_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(InputError, match="too large"):
        units.parse(10**400, "bytes")


def test_numbers_and_what_only_looks_like_one() -> None:
    assert all(units.is_number(x) for x in (0, 1.5, math.inf, np.float32(1), np.int64(3)))
    assert not any(units.is_number(x) for x in (None, "1", True, math.nan, -1e-9, [1], 1j))
    assert units.is_number(10**400)
    assert not units.is_number(1.5, 0, 1)
    assert all(units.is_whole(x, -1, 3) for x in (-1, 3, np.int32(2)))
    assert not any(units.is_whole(x, -1, 3) for x in (1.0, True, None, 4, -2, "1", math.nan))
