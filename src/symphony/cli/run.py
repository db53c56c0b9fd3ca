"""`symphony run -- CMD`: one program, or an array of them, on a service or on this machine."""

from __future__ import annotations

import math
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from symphony.cli import run_here
from symphony.cli.remote import Key, Url, number_list, number_ranges
from symphony.problem import units
from symphony.problem.errors import InputError, JobCancelledError, JobError, KernelTimeoutError, ServiceError
from symphony.runtime.kernels import KernelOptions
from symphony.service.client import ADDRESS_FILE, URL_VARIABLE, RemoteCluster, RemoteJob, connect, default_folder
from symphony.service.command import (
    FAILED,
    INTERRUPTED,
    TIMED_OUT,
    Command,
    exception_of_status,
    exit_status,
    packed,
    unpack,
)
from symphony.service.wire import OUTPUT

SETTINGS = {"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}
MAX_FOLLOWED = 16  # jobs whose output is printed as they run: each needs a connection
INDEX_VARIABLE = "SYMPHONY_ARRAY_INDEX"


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="The program and its arguments.")],
    *,
    cores: Annotated[int, typer.Option(help="CPU cores.", min=1)] = 1,
    memory: Annotated[str, typer.Option(help="Most memory: '8 GB'.")] = "",
    time: Annotated[str, typer.Option(help="Longest time of a run: 10m.")] = "",
    device: Annotated[str, typer.Option(help="Kind or type of device.")] = "cpu",
    array: Annotated[str, typer.Option(help="Run once for each index: 0-9, 1,4,7 or 0-99:10.")] = "",
    after: Annotated[str, typer.Option(help="Start when these jobs are done: 12,14-17.")] = "",
    folder: Annotated[Path | None, typer.Option("--folder", "-C", help="Run in this folder.")] = None,
    send: Annotated[bool, typer.Option("--send", help="Send the folder; run in a copy.")] = False,
    fetch: Annotated[list[str] | None, typer.Option(help="Bring back these files: 'out/*.csv'. Repeatable.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME or NAME=VALUE, for its environment. Repeatable.")] = None,
    stdin: Annotated[str, typer.Option(help="File for its standard input.")] = "",
    retries: Annotated[int, typer.Option(help="Runs after one that was killed or is to be tried again.", min=0)] = 2,
    retry_on_exit: Annotated[str, typer.Option(help="Try again after these exit statuses: 75,100-110.")] = "",
    retry_delay: Annotated[str, typer.Option(help="Time until that: 30s.")] = "0",
    priority: Annotated[int, typer.Option(help="Larger is more urgent; limited by the token.")] = 0,
    queue: Annotated[str, typer.Option(help="One of your queues.")] = "",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the numbers of the jobs; do not wait.")] = False,
    here: Annotated[bool, typer.Option("--here", help="Run on this machine.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only its output.")] = False,
    url: Url = "",
    token: Key = "",
) -> None:
    """Run a program on a service, or on this machine if no service is configured.

    Prints its output, and ends with its exit status.
    """
    seconds = units.parse(time, "seconds", where="--time") if time else math.inf
    size = units.parse(memory, "bytes", where="--memory") if memory else 0.0
    statuses = number_list(retry_on_exit, "--retry-on-exit") if retry_on_exit else []
    options = KernelOptions(
        timeout_s=seconds,
        retries=retries,
        cores=cores,
        memory=size,
        retry_on=tuple(exception_of_status(status) for status in statuses),
        retry_delay_s=units.parse(retry_delay, "seconds", where="--retry-delay"),
    )
    work = Command(
        command,
        str((folder or Path()).absolute()),
        packed(folder or Path()) if send else None,
        fetch or (),
        _variables(env or []),
        _read(stdin) if stdin else b"",
    )
    indices = number_list(array, "--array") if array else None
    commands = [work] if indices is None else [_with_index(work, index) for index in indices]
    labels = [""] if indices is None else [f"[{index}] " for index in indices]
    before = number_list(after, "--after") if after else []
    cluster = None if here else _service(url, token, quiet)
    if cluster is None:
        if not (send or Path(work.folder).is_dir()):
            raise InputError("there is no such folder", where=work.folder, hint="name another one: --folder DIR")
        if before or detach:
            option = "--after" if before else "--detach"
            raise InputError(f"{option} needs a service", where="run", hint="start one: symphony serve")
        sys.exit(run_here.run(commands, device, options, labels))
    with cluster:
        _submit_and_follow(cluster, commands, labels, device, options, before, priority, queue, detach, quiet)


