"""Kernels: Python functions, each with the kind of device that it is written for.

    @sy.kernel(device="cpu")
    def align(reads): ...

    @align.implementation(device="gpu")
    def align_on_gpu(reads): ...

The result of a kernel must depend only on its arguments: it may run on any machine, and again if its process dies.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import re
import tempfile
import types
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

from symphony.engines.engine import Pickled
from symphony.engines.worker import class_name, pickled
from symphony.problem import limits, units
from symphony.problem.errors import InputError, WorkloadError
from symphony.training_jobs.options import Training
from symphony.training_jobs.training_run import CHECKPOINT_INTERVAL_S, TrainingRun

RetryOn = type[BaseException] | str | Collection[type[BaseException] | str]
EXCEPTION_NAME = re.compile(r"[^\s]{1,500}")


@dataclass(frozen=True)
class KernelOptions:
    timeout_s: float = math.inf  # of one call
    retries: int = 2  # after failures that are not the kernel's fault (a killed process), or named in `retry_on`
    preemptible: bool = False  # a policy may stop it; it then runs again from its start
    workers: int = 1  # that run it together, each on its own device
    training: Training | None = None  # None = not a training job
    cores: int = 1  # of a CPU: it holds so many slots, and may have so many threads
    memory: float = 0.0  # bytes of main memory that a worker may use; 0 = not stated
    retry_on: tuple[str, ...] = ()  # names of the exceptions after which it runs again, subclasses included …
    retry_delay_s: float = 0.0  # … and how long after

    def __post_init__(self) -> None:
        if not units.is_number(self.timeout_s) or self.timeout_s == 0:
            raise WorkloadError(f"timeout_s is {self.timeout_s!r}", hint="write seconds above 0, or leave it out")
        if not units.is_whole(self.retries, 0, 1_000):
            raise WorkloadError(f"retries is {self.retries!r}", hint="write a whole number from 0 to 1000")
        if not units.is_number(self.retry_delay_s, 0.0, limits.SECONDS):
            raise WorkloadError(f"retry_delay_s is {self.retry_delay_s!r}", hint="write seconds, 0 or more")
        if not all(isinstance(name, str) and EXCEPTION_NAME.fullmatch(name) for name in self.retry_on):
            raise WorkloadError(
                f"retry_on is {self.retry_on!r}", hint="write exceptions, or their names: retry_on=(ConnectionError,)"
            )
        if not isinstance(self.preemptible, bool):
            raise WorkloadError(f"preemptible is {self.preemptible!r}", hint="write True or False")
        if not units.is_whole(self.workers, 1, limits.WORKERS_PER_GANG):
            raise WorkloadError(
                f"workers is {self.workers!r}", hint=f"write a whole number from 1 to {limits.WORKERS_PER_GANG}"
            )
        if not units.is_whole(self.cores, 1, limits.SLOTS_PER_DEVICE):
            raise WorkloadError(
                f"cores is {self.cores!r}", hint=f"write a whole number from 1 to {limits.SLOTS_PER_DEVICE}"
            )
        if not units.is_number(self.memory) or self.memory == math.inf:
            raise WorkloadError(f"memory is {self.memory!r}", hint='write bytes, such as memory="8 GB"')
        if self.training is not None and self.training.servers >= self.workers:
            raise WorkloadError(
                f"{self.training.servers} of {self.workers} workers are parameter servers",
                hint="write more workers than servers: servers count as workers",
            )


class RunnableKernel(Protocol):
    """A kernel as the runtime needs it: of this process (`KernelFunction`) or of another one (`SentKernel`)."""

    @property
    def name(self) -> str: ...  # for display

    @property
    def key(self) -> str: ...  # of its profiles

    @property
    def options(self) -> KernelOptions: ...

    @property
    def implementations(self) -> Mapping[str, Any]: ...  # by device kind or type


@dataclass(frozen=True)
class SentKernel:
    """A kernel of another process, with pickled functions. Kernels with the same code are equal."""

    name: str
    key: str
    options: KernelOptions
    digests: tuple[tuple[str, str], ...]  # of the code, by device kind or type
    implementations: Mapping[str, Pickled] = field(compare=False, repr=False)


def code_of(kernel: RunnableKernel, device: str) -> Pickled:
    """A pickled implementation. Raises `WorkloadError` if it cannot be pickled."""
    function = kernel.implementations[device]
    if isinstance(function, Pickled):
        return function
    try:
        return Pickled(*pickled(function, lambda _: None))
    except Exception as error:
        raise WorkloadError(
            f"its implementation for {device!r} cannot be sent: {type(error).__name__}: {error}",
            where=f"kernel {kernel.name!r}",
            hint="it refers to something that cannot be pickled: pass that as an argument, or create it in the kernel",
        ) from error


def digest(code: Pickled) -> str:
    return hashlib.sha256(b"".join([code.head, *code.buffers])).hexdigest()[:16]


def code_digest(function: Callable[..., Any]) -> str:
    """Of a function's code, the functions of its module that it uses, and the numbers and texts that it reads.

    Comments, line numbers and other values do not count, so that profiles survive them.
    """
    parts: list[str] = []
    met: set[int] = set()

    def add(value: Any, module: str | None) -> None:
        value = inspect.unwrap(value) if callable(value) and hasattr(value, "__wrapped__") else value
        if isinstance(value, bool | int | float | complex | str | bytes | None):
            parts.append(repr(value))
        elif isinstance(value, types.CodeType):
            parts.append(value.co_code.hex())
            for constant in value.co_consts:
                add(constant, module)
            parts.extend(value.co_names)
        elif isinstance(value, tuple | frozenset):
            for one in sorted(value, key=repr) if isinstance(value, frozenset) else value:
                add(one, module)
        elif isinstance(value, types.FunctionType) and value.__module__ == module and id(value) not in met:
            met.add(id(value))
            add(value.__code__, module)
            add(value.__defaults__ or (), module)
            for name in sorted(_names(value.__code__)):
                add(value.__globals__.get(name), module)
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # it is still empty
                    add(cell.cell_contents, module)

    add(function, getattr(function, "__module__", None))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def _names(code: types.CodeType) -> set[str]:
    """The names that some code uses, that of the functions within included."""
    inner = [_names(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return set(code.co_names).union(*inner)


class KernelFunction:
    """A named function with implementations for device kinds or types. A call runs the first one in this process."""

    def __init__(self, function: Callable[..., Any], device: str, name: str, options: KernelOptions) -> None:
        self.name = name
        self.options = options
        self._implementations: dict[str, Callable[..., Any]] = {}
        self._first = function
        self._add(device, function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        training = self.options.training
        if training is None:
            return self._first(*args, **kwargs)
        with tempfile.TemporaryDirectory() as folder:  # one worker, from the first step
            return self._first(TrainingRun(folder, steps=training.steps), *args, **kwargs)

    def __repr__(self) -> str:
        return f"<kernel {self.name!r} for {', '.join(self._implementations)}>"

    @functools.cached_property
    def key(self) -> str:
        """Of its profiles: the function's name and a digest of its code, because all scripts are called `__main__`."""
        name = getattr(self._first, "__qualname__", self.name)
        return f"{self._first.__module__}.{name}@{code_digest(self._first)}"

    @property
    def implementations(self) -> Mapping[str, Callable[..., Any]]:
        """Functions by device kind ("v100") or type ("gpu")."""
        return dict(self._implementations)

    def implementation(self, device: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: adds a function that does the same on another kind or type of device. Returns it unchanged."""

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self._add(device, function)
            return function

        return add

    def _add(self, device: str, function: Callable[..., Any]) -> None:
        where = f"kernel {self.name!r}"
        if not isinstance(device, str) or not device:
            raise WorkloadError(f"device is {device!r}", where=where, hint='name a kind or type: device="gpu"')
        if not callable(function):
            raise WorkloadError(f"{function!r} is not a function", where=where, hint="decorate a function")
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
    retry_on: RetryOn = (),
    retry_delay_s: float = 0.0,
    preemptible: bool = False,
    workers: int = 1,
    cores: int = 1,
    memory: str | float = 0.0,
) -> Callable[[Callable[..., Any]], KernelFunction]: ...


def kernel(
    function: Callable[..., Any] | None = None,
    /,
    *,
    device: str = "cpu",
    name: str = "",
    timeout_s: float = math.inf,
    retries: int = 2,
    retry_on: RetryOn = (),
    retry_delay_s: float = 0.0,
    preemptible: bool = False,
    workers: int = 1,
    cores: int = 1,
    memory: str | float = 0.0,
) -> Any:
    """Decorator: makes a kernel of a function that is written for a kind ("v100") or type ("gpu") of device.

    With `workers` > 1, that many workers call it at the same time, each on its own device and with its `rank` and the
    `size` of the gang as further arguments. The kernel's value is what rank 0 returns.

    With `cores` > 1, it holds so many slots of a CPU and may have as many threads; OMP_NUM_THREADS and the like say so.
    `memory` ("8 GB") is reserved, and a worker that uses more is ended.

    It runs again, up to `retries` times, if its process is killed from outside; with `retry_on`, also `retry_delay_s`
    after it raised one of these exceptions.
    """

    def make(function: Callable[..., Any]) -> KernelFunction:
        if not callable(function) or not hasattr(function, "__qualname__"):
            raise WorkloadError(f"{function!r} is not a function", hint="write @sy.kernel above a def")
        options = KernelOptions(
            timeout_s,
            retries,
            preemptible,
            workers,
            cores=cores,
            memory=_bytes(memory, name or function.__name__),
            retry_on=exception_names(retry_on),
            retry_delay_s=retry_delay_s,
        )
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
    exact: bool = True,
    timeout_s: float = math.inf,
    retries: int = 2,
    cores: int = 1,
    memory: str | float = 0.0,
    retry_on: RetryOn = (),
    retry_delay_s: float = 0.0,
) -> Callable[[Callable[..., Any]], KernelFunction]:
    """Decorator: makes a training job of a function: a kernel with steps that saves checkpoints and resumes from them.

    It is called with the handle of its run before its own arguments:

        def train(job, data):
            weights = job.restore()             # the last checkpoint, None at the beginning
            for step in job.steps():            # from the step after the checkpoint
                weights = …
                if job.save_now:                # a checkpoint was requested, or the last one is `every_s` old
                    job.save(weights)
            return weights

    With `workers` > 1, that many workers call it at the same time, each on its own device: `job.rank`, `job.size`. The
    last `servers` of them are parameter servers (`job.is_server`). The value is what rank 0 returns. `retries` bounds
    consecutive lost runs that saved no checkpoint. `exact=False`: the function may return before it has done all steps.
    """

    def make(function: Callable[..., Any]) -> KernelFunction:
        if not callable(function) or not hasattr(function, "__qualname__"):
            raise WorkloadError(f"{function!r} is not a function", hint="write @sy.training(steps=…) above a def")
        if not _takes_handle(function):
            raise WorkloadError(
                "it takes no argument for the handle of its run",
                where=f"training job {name or function.__name__!r}",
                hint=f"write def {function.__name__}(job, …): the handle has steps, checkpoints and the rank",
            )
        numbers = (servers, batch, parameters, operations, checkpoint_s, restore_s, every_s, exact)
        options = KernelOptions(
            timeout_s,
            retries,
            True,
            workers,
            Training(steps, kind, *numbers),
            cores,
            _bytes(memory, name or function.__name__),
            exception_names(retry_on),
            retry_delay_s,
        )
        return KernelFunction(function, device, name or function.__name__, options)

    return make


def _bytes(memory: str | float, kernel: str) -> float:
    try:
        return units.parse(memory, "bytes")
    except InputError as error:
        raise WorkloadError(f"memory: {error.message}", where=f"kernel {kernel!r}", hint=error.hint) from None


def exception_names(exceptions: RetryOn) -> tuple[str, ...]:
    """The names of exceptions, as `Failed.classes` has them."""
    several = exceptions if isinstance(exceptions, Collection) and not isinstance(exceptions, str) else (exceptions,)
    names = []
    for one in several:
        if isinstance(one, type) and issubclass(one, BaseException):
            names.append(class_name(one))
        elif isinstance(one, str):
            names.append(one.removeprefix("builtins."))
        else:
            raise WorkloadError(
                f"retry_on has {one!r}, which is not an exception", hint="write retry_on=(ConnectionError,)"
            )
    return tuple(names)


def _takes_handle(function: Callable[..., Any]) -> bool:
    """True if a function accepts a positional argument, or has no readable signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL) for one in parameters)
