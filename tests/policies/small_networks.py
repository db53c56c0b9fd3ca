"""Policies with small random networks, made at first use: what a test module makes at import, every worker makes."""

from __future__ import annotations

from functools import cache

import jax

from symphony.policies import Learned, Network, Sizes


@cache
def small_policy(**sizes: int) -> Learned:
    """The same policy at every call; a width and a memory of 8 unless said otherwise."""
    return Learned(Network(jax.random.key(0), Sizes(**{"width": 8, "memory": 8, **sizes})))
