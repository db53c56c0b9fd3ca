"""What metric expressions are worth: evaluated as perf does it.

An expression is walked once, with an arithmetic: plain floats here (`evaluate`), the names that must be counted
(`needed`), and JAX arrays in `compiling.py`. So all of them agree on what an expression means:

- division by zero and names without a count give NaN, `d_ratio` gives 0;
- `& | ^` are logical. NaN (or infinity) is "could be anything": `0 & NaN` is 0, `1 & NaN` is NaN;
- a condition is false if it is zero; NaN is true;
- `min` and `max` are comparisons, `a < b ? a : b`: NaN on the left is passed over, on the right it stays;
- both sides of a choice are evaluated;
- a name that is a metric stands for that metric's value. Names are compared without regard to case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Protocol, TypeVar

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


class Arithmetic(Protocol[V]):
    """What a walk over an expression computes with."""

    def number(self, value: float) -> V:
        """A number, or a constant of the machine."""

    def event(self, name: str) -> V:
        """The count of an event."""

    def sources(self, name: str) -> V:
        """How many units an event's count was summed over."""

    def present(self, name: str) -> V:
        """1 if there is such an event, else 0."""

    def negative(self, of: V) -> V:
        """Minus a value."""

    def binary(self, operator: str, left: V, right: V) -> V:
        """An operator, or one of min, max and d_ratio."""

    def choose(self, then: V, condition: V, otherwise: V) -> V:
        """`then if condition else otherwise`."""


def apply(tree: Expression, arithmetic: Arithmetic[V], metrics: Mapping[str, V], platform: Platform) -> V:
    """The value of an expression in some arithmetic, given those of the metrics that it refers to."""

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
    """The metrics that expressions refer to, directly or not, each after those that it refers to itself."""
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
            f"metrics refer to one another in a circle: {cycle}", hint="define one of them by events alone"
        ) from None


# --- Plain numbers -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plain:
    """Floats, with perf's rules for NaN and zero."""

    counts: Mapping[str, float]
    units: Mapping[str, float]

    def number(self, value: float) -> float:
        return value

    def event(self, name: str) -> float:
        return self.counts.get(name, math.nan)

    def sources(self, name: str) -> float:
        return self.units.get(name, 1.0) if name in self.counts else math.nan

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


def evaluate(
    tree: Expression,
    counts: Mapping[str, float],
    *,
    definitions: Definitions | None = None,
    platform: Platform | None = None,
    sources: Mapping[str, float] | None = None,
) -> float:
    """The value of an expression given counts of events, before its scale: raw counts, `duration_time` in seconds.

    Names that are in `definitions` are evaluated in turn; others without a count are NaN.
    """
    definitions, platform = definitions or {}, platform or Platform()
    plain = _Plain(
        {key(name): float(count) for name, count in counts.items()},
        {key(name): float(number) for name, number in (sources or {}).items()},
    )
    metrics: dict[str, float] = {}
    for name in in_order([tree], definitions):
        metrics[name] = apply(definitions[name], plain, metrics, platform)
    return apply(tree, plain, metrics, platform)


# --- What has to be counted --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FoldedValue:
    """A constant, or (NaN) something that depends on counts: then `names` are those it takes."""

    value: float
    names: frozenset[str] = frozenset()

    @property
    def fixed(self) -> bool:
        return math.isfinite(self.value)


@dataclass(frozen=True)
class _Names:
    """Constants are folded, so that events of the side that is not taken are not asked for."""

    exists: Callable[[str], bool]
    _constants: _Plain = field(default_factory=lambda: _Plain({}, {}))

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
            return _FoldedValue(self._constants.binary(operator, left.value, right.value))
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

    Choices that constants or `has_event` (answered by `exists`) decide are made; the other side is not counted.
    """
    definitions, platform = definitions or {}, platform or Platform()
    trees = list(trees)
    in_order(trees, definitions)  # for its complaint about circles
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
