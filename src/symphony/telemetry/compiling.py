"""Metric expressions as JAX functions: the same values as `evaluating.py`, traceable and differentiable.

A value is a pair of arrays: a number that is never NaN, and a mask that says where NaN stands for it. NaN comes back
only at the very end. Otherwise a side of a choice that is not taken, a ratio with nothing below the line say, would
spoil the gradient of the side that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from symphony.problem.errors import InputError
from symphony.telemetry.evaluating import Definitions, apply, in_order, needed
from symphony.telemetry.expressions import Expression, key
from symphony.telemetry.machine import Platform

Array = jax.Array


class _Masked(NamedTuple):
    value: Array
    nan: Array  # bool: NaN stands here, whatever `value` says


def _masked(value: Array, nan: Array | bool = False) -> _Masked:
    """A value; what overflowed into NaN (infinity less infinity) is masked too."""
    nan = nan | jnp.isnan(value)
    return _Masked(jnp.where(nan, 0.0, value), nan)


def _pick(condition: Array, then: _Masked, otherwise: _Masked) -> _Masked:
    return _Masked(jnp.where(condition, then.value, otherwise.value), jnp.where(condition, then.nan, otherwise.nan))


def _ratio(left: _Masked, right: _Masked) -> _Masked:
    """Left over right; where right is zero, left."""
    return _masked(left.value / jnp.where(right.value == 0, 1.0, right.value), left.nan | right.nan)


def _divide(left: _Masked, right: _Masked) -> _Masked:
    zero = (right.value == 0) & ~right.nan
    value, nan = _ratio(left, right)
    return _Masked(value, nan | zero)


def _d_ratio(left: _Masked, right: _Masked) -> _Masked:
    zero = (right.value == 0) & ~right.nan
    value, nan = _ratio(left, right)
    return _Masked(jnp.where(zero, 0.0, value), nan & ~zero)


def _remainder(left: _Masked, right: _Masked) -> _Masked:
    whole = jnp.trunc(right.value)
    wrong = (whole == 0) | ~jnp.isfinite(left.value) | ~jnp.isfinite(right.value)
    above = jnp.where(wrong, 0.0, jnp.trunc(left.value))
    return _masked(jnp.fmod(above, jnp.where(wrong, 1.0, whole)), left.nan | right.nan | wrong)


def _logical(left: _Masked, right: _Masked, decides: bool) -> _Masked:
    """`|` (a true side decides) and `&` (a false side decides)."""
    known = [~side.nan & jnp.isfinite(side.value) for side in (left, right)]
    truth = [side.value != 0 for side in (left, right)]
    decided = (known[0] & (truth[0] == decides)) | (known[1] & (truth[1] == decides))
    other = _pick(known[0], right, left)
    both, neither = known[0] & known[1], ~known[0] & ~known[1]
    undecided = jnp.where(both, float(not decides), other.value)
    return _Masked(jnp.where(decided, float(decides), undecided), ~decided & ~both & (other.nan | neither))


def _differ(left: _Masked, right: _Masked) -> _Masked:
    unknown = left.nan | right.nan | ~jnp.isfinite(left.value) | ~jnp.isfinite(right.value)
    return _Masked(((left.value != 0) != (right.value != 0)).astype(float), unknown)


def _less(left: _Masked, right: _Masked) -> Array:
    return (left.value < right.value) & ~left.nan & ~right.nan


_OPERATORS: dict[str, Callable[[_Masked, _Masked], _Masked]] = {
    "|": lambda left, right: _logical(left, right, decides=True),
    "&": lambda left, right: _logical(left, right, decides=False),
    "^": _differ,
    "<": lambda left, right: _Masked(_less(left, right).astype(float), left.nan | right.nan),
    ">": lambda left, right: _Masked(_less(right, left).astype(float), left.nan | right.nan),
    "+": lambda left, right: _masked(left.value + right.value, left.nan | right.nan),
    "-": lambda left, right: _masked(left.value - right.value, left.nan | right.nan),
    "*": lambda left, right: _masked(left.value * right.value, left.nan | right.nan),
    "/": _divide,
    "%": _remainder,
    "min": lambda left, right: _pick(_less(left, right), left, right),
    "max": lambda left, right: _pick(_less(right, left), left, right),
    "d_ratio": _d_ratio,
}


@dataclass(frozen=True)
class _Traced:
    """Masked arrays; counts by key."""

    counts: Mapping[str, Array]
    units: Mapping[str, float]

    def number(self, value: float) -> _Masked:
        return _masked(jnp.asarray(value, float))

    def event(self, name: str) -> _Masked:
        return _masked(self.counts[name]) if name in self.counts else self.number(math.nan)

    def sources(self, name: str) -> _Masked:
        return self.number(self.units.get(name, 1.0) if name in self.counts else math.nan)

    def present(self, name: str) -> _Masked:
        return self.number(float(name in self.counts))

    def negative(self, of: _Masked) -> _Masked:
        return _Masked(-of.value, of.nan)

    def choose(self, then: _Masked, condition: _Masked, otherwise: _Masked) -> _Masked:
        return _pick((condition.value == 0) & ~condition.nan, otherwise, then)

    def binary(self, operator: str, left: _Masked, right: _Masked) -> _Masked:
        return _OPERATORS[operator](left, right)


@dataclass(frozen=True)
class Compiled:
    """A function from counts of events to values of expressions; give it to `jax.jit`, `jax.vmap` or `jax.grad`."""

    inputs: tuple[str, ...]  # keys of the events: the last axis of what goes in
    outputs: tuple[str, ...]  # names of the expressions: the last axis of what comes out
    function: Callable[[Array], Array]

    def __call__(self, counts: Array) -> Array:
        """Values (…, outputs) of counts (…, inputs)."""
        if jnp.shape(counts)[-1:] != (len(self.inputs),):
            raise InputError(
                f"{len(self.inputs)} counts are needed on the last axis, not an array of shape {jnp.shape(counts)}",
                hint="the order is that of `inputs`",
            )
        return self.function(jnp.asarray(counts, float))

    def scaled(self, scales: Sequence[float]) -> Compiled:
        """The same, with each value multiplied by its scale."""
        function = self.function
        return replace(self, function=lambda counts: function(counts) * jnp.asarray(scales, float))


def compile_expressions(
    expressions: Mapping[str, Expression],
    *,
    definitions: Definitions | None = None,
    platform: Platform | None = None,
    sources: Mapping[str, float] | None = None,
    inputs: tuple[str, ...] | None = None,
) -> Compiled:
    """Named expressions as one function of counts; metrics that several of them refer to are computed once.

    `inputs`: which events are counted, in which order; by default those that are needed. Others are NaN, as if they
    had not been counted, and `has_event` is 0 for them.
    """
    definitions, platform = definitions or {}, platform or Platform()
    trees = list(expressions.values())
    order = in_order(trees, definitions)
    units = {key(name): float(number) for name, number in (sources or {}).items()}
    if inputs is None:
        inputs = needed(trees, definitions=definitions, platform=platform)
    keys = tuple(map(key, inputs))

    def function(counts: Array) -> Array:
        traced = _Traced({name: counts[..., place] for place, name in enumerate(keys)}, units)
        metrics: dict[str, _Masked] = {}
        for name in order:
            metrics[name] = apply(definitions[name], traced, metrics, platform)
        results = [apply(tree, traced, metrics, platform) for tree in trees]
        values = [
            jnp.broadcast_to(jnp.where(result.nan, jnp.nan, result.value), counts.shape[:-1]) for result in results
        ]
        return jnp.stack(values, axis=-1) if values else jnp.zeros((*counts.shape[:-1], 0))

    return Compiled(keys, tuple(expressions), function)
