"""A policy's own say in how readings become beliefs: three numbers of the filter that training may change.

How far a reading is trusted, how far a load is thought to jump, and how wild an error may be, are first set by what
makes beliefs true on average. What makes decisions good may be something else: a policy that is hurt more by a jump
seen late than by one that was none wants another filter. So it brings its own factors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from symphony.telemetry.posterior import Belief, Parameters, Window

FILTER_FACTORS = 3  # of the error of readings, of jumps, and of the degrees of freedom of errors


class BeliefSlopes(Protocol):
    """How much a belief changes with the factors. Called after every window, in training only."""

    def begin(self, belief: Belief) -> Any:
        """What it carries from window to window, before the first: a pytree of arrays."""

    def after(self, carried: Any, step: FilterStep) -> tuple[Any, Array]:
        """What it carries on, and the slopes f[FACTORS, …, 2] of a belief's mean and deviation."""


@dataclass(frozen=True)
class FilterStep:
    """One step of the filter, for whoever asks how it depends on the factors."""

    factors: Array  # f[FACTORS]
    before: Belief
    after: Belief
    seen: Window
    number: Array  # i32: of the window
    filter: Callable[[Array, Belief], Belief]  # of factors and the belief before


class Tuning(eqx.Module):
    """Factors of a filter's parameters, as logarithms: 0 leaves them as they are."""

    factors: Array  # f[FACTORS]
    slopes: BeliefSlopes | None = eqx.field(static=True, default=None)


def tuned(factors: Array, p: Parameters) -> Parameters:
    """Parameters times the factors."""
    error, jumps, freedom = jnp.exp(factors)
    return p._replace(inflation=p.inflation * error, stride=p.stride * jumps, freedom=p.freedom * freedom)
