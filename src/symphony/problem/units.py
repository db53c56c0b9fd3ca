"""Quantities with units, as people write them: "32 GB/s", "200 ms", "16 GiB"."""

from __future__ import annotations

import math
import re
from numbers import Integral, Real

from symphony.problem.errors import InputError

_BYTE_UNITS = {"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "pb": 1e15}
_BYTE_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_BIT_UNITS = {"bit": 1 / 8, "kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8, "tbit": 1e12 / 8}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_UNITS_BY_DIMENSION: dict[str, dict[str, float]] = {
    "bytes": _BYTE_UNITS | _BIT_UNITS,
    "bytes/s": {f"{u}/s": f for u, f in (_BYTE_UNITS | _BIT_UNITS).items()} | {"gbps": 1e9 / 8, "mbps": 1e6 / 8},
    "seconds": _SECONDS,
    "number": {},
}
_EXAMPLE = {"bytes": '"16 GB"', "bytes/s": '"32 GB/s"', "seconds": '"200 ms"', "number": "1.0"}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]*)\s*")


def is_number(value: object, least: float = 0.0, most: float = math.inf) -> bool:
    """Whether `value` is a number from `least` to `most`; booleans, strings and NaN are not."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    return real and least <= value <= most  # type: ignore[operator]  # `Real` has no order in its type


def is_whole(value: object, least: int, most: int) -> bool:
    """Whether `value` is an integer from `least` to `most`; booleans and 1.0 are not."""
    return isinstance(value, Integral) and is_number(value, least, most)


def parse(value: str | float, dimension: str, *, where: str = "") -> float:
    """`value` in bytes, bytes/s, seconds or as a plain number; a bare number is taken in that base unit."""
    example = f"write a non-negative quantity such as {_EXAMPLE[dimension]}"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{value!r} is not a quantity", where=where, hint=example)
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        unit = match[2].lower() if match else ""
        if not match or (unit and unit not in _UNITS_BY_DIMENSION[dimension]):
            known = ", ".join(_UNITS_BY_DIMENSION[dimension]) or "none"
            raise InputError(
                f"{value!r} is not a quantity in {dimension}", where=where, hint=f"{example} (units: {known})"
            )
        value = float(match[1]) * (_UNITS_BY_DIMENSION[dimension][unit] if unit else 1.0)
    try:
        finite = math.isfinite(value)
    except OverflowError:
        raise InputError("the number is too large", where=where, hint="write a smaller one") from None
    if not finite or value < 0:
        raise InputError(f"{value!r} is not a finite, non-negative quantity", where=where, hint=example)
    return float(value)


def show(value: float, dimension: str, digits: int = 4) -> str:
    """The inverse of `parse`, rounded to so many digits, at most four. Whole MiB and GiB are shown as such."""
    if dimension == "seconds":
        if value < 0:
            return f"-{show(-value, dimension, digits)}"
        for unit, factor in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
            if value >= factor * (2 if factor >= 60 else 1):
                return f"{float(f'{value / factor:.{digits}g}'):.4g} {unit}"
        return f"{value:.3g} s"
    if dimension in ("bytes", "bytes/s"):
        for unit in ("GiB", "MiB"):
            whole, rest = divmod(value, _BYTE_UNITS[unit.lower()])
            if dimension == "bytes" and 1 <= whole < 1024 and rest == 0:
                return f"{whole:.0f} {unit}"
        tail = "/s" if dimension == "bytes/s" else ""
        for unit in ("PB", "TB", "GB", "MB", "kB"):
            if value >= _BYTE_UNITS[unit.lower()]:
                return f"{value / _BYTE_UNITS[unit.lower()]:.4g} {unit}{tail}"
        return f"{value:.4g} B{tail}"
    return f"{value:.4g}"
