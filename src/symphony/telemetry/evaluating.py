"""Evaluation of metric expressions, with perf's rules.

One walk over the tree (`apply`) serves every arithmetic: NumPy arrays (`compile_expressions`), the names of the events
to count (`needed`), and linear forms (`linear.py`). The rules that all of them share:

- division by zero, and names without a count, give NaN; `d_ratio(a, 0)` gives 0;
- `& | ^` are logical. NaN and infinity mean "unknown": `0 & NaN` is 0, `1 & NaN` is NaN;
- a condition is false if it is zero; NaN is true;
- `min` and `max` are comparisons, `a < b ? a : b`: a NaN on the left is ignored, one on the right is the result;
- both branches of a conditional are evaluated;
- the name of a metric stands for that metric's value. Names are compared without regard to case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol, TypeVar

import numpy as np

from symphony.problem.errors import InputError
from symphony.telemetry.expressions import (
    Binary,
    Conditional,
    Constant,
    Expression,
    Name,
    NameQuery,
    Negative,
    Number,
    key,
    names,
)
from symphony.telemetry.machine import Platform

V = TypeVar("V")
Definitions = Mapping[str, Expression]  # metrics by `key` of their names
Values = Any  # a float, or an array of floats


class Arithmetic(Protocol[V]):
    """What `apply` computes with."""

    def number(self, value: float) -> V:
        """A literal, or a constant of the machine."""

    def event(self, name: str) -> V:
        """The count of an event."""

    def sources(self, name: str) -> V:
        """The number of units that an event's count was summed over."""

    def present(self, name: str) -> V:
        """1 if the event exists, else 0."""

    def negative(self, of: V) -> V:
        """Unary minus."""

    def binary(self, operator: str, left: V, right: V) -> V:
        """An operator, or one of min, max and d_ratio."""

    def choose(self, then: V, condition: V, otherwise: V) -> V:
        """`then if condition else otherwise`."""


def apply(tree: Expression, arithmetic: Arithmetic[V], metrics: Mapping[str, V], platform: Platform) -> V:
    """The value of an expression, given the values of the metrics that it refers to (by key)."""

    def value(part: Expression) -> V:
        match part:
            case Number(number):
                return arithmetic.number(number)
            case Name(text):
                name = key(text)
                return metrics[name] if name in metrics else arithmetic.event(name)
            case Constant(name):
                return arithmetic.number(platform.constant(name))
            case NameQuery("source_count", name):
                return arithmetic.sources(key(name))
            case NameQuery("has_event", name):
                return arithmetic.present(key(name))
            case NameQuery(_, pattern):
                return arithmetic.number(platform.is_cpu(pattern))
            case Negative(of):
                return arithmetic.negative(value(of))
            case Binary(operator, left, right):
                return arithmetic.binary(operator, value(left), value(right))
            case Conditional(then, condition, otherwise):
                return arithmetic.choose(value(then), value(condition), value(otherwise))
        raise TypeError(part)  # unreachable

    return value(tree)


def in_order(trees: Iterable[Expression], definitions: Definitions) -> list[str]:
    """All metrics that the expressions refer to, directly or not, in topological order."""
    graph: dict[str, set[str]] = {}
    new = {name for tree in trees for name in map(key, names(tree)) if name in definitions}
    while new:
        for name in new:
            graph[name] = {used for used in map(key, names(definitions[name])) if used in definitions}
        new = {used for name in new for used in graph[name]} - graph.keys()
    try:
        return list(TopologicalSorter({name: sorted(graph[name]) for name in sorted(graph)}).static_order())
    except CycleError as error:
        cycle = " → ".join(reversed(error.args[1]))
        raise InputError(
            f"metrics refer to one another in a cycle: {cycle}", hint="define one of them by events alone"
        ) from None


