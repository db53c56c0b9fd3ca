"""Metric expressions as functions of arrays: the same values as `evaluating.py`; with JAX traceable, differentiable.

A value is a pair of arrays: a number that is never NaN, and a mask that says where NaN stands for it. NaN comes back
only at the very end. Otherwise a side of a choice that is not taken, a ratio with nothing below the line say, would
spoil the gradient of the side that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from symphony.problem.errors import InputError
from symphony.telemetry.evaluating import Definitions, apply, in_order, needed
from symphony.telemetry.expressions import Expression, key
from symphony.telemetry.machine import Platform

Array = Any  # jax.Array, or numpy.ndarray where a function is NumPy's


class _Masked(NamedTuple):
    value: Array
    nan: Array  # bool: NaN stands here, whatever `value` says


def _masked(xp: ModuleType, value: Array, nan: Array | bool = False) -> _Masked:
    """A value; what overflowed into NaN (infinity less infinity) is masked too."""
    nan = nan | xp.isnan(value)
    return _Masked(xp.where(nan, 0.0, value), nan)


def _pick(xp: ModuleType, condition: Array, then: _Masked, otherwise: _Masked) -> _Masked:
    return _Masked(xp.where(condition, then.value, otherwise.value), xp.where(condition, then.nan, otherwise.nan))


def _ratio(xp: ModuleType, left: _Masked, right: _Masked) -> _Masked:
    """Left over right; where right is zero, left."""
    return _masked(xp, left.value / xp.where(right.value == 0, 1.0, right.value), left.nan | right.nan)


def _divide(xp: ModuleType, left: _Masked, right: _Masked) -> _Masked:
    zero = (right.value == 0) & ~right.nan
    value, nan = _ratio(xp, left, right)
    return _Masked(value, nan | zero)


def _d_ratio(xp: ModuleType, left: _Masked, right: _Masked) -> _Masked:
    zero = (right.value == 0) & ~right.nan
    value, nan = _ratio(xp, left, right)
    return _Masked(xp.where(zero, 0.0, value), nan & ~zero)


def _remainder(xp: ModuleType, left: _Masked, right: _Masked) -> _Masked:
    whole = xp.trunc(right.value)
    wrong = (whole == 0) | ~xp.isfinite(left.value) | ~xp.isfinite(right.value)
    above = xp.where(wrong, 0.0, xp.trunc(left.value))
    return _masked(xp, xp.fmod(above, xp.where(wrong, 1.0, whole)), left.nan | right.nan | wrong)


def _logical(xp: ModuleType, left: _Masked, right: _Masked, decides: bool) -> _Masked:
    """`|` (a true side decides) and `&` (a false side decides)."""
    known = [~side.nan & xp.isfinite(side.value) for side in (left, right)]
    truth = [side.value != 0 for side in (left, right)]
    decided = (known[0] & (truth[0] == decides)) | (known[1] & (truth[1] == decides))
    other = _pick(xp, known[0], right, left)
    both, neither = known[0] & known[1], ~known[0] & ~known[1]
    undecided = xp.where(both, float(not decides), other.value)
    return _Masked(xp.where(decided, float(decides), undecided), ~decided & ~both & (other.nan | neither))


def _differ(xp: ModuleType, left: _Masked, right: _Masked) -> _Masked:
    unknown = left.nan | right.nan | ~xp.isfinite(left.value) | ~xp.isfinite(right.value)
    return _Masked(((left.value != 0) != (right.value != 0)) * 1.0, unknown)


def _less(xp: ModuleType, left: _Masked, right: _Masked) -> Array:
    return (left.value < right.value) & ~left.nan & ~right.nan


_ARRAY_OPERATORS: dict[str, Callable[[ModuleType, _Masked, _Masked], _Masked]] = {
    "|": lambda xp, left, right: _logical(xp, left, right, decides=True),
    "&": lambda xp, left, right: _logical(xp, left, right, decides=False),
    "^": _differ,
    "<": lambda xp, left, right: _Masked(_less(xp, left, right) * 1.0, left.nan | right.nan),
    ">": lambda xp, left, right: _Masked(_less(xp, right, left) * 1.0, left.nan | right.nan),
    "+": lambda xp, left, right: _masked(xp, left.value + right.value, left.nan | right.nan),
    "-": lambda xp, left, right: _masked(xp, left.value - right.value, left.nan | right.nan),
    "*": lambda xp, left, right: _masked(xp, left.value * right.value, left.nan | right.nan),
    "/": _divide,
    "%": _remainder,
    "min": lambda xp, left, right: _pick(xp, _less(xp, left, right), left, right),
    "max": lambda xp, left, right: _pick(xp, _less(xp, right, left), left, right),
    "d_ratio": _d_ratio,
}


@dataclass(frozen=True)
class _Traced:
    """Masked arrays; counts by key."""

    xp: ModuleType
    counts: Mapping[str, Array]
    units: Mapping[str, float]

    def number(self, value: float) -> _Masked:
        return _masked(self.xp, self.xp.asarray(value, float))

    def event(self, name: str) -> _Masked:
        return _masked(self.xp, self.counts[name]) if name in self.counts else self.number(math.nan)

    def sources(self, name: str) -> _Masked:
        return self.number(self.units.get(name, 1.0) if name in self.counts else math.nan)

    def present(self, name: str) -> _Masked:
        return self.number(float(name in self.counts))

    def negative(self, of: _Masked) -> _Masked:
        return _Masked(-of.value, of.nan)

    def choose(self, then: _Masked, condition: _Masked, otherwise: _Masked) -> _Masked:
        return _pick(self.xp, (condition.value == 0) & ~condition.nan, otherwise, then)

    def binary(self, operator: str, left: _Masked, right: _Masked) -> _Masked:
        return _ARRAY_OPERATORS[operator](self.xp, left, right)


@dataclass(frozen=True)
class Compiled:
    """A function from counts of events to values of expressions; give it to `jax.jit`, `jax.vmap` or `jax.grad`."""

    inputs: tuple[str, ...]  # keys of the events: the last axis of what goes in
    outputs: tuple[str, ...]  # names of the expressions: the last axis of what comes out
    function: Callable[[Array], Array]
    xp: ModuleType = jnp  # what it computes with: jax.numpy or numpy

    def __call__(self, counts: Array) -> Array:
        """Values (…, outputs) of counts (…, inputs)."""
        shape = self.xp.shape(counts)
        if shape[-1:] != (len(self.inputs),):
            raise InputError(
                f"{len(self.inputs)} counts are needed on the last axis, not an array of shape {shape}",
                hint="the order is that of `inputs`",
            )
        with np.errstate(all="ignore"):
            return self.function(self.xp.asarray(counts, float))

    def scaled(self, scales: Sequence[float]) -> Compiled:
        """The same, with each value multiplied by its scale."""
        function = self.function
        return replace(self, function=lambda counts: function(counts) * self.xp.asarray(scales, float))


def compile_expressions(
    expressions: Mapping[str, Expression],
    *,
    definitions: Definitions | None = None,
    platform: Platform | None = None,
    sources: Mapping[str, float] | None = None,
    inputs: tuple[str, ...] | None = None,
    xp: ModuleType = jnp,
) -> Compiled:
    """Named expressions as one function of counts; metrics that several of them refer to are computed once.

    `inputs`: which events are counted, in which order; by default those that are needed. Others are NaN, as if they
    had not been counted, and `has_event` is 0 for them. With `xp=numpy` the function is a NumPy one.
    """
    definitions, platform = definitions or {}, platform or Platform()
    trees = list(expressions.values())
    order = in_order(trees, definitions)
    units = {key(name): float(number) for name, number in (sources or {}).items()}
    if inputs is None:
        inputs = needed(trees, definitions=definitions, platform=platform)
    keys = tuple(map(key, inputs))

    def function(counts: Array) -> Array:
        traced = _Traced(xp, {name: counts[..., place] for place, name in enumerate(keys)}, units)
        metrics: dict[str, _Masked] = {}
        for name in order:
            metrics[name] = apply(definitions[name], traced, metrics, platform)
        results = [apply(tree, traced, metrics, platform) for tree in trees]
        values = [xp.broadcast_to(xp.where(result.nan, xp.nan, result.value), counts.shape[:-1]) for result in results]
        return xp.stack(values, axis=-1) if values else xp.zeros((*counts.shape[:-1], 0))

    return Compiled(keys, tuple(expressions), function, xp)
