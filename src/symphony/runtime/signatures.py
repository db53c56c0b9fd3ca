"""Checks the arguments of a task against the signatures of its kernel when the task is added, long before it runs.

The arguments that the runtime adds are taken into account: the handle of a training job, rank and size of a worker of
a gang. Functions without a readable signature are not checked. For a decorated function, the decorator's signature
counts: the decorator may add arguments of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from symphony.problem.errors import WorkloadError
from symphony.runtime.kernels import KernelFunction, KernelOptions

POSITIONAL_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
GANG_ARGUMENTS = ("rank", "size")  # added by the runtime for each worker of a gang
MAX_SHOWN_DEFAULT_CHARS = 30  # longer defaults are shown as "…"

Signatures = Mapping[str, inspect.Signature | None]  # of implementations, by device; None = not readable


def signatures(kernel: KernelFunction) -> Signatures:
    return {device: _signature(function) for device, function in kernel.implementations.items()}


def check(
    kernel: KernelFunction, by_device: Signatures, args: Sequence[Any], kwargs: Mapping[str, Any], where: str
) -> None:
    """Raise `WorkloadError` unless every implementation can be called with these arguments."""
    handle = () if kernel.options.training is None else (None,)
    place = dict.fromkeys(GANG_ARGUMENTS) if kernel.options.workers > 1 and not handle else {}
    for device, signature in by_device.items():
        if signature is None:
            continue
        try:
            signature.bind(*handle, *args, **{**kwargs, **place})
        except TypeError as error:
            which = f", in its implementation for {device!r}" if len(by_device) > 1 else ""
            own = _own(signature, kernel.options)
            message, hint = _problem(signature, own, kernel.options.workers if place else 1, args, kwargs)
            raise WorkloadError(
                f"{message or error}{which}",
                where=f"{where}: kernel {kernel.name!r}",
                hint=f"{hint}write {_shown(kernel, own)}",
            ) from None


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    # The result of `jax.jit` shows the signature of the innermost function, but is called like the one that it wraps.
    while not inspect.isfunction(function) and hasattr(function, "__signature__") and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    try:
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


def _own(signature: inspect.Signature, options: KernelOptions) -> inspect.Signature:
    """The signature without the arguments that the runtime adds."""
    parameters = list(signature.parameters.values())
    if options.training is not None:
        parameters = parameters[1:] if parameters and parameters[0].kind in POSITIONAL_KINDS else parameters
    elif options.workers > 1:
        # Arguments after rank or size must be passed by name: by position, they would be taken for rank or size.
        order = [one.name for one in parameters if one.kind in POSITIONAL_KINDS]
        behind = order[min((order.index(name) for name in GANG_ARGUMENTS if name in order), default=len(order)) :]
        parameters = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY) if one.name in behind else one
            for one in parameters
            if one.name not in GANG_ARGUMENTS and not (behind and one.kind == inspect.Parameter.VAR_POSITIONAL)
        ]
    return signature.replace(parameters=parameters)


def _problem(
    signature: inspect.Signature, own: inspect.Signature, workers: int, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, str]:
    """What is wrong with a call in terms of the user's own arguments, and the beginning of a hint; "" = unknown."""
    any_name = any(one.kind == inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values())
    lacking = [name for name in GANG_ARGUMENTS if name not in signature.parameters]
    if workers > 1 and lacking and not any_name:
        hint = f"define it with {' and '.join(GANG_ARGUMENTS)}, which identify each worker; then "
        return f"it has {workers} workers, and no argument {lacking[0]!r}", hint
    unknown = [name for name in kwargs if name not in own.parameters]
    close = [match for name in unknown for match in get_close_matches(name, own.parameters, n=1)]
    hint = f"did you mean {close[0]!r}? " if close else ""
    try:
        own.bind(*args, **{name: value for name, value in kwargs.items() if workers == 1 or name not in GANG_ARGUMENTS})
    except TypeError as error:
        return str(error), hint
    return "", hint


def _shown(kernel: KernelFunction, signature: inspect.Signature) -> str:
    """A call of `graph.task`, without types and long defaults."""
    parameters = [
        one.replace(annotation=one.empty, default=one.default if one.default is one.empty else _Default(one.default))
        for one in signature.parameters.values()
    ]
    written = str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    name = getattr(kernel, "__name__", kernel.name)
    return f"graph.task({name}{', ' if parameters else ''}{written[1:]}"


class _Default:
    def __init__(self, value: Any) -> None:
        text = repr(value)
        self._text = text if len(text) <= MAX_SHOWN_DEFAULT_CHARS else "…"

    def __repr__(self) -> str:
        return self._text
