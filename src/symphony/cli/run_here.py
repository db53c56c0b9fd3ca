"""Programs on this machine, without a service: first come, first served, each in a free slot of a device."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from symphony.engines.engine import TIMEOUT, DeviceDown, Failed, Finished, Function, Pickled, Stopped, Work
from symphony.engines.worker import pickled, unpickled
from symphony.problem.errors import InfeasibleError
from symphony.runtime.failures import BY_SIGNAL, is_run_again, retry_delay_s
from symphony.runtime.jobs import exception_of
from symphony.runtime.kernels import KernelOptions, code_of, digest
from symphony.service.command import FAILED, INTERRUPTED, TIMED_OUT, Command, exit_status, unpack

if TYPE_CHECKING:
    from symphony.engines.local import LocalEngine


def run(commands: Sequence[Command], device: str, options: KernelOptions, labels: Sequence[str]) -> int:
    """Run programs, as many at once as there is room for; the highest exit status."""
    from symphony.engines.local import LocalEngine  # after all arguments were checked

    engine = LocalEngine()
    try:
        for note in engine.notes:
            typer.echo(f"warning: {note}", err=True)
        return _run(engine, commands, device, options, labels)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        engine.close()  # ends programs that still run


def _run(
    engine: LocalEngine, commands: Sequence[Command], device: str, options: KernelOptions, labels: Sequence[str]
) -> int:
    topology = engine.inventory()
    free = {
        number: kind.slots
        for number, one in enumerate(topology.devices)
        if device in ((kind := topology.kind_of[one.kind]).name, kind.type)
    }
    slots, memory = options.cores, options.memory or math.inf
    if max(free.values(), default=0) < slots:
        what = f"{slots} cores" if free else f"device {device!r}"
        kinds = ", ".join(f"{kind.name} ({kind.type}, {kind.slots} slots)" for kind in topology.kinds)
        raise InfeasibleError(f"this machine has no {what}", where="run", hint=f"it has {kinds}")
    code = code_of(commands[0].kernel(device, options), device)
    function = Function(commands[0].name, digest(code), engine.put(code))
    waiting, running, statuses = deque(range(len(commands))), dict[int, int](), [0] * len(commands)
    lost, delayed = [0] * len(commands), dict[int, float]()  # failed runs; programs to try again, and when
    while waiting or running or delayed:
        for k in [k for k, at_s in delayed.items() if at_s <= time.monotonic()]:
            del delayed[k]
            waiting.append(k)
        for number in list(free):
            while waiting and free[number] >= slots:
                k = waiting.popleft()
                free[number] -= slots
                running[k] = number
                arguments = engine.put(Pickled(*pickled((commands[k].arguments(), {}))))
                bound = partial(Work, timeout_s=options.timeout_s, cores=slots, memory=memory)
                engine.dispatch([bound(k, number, function, arguments)])
        wait_s = max(min(delayed.values(), default=math.inf) - time.monotonic(), 0.0)
        for event in engine.poll(min(wait_s, 3600.0)):
            if isinstance(event, DeviceDown):
                free.pop(event.device, None)
                if not free:
                    raise InfeasibleError(f"no device {device!r} is left: {event.why}", hint="see the messages above")
            elif isinstance(event, Finished | Failed | Stopped):
                number = running.pop(event.number)
                if number in free:
                    free[number] += slots
                if isinstance(event, Stopped):  # its device went down
                    waiting.append(event.number)
                elif isinstance(event, Failed) and is_run_again(options, lost[event.number], event):
                    lost[event.number] += 1
                    delayed[event.number] = time.monotonic() + retry_delay_s(options, event)
                    what = f"retry {lost[event.number]} of {options.retries}"
                    typer.echo(f"{labels[event.number]}{commands[event.number].name}: {_how(event)}; {what}", err=True)
                else:
                    statuses[event.number] = _ended(engine, event, commands[event.number], labels[event.number])
    return max(statuses)


def _how(event: Failed) -> str:
    """How a program ended."""
    status = exit_status(exception_of(event.exception))
    return event.message if status is None else f"exit status {status}"


def _ended(engine: LocalEngine, event: Finished | Failed, command: Command, label: str) -> int:
    """The exit status of a program. Messages and fetched files are written."""
    if isinstance(event, Finished):
        value = engine.get(event.value)
        made = unpickled(value.head, value.buffers)
        if made and command.archive is not None:
            unpack(made, Path(command.folder))
        return 0
    status = exit_status(exception_of(event.exception))
    if status is None:
        status = TIMED_OUT if event.why == TIMEOUT else BY_SIGNAL + event.signal if event.signal else FAILED
        typer.echo(f"{label}{command.name}: {event.message}", err=True)
    return status
