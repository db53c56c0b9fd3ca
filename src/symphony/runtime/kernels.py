"""Kernels: plain functions that say which kind of device they are written for.

    @sy.kernel(device="cpu")
    def align(reads): ...

    @align.implementation(device="gpu")
    def align_on_gpu(reads): ...

A kernel must be a function of its arguments: it may be run again if a process dies under it, and anywhere.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

from symphony.engines.engine import Pickled
from symphony.engines.worker import pickled
from symphony.problem import limits, units
from symphony.problem.errors import WorkloadError
from symphony.training_jobs.options import Training
from symphony.training_jobs.training_run import CHECKPOINT_INTERVAL_S, TrainingRun


@dataclass(frozen=True)
class KernelOptions:
    """How a kernel is run."""

    timeout_s: float = math.inf  # of one call
    retries: int = 2  # runs after one that was lost without a fault of its own (its process was killed, say)
    preemptible: bool = False  # a policy may stop it, to have it run again from its start
    workers: int = 1  # that run it together, each on a device of its own
    training: Training | None = None  # it goes in steps, saves what it has, and goes on from there

    def __post_init__(self) -> None:
        if not units.is_number(self.timeout_s) or self.timeout_s == 0:
            raise WorkloadError(f"timeout_s is {self.timeout_s!r}", hint="write seconds above 0, or leave it out")
        if not units.is_whole(self.retries, 0, 1_000):
            raise WorkloadError(f"retries is {self.retries!r}", hint="write a whole number from 0 to 1000")
        if not isinstance(self.preemptible, bool):
            raise WorkloadError(f"preemptible is {self.preemptible!r}", hint="write True or False")
        if not units.is_whole(self.workers, 1, limits.WORKERS_PER_GANG):
            raise WorkloadError(
                f"workers is {self.workers!r}", hint=f"write a whole number from 1 to {limits.WORKERS_PER_GANG}"
            )
        if self.training is not None and self.training.servers >= self.workers:
            raise WorkloadError(
                f"{self.training.servers} of {self.workers} workers are parameter servers",
                hint="give it more workers than servers: servers are counted among them",
            )


class RunnableKernel(Protocol):
    """What has to be known of a kernel to run it: all but the functions themselves."""

    @property
    def name(self) -> str:
        """As users see it."""
        ...

    @property
    def key(self) -> str:
        """Under which its times are kept."""
        ...

    @property
    def options(self) -> KernelOptions:
        """How it is run."""
        ...

    @property
    def implementations(self) -> Mapping[str, Any]:
        """By device kind or type."""
        ...


@dataclass(frozen=True)
class SentKernel:
    """A kernel whose functions are bytes, from another process. Those with the same code are the same kernel."""

    name: str
    key: str
    options: KernelOptions
    digests: tuple[tuple[str, str], ...]  # of the code, by device kind or type
    implementations: Mapping[str, Pickled] = field(compare=False, repr=False)


def code_of(kernel: RunnableKernel, device: str) -> Pickled:
    """An implementation in bytes. Says so if it cannot be sent."""
    function = kernel.implementations[device]
    if isinstance(function, Pickled):
        return function
    try:
        return Pickled(*pickled(function, lambda _: None))
    except Exception as error:
        raise WorkloadError(
            f"its implementation for {device!r} cannot be sent: {type(error).__name__}: {error}",
            where=f"kernel {kernel.name!r}",
            hint="it refers to what cannot be pickled: pass that as an argument, or make it in the kernel",
        ) from error


def digest(code: Pickled) -> str:
    """Equal for equal code."""
    return hashlib.sha256(b"".join([code.head, *code.buffers])).hexdigest()[:16]


class KernelFunction:
    """A named function with an implementation for each device kind or type. Called, it runs the first one here."""

    def __init__(self, function: Callable[..., Any], device: str, name: str, options: KernelOptions) -> None:
        self.name = name
        self.key = f"{function.__module__}.{function.__qualname__}"  # under which its times are kept
        self.options = options
        self._implementations: dict[str, Callable[..., Any]] = {}
        self._first = function
        self._add(device, function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        training = self.options.training
        if training is None:
            return self._first(*args, **kwargs)
        with tempfile.TemporaryDirectory() as folder:  # from the beginning, and by one worker
            return self._first(TrainingRun(folder, steps=training.steps), *args, **kwargs)

    def __repr__(self) -> str:
        return f"<kernel {self.name!r} for {', '.join(self._implementations)}>"

    @property
    def implementations(self) -> Mapping[str, Callable[..., Any]]:
        """Functions by the device kind ("v100") or type ("gpu") that they are written for."""
        return dict(self._implementations)

    def implementation(self, device: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorates a function that does the same on another kind or type of device, and leaves it as it is."""

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self._add(device, function)
            return function

        return add

    def _add(self, device: str, function: Callable[..., Any]) -> None:
        where = f"kernel {self.name!r}"
        if not isinstance(device, str) or not device:
            raise WorkloadError(f"device is {device!r}", where=where, hint='name a kind or type: device="gpu"')
        if not callable(function):
            raise WorkloadError(f"{function!r} is no function", where=where, hint="decorate a function")
        if device in self._implementations:
            raise WorkloadError(
                f"it has two implementations for {device!r}",
                where=where,
                hint="keep one of them, or name another kind of device",
            )
        self._implementations[device] = function


