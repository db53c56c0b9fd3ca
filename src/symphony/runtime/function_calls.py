"""Calls of single functions, without a graph: `cluster.submit(function, *args)` and `cluster.map(function, items)`.

A function that is not a kernel is one for CPUs. It is pickled at every `submit` or `map`, so that it sees the present
values of what it refers to; equal pickles are one kernel.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from symphony.problem import limits, units
from symphony.problem.errors import WorkloadError
from symphony.runtime.graph import Graph, Submission, submission
from symphony.runtime.job_handle import JobHandle
from symphony.runtime.kernels import (
    KernelFunction,
    KernelOptions,
    RunnableKernel,
    SentKernel,
    code_digest,
    code_of,
    digest,
)

Handle = TypeVar("Handle", bound=JobHandle)


class FunctionCalls(ABC, Generic[Handle]):
    """A cluster that runs graphs, and so also functions."""

    @abstractmethod
    def submit(self, work: Graph | Callable[..., Any], /, *args: Any, **options: Any) -> Handle:
        """Run a graph, or a function with these arguments."""

    def map(self, function: Callable[..., Any], /, *items: Iterable[Any], **options: Any) -> list[Handle]:
        """Run a function once for each item, or for the items of several iterables side by side, as `map` does.

        Returns a job for each call, in order. `options`: those of `submit`, such as `priority`. If a call fails, the
        others continue.
        """
        if not items:
            raise WorkloadError("map has nothing to call the function with", hint="write cluster.map(function, items)")
        call = FunctionCall(function)
        return [self.submit(call, *args, **options) for args in zip(*items, strict=False)]


class FunctionCall:
    """A function that was pickled, to be called with different arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._kernel = function if isinstance(function, KernelFunction) else _kernel(function)
        self._sent: RunnableKernel = self._kernel
        if not isinstance(function, KernelFunction):
            code = {device: code_of(self._kernel, device) for device in self._kernel.implementations}
            digests = tuple((device, digest(one)) for device, one in code.items())
            self._sent = SentKernel(self._kernel.name, self._kernel.key, self._kernel.options, digests, code)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._kernel(*args, **kwargs)

    def submission(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Submission:
        """A graph of one call."""
        graph = Graph(self._kernel.name)
        graph.task(self._kernel, *args, **kwargs)
        sent = submission(graph)
        return replace(sent, calls=tuple(replace(call, kernel=self._sent) for call in sent.calls))


def check_options(priority: int, time_limit_s: float) -> None:
    """Raise `WorkloadError` if these options of `submit` are wrong."""
    if not units.is_whole(priority, -limits.PRIORITY, limits.PRIORITY):
        raise WorkloadError(f"priority is {priority!r}", hint="write a whole number; larger is more urgent")
    if not units.is_number(time_limit_s) or time_limit_s == 0:
        raise WorkloadError(f"time_limit_s is {time_limit_s!r}", hint="write seconds above 0, or leave it out")


def work_submission(work: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Submission:
    """A graph, or a function with its arguments, as it is submitted."""
    if isinstance(work, FunctionCall):
        return work.submission(args, kwargs)
    if isinstance(work, Graph) or not callable(work):
        if args or kwargs:
            extra = next(iter(kwargs), "") or "arguments"
            raise WorkloadError(f"a graph takes no {extra}", hint="give arguments to its tasks: graph.task(kernel, …)")
        return submission(work)
    return FunctionCall(work).submission(args, kwargs)


def _kernel(function: Any) -> KernelFunction:
    if not callable(function):
        raise WorkloadError(f"{function!r} is not a function", hint="write cluster.map(function, items)")
    named = function
    while isinstance(named, functools.partial):
        named = named.func
    if isinstance(function, type):
        function = functools.partial(function)
    elif not hasattr(named, "__qualname__"):  # an object that can be called
        named = type(named)
        function = function if isinstance(function, functools.partial) else function.__call__
    kernel = KernelFunction(function, "cpu", named.__name__, KernelOptions())
    kernel.key = f"{named.__module__}.{named.__qualname__}@{code_digest(named)}"
    return kernel
