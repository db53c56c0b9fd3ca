"""`symphony stat`: `perf stat` with error bars, from few counters or from a log. Options and their checks."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated

import typer

from symphony.cli import prometheus
from symphony.cli.stat_lines import Lines
from symphony.cli.stat_outputs import StatOutputs
from symphony.problem.errors import InputError
from symphony.telemetry import StatRequest, StatTarget, count, new_plots, split_names, stat_model, tree
from symphony.telemetry import replay as replay_log

EXIT_BY_INTERRUPT = 128 + signal.SIGINT
SETTINGS = {"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}


def stat(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- CMD...]", help="Run a command and count it.")
    ] = None,
    *,
    events: Annotated[
        list[str] | None,
        typer.Option(
            "-e", "--event", metavar="EVENTS", help="Events, separated by commas; {…} is accepted. Repeatable."
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "-M", "--metrics", metavar="METRICS", help="Metrics or groups of metrics, separated by commas. Repeatable."
        ),
    ] = None,
    level: Annotated[
        int | None,
        typer.Option("-l", "--level", metavar="N", min=1, help="The top-down method's metrics, down to this level."),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option("-r", "--repeat", metavar="N", min=1, max=10_000, help="Run the command N times; print means."),
    ] = 1,
    interval: Annotated[
        int | None,
        typer.Option(
            "-I",
            "--interval-print",
            metavar="MS",
            min=1,
            help="Print every MS milliseconds, two windows (of at most 100 ms) late.",
        ),
    ] = None,
    system_wide: Annotated[bool, typer.Option("-a", "--all-cpus", help="Count all CPUs.")] = False,
    cpus: Annotated[str, typer.Option("-C", "--cpu-list", metavar="CPUS", help="Count these CPUs: 0-3,8.")] = "",
    pids: Annotated[str, typer.Option("-p", "--pid", metavar="PID", help="Count these processes: 4711,4712.")] = "",
    per_cpu: Annotated[
        bool, typer.Option("-A", "--no-aggr", help="Report each CPU separately (with -a or -C).")
    ] = False,
    as_json: Annotated[bool, typer.Option("-j", "--json", help="A JSON object on each line.")] = False,
    separator: Annotated[
        str | None, typer.Option("-x", "--field-separator", metavar="SEP", help="Fields separated by SEP.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to FILE, not to standard error (--replay: output)."),
    ] = None,
    cpu: Annotated[
        str | None, typer.Option("--cpu", metavar="NAME", help="The CPU's catalogue; by default this machine's.")
    ] = None,
    counters: Annotated[
        int | None, typer.Option("--counters", metavar="N", min=1, help="Use N of the core's general counters.")
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Count sums as well, test which identities hold, and store the verdicts.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="List what was counted together, what is derived, and by which identities."),
    ] = False,
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            metavar="FILE",
            help="Correct a log of `perf stat -I … -j` or `-x` (-: standard input); needs no perf.",
        ),
    ] = None,
    constants: Annotated[
        list[str] | None,
        typer.Option(
            "--constant",
            metavar="NAME=VALUE",
            help="A constant of metrics, such as num_cpus_online=8. --replay uses only these; `here`: all constants of "
            "this machine. Repeatable.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Plot means and 95% bands over time (.svg, .png).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--prometheus",
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve the latest values on loopback; 0: any free port.",
        ),
    ] = None,
) -> None:
    """Count events like `perf stat`, with 95% intervals.

    Events that take turns with a counter are not scaled up: counts are inferred from all readings together and from
    identities between the CPU's events.
    """
    target = StatTarget(tuple(command or ()), system_wide, _cpus(cpus), _process_numbers(pids), per_cpu)
    _check(target, replay is not None)
    if replay and counters is not None:
        raise InputError("--counters beside --replay", hint="leave it out: a log has been counted already")
    if as_json and separator is not None:
        raise InputError("both -j and -x", hint="choose one of them")
    if repeat > 1 and (not command or interval or plot or port is not None):
        raise InputError(
            "-r repeats a command and prints means", hint="leave out -I, --plot and --prometheus: -r 5 -- CMD"
        )
    plots = new_plots(plot) if plot else None
    model = stat_model(cpu, constants or (), core_wide=system_wide or bool(cpus), here=replay is None)
    levels = tree(model.catalogue, level) if level else {}
    named = (*levels, *split_names(metrics or ()))
    request = StatRequest(split_names(events or ()), named, counters, audit, explain, interval)
    with ExitStack() as stack:
        lines = Lines(_open(output, stack, sys.stdout if replay else sys.stderr), as_json=as_json, separator=separator)
        lines.levels = levels
        outputs = StatOutputs(lines, interval is not None, request.named, plots=plots, kept=[] if repeat > 1 else None)
        if port is not None:
            outputs.page = prometheus.Page()
            lines.note(f"serving http://127.0.0.1:{stack.enter_context(prometheus.serve(outputs.page, port))}/metrics")
        status = 0
        if replay:
            replay_log(model, request, replay, outputs)
        for _ in range(0 if replay else repeat):
            status = max(status, count(model, request, target, outputs))
            if status == EXIT_BY_INTERRUPT:
                break
        outputs.print_means()
        if plot and plots is not None:
            plots.figure().savefig(plot, dpi=150)
    raise typer.Exit(status)


def _open(output: Path | None, stack: ExitStack, otherwise: IO[str]) -> IO[str]:
    if output is None:
        return otherwise
    try:
        return stack.enter_context(output.open("w", encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"-o {output} cannot be written: {error.strerror or error}", hint="name a file in a folder that exists"
        ) from None


def _cpus(text: str) -> str:
    """Checks a list of CPUs, all of which must exist."""
    for part in text.split(",") if text else ():
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part, re.ASCII)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise InputError(f"-C {text!r} is not a list of CPUs", hint="-C 0-3,8")
        last = int(found[2] or found[1])
        if not Path(f"/sys/devices/system/cpu/cpu{last}").exists() and last >= (os.cpu_count() or 1):
            raise InputError(f"there is no CPU {last}", hint="`lscpu -e` lists the CPUs")
    return text


def _process_numbers(pids: str) -> tuple[int, ...]:
    words = [word.strip() for word in pids.split(",") if pids]
    for word in words:
        if not (word.isascii() and word.isdecimal()):
            raise InputError(f"-p {pids!r} is not a list of process numbers", hint="-p 4711,4712")
        if not Path("/proc", word).exists():
            raise InputError(f"there is no process {word}", hint="`ps -e` lists the running processes")
    return tuple(map(int, words))


def _check(target: StatTarget, replaying: bool) -> None:
    """Checks that there is exactly one target."""
    if replaying:
        if target != StatTarget():
            raise InputError("--replay reads a log and counts nothing", hint="leave out the command, -a, -A, -C and -p")
        return
    if target.pids and (target.command or not target.task):
        raise InputError("-p beside a command, -a or -C", hint="choose one of them")
    if not (target.command or target.pids or not target.task):
        raise InputError("nothing to count", hint="symphony stat -- CMD, or -a for all CPUs, or -p PID")
    if target.per_cpu and target.task:
        raise InputError("-A needs CPUs to count", hint="add -a, or -C 0-3")
    if target.command and shutil.which(target.command[0]) is None:
        raise InputError(f"there is no command {target.command[0]!r}", hint="give its path, or install it")
