"""perf's arithmetic once more, in plain floats, slow and obvious: what array code is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PlainNumbers:
    """An `evaluating.Arithmetic` of floats; counts by key."""

    counts: Mapping[str, float]

    def number(self, value: float) -> float:
        return value

    def event(self, name: str) -> float:
        return self.counts.get(name, math.nan)

    def sources(self, name: str) -> float:
        return 1.0 if name in self.counts else math.nan

    def present(self, name: str) -> float:
        return float(name in self.counts)

    def negative(self, of: float) -> float:
        return -of

    def choose(self, then: float, condition: float, otherwise: float) -> float:
        return otherwise if condition == 0 else then

    def binary(self, operator: str, left: float, right: float) -> float:
        return _FLOAT_OPERATORS[operator](left, right)


def _divide(left: float, right: float) -> float:
    return left / right if right != 0 else math.nan


def _remainder(left: float, right: float) -> float:
    """Of the whole parts, with the sign of the left one, as in C."""
    if not math.isfinite(left) or not math.isfinite(right) or not math.trunc(right):
        return math.nan
    return math.fmod(math.trunc(left), math.trunc(right))


def _logical(left: float, right: float, decides: bool) -> float:
    """`|` (a true side decides) and `&` (a false side decides)."""
    if math.isfinite(left) and math.isfinite(right):
        return float(bool(left) or bool(right) if decides else bool(left) and bool(right))
    if not math.isfinite(left) and not math.isfinite(right):
        return math.nan
    known, other = (left, right) if math.isfinite(left) else (right, left)
    return float(decides) if bool(known) is decides else other


def _differ(left: float, right: float) -> float:
    return float(bool(left) != bool(right)) if math.isfinite(left) and math.isfinite(right) else math.nan


def _compare(holds: Callable[[float, float], bool]) -> Callable[[float, float], float]:
    return lambda left, right: math.nan if math.isnan(left) or math.isnan(right) else float(holds(left, right))


_FLOAT_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "|": lambda left, right: _logical(left, right, decides=True),
    "&": lambda left, right: _logical(left, right, decides=False),
    "^": _differ,
    "<": _compare(lambda left, right: left < right),
    ">": _compare(lambda left, right: left > right),
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divide,
    "%": _remainder,
    "min": lambda left, right: left if left < right else right,
    "max": lambda left, right: left if left > right else right,
    "d_ratio": lambda left, right: left / right if right != 0 else 0.0,
}
