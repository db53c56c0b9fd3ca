"""Trees of arrays packed into two vectors, one of integers and one of floats.

A compiled program takes a few microseconds for each array that goes in or out, however small. A core and a workload
have about a hundred arrays, which would take longer than a decision. So they are passed as two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Packed = tuple[Array, Array]  # i32[…], f32[…]


class _Leaf(NamedTuple):
    vector: int  # 0: integers, 1: floats
    where: slice  # of that vector
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True)
class Packing:
    """The structure, shapes and types of the trees that are packed. Integers and floats of 64 bits become 32 bits."""

    tree: Any  # PyTreeDef
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[np.dtype, ...]

    @classmethod
    def of(cls, tree: Any) -> Packing:
        """`tree` has NumPy or JAX arrays, or only their shapes and types."""
        leaves, structure = jax.tree.flatten(tree)
        types = tuple(np.dtype(_single_precision(leaf.dtype)) for leaf in leaves)
        return cls(structure, tuple(tuple(leaf.shape) for leaf in leaves), types)

    def pack(self, tree: Any, xp: Any = np) -> tuple[Any, Any]:
        """`xp` is numpy, or jax.numpy within a compiled program."""
        vectors: tuple[list[Any], list[Any]] = ([xp.zeros(0, np.int32)], [xp.zeros(0, np.float32)])
        for array, leaf in zip(jax.tree.leaves(tree), self._leaves, strict=True):
            flat = xp.reshape(xp.asarray(array), -1)
            vectors[leaf.vector].append(flat.astype(np.float32 if leaf.vector else np.int32))
        return xp.concatenate(vectors[0]), xp.concatenate(vectors[1])

    def unpack(self, packed: tuple[Any, Any], xp: Any = jnp) -> Any:
        """Inverse of `pack`."""
        arrays = [xp.reshape(packed[leaf.vector][leaf.where], leaf.shape).astype(leaf.dtype) for leaf in self._leaves]
        return jax.tree.unflatten(self.tree, arrays)

    def peek(self, packed: tuple[Any, Any], names: Sequence[str]) -> list[Any]:
        """Fields of a packed module that are single arrays, as 32 bits, without a copy."""
        leaves = (self._fields[name] for name in names)
        return [packed[leaf.vector][leaf.where].reshape(leaf.shape) for leaf in leaves]

    @cached_property
    def _leaves(self) -> tuple[_Leaf, ...]:
        ends, leaves = [0, 0], []
        for shape, dtype in zip(self.shapes, self.types, strict=True):
            vector = int(np.issubdtype(dtype, np.floating))
            start = ends[vector]
            ends[vector] += int(np.prod(shape))
            leaves.append(_Leaf(vector, slice(start, ends[vector]), shape, dtype))
        return tuple(leaves)

    @cached_property
    def _fields(self) -> dict[str, _Leaf]:
        fields = vars(jax.tree.unflatten(self.tree, list(range(len(self._leaves)))))
        return {name: self._leaves[number] for name, number in fields.items() if isinstance(number, int)}


def _single_precision(dtype: Any) -> Any:
    return {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}.get(np.dtype(dtype), dtype)
