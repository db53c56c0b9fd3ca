"""`symphony submit`, `jobs`, `job`, `result`, `logs`, `cancel`, `trace`: the jobs of a service."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from symphony.cli import options, terminal
from symphony.cli.options import AsJson
from symphony.cli.remote import Key, Number, Url, ago, number_list, plain_table
from symphony.cli.terminal import print_json
from symphony.problem import units
from symphony.problem.errors import InputError
from symphony.problem.units import show
from symphony.service.client import RemoteJob, connect
from symphony.service.graph_file import load
from symphony.service.wire import EVENT, OUTPUT, JobView, LogLine, TrainingView

COLOURS = {"done": "green", "failed": "red", "cancelled": "yellow", "running": "cyan", "waiting": "dim"}


def submit(
    file: Annotated[str, typer.Argument(help="graph.py, graph.py:NAME or graph.toml.")],
    *,
    argument: Annotated[
        list[str] | None,
        typer.Option("--arg", "-a", help="NAME=VALUE: an argument of the graph's function. Repeatable."),
    ] = None,
    priority: Annotated[int, typer.Option(help="Larger is more urgent; limited by the token.")] = 0,
    queue: Annotated[str, typer.Option(help="One of your queues; they divide your share of the cluster.")] = "",
    key: Annotated[str, typer.Option(help="Submissions with the same key are one job.")] = "",
    after: Annotated[str, typer.Option(help="Start when these jobs are done: 12,14-17.")] = "",
    longest: Annotated[str, typer.Option("--time", help="Longest time since its first task started: 10m.")] = "",
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the job and print its result.")] = False,
    url: Url = "",
    token: Key = "",
    as_json: AsJson = False,
) -> None:
    """Submit the graph of a file to a service."""
    before = number_list(after, "--after") if after else ()
    limit_s = units.parse(longest, "seconds", where="--time") if longest else math.inf
    graph = load(file, _arguments(argument or []))
    with connect(url, token=token) as cluster:
        job = cluster.submit(graph, priority=priority, queue=queue, key=key, after=before, time_limit_s=limit_s)
        view = job.view()
        if not as_json:
            waiting = f" (waits: {view.waits})" if view.waits else ""
            typer.echo(f"job {job.id} is accepted{waiting}; follow it with: symphony logs {job.id} -f", err=True)
        if wait:
            _print_result(job, as_json)
        elif as_json:
            print_json(view.model_dump(mode="json"))
        else:
            typer.echo(job.id)


def jobs(
    *,
    status: Annotated[str, typer.Option(help="waiting, running, done, failed or cancelled.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many.", min=1, max=1_000)] = 20,
    everybody: Annotated[bool, typer.Option("--all", help="Jobs of all users; needs scope admin.")] = False,
    url: Url = "",
    token: Key = "",
    as_json: AsJson = False,
) -> None:
    """List the newest jobs."""
    if status:
        options.check_choice("status", status, COLOURS)
    with connect(url, token=token) as cluster:
        listed = cluster.jobs(status=status, limit=limit, everybody=everybody)
    if as_json:
        print_json([job.model_dump(mode="json") for job in listed])
    else:
        terminal.print_table(table(listed, everybody)) if listed else typer.echo("no jobs")


def table(jobs: Sequence[JobView], everybody: bool) -> Table:
    """One row for each of one or more jobs. Columns for queues, priorities and steps appear if some job has one."""
    rows = [
        {
            "job": str(job.id),
            "name": escape(job.name),
            "user": escape(job.user) if everybody else "",
            "queue": escape(job.queue),
            "priority": str(job.priority),
            "status": f"[{COLOURS[job.status]}]{job.status}[/]",
            "tasks": f"{job.finished}/{job.tasks}",
            "steps": _steps(job.training, job.status),
            "submitted": f"{ago(job.accepted_s)} ago",
            "took": show(float(f"{(job.ended_s or time.time()) - job.accepted_s:.3g}"), "seconds"),
        }
        for job in jobs
    ]
    empty = {"user": "", "queue": "", "priority": "0", "steps": ""}
    columns = [name for name in rows[0] if any(row[name] != empty.get(name) for row in rows)]
    made = Table(box=None, pad_edge=False)
    for name in columns:
        right, long = name in ("job", "priority", "tasks", "took"), name in ("name", "user", "queue", "steps")
        made.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=not long)
    for row in rows:
        made.add_row(*(row[name] for name in columns))
    return made


def _steps(training: TrainingView | None, status: str) -> str:
    """Progress of a training job. A job that has started has status running, also while it is preempted."""
    if training is None:
        return ""
    unsaved = training.saved < training.step or training.step < training.steps
    saved = f", {training.saved} saved" if unsaved and status != "done" else ""
    speed = f", {training.per_s:.3g}/s" if training.per_s is not None else ""
    preempted = ", waits" if status == "running" and not training.runs else ""
    return f"{training.step}/{training.steps}{saved}{speed}{preempted}"


def job(number: Number, *, url: Url = "", token: Key = "", as_json: AsJson = False) -> None:
    """Show a job and its tasks."""
    with connect(url, token=token) as cluster:
        detail = cluster.job(number).detail()
    if as_json:
        print_json(detail.model_dump(mode="json"))
        return
    console = terminal.console()
    terminal.print_table(table([detail.job], everybody=True))
    if detail.job.waits:
        console.print(f"it waits: {escape(detail.job.waits)}", soft_wrap=True)
    if detail.job.error is not None:
        console.print(f"[red]{escape(str(detail.job.error.error()))}[/]", soft_wrap=True)
    steps = ["steps"] if detail.job.training is not None else []
    made = plain_table("task", "kernel", "status", "device", *steps, "took", right=("took",))
    for task in detail.tasks:
        last = task.runs[-1] if task.runs else None
        took = show(float(f"{last.seconds:.3g}"), "seconds") if last is not None and last.seconds is not None else ""
        made.add_row(
            escape(task.name),
            escape(task.kernel),
            f"[{COLOURS[task.status]}]{task.status}[/]",
            escape(last.device) if last is not None else "",
            *([_steps(task.training, task.status)] if steps else []),
            took,
        )
    terminal.print_table(made)


def result(
    number: Number,
    *,
    trust: Annotated[
        list[str] | None, typer.Option(help="Unpickle the results of this user, which may run any code. Repeatable.")
    ] = None,
    url: Url = "",
    token: Key = "",
    as_json: AsJson = False,
) -> None:
    """Wait for a job and print its result."""
    with connect(url, token=token, trust=trust or ()) as cluster:
        _print_result(cluster.job(number), as_json)


def _print_result(job: RemoteJob, as_json: bool) -> None:
    value = job.result()
    if as_json:
        print_json({"job": job.view().model_dump(mode="json"), "result": _plain(value)})
    else:
        typer.echo(_text(value))


def _text(value: Any) -> str:
    """A result for people. Texts of several lines, of several tasks, are printed as such, below their names."""
    parts = dict(enumerate(value, 1)) if isinstance(value, tuple) else value if isinstance(value, dict) else {}
    if not any(isinstance(part, str) and "\n" in part.rstrip("\n") for part in parts.values()):
        return str(value).rstrip("\n")
    return "\n".join(f"{name}:\n{indent(str(part).rstrip(), '  ')}" for name, part in parts.items())


def logs(
    number: Number,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job has finished.")] = False,
    url: Url = "",
    token: Key = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object on each line.")] = False,
) -> None:
    """Print the events of a job and the output of its tasks."""
    with connect(url, token=token) as cluster:
        job = cluster.job(number)
        for line in job.follow() if follow else job.logs().lines:
            typer.echo(line.model_dump_json() if as_json else _log_text(line))


def _log_text(line: LogLine) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.at_s))
    if line.kind == EVENT:
        return f"{at}  {line.text}"
    task = f"{line.task}/{line.rank}" if line.rank else line.task
    return f"{at}  {task} | {line.text}" if line.kind == OUTPUT else f"{at}  {task}: {line.text}"


def cancel(number: Number, *, url: Url = "", token: Key = "", as_json: AsJson = False) -> None:
    """Cancel a job: running tasks are killed, waiting tasks never start."""
    with connect(url, token=token) as cluster:
        job = cluster.job(number)
        ended = job.view().ended_s is not None
        job.cancel()
        job.wait(10.0)
        view = job.view()
    if as_json:
        print_json(view.model_dump(mode="json"))
    else:
        typer.echo(f"job {number} had ended before: {view.status}" if ended else f"job {number}: {view.status}")


def trace(
    number: Number,
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the trace to this file.")] = None,
    url: Url = "",
    token: Key = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the trace on standard output.")] = False,
) -> None:
    """Write which task ran where and when, for chrome://tracing or ui.perfetto.dev."""
    as_json = as_json or str(output) == "-"
    if output is None and not as_json:
        raise InputError("no file is named", where="trace", hint="write -o trace.json, or --json for standard output")
    options.check_file(output)
    with connect(url, token=token) as cluster:
        job = cluster.job(number)
        if output is not None and str(output) != "-":
            job.trace(output)
        if as_json:
            print_json(job.trace_events())
        else:
            typer.echo(f"wrote {output}; open it at ui.perfetto.dev")


def _arguments(words: Sequence[str]) -> dict[str, Any]:
    """Arguments from NAME=VALUE. Values that are not JSON are strings."""
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--arg {word!r} is not NAME=VALUE", hint="write --arg name=value")
        try:
            arguments[name] = json.loads(value)
        except ValueError:
            arguments[name] = value
    return arguments


def _plain(value: Any) -> Any:
    """A result as JSON types; values of other types as text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
