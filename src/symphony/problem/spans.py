"""`Topology.distance` and `Topology.span` on arrays."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.problem.topology import LOCAL, PEER

_SPAN_LEVELS = np.arange(1, 6, dtype=np.int32)  # the span if places differ in home, switch, socket, machine, rack


def distance(place_a: Array, place_b: Array) -> Array:
    """Distance between two places [..., 5] (`TopologyArrays.place`)."""
    differ = place_a != place_b
    xp = np if isinstance(differ, np.ndarray) else jnp
    return xp.where(differ[..., 0], xp.where(differ, _SPAN_LEVELS, 0).max(axis=-1), LOCAL)


def span(place_a: Array, peers_a: Array, place_b: Array, peers_b: Array) -> Array:
    """Distance, or PEER where both ends have direct links to each other. In NumPy for NumPy arrays."""
    far = distance(place_a, place_b)
    xp = np if isinstance(far, np.ndarray) else jnp
    return xp.where((far != LOCAL) & (peers_a >= 0) & (peers_a == peers_b), PEER, far)


def gang_span(place: Array, peers: Array, member: Array) -> Array:
    """Span of a gang with workers at `place` [W, 5]. Only rows with `member` [W] count, and the first row always."""
    differ = (place != place[0]) & member[:, None]
    far = jnp.where(differ, _SPAN_LEVELS, 0).max()
    linked = ((peers == peers[0]) | ~member).all() & (peers[0] >= 0)
    return jnp.where(differ[:, 0].any(), jnp.where(linked, PEER, far), LOCAL)
