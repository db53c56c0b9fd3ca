"""Amounts that grow without losing their small change: whole units in an integer, the rest in a float.

A float32 clock loses milliseconds after a few hours, and a float32 count of remaining work stops falling when steps
get small against it. Splitting both costs one addition and keeps 60 ns at any age.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array


class Amount(eqx.Module):
    """`whole + part`, with 0 <= part < 1."""

    whole: Array  # i32
    part: Array  # f

    @property
    def total(self) -> Array:
        """As one float: fine for differences and displays, not for accumulation."""
        return self.whole + self.part

    def plus(self, change: Array) -> Amount:
        """Add a float, of either sign."""
        part = self.part + change
        carry = jnp.floor(part)
        # part - carry can round up to 1 for tiny negative changes
        return Amount(self.whole + carry.astype(jnp.int32), jnp.minimum(part - carry, 1 - jnp.finfo(part.dtype).epsneg))

    def minus(self, other: Amount) -> Array:
        """The difference as a float; exact to rounding however large both are."""
        return (self.whole - other.whole) + (self.part - other.part)

    @staticmethod
    def of(total: Array) -> Amount:
        """From a float."""
        whole = jnp.floor(total)
        return Amount(whole.astype(jnp.int32), total - whole)


def where(condition: Array, a: Amount, b: Amount) -> Amount:
    """Elementwise choice."""
    return Amount(jnp.where(condition, a.whole, b.whole), jnp.where(condition, a.part, b.part))
