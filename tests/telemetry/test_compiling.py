"""Expressions as JAX functions: the same values as the plain ones, and gradients."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.problem.errors import InputError
from symphony.telemetry import listing_files
from symphony.telemetry.compiling import compile_expressions
from symphony.telemetry.evaluating import evaluate
from symphony.telemetry.events import Catalogue
from symphony.telemetry.expressions import Expression, parse
from symphony.telemetry.listings import read
from symphony.telemetry.machine import Platform
from tests.data import data
from tests.telemetry.trees import EVENTS, expressions

PLATFORM = Platform(smt_on=True, num_packages=2, cpuid="0x00000000410fd493")
counts = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 1e9, math.inf, math.nan]), st.floats(1e-12, 1e15))


@settings(max_examples=150, deadline=None)
@given(expressions, st.tuples(*[counts] * len(EVENTS)))
def test_agrees_with_the_plain_form(tree: Expression, values: tuple[float, ...]) -> None:
    plain = evaluate(tree, dict(zip(EVENTS, values, strict=True)), platform=PLATFORM, sources={"a": 3})
    with jax.enable_x64(True):
        compiled = compile_expressions({"it": tree}, platform=PLATFORM, sources={"a": 3}, inputs=EVENTS)
        found = float(compiled(jnp.asarray(values))[0])
    np.testing.assert_allclose(found, plain, rtol=1e-12)
    numpy = compile_expressions({"it": tree}, platform=PLATFORM, sources={"a": 3}, inputs=EVENTS, xp=np)
    np.testing.assert_allclose(numpy(np.asarray(values))[0], plain, rtol=1e-12)


@pytest.mark.parametrize("operator", ["|", "&", "^", "/", "%", "-", "*", "<", "min", "d_ratio"])
def test_agrees_on_every_pair_of_special_values(operator: str) -> None:
    text = f"{operator}(a, b)" if operator.isidentifier() else f"a {operator} b"
    special = [0.0, 1.0, 2.5, math.inf, math.nan]
    pairs = [(left, right) for left in special for right in special]
    with jax.enable_x64(True):
        found = compile_expressions({"it": parse(text)}, inputs=("a", "b"))(jnp.asarray(pairs))[:, 0]
    plain = [evaluate(parse(text), {"a": left, "b": right}) for left, right in pairs]
    np.testing.assert_array_equal(np.asarray(found), plain)


def value_and_gradient(text: str, **at: float) -> tuple[float, list[float]]:
    with jax.enable_x64(True):
        compiled = compile_expressions({"it": parse(text)}, inputs=tuple(at))
        value, gradient = jax.value_and_grad(lambda x: compiled(x)[0])(jnp.asarray(list(at.values())))
        return float(value), [float(part) for part in gradient]


def test_gradients() -> None:
    assert value_and_gradient("a * a / b", a=3.0, b=2.0) == (4.5, [3.0, -2.25])
    assert value_and_gradient("max(a, b) + min(a, b) * 2", a=3.0, b=2.0) == (7.0, [1.0, 2.0])
    assert value_and_gradient("a if a > b else b * 5", a=1.0, b=2.0) == (10.0, [0.0, 5.0])
    assert value_and_gradient("d_ratio(a, b)", a=1.0, b=0.0) == (0.0, [0.0, 0.0])


def test_the_side_that_is_not_taken_does_not_spoil_the_gradient() -> None:
    assert value_and_gradient("a * (1 / b) if b > 0 else a * 2", a=3.0, b=0.0) == (6.0, [2.0, 0.0])
    assert value_and_gradient("max(a * (a / b), a)", a=3.0, b=0.0) == (3.0, [1.0, 0.0])


def test_batches_and_jit() -> None:
    compiled = compile_expressions({"ratio": parse("m / (h + m)"), "two": parse("2")})
    assert compiled.inputs == ("m", "h") and compiled.outputs == ("ratio", "two")
    values = jax.jit(jax.vmap(compiled))(jnp.array([[1.0, 3.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(values, [[0.25, 2.0], [math.nan, 2.0]])
    assert compiled(jnp.ones((4, 5, 2))).shape == (4, 5, 2)
    np.testing.assert_allclose(compiled.scaled([100.0, 1.0])(jnp.array([1.0, 3.0])), [25.0, 2.0])


def test_events_that_are_not_counted_are_absent() -> None:
    compiled = compile_expressions({"it": parse("1 if has_event(B) else a"), "b": parse("b")}, inputs=("A",))
    np.testing.assert_array_equal(compiled(jnp.array([5.0])), [5.0, math.nan])


def test_shared_metrics_are_computed_once() -> None:
    shared = {"s": parse("a / b")}
    several = {f"m{i}": parse(f"s + {i}") for i in range(20)}
    compiled = compile_expressions(several, definitions=shared)
    text = str(jax.make_jaxpr(compiled)(jnp.ones(2)))
    assert text.count(" div ") == 1


def test_the_number_of_counts_is_checked() -> None:
    with pytest.raises(InputError, match="2 counts") as caught:
        compile_expressions({"it": parse("a + b")})(jnp.ones(3))
    assert "inputs" in caught.value.hint


@pytest.fixture(scope="module")
def sapphirerapids() -> Catalogue:
    return read(listing_files.read(data("pmu-events", "x86", "sapphirerapids"))).catalogues[0]


def test_every_metric_of_a_real_listing_agrees(sapphirerapids: Catalogue) -> None:
    platform = Platform(num_packages=2, num_cores=8, num_cpus_online=16, system_tsc_freq=2e9, smt_on=True)
    names = [metric.name for metric in sapphirerapids.metrics]
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        compiled = sapphirerapids.compile(names, platform=platform)
        batch = rng.lognormal(15, 3, (3, len(compiled.inputs)))
        batch[2, rng.random(len(compiled.inputs)) < 0.3] = 0
        found = np.asarray(compiled(jnp.asarray(batch)))
    for row, values in zip(batch, found, strict=True):
        seen = dict(zip(compiled.inputs, row, strict=True))
        plain = [sapphirerapids.evaluate(name, seen, platform=platform) for name in names]
        # Sums of very unlike counts: a few units in the last place.
        np.testing.assert_allclose(values, plain, rtol=1e-9, atol=1e-9)
    assert np.isfinite(found[:2]).mean() > 0.99
