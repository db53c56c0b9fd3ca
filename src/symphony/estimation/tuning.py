"""Overrides for the filter over flows: factors of its parameters that training may change.

The filter's trust in readings, its expectation of changes and of the levels of others are set so that beliefs are right
on average. Good decisions may need other values: a policy that suffers more from a change detected late than from a
false alarm needs a faster filter. So a policy may bring its own factors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.estimation.flow_filter import FlowBelief, FlowParameters, Readings

FILTER_FACTORS = 3  # of bursts, of the rate of changes, and of the levels of others


class BeliefSlopes(Protocol):
    """Derivatives of a belief by the factors. Called after every window, in training only."""

    def begin(self, belief: FlowBelief) -> Any:
        """The carried state before the first window: a pytree of arrays."""

    def after(self, carried: Any, step: FilterStep) -> tuple[Any, Array]:
        """The next carried state, and the derivatives f[FACTORS, rows, 2] of a belief's mean and standard deviation."""


@dataclass(frozen=True)
class FilterStep:
    """One step of the filter, for computing how it depends on the factors."""

    factors: Array  # f[FACTORS]
    before: FlowBelief
    after: FlowBelief
    seen: Readings
    event: Array  # f[G, S, F]: rate of each event at level 1 of each flow
    number: Array  # i32: index of the window
    filter: Callable[[Array, FlowBelief], FlowBelief]  # the step as a function of the factors and the belief before
    rows: Callable[[FlowBelief], Array]  # mean and standard deviation of the load of each row f[rows, 2]
    to_rows: Callable[[Array], Array]  # values of each group's rows [G, S] as values of the topology's rows [rows]


class Tuning(eqx.Module):
    """Logarithms of factors of a filter's parameters: 0 leaves a parameter unchanged."""

    factors: Array  # f[FACTORS]
    slopes: BeliefSlopes | None = eqx.field(static=True, default=None)


def tuned(factors: Array | np.ndarray, p: FlowParameters) -> FlowParameters:
    """Parameters multiplied by the factors."""
    xp = np if isinstance(factors, np.ndarray) else jnp
    bursts, changes, levels = xp.exp(factors)
    changes = xp.minimum(p.changes * changes, 0.5)
    return p._replace(burst=p.burst * bursts, changes=changes, on_mean=p.on_mean * levels, on_std=p.on_std * levels)
