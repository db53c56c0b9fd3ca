"""`symphony forecast`: what each training job of a service or of a simulated cluster may expect.

Of a simulated one, what then happened, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from symphony.cli import options, terminal
from symphony.cli.forecast_table import show, time
from symphony.cli.remote import Key, Url
from symphony.problem.errors import InputError
from symphony.service.client import connect

FORECAST_FORMAT = "symphony.forecast/1"


def forecast(
    *,
    topology: Annotated[str, typer.Option("--topology", "-t", help="Built-in name or TOML file.")] = "gpu24",
    workload: Annotated[
        str, typer.Option("--workload", "-w", help="measured:JOBS?load=…&hours=…, or a list of Gavel's: FILE?jobs=…")
    ] = "measured:48?load=2",
    seed: Annotated[int, typer.Option("--seed", "-s", help="Of the workload, the truth and the draws.", min=0)] = 0,
    at: Annotated[
        float | None, typer.Option(help="Seconds into the run; the middle of arrivals if it is not said.", min=0)
    ] = None,
    share: Annotated[float, typer.Option(help="Of what happens, that bands are to hold.")] = 0.8,
    check: Annotated[bool, typer.Option("--check", help="Run on, and show beside it what happened.")] = False,
    tables: Annotated[Path | None, typer.Option(help="Folder of Gavel's tables, if not $SYMPHONY_DATA/gavel.")] = None,
    output: options.Output = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    live: Annotated[bool, typer.Option("--live", help="Of the training jobs that a service runs, instead.")] = False,
    url: Url = "",
    token: Key = "",
) -> None:
    """Say what each training job may expect: of a simulated cluster, or (--live) of a service.

    In the simulated one, jobs of unknown speed run under the planner up to an instant.
    """
    options.check_file(output)
    if not 0 < share < 1:
        raise InputError(f"--share is {share:g}", hint="write a number between 0 and 1, such as 0.8")
    if live:
        _live(url, token, share, output, as_json)
        return
    from symphony.cli.forecast_simulated import simulated  # with JAX, which jobs of a service do without

    console = terminal.console(stderr=as_json)
    asked = {"topology": topology, "workload": workload, "seed": seed, "share": share}
    told = simulated(console, topology, workload, seed, share, tables=tables, at=at, check=check, quiet=quiet)
    title = f"{workload} on {topology}, seed {seed}: at {time(told['at_s'])}, bands of {share:.0%}"
    _write({"format": FORECAST_FORMAT, **asked, **told}, title, output, as_json)


def _write(content: dict[str, Any], title: str, output: Path | None, as_json: bool) -> None:
    """Print a table, or JSON; and write a file."""
    if output is not None:
        output.write_text(json.dumps(content, indent=1))
    if as_json:
        terminal.print_json(content)
    else:
        show(terminal.console(), content, title)


def _live(url: str, token: str, share: float, output: Path | None, as_json: bool) -> None:
    """Of the jobs of a service."""
    with connect(url, token=token) as cluster:
        found, where = cluster.forecasts(share), cluster.url
    jobs = []
    for one in found:
        content = one.model_dump(mode="json")
        samples = content.pop("samples")
        behind = {"signature": samples["here"], "kernel": samples["elsewhere"], "family": samples["family"]}
        behind |= {"newest_s": samples["newest_s"], "guess_only": samples["newest_s"] is None}
        jobs.append(
            content
            | {"kernel": content.pop("task"), "workers": max(len(one.devices), 1), "kind": one.kind or None}
            | {"units_left": content.pop("steps_left"), "samples": behind}
        )
    said = {"format": FORECAST_FORMAT, "service": where, "share": share, "at_s": 0.0, "jobs": jobs}
    if not jobs and output is None and not as_json:
        terminal.console().print("no training job runs or waits there")
        return
    _write(said, f"training jobs of {where}, bands of {share:.0%}", output, as_json)
