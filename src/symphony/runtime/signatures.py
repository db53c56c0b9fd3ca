"""Whether a kernel can be called with what it is given: asked when a task is added, long before it runs.

What the runtime gives besides is taken into account: the handle of a training job, rank and size of a worker of a gang.
A function that does not tell its signature is taken to accept anything, and one behind a decorator to accept what the
decorator does: it may give arguments of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from symphony.problem.errors import WorkloadError
from symphony.runtime.kernels import KernelFunction, KernelOptions

POSITIONAL_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
GANG_ARGUMENTS = ("rank", "size")  # what a worker of a gang is told
MAX_SHOWN_DEFAULT_CHARS = 30  # characters of a default that is not shown

Signatures = Mapping[str, inspect.Signature | None]  # of implementations, by device; None: it does not tell


def signatures(kernel: KernelFunction) -> Signatures:
    """Those of all implementations of a kernel."""
    return {device: _signature(function) for device, function in kernel.implementations.items()}


def check(
    kernel: KernelFunction, found: Signatures, args: Sequence[Any], kwargs: Mapping[str, Any], where: str
) -> None:
    """Raise `WorkloadError`, naming the argument, unless every implementation can be called so."""
    handle = () if kernel.options.training is None else (None,)
    place = dict.fromkeys(GANG_ARGUMENTS) if kernel.options.workers > 1 and not handle else {}
    for device, signature in found.items():
        if signature is None:
            continue
        try:
            signature.bind(*handle, *args, **{**kwargs, **place})
        except TypeError as error:
            which = f", in its implementation for {device!r}" if len(found) > 1 else ""
            message, hint = _wrong(signature, kernel.options, args, kwargs) or (str(error), "")
            written = f"write {_shown(kernel, _own(signature, kernel.options))}"
            raise WorkloadError(
                f"{message}{which}",
                where=f"{where}: kernel {kernel.name!r}",
                hint=f"{hint} {written}" if hint else written,
            ) from None


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    # What `jax.jit` made tells the signature of the innermost function, and is called as the one that it wraps.
    while not inspect.isfunction(function) and hasattr(function, "__signature__") and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    try:
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


def _own(signature: inspect.Signature, options: KernelOptions) -> inspect.Signature:
    """The arguments that are for whoever adds a task."""
    parameters = list(signature.parameters.values())
    if options.training is not None:
        parameters = parameters[1:] if parameters and parameters[0].kind in POSITIONAL_KINDS else parameters
    elif options.workers > 1:
        # What is behind rank or size can only be given by name: in order, it would be taken for these.
        order = [one.name for one in parameters if one.kind in POSITIONAL_KINDS]
        behind = order[min((order.index(name) for name in GANG_ARGUMENTS if name in order), default=len(order)) :]
        parameters = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY) if one.name in behind else one
            for one in parameters
            if one.name not in GANG_ARGUMENTS and not (behind and one.kind == inspect.Parameter.VAR_POSITIONAL)
        ]
    return signature.replace(parameters=parameters)


def _wrong(
    signature: inspect.Signature, options: KernelOptions, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, str] | None:
    """What is wrong with a call, and a hint besides the signature where there is one; None: nothing of these."""
    own = list(_own(signature, options).parameters.values())
    kinds = {one.kind for one in own}
    any_more, any_name = (kind in kinds for kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD))
    in_order, by_name = ([one.name for one in own if one.kind in kind] for kind in (POSITIONAL_KINDS, KEYWORD_KINDS))
    if options.workers > 1 and options.training is None and not any_name:
        untold = [name for name in GANG_ARGUMENTS if name not in signature.parameters]
        if untold:
            hint = f"define it with {' and '.join(GANG_ARGUMENTS)}, which tell each worker who it is; then"
            return f"it has {options.workers} workers, and no argument {untold[0]!r}", hint
    if len(args) > len(in_order) and not any_more:
        return f"it is given {len(args)} argument{'s' if len(args) > 1 else ''} in order, and takes {len(in_order)}", ""
    for name in kwargs:
        if name in in_order[: len(args)] and name in by_name:
            return f"argument {name!r} is given twice", ""
        if name in in_order and name not in by_name and not any_name:
            return f"argument {name!r} cannot be given by name", ""
        if name not in by_name and not any_name:
            close = get_close_matches(name, by_name, n=1)
            return f"it has no argument {name!r}", f"did you mean {close[0]!r}?" if close else ""
    for one in own:
        given = one.name in in_order[: len(args)] or (one.name in kwargs and one.name in by_name)
        if one.default is one.empty and one.kind in (*POSITIONAL_KINDS, *KEYWORD_KINDS) and not given:
            return f"argument {one.name!r} is missing", ""
    return None


def _shown(kernel: KernelFunction, signature: inspect.Signature) -> str:
    """How a task of it is written, without types and long defaults."""
    parameters = [
        one.replace(annotation=one.empty, default=one.default if one.default is one.empty else _Default(one.default))
        for one in signature.parameters.values()
    ]
    written = str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    name = getattr(kernel, "__name__", kernel.name)
    return f"graph.task({name}{', ' if parameters else ''}{written[1:]}"


class _Default:
    """Shown as what it stands for, if that is short."""

    def __init__(self, value: Any) -> None:
        text = repr(value)
        self._text = text if len(text) <= MAX_SHOWN_DEFAULT_CHARS else "…"

    def __repr__(self) -> str:
        return self._text
