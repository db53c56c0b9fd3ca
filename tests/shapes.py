"""A type checker for `jaxtyping`: it checks the arrays among arguments and results, and nothing else."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from jaxtyping import AbstractArray


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has the shape and dtype of a hint; hints that are not about arrays are ignored."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is tuple and Ellipsis not in parts:
        return all(fits(one, part) for one, part in zip(value, parts, strict=True))
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return isinstance(value, hint)
    return value is None if hint is type(None) else True


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for `jaxtyping.jaxtyped` and its import hook."""
    signature, hints = inspect.signature(function), dict(function.__annotations__)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in hints and not fits(value, hints[name]):
                raise TypeError(f"{name} is {value!r}, not {hints[name]}")
        result = function(*args, **kwargs)
        if not fits(result, hints.get("return", Any)):
            raise TypeError(f"the result is {result!r}, not {hints['return']}")
        return result

    return wrapper
