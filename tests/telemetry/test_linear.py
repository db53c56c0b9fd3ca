"""Expressions as sums of fractions: what is linear is found to be, what is not cancels all the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symphony.telemetry import evaluating, linear
from symphony.telemetry.expressions import Expression, key, parse
from symphony.telemetry.machine import Platform
from tests.telemetry import trees


def form(text: str, **metrics: str) -> linear.Form:
    definitions = {key(name): parse(expression) for name, expression in metrics.items()}
    return linear.forms(definitions | {"it": parse(text)}, Platform())["it"]


def single(text: str, **metrics: str) -> tuple[dict[str, float], dict[str, float]]:
    found = form(text, **metrics).single
    assert found is not None
    return dict(found[0]), dict(found[1])


@pytest.mark.parametrize(
    ("text", "top", "bottom"),
    [
        ("1 - a / b", {"a": -1, "b": 1}, {"b": 1}),
        ("(a - b) / (2 * c) + d / c", {"a": 0.5, "b": -0.5, "d": 1}, {"c": 1}),
        ("max(1 - a / b - c / b, 0)", {"a": -1, "b": 1, "c": -1}, {"b": 1}),
        ("d_ratio(a, b) * b - c", {"a": 1, "c": -1}, {"": 1}),
        ("(a / b) / (c / b)", {"a": 1}, {"c": 1}),
        ("100 * a / b if #SMT_on else -a", {"a": -1}, {"": 1}),
        ("a * has_event(b)", {"a": 1}, {"": 1}),
    ],
)
def test_linear_ones(text: str, top: dict[str, float], bottom: dict[str, float]) -> None:
    assert single(text) == (pytest.approx(top), pytest.approx(bottom))


def test_fractions_that_make_a_whole_are_a_number() -> None:
    assert form("a / (a + b) + b / (a + b)").number == 1
    assert form("a / (a + b) - 1 + b / (b + a)").number == 0


def test_what_is_not_linear_cancels_as_a_denominator() -> None:
    # Slots that depend on three events in a crooked way.
    slots = "4 * a / 2 * (1 + b / c)"
    top, bottom = single("x - y", slots=slots, x="d / slots", y="4 * e / slots")
    assert top["d"] * -4 == pytest.approx(top["e"]) and set(top) == {"d", "e"}
    assert any(name.startswith(linear.OPAQUE) for name in bottom)


@pytest.mark.parametrize("text", ["a * b", "min(a, b)", "a if b > c else d", "a % b", "a * #slots", "source_count(a)"])
def test_what_is_not_linear_is_opaque(text: str) -> None:
    top, _ = single(text)
    assert all(name.startswith(linear.OPAQUE) for name in top)


def test_two_denominators_are_not_one_fraction() -> None:
    assert form("a / b + c / d").single is None
    assert single("a / b + c / d - c / d") == ({"a": 1}, {"b": 1})


def test_unknown_constants_are_not_equal() -> None:
    assert form("a / #slots - a / #slots").number is None


def _value(terms: linear.Sum, counts: dict[str, float]) -> float:
    return sum(value * (1.0 if name == linear.CONSTANT_TERM else counts[name]) for name, value in terms)


@given(trees.expressions, st.lists(st.floats(1, 1e6), min_size=5, max_size=5))
def test_forms_have_the_value_of_their_expressions(tree: Expression, values: list[float]) -> None:
    counts = dict(zip((*map(key, trees.EVENTS), "missing"), values, strict=True))
    whole = evaluating.apply(tree, linear.LinearArithmetic(), {}, Platform()).single
    if whole is None or any(name.startswith(linear.OPAQUE) for part in whole for name, _ in part):
        return
    wanted = trees.evaluate(tree, counts)
    bottom = _value(whole[1], counts)
    clipped = any(word in str(tree) for word in ("max", "d_ratio"))
    if abs(wanted) < 1e12 and bottom and not clipped:
        top = sum(abs(value) * (counts[name] if name else 1.0) for name, value in whole[0])
        assert _value(whole[0], counts) / bottom == pytest.approx(wanted, rel=1e-6, abs=1e-6 * abs(top / bottom) + 1e-9)
