"""Reading and writing single elements of small arrays, in the form that compiles best.

Under `vmap`, `x.at[i].set(v)` becomes a scatter: slow on CPUs and a kernel launch of its own on GPUs. For the sizes of
one scenario a masked select over the whole array is cheaper, and fuses. Long arrays keep the scatter.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

Tree = TypeVar("Tree")
MAX_DENSE_UPDATES = 2048  # elements times updates below which a masked select is used
NO_INDEX = 2**31 - 1
BoolScalar: TypeAlias = Bool[Array, ""]
IntScalar: TypeAlias = Int[Array, ""]
FloatScalar: TypeAlias = Float[Array, ""]


def namespace(*arrays: Any) -> Any:
    """`numpy` if all are NumPy arrays, else `jax.numpy`: for functions that real runs call outside of programs."""
    return np if all(isinstance(x, np.ndarray | np.generic) for x in arrays) else jnp


def float_array(values: Any) -> Array:
    """`jnp.asarray(values, float)`, for which JAX would compile a program at the start of every process."""
    return jax.device_put(np.asarray(values, jnp.result_type(float)))


def compute_once(x: Tree) -> Tree:
    """An optimisation barrier on GPUs.

    Without it, the GPU compiler copies the computation of a scalar into every element of every array that uses it (a
    whole search per element). On CPUs it does not, and the barrier only costs.
    """
    return x if jax.default_backend() == "cpu" else jax.lax.optimization_barrier(x)


def take(x: Array, index: Array) -> Array:
    """`x[index]`, with `index` clipped to the valid range."""
    return x.at[index].get(mode="clip")


def put(x: Array, index: Array, value: ArrayLike, when: ArrayLike = True) -> Array:
    """`x.at[index].set(value)` along the first axis, if `when`."""
    value = jnp.asarray(value, x.dtype)
    if x.size > MAX_DENSE_UPDATES:
        return x.at[jnp.where(when, index, x.shape[0])].set(value, mode="drop")
    hit = (jnp.arange(x.shape[0]) == index) & when
    return jnp.where(hit.reshape(hit.shape + (1,) * (x.ndim - 1)), value, x)


def put_all(x: Array, indices: Array, values: ArrayLike, when: Array) -> Array:
    """`x.at[indices].set(values)` for distinct indices, each only if its `when` holds."""
    if x.size * indices.size > 4 * MAX_DENSE_UPDATES:
        return x.at[jnp.where(when, indices, x.shape[0])].set(values, mode="drop")
    values = jnp.broadcast_to(jnp.asarray(values, x.dtype), indices.shape + x.shape[1:])
    for k in range(indices.shape[0]):
        x = put(x, indices[k], values[k], when[k])
    return x


def add_all(x: Array, indices: Array, values: Array) -> Array:
    """`x.at[indices].add(values)`, for integers only: the order of additions must not matter."""
    if x.size * indices.size > 8 * MAX_DENSE_UPDATES or indices.size > 64:
        return x.at[indices].add(values, mode="drop")
    number = jnp.arange(x.shape[0])
    for k in range(indices.shape[0]):  # unrolled: a sum over the updates does not vectorise
        x = x + jnp.where(number == indices[k], values[k], 0)
    return x


def first(mask: Array) -> Array:
    """The lowest index where `mask` holds, or NO_INDEX."""
    xp = namespace(mask)
    return xp.where(mask, xp.arange(mask.shape[-1], dtype=xp.int32), NO_INDEX).min(axis=-1)


def first_min(key: Array) -> tuple[Array, Array]:
    """Minimum over the last axis and its lowest index. Two plain reductions: an arg-min does not vectorise."""
    least = key.min(axis=-1)
    return least, first(key == least[..., None])


def smallest(key: Array, count: int) -> Array:
    """Indices of the `count` least finite values, in ascending order, ties by index; -1 fills up."""
    if jax.default_backend() != "cpu" or count > 16:
        values, at = jax.lax.top_k(-key, count)
        return jnp.where(jnp.isneginf(values), -1, at.astype(jnp.int32))
    number = jnp.arange(key.shape[-1], dtype=jnp.int32)
    indices = []
    for _ in range(count):  # for few values a sort takes far longer
        least, at = first_min(key)
        indices.append(jnp.where(jnp.isposinf(least), -1, at))
        key = jnp.where(number == at, jnp.inf, key)
    return jnp.stack(indices) if indices else jnp.zeros(0, jnp.int32)
