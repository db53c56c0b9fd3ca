"""Kernels that are written once, for NumPy on CPUs and for JAX on GPUs. What the applications here share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import symphony as sy


def both(function: Callable[..., Any]) -> Any:
    """A kernel of a function whose first argument is NumPy on a CPU, and JAX's NumPy on a GPU.

    Nothing here needs a GPU: the second implementation is used only by processes that have one.
    """

    @sy.kernel(device="cpu")
    @functools.wraps(function)
    def kernel(*args: Any) -> Any:
        return function(np, *args)

    @kernel.implementation(device="gpu")
    @functools.wraps(function)
    def on_gpu(*args: Any) -> Any:
        import jax

        return jax.tree.map(np.asarray, jax.jit(function, static_argnums=0)(jax.numpy, *args))

    return kernel


def repeat(xp: Any, count: int, step: Callable[[Any, Any], Any], state: Any) -> Any:
    """`state = step(number, state)`, so many times: a loop for NumPy, one program for JAX."""
    if xp is not np:
        import jax

        return jax.lax.fori_loop(0, count, step, state)
    for number in range(count):
        state = step(number, state)
    return state


def count(xp: Any, values: Any, kinds: int) -> Any:
    """How often each whole number below `kinds` occurs; others are not counted."""
    if xp is not np:
        return xp.bincount(values.reshape(-1), length=kinds)
    return np.bincount(values.reshape(-1), minlength=kinds)[:kinds]


def windows(xp: Any, signal: Any, length: int, hop: int) -> Any:
    """Stretches of the last axis, each beginning `hop` later than the one before: a new axis before the last."""
    starts = np.arange(0, signal.shape[-1] - length + 1, hop)
    return xp.take(signal, starts[:, None] + np.arange(length), axis=-1)
