"""Expressions evaluated as perf does it."""

from __future__ import annotations

import math

import pytest

from symphony.problem.errors import InputError
from symphony.telemetry.evaluating import evaluate, in_order, needed
from symphony.telemetry.expressions import parse
from symphony.telemetry.machine import Platform

NAN = math.nan
COUNTS = {"a": 6.0, "b": 4.0, "z": 0.0, "CPU/Ev,cmask=1/": 5.0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a - b - 1", 1.0),
        ("a / z", NAN),
        ("z / z", NAN),
        ("d_ratio(a, z)", 0.0),
        ("d_ratio(unknown, z)", 0.0),
        ("d_ratio(a, b)", 1.5),
        ("a % b", 2.0),
        ("-7 % b", -3.0),
        ("7.9 % 4.9", 3.0),
        ("a % z", NAN),
        ("a % 0.5", NAN),
        ("unknown + 1", NAN),
        ("a > b", 1.0),
        ("a < b", 0.0),
        ("unknown < b", NAN),
        ("a & b", 1.0),
        ("6 & 1", 1.0),  # logical, not bit by bit
        ("a & z", 0.0),
        ("z | b", 1.0),
        ("z | z", 0.0),
        ("a ^ b", 0.0),
        ("a ^ z", 1.0),
        ("unknown & z", 0.0),
        ("unknown & a", NAN),
        ("z | unknown", NAN),
        ("a | unknown", 1.0),
        ("unknown | unknown", NAN),
        ("unknown ^ a", NAN),
        ("1 if a > b else 2", 1.0),
        ("1 if z else 2", 2.0),
        ("1 if unknown else 2", 1.0),
        ("1 if NaN else 2", 1.0),
        ("a / z if z else b", 4.0),
        ("1 if z else 2 if z else 3", 3.0),
        ("min(a, b)", 4.0),
        ("max(a, b)", 6.0),
        ("min(unknown, b)", 4.0),
        ("max(b, unknown)", NAN),
        ("-a + 1", -5.0),
        ("-(a + 1)", -7.0),
        ("A + B", 10.0),
        (r"cpu@EV\,cmask\=1@", 5.0),
        ("has_event(A)", 1.0),
        ("has_event(unknown)", 0.0),
        ("source_count(b)", 3.0),
        ("source_count(a)", 1.0),
        ("source_count(unknown)", NAN),
        ("#num_packages * 10", 20.0),
        ("#SMT_on + #smt_on", 2.0),
        ("#slots", 8.0),
        ("#System_TSC_Freq", NAN),
        ("strcmp_cpuid_str(0x410fd493)", 1.0),
        ("strcmp_cpuid_str(0x410fd4a0)", 0.0),
    ],
)
def test_values(text: str, value: float) -> None:
    platform = Platform(smt_on=True, num_packages=2, slots=8, cpuid="0x00000000410fd493")
    found = evaluate(parse(text), COUNTS, platform=platform, sources={"B": 3})
    assert found == value or (math.isnan(found) and math.isnan(value)), found


def test_what_is_not_known_about_the_machine_is_not_a_number() -> None:
    assert math.isnan(evaluate(parse("strcmp_cpuid_str(0x410fd493) + #slots"), {}))


def test_a_constant_that_there_is_not_is_named() -> None:
    with pytest.raises(InputError, match="#NUM_CPUS") as caught:
        evaluate(parse("#NUM_CPUS"), {})
    assert "#num_cpus" in caught.value.hint


DEFINITIONS = {
    "ratio": parse("Misses / all_"),
    "all_": parse("hits + misses"),
    "percent": parse("100 * RATIO + 0 * all_"),
}


def test_metrics_refer_to_metrics() -> None:
    value = evaluate(parse("Percent + 1"), {"hits": 3, "MISSES": 1}, definitions=DEFINITIONS)
    assert value == 26.0
    assert in_order([parse("percent")], DEFINITIONS) == ["all_", "ratio", "percent"]
    assert in_order([parse("hits")], DEFINITIONS) == []


def test_a_circle_of_metrics_is_named() -> None:
    circle = {"x": parse("y + 1"), "y": parse("z * 2"), "z": parse("x")}
    with pytest.raises(InputError) as caught:
        evaluate(parse("x"), {}, definitions=circle)
    assert all(name in caught.value.message for name in "xyz")
    with pytest.raises(InputError, match="circle"):
        evaluate(parse("me"), {"me": 1.0}, definitions={"me": parse("me / 2")})
    with pytest.raises(InputError, match="circle"):
        needed([parse("y")], definitions=circle)


def test_long_chains_of_metrics_do_not_exhaust_the_stack() -> None:
    chain = {f"m{i}": parse(f"m{i - 1} + 1") for i in range(1, 3000)} | {"m0": parse("e")}
    assert evaluate(parse("m2999"), {"e": 1.0}, definitions=chain) == 3000.0


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a + B * a", ("a", "b")),
        ("a if #SMT_on else b", ("b",)),
        ("a if 1 - #SMT_on else b", ("a",)),
        ("a if b > 1 else c", ("a", "b", "c")),
        ("a if has_event(Gone) else b", ("b",)),
        ("a if has_event(here) else b", ("a",)),
        ("2 if a else 2", ()),
        ("a & 0", ()),
        ("a & 1", ("a",)),
        ("1 | a", ()),
        ("a / 0", ()),
        ("d_ratio(a, 0) + b", ("b",)),
        ("a if #slots else b", ("a", "b")),  # not known
        ("min(a, 1)", ("a",)),
        ("source_count(a)", ("a",)),
        ("percent", ("misses", "hits")),
        ("-(1 - 1) & a", ()),
    ],
)
def test_needed_events(text: str, names: tuple[str, ...]) -> None:
    assert needed([parse(text)], definitions=DEFINITIONS, exists=lambda name: name == "here") == names


def test_needed_events_of_several_expressions_are_named_once() -> None:
    assert needed([parse("a + b"), parse("b + c")]) == ("a", "b", "c")
