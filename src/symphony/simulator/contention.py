"""Contention: one mechanism for cores, caches, memory, PCIe and the network.

Loads are integers in units of 2**-16 of a row's capacity. Adding and removing a worker then leaves no trace however
often it happens and in whatever order, on a CPU as on a GPU, and an unchanged neighbourhood gives a bit-equal rate.
"""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

LOAD_UNIT = 2.0**-16
MAX_LOAD = 2.0**20 * LOAD_UNIT  # of one user on one row: a demand of 16 times the capacity is cut there
MAX_BANDWIDTH = 1e15  # bytes/s, where traffic crosses no row at all


def to_load(fraction: Float[Array, "*shape"]) -> Int[Array, "*shape"]:
    """A fraction of capacity as an integer load."""
    return jnp.round(jnp.minimum(fraction, MAX_LOAD) / LOAD_UNIT).astype(jnp.int32)


Shares = Float[Array, "*#shape hops"]


class ContentionModel(eqx.Module):
    """How load on shared rows slows its users down. Both methods must be pure and traceable."""

    def share(self, load: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Share that each user gets of a row with this total load (own and background), in (0, 1].

        By default 1 up to capacity, then 1/load: users of an overloaded row get equal fractions of their demands.
        """
        return 1 / jnp.maximum(load, 1)

    @abstractmethod
    def compose(self, shares: Shares, used: Bool[Array, "*#shape hops"]) -> Float[Array, "*#shape"]:
        """Combined share over the last axis, over the rows that are `used` only; 1 if none is."""


class Bottleneck(ContentionModel):
    """The row with the smallest share sets the rate."""

    def compose(self, shares: Shares, used: Bool[Array, "*#shape hops"]) -> Float[Array, "*#shape"]:
        return jnp.where(used, shares, 1).min(axis=-1)


class Serial(ContentionModel):
    """Delays at different rows add up instead of overlapping: the product of the shares."""

    def compose(self, shares: Shares, used: Bool[Array, "*#shape hops"]) -> Float[Array, "*#shape"]:
        return jnp.where(used, shares, 1).prod(axis=-1)