# --- Values ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Numeric:
    """NumPy numbers and arrays; counts by key."""

    counts: Mapping[str, Values]

    def number(self, value: float) -> Values:
        return value

    def event(self, name: str) -> Values:
        return self.counts.get(name, math.nan)

    def sources(self, name: str) -> Values:
        return 1.0 if name in self.counts else math.nan  # counts are those of one place

    def present(self, name: str) -> Values:
        return float(name in self.counts)

    def negative(self, of: Values) -> Values:
        return -of

    def choose(self, then: Values, condition: Values, otherwise: Values) -> Values:
        return np.where(np.equal(condition, 0), otherwise, then)

    def binary(self, operator: str, left: Values, right: Values) -> Values:
        return _OPERATORS[operator](left, right)


def _ratio(left: Values, right: Values, of_zero: float) -> Values:
    zero = np.equal(right, 0)
    return np.where(zero, of_zero, left / np.where(zero, 1.0, right))


def _remainder(left: Values, right: Values) -> Values:
    """The remainder of the integer parts, with the sign of the left one, as in C."""
    undefined = ~np.isfinite(left) | ~np.isfinite(right) | (np.trunc(right) == 0)
    divisor = np.where(undefined, 1.0, np.trunc(right))
    return np.where(undefined, math.nan, np.fmod(np.trunc(np.where(undefined, 0.0, left)), divisor))


def _logical(left: Values, right: Values, decides: bool) -> Values:
    """`|` (a true operand decides) and `&` (a false operand decides)."""
    known_left, known_right = np.isfinite(left), np.isfinite(right)
    decided = (known_left & (np.not_equal(left, 0) == decides)) | (known_right & (np.not_equal(right, 0) == decides))
    other = np.where(known_left, right, left)
    undecided = np.where(known_left & known_right, float(not decides), other)
    return np.where(decided, float(decides), np.where(known_left | known_right, undecided, math.nan))


def _differ(left: Values, right: Values) -> Values:
    known = np.isfinite(left) & np.isfinite(right)
    return np.where(known, np.not_equal(left, 0) != np.not_equal(right, 0), math.nan)


def _less(left: Values, right: Values) -> Values:
    return np.where(np.isnan(left) | np.isnan(right), math.nan, np.less(left, right))


_OPERATORS: dict[str, Callable[[Values, Values], Values]] = {
    "|": lambda left, right: _logical(left, right, decides=True),
    "&": lambda left, right: _logical(left, right, decides=False),
    "^": _differ,
    "<": _less,
    ">": lambda left, right: _less(right, left),
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: _ratio(left, right, math.nan),
    "%": _remainder,
    "min": lambda left, right: np.where(np.less(left, right), left, right),
    "max": lambda left, right: np.where(np.greater(left, right), left, right),
    "d_ratio": lambda left, right: _ratio(left, right, 0.0),
}


def constant(operator: str, left: float, right: float) -> float:
    """The value of an operator, or of min, max and d_ratio, with two numbers."""
    with np.errstate(all="ignore"):
        return float(_OPERATORS[operator](left, right))


@dataclass(frozen=True)
class Compiled:
    """A function from counts of events to values of expressions."""

    inputs: tuple[str, ...]  # keys of events: the last axis of the argument
    outputs: tuple[str, ...]  # names of expressions: the last axis of the result
    function: Callable[[Values], Values]

    def __call__(self, counts: Values) -> Values:
        """Values [..., outputs] of the expressions for counts [..., inputs]."""
        shape = np.shape(counts)
        if shape[-1:] != (len(self.inputs),):
            raise InputError(
                f"{len(self.inputs)} counts are needed on the last axis, not an array of shape {shape}",
                hint="the order is that of `inputs`",
            )
        with np.errstate(all="ignore"):
            return self.function(np.asarray(counts, float))


