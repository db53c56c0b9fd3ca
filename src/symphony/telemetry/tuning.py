"""Overrides for the counter filter: three factors of its parameters that training may change.

The filter's trust in readings, its expectation of jumps and the tails of its errors are calibrated so that beliefs are
right on average. Good decisions may need other values: a policy that suffers more from a jump detected late than from a
false alarm needs a faster filter. So a policy may bring its own factors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from symphony.telemetry.posterior import Belief, Parameters, Window

FILTER_FACTORS = 3  # of readings' errors, of jumps, and of the errors' degrees of freedom


class BeliefSlopes(Protocol):
    """Derivatives of a belief by the factors. Called after every window, in training only."""

    def begin(self, belief: Belief) -> Any:
        """The carried state before the first window: a pytree of arrays."""

    def after(self, carried: Any, step: FilterStep) -> tuple[Any, Array]:
        """The next carried state, and the derivatives f[FACTORS, …, 2] of a belief's mean and standard deviation."""


@dataclass(frozen=True)
class FilterStep:
    """One step of the filter, for computing how it depends on the factors."""

    factors: Array  # f[FACTORS]
    before: Belief
    after: Belief
    seen: Window
    number: Array  # i32: index of the window
    filter: Callable[[Array, Belief], Belief]  # the step as a function of the factors and the belief before


class Tuning(eqx.Module):
    """Logarithms of factors of a filter's parameters: 0 leaves a parameter unchanged."""

    factors: Array  # f[FACTORS]
    slopes: BeliefSlopes | None = eqx.field(static=True, default=None)


def tuned(factors: Array, p: Parameters) -> Parameters:
    """Parameters multiplied by the factors."""
    error, jumps, freedom = jnp.exp(factors)
    return p._replace(inflation=p.inflation * error, stride=p.stride * jumps, freedom=p.freedom * freedom)