@overload
def kernel(function: Callable[..., Any], /) -> KernelFunction: ...


@overload
def kernel(
    *,
    device: str = "cpu",
    name: str = "",
    timeout_s: float = math.inf,
    retries: int = 2,
    preemptible: bool = False,
    workers: int = 1,
) -> Callable[[Callable[..., Any]], KernelFunction]: ...


def kernel(
    function: Callable[..., Any] | None = None,
    /,
    *,
    device: str = "cpu",
    name: str = "",
    timeout_s: float = math.inf,
    retries: int = 2,
    preemptible: bool = False,
    workers: int = 1,
) -> Any:
    """Makes a kernel of a function, with its implementation for a kind ("v100") or type ("gpu") of device.

    With `workers`, as many call it at once, each on a device of its own and with its `rank` and the `size` of them all
    as further arguments. What it makes is what rank 0 returns.
    """

    def make(function: Callable[..., Any]) -> KernelFunction:
        if not callable(function) or not hasattr(function, "__qualname__"):
            raise WorkloadError(f"{function!r} is no function", hint="write @sy.kernel above a def")
        options = KernelOptions(timeout_s, retries, preemptible, workers)
        return KernelFunction(function, device, name or function.__name__, options)

    return make if function is None else make(function)


def training(
    *,
    steps: int,
    workers: int = 1,
    device: str = "cpu",
    name: str = "",
    kind: str = "",
    servers: int = 0,
    batch: int = 0,
    parameters: float = 0.0,
    operations: float = 0.0,
    checkpoint_s: float = 0.0,
    restore_s: float = 0.0,
    every_s: float = CHECKPOINT_INTERVAL_S,
    timeout_s: float = math.inf,
    retries: int = 2,
) -> Callable[[Callable[..., Any]], KernelFunction]:
    """Makes a training job of a function: a kernel that goes in steps, saves what it has, and goes on from there.

    It is called with a handle of its run before its own arguments:

        def train(job, data):
            weights = job.restore()             # what was saved last, None at the beginning
            for step in job.steps():            # from the step after that
                weights = …
                if job.save_now:                # somebody asks for it, or the last time was `every_s` ago
                    job.save(weights)
            return weights

    With `workers`, as many call it at once, each on a device of its own: `job.rank`, `job.size`. The last `servers` of
    them are parameter servers (`job.is_server`). What it makes is what rank 0 returns. `retries` are runs that may be
    lost in a row without one that saved something.
    """

    def make(function: Callable[..., Any]) -> KernelFunction:
        if not callable(function) or not hasattr(function, "__qualname__"):
            raise WorkloadError(f"{function!r} is no function", hint="write @sy.training(steps=…) above a def")
        if not _takes_handle(function):
            raise WorkloadError(
                "it takes no argument for the handle of its run",
                where=f"training job {name or function.__name__!r}",
                hint=f"write def {function.__name__}(job, …): steps, checkpoints and its rank are there",
            )
        numbers = (servers, batch, parameters, operations, checkpoint_s, restore_s, every_s)
        options = KernelOptions(timeout_s, retries, True, workers, Training(steps, kind, *numbers))
        return KernelFunction(function, device, name or function.__name__, options)

    return make


def _takes_handle(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with an argument before all others."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # it does not tell
        return True
    return any(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL) for one in parameters)
