"""`symphony why`, `when`, `whatif`, `record`: the future of a service's jobs, and how often forecasts were right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape

from symphony.cli import options, terminal
from symphony.cli.options import AsJson
from symphony.cli.remote import Key, Number, Url, plain_table
from symphony.cli.terminal import print_json
from symphony.problem.errors import InputError
from symphony.service.client import connect
from symphony.service.graph_file import load
from symphony.service.wire import AskWhatIf, BandView, WhatIfAnswer
from symphony.training_jobs.job_forecast import seconds

MAX_SHOWN_JOBS = 10
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)")
_UNIT_S = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def when(
    number: Number,
    *,
    share: Annotated[float, typer.Option(help="Probability that a band should hold the actual time.")] = 0.8,
    url: Url = "",
    token: Key = "",
    as_json: AsJson = False,
) -> None:
    """Say when a job starts and ends, with bands, and how reliable such bands were."""
    if not 0 < share < 1:
        raise InputError(f"--share is {share:g}", hint="write a number between 0 and 1, such as 0.8")
    with connect(url, token=token) as cluster:
        found = cluster.when(number, share)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    typer.echo(found.text)
    if found.draws:
        record = (
            f"calibrated from {found.calibrated} forecasts" if found.calibrated else "not calibrated: no outcomes yet"
        )
        typer.echo(f"bands of {found.share:.0%}, from {found.draws} futures; {record}")


def why(number: Number, *, url: Url = "", token: Key = "", as_json: AsJson = False) -> None:
    """Say why a job waits, what is ahead of it, and the smallest change that would help."""
    with connect(url, token=token) as cluster:
        found = cluster.why(number)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    typer.echo(found.text)
    if found.reasons:
        table = plain_table("tasks", "reason", right=("tasks",))
        for one in found.reasons:
            table.add_row(str(one.count), escape(one.reason))
        terminal.print_table(table)
    for other in found.helps[1:]:
        typer.echo(f"also: {other.text}")


def whatif(
    *,
    submit: Annotated[str, typer.Option(help="graph.py, graph.py:NAME or graph.toml: one job more.")] = "",
    policy: Annotated[str, typer.Option("--policy", "-p", help="Another policy.")] = "",
    without: Annotated[list[str] | None, typer.Option(help="Without this machine or device. Repeatable.")] = None,
    more: Annotated[
        list[str] | None, typer.Option("--with", help="'2×v100': more devices of a kind, or machines like one.")
    ] = None,
    fail: Annotated[list[str] | None, typer.Option(help="This machine or device fails now. Repeatable.")] = None,
    fail_for: Annotated[str, typer.Option("--for", help="… for so long: 30min, 2h.")] = "1h",
    priority: Annotated[list[str] | None, typer.Option(help="ID=N: another priority of a job. Repeatable.")] = None,
    since: Annotated[str, typer.Option(help="Play the jobs of the last 6h again, instead of the open ones.")] = "",
    url: Url = "",
    token: Key = "",
    as_json: AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Play the open jobs, or the journalled ones again, with something changed, and compare."""
    changes: dict[str, Any] = {
        "policy": policy,
        "without": without or [],
        "more": more or [],
        "fail": fail or [],
        "fail_s": duration(fail_for, "--for"),
        "priority": _priorities(priority or []),
        "since_s": duration(since, "--since") if since else 0.0,
    }
    if not (submit or policy or without or more or fail or priority):
        hint = "name one, such as --policy heft, --without MACHINE, --with '2×v100' or --submit FILE"
        raise InputError("no change is named", where="whatif", hint=hint)
    if submit and since:
        raise InputError("--submit is about now, --since about the past", where="whatif", hint="leave one of them out")
    graph = load(submit, {}) if submit else None
    console = terminal.console(stderr=True)
    with connect(url, token=token) as cluster, terminal.progress_bar(console, quiet=quiet, width=30) as update:

        def show_progress(share: float) -> None:
            update("playing futures" if share else "compiling", share)

        found = cluster.what_if(AskWhatIf(**changes), graph, show_progress)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _show(found)


def _show(found: WhatIfAnswer) -> None:
    typer.echo(found.text)
    table = plain_table("", "now", "then", "change")
    for one in found.measures:
        form = _share if one.name == "utilisation" else _time
        table.add_row(one.text, _band(one.now, form), _band(one.then, form), _band(one.change, form, sign=True))
    if found.measures:
        terminal.print_table(table)
    changed = [row for row in found.rows if row.now.mid != row.then.mid][:MAX_SHOWN_JOBS]
    if changed:
        jobs = plain_table("job", "name", "ends in", "then in")
        for row in changed:
            jobs.add_row(str(row.job), escape(row.name), _band(row.now, _time), _band(row.then, _time))
        terminal.print_table(jobs)
    left = f"; {found.left_out} jobs of an earlier version are left out" if found.left_out else ""
    typer.echo(f"bands of 80% over {found.draws} futures of {found.jobs} jobs{left}")


def record(
    *,
    everybody: Annotated[bool, typer.Option("--all", help="Forecasts of all users; needs scope admin.")] = False,
    url: Url = "",
    token: Key = "",
    as_json: AsJson = False,
) -> None:
    """Show how often forecasts were right, by horizon and user."""
    with connect(url, token=token) as cluster:
        found = cluster.record(everybody=everybody)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    typer.echo(found.text)
    if found.rows:
        right = ("forecasts", "held", "before calibration", "width", "error")
        table = plain_table("of", "by", "", *right, right=right)
        for row in found.rows:
            shares = (f"{x:.0%}" for x in (row.coverage, row.raw_coverage, row.width, row.error))
            table.add_row(row.what, row.by, escape(row.value), str(row.count), *shares)
        terminal.print_table(table)


def duration(text: str, where: str) -> float:
    """Seconds of "90s", "30min", "6h" or "1d"."""
    found = _AGO.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise InputError(f"{text!r} is not a time", where=where, hint="write a number and s, min, h or d: 6h")
    return float(found[1]) * _UNIT_S[found[2]]


def _priorities(words: Sequence[str]) -> dict[int, int]:
    found = {}
    for word in words:
        job, equals, level = word.partition("=")
        if not (equals and job.isdigit() and level.lstrip("-").isdigit()):
            raise InputError(f"{word!r} is not ID=N", where="--priority", hint="write --priority 17=5")
        found[int(job)] = int(level)
    return found


def _time(value: float) -> str:
    return ("-" if value < 0 else "") + seconds(abs(value))


def _share(value: float) -> str:
    return f"{value:.0%}"


def _band(band: BandView, form: Any, sign: bool = False) -> str:
    if band.mid is None:
        return "never"
    mark = "+" if sign and band.mid > 0 else ""
    low, high = ("never" if end is None else form(end) for end in (band.low, band.high))
    return f"{mark}{form(band.mid)} ({low} to {high})"