def _service(url: str, token: str, quiet: bool) -> RemoteCluster | None:
    """The service that is named or that this user serves here; None if there is none."""
    if not (url or os.environ.get(URL_VARIABLE)) and not (default_folder() / ADDRESS_FILE).is_file():
        return None
    try:
        return connect(url, token=token)
    except ServiceError as error:
        if url or os.environ.get(URL_VARIABLE) or "cannot be reached" not in error.message:
            raise
        if not quiet:  # the service of this user was killed, and left its address
            typer.echo(f"no service answers at {error.where}; running on this machine", err=True)
        return None


def _submit_and_follow(
    cluster: RemoteCluster,
    commands: list[Command],
    labels: list[str],
    device: str,
    options: KernelOptions,
    before: list[int],
    priority: int,
    queue: str,
    detach: bool,
    quiet: bool,
) -> None:
    kernel = commands[0].kernel(device, options)
    jobs: list[RemoteJob] = []
    with ThreadPoolExecutor(min(len(commands), MAX_FOLLOWED)) as pool:
        try:
            for one in commands:
                jobs.append(cluster.submit(kernel, *one.arguments(), priority=priority, queue=queue, after=before))
            numbers = number_ranges([job.id for job in jobs])
            if detach:
                typer.echo(numbers)
                return
            if not quiet:
                follow = f"symphony logs {jobs[0].id} -f"
                waits = jobs[-1].view().waits
                waiting = f" ({'the last ' * (len(jobs) > 1)}waits: {waits})" if waits else ""
                typer.echo(f"job{'s' if len(jobs) > 1 else ''} {numbers}{waiting}; follow with: {follow}", err=True)
            printing = threading.Lock()
            ends = pool.map(lambda k: _follow(jobs[k], labels[k], commands[k], printing, quiet), range(len(jobs)))
            status = max(ends)
        except KeyboardInterrupt:
            for job in jobs:  # the threads that follow them end with them
                job.cancel()
            status = INTERRUPTED
    sys.exit(status)


def _follow(job: RemoteJob, label: str, command: Command, printing: threading.Lock, quiet: bool) -> int:
    """Print the output of a job; its exit status."""
    for line in job.follow():
        if line.kind == OUTPUT:
            with printing:
                typer.echo(f"{label}{line.text}")
    try:
        made = job.result()
    except JobError as error:
        status = exit_status(error.__cause__)
        if status is None:
            status = TIMED_OUT if isinstance(error, KernelTimeoutError) else FAILED
            status = INTERRUPTED if isinstance(error, JobCancelledError) else status
            with printing:
                typer.echo(f"{label}{error.where}: {error.message}", err=True)
        return status
    if made:
        names = unpack(made, Path(command.folder))
        if not quiet:
            typer.echo(f"{label}fetched {', '.join(names[:5])}{' …' if len(names) > 5 else ''}", err=True)
    return 0


def _with_index(command: Command, index: int) -> Command:
    return replace(command, environment={**command.environment, INDEX_VARIABLE: str(index)})


def _variables(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or (not equals and name not in os.environ):
            raise InputError(f"there is no variable {name!r} here", where="--env", hint="write NAME=VALUE")
        found[name] = value if equals else os.environ[name]
    return found


def _read(name: str) -> bytes:
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
