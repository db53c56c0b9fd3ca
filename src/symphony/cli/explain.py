"""`symphony explain`: why a job took so long, or why the learned policy decided so."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from symphony.cli import terminal
from symphony.cli.remote import Key, Url, connect, print_json
from symphony.evaluation.compare import scenario
from symphony.policies import SHIPPED, Learned, named
from symphony.policies.explain import Candidate, Explanation
from symphony.policies.explain import explain as explained
from symphony.problem import topologies
from symphony.problem.errors import InputError


def explain(
    job: Annotated[int | None, typer.Argument(metavar="[ID]", help="A job of a service: why it took so long.")] = None,
    *,
    topology: Annotated[str, typer.Option("--topology", "-t", help="Built-in name or TOML file.")] = "paper",
    workload: Annotated[str, typer.Option("--workload", "-w", help="Family or file.")] = "variant-calling?jobs=20",
    policy: Annotated[str, typer.Option("--policy", "-p", help="A policy that was trained.")] = SHIPPED,
    seed: Annotated[int, typer.Option(help="Of the scenario.", min=0)] = 0,
    decision: Annotated[int, typer.Option("--decision", "-d", help="Its number, from 0.", min=0)] = 0,
    most: Annotated[int, typer.Option(help="Candidates to show.", min=1)] = 8,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write it as JSON ('-': stdout).")] = None,
    url: Url = "",
    token: Key = "",
) -> None:
    """Say why: of a job that a service runs or ran (ID), or of one decision of the learned policy in a scenario."""
    if job is not None:
        _explain_job(job, url, token, json_file)
        return
    chosen = named(policy)
    if not isinstance(chosen, Learned):
        raise InputError(f"{policy!r} does not learn", hint=f"use {SHIPPED}, or a file that symphony train wrote")
    told = explained(chosen, scenario(topologies.topology(topology), workload, seed), decision)
    if json_file is not None:
        text = json.dumps(asdict(told), indent=1)
        if str(json_file) == "-":
            sys.stdout.write(text + "\n")
            return
        json_file.write_text(text)
    _show(terminal.console(), told, most)


def _explain_job(number: int, url: str, token: str, json_file: Path | None) -> None:
    with connect(url, token=token) as cluster:
        found = cluster.job(number)
        text = found.explain()
        content = {**found.detail().model_dump(mode="json"), "text": text}
    if json_file is None:
        typer.echo(text)
    elif str(json_file) == "-":
        print_json(content)
    else:
        json_file.write_text(json.dumps(content, indent=1))


def _show(console: Console, told: Explanation, most: int) -> None:
    console.print(f"decision {told.number}, at {told.time_s:.4g} s")
    table = Table(box=None, pad_edge=False)
    for name in ("", "gang", "device"):
        table.add_column(name, overflow="fold")
    for name in ("finish, s (95%)", "wait", "run", "heuristic", "network", "chance"):
        table.add_column(name, justify="right", no_wrap=True)
    for candidate in told.candidates[:most]:
        mark = "▶" if candidate is told.chosen else "h" if candidate == told.heuristic else ""
        table.add_row(mark, *_cells(candidate))
    console.print(table)
    hidden = len(told.candidates) - most
    if hidden > 0:
        console.print(f"… and {hidden} more (--most)")
    for device, rows in told.beliefs.items():
        said = ", ".join(
            f"{escape(x.resource)} {x.own:.0%} own + {x.others:.0%} ± {x.deviation:.0%} by others" for x in rows
        )
        console.print(f"on the way to {escape(device)}: {said}", soft_wrap=True)
    if told.heuristic is None or told.heuristic == told.chosen:
        console.print("The heuristic would do the same.")
        return
    console.print(
        f"The heuristic (h) would place {escape(told.heuristic.gang)} of {escape(told.heuristic.job)} on "
        f"{escape(told.heuristic.device)}. What the lead of the chosen one rests on:",
        soft_wrap=True,
    )
    for name, share in sorted(told.moved.items(), key=lambda item: -abs(item[1])):
        console.print(f"  {share:+.2f}  {name}")


def _cells(c: Candidate) -> list[str]:
    gang = f"{c.gang} of {c.job}" if c.gang else ""
    cells = [escape(gang if c.action == "place" else f"{c.action} {gang}".strip()), escape(c.device)]
    chance = f"{c.chance:.0%}"
    if c.estimate is None:
        return [*cells, "", "", "", "", "", chance]
    e = c.estimate
    return [
        *cells,
        f"{e.finish_s:.3g} ({e.low_s:.3g} … {e.high_s:.3g})",
        f"{max(e.queue_s, e.fetch_s) + e.setup_s:.3g}",
        f"{e.run_s:.3g} × {e.slowdown:.2f}",
        f"{e.heuristic:+.2f}",
        f"{e.network:+.2f}",
        chance,
    ]
