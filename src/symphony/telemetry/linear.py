"""Metric expressions as sums of fractions whose numerators and denominators are linear in counts.

`1 - a / (b + c)` is such a form; `max(a, b)` and `a * b` are not. They become *opaque* symbols, of which only this is
known: equal expressions are equal symbols. So even a slot count that depends on three events nonlinearly cancels like
any other denominator, and the rest shows whether a relation between metrics is one between counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from symphony.telemetry import evaluating
from symphony.telemetry.machine import Platform

CONSTANT_TERM = ""  # the name of the constant term of a sum
OPAQUE = "?"  # prefix of the names of opaque symbols
_MIN_COEFFICIENT = 1e-12  # relative size below which a coefficient is a rounding error

Sum = tuple[tuple[str, float], ...]  # name, coefficient; sorted, none zero
CONSTANT_ONE: Sum = ((CONSTANT_TERM, 1.0),)


def total(*parts: tuple[Sum, float]) -> Sum:
    """The sum of sums, each times a factor."""
    found: dict[str, float] = {}
    largest: dict[str, float] = {}
    for terms, factor in parts:
        for name, coefficient in terms:
            term = factor * coefficient
            found[name] = found.get(name, 0.0) + term
            largest[name] = max(largest.get(name, 0.0), abs(term))
    return tuple(
        sorted((name, value) for name, value in found.items() if abs(value) > _MIN_COEFFICIENT * largest[name])
    )


def ratio(a: Sum, b: Sum) -> float | None:
    """The factor f with a = f × b; None if there is none."""
    if not b or len(a) != len(b) or any(left[0] != right[0] for left, right in zip(a, b, strict=True)):
        return None
    factor = a[0][1] / b[0][1]
    same = all(math.isclose(left[1], factor * right[1], rel_tol=1e-9) for left, right in zip(a, b, strict=True))
    return factor if same else None


@dataclass(frozen=True)
class Form:
    """A sum of fractions: denominator → numerator; denominators are unique and have a first coefficient of 1."""

    fractions: tuple[tuple[Sum, Sum], ...] = ()

    @property
    def number(self) -> float | None:
        """The value if it does not depend on counts, else None."""
        if not self.fractions:
            return 0.0
        bottom, top = self.fractions[0]
        if len(self.fractions) == 1 and bottom == CONSTANT_ONE and len(top) == 1 and top[0][0] == CONSTANT_TERM:
            return top[0][1]
        return None

    @property
    def single(self) -> tuple[Sum, Sum] | None:
        """Numerator and denominator as one fraction; None if there are several denominators that are not constant."""
        constant = dict(self.fractions).get(CONSTANT_ONE, ())
        others = [(bottom, top) for bottom, top in self.fractions if bottom != CONSTANT_ONE]
        if not others:
            return constant, CONSTANT_ONE
        if len(others) > 1 or any(name != CONSTANT_TERM for name, _ in constant):
            return None
        bottom, top = others[0]
        return total((top, 1.0), (bottom, constant[0][1] if constant else 0.0)), bottom


def fraction(top: Sum, bottom: Sum = CONSTANT_ONE) -> Form:
    """One sum divided by another."""
    if not top:
        return Form()
    if (constant := ratio(top, bottom)) is not None:
        return Form(((CONSTANT_ONE, ((CONSTANT_TERM, constant),)),))
    first = bottom[0][1]
    return Form(((total((bottom, 1 / first)), total((top, 1 / first))),))


def add(a: Form, b: Form, factor: float = 1.0) -> Form:
    """`a + factor * b`."""
    tops = dict(a.fractions)
    for bottom, top in b.fractions:
        tops[bottom] = total((tops.get(bottom, ()), 1.0), (top, factor))
    constant = tops.pop(CONSTANT_ONE, ())
    for bottom, top in list(tops.items()):
        if (share := ratio(top, bottom)) is not None:  # a / (a + b) + b / (a + b) is 1
            constant = total((constant, 1.0), (CONSTANT_ONE, share))
            del tops[bottom]
    tops[CONSTANT_ONE] = constant
    return Form(tuple(sorted((bottom, top) for bottom, top in tops.items() if top)))


@dataclass
class LinearArithmetic:
    """An arithmetic (`evaluating.Arithmetic`) whose values are forms.

    `max(x, 0)` is taken as `x`, which is the same for correct counts. Every event is assumed to exist.
    """

    _opaque: dict[object, str] = field(default_factory=dict)

    def number(self, value: float) -> Form:
        """A number; each NaN (an unknown constant of the machine) is a symbol of its own."""
        if math.isfinite(value):
            return fraction(((CONSTANT_TERM, value),)) if value else Form()
        return self._symbol(("unknown", len(self._opaque)))

    def event(self, name: str) -> Form:
        return fraction(((name, 1.0),))

    def sources(self, name: str) -> Form:
        return self._symbol(("sources", name))

    def present(self, name: str) -> Form:
        return self.number(1.0)

    def negative(self, of: Form) -> Form:
        return add(Form(), of, -1.0)

    def choose(self, then: Form, condition: Form, otherwise: Form) -> Form:
        if condition.number is not None:
            return then if condition.number else otherwise
        return then if then == otherwise else self._symbol(("choice", then, condition, otherwise))

    def binary(self, operator: str, left: Form, right: Form) -> Form:
        a, b = left.number, right.number
        if a is not None and b is not None:
            return self.number(evaluating.constant(operator, a, b))
        match operator:
            case "+":
                return add(left, right)
            case "-":
                return add(left, right, -1.0)
            case "*":
                return self._product(left, right)
            case "/" | "d_ratio":
                return self._quotient(left, right)
            case "max" if 0.0 in (a, b):
                return right if a == 0 else left
        return self._symbol((operator, left, right))

    def _symbol(self, what: object) -> Form:
        return self.event(self._opaque.setdefault(what, f"{OPAQUE}{len(self._opaque)}"))

    def _product(self, left: Form, right: Form) -> Form:
        result = Form()
        for below, top in left.fractions:
            for beneath, other in right.fractions:
                result = add(result, self._times(top, below, other, beneath))
        return result

    def _times(self, top: Sum, below: Sum, other: Sum, beneath: Sum) -> Form:
        """`top / below * other / beneath`, with common factors cancelled."""
        for a, b, c, d in ((top, below, other, beneath), (other, beneath, top, below)):
            if (factor := ratio(a, d)) is not None:  # (d / b) * (c / d)
                return fraction(total((c, factor)), b)
            if (factor := ratio(a, CONSTANT_ONE)) is not None and b == CONSTANT_ONE:  # a number
                return fraction(total((c, factor)), d)
            if (factor := ratio(a, CONSTANT_ONE)) is not None and d == CONSTANT_ONE:  # (1 / b) * c
                return fraction(total((c, factor)), b)
        return self._symbol(("*", *sorted(((top, below), (other, beneath)))))

    def _quotient(self, left: Form, right: Form) -> Form:
        if right.number == 0 or not right.fractions:
            return self.number(math.nan)
        if (whole := right.single) is None:
            return self._product(left, fraction(CONSTANT_ONE, self._symbol(("sum", right)).fractions[0][1]))
        top, bottom = whole
        result = Form()
        for below, over in left.fractions:
            result = add(result, self._times(over, below, bottom, top))
        return result


def forms(definitions: evaluating.Definitions, platform: Platform) -> dict[str, Form]:
    """Every metric as a form, by key."""
    arithmetic = LinearArithmetic()
    found: dict[str, Form] = {}
    trees = dict(definitions)
    for name in (*evaluating.in_order(trees.values(), definitions), *trees):
        if name not in found:
            found[name] = evaluating.apply(trees[name], arithmetic, found, platform)
    return found