def compile_expressions(
    expressions: Mapping[str, Expression],
    *,
    definitions: Definitions | None = None,
    platform: Platform | None = None,
    inputs: tuple[str, ...] | None = None,
    scales: Mapping[str, float] | None = None,
) -> Compiled:
    """Named expressions, each times its scale, as one function of counts. Shared metrics are computed once.

    `inputs`: the counted events, in the order of the argument's last axis; by default those that are needed. The count
    of any other event is NaN, and `has_event` is 0 for it.
    """
    definitions, platform = definitions or {}, platform or Platform()
    order = in_order(expressions.values(), definitions)
    if inputs is None:
        inputs = needed(expressions.values(), definitions=definitions, platform=platform)
    keys = tuple(map(key, inputs))

    def function(counts: Values) -> Values:
        numeric = _Numeric({name: counts[..., place] for place, name in enumerate(keys)})
        metrics: dict[str, Values] = {}
        for name in order:
            metrics[name] = apply(definitions[name], numeric, metrics, platform)
        values = np.zeros((*counts.shape[:-1], len(expressions)))
        for place, (name, tree) in enumerate(expressions.items()):
            values[..., place] = apply(tree, numeric, metrics, platform) * (scales or {}).get(name, 1.0)
        return values

    return Compiled(keys, tuple(expressions), function)


def side_by_side(parts: Sequence[Compiled], outputs: tuple[str, ...], inputs: tuple[str, ...]) -> Compiled:
    """Functions of the same counts as one, with their outputs in another order."""
    names = [name for part in parts for name in part.outputs]
    places = [names.index(name) for name in outputs]

    def function(counts: Values) -> Values:
        values = [np.zeros((*counts.shape[:-1], 0)), *(part.function(counts) for part in parts)]
        return np.concatenate(values, axis=-1)[..., places]

    return Compiled(tuple(map(key, inputs)), outputs, function)


# --- Events to count ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FoldedValue:
    """A constant, or NaN for a value that depends on the counts of `names`."""

    value: float
    names: frozenset[str] = frozenset()

    @property
    def fixed(self) -> bool:
        return math.isfinite(self.value)


@dataclass(frozen=True)
class _Names:
    """Folds constants, so that events of a branch that is never taken are not counted."""

    exists: Callable[[str], bool]

    def number(self, value: float) -> _FoldedValue:
        return _FoldedValue(value)

    def event(self, name: str) -> _FoldedValue:
        return _FoldedValue(math.nan, frozenset({name}))

    sources = event

    def present(self, name: str) -> _FoldedValue:
        return _FoldedValue(float(self.exists(name)))

    def negative(self, of: _FoldedValue) -> _FoldedValue:
        return _FoldedValue(-of.value, of.names)

    def choose(self, then: _FoldedValue, condition: _FoldedValue, otherwise: _FoldedValue) -> _FoldedValue:
        if condition.fixed:
            return then if condition.value else otherwise
        if then.value == otherwise.value:  # and so constants
            return then
        return _FoldedValue(math.nan, then.names | condition.names | otherwise.names)

    def binary(self, operator: str, left: _FoldedValue, right: _FoldedValue) -> _FoldedValue:
        if left.fixed and right.fixed:
            return _FoldedValue(constant(operator, left.value, right.value))
        if operator in ("|", "&") and (left.fixed or right.fixed):
            known, other = (left, right) if left.fixed else (right, left)
            return _FoldedValue(float(operator == "|")) if bool(known.value) is (operator == "|") else other
        if operator in ("/", "%") and right.value == 0:
            return _FoldedValue(math.nan)
        if operator == "d_ratio" and right.value == 0:
            return _FoldedValue(0.0)
        return _FoldedValue(math.nan, left.names | right.names)


def needed(
    trees: Iterable[Expression],
    *,
    definitions: Definitions | None = None,
    platform: Platform | None = None,
    exists: Callable[[str], bool] = lambda name: True,
) -> tuple[str, ...]:
    """Keys of the events that must be counted to evaluate expressions, in order of their first use.

    Conditionals that constants or `has_event` (answered by `exists`) decide are resolved first.
    """
    definitions, platform = definitions or {}, platform or Platform()
    trees = list(trees)
    in_order(trees, definitions)  # raises an error if metrics form a cycle
    arithmetic = _Names(exists)
    found: dict[str, None] = {}
    seen: set[str] = set()
    while trees:
        tree = trees.pop(0)
        wanted: Collection[str] = apply(tree, arithmetic, {}, platform).names
        for name in (name for name in dict.fromkeys(map(key, names(tree))) if name in wanted):
            if name not in definitions:
                found[name] = None
            elif name not in seen:
                seen.add(name)
                trees.append(definitions[name])
    return tuple(found)
