"""Trees of arrays in two long vectors, one of integers and one of floats.

A compiled program takes some microseconds for every array that goes in or comes out, however small: with the hundred of
a core and a workload, more than a decision takes. So they travel as two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


@dataclass(frozen=True)
class Packing:
    """How trees of one form are packed."""

    tree: Any  # PyTreeDef
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[np.dtype, ...]

    @classmethod
    def of(cls, tree: Any) -> Packing:
        """That of a tree of NumPy or JAX arrays, or of their shapes."""
        leaves, form = jax.tree.flatten(tree)
        kinds = tuple(np.dtype(_single(leaf.dtype)) for leaf in leaves)
        return cls(form, tuple(tuple(leaf.shape) for leaf in leaves), kinds)

    def pack(self, tree: Any, xp: Any = np) -> tuple[Any, Any]:
        """As integers and floats; `xp` is numpy, or jax.numpy within a program."""
        whole: list[Any] = [xp.zeros(0, np.int32)]
        parts: list[Any] = [xp.zeros(0, np.float32)]
        for leaf, kind in zip(jax.tree.leaves(tree), self.types, strict=True):
            floats = np.issubdtype(kind, np.floating)
            (parts if floats else whole).append(
                xp.reshape(xp.asarray(leaf), -1).astype(np.float32 if floats else np.int32)
            )
        return xp.concatenate(whole), xp.concatenate(parts)

    def peek(self, packed: tuple[Any, Any], names: Sequence[str]) -> list[Any]:
        """Some fields of a packed module of arrays, as 32 bits, without a copy."""
        places = (self._places[name] for name in names)
        return [packed[row][at : at + size].reshape(shape) for row, at, size, shape in places]

    @cached_property
    def _places(self) -> dict[str, tuple[int, int, int, tuple[int, ...]]]:
        """Where the fields that are single arrays lie: vector, offset, length, shape."""
        at, places = [0, 0], {}
        numbered = jax.tree.unflatten(self.tree, list(range(len(self.shapes))))
        names = {number: name for name, number in vars(numbered).items() if isinstance(number, int)}
        for number, (shape, kind) in enumerate(zip(self.shapes, self.types, strict=True)):
            row, size = int(np.issubdtype(kind, np.floating)), int(np.prod(shape))
            if number in names:
                places[names[number]] = (row, at[row], size, shape)
            at[row] += size
        return places

    def unpack(self, packed: tuple[Any, Any], xp: Any = jnp) -> Any:
        """The inverse of `pack`."""
        at = [0, 0]
        leaves = []
        for shape, kind in zip(self.shapes, self.types, strict=True):
            row, size = int(np.issubdtype(kind, np.floating)), int(np.prod(shape))
            leaves.append(xp.reshape(packed[row][at[row] : at[row] + size], shape).astype(kind))
            at[row] += size
        return jax.tree.unflatten(self.tree, leaves)


def _single(kind: Any) -> Any:
    """32 bits of what has 64."""
    return {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}.get(np.dtype(kind), kind)


Packed = tuple[Array, Array]
