"""Expressions evaluated as perf does it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.problem.errors import InputError
from symphony.telemetry import listing_files
from symphony.telemetry.evaluating import apply, compile_expressions, in_order, needed
from symphony.telemetry.events import Catalogue
from symphony.telemetry.expressions import Expression, key, parse
from symphony.telemetry.listings import read
from symphony.telemetry.machine import Platform
from tests.data import data
from tests.telemetry.plain_numbers import PlainNumbers
from tests.telemetry.trees import EVENTS, evaluate, expressions

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
        ("source_count(b)", 1.0),
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
    found = evaluate(parse(text), COUNTS, platform=platform)
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


def test_a_cycle_of_metrics_is_named() -> None:
    cycle = {"x": parse("y + 1"), "y": parse("z * 2"), "z": parse("x")}
    with pytest.raises(InputError) as caught:
        evaluate(parse("x"), {}, definitions=cycle)
    assert all(name in caught.value.message for name in "xyz")
    with pytest.raises(InputError, match="cycle"):
        evaluate(parse("me"), {"me": 1.0}, definitions={"me": parse("me / 2")})
    with pytest.raises(InputError, match="cycle"):
        needed([parse("y")], definitions=cycle)


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


# --- Arrays, against plain numbers ---

PLATFORM = Platform(smt_on=True, num_packages=2, cpuid="0x00000000410fd493")
counts = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 1e9, math.inf, math.nan]), st.floats(1e-12, 1e15))


@settings(max_examples=150, deadline=None)
@given(expressions, st.tuples(*[counts] * len(EVENTS)))
def test_arrays_agree_with_plain_numbers(tree: Expression, values: tuple[float, ...]) -> None:
    plain = apply(tree, PlainNumbers(dict(zip(map(key, EVENTS), values, strict=True))), {}, PLATFORM)
    compiled = compile_expressions({"it": tree}, platform=PLATFORM, inputs=EVENTS)
    np.testing.assert_allclose(compiled(np.asarray(values))[0], plain, rtol=1e-12)


@pytest.mark.parametrize("operator", ["|", "&", "^", "/", "%", "-", "*", "<", "min", "d_ratio"])
def test_arrays_agree_on_every_pair_of_special_values(operator: str) -> None:
    tree = parse(f"{operator}(a, b)" if operator.isidentifier() else f"a {operator} b")
    special = [0.0, 1.0, 2.5, math.inf, math.nan]
    pairs = [(left, right) for left in special for right in special]
    found = compile_expressions({"it": tree}, inputs=("a", "b"))(np.asarray(pairs))[:, 0]
    plain = [apply(tree, PlainNumbers({"a": left, "b": right}), {}, PLATFORM) for left, right in pairs]
    np.testing.assert_array_equal(found, plain)


def test_batches_and_scales() -> None:
    compiled = compile_expressions({"ratio": parse("m / (h + m)"), "two": parse("2")}, scales={"ratio": 100.0})
    assert compiled.inputs == ("m", "h") and compiled.outputs == ("ratio", "two")
    np.testing.assert_array_equal(compiled(np.array([[1.0, 3.0], [0.0, 0.0]])), [[25.0, 2.0], [math.nan, 2.0]])
    assert compiled(np.ones((4, 5, 2))).shape == (4, 5, 2)


def test_events_that_are_not_counted_are_absent() -> None:
    compiled = compile_expressions({"it": parse("1 if has_event(B) else a"), "b": parse("b")}, inputs=("A",))
    np.testing.assert_array_equal(compiled(np.array([5.0])), [5.0, math.nan])


def test_the_number_of_counts_is_checked() -> None:
    with pytest.raises(InputError, match="2 counts") as caught:
        compile_expressions({"it": parse("a + b")})(np.ones(3))
    assert "inputs" in caught.value.hint


@pytest.fixture(scope="module")
def sapphirerapids() -> Catalogue:
    return read(listing_files.read(data("pmu-events", "x86", "sapphirerapids"))).catalogues[0]


def test_every_metric_of_a_real_listing_has_a_value(sapphirerapids: Catalogue) -> None:
    platform = Platform(num_packages=2, num_cores=8, num_cpus_online=16, system_tsc_freq=2e9, smt_on=True)
    names = [metric.name for metric in sapphirerapids.metrics]
    compiled = sapphirerapids.compile(names, platform=platform)
    batch = np.random.default_rng(0).lognormal(15, 3, (2, len(compiled.inputs)))
    found = compiled(batch)
    assert np.isfinite(found).mean() > 0.99
    for name, value in zip(names[:20], found[0], strict=False):
        seen = dict(zip(compiled.inputs, batch[0], strict=True))
        np.testing.assert_allclose(sapphirerapids.evaluate(name, seen, platform=platform), value, rtol=1e-12)
