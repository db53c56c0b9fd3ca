"""How sharing slows work down: one mechanism for cores, caches, memory, PCIe and the network.

Loads are integers in units of 2**-16 of a row's capacity. Adding and removing a worker then leaves no trace however
often it happens and in whatever order, on a CPU as on a GPU, and an unchanged neighbourhood gives a bit-equal rate.
"""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jax import Array

LOAD_UNIT = 2.0**-16
MAX_LOAD = 2.0**20 * LOAD_UNIT  # of one user on one row: a demand of 16 times the capacity is cut there
MAX_BANDWIDTH = 1e15  # bytes/s, where traffic crosses no row at all


def to_load(fraction: Array) -> Array:
    """A fraction of capacity as an integer load."""
    return jnp.round(jnp.minimum(fraction, MAX_LOAD) / LOAD_UNIT).astype(jnp.int32)


class ContentionModel(eqx.Module):
    """What a load does to those who cause it. Both methods must be pure and traceable."""

    @abstractmethod
    def share(self, load: Array) -> Array:
        """Share that each user gets of a row with this total load (own and background), in (0, 1]."""

    @abstractmethod
    def compose(self, shares: Array, used: Array) -> Array:
        """Combined share over the last axis, counting only the rows that are `used`; 1 if none is."""


class Bottleneck(ContentionModel):
    """Users of an overloaded row get equal parts of what they ask for; the scarcest row sets the pace."""

    def share(self, load: Array) -> Array:
        """1 up to capacity, then 1/load."""
        return 1 / jnp.maximum(load, 1)

    def compose(self, shares: Array, used: Array) -> Array:
        """The smallest."""
        return jnp.where(used, shares, 1).min(axis=-1)


class Serial(ContentionModel):
    """As `Bottleneck`, but waits for different rows add up instead of overlapping."""

    def share(self, load: Array) -> Array:
        """1 up to capacity, then 1/load."""
        return 1 / jnp.maximum(load, 1)

    def compose(self, shares: Array, used: Array) -> Array:
        """Product of the shares."""
        return jnp.where(used, shares, 1).prod(axis=-1)
