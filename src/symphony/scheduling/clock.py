"""Amounts that grow without losing their small change: whole units in an integer, the rest in a float.

A float32 clock loses milliseconds after a few hours, and a float32 count of remaining work stops falling when steps
get small against it. Splitting both costs one addition and keeps 60 ns at any age.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.scheduling import indexing
from symphony.scheduling.indexing import BoolScalar, IntScalar


class Amount(eqx.Module):
    """`whole + part`, with 0 <= part < 1."""

    whole: Int[Array, "*shape"]
    part: Float[Array, "*shape"]

    @property
    def total(self) -> Float[Array, "*shape"]:
        """As one float: fine for differences and displays, not for accumulation."""
        return self.whole + self.part

    def plus(self, change: Float[Array, "*shape"]) -> Amount:
        """Add a float, of either sign."""
        part = self.part + change
        carry = jnp.floor(part)
        # part - carry can round up to 1 for tiny negative changes
        return Amount(self.whole + carry.astype(jnp.int32), jnp.minimum(part - carry, 1 - jnp.finfo(part.dtype).epsneg))

    def minus(self, other: Amount) -> Float[Array, "*shape"]:
        """The difference as a float; exact to rounding however large both are."""
        return (self.whole - other.whole) + (self.part - other.part)

    def take(self, index: Int[Array, "*index"]) -> Amount:
        """As `indexing.take`."""
        return Amount(indexing.take(self.whole, index), indexing.take(self.part, index))

    def put(self, index: IntScalar, value: Amount, when: BoolScalar) -> Amount:
        """As `indexing.put`."""
        return Amount(
            indexing.put(self.whole, index, value.whole, when), indexing.put(self.part, index, value.part, when)
        )

    def put_all(self, indices: Int[Array, " updates"], value: Amount, when: Bool[Array, " updates"]) -> Amount:
        """As `indexing.put_all`, with one value for all indices."""
        return Amount(
            indexing.put_all(self.whole, indices, value.whole, when),
            indexing.put_all(self.part, indices, value.part, when),
        )

    @staticmethod
    def of(total: Float[Array, "*shape"]) -> Amount:
        """From a float."""
        whole = jnp.floor(total)
        return Amount(whole.astype(jnp.int32), total - whole)


def where(condition: Bool[Array, "*#shape"], a: Amount, b: Amount) -> Amount:
    """`jnp.where` for amounts."""
    return Amount(jnp.where(condition, a.whole, b.whole), jnp.where(condition, a.part, b.part))
